// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! IOVA-kmalloc: a heap that others use too, and what it cannot serve.

use crate::allocators::rig::*;
use ioatlas_dma::iova::{kmalloc::PARKED_AT_ONCE, *};
use ioatlas_dma::platform::{HeapBlock, Platform};
use ioatlas_dma::units::*;
use ioatlas_host::{Host, HostConfig};

fn config() -> AllocatorConfig {
    AllocatorConfig::Kmalloc(KmallocConfig::default())
}

/// A heap of `heap` bytes, and `with_offset` pages beyond.
fn rig(heap: u64, beyond: u64) -> Rig<Board> {
    board_with_heap(config(), range(0, heap + beyond), heap).unwrap()
}

fn kmalloc(rig: &Rig<Board>) -> &Kmalloc<Board> {
    match &rig.allocator {
        AnyAllocator::Kmalloc(kmalloc) => kmalloc,
        _ => unreachable!("as configured"),
    }
}

#[test]
fn an_alloc_is_a_block_and_no_other_user_gets_it() {
    let rig = rig(4096, 0);
    let mut held = Vec::new();
    let mut others: Vec<HeapBlock> = Vec::new();
    let mut owner = vec![0u8; 4096];
    let mut mark = |first: u64, len: u64, whose: u8| {
        for at in first..first + len {
            assert_eq!(owner[at as usize], 0, "{at:#x}");
            owner[at as usize] = whose;
        }
    };
    for step in 0..60u64 {
        move_to(step as usize % CPUS);
        let pages = [1, 8, 9, 40, 0, 2][step as usize % 6];
        let alloc = rig.alloc(pages).unwrap();
        let at = alloc.range();
        assert_eq!(at.pages, PageCount(pages.max(8).next_power_of_two()));
        assert_eq!(at.pages, rig.allocator.granted(PageCount(pages)));
        assert!(at.first.0 > 0 && at.first.0.is_multiple_of(at.pages.0));
        mark(at.first.0, at.pages.0, 1);
        held.push(alloc);
        let other = rig.heap().alloc(ByteCount(1 + step)).unwrap();
        mark(other.offset.0, other.len.0, 2);
        others.push(other);
    }
    let allocated: u64 = held.iter().map(|alloc| alloc.range().pages.0).sum();
    let foreign: u64 = others.iter().map(|block| block.len.0).sum();
    rig.check(allocated);
    assert_eq!(rig.usage().others, PageCount(foreign));
    assert_eq!(rig.heap().in_use(), ByteCount(allocated + foreign));
    for (nth, alloc) in held.into_iter().enumerate() {
        rig.free(nth % CPUS, alloc);
    }
    rig.check(0);
    assert_eq!(rig.heap().in_use(), ByteCount(foreign));
    others
        .into_iter()
        .for_each(|block| rig.heap().free(block).unwrap());
    assert_eq!(rig.usage().free, PageCount(4096));
}

#[test]
fn a_second_alloc_differs_while_others_allocate() {
    let rig = rig(1 << 16, 0);
    let alloc = rig.alloc(1).unwrap();
    let before = alloc.range();
    rig.free(0, alloc);
    let theirs = rig.heap().alloc(ByteCount(8)).unwrap();
    assert_eq!(
        theirs.offset,
        ByteCount(before.first.0),
        "freed last, taken first"
    );
    let alloc = rig.alloc(1).unwrap();
    assert_ne!(alloc.range(), before);
    rig.free(0, alloc);
    rig.heap().free(theirs).unwrap();
}

#[test]
fn an_exhausted_arena_says_what_has_it() {
    let rig = rig(1024, 64);
    let theirs = rig.heap().alloc(ByteCount(512)).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| rig.alloc(1).ok()).collect();
    assert_eq!(held.len(), (512 - 8) / 8, "{rig}");
    rig.check(504);
    let error = rig.alloc(1).unwrap_err();
    // free: the 8 pages of offset 0, and the fallback, which serves other requests only
    let (free, cached) = (PageCount(8 + 64), PageCount(0));
    let (wanted, aperture) = (PageCount(8), PageCount(1024 + 64));
    let cause = AllocErrorCause::Full;
    assert_eq!(
        error,
        AllocError {
            wanted,
            free,
            cached,
            aperture,
            cause
        }
    );
    assert_eq!(rig.usage().others, PageCount(512));
    assert_eq!(rig.usage().diverted, 0);
    rig.heap().free(theirs).unwrap();
    let more = rig.alloc(512).unwrap();
    assert_eq!(more.range(), range(512, 512));
    for alloc in held.into_iter().chain([more]) {
        rig.free(2, alloc);
    }
    for pages in [1025, u64::MAX, 1 << 63, (1 << 63) + 1] {
        assert!(rig.alloc(pages).unwrap_err().wanted.0 >= pages.min(1 << 63));
    }
    rig.check(0);
}

#[test]
fn what_the_heap_cannot_promise_goes_beyond_its_arena() {
    let rig = rig(1024, 1024);
    let wide = Limits::NONE.align_lg2(10);
    let alloc = rig.alloc_within(1, wide).unwrap();
    assert_eq!(alloc.range(), range(1024, 8), "as long as a block");
    let fixed = rig.reserve(1500, 3).unwrap();
    assert_eq!(rig.usage().diverted, 2);
    rig.check(11);
    assert_eq!(
        rig.heap().in_use(),
        ByteCount(0),
        "the block was given back"
    );
    // what a block happens to meet, the heap serves
    let end = Limits::NONE.end(IovaPage(1024));
    let low = rig.alloc_within(1, end).unwrap();
    assert!(low.range().end().0 <= 1024);
    assert_eq!(rig.usage().diverted, 2);
    [alloc, fixed, low]
        .into_iter()
        .for_each(|alloc| rig.free(1, alloc));
    rig.check(0);
}

#[test]
fn without_pages_beyond_they_are_refused_and_nothing_is_lost() {
    let rig = rig(1024, 0);
    let wide = Limits::NONE.align_lg2(10);
    let error = rig.alloc_within(1, wide).unwrap_err();
    assert_eq!(error.cause, AllocErrorCause::FullWithin(wide));
    assert!(!error.cause.is_final(), "another block might do");
    let held = rig.alloc(1).unwrap();
    let error = rig.reserve(100, 8).unwrap_err();
    let (wanted, region) = (range(100, 8), range(0, 1024));
    let allocated = PageCount(8);
    assert_eq!(
        error,
        FixedRangeError::NoRecord {
            wanted,
            region,
            allocated
        }
    );
    let outside = rig.reserve(1020, 8).unwrap_err();
    assert!(
        matches!(outside, FixedRangeError::Outside { .. }),
        "{outside}"
    );
    rig.check(8);
    rig.free(0, held);
    assert_eq!(rig.usage().diverted, 0);
    assert_eq!(rig.heap().in_use(), ByteCount(0));
}

#[test]
fn blocks_that_overlap_a_reserved_range_are_parked() {
    let rig = rig(1024, 0);
    let fixed = rig.reserve(100, 60).unwrap(); // eight blocks of 8 overlap it
    rig.check(60);
    let held: Vec<_> = std::iter::from_fn(|| rig.alloc(1).ok()).collect();
    assert!(
        held.iter()
            .all(|alloc| !alloc.range().overlaps(&fixed.range()))
    );
    assert_eq!(kmalloc(&rig).parked(), 8, "96..160, {rig}");
    assert_eq!(held.len(), 1024 / 8 - 1 - 8);
    let allocated = held.len() as u64 * 8;
    rig.check(allocated + 60);
    held.into_iter().for_each(|alloc| rig.free(0, alloc));
    // parked for good
    rig.free(0, fixed);
    rig.check(0);
    assert_eq!(rig.usage().others, PageCount(64));
}

#[test]
fn one_request_parks_so_much_and_no_more() {
    let rig = rig(1 << 16, 1 << 16);
    // all of the arena's blocks of 8 that one request looks at, and half of it for a large one
    let fixed = rig.reserve(8, (1 << 16) - 8).unwrap();
    let alloc = rig.alloc(1).unwrap();
    assert!(alloc.range().first.0 >= 1 << 16, "{rig}");
    assert_eq!(kmalloc(&rig).parked(), PARKED_AT_ONCE as u64);
    let large = rig.alloc(1 << 15).unwrap();
    assert!(large.range().first.0 >= 1 << 16);
    assert_eq!(
        kmalloc(&rig).parked(),
        PARKED_AT_ONCE as u64,
        "a large block is not parked"
    );
    assert_eq!(rig.usage().diverted, 2);
    assert_eq!(rig.heap().in_use(), ByteCount(PARKED_AT_ONCE as u64 * 8));
    for alloc in [fixed, alloc, large] {
        rig.free(0, alloc);
    }
    rig.check(0);
}

#[test]
fn an_arena_that_could_collide_is_refused() {
    let refused = |heap, pages| {
        board_with_heap(config(), range(0, pages), heap)
            .map(drop)
            .unwrap_err()
    };
    // 39 bits of IOVA: 2^27 pages, so 128 MiB
    let (arena, limit) = (ByteCount((128 << 20) + 8), ByteCount(128 << 20));
    let error = refused(arena.0, 1 << 27);
    assert_eq!(error, AllocatorError::KmallocArena { arena, limit });
    assert!(error.to_string().contains("134217728") && error.to_string().contains("134217736"));
    board_with_heap(config(), range(0, 1 << 27), 128 << 20).unwrap();
    let aperture = range(1, 1 << 27);
    let error = board_with_heap(config(), aperture, 64)
        .map(drop)
        .unwrap_err();
    assert_eq!(error, AllocatorError::KmallocAperture { aperture });
    let without = Host::new(HostConfig::default());
    let error = AnyAllocator::new(&without, config(), range(0, 1 << 20)).map(drop);
    assert_eq!(error, Err(AllocatorError::NoHeap));
    assert!(without.heap().is_none());
}

/// 64 GiB is the most, however wide IOVAs are. No machine need have that much: a heap says how
/// large it is.
#[test]
fn sixty_four_gib_is_the_most() {
    let rig = |heap| board_with_heap(config(), range(0, 1 << 45), heap).map(drop);
    rig(64 << 30).unwrap();
}
