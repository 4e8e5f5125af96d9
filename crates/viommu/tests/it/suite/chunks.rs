// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Chunks: pieces end in any order, one by one or together, anywhere, while others are mapped; and
//! the chunk is free when the last of them is flushed, and not before.

use crate::suite::rig::*;
use ioatlas_dma::{
    domain::*, invalidation::InvalidateError, platform::DedicatedMemory, table::Format,
    translator::Translator, units::*,
};
use ioatlas_sim::platform::{Interrupt, Schedule, Sim, World};
use ioatlas_viommu::{config::Processing, oracle::WatchedChunk};
use std::{cell::Cell, sync::Mutex};

on_wide_machines! {
    chunks::pieces_end_in_any_order_and_in_any_way,
    chunks::a_batch_over_one_chunk_is_one_range_of_leaves_and_one_wait,
    chunks::what_is_between_pieces_that_end_stays_cached,
    chunks::a_chunk_that_is_dropped_is_nobodys_while_a_piece_lives,
    chunks::a_piece_that_was_not_flushed_keeps_all_of_its_chunk,
    chunks::pieces_that_are_pending_keep_their_chunk,
    chunks::a_chunk_waits_for_what_is_retired_where_no_range_is_free,
}

const PAGES: u64 = 16;

fn strict() -> impl Iterator<Item = DomainConfig> {
    let designs = designs().into_iter();
    designs.filter(|design| design.policy == PolicyConfig::Strict)
}

fn piece<P: DedicatedMemory, T: Translator<P>>(
    chunk: &mut WatchedChunk<'_, P, T>,
    nth: u64,
) -> Mapping {
    let mapping = chunk.map(buffer(0x1000 + 2 * nth, 1), Direction::ToDevice);
    mapping.expect("room")
}

fn reach<B: Base>(rig: &Rig<B>, ranges: &[IovaRange], there: bool, context: &str) {
    for page in ranges.iter().flat_map(|range| range.iter()) {
        let reached = rig.access(page, AccessKind::Read).is_some();
        let property = if there { "P14" } else { "P1" };
        assert_eq!(reached, there, "{property}: {page}, {context}");
    }
}

fn ranges(mappings: &[Mapping]) -> Vec<IovaRange> {
    mappings.iter().map(Mapping::range).collect()
}

/// Maps until there is no more room, or long enough; none of it lies in `chunk`.
fn nobody_gets<B: Base, F: Format>(domain: &Dom<B, F>, chunk: IovaRange, context: &str) {
    let map = |nth: u64| domain.map(buffer(0x4000 + nth, 1), Direction::ToDevice);
    let others: Vec<_> = (0..100).map_while(|nth| map(nth).ok()).collect();
    for other in &others {
        let range = other.range();
        assert!(!range.overlaps(&chunk), "P3: {range} of {chunk}, {context}");
    }
    for page in chunk.iter() {
        let at = domain.map_at(page.addr(), buffer(0x4000, 1), Direction::ToDevice);
        assert!(at.is_err(), "P3: {page} of {chunk}, {context}");
    }
    for other in others {
        domain.unmap(other).expect("unmapped");
    }
}

pub fn pieces_end_in_any_order_and_in_any_way<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        for round in 0..3 {
            let mut chunk = domain.chunk(PageCount(PAGES)).expect(&context);
            let mut all: Vec<_> = (0..10).map(|nth| piece(&mut chunk, nth)).collect();
            let list = [buffer(0x2000, 2), buffer(0x2010, 1)];
            all.push(chunk.map_list(&list, Direction::ToDevice).expect(&context));
            let mut ended = Vec::new();
            let mut gone = |mappings: &[Mapping]| {
                ended.extend(ranges(mappings));
            };
            reach(&rig, &ranges(&all), true, &context);
            // from the middle, by itself
            let one = all.remove(4 + round);
            gone(std::slice::from_ref(&one));
            domain.unmap(one).expect(&context);
            // by a batch, out of order, and others are mapped meanwhile
            let batch = [all.remove(7), all.remove(1), all.remove(1)];
            gone(&batch);
            let mut batch = batch.into_iter();
            let mut mapped = Vec::new();
            let yields = || {
                mapped.extend(batch.len().is_multiple_of(2).then(|| piece(&mut chunk, 20)));
                batch.next()
            };
            domain
                .unmap_batch(&mut std::iter::from_fn(yields))
                .expect(&context);
            all.extend(mapped);
            // on another CPU
            let elsewhere = [all.remove(2), all.remove(2)];
            gone(&elsewhere);
            let other = &domain;
            rig.failing().inner().on_another_cpu(move || {
                for mapping in elsewhere {
                    other.unmap(mapping).expect("ours");
                }
            });
            if is_strict(&design) {
                reach(&rig, &ended, false, &context);
            }
            reach(&rig, &ranges(&all), true, &context);
            if round == 1 {
                drop(chunk);
            }
            ended.extend(ranges(&all));
            let mut rest = all.into_iter();
            domain
                .unmap(rest.next_back().expect("some"))
                .expect(&context);
            domain.unmap_start(&mut rest).finish().expect(&context);
            domain.domain().flush().expect("flushed");
            reach(&rig, &ended, false, &context);
        }
        domain.domain().flush().expect("flushed");
        let audit = domain.domain().audit().expect("P10");
        assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_batch_over_one_chunk_is_one_range_of_leaves_and_one_wait<B: Base, F: Format>() {
    for design in strict().take(2) {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let unit = rig.machine.machine().unit();
        for size in 1..=64 {
            let mut chunk = domain.chunk(PageCount(64)).expect("room");
            // not always from the beginning
            let skipped: Vec<_> = (0..(64 - size) / 2)
                .map(|nth| piece(&mut chunk, nth))
                .collect();
            let all: Vec<_> = (0..size).map(|nth| piece(&mut chunk, 100 + nth)).collect();
            let ranges = ranges(&all);
            reach(&rig, &ranges, true, &context);
            let before = unit.stats();
            match size % 2 {
                0 => domain.unmap_batch(&mut all.into_iter()).expect("unmapped"),
                _ => domain
                    .unmap_batch(&mut all.into_iter().rev())
                    .expect("unmapped"),
            }
            let after = unit.stats();
            let asked = [
                after.page_invalidations - before.page_invalidations,
                after.leaf_invalidations - before.leaf_invalidations,
                after.domain_invalidations - before.domain_invalidations,
                after.waits - before.waits,
            ];
            assert_eq!(asked, [1, 1, 0, 1], "{size} pieces of a chunk, {context}");
            reach(&rig, &ranges, false, &context);
            domain
                .unmap_batch(&mut skipped.into_iter())
                .expect("unmapped");
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn what_is_between_pieces_that_end_stays_cached<B: Base, F: Format>() {
    let design = strict().next().expect("a strict design");
    let rig = Rig::<B>::new::<F>(256);
    let domain = rig.domain::<F>(design);
    let mut chunk = domain.chunk(PageCount(8)).expect("room");
    let mut all: Vec<_> = (0..6).map(|nth| piece(&mut chunk, nth)).collect();
    // beside the aligned blocks around both runs
    let between = all.remove(2);
    let besides = all.remove(2);
    let ranges = ranges(&all);
    let page = between.range().first;
    reach(&rig, &ranges, true, "mapped");
    reach(&rig, &[between.range()], true, "mapped");
    domain.unmap_batch(&mut all.into_iter()).expect("unmapped");
    reach(&rig, &ranges, false, "in one batch");
    let unit = rig.machine.machine().unit();
    let cached = unit.iotlb_holds(domain.domain().id(), page);
    assert!(cached.is_some(), "P14: it was not in the batch");
    domain.unmap(between).expect("unmapped");
    domain.unmap(besides).expect("unmapped");
    drop(chunk);
    rig.close(domain, &[NIC]);
    rig.end();
}

pub fn a_chunk_that_is_dropped_is_nobodys_while_a_piece_lives<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let mut chunk = domain.chunk(PageCount(PAGES)).expect(&context);
        let range = chunk.chunk().range();
        let mut all: Vec<_> = (0..6).map(|nth| piece(&mut chunk, nth)).collect();
        let last = all.remove(3);
        drop(chunk);
        domain.unmap_batch(&mut all.into_iter()).expect("unmapped");
        domain.domain().flush().expect("flushed");
        reach(&rig, &[last.range()], true, &context);
        nobody_gets(&domain, range, &context);
        domain.domain().audit().expect("P10");
        domain.unmap(last).expect("unmapped");
        domain.domain().flush().expect("flushed");
        let audit = domain.domain().audit().expect("P10");
        assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_piece_that_was_not_flushed_keeps_all_of_its_chunk<B: Base, F: Format>() {
    for design in strict().filter(chooses_freely) {
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let unit = rig.machine.machine().unit();
        let mut lost_pages = 0;
        for by in 0..3 {
            let context = format!("{}, {by}", name(&design));
            let mut chunk = domain.chunk(PageCount(PAGES)).expect("room");
            let range = chunk.chunk().range();
            let mut all: Vec<_> = (0..6).map(|nth| piece(&mut chunk, nth)).collect();
            let lost = all.remove(2);
            reach(&rig, &[lost.range()], true, &context);
            unit.set_processing(Processing::Stuck);
            let cause = match by {
                0 => match domain.unmap(lost) {
                    Err(UnmapError::Invalidate { cause, .. }) => Some(cause),
                    _ => None,
                },
                1 => {
                    let error = domain.unmap_batch(&mut [lost].into_iter()).err();
                    error.and_then(|error| error.lost).map(|lost| lost.cause)
                }
                _ => {
                    let error = domain.unmap_start(&mut [lost].into_iter()).finish().err();
                    error.and_then(|error| error.lost).map(|lost| lost.cause)
                }
            };
            assert!(
                matches!(cause, Some(InvalidateError::TimedOut { .. })),
                "P1: {context}"
            );
            unit.set_processing(Processing::Inline);
            domain.unmap_batch(&mut all.into_iter()).expect("the rest");
            drop(chunk);
            domain.domain().flush().expect("flushed");
            lost_pages += 1;
            let stats = domain.domain().audit().expect("P10").stats;
            assert_eq!(
                stats.quarantined.pages,
                PageCount(lost_pages),
                "P10: {context}"
            );
            let kept = lost_pages * (PAGES - 1);
            assert_eq!(stats.chunks, PageCount(kept), "P10: {context}");
            nobody_gets(&domain, range, &context);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn pieces_that_are_pending_keep_their_chunk<B: Base, F: Format>() {
    for design in strict().take(2) {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let mut chunk = domain.chunk(PageCount(PAGES)).expect("room");
        let range = chunk.chunk().range();
        let mut all: Vec<_> = (0..6).map(|nth| piece(&mut chunk, nth)).collect();
        let pending = domain.unmap_start(&mut all.drain(..3));
        drop(chunk);
        domain
            .unmap_batch(&mut all.into_iter())
            .expect("the others");
        nobody_gets(&domain, range, &context);
        assert_eq!(pending.finish(), Ok(3), "{context}");
        let audit = domain.domain().audit().expect("P10");
        assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_chunk_waits_for_what_is_retired_where_no_range_is_free<B: Base, F: Format>() {
    for mut design in designs() {
        let context = name(&design);
        design.aperture = Some(IovaRange::new(IovaPage(64), PageCount(64)));
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let mut chunks: Vec<_> =
            std::iter::from_fn(|| domain.chunk(PageCount(PAGES)).ok()).collect();
        assert_eq!(chunks.len(), 4, "{context}");
        let Err(MapError::NoIova(_)) = domain.chunk(PageCount(PAGES)) else {
            panic!("P10: a fifth chunk, {context}");
        };
        let map = |chunk: &mut WatchedChunk<'_, _, _>| piece(chunk, 1);
        let pieces: Vec<_> = chunks.iter_mut().map(map).collect();
        drop(chunks);
        assert!(domain.chunk(PageCount(PAGES)).is_err(), "P3: {context}");
        for piece in pieces {
            domain.unmap(piece).expect("unmapped");
        }
        // whatever is in the queue
        let mut chunk = domain.chunk(PageCount(PAGES)).expect(&context);
        let piece = piece(&mut chunk, 2);
        reach(&rig, &[piece.range()], true, &context);
        domain.unmap(piece).expect("unmapped");
        drop(chunk);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// An unmap of one piece, at every shared access of another's map, and of the chunk's end.
#[test]
fn an_unmap_interrupts_what_the_owner_does() {
    let interesting = |design: &DomainConfig| {
        design.policy == PolicyConfig::Strict || is_batched(design) && chooses_freely(design)
    };
    for design in designs().into_iter().filter(interesting) {
        let mut delivered = 0;
        for n in 1.. {
            let context = format!("{}, access {n}", name(&design));
            let rig = Rig::<Sim>::new::<Small>(256);
            let domain = rig.domain::<Small>(design);
            let mut chunk = domain.chunk(PageCount(8)).expect(&context);
            let victims = [piece(&mut chunk, 0), piece(&mut chunk, 1)];
            let gone = ranges(&victims);
            reach(&rig, &gone, true, &context);
            let [first, second] = victims;
            let (first, second) = (Cell::new(Some(first)), Cell::new(Some(second)));
            let mapped = Cell::new(None);
            let (domain_, first_, mapped_) = (&domain, &first, &mapped);
            let outcome = World::new(Schedule::Bounded {
                seed: n,
                preemptions: 0,
            })
            .cpu(move || {
                mapped_.set(Some(piece(&mut chunk, 2)));
                drop(chunk);
            })
            .interrupt(Interrupt {
                cpu: CpuIndex(0),
                at_access: n,
                handler: Box::new(move || {
                    let first = first_.take().expect("one interrupt");
                    domain_.unmap(first).expect("unmapped");
                }),
            })
            .try_run();
            let outcome = outcome.unwrap_or_else(|failure| panic!("{context}: {failure}"));
            let was_delivered = outcome.delivered_at().is_some();
            let left = [first.take(), second.take(), mapped.take()];
            for mapping in left.into_iter().flatten() {
                reach(&rig, &[mapping.range()], true, &context);
                domain.unmap(mapping).expect("unmapped");
            }
            domain.domain().flush().expect("flushed");
            reach(&rig, &gone, false, &context);
            let audit = domain.domain().audit().expect("P10");
            assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
            rig.close(domain, &[NIC]);
            rig.end();
            if !was_delivered {
                break;
            }
            delivered += 1;
        }
        assert!(delivered > 5, "{delivered}: the test tests nothing");
    }
}

/// The owner maps and ends the chunk while two others end pieces, one by one and in batches.
#[test]
fn pieces_end_on_other_cpus_while_the_owner_maps() {
    for design in designs() {
        for seed in 0..6 {
            let context = format!("{}, seed {seed}", name(&design));
            let rig = Rig::<Sim>::new::<Small>(256);
            let domain = rig.domain::<Small>(design);
            let handed = Mutex::new(Vec::new());
            let (domain_, handed_) = (&domain, &handed);
            let take = move |most: usize| {
                let mut handed = locked(handed_);
                let from = handed.len().saturating_sub(most);
                handed.split_off(from)
            };
            let schedule = Schedule::Sticky {
                seed,
                switch_one_in: 3,
            };
            World::new(schedule)
                .cpu(move || {
                    for size in [8, 4, 8] {
                        let Ok(mut chunk) = domain_.chunk(PageCount(size)) else {
                            continue;
                        };
                        for nth in 0..size - 1 {
                            let piece = piece(&mut chunk, nth);
                            locked(handed_).push(piece);
                        }
                    }
                })
                .cpu(move || {
                    for _ in 0..6 {
                        domain_.unmap_batch(&mut take(3).into_iter()).expect("ours");
                    }
                })
                .cpu(move || {
                    for _ in 0..8 {
                        for piece in take(1) {
                            domain_.unmap(piece).expect("ours");
                        }
                    }
                })
                .run();
            let left = std::mem::take(&mut *locked(&handed));
            domain.unmap_batch(&mut left.into_iter()).expect("ours");
            domain.domain().flush().expect("flushed");
            let audit = domain.domain().audit().expect("P10");
            assert_eq!(audit.usage.allocated, PageCount(0), "P10: {context}");
            rig.close(domain, &[NIC]);
            rig.end();
        }
    }
}
