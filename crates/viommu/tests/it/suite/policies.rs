// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is particular to the policies of the other systems of ATC'15: what waits for what, what is
//! kept, and for how long.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, table::Format, units::*};

on_every_machine! {
    policies::freebsd_invalidates_each_page,
    policies::one_queue_counts_for_all_cpus,
    policies::macos_keeps_no_more_than_its_depth,
    policies::macos_collects_at_maps_and_ticks,
    policies::macos_waits_for_the_first_when_it_is_full,
    policies::solaris_flushes_what_it_maps,
    policies::solaris_serves_maps_from_what_it_keeps,
    policies::solaris_is_exposed_until_the_range_is_mapped_again,
    policies::what_solaris_does_not_keep_is_flushed_at_unmap,
}

fn each(run: impl FnMut(DomainConfig), which: fn(&PolicyConfig) -> bool) {
    let designs = designs().into_iter().filter(|d| which(&d.policy));
    let designs: Vec<_> = designs.collect();
    assert!(!designs.is_empty());
    designs.into_iter().for_each(run);
}
fn macos(run: impl FnMut(DomainConfig)) {
    each(run, |policy| matches!(policy, PolicyConfig::MacOs(_)));
}
fn solaris(run: impl FnMut(DomainConfig)) {
    each(run, |policy| *policy == PolicyConfig::Solaris);
}

/// Invalidations, and pages retired.
fn counts<B: Base, F: Format>(domain: &Dom<B, F>) -> (u64, u64) {
    let stats = domain.domain().stats();
    (stats.invalidations, stats.retired.pages.0)
}

fn map<B: Base, F: Format>(domain: &Dom<B, F>, first: u64, pages: u64) -> Mapping {
    let mapping = domain.map(buffer(first, pages), Direction::ToDevice);
    mapping.expect("room")
}

pub fn freebsd_invalidates_each_page<B: Base, F: Format>() {
    each(
        |design| {
            let rig = Rig::<B>::new::<F>(64);
            let domain = rig.domain::<F>(design);
            for pages in [1, 3, span::<F>() + 1] {
                let mapping = map(&domain, 0x1000, pages);
                let range = mapping.range();
                for at in range.iter() {
                    assert!(rig.access(at, AccessKind::Read).is_some());
                }
                let before = counts(&domain).0;
                domain.unmap(mapping).unwrap();
                assert_eq!(counts(&domain), (before + pages, 0));
                for at in range.iter() {
                    assert_eq!(rig.access(at, AccessKind::Read), None);
                }
            }
            rig.close(domain, &[NIC]);
            rig.end();
        },
        |policy| *policy == PolicyConfig::FreeBsd,
    );
}

pub fn one_queue_counts_for_all_cpus<B: Base, F: Format>() {
    each(
        |design| {
            let rig = Rig::<B>::new::<F>(64);
            let domain = rig.domain::<F>(design);
            let global = matches!(design.policy, PolicyConfig::DeferredGlobal(_));
            // a batch is 5
            let unmap = |n| (0..n).for_each(|i| domain.unmap(map(&domain, 0x10 + i, 1)).unwrap());
            unmap(3);
            rig.failing().inner().on_another_cpu(|| unmap(2));
            let expected = if global { (1, 0) } else { (0, 5) };
            assert_eq!(counts(&domain), expected, "{}", name(&design));
            rig.close(domain, &[NIC]);
            rig.end();
        },
        |policy| {
            matches!(
                policy,
                PolicyConfig::DeferredGlobal(_) | PolicyConfig::DeferredPerCpu(_)
            )
        },
    );
}

pub fn macos_keeps_no_more_than_its_depth<B: Base, F: Format>() {
    macos(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let live: Vec<_> = (0..10).map(|i| map(&domain, 0x10 + i, 1)).collect();
        // no access holds the unit up, so each unmap finds the one before done
        for (n, mapping) in (1..).zip(live) {
            domain.unmap(mapping).unwrap();
            assert_eq!(counts(&domain), (n, 1));
        }
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn macos_collects_at_maps_and_ticks<B: Base, F: Format>() {
    macos(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        domain.unmap(map(&domain, 0x10, 1)).unwrap();
        assert_eq!(counts(&domain), (1, 1));
        let report = TickReport {
            drained: 1,
            ..TickReport::default()
        };
        assert_eq!(domain.tick(TimeNs(0)), Ok(report));
        assert_eq!(counts(&domain), (1, 0), "home, and nothing was started");
        assert_eq!(domain.tick(TimeNs(1)), Ok(TickReport::default()));
        let mapping = map(&domain, 0x10, 1);
        domain.unmap(mapping).unwrap();
        let next = map(&domain, 0x20, 1);
        assert_eq!(counts(&domain), (2, 0), "the map freed it");
        domain.unmap(next).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn macos_waits_for_the_first_when_it_is_full<B: Base, F: Format>() {
    macos(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let live: Vec<_> = (0..5).map(|i| map(&domain, 0x10 + i, 1)).collect();
        let at = live[0].iova().page();
        // an access in flight holds up every invalidation that is to drain it
        let unit = rig.machine.machine().unit().clone();
        let hangs = unit.begin(NIC, at, AccessKind::Read);
        let mut live = live.into_iter();
        for n in 1..=4 {
            domain.unmap(live.next().unwrap()).unwrap();
            assert_eq!(counts(&domain), (n, n), "no unmap waits");
        }
        // the fifth finds no room, and the unit does not come to an end: what was first is lost,
        // and it is said
        let error = domain.unmap(live.next().unwrap()).unwrap_err();
        assert!(matches!(error, UnmapError::Invalidate { .. }), "{error}");
        let stats = domain.domain().stats();
        assert_eq!(stats.quarantined.pages, PageCount(1));
        assert_eq!(stats.retired.pages, PageCount(4));
        drop(hangs);
        // the others are freed all the same
        assert_eq!(domain.tick(TimeNs(0)).unwrap().drained, 4);
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn solaris_flushes_what_it_maps<B: Base, F: Format>() {
    solaris(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for round in 0..6 {
            // fresh or not, Solaris cannot tell
            let mapping = map(&domain, 0x10 + round, 1);
            assert_eq!(counts(&domain), (round + 1, 0));
            domain.unmap(mapping).unwrap();
            assert_eq!(counts(&domain), (round + 1, 1));
        }
        assert_eq!(domain.tick(TimeNs(u64::MAX)), Ok(TickReport::default()));
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn solaris_serves_maps_from_what_it_keeps<B: Base, F: Format>() {
    solaris(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let live: Vec<_> = (0..8).map(|i| map(&domain, 0x10 + i, 1)).collect();
        let pages: Vec<_> = live.iter().map(|m| m.iova().page()).collect();
        live.into_iter().for_each(|m| domain.unmap(m).unwrap());
        let allocated = domain.domain().usage().allocated;
        assert_eq!(allocated, PageCount(8), "none were freed");
        // the newest first, each size for itself
        let two = map(&domain, 0x100, 2);
        assert_eq!(domain.domain().usage().allocated, PageCount(10));
        for page in pages.iter().rev() {
            let mapping = map(&domain, 0x200, 1);
            assert_eq!(mapping.iova().page(), *page);
            drop(mapping); // it stays mapped, and the stack goes down
        }
        assert_eq!(counts(&domain).1, 0);
        domain.unmap(two).unwrap();
        domain.domain().flush().unwrap();
        assert_eq!(domain.domain().usage().allocated, PageCount(8));
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn solaris_is_exposed_until_the_range_is_mapped_again<B: Base, F: Format>() {
    solaris(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let victim = map(&domain, 0x99, 1);
        let at = victim.iova().page();
        assert!(rig.access(at, AccessKind::Read).is_some());
        domain.unmap(victim).unwrap();
        // pairs of another size pass it by, ticks do nothing
        for n in 0..40 {
            domain.unmap(map(&domain, 0x200 + 4 * n, 2)).unwrap();
            domain.tick(TimeNs(n * 100_000_000)).unwrap();
            let stale = rig.access(at, AccessKind::Read);
            assert_eq!(stale, Some(PhysPage(0x99)), "round {n}");
        }
        let summary = rig.machine.oracle().summary();
        assert_eq!(summary.exposure.unmaps, 40);
        assert_eq!(summary.stale, 40);
        let next = map(&domain, 0x55, 1);
        assert_eq!(next.iova().page(), at);
        assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x55)));
        domain.unmap(next).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    });
}

pub fn what_solaris_does_not_keep_is_flushed_at_unmap<B: Base, F: Format>() {
    solaris(|design| {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let chosen = domain.map_at(Iova(0x5000), buffer(0x10, 1), Direction::ToDevice);
        let chosen = chosen.unwrap();
        let memory = domain.alloc_consistent(ByteCount(GRANULE)).unwrap();
        let table = map(&domain, 0x1000, span::<F>());
        let reached = [
            chosen.range().first,
            memory.iova().page(),
            table.range().first,
        ];
        for at in reached {
            assert!(rig.access(at, AccessKind::Read).is_some());
        }
        domain.unmap(chosen).unwrap();
        domain.free_consistent(memory).unwrap();
        domain.unmap(table).unwrap();
        for at in reached {
            assert_eq!(rig.access(at, AccessKind::Read), None, "{at}");
        }
        assert_eq!(domain.domain().stats().retired, Default::default());
        rig.close(domain, &[NIC]);
        rig.end();
    });
}
