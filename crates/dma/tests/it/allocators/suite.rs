// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What holds for every allocator, one behaviour a function.

use crate::allocators::model::Model;
use crate::allocators::rig::*;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;

pub fn ranges_are_disjoint_aligned_and_inside(config: AllocatorConfig) {
    let rig = Rig::board(config, 5, 1000);
    let mut model = Model::new(5, 1000);
    let mut held = Vec::new();
    for step in 0..60u64 {
        move_to(step as usize % CPUS);
        let pages = [1, 3, 8, 2, 1, 17, 0, 40][step as usize % 8];
        let Ok(alloc) = rig.alloc(pages) else {
            assert!(!model.has_room(pages), "{rig}");
            continue;
        };
        model.add_assigned(&alloc, pages).unwrap();
        held.push(alloc);
        rig.check(model.pages());
    }
    assert!(held.len() > 30, "{rig}");
    for (nth, alloc) in held.into_iter().enumerate() {
        model.allocated.remove(&alloc.range().first.0);
        rig.free(nth % CPUS, alloc);
        rig.check(model.pages());
    }
}

pub fn exhaustion_is_exact_and_what_comes_back_serves_any_size(config: AllocatorConfig) {
    let rig = Rig::board(config, 64, 64);
    let mut held: Vec<_> = (0..64).map(|_| rig.alloc(1).unwrap()).collect();
    let full = AllocError {
        wanted: PageCount(1),
        free: PageCount(0),
        cached: PageCount(0),
        aperture: PageCount(64),
        cause: AllocErrorCause::Full,
    };
    assert_eq!(rig.alloc(1), Err(full));
    rig.check(64);
    let one = held.pop().unwrap();
    let at = one.range();
    rig.free(3, one); // cached, if at all, by a CPU that does not ask
    let again = rig.alloc(1).unwrap();
    assert_eq!(again.range(), at);
    held.push(again);
    for (nth, alloc) in held.into_iter().enumerate() {
        rig.free(nth % CPUS, alloc);
    }
    rig.check(0);
    // nothing less than everything back in the tree serves this
    let whole = rig.alloc(64).unwrap();
    assert_eq!(whole.range(), range(64, 64));
    rig.check(64);
    rig.free(0, whole);
}

pub fn an_error_counts_what_does_not_serve(config: AllocatorConfig) {
    let rig = Rig::board(config, 16, 16);
    let middle = rig.reserve(23, 2).unwrap();
    let error = rig.alloc(9).unwrap_err();
    assert_eq!(
        (error.wanted, error.free, error.cached),
        (PageCount(16), PageCount(14), PageCount(0))
    );
    // two aligned runs of 4 are left, and no run of 8
    assert!(rig.alloc(8).is_err());
    let (low, high) = (rig.alloc(4).unwrap(), rig.alloc(4).unwrap());
    assert!(rig.alloc(4).is_err());
    rig.check(10);
    for alloc in [low, high, middle] {
        rig.free(1, alloc);
    }
    rig.check(0);
}

pub fn page_0_is_given_where_it_is_asked_for(config: AllocatorConfig) {
    let rig = Rig::board(config, 0, 4);
    let held: Vec<_> = (0..3).map(|_| rig.alloc(1).unwrap()).collect();
    assert!(held.iter().all(|alloc| alloc.range().first.0 > 0));
    assert_eq!(rig.alloc(1).unwrap_err().free, PageCount(1));
    let zero = rig.reserve(0, 1).unwrap();
    rig.check(4);
    rig.free(0, zero);
    assert!(rig.alloc(1).is_err());
    rig.check(3);
    held.into_iter().for_each(|alloc| rig.free(0, alloc));
}

pub fn a_reserved_range_is_exact_and_excludes_others(config: AllocatorConfig) {
    let rig = Rig::board(config, 100, 100);
    let fixed = rig.reserve(113, 7).unwrap();
    assert_eq!(
        (fixed.range(), fixed.kind()),
        (range(113, 7), AllocKind::Fixed)
    );
    rig.check(7);
    for (first, pages) in [(113, 7), (119, 1), (110, 4), (100, 100), (115, 2)] {
        let (wanted, taken) = (range(first, pages), range(113, 7));
        assert_eq!(
            rig.reserve(first, pages),
            Err(FixedRangeError::Taken { wanted, taken })
        );
    }
    let (below, above) = (rig.reserve(112, 1).unwrap(), rig.reserve(120, 1).unwrap());
    let before = rig.usage().cached;
    rig.free(0, fixed);
    assert_eq!(rig.usage().cached, before, "a fixed range is not cached");
    let again = rig.reserve(113, 7).unwrap();
    rig.check(9);
    for alloc in [below, above, again] {
        rig.free(0, alloc);
    }
    rig.check(0);
}

pub fn what_is_cached_can_be_reserved(config: AllocatorConfig) {
    let rig = Rig::board(config, 32, 32);
    let held: Vec<_> = (0..16).map(|_| rig.alloc(2).unwrap()).collect();
    for (nth, alloc) in held.into_iter().enumerate() {
        rig.free(nth % CPUS, alloc);
    }
    let all = rig.reserve(32, 32).unwrap();
    rig.check(32);
    rig.free(0, all);
    rig.check(0);
}

pub fn ranges_outside_or_overflowing_are_refused(config: AllocatorConfig) {
    let rig = Rig::board(config, 10, 10);
    let max = u64::MAX;
    let outside = [
        (9, 1),
        (9, 2),
        (20, 1),
        (19, 2),
        (0, 1),
        (0, max),
        (10, max),
        (max, 1),
        (max, max),
        (15, max - 14),
        (15, 0),
        (0, 0),
        (10, 11),
        (max, 0),
    ];
    for (first, pages) in outside {
        let (wanted, aperture) = (range(first, pages), range(10, 10));
        let error = rig.reserve(first, pages).unwrap_err();
        assert_eq!(error, FixedRangeError::Outside { wanted, aperture });
        assert!(error.to_string().contains(&format!("{first:#x}+{pages}")));
        rig.check(0);
    }
}

pub fn sizes_without_bound_are_refused(config: AllocatorConfig) {
    let rig = Rig::board(config, 1, 1 << 36);
    for pages in [u64::MAX, 1 << 63, (1 << 63) + 1, 1 << 62, (1 << 35) + 1] {
        let error = rig.alloc(pages).unwrap_err();
        assert!(error.wanted.0 >= pages, "{error}");
        rig.check(0);
    }
    let none = rig.alloc(0).unwrap();
    assert_eq!(none.range().pages, PageCount(1));
    rig.free(0, none);
}

pub fn apertures_of_any_place_and_size_work(config: AllocatorConfig) {
    for (first, pages, fits) in [
        (0, 0, 0),
        (7, 0, 0),
        (0, 1, 0),
        (1, 1, 1),
        (u64::MAX - 4, 100, 4),
        (3, 2, 2),
    ] {
        let rig = Rig::board(config, first, pages);
        let held: Vec<_> = std::iter::from_fn(|| rig.alloc(1).ok()).take(10).collect();
        assert_eq!(held.len(), fits, "{first:#x}+{pages}: {rig}");
        rig.check(fits as u64);
        held.into_iter().for_each(|alloc| rig.free(2, alloc));
        rig.check(0);
    }
}

pub fn an_alloc_may_return_to_another_cpu(config: AllocatorConfig) {
    let rig = Rig::board(config, 1, 600);
    // one CPU only allocates, another only gets back, for several times what magazines and depot
    // hold
    let mut last = rig.alloc(1).unwrap();
    for step in 0..2000 {
        move_to(step % 2);
        let new = rig.alloc(1 + step as u64 % 2).unwrap();
        let pages = last.range().pages.0;
        rig.check(pages + new.range().pages.0);
        rig.free(2 + step % 2, std::mem::replace(&mut last, new));
    }
    rig.free(3, last);
    rig.check(0);
}

pub fn drain_gives_everything_back(config: AllocatorConfig) {
    let rig = Rig::board(config, 1, 4096);
    let mut held = Vec::new();
    for step in 0..300 {
        move_to(step % CPUS);
        held.push(rig.alloc(1 << (step % 4)).unwrap());
    }
    let kept = held.split_off(290);
    let allocated: u64 = kept.iter().map(|alloc| alloc.range().pages.0).sum();
    for (nth, alloc) in held.into_iter().enumerate() {
        rig.free(nth % CPUS, alloc);
    }
    let cached = rig.usage().cached.0;
    rig.check(allocated);
    assert_eq!(rig.drain(), cached);
    assert_eq!(rig.usage().cached, PageCount(0));
    assert_eq!(rig.drain(), 0);
    rig.check(allocated);
    kept.into_iter().for_each(|alloc| rig.free(0, alloc));
    rig.drain();
    assert_eq!(rig.usage().free, PageCount(4096));
}

pub fn the_state_can_be_read(config: AllocatorConfig) {
    let rig = Rig::board(config, 1, 4096);
    let fresh = rig.to_string();
    let alloc = rig.reserve(0x7b, 9).unwrap();
    let used = rig.to_string();
    assert!(!fresh.is_empty() && !fresh.contains("0x7b+9"), "{fresh}");
    assert!(used.contains("0x7b+9"), "{used}");
    rig.free(0, alloc);
}

pub fn limits_that_nothing_meets_are_named(config: AllocatorConfig) {
    let rig = Rig::board(config, 0x40, 0x40);
    rig.free(0, rig.alloc(1).unwrap()); // caches have something to offer
    let held = rig.reserve(0x7f, 1).unwrap();
    let error = |pages, limits| {
        let error = rig.alloc_within(pages, limits).unwrap_err();
        rig.check(1);
        assert!(error.cause.is_final(), "{error}");
        assert_eq!(error.aperture, PageCount(0x40));
        error.to_string()
    };
    let says = |what: String, words: &str| assert!(what.contains(words), "{what}");
    let end = |page| Limits::NONE.end(IovaPage(page));
    for page in [0, 1, 0x40, 0x41] {
        let words = format!("2 IOVA pages: the device reaches pages below {page:#x} only");
        says(error(2, end(page)), &words);
    }
    says(error(1, end(0x40)), "the aperture is 0x40+64");
    let align = |align_lg2| Limits::NONE.align_lg2(align_lg2);
    for lg2 in [7, 12, 63, 64, u32::MAX] {
        let words = format!("in 0x40+64 at any multiple of 2^{lg2} pages");
        says(error(1, align(lg2)), &words);
    }
    let boundary = |lg2| Limits::NONE.boundary_lg2(lg2);
    for (pages, lg2) in [(2, 0), (8, 2), (5, 2)] {
        let words = format!("each crosses the device's boundary of 2^{lg2} pages");
        says(error(pages, boundary(lg2)), &words);
    }
    // the narrowest that still can be met
    let both = end(0x41).align_lg2(6).boundary_lg2(0);
    let only = rig.alloc_within(1, both).unwrap();
    assert_eq!(only.range(), range(0x40, 1));
    let error = rig.alloc_within(1, both).unwrap_err();
    assert_eq!(error.cause, AllocErrorCause::FullWithin(both));
    says(error.to_string(), "below page 0x41, at a multiple of 2^6");
    for lg2 in [1, 63, 64, u32::MAX] {
        let pair = rig.alloc_within(2, boundary(lg2)).unwrap();
        rig.free(0, pair);
    }
    rig.free(0, only);
    rig.free(0, held);
    rig.check(0);
}

pub fn a_preference_is_kept_while_it_can_be(config: AllocatorConfig) {
    let rig = Rig::board(config, 0x10, 0x30);
    let limits = Limits::NONE.prefer_end(IovaPage(0x20));
    let below = |alloc: &IovaAlloc| alloc.range().end() <= IovaPage(0x20);
    let mut held: Vec<_> = (0..4)
        .map(|_| rig.alloc_within(4, limits).unwrap())
        .collect();
    assert!(held.iter().all(below), "{rig}");
    let other = rig.alloc_within(4, limits).unwrap();
    assert!(!below(&other), "nothing is left below");
    let low = held.swap_remove(1);
    let at = low.range();
    rig.free(0, low);
    rig.drain();
    assert_eq!(rig.alloc_within(4, limits).unwrap().range(), at);
    rig.check(20);
    // an end below the preference is what counts
    let both = limits.end(IovaPage(0x18));
    let error = rig.alloc_within(4, both).unwrap_err();
    assert_eq!(error.cause, AllocErrorCause::FullWithin(both));
}
