// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Descriptors of the invalidation queue, 128 bits each, decoded from the specification (VT-d 4.1
//! §6.5.2).
//!
//! | type | | |
//! |---|---|---|
//! | 1 | context cache | 5:4 granularity, 31:16 domain, 47:32 source, 49:48 function mask |
//! | 2 | IOTLB | 5:4 granularity, 6 drain writes, 7 drain reads, 31:16 domain; 69:64 address mask, 70 hint, 127:76 page |
//! | 3 | device TLB | 20:16 depth of the device's queue, 47:32 source; 64 size, 127:76 page |
//! | 4 | interrupt entries | 4 granularity, 31:27 index mask, 47:32 index |
//! | 5 | wait | 4 interrupt, 5 write status, 6 fence, 63:32 status; 127:66 address |
//!
//! All other bits are reserved, and all other types are not offered by this unit (no page
//! requests). Of type 3 the PFSID is reserved too (no throttling, ECAP.DIT = 0); the depth does not
//! matter. Whether type 4 is offered depends on the registers, so the queue decides.

use crate::{
    config::Features,
    invalidation::{ContextSelection, Drain, Invalidation, Selection},
};
use ioatlas_dma::{invalidation::Caches, units::*};

/// What a descriptor asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Descriptor {
    Invalidate(Invalidation),
    /// Of cached interrupt-remapping entries: there are none here, so which does not matter.
    InterruptEntries,
    Wait {
        status: Option<(PhysAddr, u32)>,
        interrupt: WaitInterrupt,
    },
}

/// IF of a wait descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitInterrupt {
    Asked,
    NotAsked,
}

/// Not a descriptor that this unit takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// There is no such type.
    Type,
    /// A reserved bit or value.
    Reserved,
}

fn field(word: u64, low: u32, width: u32) -> u64 {
    word >> low & ((1 << width) - 1)
}

pub(crate) fn decode(low: u64, high: u64, f: &Features) -> Result<Descriptor, Refused> {
    // the type's upper bits are 11:9
    match field(low, 9, 3) << 4 | field(low, 0, 4) {
        1 => context(low, high),
        2 => iotlb(low, high, f),
        3 if f.device_tlbs => device_tlb(low, high),
        4 => interrupt_entries(low, high),
        5 => wait(low, high),
        _ => Err(Refused::Type),
    }
}

/// Page numbers of the address field have so many bits.
const PAGE_BITS: u32 = 52;

/// With S set, the lowest 0 of the address ends the size: 2^(n+1) pages above n
/// ones (PCI Express, ATS).
fn device_tlb(low: u64, high: u64) -> Result<Descriptor, Refused> {
    if field(low, 4, 5) | field(low, 12, 4) | field(low, 21, 11) | field(low, 48, 16) != 0
        || field(high, 1, 11) != 0
    {
        return Err(Refused::Reserved);
    }
    let address = field(high, 12, PAGE_BITS);
    let pages_lg2 = match field(high, 0, 1) {
        0 => 0,
        _ => (address.trailing_ones() + 1).min(PAGE_BITS),
    };
    let pages = 1 << pages_lg2;
    Ok(Descriptor::Invalidate(Invalidation::DeviceTlb {
        source: SourceId(field(low, 32, 16) as u16),
        pages: IovaRange::new(IovaPage(address & !(pages - 1)), PageCount(pages)),
    }))
}

/// Whether a descriptor with this low word is an invalidation of the context cache or the IOTLB.
pub(crate) fn invalidates_tables(low: u64) -> bool {
    field(low, 9, 3) == 0 && matches!(field(low, 0, 4), 1 | 2)
}

fn context(low: u64, high: u64) -> Result<Descriptor, Refused> {
    if field(low, 6, 3) | field(low, 12, 4) | field(low, 50, 14) | high != 0 {
        return Err(Refused::Reserved);
    }
    let domain = DomainId(field(low, 16, 16) as u16);
    let selection = match field(low, 4, 2) {
        1 => ContextSelection::Global,
        2 => ContextSelection::Domain(domain),
        3 => ContextSelection::Device {
            domain,
            source: SourceId(field(low, 32, 16) as u16),
            mask: [0, 0b100, 0b110, 0b111][field(low, 48, 2) as usize],
        },
        _ => return Err(Refused::Reserved),
    };
    Ok(Descriptor::Invalidate(Invalidation::Context { selection }))
}

fn iotlb(low: u64, high: u64, f: &Features) -> Result<Descriptor, Refused> {
    if field(low, 8, 1) | field(low, 12, 4) | field(low, 32, 32) | field(high, 7, 5) != 0 {
        return Err(Refused::Reserved);
    }
    let domain = DomainId(field(low, 16, 16) as u16);
    let drain = Drain {
        reads: f.drain_reads && field(low, 7, 1) == 1,
        writes: f.drain_writes && field(low, 6, 1) == 1,
    };
    // the hint counts for page-selective only
    let (selection, caches) = match field(low, 4, 2) {
        1 => (Selection::Global, Caches::LeavesAndWalks),
        2 => (Selection::Domain(domain), Caches::LeavesAndWalks),
        3 => {
            let mask_lg2 = field(high, 0, 6);
            if f.page_selective.is_none_or(|most| mask_lg2 > most.into()) {
                return Err(Refused::Reserved);
            }
            let caches = match field(high, 6, 1) {
                0 => Caches::LeavesAndWalks,
                _ => Caches::Leaves,
            };
            let pages = 1 << mask_lg2;
            let first = IovaPage((high >> 12) & !(pages - 1));
            let range = IovaRange::new(first, PageCount(pages));
            (Selection::Pages(domain, range), caches)
        }
        _ => return Err(Refused::Reserved),
    };
    Ok(Descriptor::Invalidate(Invalidation::Iotlb {
        selection,
        caches,
        drain,
    }))
}

fn interrupt_entries(low: u64, high: u64) -> Result<Descriptor, Refused> {
    if field(low, 5, 4) | field(low, 12, 15) | field(low, 48, 16) | high != 0 {
        return Err(Refused::Reserved);
    }
    Ok(Descriptor::InterruptEntries)
}

fn wait(low: u64, high: u64) -> Result<Descriptor, Refused> {
    // bit 7 would drain page requests
    if field(low, 7, 2) | field(low, 12, 20) | field(high, 0, 2) != 0 {
        return Err(Refused::Reserved);
    }
    let status = (field(low, 5, 1) == 1).then_some((PhysAddr(high), (low >> 32) as u32));
    let interrupt = match field(low, 4, 1) {
        0 => WaitInterrupt::NotAsked,
        _ => WaitInterrupt::Asked,
    };
    Ok(Descriptor::Wait { status, interrupt })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Geometry, UnitConfig};

    fn get(low: u64, high: u64) -> Result<Descriptor, Refused> {
        decode(low, high, &UnitConfig::new(Geometry::VTD_48).features)
    }

    #[test]
    fn iotlb_descriptors_by_hand() {
        let iotlb = |selection, caches, reads, writes| {
            let drain = Drain { reads, writes };
            Ok(Descriptor::Invalidate(Invalidation::Iotlb {
                selection,
                caches,
                drain,
            }))
        };
        let both = Caches::LeavesAndWalks;
        assert_eq!(get(0x12, 0), iotlb(Selection::Global, both, false, false));
        let domain = DomainId(0x0abc);
        assert_eq!(
            get(0x0abc_00e2, 0x40),
            iotlb(Selection::Domain(domain), both, true, true)
        );
        // 8 pages around 0x12345, leaves only; the low bits of the address do not matter
        let range = IovaRange::new(IovaPage(0x12340), PageCount(8));
        let pages = Selection::Pages(domain, range);
        assert_eq!(
            get(0x0abc_00b2, 0x1234_5043),
            iotlb(pages, Caches::Leaves, true, false)
        );
        assert_eq!(
            get(0x0abc_0072, 0x1234_5003),
            iotlb(pages, both, false, true)
        );
    }

    #[test]
    fn context_descriptors_by_hand() {
        let context = |selection| Ok(Descriptor::Invalidate(Invalidation::Context { selection }));
        assert_eq!(get(0x11, 0), context(ContextSelection::Global));
        assert_eq!(
            get(0x0005_0021, 0),
            context(ContextSelection::Domain(DomainId(5)))
        );
        for (fm, mask) in [(0, 0), (1, 4), (2, 6), (3, 7)] {
            let device = ContextSelection::Device {
                domain: DomainId(5),
                source: SourceId(0x0310),
                mask,
            };
            assert_eq!(get(0x0310_0005_0031 | fm << 48, 0), context(device));
        }
    }

    #[test]
    fn device_tlb_descriptors_by_hand() {
        let f = Features {
            device_tlbs: true,
            ..UnitConfig::new(Geometry::VTD_48).features
        };
        let get = |low, high| match decode(low, high, &f) {
            Ok(Descriptor::Invalidate(Invalidation::DeviceTlb { source, pages })) => {
                Ok((source.0, pages.first.0, pages.pages.0))
            }
            Err(refused) => Err(refused),
            other => panic!("{other:?}"),
        };
        let low = 0x0310_0000_0003 | 0x1f << 16;
        for (high, expected) in [
            (0x1234_5000, (0x12345, 1)),
            (0x1234_4001, (0x12344, 2)),
            (0x1234_5001, (0x12344, 4)),
            (0x1234_3001, (0x12340, 8)),
            (0x0fff_f001, (0, 0x20000)),
            (0x7fff_ffff_ffff_f001, (0, 1 << 52)),
            (0xffff_ffff_ffff_f001, (0, 1 << 52)),
        ] {
            assert_eq!(get(low, high), Ok((0x310, expected.0, expected.1)));
        }
        for bit in (4..9).chain(12..16).chain(21..32).chain(48..64) {
            assert_eq!(get(low | 1 << bit, 0), Err(Refused::Reserved), "bit {bit}");
        }
        for bit in 1..12 {
            assert_eq!(get(low, 1 << bit), Err(Refused::Reserved));
        }
    }

    #[test]
    fn wait_descriptors_by_hand() {
        let status = Some((PhysAddr(0x9_0004), 7));
        let wait = |status, interrupt| Ok(Descriptor::Wait { status, interrupt });
        let not_asked = wait(status, WaitInterrupt::NotAsked);
        assert_eq!(get(0x7_0000_0025, 0x9_0004), not_asked);
        assert_eq!(get(0x7_0000_0065, 0x9_0004), not_asked, "a fence");
        let asked = wait(None, WaitInterrupt::Asked);
        assert_eq!(get(0x15, 0), asked, "an interrupt only");
        let both = wait(status, WaitInterrupt::Asked);
        assert_eq!(get(0x7_0000_0035, 0x9_0004), both);
    }

    #[test]
    fn reserved_bits_types_and_granularities_are_refused() {
        for kind in 0..128 {
            // a granularity, or a status to be written
            let low = (kind & 15) | (kind >> 4) << 9 | if kind == 4 { 1 } else { 2 } << 4;
            assert_eq!(
                get(low, 0).is_ok(),
                [1, 2, 4, 5].contains(&kind),
                "type {kind}"
            );
        }
        assert_eq!(get(0x01, 0), Err(Refused::Reserved));
        assert_eq!(get(0x02, 0), Err(Refused::Reserved));
        let check = |low, high, reserved_low: &[u32], reserved_high: &[u32]| {
            assert!(get(low, high).is_ok());
            for bit in 0..64 {
                if reserved_low.contains(&bit) {
                    let refused = match bit {
                        9..12 => Refused::Type, // belongs to it
                        _ => Refused::Reserved,
                    };
                    assert_eq!(get(low | 1 << bit, high), Err(refused), "{low:x} bit {bit}");
                }
                if reserved_high.contains(&bit) {
                    assert_eq!(
                        get(low, high | 1 << bit),
                        Err(Refused::Reserved),
                        "{low:x} bit {}",
                        bit + 64
                    );
                }
            }
        };
        let range =
            |a: core::ops::Range<u32>, b: core::ops::Range<u32>| a.chain(b).collect::<Vec<_>>();
        check(0x11, 0, &range(6..16, 50..64), &range(0..64, 0..0));
        check(0x32, 0, &range(8..16, 32..64), &range(7..12, 0..0));
        check(0x14, 0, &range(5..9, 12..27), &range(0..64, 0..0));
        check(0x14, 0, &range(48..64, 0..0), &[]);
        check(0x25, 0, &range(7..32, 0..0), &range(0..2, 0..0));
    }

    #[test]
    fn page_selective_is_bounded_by_what_is_offered() {
        let mut f = UnitConfig::new(Geometry::VTD_48).features;
        f.page_selective = Some(4);
        assert!(decode(0x32, 4, &f).is_ok());
        assert_eq!(decode(0x32, 5, &f), Err(Refused::Reserved));
        f.page_selective = None;
        assert_eq!(decode(0x32, 0, &f), Err(Refused::Reserved));
        assert!(decode(0x22, 0, &f).is_ok());
    }

    #[test]
    fn drain_bits_count_only_where_offered() {
        let mut f = UnitConfig::new(Geometry::VTD_48).features;
        (f.drain_reads, f.drain_writes) = (false, true);
        let Ok(Descriptor::Invalidate(Invalidation::Iotlb { drain, .. })) = decode(0xd2, 0, &f)
        else {
            panic!("refused");
        };
        assert_eq!((drain.reads, drain.writes), (false, true));
    }
}
