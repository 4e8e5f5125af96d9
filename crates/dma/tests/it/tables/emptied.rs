// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Tables that were emptied in pieces are given back by ticks, under a unit whose walk cache
//! remembers them.

use crate::tables::walker::{Dom, Walker, sound, walked};
use ioatlas_dma::{
    domain::*,
    iova::{BackingConfig, MagazineConfig},
    table::{
        Format, Reclaim, TableConfig,
        fmt::{Toy, VtdSecond39, VtdSecond48, VtdSecond57},
    },
    units::*,
};
use std::sync::Arc;

fn domain<F: Format>(design: DomainConfig, reclaim: Reclaim) -> (Dom<F>, Arc<Walker<F>>) {
    let config = TableConfig::default().reclaim(reclaim).largest_leaf(2);
    walked(4096, design, config)
}

/// Those that own their IOVAs, strict and deferred.
fn owners() -> Vec<DomainConfig> {
    let backings = [
        BackingConfig::Rbtree,
        BackingConfig::Eiovar(Default::default()),
        BackingConfig::Freebsd,
        BackingConfig::Vmem,
        BackingConfig::MacOs,
    ];
    let plain = backings.map(AllocatorConfig::Plain);
    let magazines = backings
        .map(|backing| AllocatorConfig::Magazine(MagazineConfig::default().backing(backing)));
    let policies = [
        PolicyConfig::Strict,
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
    ];
    let allocators = plain.into_iter().chain(magazines);
    let both = |allocator| policies.map(|policy| DomainConfig::new(allocator, policy));
    allocators.flat_map(both).collect()
}

fn buffer(to: u64, pages: u64) -> PhysRange {
    PhysRange::new(PhysPage(to).addr(), ByteCount(pages * GRANULE))
}

fn reached<F: Format>(unit: &Walker<F>, mapping: &Mapping, to: u64) {
    for (page, to) in mapping.range().iter().zip(to..) {
        assert_eq!(unit.access(page.0), Some(PhysPage(to)), "mapped (P14)");
    }
}

/// Ticks until everything retired is flushed and no table is freed for a while.
fn settle<F: Format>(dom: &Dom<F>, now: &mut TimeNs) {
    let mut quiet = 0;
    while quiet < 16 {
        now.0 += 20_000_000;
        let report = dom.tick(*now).expect("this unit does not fail");
        quiet = if report == TickReport::default() {
            quiet + 1
        } else {
            0
        };
    }
}

fn pages_all_over<F: Format>() {
    for design in owners() {
        let name = format!("{} {}", design.allocator.name(), design.policy.name());
        let (dom, unit) = domain::<F>(design, Reclaim::Emptied);
        let mut now = TimeNs(0);
        for round in 0..3 {
            // one page here and there, by address, and some of the allocator's choice
            let spans = (F::aperture().pages.0 / F::span(2)).min(40);
            let at = |nth: u64| IovaPage(nth * F::span(2) + 1).addr();
            let mut mappings: Vec<_> = (0..spans / 2)
                .map(|nth| dom.map_at(at(nth), buffer(100 + nth, 1), Direction::Bidirectional))
                .chain(
                    (spans / 2..spans)
                        .map(|nth| dom.map(buffer(100 + nth, 1), Direction::Bidirectional)),
                )
                .map(|mapping| mapping.unwrap_or_else(|why| panic!("{name}: {why}")))
                .collect();
            for (mapping, to) in mappings.iter().zip(100..) {
                reached(&unit, mapping, to);
            }
            settle(&dom, &mut now);
            for (mapping, to) in mappings.iter().zip(100..) {
                reached(&unit, mapping, to);
            }
            let last = mappings.pop().expect("two at least");
            let kept: Vec<_> = last.range().iter().collect();
            for mapping in mappings {
                dom.unmap(mapping).expect("a live mapping");
            }
            settle(&dom, &mut now);
            let census = sound(&dom).census;
            let chain = u64::from(F::LEVELS);
            assert_eq!(
                census.frames, chain,
                "{name}, round {round}: those of one page"
            );
            for page in kept {
                assert!(
                    unit.access(page.0).is_some(),
                    "{name}: a neighbour went (P14)"
                );
            }
            dom.unmap(last).expect("a live mapping");
            settle(&dom, &mut now);
            assert_eq!(sound(&dom).census.frames, 1, "{name}: the root");
        }
        dom.close().expect("this unit does not fail");
    }
}

#[test]
fn emptied_tables_of_every_level_go_and_come_back() {
    pages_all_over::<Toy<2, 3>>();
    pages_all_over::<VtdSecond39>();
    pages_all_over::<VtdSecond48>();
    pages_all_over::<VtdSecond57>();
}

#[test]
fn no_other_rule_frees_what_was_emptied_in_pieces() {
    for reclaim in [Reclaim::Covered, Reclaim::Never] {
        let (dom, _unit) = domain::<VtdSecond48>(owners()[0], reclaim);
        let mapping = dom.map(buffer(9, 1), Direction::ToDevice).expect("room");
        dom.unmap(mapping).expect("a live mapping");
        settle(&dom, &mut TimeNs(0));
        assert_eq!(sound(&dom).census.frames, 4, "{reclaim:?}");
    }
}

#[test]
fn what_is_retired_keeps_its_table_until_it_is_flushed() {
    let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default().window(TimeNs(u64::MAX)));
    let design = DomainConfig::new(AllocatorConfig::RBTREE, policy);
    let (dom, unit) = domain::<VtdSecond48>(design, Reclaim::Emptied);
    let mapping = dom.map(buffer(9, 1), Direction::ToDevice).expect("room");
    reached(&unit, &mapping, 9);
    dom.unmap(mapping).expect("a live mapping");
    assert_eq!(dom.reclaim_tables(), Ok(0), "P4: its page may be cached");
    assert_eq!(sound(&dom).census.frames, 4);
    dom.flush().expect("this unit does not fail");
    for frames in (1..4).rev() {
        assert_eq!(
            dom.reclaim_tables(),
            Ok(1),
            "the lowest; others hold a table still"
        );
        assert_eq!(sound(&dom).census.frames, frames);
    }
    assert_eq!(dom.reclaim_tables(), Ok(0), "the root stays");
    sound(&dom);
}

#[test]
fn a_call_is_bounded_and_the_next_one_goes_on() {
    let design = DomainConfig::new(AllocatorConfig::RBTREE, PolicyConfig::Strict);
    let (dom, _unit) = domain::<VtdSecond48>(design, Reclaim::Emptied);
    let all: Vec<_> = (0..200)
        .map(|nth| {
            let at = IovaPage(nth * 512 + 7).addr();
            dom.map_at(at, buffer(nth, 1), Direction::ToDevice)
                .expect("room")
        })
        .collect();
    let mut kept = None;
    for (nth, mapping) in all.into_iter().enumerate() {
        match nth {
            150 => kept = Some(mapping),
            _ => dom.unmap(mapping).expect("a live mapping"),
        }
    }
    let started = dom.stats().invalidations;
    assert_eq!(dom.reclaim_tables(), Ok(16));
    assert_eq!(
        dom.stats().invalidations,
        started + 1,
        "one for all of a call"
    );
    let mut freed = 16;
    for _ in 0..40 {
        freed += dom.reclaim_tables().expect("this unit does not fail");
    }
    assert_eq!(freed, 199, "all leaf tables but one");
    let started = dom.stats().invalidations;
    assert_eq!(dom.reclaim_tables(), Ok(0));
    assert_eq!(dom.stats().invalidations, started, "nothing to wait for");
    dom.unmap(kept.expect("of 200")).expect("a live mapping");
    sound(&dom);
}

#[test]
fn where_the_flush_fails_frames_and_ranges_are_quarantined() {
    let design = DomainConfig::new(AllocatorConfig::RBTREE, PolicyConfig::Strict);
    let (dom, unit) = domain::<Toy<2, 3>>(design, Reclaim::Emptied);
    let mapping = dom.map_at(Iova(17 << 12), buffer(9, 1), Direction::ToDevice);
    dom.unmap(mapping.expect("room")).expect("a live mapping");
    unit.set_broken(true);
    dom.reclaim_tables()
        .expect_err("P10: nothing proves them clean");
    unit.set_broken(false);
    let audit = sound(&dom);
    assert_eq!(audit.stats.quarantined.frames, 1);
    assert_eq!(audit.stats.quarantined.pages, PageCount(4));
    assert_eq!(dom.reclaim_tables(), Ok(0), "nothing is freed around it");
}

/// The kept ranges of a span go back for it, and those of others stay.
#[test]
fn magazines_give_up_what_they_keep_of_a_span_and_no_more() {
    let design = DomainConfig::new(
        AllocatorConfig::Magazine(MagazineConfig::default()),
        PolicyConfig::Strict,
    );
    let (dom, unit) = domain::<VtdSecond48>(design, Reclaim::Emptied);
    let mappings: Vec<_> = (0..1500)
        .map(|nth| dom.map(buffer(nth, 1), Direction::ToDevice).expect("room"))
        .collect();
    let spans = |mapping: &Mapping| mapping.range().first.0 / 512;
    let top = mappings.iter().map(spans).max().expect("some");
    let mut one = None;
    for mapping in mappings {
        match &one {
            None if spans(&mapping) == top => one = Some(mapping),
            _ => dom.unmap(mapping).expect("a live mapping"),
        }
    }
    let one = one.expect("of the highest span");
    let cached = || dom.audit().expect("P10").usage.cached.0;
    let before = cached();
    // no tick, which gives back what lies idle, wherever it is
    assert_eq!(dom.reclaim_tables(), Ok(2));
    assert!(cached() < before, "the ranges of tables that went");
    assert!(cached() > 0, "those of the highest span");
    let page = one.range().first.0;
    assert!(unit.access(page).is_some());
    // they serve
    let again = dom.map(buffer(5000, 1), Direction::ToDevice).expect("room");
    reached(&unit, &again, 5000);
    sound(&dom);
}

/// 4 KiB mapped and unmapped, 16 TiB from the first step to the last.
#[test]
fn a_walk_over_sixteen_tebibytes_stays_within_four_mebibytes_of_tables() {
    const STEPS: u64 = 16_384;
    const STRIDE: PageCount = PageCount((16 << 40) / STEPS / GRANULE);
    const MOST: usize = 1024; // frames of 4 KiB
    let walk = |reclaim| {
        let design = DomainConfig::new(
            AllocatorConfig::Magazine(MagazineConfig::default()),
            PolicyConfig::Strict,
        );
        let (dom, _unit) = domain::<VtdSecond48>(design, reclaim);
        let mut most = 0;
        for step in 0..STEPS {
            let at = IovaPage(1 + step * STRIDE.0).addr();
            let mapping = match dom.map_at(at, buffer(9, 1), Direction::ToDevice) {
                Ok(mapping) => mapping,
                Err(_) => return (step, most),
            };
            dom.unmap(mapping).expect("a live mapping");
            most = most.max(dom.platform().frames_in_use());
            if step % 4 == 3 {
                dom.tick(TimeNs(1_000_000 * step))
                    .expect("this unit does not fail");
            }
        }
        sound(&dom);
        (STEPS, most)
    };
    let (steps, most) = walk(Reclaim::Emptied);
    assert_eq!(steps, STEPS);
    assert!(most <= MOST, "{most} frames");
    // without, each step takes two tables and keeps them, up to all frames that there are
    let (steps, most) = walk(Reclaim::Covered);
    assert!(
        (4096 / 2 - 8..4096 / 2).contains(&(steps as usize)),
        "{steps} steps"
    );
    assert!(most > 4096 - 4, "{most} frames");
}

/// What of a chunk is mapped next goes to the table that the chunk remembers.
#[test]
fn a_chunk_keeps_its_table_until_it_is_over() {
    for design in owners() {
        let name = format!("{} {}", design.allocator.name(), design.policy.name());
        let (dom, unit) = domain::<VtdSecond48>(design, Reclaim::Emptied);
        let mut now = TimeNs(0);
        let mut chunk = dom.chunk(PageCount(64)).expect("room");
        let mut pieces = Vec::new();
        for to in 0..3 {
            let piece = chunk.map(buffer(100 + to, 1), Direction::ToDevice);
            let piece = piece.expect("room");
            reached(&unit, &piece, 100 + to);
            pieces.push(piece);
            if to == 0 {
                continue;
            }
            // from here on nothing of the chunk is mapped, nor retired
            dom.unmap_batch(&mut pieces.drain(..)).expect("live ones");
            settle(&dom, &mut now);
            let frames = sound(&dom).census.frames;
            assert_eq!(frames, 4, "{name}: its table went (P4)");
        }
        let last = chunk.map(buffer(200, 1), Direction::ToDevice);
        let last = last.expect("room");
        drop(chunk);
        settle(&dom, &mut now);
        reached(&unit, &last, 200);
        dom.unmap(last).expect("a live one");
        settle(&dom, &mut now);
        let audit = sound(&dom);
        assert_eq!(audit.census.frames, 1, "{name}: the root");
        assert_eq!(audit.stats.chunks, PageCount(0), "{name} (P10)");
    }
}
