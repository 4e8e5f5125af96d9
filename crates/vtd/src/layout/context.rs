// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The context entry of legacy mode (VT-d 4.1 §9.3): one a device and function, 256 in a context
//! table.
//!
//! | bits | |
//! |---|---|
//! | 0 | P, present |
//! | 1 | FPD, faults of this device are not recorded |
//! | 3..2 | TT, translation type |
//! | 63..12 | SSPTPTR (formerly SLPTPTR), the root of the second-stage table |
//! | 66..64 | AW, address width |
//! | 70..67 | ignored by hardware: bit 67 is our mark "detaching", bit 68 is "fenced" |
//! | 87..72 | DID, domain id |
//! | others | 0 |
//!
//! An entry that is not present still names its owner: between the moment its present bit is
//! cleared and the end of the invalidation that follows, it is marked *detaching*, and must not be
//! filled. One marked *fenced* may not be filled before the host says so.

use super::{AddressWidth, Words};
use ioatlas_dma::units::{DomainId, GRANULE, PHYS_BITS, PhysPage};

/// P (§9.3, bit 0).
pub const PRESENT: u64 = 1 << 0;
/// FPD (§9.3, bit 1).
pub(crate) const FAULTS_OFF: u64 = 1 << 1;
/// TT begins here (§9.3, bits 3..2).
pub(crate) const TRANSLATION_SHIFT: u32 = 2;
/// SSPTPTR, without what lies above the physical address width (§9.3, bits 63..12).
pub const TABLE: u64 = ((1 << PHYS_BITS) - 1) & !(GRANULE - 1);
/// AW in the high word (§9.3, bits 66..64).
pub const WIDTH: u64 = 0b111;
/// Our mark in the high word, in a bit that hardware ignores (§9.3, bit 67).
pub(crate) const DETACHING: u64 = 1 << 3;
/// Our mark in the high word of a device that may not be attached, in a bit that hardware
/// ignores (§9.3, bit 68).
pub(crate) const FENCED: u64 = 1 << 4;
/// DID begins here in the high word (§9.3, bits 87..72).
pub(crate) const DOMAIN_SHIFT: u32 = 8;

/// What happens to a device's requests (VT-d 4.1 §9.3, TT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TranslationType {
    /// Untranslated requests go through the second-stage table; all others are blocked.
    Untranslated = 0,
    /// As before, and the device may keep translations of its own (needs ECAP.DT).
    DeviceTlb = 1,
    /// Requests go through as they are (needs ECAP.PT).
    PassThrough = 2,
}

/// Whether faults of a device are recorded (VT-d 4.1 §9.3, FPD).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultRecording {
    /// All faults are recorded.
    On,
    /// Those that qualify are not.
    Off,
}

/// A present context entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextEntry {
    /// The root of the second-stage table.
    pub table: PhysPage,
    /// How wide its IOVAs are.
    pub width: AddressWidth,
    /// The tag of its cached translations.
    pub domain: DomainId,
    /// What happens to requests.
    pub translation: TranslationType,
    /// Whether faults are recorded.
    pub faults: FaultRecording,
}

/// The owner of a device's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// No domain has it.
    Free,
    /// This domain has it.
    Attached(DomainId),
    /// This domain had it; the unit may still know it.
    Detaching(DomainId),
    /// No domain has it, and none may.
    Fenced,
}

impl ContextEntry {
    /// Its bits. Write the high word first: the low one makes it present.
    pub fn encode(self) -> Words {
        let faults = match self.faults {
            FaultRecording::On => 0,
            FaultRecording::Off => FAULTS_OFF,
        };
        Words {
            low: self.table.addr().0 & TABLE
                | u64::from(self.translation as u8) << TRANSLATION_SHIFT
                | faults
                | PRESENT,
            high: u64::from(self.domain.0) << DOMAIN_SHIFT | u64::from(self.width.code()),
        }
    }
}

impl Slot {
    /// What an entry in memory says about its owner.
    pub fn decode(words: Words) -> Self {
        let domain = DomainId((words.high >> DOMAIN_SHIFT) as u16);
        if words.low & PRESENT != 0 {
            Slot::Attached(domain)
        } else if words.high & DETACHING != 0 {
            Slot::Detaching(domain)
        } else if words.high & FENCED != 0 {
            Slot::Fenced
        } else {
            Slot::Free
        }
    }
    /// The high word of an entry that is being detached, from the high word it had. Width and
    /// domain stay, so that a unit which reads the two words one after the other still sees the
    /// old entry or none.
    pub fn detaching(high: u64) -> u64 {
        high | DETACHING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ContextEntry = ContextEntry {
        table: PhysPage(0),
        width: AddressWidth::Bits39,
        domain: DomainId(0),
        translation: TranslationType::Untranslated,
        faults: FaultRecording::On,
    };

    fn bits(entry: ContextEntry) -> (u64, u64) {
        let words = entry.encode();
        (words.low, words.high)
    }

    #[test]
    fn each_field_alone_has_the_bits_of_the_specification() {
        assert_eq!(bits(PLAIN), (0x1, 0x1));
        let faults = FaultRecording::Off;
        assert_eq!(bits(ContextEntry { faults, ..PLAIN }), (0x3, 0x1));
        for (translation, low) in [
            (TranslationType::Untranslated, 0x1),
            (TranslationType::DeviceTlb, 0x5),
            (TranslationType::PassThrough, 0x9),
        ] {
            let entry = ContextEntry {
                translation,
                ..PLAIN
            };
            assert_eq!(bits(entry), (low, 0x1), "{translation:?}");
        }
        for (width, high) in [
            (AddressWidth::Bits39, 1),
            (AddressWidth::Bits48, 2),
            (AddressWidth::Bits57, 3),
        ] {
            assert_eq!(bits(ContextEntry { width, ..PLAIN }), (0x1, high));
        }
    }

    #[test]
    fn every_bit_of_table_and_domain_lands_where_the_specification_puts_it() {
        for bit in 12..52 {
            let table = PhysPage(1 << (bit - 12));
            let want = (1u64 << bit | 1, 1);
            assert_eq!(bits(ContextEntry { table, ..PLAIN }), want, "bit {bit}");
        }
        for bit in 0..16 {
            let domain = DomainId(1 << bit);
            let want = (1, 1u64 << (72 - 64 + bit) | 1);
            assert_eq!(bits(ContextEntry { domain, ..PLAIN }), want, "bit {bit}");
        }
    }

    #[test]
    fn an_entry_names_its_owner_in_every_state() {
        for domain in (0..=u16::MAX).map(DomainId) {
            let attached = ContextEntry { domain, ..PLAIN }.encode();
            assert_eq!(Slot::decode(attached), Slot::Attached(domain));
            let leaving = Words {
                low: 0,
                high: Slot::detaching(attached.high),
            };
            assert_eq!(Slot::decode(leaving), Slot::Detaching(domain));
        }
        assert_eq!(Slot::decode(Words { low: 0, high: 0 }), Slot::Free);
        let fenced = Words { low: 0, high: 0x10 };
        assert_eq!(Slot::decode(fenced), Slot::Fenced, "bit 68 of the entry");
        assert_eq!(Slot::detaching(0), 0x8, "bit 67 of the entry");
    }
}
