// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Chunks: addresses are arithmetic, the books add up at every moment, and a chunk is free with the
//! last of its pieces and not before.

use crate::bounce::patchy::{Patchy, Rig, Tables};
use crate::lend;
use ioatlas_dma::{design, dma_api::*, domain::*, platform::Platform, units::*};
use ioatlas_host::*;
use std::sync::Arc;

const POLICIES: [PolicyConfig; 4] = [
    PolicyConfig::Strict,
    PolicyConfig::FreeBsd,
    PolicyConfig::Solaris,
    PolicyConfig::DeferredPerCpu(
        DeferredConfig::DEFAULT
            .batch(250)
            .window(TimeNs(10_000_000))
            .tick_budget(256),
    ),
];

fn page(nth: u64) -> PhysRange {
    PhysRange::page(PhysPage(0x1000 + 2 * nth))
}

fn idle<P: Platform, T: ioatlas_dma::translator::Translator<P>>(domain: &Domain<P, T>) -> u64 {
    domain.audit().expect("P10").stats.chunks.0
}

#[test]
fn a_piece_begins_where_the_last_one_ended_and_a_full_chunk_says_so() {
    for policy in POLICIES {
        let rig = Rig::new(policy);
        let domain = rig.dma.domain();
        let mut chunk = domain.chunk(PageCount(33)).expect("room");
        let IovaRange { first, pages } = chunk.range();
        assert_eq!(pages, PageCount(64), "a power of two");
        assert_eq!((chunk.left(), idle(domain)), (pages, 64), "{policy:?}");
        let single = chunk.map(page(0), Direction::FromDevice).expect("room");
        assert_eq!(single.iova(), first.addr());
        // three granules, from the middle of the first on
        let odd = PhysRange::new(PhysAddr(0x1000_0800), ByteCount(0x2000));
        let odd = chunk.map(odd, Direction::ToDevice).expect("room");
        assert_eq!(odd.iova(), Iova(first.addr().0 + 0x1800));
        let list = [page(4), page(5)];
        let list = chunk.map_list(&list, Direction::FromDevice).expect("room");
        assert_eq!(list.iova().page().0, first.0 + 4);
        assert_eq!((chunk.left(), idle(domain)), (PageCount(58), 58));
        let whole = PhysRange::new(PhysAddr(0x200_0000), ByteCount(59 << 12));
        let full = MapError::ChunkFull {
            wanted: PageCount(59),
            left: PageCount(58),
        };
        assert_eq!(chunk.map(whole, Direction::ToDevice), Err(full));
        assert_eq!(chunk.left(), PageCount(58), "nothing has happened");
        let empty = PhysRange::new(PhysAddr(0x1000), ByteCount(0));
        assert!(chunk.map(empty, Direction::ToDevice).is_err());
        assert_eq!(chunk.left(), PageCount(58), "nothing has happened");
        let live = domain.stats().live;
        assert_eq!(live, PageCount(6));
        for piece in [list, single, odd] {
            domain.unmap(piece).expect("unmapped");
            domain.audit().expect("P10");
        }
        domain.flush().expect("flushed");
        assert_eq!(idle(domain), 64, "P3: the chunk is still there: {policy:?}");
        drop(chunk);
        let usage = domain.audit().expect("P10").usage;
        assert_eq!(usage.allocated, PageCount(0), "{policy:?}");
    }
}

/// Whichever way the pieces and the chunk end, and in whatever order.
#[test]
fn a_chunk_is_free_with_its_last_piece_and_its_own_end() {
    for policy in POLICIES {
        for (size, ends_after) in [(1, 0), (8, 0), (8, 5), (8, 8), (64, 40), (256, 256)] {
            let rig = Rig::new(policy);
            let domain = rig.dma.domain();
            let mut chunk = domain.chunk(PageCount(size)).expect("room");
            let range = chunk.range();
            let map = |nth| chunk.map(page(nth), Direction::FromDevice);
            let mut pieces: Vec<_> = (0..size).map(map).collect::<Result<_, _>>().unwrap();
            let mut chunk = Some(chunk);
            for ended in 0..=size {
                if ended == ends_after {
                    drop(chunk.take());
                }
                if ended < size {
                    let taken = domain.map_at(range.first.addr(), page(0), Direction::ToDevice);
                    assert!(taken.is_err(), "P3: {ended} of {size} have ended");
                    let nth = (ended * 7 + 3) as usize % pieces.len();
                    domain.unmap(pieces.swap_remove(nth)).expect("unmapped");
                    domain.audit().expect("P10");
                }
            }
            domain.flush().expect("flushed");
            let audit = domain.audit().expect("P10");
            assert_eq!(audit.usage.allocated, PageCount(0), "P10: {size}");
            let again = domain.map_at(range.first.addr(), page(0), Direction::ToDevice);
            domain.unmap(again.expect("P10: it is free")).unwrap();
        }
    }
}

#[test]
fn a_chunk_without_pieces_comes_back_when_it_is_dropped() {
    let rig = Rig::new(PolicyConfig::Strict);
    let domain = rig.dma.domain();
    let before = domain.stats().invalidations;
    for size in [0, 1, 3, 32, 64, 256, 257, u64::MAX] {
        let chunk = domain.chunk(PageCount(size)).expect("room");
        let pages = size.clamp(1, 256).next_power_of_two();
        assert_eq!(chunk.range().pages, PageCount(pages));
    }
    let usage = domain.audit().expect("P10").usage;
    assert_eq!(usage.allocated, PageCount(0));
    assert_eq!(domain.stats().invalidations, before, "nothing was mapped");
}

/// The last of them lie wherever there is a place for their books.
#[test]
fn there_are_as_many_chunks_as_there_are_books() {
    for size in [1, 4, 64] {
        let rig = Rig::new(PolicyConfig::Strict);
        let domain = rig.dma.domain();
        let mut chunks = Vec::new();
        let why = loop {
            match domain.chunk(PageCount(size)) {
                Ok(chunk) => chunks.push(chunk),
                Err(why) => break why,
            }
        };
        assert_eq!((why, chunks.len()), (MapError::NoChunk, 128), "{size}");
        assert_eq!(idle(domain), 128 * size, "P10: what had no book is free");
        let map = |chunk: &mut Chunk<'_, _, _>| chunk.map(page(1), Direction::ToDevice);
        let pieces: Vec<_> = chunks
            .iter_mut()
            .map(map)
            .collect::<Result<_, _>>()
            .unwrap();
        // every other one first
        chunks.drain(..100);
        let (even, odd): (Vec<_>, Vec<_>) =
            pieces.into_iter().enumerate().partition(|p| p.0 % 2 == 0);
        for (_, piece) in even.into_iter().chain(odd) {
            domain.unmap(piece).expect("unmapped");
            domain.audit().expect("P10");
        }
        // one that is full is over with its last piece
        let open = if size == 1 { 0 } else { 28 };
        assert_eq!(idle(domain), open * size);
        drop(domain.chunk(PageCount(size)).expect("a book is free again"));
        drop(chunks);
        assert_eq!(idle(domain), 0, "P10");
    }
}

#[test]
fn a_piece_that_was_not_flushed_keeps_its_chunk_for_good() {
    for chunk_first in [false, true] {
        let rig = Rig::new(PolicyConfig::Strict);
        let domain = rig.dma.domain();
        let mut chunk = domain.chunk(PageCount(8)).expect("room");
        let range = chunk.range();
        let map = |nth| chunk.map(page(nth), Direction::FromDevice);
        let mut pieces: Vec<_> = (0..6).map(map).collect::<Result<_, _>>().unwrap();
        let mut chunk = Some(chunk);
        if chunk_first {
            drop(chunk.take());
        }
        domain.unmap(pieces.remove(0)).expect("unmapped");
        rig.fail(true);
        let lost = domain.unmap_batch(&mut pieces.drain(1..3)).unwrap_err();
        assert_eq!(lost.lost.map(|lost| lost.mappings), Some(2));
        rig.fail(false);
        domain
            .unmap_batch(&mut pieces.into_iter())
            .expect("the rest");
        drop(chunk);
        domain.flush().expect("flushed");
        let stats = domain.audit().expect("P10").stats;
        assert_eq!(stats.quarantined.pages, PageCount(2), "P10");
        assert_eq!(stats.chunks, PageCount(6), "P3: the rest is lost with them");
        for page in range.iter() {
            let again = domain.map_at(page.addr(), self::page(0), Direction::ToDevice);
            assert!(again.is_err(), "P3: {page} was given out again");
        }
    }
}

/// Comings home are counted for the chunk that they are of, also where another's come between.
#[test]
fn pieces_of_several_chunks_end_in_one_batch() {
    for policy in POLICIES {
        let rig = Rig::new(policy);
        let domain = rig.dma.domain();
        let mut one = domain.chunk(PageCount(8)).expect("room");
        let mut two = domain.chunk(PageCount(8)).expect("room");
        let mut all = Vec::new();
        for nth in 0..3 {
            all.push(two.map(page(3 * nth), Direction::ToDevice).expect("room"));
            all.push(
                domain
                    .map(page(3 * nth + 1), Direction::ToDevice)
                    .expect("room"),
            );
            all.push(
                one.map(page(3 * nth + 2), Direction::ToDevice)
                    .expect("room"),
            );
            if nth == 2 {
                all.push(one.map(page(20), Direction::ToDevice).expect("room"));
            }
        }
        let alone = domain.map(page(30), Direction::ToDevice).expect("room");
        domain.unmap_batch(&mut all.into_iter()).expect("unmapped");
        domain.flush().expect("flushed");
        assert_eq!(idle(domain), 16, "{policy:?}");
        drop(one);
        assert_eq!(idle(domain), 8, "{policy:?}");
        drop(two);
        domain.unmap(alone).expect("unmapped");
        domain.flush().expect("flushed");
        let usage = domain.audit().expect("P10").usage;
        assert_eq!(usage.allocated, PageCount(0), "{policy:?}");
    }
}

/// A map that fails half-way has its pages come home, once they are flushed.
#[test]
fn a_map_that_fails_uses_up_its_pages_and_loses_none() {
    let rig = Rig::new(PolicyConfig::Strict);
    let domain = rig.dma.domain();
    let mut chunk = domain.chunk(PageCount(16)).expect("room");
    rig.frames_left(0);
    let error = chunk.map(page(0), Direction::ToDevice).unwrap_err();
    assert!(matches!(error, MapError::Install(_)), "{error}");
    rig.frames_left(u64::MAX);
    assert_eq!((chunk.left(), idle(domain)), (PageCount(15), 16));
    let piece = chunk.map(page(0), Direction::ToDevice).expect("frames");
    assert_eq!(piece.iova().page().0, chunk.range().first.0 + 1);
    domain.unmap(piece).expect("unmapped");
    drop(chunk);
    assert_eq!(domain.audit().expect("P10").usage.allocated, PageCount(0));
}

#[test]
fn a_piece_is_not_given_up_and_is_one_domains() {
    let rig = Rig::new(PolicyConfig::Strict);
    let other = rig.another(PolicyConfig::Strict);
    let domain = rig.dma.domain();
    let mut chunk = domain.chunk(PageCount(4)).expect("room");
    let piece = chunk.map(page(0), Direction::ToDevice).expect("room");
    let (iova, len) = (piece.iova(), piece.len());
    let Err(UnmapError::Piece(piece)) = domain.into_raw(piece) else {
        panic!("P10: an address does not say that it is of a chunk");
    };
    assert!(domain.unmap_raw(iova, len).is_err(), "its token is held");
    let Err(UnmapError::Foreign(piece)) = other.domain().unmap(piece) else {
        panic!("P8: it is not theirs");
    };
    domain.unmap(piece).expect("ours");
}

/// Every design; chunks with pieces, and one whose pieces are lost track of, end with the domain.
#[test]
fn a_domain_is_closed_with_chunks_alive() {
    for design in design::all() {
        let host = Host::new(HostConfig::default().frames(512).slots(1));
        let p = Arc::new(host.with_heap(ByteCount(1 << 16)).expect("an arena"));
        let heap = || p.heap().map_or(0, |heap| heap.in_use().0);
        let unit = ioatlas_dma::translator::Uncached::<Host>::new();
        let table =
            ioatlas_dma::translator::Paged::<_, ioatlas_dma::table::fmt::VtdSecond48, _>::new(
                &p,
                unit,
                Default::default(),
            );
        let domain = Domain::new(p.clone(), table.expect("room"), design.domain).expect("a domain");
        let mut dropped = domain.chunk(PageCount(16)).expect("room");
        for nth in 0..5 {
            let piece = dropped.map(page(nth), Direction::ToDevice);
            let _stays = piece.expect("room");
        }
        drop(dropped);
        let mut forgotten = domain.chunk(PageCount(16)).expect("room");
        let piece = forgotten.map(page(9), Direction::ToDevice).expect("room");
        domain.unmap(piece).expect("unmapped");
        std::mem::forget(forgotten);
        let alone = domain.map(page(10), Direction::ToDevice).expect("room");
        domain.audit().expect("P10");
        drop(alone);
        domain.close().expect("closed");
        assert_eq!(heap(), 0, "P10: {design:?}");
        assert_eq!(p.frames_in_use(), 0, "P10: {design:?}");
    }
}

fn direct(rig: &Rig) -> impl Fn(&mut Stream<Patchy, Tables>, u64) -> DmaMapping {
    let client = rig.client(Placement::Never);
    move |stream, nth| {
        client
            .map_in(stream, lend(page(nth)), Direction::FromDevice)
            .expect("room")
    }
}

#[test]
fn a_stream_fills_chunks_in_order_and_ends_each_with_its_last_piece() {
    let rig = Rig::new(PolicyConfig::Strict);
    let domain = rig.dma.domain();
    let nic = rig.client(Placement::Never);
    let map = direct(&rig);
    let mut stream = nic.stream(PageCount(16));
    assert_eq!(idle(domain), 0, "nothing is taken before the first map");
    let all: Vec<_> = (0..40).map(|nth| map(&mut stream, nth)).collect();
    for run in all.chunks(16) {
        let follows = |two: &[DmaMapping]| two[0].iova().0 + 4096 == two[1].iova().0;
        assert!(run.windows(2).all(follows));
    }
    assert_eq!(idle(domain), 8, "of the third chunk");
    let before = domain.stats().invalidations;
    let mut all = all.into_iter();
    nic.unmap_batch(&mut all.by_ref().take(16), drop)
        .expect("unmapped");
    assert_eq!(domain.stats().invalidations, before + 1);
    assert_eq!(idle(domain), 8, "P10: the first chunk is free");
    drop(stream);
    assert_eq!(idle(domain), 8, "P3: pieces of it live");
    nic.unmap_batch(&mut all, drop).expect("unmapped");
    assert_eq!(domain.audit().expect("P10").usage.allocated, PageCount(0));
}

#[test]
fn what_fits_no_chunk_is_mapped_all_the_same() {
    let rig = Rig::new(PolicyConfig::Strict);
    let domain = rig.dma.domain();
    let nic = rig.client(Placement::Never);
    let map = direct(&rig);
    let mut stream = nic.stream(PageCount(16));
    let small = map(&mut stream, 0);
    let large = PhysRange::new(PhysAddr(0x400_0000), ByteCount(20 << 12));
    let large = nic
        .map_in(&mut stream, lend(large), Direction::ToDevice)
        .expect("room");
    let next = map(&mut stream, 1);
    assert_eq!(next.iova().0, small.iova().0 + 4096, "its chunk goes on");
    // no book is left for another chunk
    let others: Vec<_> = std::iter::from_fn(|| domain.chunk(PageCount(1)).ok()).collect();
    let more: Vec<_> = (2..40).map(|nth| map(&mut stream, nth)).collect();
    // by another domain's
    let other = rig.another(PolicyConfig::Strict);
    let theirs = crate::bounce::patchy::client(&other, Placement::Never);
    let foreign = theirs
        .map_in(&mut stream, lend(page(50)), Direction::ToDevice)
        .expect("room");
    theirs.unmap(foreign).expect("theirs");
    for mapping in more.into_iter().chain([large, next, small]) {
        nic.unmap(mapping).expect("unmapped");
    }
    drop((stream, others));
    assert_eq!(domain.audit().expect("P10").usage.allocated, PageCount(0));
}

#[test]
fn what_bounces_goes_its_usual_way() {
    let rig = Rig::new(PolicyConfig::Strict);
    let nic = rig.client(Placement::Always);
    let mut stream = nic.stream(PageCount(16));
    let frame = rig.p.host.frame_alloc().expect("a frame");
    let memory = PhysRange::page(frame.page());
    let bounced = nic
        .map_in(&mut stream, lend(memory), Direction::FromDevice)
        .expect("a slot");
    assert!(bounced.is_bounced());
    assert_eq!(idle(rig.dma.domain()), 0, "no chunk for it");
    assert_eq!(nic.unmap(bounced), Ok(lend(memory)));
    rig.p.host.frame_free(crate::BY, frame);
}
