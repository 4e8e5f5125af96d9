// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is planned, a test a row of its table; and of the IOTLB, that it removes at least what was
//! asked and no more than it must.

use ioatlas_dma::invalidation::{Caches, Scope};
use ioatlas_dma::units::{DomainId, IovaPage, IovaRange, PageCount, SourceId};
use ioatlas_vtd::layout::*;
use ioatlas_vtd::plan::*;
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
        let planned = iotlb(&unit, ID, scope);
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
        let (from, to) = removed(iotlb(&unit(true, mamv, true, true), ID, scope));
        let end = u128::from(first) + u128::from(pages);
        prop_assert!(from <= u128::from(first) && end.min(1 << 64) <= to);
    }
}

/// By the largest mask: whatever fits it is page-selective, the next larger is not.
#[test]
fn the_largest_mask_is_used_and_not_exceeded() {
    for mamv in 0..40 {
        let unit = unit(true, mamv, true, true);
        let fits = iotlb(&unit, ID, Scope::leaves(range(0, 1 << mamv)));
        let too_large = iotlb(&unit, ID, Scope::leaves(range(0, (1 << mamv) + 1)));
        assert_eq!(removed(fits), (0, 1 << mamv));
        assert_eq!(too_large.target, IotlbTarget::Domain(ID), "MAMV {mamv}");
    }
}

#[test]
fn the_whole_domain_is_domain_selective() {
    let unit = unit(true, 63, true, false);
    for caches in [Caches::Leaves, Caches::LeavesAndWalks] {
        let scope = Scope {
            pages: None,
            caches,
        };
        assert_eq!(iotlb(&unit, ID, scope).target, IotlbTarget::Domain(ID));
    }
}

const RWBF: u64 = 1 << 4;
const CM: u64 = 1 << 7;
const DRAINS_WRITES: u64 = 1 << 54;
const ESRTPS: u64 = 1 << 63;
const NIC: SourceId = SourceId(0x0020);

/// What is planned, by its bits: one number says that write buffers are flushed.
fn rows(cap: u64, change: Change, devices: &[AtsDevice]) -> (WriteBuffers, Vec<(u64, u64)>) {
    let unit = Capabilities::new(cap, 0);
    let plan = plan(&unit, change, devices);
    let words = plan.invalidations().map(Invalidation::encode);
    let words = words.map(|w| (w.low, w.high)).collect();
    (plan.write_buffers, words)
}

fn device(sid: u16, depth: u16) -> AtsDevice {
    AtsDevice {
        device: SourceId(sid),
        depth: QueueDepth::from_capability(depth),
    }
}

const PAGES: Change = Change::Translations {
    domain: ID,
    scope: Scope::leaves(IovaRange {
        first: IovaPage(0x12),
        pages: PageCount(3),
    }),
};
const REMOVED: Change = Change::ContextRemoved {
    device: NIC,
    domain: ID,
};
const MADE: Change = Change::ContextMade {
    device: NIC,
    domain: ID,
};

#[test]
fn translations_are_flushed_from_the_iotlb_and_then_from_each_device() {
    let psi = 1 << 39 | 9 << 48;
    assert_eq!(rows(psi, PAGES, &[]).1, [(0x7_0032, 0x1_0043)]);
    let devices = [device(0x20, 1), device(0x200, 0)];
    let all = rows(psi, PAGES, &devices).1;
    // 8 pages from 0x10: the size is told by bits 12 and 13 being 1 and bit 14 being 0
    let block = 0x1_3001;
    let want = [
        (0x7_0032, 0x1_0043),
        (0x20_0001_0003, block),
        (0x200_0000_0003, block),
    ];
    assert_eq!(all, want);
    // devices know no MAMV and no PSI
    let coarse = rows(0, PAGES, &devices).1;
    assert_eq!(coarse[0], (0x7_0022, 0));
    assert_eq!(coarse[1..], want[1..]);
    let domain = Change::Translations {
        domain: ID,
        scope: Scope::DOMAIN,
    };
    let everything = 0x7fff_ffff_ffff_f001;
    assert_eq!(rows(psi, domain, &devices).1[2].1, everything);
}

#[test]
fn a_removed_context_entry_is_flushed_by_its_domain_id_then_the_iotlb_then_its_device() {
    let plain = [(0x20_0007_0031, 0), (0x7_0022, 0)];
    assert_eq!(rows(0, REMOVED, &[]).1, plain);
    let own = rows(CM, REMOVED, &[device(0x20, 4)]).1;
    assert_eq!(own[..2], plain);
    assert_eq!(own[2], (0x20_0004_0003, 0x7fff_ffff_ffff_f001));
    assert_eq!(own.len(), 3);
}

#[test]
fn a_made_context_entry_is_flushed_under_caching_mode_alone_by_id_0() {
    assert_eq!(rows(0, MADE, &[]).1, []);
    let flushed = [(0x20_0000_0031, 0), (0x7_0022, 0)];
    assert_eq!(rows(CM, MADE, &[]).1, flushed);
    assert_eq!(rows(CM, MADE, &[device(0x20, 4)]).1, flushed, "it is new");
}

#[test]
fn a_new_root_table_flushes_everything_unless_the_unit_does() {
    let everything = [(0x11, 0), (0x52, 0)];
    assert_eq!(rows(DRAINS_WRITES, Change::RootTable, &[]).1, everything);
    assert_eq!(rows(ESRTPS, Change::RootTable, &[]).1, []);
    let at_the_end = rows(ESRTPS | DRAINS_WRITES, Change::Everything, &[]).1;
    assert_eq!(at_the_end, everything);
}

#[test]
fn write_buffers_are_flushed_before_every_row_where_the_unit_has_them() {
    for change in [PAGES, REMOVED, MADE, Change::RootTable, Change::Everything] {
        assert_eq!(rows(RWBF, change, &[]).0, WriteBuffers::Flush, "{change:?}");
        let without = !RWBF;
        assert_eq!(rows(without, change, &[]).0, WriteBuffers::Leave);
    }
}

#[test]
fn the_rest_of_many_devices_is_device_tlbs_of_the_same_pages_alone() {
    let devices = [device(1, 1), device(2, 1)];
    let unit = Capabilities::new(RWBF, 0);
    let whole = plan(&unit, PAGES, &devices);
    let rest = whole.devices_only(&devices[1..]);
    assert_eq!(rest.write_buffers, WriteBuffers::Leave);
    let rest: Vec<_> = rest.invalidations().collect();
    assert_eq!(rest[..], whole.invalidations().collect::<Vec<_>>()[2..]);
}
