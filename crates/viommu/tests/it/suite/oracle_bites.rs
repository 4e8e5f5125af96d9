// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The oracle itself: each violation is provoked, by a defect of the unit or by calls that it is
//! not told of, and named.

use crate::suite::{interface::*, placements::PLACEMENTS, rig::*};
use ioatlas_dma::{
    dma_api::Placement,
    domain::*,
    platform::{FreshFrame, Platform},
    table::{Format, TableConfig},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_sim::platform::Sim;
use ioatlas_viommu::{
    machine::NOT_COMBINED,
    oracle::{Bounds, Deadline, Failing, Oracle, Property, Watched, WatchedPlatform},
    unit::Injection,
    walk::Step,
};
use std::sync::{Arc, Mutex};

on_every_machine! {
    oracle_bites::p1_a_translation_that_survives_its_invalidation,
    oracle_bites::p2_a_translation_that_survives_a_flush,
    oracle_bites::p2_more_unmaps_than_promised,
    oracle_bites::p2_more_time_than_promised,
    oracle_bites::p2_one_unmap_more_than_the_policy_promises,
    oracle_bites::p2_one_nanosecond_more_than_the_policy_promises,
    oracle_bites::p3_a_page_mapped_over_a_live_one,
    oracle_bites::p3_a_page_mapped_again_without_a_flush,
    oracle_bites::p4_a_table_freed_while_it_is_in_use,
    oracle_bites::p4_a_walk_cache_entry_that_survives_its_invalidation,
    oracle_bites::p4_a_table_freed_under_a_walk,
    oracle_bites::p5_an_access_that_was_not_drained,
    oracle_bites::p6_a_write_to_what_is_mapped_for_reading,
    oracle_bites::p6_a_kept_buffer_that_was_turned_and_not_flushed,
    oracle_bites::p8_a_device_that_is_not_attached,
    oracle_bites::p8_a_device_served_by_another_domain,
    oracle_bites::p8_a_page_of_another_domain,
    oracle_bites::p9_a_page_that_no_mapping_names,
    oracle_bites::p9_the_page_of_an_older_mapping,
    oracle_bites::p9_a_bounce_buffer_whose_frame_is_free,
    oracle_bites::p14_a_mapping_that_is_gone,
    oracle_bites::a_panic_names_every_violation,
}

const READ: AccessKind = AccessKind::Read;

fn strict() -> impl Iterator<Item = DomainConfig> {
    designs().into_iter().filter(is_strict)
}

fn deferred() -> impl Iterator<Item = DomainConfig> {
    designs().into_iter().filter(is_batched)
}

/// Exactly one violation was seen, of this property, and its text has `words`.
fn bitten<B: Base>(rig: &Rig<B>, property: Property, words: &str) {
    let summary = rig.machine.oracle().summary();
    let [one] = &summary.violations[..] else {
        panic!("not exactly one: {summary}")
    };
    assert_eq!(one.property, property, "{summary}");
    assert!(one.text.contains(words), "{summary}");
    assert_eq!(summary.violation_count, 1);
}

fn inject<B: Base>(rig: &Rig<B>, defect: Injection) {
    rig.machine.machine().unit().inject(defect);
}

/// A live mapping that the NIC has read once, so that it is cached.
fn warm<B: Base, F: Format>(rig: &Rig<B>, domain: &Dom<B, F>, page: u64) -> (Mapping, IovaPage) {
    let mapping = domain.map(buffer(page, 1), Direction::ToDevice).unwrap();
    let at = mapping.iova().page();
    assert_eq!(rig.access(at, READ), Some(PhysPage(page)));
    rig.assert_clean();
    (mapping, at)
}

pub fn p1_a_translation_that_survives_its_invalidation<B: Base, F: Format>() {
    for design in strict() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (mapping, at) = warm(&rig, &domain, 0x10);
        inject(&rig, Injection::LeaveTranslations(1));
        domain.unmap(mapping).unwrap();
        rig.assert_clean(); // it was not used yet
        assert!(rig.access(at, READ).is_some());
        bitten(&rig, Property::P1, "after unmap had returned");
    }
}

pub fn p2_a_translation_that_survives_a_flush<B: Base, F: Format>() {
    for design in deferred() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (mapping, at) = warm(&rig, &domain, 0x10);
        domain.unmap(mapping).unwrap();
        assert!(rig.access(at, READ).is_some());
        rig.assert_clean(); // in the window
        inject(&rig, Injection::LeaveTranslations(1));
        domain.domain().flush().unwrap();
        assert!(rig.access(at, READ).is_some());
        bitten(&rig, Property::P2, "after the flush");
    }
}

/// A domain that promises more than its design keeps.
fn promising<B: Base, F: Format>(
    rig: &Rig<B>,
    design: DomainConfig,
    unmaps: u64,
    time: Deadline,
) -> Dom<B, F> {
    let bounds = Bounds::Deferred {
        unmaps,
        overlapping: unmaps,
        time,
    };
    bound(rig, design, bounds)
}

/// A domain of which the oracle expects what `bounds` says.
fn bound<B: Base, F: Format>(rig: &Rig<B>, design: DomainConfig, bounds: Bounds) -> Dom<B, F> {
    let domain = rig.machine.unwatched::<F>(design, NOT_COMBINED).unwrap();
    let domain = Watched::new(domain, rig.machine.oracle().clone(), bounds);
    domain.attach(NIC).unwrap();
    domain
}

pub fn p2_more_unmaps_than_promised<B: Base, F: Format>() {
    for design in deferred() {
        let rig = Rig::<B>::new::<F>(64);
        // a batch of 5 keeps the first for 3 returns of others
        let domain = promising::<B, F>(&rig, design, 2, Deadline::Open);
        for n in 0..5 {
            // known before any flush: after the fourth unmap
            let summary = rig.machine.oracle().summary();
            assert_eq!(summary.violation_count, u64::from(n == 4), "{summary}");
            let mapping = domain.map(buffer(0x10 + n, 1), Direction::ToDevice);
            domain.unmap(mapping.unwrap()).unwrap();
        }
        bitten(&rig, Property::P2, "for 3 unmaps");
    }
}

pub fn p2_more_time_than_promised<B: Base, F: Format>() {
    for design in deferred() {
        let clock = Arc::new(Mutex::new(TimeNs(100)));
        let read = clock.clone();
        let oracle = Oracle::with_clock(move || *read.lock().unwrap());
        let rig = Rig::<B>::watched_by::<F>(oracle, 64, |_| ());
        let domain = promising::<B, F>(&rig, design, 10, Deadline::After(TimeNs(50)));
        for (later, clean) in [(150, true), (201, false)] {
            let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice);
            domain.unmap(mapping.unwrap()).unwrap();
            *clock.lock().unwrap() = TimeNs(later);
            domain.domain().flush().unwrap();
            assert_eq!(rig.machine.oracle().summary().violations.is_empty(), clean);
        }
        bitten(&rig, Property::P2, "51 ns");
    }
}

/// The design whose bounds are `n` more than those of `design`, and what `design` promises where
/// there is one CPU.
fn looser(design: DomainConfig, more: u32) -> (DomainConfig, Bounds) {
    let promised = Bounds::of(&design.policy, 1);
    let mut looser = design;
    match &mut looser.policy {
        PolicyConfig::DeferredPerCpu(old) | PolicyConfig::DeferredGlobal(old) => {
            old.batch += more;
            old.window.0 += u64::from(more);
        }
        PolicyConfig::MacOs(old) => old.depth += more,
        _ => unreachable!("it has no bounds"),
    }
    (looser, promised)
}

pub fn p2_one_unmap_more_than_the_policy_promises<B: Base, F: Format>() {
    let bounded =
        |design: &DomainConfig| !matches!(afterwards(design), Afterwards::Never | Afterwards::Kept);
    for design in designs().into_iter().filter(bounded) {
        for more in [0, 1] {
            let rig = Rig::<B>::new::<F>(64);
            let (design, promised) = looser(design, more);
            let domain = bound::<B, F>(&rig, design, promised);
            let map = |n: u64| {
                domain
                    .map(buffer(0x10 + n, 1), Direction::ToDevice)
                    .unwrap()
            };
            let live: Vec<_> = (0..12).map(map).collect();
            // an access holds up what was started, and a batch is full in time
            let unit = rig.machine.machine().unit().clone();
            let hangs = unit.begin(NIC, live[0].iova().page(), READ);
            let waits = matches!(design.policy, PolicyConfig::MacOs(_));
            let hangs = waits.then_some(hangs);
            // one more would wait in vain, and nothing is promised then
            let room = match design.policy {
                PolicyConfig::MacOs(bounds) => bounds.depth as usize,
                _ => live.len(),
            };
            for mapping in live.into_iter().take(room) {
                domain.unmap(mapping).unwrap();
            }
            drop(hangs);
            let found = rig.machine.oracle().summary().violation_count > 0;
            assert_eq!(found, more > 0, "{}: {more} more", name(&design));
            if more > 0 {
                let summary = rig.machine.oracle().summary();
                let one = &summary.violations[0];
                assert_eq!(one.property, Property::P2, "{summary}");
            }
        }
    }
}

pub fn p2_one_nanosecond_more_than_the_policy_promises<B: Base, F: Format>() {
    for design in deferred() {
        for more in [0, 1] {
            let rig = Rig::<B>::new::<F>(64);
            let (PolicyConfig::DeferredPerCpu(bounds) | PolicyConfig::DeferredGlobal(bounds)) =
                design.policy
            else {
                unreachable!("the policies that batch")
            };
            let window = bounds.window.0;
            let promised = Bounds::of(&design.policy, 1);
            let later = bounds.window(TimeNs(window + more));
            let domain = bound::<B, F>(&rig, with_bounds(design, later), promised);
            let unmapped = |page| {
                let mapping = domain.map(buffer(page, 1), Direction::ToDevice);
                domain.unmap(mapping.unwrap()).unwrap();
            };
            let tick = |now| {
                domain.tick(TimeNs(now)).unwrap();
            };
            unmapped(0x10);
            tick(700); // the first flushes whatever there is
            unmapped(0x20);
            tick(700 + window - 1); // too early for either
            rig.assert_clean();
            tick(700 + window);
            match more {
                0 => rig.assert_clean(),
                _ => bitten(&rig, Property::P2, "not flushed by the tick"),
            }
        }
    }
}

pub fn p3_a_page_mapped_over_a_live_one<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let map = |page| domain.map_at(Iova(0x3000), buffer(page, 1), Direction::ToDevice);
        let first = map(0x10).unwrap();
        domain.domain().unmap(first).unwrap(); // as the oracle sees it, it is live
        rig.assert_clean();
        let _second = map(0x20).unwrap();
        bitten(&rig, Property::P3, "while it is mapped");
    }
}

pub fn p3_a_page_mapped_again_without_a_flush<B: Base, F: Format>() {
    let deferred = Bounds::Deferred {
        unmaps: 100,
        overlapping: 100,
        time: Deadline::Open,
    };
    let bounds = [deferred, Bounds::Unbounded].into_iter().cycle();
    for (design, bounds) in designs().into_iter().zip(bounds) {
        let rig = Rig::<B>::new::<F>(64);
        // a domain whose invalidations go to another unit than the one the oracle watches
        let platform = rig.machine.machine().platform().clone();
        let unit = Arc::new(Uncached::<WatchedPlatform<Failing<B>>>::new());
        let tables = Paged::<_, F, _>::new(&platform, unit, TableConfig::default()).unwrap();
        let domain = Domain::new(platform, tables, design).expect("within the aperture");
        let domain = Watched::new(domain, rig.machine.oracle().clone(), bounds);
        let map = |page| domain.map_at(Iova(0x3000), buffer(page, 1), Direction::ToDevice);
        domain.unmap(map(0x10).unwrap()).unwrap();
        rig.assert_clean();
        let _second = map(0x20).unwrap();
        bitten(&rig, Property::P3, "before it was flushed");
    }
}

pub fn p4_a_table_freed_while_it_is_in_use<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (_mapping, _) = warm(&rig, &domain, 0x10);
        let root = domain.domain().translator().table().root();
        let platform = rig.machine.machine().platform();
        // SAFETY: it is not, which the oracle is to see; this memory is the software unit's alone.
        platform.frame_free(crate::BY, unsafe { FreshFrame::new(root) });
        bitten(&rig, Property::P4, &root.to_string());
        std::mem::forget(domain); // its root is no longer its own
    }
}

pub fn p4_a_walk_cache_entry_that_survives_its_invalidation<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let span = span::<F>();
        let at = IovaPage(2 * span);
        let whole = domain.map_at(at.addr(), buffer(0x1000, span), Direction::ToDevice);
        assert!(rig.access(at, READ).is_some());
        inject(&rig, Injection::LeaveWalkEntries(u32::MAX));
        domain.unmap(whole.unwrap()).unwrap();
        domain.domain().flush().unwrap();
        bitten(&rig, Property::P4, "points to it");
    }
}

pub fn p4_a_table_freed_under_a_walk<B: Base, F: Format>() {
    for design in designs() {
        // no walk caches: only the walk itself holds the pointer
        let rig = Rig::<B>::with::<F>(64, |config| config.caches.walk.clear());
        let domain = rig.domain::<F>(design);
        let span = span::<F>();
        let at = IovaPage(2 * span);
        let whole = domain.map_at(at.addr(), buffer(0x1000, span), Direction::ToDevice);
        let unit = rig.machine.machine().unit().clone();
        let mut walk = unit.begin(NIC, at, READ);
        // root entry, context entry, every level but the last
        for _ in 0..2 + F::LEVELS - 1 {
            assert_eq!(walk.step(), Step::Reading);
        }
        inject(&rig, Injection::IgnoreDrain(u32::MAX));
        domain.unmap(whole.unwrap()).unwrap();
        domain.domain().flush().unwrap();
        bitten(&rig, Property::P4, "points to it");
        drop(walk);
    }
}

pub fn p5_an_access_that_was_not_drained<B: Base, F: Format>() {
    for design in strict() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (mapping, at) = warm(&rig, &domain, 0x10);
        let unit = rig.machine.machine().unit().clone();
        let moving = unit.begin(NIC, at, READ);
        inject(&rig, Injection::IgnoreDrain(1));
        domain.unmap(mapping).unwrap();
        rig.assert_clean();
        moving.finish();
        bitten(&rig, Property::P5, "moved data after unmap had returned");
    }
}

pub fn p6_a_write_to_what_is_mapped_for_reading<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let at = Iova(0x3000);
        let mapping = domain.map_at(at, buffer(0x10, 1), Direction::ToDevice);
        // behind the oracle's back it becomes writable
        domain.domain().unmap(mapping.unwrap()).unwrap();
        let wider = domain
            .domain()
            .map_at(at, buffer(0x10, 1), Direction::Bidirectional);
        assert!(rig.access(at.page(), READ).is_some());
        rig.assert_clean();
        assert!(rig.access(at.page(), AccessKind::Write).is_some());
        bitten(&rig, Property::P6, "mapped for Read");
        drop(wider);
    }
}

/// The pool's two slots are written, kept, and one of them is turned for a device that reads.
pub fn p6_a_kept_buffer_that_was_turned_and_not_flushed<B: Base, F: Format>() {
    for design in strict() {
        let rig = Rig::<B>::new::<F>(Interface::Dma.frames());
        let aperture = Some(room::<F>());
        let domain = rig.domain::<F>(design.aperture(aperture));
        let clients = Clients::new(&rig, &domain);
        let client = PLACEMENTS.iter().position(|p| *p == Placement::Always);
        let client = client.expect("one of all");
        let part = PhysRange::new(PhysAddr(0x100), ByteCount(0x200));
        let map = |direction| {
            let mapping = clients.map(client, &[part], direction).expect("room");
            let at = mapping.runs()[0].first;
            (mapping, at)
        };
        let both = [(); 2].map(|()| map(Direction::FromDevice));
        for (mapping, at) in both {
            assert!(rig.access(at, AccessKind::Write).is_some());
            clients.end(client, mapping, 1);
            // kept for the next user
            assert!(rig.access(at, AccessKind::Write).is_some());
        }
        inject(&rig, Injection::LeaveTranslations(1));
        let (mapping, at) = map(Direction::ToDevice);
        clients.end(client, mapping, 1);
        rig.assert_clean(); // it was not used yet
        assert!(rig.access(at, AccessKind::Write).is_some());
        bitten(&rig, Property::P6, "a buffer kept for Read");
        clients.close(&rig, &name(&design));
    }
}

pub fn p8_a_device_that_is_not_attached<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (_mapping, at) = warm(&rig, &domain, 0x10);
        domain.domain().attach(DISK).unwrap();
        assert!(rig.access_by(DISK, at, READ).is_some());
        bitten(&rig, Property::P8, "not attached");
    }
}

pub fn p8_a_device_served_by_another_domain<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let other = rig.machine.domain::<F>(design).unwrap();
        let theirs = other.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        domain.domain().detach(NIC).unwrap();
        other.domain().attach(NIC).unwrap();
        assert!(rig.access(theirs.iova().page(), READ).is_some());
        let served = format!("by domain {}", other.domain().id());
        bitten(&rig, Property::P8, &served);
    }
}

pub fn p8_a_page_of_another_domain<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let other = rig.machine.domain::<F>(design).unwrap();
        let at = Iova(0x3000);
        let _theirs = other.map_at(at, buffer(0x10, 1), Direction::ToDevice);
        let _ours = domain
            .domain()
            .map_at(at, buffer(0x10, 1), Direction::ToDevice);
        assert!(rig.access(at.page(), READ).is_some());
        bitten(&rig, Property::P8, "no mapping of its domain");
    }
}

pub fn p9_a_page_that_no_mapping_names<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let unseen = domain
            .domain()
            .map(buffer(0x10, 1), Direction::ToDevice)
            .unwrap();
        assert!(rig.access(unseen.iova().page(), READ).is_some());
        bitten(&rig, Property::P9, "0x10");
    }
}

pub fn p9_the_page_of_an_older_mapping<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        // an access elsewhere is in flight all along, so the oracle may not forget what it could
        // still explain
        let other = rig.machine.domain::<F>(design).unwrap();
        other.attach(DISK).unwrap();
        let theirs = other.map(buffer(0x30, 1), Direction::ToDevice).unwrap();
        let elsewhere = theirs.iova().page();
        assert!(rig.access_by(DISK, elsewhere, READ).is_some());
        let unit = rig.machine.machine().unit().clone();
        let in_flight = unit.begin(DISK, elsewhere, READ);

        let map = |page| domain.map_at(Iova(0x3000), buffer(page, 1), Direction::ToDevice);
        let old = map(0x10).unwrap();
        let at = old.iova().page();
        assert!(rig.access(at, READ).is_some());
        // one at unmap or to drain for the map, or both
        inject(&rig, Injection::LeaveTranslations(2));
        domain.unmap(old).unwrap();
        let _new = map(0x20).unwrap();
        assert_eq!(rig.access(at, READ), Some(PhysPage(0x10)));
        bitten(&rig, Property::P9, "older mapping");
        drop(in_flight);
    }
}

/// And, mapped directly by the same API, what no bounce buffer excuses.
pub fn p9_a_bounce_buffer_whose_frame_is_free<B: Base, F: Format>() {
    for design in strict() {
        for (placement, property, words) in [
            (Placement::SingleUse, Property::P9, "which no mapping"),
            (Placement::Never, Property::P1, "after unmap had returned"),
        ] {
            let rig = Rig::<B>::new::<F>(Interface::Dma.frames());
            let aperture = Some(room::<F>());
            let domain = rig.domain::<F>(design.aperture(aperture));
            let clients = Clients::new(&rig, &domain);
            let client = PLACEMENTS.iter().position(|p| *p == placement);
            let client = client.expect("one of all");
            let part = PhysRange::new(PhysAddr(0x100), ByteCount(0x200));
            let mapping = clients.map(client, &[part], Direction::FromDevice);
            let mapping = mapping.expect("room");
            let at = mapping.runs()[0].first;
            assert!(rig.access(at, AccessKind::Write).is_some());
            rig.assert_clean();
            inject(&rig, Injection::LeaveTranslations(1));
            clients.end(client, mapping, 1);
            let freed = placement == Placement::SingleUse;
            match freed {
                true => bitten(&rig, Property::P4, "was freed while a cache leads"),
                false => rig.assert_clean(), // it was not used yet
            }
            assert!(rig.access(at, AccessKind::Write).is_some());
            let summary = rig.machine.oracle().summary();
            let last = summary.violations.last().expect("a violation");
            assert_eq!(last.property, property, "{summary}");
            assert!(last.text.contains(words), "{summary}");
            assert_eq!(summary.violation_count, 1 + u64::from(freed), "{summary}");
            clients.close(&rig, &name(&design));
        }
    }
}

pub fn p14_a_mapping_that_is_gone<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let (mapping, at) = warm(&rig, &domain, 0x10);
        domain.domain().unmap(mapping).unwrap();
        domain.domain().flush().unwrap();
        rig.assert_clean();
        // what was never permitted may fail
        assert!(rig.access(at, AccessKind::Write).is_none());
        rig.assert_clean();
        assert!(rig.access(at, READ).is_none());
        bitten(&rig, Property::P14, "although it is mapped");
    }
}

pub fn a_panic_names_every_violation<B: Base, F: Format>() {
    let rig = Rig::<B>::new::<F>(64);
    let domain = rig.domain::<F>(designs()[0]);
    let oracle = rig.machine.oracle();
    oracle.report(Property::P1, "what another check found".into());
    let unseen = domain.domain().map(buffer(0x10, 1), Direction::ToDevice);
    let at = unseen.unwrap().iova().page();
    // more than are kept word for word are counted
    for _ in 0..200 {
        assert!(rig.access(at, READ).is_some());
    }
    let summary = oracle.summary();
    assert_eq!(summary.violation_count, 201);
    let text = summary.to_string();
    assert!(text.starts_with("201 violations in 200 accesses"), "{text}");
    assert!(text.contains("P1: what another check found"), "{text}");
    assert!(text.contains("P9: "), "{text}");
}

#[test]
#[should_panic(expected = "P1: found")]
fn assert_clean_panics_on_the_host() {
    let rig = Rig::<Host>::new::<Vtd>(64);
    rig.machine.oracle().report(Property::P1, "found".into());
    rig.assert_clean();
}

#[test]
#[should_panic(expected = "P1: found")]
fn assert_clean_panics_on_the_simulated_machine() {
    let rig = Rig::<Sim>::new::<Small>(64);
    rig.machine.oracle().report(Property::P1, "found".into());
    rig.assert_clean();
}
