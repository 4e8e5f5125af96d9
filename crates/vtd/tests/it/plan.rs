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

/// What several ranges of pages call for: of the IOTLB and of these devices, or `None` where that
/// is the whole domain.
fn blocks(
    unit: &Capabilities,
    ranges: &[IovaRange],
    caches: Caches,
    devices: &[AtsDevice],
) -> Option<Vec<Invalidation>> {
    let blocks = Blocks::around(unit, &InvalidationCosts::ASSUMED, ranges)?;
    let plan = blocks.plan(unit, ID, caches, devices);
    Some(plan.invalidations().collect())
}

fn iotlb_of(invalidation: &Invalidation) -> Option<IotlbInvalidate> {
    match invalidation {
        Invalidation::Iotlb(iotlb) => Some(*iotlb),
        _ => None,
    }
}

proptest! {
    #[test]
    fn blocks_cover_every_range_and_none_covers_another(
        psi: bool, mamv in 0u64..20, walks: bool, drd: bool, from in 0u64..1 << 40,
        apart in prop::collection::vec((1u64..70, 1u64..40), 1..24),
    ) {
        let unit = unit(psi, mamv, true, drd);
        let mut next = from;
        let ranges: Vec<IovaRange> = apart.iter().map(|(gap, pages)| {
            let first = next + gap;
            next = first + pages;
            range(first, *pages)
        }).collect();
        let caches = if walks { Caches::LeavesAndWalks } else { Caches::Leaves };
        // a block for each, without those that others contain, found by trying
        let mut alone: Vec<(u64, u32)> = ranges.iter().map(|r| {
            let lg2 = smallest(r.first.0, r.end().0 - 1);
            (r.first.0 >> lg2 << lg2, lg2)
        }).collect();
        alone.dedup();
        let inside = |a: &(u64, u32), b: &(u64, u32)| a != b && a.1 <= b.1 && a.0 >> b.1 == b.0 >> b.1;
        let all = alone.clone();
        alone.retain(|one| !all.iter().any(|other| inside(one, other)));
        alone.dedup();
        let nameable = psi && all.iter().all(|(_, lg2)| u64::from(*lg2) <= mamv);
        match blocks(&unit, &ranges, caches, &[]) {
            None => prop_assert!(!nameable || alone.len() > 8, "{alone:?}"),
            Some(planned) => {
                prop_assert!(nameable && alone.len() <= 8, "{alone:?}");
                let planned: Vec<IotlbInvalidate> = planned.iter().filter_map(iotlb_of).collect();
                let removes: Vec<(u128, u128)> = planned.iter().map(|one| removed(*one)).collect();
                let wanted: Vec<(u128, u128)> = alone.iter().map(|(first, lg2)| {
                    (u128::from(*first), u128::from(first + (1 << lg2)))
                }).collect();
                prop_assert_eq!(&removes, &wanted);
                for range in &ranges {
                    let (first, end) = (u128::from(range.first.0), u128::from(range.end().0));
                    let covered = removes.iter().any(|(from, to)| *from <= first && end <= *to);
                    prop_assert!(covered, "P1: {range} stays cached");
                }
                for words in planned.iter().map(|one| one.encode()) {
                    prop_assert_eq!(words.low >> 16 & 0xffff, 7, "domain");
                    prop_assert_eq!(words.low & 0x40 != 0, true);
                    prop_assert_eq!(words.low & 0x80 != 0, drd);
                    prop_assert_eq!(words.high & 0x40 != 0, !walks, "P4: IH only for leaves");
                }
            }
        }
    }
}

#[test]
fn a_block_for_each_range_is_planned_while_that_costs_no_more_than_the_domain() {
    let costs = |descriptor, pages, domain| InvalidationCosts {
        descriptor,
        pages,
        domain,
    };
    let most = |costs: InvalidationCosts| (0..100).rfind(|count| costs.prefer_pages(*count));
    assert_eq!(most(InvalidationCosts::ASSUMED), Some(8));
    assert_eq!(most(costs(100, 1000, 1000)), Some(1));
    assert_eq!(most(costs(100, 1000, 2000)), Some(1));
    assert_eq!(most(costs(100, 1000, 2100)), Some(2));
    assert_eq!(most(costs(0, 0, 0)), Some(99), "nothing costs anything");
    assert_eq!(most(costs(1, 1, 0)), Some(0));
    let dear = costs(u32::MAX, u32::MAX, u32::MAX);
    assert!(dear.prefer_pages(1) && !dear.prefer_pages(usize::MAX));
    // however dear the domain is, more than these do not go into a submission
    let unit = unit(true, 9, true, true);
    let never = costs(1, 1, u32::MAX);
    let pages: Vec<_> = (0..=BLOCKS as u64).map(|n| range(2 * n, 1)).collect();
    assert!(Blocks::around(&unit, &never, &pages[..BLOCKS]).is_some());
    assert_eq!(Blocks::around(&unit, &never, &pages), None);
    assert_eq!(Blocks::around(&unit, &never, &[]), None, "of no pages: all");
}

#[test]
fn one_chunk_is_one_block_and_what_it_is_not_aligned_to_is_larger() {
    let unit = unit(true, 9, true, true);
    let only = |ranges: &[IovaRange]| {
        let blocks = Blocks::around(&unit, &InvalidationCosts::ASSUMED, ranges);
        blocks.and_then(|blocks| blocks.only())
    };
    assert_eq!(only(&[range(64, 64)]), Some(range(64, 64)));
    assert_eq!(only(&[range(65, 3)]), Some(range(64, 4)));
    // the block of the second contains the first
    assert_eq!(only(&[range(64, 1), range(66, 3)]), Some(range(64, 8)));
    assert_eq!(only(&[range(63, 2), range(70, 2)]), Some(range(0, 128)));
    assert_eq!(only(&[range(64, 1), range(66, 1)]), None, "they are two");
}

#[test]
fn the_iotlb_goes_before_every_device_whose_blocks_are_the_same_as_long_as_there_is_room() {
    let unit = unit(true, 9, false, false);
    let ranges = [range(0x10, 1), range(0x20, 2), range(0x40, 1)];
    let devices: Vec<_> = (1..=9).map(|sid| device(sid, 1)).collect();
    let of = |count: usize| {
        let planned = blocks(&unit, &ranges, Caches::Leaves, &devices[..count]);
        planned.expect("few ranges")
    };
    let alone = of(0);
    assert_eq!(alone.len(), 3);
    for (count, of_each) in [(1, 3), (9, 3)] {
        let planned = of(count);
        assert_eq!(planned[..3], alone[..], "the IOTLB first");
        assert_eq!(planned.len(), 3 + count * of_each);
        let of_device = |n: usize| &planned[3 + n * of_each..][..of_each];
        for (nth, device) in devices[..count].iter().enumerate() {
            for (range, planned) in ranges.iter().zip(of_device(nth)) {
                let mask = AddressMask::new(range.pages.0.trailing_zeros()).expect("small");
                let pages = DevicePages::Block {
                    first: range.first,
                    mask,
                };
                let wanted = DeviceTlbInvalidate {
                    device: device.device,
                    depth: device.depth,
                    pages,
                };
                assert_eq!(*planned, Invalidation::DeviceTlb(wanted));
            }
        }
    }
    // 8 blocks of 4 devices are too many for one submission: of each, all
    let pages: Vec<_> = (0..8).map(|n| range(2 * n, 1)).collect();
    let planned = blocks(&unit, &pages, Caches::Leaves, &devices[..4]).expect("few ranges");
    assert_eq!(planned.len(), 8 + 4);
    let everything = 0x7fff_ffff_ffff_f001;
    let of_devices = planned[8..].iter().map(|one| one.encode().high);
    assert_eq!(of_devices.collect::<Vec<_>>(), [everything; 4]);
    // the rest of the devices, by another submission
    let some = Blocks::around(&unit, &InvalidationCosts::ASSUMED, &ranges).expect("few ranges");
    let plan = some.plan(&unit, ID, Caches::Leaves, &devices[..1]);
    let rest = plan.devices_only(&devices[1..3]).invalidations();
    assert_eq!(rest.collect::<Vec<_>>(), of(3)[6..]);
}
