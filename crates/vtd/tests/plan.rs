// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The planned invalidation removes at least what was asked, and no more than it must.

use ioatlas_dma::grace::{Caches, Scope};
use ioatlas_dma::units::{DomainId, IovaPage, IovaRange, PageCount};
use ioatlas_vtd::layout::*;
use ioatlas_vtd::plan::{everything, plan};
use proptest::prelude::*;

const ID: DomainId = DomainId(7);

fn unit(psi: bool, mamv: u64, dwd: bool, drd: bool) -> Capabilities {
    let cap = u64::from(psi) << 39 | mamv << 48 | u64::from(dwd) << 54 | u64::from(drd) << 55;
    Capabilities::new(cap, 0)
}

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}

/// The pages that the unit removes for `planned`: half open, by its 128 bits, not by our types.
fn removed(planned: IotlbInvalidate) -> (u128, u128) {
    let words = planned.encode();
    assert_eq!(words.low & 0xf, 2, "an IOTLB invalidation");
    match words.low >> 4 & 3 {
        1 | 2 => (0, 1 << 64),
        3 => {
            let pages = 1u128 << (words.high & 0x3f);
            let first = u128::from(words.high >> 12) / pages * pages;
            assert_eq!(first, u128::from(words.high >> 12), "address aligned");
            (first, first + pages)
        }
        _ => panic!("reserved granularity"),
    }
}

/// Log2 of the smallest aligned block, found by trying.
fn smallest(first: u64, last: u64) -> u32 {
    (0..64).find(|s| first >> s == last >> s).unwrap()
}

proptest! {
    #[test]
    fn the_planned_invalidation_covers_the_scope_and_no_smaller_one_does(
        psi: bool, mamv in 0u64..64, dwd: bool, drd: bool, walks: bool,
        first_bits in 0u32..52, first: u64, pages_bits in 0u32..40, pages: u64,
    ) {
        let unit = unit(psi, mamv, dwd, drd);
        let first = first & ((1 << first_bits) - 1);
        let pages = (pages & ((1 << pages_bits) - 1)).max(1);
        let range = range(first, pages);
        let scope = if walks { Scope::tables(range) } else { Scope::leaves(range) };
        let planned = plan(&unit, ID, scope);
        let (from, to) = removed(planned);
        prop_assert!(from <= u128::from(first) && u128::from(first) + u128::from(pages) <= to);
        let words = planned.encode();
        prop_assert_eq!(words.low >> 16 & 0xffff, 7, "domain");
        prop_assert_eq!(words.low & 0x40 != 0, dwd);
        prop_assert_eq!(words.low & 0x80 != 0, drd);
        let last = first + pages - 1;
        let block = smallest(first, last);
        let selective = psi && u64::from(block) <= mamv && last >> 52 == 0;
        prop_assert_eq!(words.low >> 4 & 3, if selective { 3 } else { 2 });
        if selective {
            prop_assert_eq!(words.high & 0x3f, u64::from(block));
            prop_assert_eq!(words.high & 0x40 != 0, !walks, "IH only where leaves alone changed");
        } else {
            prop_assert_eq!(words.high, 0);
        }
    }

    #[test]
    fn no_range_whatever_panics(mamv in 0u64..64, first: u64, pages: u64) {
        let scope = Scope::tables(range(first, pages));
        let (from, to) = removed(plan(&unit(true, mamv, true, true), ID, scope));
        let end = u128::from(first) + u128::from(pages);
        prop_assert!(from <= u128::from(first) && end.min(1 << 64) <= to);
    }
}

/// By the largest mask: whatever fits it is page-selective, the next larger is not.
#[test]
fn the_largest_mask_is_used_and_not_exceeded() {
    for mamv in 0..40 {
        let unit = unit(true, mamv, true, true);
        let fits = plan(&unit, ID, Scope::leaves(range(0, 1 << mamv)));
        let too_large = plan(&unit, ID, Scope::leaves(range(0, (1 << mamv) + 1)));
        assert_eq!(removed(fits), (0, 1 << mamv));
        assert_eq!(too_large.target, IotlbTarget::Domain(ID), "MAMV {mamv}");
    }
}

#[test]
fn the_whole_domain_and_everything_are_what_they_say() {
    let unit = unit(true, 63, true, false);
    for caches in [Caches::Leaves, Caches::LeavesAndWalks] {
        let scope = Scope {
            pages: None,
            caches,
        };
        assert_eq!(plan(&unit, ID, scope).target, IotlbTarget::Domain(ID));
    }
    let all = everything(&unit);
    assert_eq!(all.target, IotlbTarget::Global);
    assert_eq!(all.drain, Drain::WRITES);
}
