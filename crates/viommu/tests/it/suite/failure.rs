// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The n-th frame allocation fails, for every n, until the scenario passes unharmed (P10).
//!
//! A device hammers all the pages about, before, between and after: what was half made and undone
//! is reached by no device after its flush, and not handed out before it (P3).

use crate::suite::{placements::*, rig::*};
use ioatlas_dma::{design::Design, dma_api::*, domain::*, table::*, translator::*, units::*};
use ioatlas_viommu::{config::UnitConfig, machine::MachineError, oracle::Failing, oracle::Oracle};
use ioatlas_vtd::driver::BringUpError;
use std::sync::Arc;

on_every_machine! {
    failure::a_single_map,
    failure::a_map_at_a_chosen_address,
    failure::a_long_list_across_tables,
    failure::consistent_memory,
    failure::typed_buffers,
    failure::a_new_domain,
    failure::attaching_the_first_device_of_a_bus,
    failure::bringing_the_unit_up,
    failure::what_is_undone_is_not_handed_out_before_the_flush,
}

on_every_width! {
    failure::a_single_map,
    failure::a_map_at_a_chosen_address,
    failure::a_long_list_across_tables,
    failure::consistent_memory,
}

/// Runs `attempt` with its n-th allocation failing, n from 0, until none of its allocations is the
/// one. Returns how many failed.
///
/// `attempt` makes all it needs anew each time, and checks its own error; it says whether it
/// succeeded.
fn fail_each<B: Base>(failing: &Failing<B>, mut attempt: impl FnMut(u64) -> bool) -> u64 {
    for n in 0..1000 {
        failing.fail_nth(n);
        let succeeded = attempt(n);
        let unharmed = failing.disarm();
        assert_eq!(succeeded, unharmed, "allocation {n}");
        if unharmed {
            return n;
        }
    }
    panic!("it never passed");
}

/// Accesses by the device to all of the toy aperture, or to the lowest pages of each quarter and
/// the highest.
fn hammer<B: Base, F: Format>(rig: &Rig<B>) {
    for page in pages_about::<F>() {
        rig.access(page, AccessKind::Read);
        rig.access(page, AccessKind::Write);
    }
}

fn pages_about<F: Format>() -> impl Iterator<Item = IovaPage> {
    let end = F::aperture().end().0;
    let quarter = end / 4;
    let low = move |n: u64| n * quarter..n * quarter + quarter.min(64);
    let pages = (0..4).flat_map(low).chain(end - quarter.min(64)..end);
    pages.map(IovaPage)
}

/// The device reaches for these pages whenever an allocation fails, too: what is half made then is
/// cached.
fn hammer_when_it_fails<B: Base>(rig: &Rig<B>, pages: impl Iterator<Item = IovaPage>) {
    let unit = Arc::downgrade(rig.machine.machine().unit()); // which holds the platform
    let pages: Vec<_> = pages.collect();
    rig.failing().when_it_fails(move || {
        let unit = unit.upgrade();
        for (unit, page) in unit
            .iter()
            .flat_map(|unit| pages.iter().map(move |page| (unit, page)))
        {
            unit.access(NIC, *page, AccessKind::Read);
            unit.access(NIC, *page, AccessKind::Write);
        }
    });
}

/// A map that is tried in a fresh domain with each allocation failing in turn.
fn maps<B: Base, F: Format>(
    fewest: u64,
    map: impl Fn(&Dom<B, F>) -> Result<Mapping, MapError>,
    wanted: u64,
) {
    // every kind of tables in turn, and lists in either order
    let tables = all_tables().into_iter().cycle();
    for (nth, (domain, tables)) in core_designs::<F>().into_iter().zip(tables).enumerate() {
        let order = [ListOrder::Ascending, ListOrder::Descending][nth % 2];
        let domain = domain.order(order);
        let design = Design { domain, tables };
        let largest = |config: &mut UnitConfig| config.features.largest_leaf = 3;
        let rig = Rig::<B>::with::<F>(1024, largest);
        // the context table exists before, so that only the map allocates
        rig.close(rig.domain::<F>(design), &[NIC]);
        let failed = fail_each(rig.failing(), |n| {
            // the domain itself is not what fails here
            rig.failing().disarm();
            let domain = rig.domain::<F>(design);
            let root = rig.frames_in_use();
            rig.failing().fail_nth(n);
            let result = map(&domain);
            hammer::<B, F>(&rig);
            let succeeded = match result {
                Ok(mapping) => {
                    assert_eq!(mapping.range().pages, PageCount(wanted));
                    domain.unmap(mapping).unwrap();
                    true
                }
                Err(error) => {
                    let MapError::Install(stopped) = error else {
                        panic!("{error}")
                    };
                    assert_eq!(stopped.cause, InstallCause::NoFrame);
                    assert_eq!(stopped.wanted, PageCount(wanted));
                    assert!(stopped.done < stopped.wanted);
                    let text = error.to_string();
                    assert!(text.contains(&format!("{} of {wanted}", stopped.done)));
                    let stats = domain.domain().stats();
                    assert_eq!((stats.maps, stats.live), (0, PageCount(0)));
                    assert_eq!(stats.allocated, PageCount(0));
                    false
                }
            };
            let audit = domain.domain().audit().unwrap();
            assert_eq!(audit.census.pages, PageCount(0));
            domain.domain().flush().unwrap();
            hammer::<B, F>(&rig);
            let audit = domain.domain().audit().unwrap();
            assert_eq!(audit.usage.allocated, PageCount(0), "all IOVAs were freed");
            let tables = rig.frames_in_use() - root;
            assert_eq!(
                audit.census.frames as usize,
                tables + 1,
                "every frame is a table"
            );
            // and the domain is as good as new
            let unharmed = rig.failing().disarm();
            let after = map(&domain).expect("a second try");
            hammer::<B, F>(&rig);
            domain.unmap(after).unwrap();
            rig.close(domain, &[NIC]);
            if unharmed {
                rig.failing().fail_nth(n);
            }
            succeeded
        });
        assert!(failed >= fewest, "only {failed} allocations failed");
        rig.end();
    }
}

pub fn a_single_map<B: Base, F: Format>() {
    // a table for each level below the root
    maps::<B, F>(
        u64::from(F::LEVELS) - 1,
        |domain| domain.map(buffer(0x10, 1), Direction::Bidirectional),
        1,
    );
}

pub fn a_map_at_a_chosen_address<B: Base, F: Format>() {
    let pages = span::<F>() + 2;
    // its last page is the first of a third table
    let at = IovaPage(4 * span::<F>() - 1).addr();
    maps::<B, F>(
        u64::from(F::LEVELS) + 1,
        |domain| domain.map_at(at, buffer(0x10, pages), Direction::Bidirectional),
        pages,
    );
}

pub fn a_long_list_across_tables<B: Base, F: Format>() {
    let pages = 2 * span::<F>() + 1;
    maps::<B, F>(
        u64::from(F::LEVELS) + 1,
        |domain| {
            let list: Vec<_> = (0..pages).map(|i| buffer(0x1000 + 3 * i, 1)).collect();
            domain.map_list(&list, Direction::Bidirectional)
        },
        pages,
    );
}

pub fn consistent_memory<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(64);
        hammer_when_it_fails(&rig, pages_about::<F>());
        let mut installs_failed = 0;
        let failed = fail_each(rig.failing(), |n| {
            rig.failing().disarm();
            let domain = rig.domain::<F>(design);
            let root = rig.frames_in_use();
            rig.failing().fail_nth(n);
            let result = domain.alloc_consistent(ByteCount(6 * GRANULE));
            hammer::<B, F>(&rig);
            let succeeded = match result {
                Ok(memory) => {
                    domain.free_consistent(memory).unwrap();
                    true
                }
                Err(MapError::NoFrame { done, wanted }) => {
                    assert_eq!((done, wanted), (PageCount(n), PageCount(6)));
                    false
                }
                Err(MapError::Install(stopped)) => {
                    assert_eq!(stopped.cause, InstallCause::NoFrame);
                    installs_failed += 1;
                    false
                }
                Err(other) => panic!("{other}"),
            };
            let audit = domain.domain().audit().unwrap();
            let all = audit.census.frames + audit.stats.retired.frames;
            assert_eq!(rig.frames_in_use() + 1 - root, all as usize);
            domain.domain().flush().unwrap();
            hammer::<B, F>(&rig);
            let audit = domain.domain().audit().unwrap();
            assert_eq!(audit.usage.allocated, PageCount(0));
            assert_eq!(rig.frames_in_use() + 1 - root, audit.census.frames as usize);
            rig.close(domain, &[NIC]);
            succeeded
        });
        assert!(failed >= 6 + u64::from(F::LEVELS) - 1, "{failed}");
        assert!(installs_failed >= F::LEVELS - 1, "{installs_failed}");
        rig.end();
    }
}

/// A buffer across an edge of leaf tables is given, reached, taken back and dropped; any allocation
/// of that fails.
pub fn typed_buffers<B: Base, F: Format>() {
    for (nth, design) in core_designs::<F>().into_iter().enumerate() {
        // each policy with each placement, in turn
        let placement = PLACEMENTS[(nth + nth / PLACEMENTS.len()) % PLACEMENTS.len()];
        // pools take some
        let beside = if placement == Placement::Never { 8 } else { 64 };
        let edge = F::aperture().end().0 - span::<F>();
        let first = edge.saturating_sub(beside);
        let end = F::aperture().end().0.min(edge + beside);
        let near = IovaRange::new(IovaPage(first), PageCount(end - first));
        let aperture = chooses_freely(&design).then_some(near);
        let design = design.aperture(aperture);
        let context = format!("{}, {placement:?}", name(&design));
        let mut passed = false;
        // those of a chunk are all alike
        for n in (0..24).chain((24..1000).step_by(9)) {
            let rig = Rig::<B>::new::<F>(256);
            hammer_when_it_fails(&rig, near.iter());
            let domain = rig.domain::<F>(design);
            let dma = domain.dma(tight(ON_DEMAND));
            let config = ClientConfig::default().placement(placement);
            let client = dma.client(config).expect("a pool");
            let look = || {
                for page in near.iter() {
                    rig.access(page, AccessKind::Read);
                    rig.access(page, AccessKind::Write);
                }
            };
            rig.failing().fail_nth(n);
            let buffer = client.buffer::<FromDevice>(ByteCount(10 * GRANULE));
            let given = buffer.and_then(|buffer| client.give(buffer).ok());
            look();
            if let Some(given) = given {
                let back = client.take_back(given).expect("unmapped");
                look();
                drop(back);
            }
            look();
            let unharmed = rig.failing().disarm();
            // and another one is as well off
            let buffer = client.buffer::<FromDevice>(ByteCount(10 * GRANULE));
            if let Some(Ok(given)) = buffer.map(|buffer| client.give(buffer)) {
                look();
                drop(client.take_back(given).expect("unmapped"));
            }
            look();
            drop((client, dma));
            rig.close(domain, &[NIC]);
            rig.end();
            if unharmed {
                assert!(n >= 10, "{context}: only {n} allocations");
                passed = true;
                break;
            }
        }
        assert!(passed, "{context}: it never passed");
    }
}

pub fn a_new_domain<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::with::<F>(64, |config| config.features.nd = 0);
        let before = rig.frames_in_use();
        // more often than there are ids: a failed one is given back
        for _ in 0..40 {
            let failed = fail_each(rig.failing(), |_| match rig.machine.domain::<F>(design) {
                Ok(domain) => {
                    rig.close(domain, &[]);
                    true
                }
                Err(error) => {
                    assert_eq!(error, PagedError::NoFrame.into());
                    false
                }
            });
            assert_eq!(failed, 1, "the root table");
            assert_eq!(rig.frames_in_use(), before);
        }
        rig.end();
    }
}

pub fn attaching_the_first_device_of_a_bus<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.machine.domain::<F>(design).unwrap();
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        let before = rig.frames_in_use();
        let failed = fail_each(rig.failing(), |_| match domain.attach(DISK) {
            Ok(()) => true,
            Err(error) => {
                let bus = (DISK.0 >> 8) as u8;
                assert_eq!(error, AttachError::NoFrame { bus });
                assert!(error.to_string().contains("0x1"), "{error}");
                assert_eq!(rig.frames_in_use(), before);
                assert_eq!(rig.access_by(DISK, at, AccessKind::Read), None);
                false
            }
        });
        assert_eq!(failed, 1, "the context table of its bus");
        let to = rig.access_by(DISK, at, AccessKind::Read);
        assert_eq!(to, Some(PhysPage(0x10)));
        domain.unmap(mapping).unwrap();
        rig.close(domain, &[DISK]);
        rig.end();
    }
}

pub fn bringing_the_unit_up<B: Base, F: Format>() {
    for n in 0.. {
        let base = Failing::new(B::make(64));
        base.fail_nth(n);
        match machine_on::<B, F>(base, Oracle::new(), |_| ()) {
            Err(MachineError::BringUp(BringUpError::NoFrame)) => assert!(n < 3),
            Err(other) => panic!("{other}"),
            Ok(machine) => {
                assert_eq!(n, 3, "root table, queue, status word");
                Rig { machine }.end();
                return;
            }
        }
    }
}

pub fn what_is_undone_is_not_handed_out_before_the_flush<B: Base, F: Format>() {
    for design in designs() {
        // room for one long list and nothing else, so that the next map must get the same pages
        let span = span::<F>();
        let aperture = Some(IovaRange::new(IovaPage(2 * span), PageCount(2 * span)));
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design.aperture(aperture));
        let list: Vec<_> = (0..2 * span).map(|i| buffer(0x1000 + i, 1)).collect();
        // all tables but the last: half of the list is written, then undone
        rig.failing().fail_nth(u64::from(F::LEVELS) - 1);
        let error = domain.map_list(&list, Direction::ToDevice).unwrap_err();
        assert!(matches!(error, MapError::Install(e) if e.done == PageCount(span)));
        assert!(!rig.failing().disarm());
        let retired = domain.domain().stats().retired;
        let held = holds_frames(&design);
        let expected = if held { 2 * span } else { 0 };
        assert_eq!(retired.pages, PageCount(expected));
        let table = u64::from(held);
        assert_eq!(retired.frames, table, "its leaf table was covered whole");
        let before = domain.domain().stats().invalidations;
        let next = domain.map(buffer(0x9000, 1), Direction::ToDevice).unwrap();
        let flushed = domain.domain().stats().invalidations - before;
        let expected = match afterwards(&design) {
            Afterwards::Batched | Afterwards::Kept => 1,
            // done in or before the failed map
            Afterwards::Never | Afterwards::Started => 0,
        };
        assert_eq!(flushed, expected, "a flush came first");
        hammer::<B, F>(&rig);
        domain.unmap(next).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
