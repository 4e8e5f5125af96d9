// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Identity mapping: regions, and what goes to the fallback.
//!
//! Most rigs have 16 bits of physical addresses, 16 pages, in an aperture of 64: four regions
//! of 16.

use crate::allocators::rig::*;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use ioatlas_host::register;
use proptest::prelude::*;

const PERMS: [Perm; 3] = [Perm::Read, Perm::Write, Perm::ReadWrite];

fn config(phys_bits: u32) -> AllocatorConfig {
    AllocatorConfig::Identity(IdentityConfig::default().phys_bits(phys_bits))
}

fn small() -> Rig<Board> {
    Rig::board(config(16), 0, 64)
}

fn shared(rig: &Rig<Board>) -> u64 {
    rig.usage().shared.0
}

#[test]
fn the_two_top_bits_say_what_the_device_may_do() {
    let rig = Rig::board(config(46), 0, 1 << 36);
    for (perm, top) in PERMS.into_iter().zip([1u64, 2, 3]) {
        let alloc = rig.alloc_for(0x1234, 3, perm).unwrap();
        assert_eq!(alloc.range(), range(top << 34 | 0x1234, 3));
        assert_eq!(alloc.kind(), AllocKind::Shared);
        assert!(rig.allocator.shared().unwrap().contains(&alloc.range()));
        rig.free(0, alloc);
    }
    // the last page that 46 bits reach, for both: the last IOVA page of all
    let last = rig.alloc_for((1 << 34) - 1, 1, Perm::ReadWrite).unwrap();
    assert_eq!(last.range(), range((1 << 36) - 1, 1));
    rig.free(0, last);
    assert_eq!((shared(&rig), rig.usage().diverted), (0, 0));
    rig.check(0);
}

#[test]
fn one_page_can_be_allocated_many_times() {
    let rig = small();
    let held: Vec<_> = (0..100)
        .map(|nth| {
            move_to(nth % CPUS);
            rig.alloc_for(7, 2, Perm::Read).unwrap()
        })
        .collect();
    assert!(held.iter().all(|alloc| alloc.range() == range(16 + 7, 2)));
    assert_eq!(shared(&rig), 200);
    rig.check(0); // of the fallback nothing is allocated
    for (nth, alloc) in held.into_iter().enumerate() {
        rig.free(nth % CPUS, alloc);
    }
    assert_eq!(shared(&rig), 0);
}

#[test]
fn what_has_no_address_of_its_own_goes_to_the_fallback() {
    let rig = small();
    let beyond = [
        (16, 1),
        (15, 2),
        (0, 17),
        (u64::MAX, 1),
        (u64::MAX - 1, 1),
        (1 << 40, 1),
    ];
    let mut held = Vec::new();
    for (nth, (first, pages)) in beyond.into_iter().enumerate() {
        match rig.alloc_for(first, pages, Perm::Write) {
            Ok(alloc) => {
                assert_eq!(alloc.kind(), AllocKind::Dynamic);
                assert!(range(0, 16).contains(&alloc.range()), "{alloc:?}");
                held.push(alloc);
            }
            Err(error) => assert_eq!((nth, error.wanted), (2, PageCount(32))),
        }
    }
    assert_eq!(rig.usage().diverted, held.len() as u64);
    // a list, which has no address
    held.push(rig.alloc(2).unwrap());
    assert_eq!(rig.usage().diverted, held.len() as u64);
    let allocated = held.iter().map(|alloc| alloc.range().pages.0).sum();
    rig.check(allocated);
    held.into_iter().for_each(|alloc| rig.free(1, alloc));
    rig.check(0);
    let empty = rig.alloc_for(3, 0, Perm::Read).unwrap();
    assert_eq!(empty.range(), range(16 + 3, 1));
    rig.free(0, empty);
}

#[test]
fn limits_that_the_own_address_breaks_go_to_the_fallback() {
    let rig = small();
    let cases = [
        (Limits::NONE.end(IovaPage(16)), false),
        (Limits::NONE.end(IovaPage(24)), true),
        (Limits::NONE.prefer_end(IovaPage(16)), false),
        (Limits::NONE.align_lg2(1), true),
        (Limits::NONE.align_lg2(2), false),
        (Limits::NONE.boundary_lg2(2), true),
    ];
    let mut diverted = 0;
    for (limits, own) in cases {
        let request = Request {
            limits,
            contiguous: Some((PhysPage(6), Perm::Read)),
            ..Request::pages(PageCount(2))
        };
        let alloc = rig.allocator.alloc(&rig.p, &request).unwrap();
        assert_eq!(alloc.kind() == AllocKind::Shared, own, "{limits:?}");
        assert!(limits.allow(alloc.range()));
        diverted += u64::from(!own);
        assert_eq!(rig.usage().diverted, diverted);
        rig.free(0, alloc);
    }
}

#[test]
fn buffers_avoid_what_is_reserved_in_their_region() {
    let rig = small();
    let fixed = rig.reserve(16 + 4, 3).unwrap();
    assert_eq!(fixed.kind(), AllocKind::Fixed);
    rig.check(3);
    for (first, pages, own) in [
        (3, 1, true),
        (3, 2, false),
        (6, 1, false),
        (7, 1, true),
        (0, 8, false),
    ] {
        let alloc = rig
            .alloc_for(first, pages, Perm::Read)
            .unwrap_or_else(|error| {
                panic!("{first}+{pages}: {error}");
            });
        assert_eq!(alloc.kind() == AllocKind::Shared, own, "{first}+{pages}");
        // the same place of another region is free
        let other = rig.alloc_for(first, pages, Perm::Write).unwrap();
        assert_eq!(other.kind(), AllocKind::Shared);
        rig.free(0, alloc);
        rig.free(0, other);
        rig.drain();
    }
    assert_eq!(rig.usage().diverted, 3);
    assert!(rig.to_string().contains("0x14+3 reserved"), "{rig}");
    rig.free(0, fixed);
    rig.check(0);
    let again = rig.alloc_for(5, 1, Perm::Read).unwrap();
    assert_eq!(again.range(), range(16 + 5, 1));
    rig.free(0, again);
}

#[test]
fn a_region_is_reserved_from_only_while_nothing_of_it_is_allocated() {
    let rig = small();
    let held = rig.alloc_for(1, 2, Perm::Read).unwrap();
    let wanted = range(50, 1); // elsewhere; no record is kept of that
    let region = range(16, 48);
    let allocated = PageCount(2);
    let refused = FixedRangeError::NoRecord {
        wanted,
        region,
        allocated,
    };
    assert_eq!(rig.reserve(50, 1), Err(refused));
    let after = rig.alloc_for(2, 1, Perm::ReadWrite).unwrap();
    assert_eq!(after.kind(), AllocKind::Shared, "nothing is reserved");
    rig.free(0, held);
    rig.free(0, after);
    let fixed: Vec<_> = (0..8)
        .map(|nth| rig.reserve(20 + 2 * nth, 1).unwrap())
        .collect();
    let full = FixedRangeError::TooMany {
        wanted,
        region,
        max: 8,
    };
    assert_eq!(rig.reserve(50, 1), Err(full));
    let (wanted, taken) = (range(19, 2), range(20, 1));
    assert_eq!(
        rig.reserve(19, 2),
        Err(FixedRangeError::Taken { wanted, taken })
    );
    rig.check(8);
    fixed.into_iter().for_each(|alloc| rig.free(0, alloc));
    rig.check(0);
}

#[test]
fn the_fallback_is_reserved_from_as_ever() {
    let rig = small();
    let _shared = rig.alloc_for(1, 2, Perm::Read).unwrap();
    let zero = rig.reserve(0, 16).unwrap();
    rig.check(16);
    assert!(rig.alloc(1).is_err());
    rig.free(0, zero);
    for (first, pages) in [
        (15, 2),
        (0, 64),
        (63, 2),
        (64, 1),
        (0, 0),
        (20, 0),
        (u64::MAX, u64::MAX),
    ] {
        let error = rig.reserve(first, pages).unwrap_err();
        assert!(
            matches!(error, FixedRangeError::Outside { .. }),
            "{first}+{pages}: {error}"
        );
    }
}

#[test]
fn two_spare_bits_there_must_be() {
    let board = |phys_bits, iova_bits: u32| {
        let pages = 1u64 << (iova_bits - 12);
        board_with_heap(config(phys_bits), range(0, pages), 64).map(drop)
    };
    for (phys_bits, iova_bits) in [
        (46, 39),
        (38, 39),
        (47, 48),
        (52, 48),
        (56, 57),
        (u32::MAX, 48),
        (63, 48),
    ] {
        let refused = board(phys_bits, iova_bits).unwrap_err();
        assert_eq!(
            refused,
            AllocatorError::IdentityWidth {
                iova_bits,
                phys_bits
            }
        );
        let text = refused.to_string();
        assert!(text.contains(&iova_bits.to_string()) && text.contains(&phys_bits.to_string()));
    }
    for (phys_bits, iova_bits) in [(37, 39), (46, 48), (52, 57), (12, 14), (0, 14)] {
        board(phys_bits, iova_bits).unwrap();
    }
    for (first, pages) in [(1, 64), (64, 64), (0, 63), (0, 0), (0, u64::MAX)] {
        let aperture = range(first, pages);
        let refused = board_with_heap(config(16), aperture, 64).map(drop);
        assert_eq!(refused, Err(AllocatorError::IdentityAperture { aperture }));
    }
    assert!(board(12, 13).is_err());
}

#[test]
fn threads_share_pages_and_nothing_else_does() {
    let rig = Rig::new(host(config(16), 0, 16), config(16), 0, 64);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let rig = &rig;
            scope.spawn(move || {
                if thread > 0 {
                    register();
                }
                let mut held = Vec::new();
                for step in 0..2000u64 {
                    let perm = PERMS[step as usize % 3];
                    // every fifth is in two places
                    let alloc = match step % 5 {
                        0 => rig.alloc(1),
                        _ => rig.alloc_for(step % 15, 2, perm),
                    };
                    held.extend(alloc);
                    if held.len() > 3 {
                        rig.free(thread as usize, held.swap_remove(step as usize % 4));
                    }
                }
                held.into_iter().for_each(|alloc| rig.free(0, alloc));
            });
        }
    });
    rig.check(0);
    assert_eq!(rig.usage().shared, PageCount(0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// An IOVA gives back its buffer and its use, and so no two of them are one.
    #[test]
    fn an_address_is_told_from_every_other(first in 0u64..1 << 34, pages in 1u64..600, perm in 0usize..3) {
        let rig = Rig::board(config(46), 0, 1 << 36);
        let alloc = rig.alloc_for(first, pages, PERMS[perm]).unwrap();
        let (at, end) = (alloc.range().first.0, first + pages);
        if end > 1 << 34 {
            prop_assert!(alloc.kind() == AllocKind::Dynamic && alloc.range().end().0 <= 1 << 34);
        } else {
            prop_assert_eq!((at >> 34, at & ((1 << 34) - 1)), (perm as u64 + 1, first));
            prop_assert_eq!(alloc.range().pages, PageCount(pages));
        }
        rig.free(0, alloc);
    }
}
