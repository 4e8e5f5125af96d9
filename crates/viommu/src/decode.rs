// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the words in memory mean, decoded here from the specification and shared with no driver:
//! one wrong bit is then not wrong twice.
//!
//! Bit positions are those of VT-d 4.1 §9.1 (root entry), §9.3 (context entry) and §9.8
//! (second-stage entries).

use crate::{
    config::{Features, Geometry},
    fault::FaultReason,
};
use ioatlas_dma::units::*;

/// A set of rights, which narrows on the way down a walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rights(u8);

impl Rights {
    pub(crate) const ALL: Rights = Rights(0b11);

    pub(crate) fn and(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
    pub(crate) fn allow(self, kind: AccessKind) -> bool {
        let bit = match kind {
            AccessKind::Read => 0b01,
            AccessKind::Write => 0b10,
        };
        self.0 & bit != 0
    }
    pub(crate) fn perm(self) -> Option<Perm> {
        match self.0 {
            0b01 => Some(Perm::Read),
            0b10 => Some(Perm::Write),
            0b11 => Some(Perm::ReadWrite),
            _ => None,
        }
    }
}

/// What a device is attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// Second-stage tables (TT = 00b).
    Tables(PhysPage),
    /// The same, and the device may ask for translations and use them (TT = 01b).
    TablesAndDeviceTlb(PhysPage),
    /// Untranslated requests pass (TT = 10b).
    PassThrough,
}

impl Attachment {
    /// The root of the second-stage tables.
    pub(crate) fn tables(self) -> Option<PhysPage> {
        match self {
            Attachment::Tables(root) | Attachment::TablesAndDeviceTlb(root) => Some(root),
            Attachment::PassThrough => None,
        }
    }
}

/// A context entry that is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Context {
    pub(crate) domain: DomainId,
    pub(crate) attachment: Attachment,
    /// Faults are not to be recorded (FPD).
    pub(crate) silent: bool,
}

/// Why a context entry is not good; `silent` if the entry says that faults are not
/// to be recorded (FPD).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadContext {
    pub(crate) reason: FaultReason,
    pub(crate) silent: bool,
}

/// Where a second-stage entry leads, and with which rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pointer {
    pub(crate) to: PhysPage,
    pub(crate) rights: Rights,
}

/// A second-stage entry that permits something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// To the next table.
    Table(Pointer),
    /// To the page, or to the first page of a large leaf.
    Leaf(Pointer),
}

/// The mask of bits `low..=high`.
const fn bits(low: u32, high: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

/// Address bits that this unit's memory cannot have.
fn beyond(features: &Features) -> u64 {
    bits(12, 63) & !bits(12, features.phys_bits - 1)
}

fn frame(word: u64) -> PhysPage {
    PhysPage((word & bits(12, 51)) >> 12)
}

/// The context table that a root entry names.
pub(crate) fn root_entry(low: u64, high: u64, f: &Features) -> Result<PhysPage, FaultReason> {
    if low & 1 == 0 {
        return Err(FaultReason::RootNotPresent);
    }
    if low & (bits(1, 11) | beyond(f)) != 0 || high != 0 {
        return Err(FaultReason::RootReserved);
    }
    Ok(frame(low))
}

/// What a context entry says.
pub(crate) fn context_entry(
    low: u64,
    high: u64,
    geometry: Geometry,
    f: &Features,
) -> Result<Context, BadContext> {
    let silent = low & 2 != 0;
    let bad = |reason| BadContext { reason, silent };
    if low & 1 == 0 {
        return Err(bad(FaultReason::ContextNotPresent));
    }
    // 66:64 AW, 70:67 free for software, 71 reserved, 87:72 DID, above reserved
    if low & (bits(4, 11) | beyond(f)) != 0 || high & (bits(7, 7) | bits(24, 63)) != 0 {
        return Err(bad(FaultReason::ContextReserved));
    }
    let domain = DomainId((high >> 8) as u16);
    let width_fits = geometry.entries_lg2 != 9 || (high & 7) + 2 == u64::from(geometry.levels);
    let domain_fits = u32::from(domain.0) < 1 << (4 + 2 * u32::from(f.nd));
    let attachment = match low >> 2 & 3 {
        0b00 => Attachment::Tables(frame(low)),
        0b01 if f.device_tlbs => Attachment::TablesAndDeviceTlb(frame(low)),
        0b10 if f.pass_through => Attachment::PassThrough,
        _ => return Err(bad(FaultReason::ContextInvalid)),
    };
    if !width_fits || !domain_fits {
        return Err(bad(FaultReason::ContextInvalid));
    }
    Ok(Context {
        domain,
        attachment,
        silent,
    })
}

/// What a second-stage entry found at `level` says to an access of `kind`.
/// Neither right: not present.
pub(crate) fn second_stage(
    word: u64,
    level: u32,
    kind: AccessKind,
    geometry: Geometry,
    f: &Features,
) -> Result<Entry, FaultReason> {
    let rights = Rights(word as u8 & 0b11);
    if rights.perm().is_none() {
        return Err(FaultReason::NotPresent { kind, level });
    }
    let size = if level > 1 { bits(7, 7) } else { 0 };
    let large = level <= f.largest_leaf && word & size != 0;
    // a large leaf is aligned to its size; a page has no bits below its address
    let offset = match geometry.leaf_span_lg2(level) {
        span if large && span > 0 => bits(GRANULE_LG2, GRANULE_LG2 + span - 1),
        _ => 0,
    };
    let size = if large { 0 } else { size };
    // no snoop control (SC = 0); transient mappings (TM, 62) mean nothing here, but come with
    // device TLBs, in leaves
    let transient = if f.device_tlbs && (level == 1 || large) {
        0
    } else {
        bits(62, 62)
    };
    let reserved = size | offset | bits(11, 11) | transient | (beyond(f) & bits(12, 51));
    if word & reserved != 0 {
        return Err(FaultReason::EntryReserved { level });
    }
    let to = frame(word);
    let pointer = Pointer { to, rights };
    Ok(match level == 1 || large {
        true => Entry::Leaf(pointer),
        false => Entry::Table(pointer),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UnitConfig;

    fn features() -> Features {
        Features {
            phys_bits: 40,
            ..UnitConfig::new(Geometry::VTD_48).features
        }
    }
    fn context(low: u64, high: u64) -> Result<Context, FaultReason> {
        context_entry(low, high, Geometry::VTD_48, &features()).map_err(|bad| bad.reason)
    }

    #[test]
    fn bit_ranges_are_inclusive() {
        assert_eq!(bits(0, 63), u64::MAX);
        assert_eq!(bits(12, 12), 0x1000);
        assert_eq!(bits(4, 11), 0xff0);
    }

    #[test]
    fn every_reserved_bit_of_a_root_entry_faults() {
        let f = features();
        assert_eq!(root_entry(0x5001, 0, &f), Ok(PhysPage(5)));
        assert_eq!(root_entry(0x5000, 0, &f), Err(FaultReason::RootNotPresent));
        for bit in (1..12).chain(40..64) {
            let low = 0x5001 | 1 << bit;
            assert_eq!(
                root_entry(low, 0, &f),
                Err(FaultReason::RootReserved),
                "{bit}"
            );
        }
        for bit in 0..64 {
            assert_eq!(
                root_entry(0x5001, 1 << bit, &f),
                Err(FaultReason::RootReserved)
            );
        }
    }

    #[test]
    fn a_context_entry_by_hand() {
        // domain 0x1234, 48-bit, tables at page 7
        let good = Ok(Context {
            domain: DomainId(0x1234),
            attachment: Attachment::Tables(PhysPage(7)),
            silent: false,
        });
        assert_eq!(context(0x7001, 0x12_3402), good);
        assert_eq!(context(0x7001, 0x12_347a), good, "70:67 are software's");
        assert_eq!(
            context(0x7000, 0x12_3402),
            Err(FaultReason::ContextNotPresent)
        );
        for aw in [0, 1, 3, 4, 5, 6, 7] {
            assert_eq!(
                context(0x7001, 0x12_3400 | aw),
                Err(FaultReason::ContextInvalid)
            );
        }
        for tt in [1, 2, 3] {
            let low = 0x7001 | tt << 2;
            assert_eq!(context(low, 0x12_3402), Err(FaultReason::ContextInvalid));
        }
        for bit in (4..12).chain(40..64) {
            let low = 0x7001 | 1 << bit;
            assert_eq!(context(low, 0x12_3402), Err(FaultReason::ContextReserved));
        }
        for bit in core::iter::once(7).chain(24..64) {
            let high = 0x12_3402 | 1 << bit;
            assert_eq!(context(0x7001, high), Err(FaultReason::ContextReserved));
        }
    }

    #[test]
    fn device_tlbs_where_offered() {
        let f = Features {
            device_tlbs: true,
            ..features()
        };
        let context = context_entry(0x7005, 0x12_3402, Geometry::VTD_48, &f);
        let attachment = context.map(|context| context.attachment);
        assert_eq!(attachment, Ok(Attachment::TablesAndDeviceTlb(PhysPage(7))));
        for (level, word, good) in [(1, 0x9003, true), (2, 0x9003, false)] {
            let word = word | 1 << 62;
            let entry = second_stage(word, level, AccessKind::Read, Geometry::VTD_48, &f);
            assert_eq!(entry.is_ok(), good, "transient at level {level}");
        }
    }

    #[test]
    fn a_domain_id_beyond_nd_and_silence() {
        let f = Features {
            nd: 0,
            ..features()
        };
        let got = context_entry(0x7003, 0x10 << 8 | 2, Geometry::VTD_48, &f).unwrap_err();
        assert_eq!(
            (got.reason, got.silent),
            (FaultReason::ContextInvalid, true)
        );
        assert!(context_entry(0x7001, 0xf << 8 | 2, Geometry::VTD_48, &f).is_ok());
    }

    #[test]
    fn second_stage_bits_are_taken_or_fault_or_are_ignored() {
        let f = features();
        let get = |word, level| {
            let entry = second_stage(word, level, AccessKind::Read, Geometry::VTD_48, &f);
            entry.map(|entry| match (entry, level) {
                (Entry::Leaf(pointer), 1) | (Entry::Table(pointer), 2..) => pointer,
                other => panic!("{other:?}"),
            })
        };
        for level in 1..=4 {
            for bit in 0..64 {
                let got = get(0x9003 ^ 1 << bit, level);
                let reserved =
                    bit == 11 || bit == 62 || (40..52).contains(&bit) || (bit == 7 && level > 1);
                match bit {
                    0 | 1 => assert_eq!(got.unwrap().rights.0, 0b11 ^ 1 << bit),
                    12..40 => assert_eq!(got.unwrap().to.0, 9 ^ 1 << (bit - 12)),
                    _ if reserved => assert_eq!(got, Err(FaultReason::EntryReserved { level })),
                    _ => assert_eq!(got.unwrap().to, PhysPage(9), "bit {bit} is ignored"),
                }
            }
            let absent = FaultReason::NotPresent {
                kind: AccessKind::Read,
                level,
            };
            assert_eq!(
                get(0x9000 | 1 << 62, level),
                Err(absent),
                "reserved bits of an absent entry do not matter"
            );
        }
    }

    #[test]
    fn large_leaves_where_they_are_offered_and_aligned() {
        for largest_leaf in 1..=3 {
            let f = Features {
                largest_leaf,
                ..features()
            };
            for (geometry, level) in [(Geometry::VTD_48, 2), (Geometry::VTD_48, 3)]
                .into_iter()
                .chain([(Geometry::VTD_57, 4), (Geometry::VTD_57, 5)])
            {
                let get = |word| second_stage(word, level, AccessKind::Read, geometry, &f);
                let reserved = Err(FaultReason::EntryReserved { level });
                let first = 1 << (9 * (level - 1));
                let word = first << 12 | 0x83;
                if level > largest_leaf {
                    assert_eq!(get(word), reserved, "level {level} of {largest_leaf}");
                    continue;
                }
                let (to, rights) = (PhysPage(first), Rights::ALL);
                assert_eq!(get(word), Ok(Entry::Leaf(Pointer { to, rights })));
                for bit in 12..12 + 9 * (level - 1) {
                    assert_eq!(get(word | 1 << bit), reserved, "level {level} bit {bit}");
                }
                let Ok(Entry::Table(table)) = get(word & !0x80 | 1 << 12) else {
                    panic!("a table at level {level}");
                };
                assert_eq!(table.to, PhysPage(first + 1));
            }
        }
    }
}
