// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Tables that one unmap covers whole are detached, and freed after the flush of the walk caches
//! (P4); what is mapped in their place is reached (P14).

use crate::suite::rig::*;
use ioatlas_dma::{
    design::Design,
    domain::{AllocatorConfig, DomainConfig},
    table::{Format, Reclaim, TableConfig},
    units::*,
};

on_every_machine! {
    tables::a_leaf_table_goes_after_the_flush_and_the_span_is_good_again,
    tables::a_part_of_a_table_leaves_it,
    tables::a_table_emptied_in_pieces_goes_and_its_span_is_good_again,
    tables::neighbours_of_a_detached_table_stay_reachable,
    tables::a_cpu_forgets_a_table_that_was_detached,
}
on_every_width! {
    tables::a_cpu_forgets_a_table_that_was_detached,
    tables::a_leaf_table_goes_after_the_flush_and_the_span_is_good_again,
    tables::a_table_emptied_in_pieces_goes_and_its_span_is_good_again,
    tables::neighbours_of_a_detached_table_stay_reachable,
}
// in the larger format a tree of three levels maps 2^18 pages
on_toy_machines! {
    tables::a_tree_of_tables_goes_whole,
}

/// Accesses every page, so that IOTLB and walk caches hold what they can.
fn reach_all<B: Base>(rig: &Rig<B>, range: IovaRange, first: u64) {
    for (at, to) in range.iter().zip(first..) {
        let reached = rig.access(at, AccessKind::Read);
        assert_eq!(reached, Some(PhysPage(to)), "mapped (P14)");
    }
}

pub fn a_leaf_table_goes_after_the_flush_and_the_span_is_good_again<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let span = span::<F>();
        let at = IovaPage(2 * span).addr();
        // the table above stays: its own first mapping is in another span
        let above = domain.map_at(Iova(0x1000), buffer(9, 1), Direction::ToDevice);
        reach_all(&rig, above.as_ref().unwrap().range(), 9);
        let empty = rig.frames_in_use();
        for round in 0..3 {
            let first = 0x10_000 * (round + 1);
            let whole = domain.map_at(at, buffer(first, span), Direction::ToDevice);
            let whole = whole.unwrap();
            let range = whole.range();
            assert_eq!(rig.frames_in_use(), empty + 1);
            reach_all(&rig, range, first);
            domain.unmap(whole).unwrap();
            let retired = domain.domain().stats().retired.frames;
            assert_eq!(retired, u64::from(holds_frames(&design)));
            assert_eq!(
                rig.frames_in_use(),
                empty + retired as usize,
                "in use until flushed"
            );
            // in its place a mapping of one page, which waits for the flush
            let one = domain
                .map_at(at, buffer(first + 0x5000, 1), Direction::ToDevice)
                .unwrap();
            assert_eq!(
                rig.frames_in_use(),
                empty + 1,
                "the old table went, a new one came"
            );
            reach_all(&rig, one.range(), first + 0x5000);
            for page in range.iter().skip(1) {
                assert_eq!(rig.access(page, AccessKind::Read), None);
            }
            domain.unmap(one).unwrap();
            domain.domain().flush().unwrap();
            assert_eq!(rig.frames_in_use(), empty + 1, "one page is not the whole");
            // a table that was left is used again, and goes with the next whole span
            let again = domain.map_at(at, buffer(first, span), Direction::ToDevice);
            reach_all(&rig, range, first);
            domain.unmap(again.unwrap()).unwrap();
            domain.domain().flush().unwrap();
            assert_eq!(rig.frames_in_use(), empty);
        }
        domain.unmap(above.unwrap()).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// A CPU that has mapped a page knows its leaf table, and the next map there does not walk. When
/// that table is gone, it must.
pub fn a_cpu_forgets_a_table_that_was_detached<B: Base, F: Format>() {
    // others have nothing cached, and walk at every map
    let has_magazines =
        |design: &DomainConfig| matches!(design.allocator, AllocatorConfig::Magazine(_));
    for design in designs().into_iter().filter(has_magazines) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        // gives every page back, so that each map finds the same one
        let clean = || {
            domain.domain().flush().expect("this unit does not fail");
            domain.domain().shrink();
        };
        let map_two = |to: u64| {
            // the first finds nothing cached, walks, and learns; the second uses what the CPU knows
            let two = [to, to + 1].map(|to| {
                let mapping = domain.map(buffer(to, 1), Direction::ToDevice);
                let mapping = mapping.expect("room");
                reach_all(&rig, mapping.range(), to); // (P4, P14)
                mapping
            });
            let at = two[0].range().first;
            for mapping in two {
                domain.unmap(mapping).expect("a live mapping");
            }
            clean();
            at
        };
        let at = map_two(0x10);
        for round in 1..4 {
            let to = 0x1000 * round;
            assert_eq!(map_two(to), at, "where it was: by the same table");
            let whole = IovaPage(at.0 & !(span::<F>() - 1));
            let large = buffer(to, span::<F>());
            let large = domain.map_at(whole.addr(), large, Direction::ToDevice);
            let large = large.expect("all of it is free");
            reach_all(&rig, large.range(), to);
            let before = rig.frames_in_use();
            domain.unmap(large).expect("a live mapping");
            clean();
            assert!(rig.frames_in_use() < before, "its table is gone");
            // the frame that was freed serves another span now
            let there = IovaPage(round * span::<F>()).addr();
            let other = domain.map_at(there, buffer(to + 8, 1), Direction::ToDevice);
            let other = other.expect("all of it is free");
            reach_all(&rig, other.range(), to + 8);
            assert_eq!(map_two(to + 2), at, "where it was: by another table");
            domain.unmap(other).expect("a live mapping");
            clean();
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_table_emptied_in_pieces_goes_and_its_span_is_good_again<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(Design {
            domain: design,
            tables: TableConfig::default().reclaim(Reclaim::Emptied),
        });
        let span = span::<F>();
        let map_at = |page: u64, to: u64| {
            let mapping = domain.map_at(IovaPage(page).addr(), buffer(to, 1), Direction::ToDevice);
            let mapping = mapping.expect("nothing is there");
            reach_all(&rig, mapping.range(), to);
            mapping
        };
        let reclaim = || {
            domain.domain().flush().expect("this unit does not fail");
            let call = |_| domain.domain().reclaim_tables();
            let freed = (0..4)
                .map(call)
                .map(|freed| freed.expect("this unit does not fail"));
            freed.sum::<u32>() as usize
        };
        let neighbour = map_at(3 * span, 0x100);
        let with = rig.frames_in_use();
        for round in 0..3 {
            let first = 0x1000 * (round + 1);
            let places = [2 * span, 2 * span + 1, 3 * span - 1];
            let mut pieces: Vec<_> = (0..)
                .zip(places)
                .map(|(nth, page)| map_at(page, first + nth))
                .collect();
            let kept = pieces.pop().expect("of three");
            for piece in pieces {
                domain.unmap(piece).expect("a live mapping");
            }
            assert_eq!(reclaim(), 0, "a page of it is mapped");
            reach_all(&rig, kept.range(), first + 2);
            domain.unmap(kept).expect("a live mapping");
            // the frame goes after the flush of the walk caches (P4)
            assert_eq!(reclaim(), 1);
            assert_eq!(rig.frames_in_use(), with);
            for page in places {
                assert_eq!(rig.access(IovaPage(page), AccessKind::Read), None);
            }
            reach_all(&rig, neighbour.range(), 0x100);
        }
        domain.unmap(neighbour).expect("a live mapping");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_tree_of_tables_goes_whole<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let leaf_tables = 1 << F::ENTRIES_LG2;
        let pages = span::<F>() * leaf_tables;
        let at = IovaPage(pages).addr();
        let empty = rig.frames_in_use();
        for round in 0..3 {
            let first = 0x1000 * (round + 1);
            let whole = domain.map_at(at, buffer(first, pages), Direction::ToDevice);
            let whole = whole.unwrap();
            let tree = leaf_tables as usize + 1;
            assert_eq!(rig.frames_in_use(), empty + tree);
            reach_all(&rig, whole.range(), first);
            domain.unmap(whole).unwrap();
            domain.domain().flush().unwrap();
            assert_eq!(rig.frames_in_use(), empty);
            let one = domain.map_at(at, buffer(3, 1), Direction::ToDevice);
            let one = one.unwrap();
            reach_all(&rig, one.range(), 3);
            domain.unmap(one).unwrap();
            // the sparse tree goes as well, when one unmap covers it
            let rest = domain.map_at(at, buffer(first, pages), Direction::ToDevice);
            domain.unmap_raw(rest.unwrap()).unwrap();
            domain.domain().flush().unwrap();
            assert_eq!(rig.frames_in_use(), empty);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_part_of_a_table_leaves_it<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let span = span::<F>();
        let at = IovaPage(span).addr();
        let half = span / 2;
        let low = domain.map_at(at, buffer(0x1000, half), Direction::ToDevice);
        let high = IovaPage(span + half).addr();
        let high = domain.map_at(high, buffer(0x2000, half), Direction::ToDevice);
        let (low, high) = (low.unwrap(), high.unwrap());
        reach_all(&rig, low.range(), 0x1000);
        reach_all(&rig, high.range(), 0x2000);
        let full = rig.frames_in_use();
        domain.unmap(low).unwrap();
        domain.domain().flush().unwrap();
        reach_all(&rig, high.range(), 0x2000);
        domain.unmap(high).unwrap();
        domain.domain().flush().unwrap();
        assert_eq!(rig.frames_in_use(), full, "no unmap covered it whole");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn neighbours_of_a_detached_table_stay_reachable<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let span = span::<F>();
        // half a table, a whole one, half a table: one unmap detaches the one in the middle
        let outer = IovaRange::new(IovaPage(span + span / 2), PageCount(2 * span));
        let before = domain.map_at(
            Iova(span << GRANULE_LG2),
            buffer(0x100, 1),
            Direction::ToDevice,
        );
        let after = IovaPage(4 * span - 1).addr();
        let after = domain.map_at(after, buffer(0x200, 1), Direction::ToDevice);
        let (before, after) = (before.unwrap(), after.unwrap());
        for round in 0..3 {
            let first = 0x10_000 * (round + 1);
            let middle = domain
                .map_at(
                    outer.first.addr(),
                    buffer(first, outer.pages.0),
                    Direction::ToDevice,
                )
                .unwrap();
            reach_all(&rig, outer, first);
            let with = rig.frames_in_use();
            domain.unmap(middle).unwrap();
            reach_all(&rig, before.range(), 0x100);
            reach_all(&rig, after.range(), 0x200);
            domain.domain().flush().unwrap();
            assert_eq!(rig.frames_in_use(), with - 1);
            reach_all(&rig, before.range(), 0x100);
            reach_all(&rig, after.range(), 0x200);
            for at in outer.iter() {
                assert_eq!(rig.access(at, AccessKind::Read), None);
            }
        }
        domain.unmap(before).unwrap();
        domain.unmap(after).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
