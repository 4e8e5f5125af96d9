// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The invalidation rules of `ioatlas_dma::policy::rules`, a test a row, as the unit sees them.
//!
//! Elsewhere: R6 (`schedules`, where accesses are in flight), R7 (`sequence`, `schedules`), R12
//! (`writeback`), R13 (`attach`), R14 (`ats`), R16 (`tables`, `large`), R17 (`quarantine`).

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, invalidation::InvalidateError, table::Format, units::*};
use ioatlas_viommu::{config::WriteBuffers, observe::Stats, unit::Injection};

on_every_machine! {
    rules::r1_cleared_leaves_leave_the_walk_caches_alone,
    rules::r2_a_freed_table_is_flushed_from_the_walk_caches,
    rules::r3_and_r4_what_no_descriptor_names_is_the_domain,
    rules::r5_a_batch_is_one_invalidation_of_the_domain,
    rules::r8_a_map_reaches_what_was_cached_as_absent,
    rules::r8_a_map_that_cannot_invalidate_is_undone,
    rules::r9_a_device_that_was_cached_as_absent_is_attached,
    rules::r10_and_r11_write_buffers_hold_nothing_back,
    rules::r15_a_domain_id_comes_back_clean,
    rules::r18_what_is_mapped_anew_has_its_own_target_and_permission,
}

/// IOTLB invalidations that `call` makes.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    leaves: u64,
    tables: u64,
    domain: u64,
}

fn seen<B: Base>(rig: &Rig<B>, call: impl FnOnce()) -> Seen {
    let stats = || -> Stats { rig.machine.machine().unit().stats() };
    let before = stats();
    call();
    let after = stats();
    let leaves = after.leaf_invalidations - before.leaf_invalidations;
    Seen {
        leaves,
        tables: after.page_invalidations - before.page_invalidations - leaves,
        domain: after.domain_invalidations - before.domain_invalidations,
    }
}

fn design(policy: PolicyConfig) -> DomainConfig {
    let design = designs().into_iter().find(|d| d.policy == policy);
    design.expect("among them")
}

pub fn r1_cleared_leaves_leave_the_walk_caches_alone<B: Base, F: Format>() {
    for (policy, leaves) in [(PolicyConfig::Strict, 1), (PolicyConfig::FreeBsd, 2)] {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design(policy));
        let mapping = domain.map(buffer(0x10, 2), Direction::ToDevice).unwrap();
        let seen = seen(&rig, || domain.unmap(mapping).unwrap());
        let expected = Seen {
            leaves,
            tables: 0,
            domain: 0,
        };
        assert_eq!(seen, expected);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn r2_a_freed_table_is_flushed_from_the_walk_caches<B: Base, F: Format>() {
    let span = span::<F>();
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let at = IovaPage(2 * span).addr();
        let table = domain.map_at(at, buffer(0x1000, span), Direction::ToDevice);
        let table = table.unwrap();
        for at in table.range().iter() {
            assert!(rig.access(at, AccessKind::Read).is_some());
        }
        let seen = seen(&rig, || domain.unmap(table).unwrap());
        assert_eq!(seen.leaves, 0, "{}", name(&design));
        let expected = match (afterwards(&design), design.policy) {
            (_, PolicyConfig::FreeBsd) => span,
            (Afterwards::Batched, _) => 0,
            _ => 1,
        };
        assert_eq!((seen.tables, seen.domain), (expected, 0));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn r3_and_r4_what_no_descriptor_names_is_the_domain<B: Base, F: Format>() {
    for mask in [None, Some(0)] {
        let rig = Rig::<B>::with::<F>(64, |config| config.features.page_selective = mask);
        let domain = rig.domain::<F>(design(PolicyConfig::Strict));
        let [two, one] = [2, 1].map(|n| domain.map(buffer(0x10, n), Direction::ToDevice).unwrap());
        let of_two = seen(&rig, || domain.unmap(two).unwrap());
        assert_eq!((of_two.leaves, of_two.domain), (0, 1), "{mask:?}");
        let of_one = seen(&rig, || domain.unmap(one).unwrap());
        let named = u64::from(mask.is_some());
        assert_eq!((of_one.leaves, of_one.domain), (named, 1 - named));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn r5_a_batch_is_one_invalidation_of_the_domain<B: Base, F: Format>() {
    for design in designs().into_iter().filter(is_batched) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let seen = seen(&rig, || {
            for page in 0..5 {
                let mapping = domain.map(buffer(0x10 + page, 1), Direction::ToDevice);
                domain.unmap(mapping.unwrap()).unwrap();
            }
        });
        let expected = Seen {
            leaves: 0,
            tables: 0,
            domain: 1,
        };
        assert_eq!(seen, expected);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn r8_a_map_reaches_what_was_cached_as_absent<B: Base, F: Format>() {
    let span = span::<F>();
    for design in designs() {
        let rig = Rig::<B>::with::<F>(64, |config| config.features.caching_mode = true);
        let domain = rig.domain::<F>(design);
        // across a table's edge: absent tables are cached as well
        let range = IovaRange::new(IovaPage(2 * span - 1), PageCount(2));
        for round in 0..3 {
            for at in range.iter() {
                assert_eq!(rig.access(at, AccessKind::Read), None, "nothing is there");
                assert_eq!(rig.access(at, AccessKind::Read), None, "nor in a cache");
            }
            let to = 0x100 * (round + 1);
            let mapping = domain.map_at(range.first.addr(), buffer(to, 2), Direction::ToDevice);
            let mapping = mapping.unwrap();
            for (at, to) in range.iter().zip(to..) {
                let reached = rig.access(at, AccessKind::Read);
                assert_eq!(reached, Some(PhysPage(to)), "P14, {}", name(&design));
            }
            domain.unmap(mapping).unwrap();
            domain.domain().flush().unwrap();
        }
        let remembered = rig.machine.machine().unit().stats().absent_hits;
        assert!(remembered > 0, "the unit did cache absent entries");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn r8_a_map_that_cannot_invalidate_is_undone<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::with::<F>(64, |config| config.features.caching_mode = true);
        let domain = rig.domain::<F>(design);
        let errors = Injection::QueueErrors(u32::MAX);
        rig.machine.machine().unit().inject(errors);
        let error = domain.map(buffer(0x10, 1), Direction::ToDevice);
        let error = error.unwrap_err();
        assert!(
            matches!(
                error,
                MapError::Invalidate(
                    InvalidateError::QueueError { .. } | InvalidateError::OutOfService
                )
            ),
            "{error}"
        );
        let _ = domain.domain().flush();
        let audit = domain.domain().audit().expect("all is accounted for");
        assert_eq!(audit.census.pages, PageCount(0), "undone");
        assert_eq!(audit.stats.quarantined.pages, PageCount(1));
        rig.assert_clean();
    }
}

pub fn r9_a_device_that_was_cached_as_absent_is_attached<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::with::<F>(64, |config| config.features.caching_mode = true);
        let domain = rig.domain::<F>(design);
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        for _ in 0..3 {
            for _ in 0..2 {
                let reached = rig.access_by(DISK, at, AccessKind::Read);
                assert_eq!(reached, None, "P8: not attached, then remembered as that");
            }
            domain.attach(DISK).unwrap();
            let reached = rig.access_by(DISK, at, AccessKind::Read);
            assert_eq!(reached, Some(PhysPage(0x10)), "P14");
            domain.detach(DISK).unwrap();
        }
        domain.unmap(mapping).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn r10_and_r11_write_buffers_hold_nothing_back<B: Base, F: Format>() {
    for buffers in [
        WriteBuffers::FlushedByInvalidations,
        WriteBuffers::FlushedByCommand,
    ] {
        for design in designs() {
            let rig = Rig::<B>::with::<F>(64, |config| config.features.write_buffers = buffers);
            let domain = rig.domain::<F>(design);
            let before = rig.machine.machine().unit().stats().write_buffer_flushes;
            for round in 0..4 {
                let to = 0x10 * (round + 1);
                let mapping = domain.map(buffer(to, 3), Direction::ToDevice).unwrap();
                let range = mapping.range();
                for (at, to) in range.iter().zip(to..) {
                    assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(to)), "P14");
                }
                domain.unmap(mapping).unwrap();
                if !is_strict(&design) {
                    domain.domain().flush().unwrap();
                }
                for at in range.iter() {
                    assert_eq!(rig.access(at, AccessKind::Read), None, "P1");
                }
            }
            let after = rig.machine.machine().unit().stats().write_buffer_flushes;
            assert!(after >= before + 4, "one a map");
            rig.close(domain, &[NIC]);
            rig.end();
        }
    }
}

pub fn r15_a_domain_id_comes_back_clean<B: Base, F: Format>() {
    for design in designs() {
        // 16 ids, of which 0 is never given
        let rig = Rig::<B>::with::<F>(64, |config| config.features.nd = 0);
        let mut ids = Vec::new();
        for round in 0..20 {
            let domain = rig.domain::<F>(design);
            ids.push(domain.domain().id());
            let at = IovaPage(5);
            assert_eq!(rig.access(at, AccessKind::Read), None, "P8");
            let to = 0x10 + round;
            let mapping = domain.map_at(at.addr(), buffer(to, 1), Direction::ToDevice);
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(to)));
            drop(mapping); // still mapped at the end of its domain
            rig.close(domain, &[NIC]);
        }
        ids.sort_by_key(|id| id.0);
        ids.dedup();
        assert!(ids.len() < 20, "some came back");
        rig.end();
    }
}

pub fn r18_what_is_mapped_anew_has_its_own_target_and_permission<B: Base, F: Format>() {
    let steps = [
        (0x10, Direction::Bidirectional, true, true),
        (0x10, Direction::ToDevice, true, false), // narrower, the same page
        (0x10, Direction::FromDevice, false, true),
        (0x20, Direction::FromDevice, false, true), // another page
        (0x20, Direction::Bidirectional, true, true),
    ];
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let at = IovaPage(5);
        for (to, direction, reads, writes) in steps {
            let mapping = domain.map_at(at.addr(), buffer(to, 1), direction).unwrap();
            for _ in 0..2 {
                let read = rig.access(at, AccessKind::Read);
                assert_eq!(read, reads.then_some(PhysPage(to)), "P6, P9, P14");
                let written = rig.access(at, AccessKind::Write);
                assert_eq!(written, writes.then_some(PhysPage(to)), "P6, P9, P14");
            }
            domain.unmap(mapping).unwrap();
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
