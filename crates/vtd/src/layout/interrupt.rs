// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The interrupt-entry-cache invalidate descriptor (VT-d 4.1 §6.5.2.7), for a host that remaps
//! interrupts and has no queue of its own.
//!
//! | bits | |
//! |---|---|
//! | 3..0 | 4 |
//! | 4 | G: 0 everything, 1 by index |
//! | 31..27 | IM, log2 of the entries |
//! | 47..32 | IIDX, the first index |

use super::Words;

/// Type of an interrupt-entry-cache invalidate descriptor (§6.5.2.7, bits 3..0).
pub(crate) const TYPE_INTERRUPT: u64 = 4;
/// G: by index (§6.5.2.7, bit 4).
pub(crate) const BY_INDEX: u64 = 1 << 4;
/// IM begins here (§6.5.2.7, bits 31..27).
pub(crate) const INDEX_MASK_SHIFT: u32 = 27;
/// IIDX begins here (§6.5.2.7, bits 47..32).
pub const INDEX_SHIFT: u32 = 32;

/// The index of an entry of the interrupt-remapping table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct InterruptIndex(pub u16);

/// Removes cached interrupt-remapping entries (VT-d 4.1 §6.5.2.7).
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptInvalidate {
    Global,
    /// A power of two of them.
    Block {
        /// The first, aligned to their number.
        first: InterruptIndex,
        /// Log2 of their number, at most 15; units accept no more than ECAP.MHMV.
        entries_lg2: u8,
    },
}

impl InterruptInvalidate {
    /// The smallest invalidation that removes `entries` entries from `first`, on a
    /// unit with that ECAP.MHMV.
    pub fn covering(first: InterruptIndex, entries: u32, largest_mask: u32) -> Self {
        let last = u32::from(first.0) + entries.saturating_sub(1);
        if last > u32::from(u16::MAX) {
            return InterruptInvalidate::Global;
        }
        // the highest bit in which first and last differ is the highest that the mask must ignore
        let lg2 = u32::BITS - (u32::from(first.0) ^ last).leading_zeros();
        if lg2 > largest_mask || lg2 > 15 {
            return InterruptInvalidate::Global;
        }
        InterruptInvalidate::Block {
            first: InterruptIndex(first.0 >> lg2 << lg2),
            entries_lg2: lg2 as u8,
        }
    }

    /// Its bits as a descriptor.
    pub fn encode(self) -> Words {
        let low = match self {
            InterruptInvalidate::Global => 0,
            InterruptInvalidate::Block { first, entries_lg2 } => {
                BY_INDEX
                    | u64::from(entries_lg2 & 0x1f) << INDEX_MASK_SHIFT
                    | u64::from(first.0) << INDEX_SHIFT
            }
        };
        Words {
            low: low | TYPE_INTERRUPT,
            high: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_has_the_bits_of_the_specification() {
        assert_eq!(InterruptInvalidate::Global.encode().low, 0x4);
        let block = |first, entries_lg2| InterruptInvalidate::Block {
            first: InterruptIndex(first),
            entries_lg2,
        };
        assert_eq!(block(0, 0).encode().low, 0x14);
        for bit in 0..16 {
            assert_eq!(block(1 << bit, 0).encode().low, 0x14 | 1 << (32 + bit));
        }
        assert_eq!(block(0, 15).encode().low, 0x14 | 15 << 27);
        assert_eq!(block(0, 15).encode().high, 0);
    }

    #[test]
    fn a_block_covers_what_was_asked_and_is_the_smallest() {
        for first in 0..40u32 {
            for entries in 1..40u32 {
                let asked = InterruptIndex(first as u16);
                let last = first + entries - 1;
                match InterruptInvalidate::covering(asked, entries, 15) {
                    InterruptInvalidate::Block {
                        first: at,
                        entries_lg2,
                    } => {
                        let (at, size) = (u32::from(at.0), 1 << entries_lg2);
                        assert_eq!(at % size, 0);
                        assert!(at <= first && last < at + size);
                        let half = size / 2;
                        assert!(half == 0 || first / half != last / half, "a half would do");
                    }
                    InterruptInvalidate::Global => panic!("{first}+{entries}"),
                }
            }
        }
    }

    #[test]
    fn what_no_mask_covers_is_everything() {
        let covering = |first, entries, largest| {
            InterruptInvalidate::covering(InterruptIndex(first), entries, largest)
        };
        assert_eq!(covering(0, 5, 2), InterruptInvalidate::Global);
        assert_eq!(covering(0xffff, 2, 15), InterruptInvalidate::Global);
        assert_eq!(covering(0, 0x1_0000, 16), InterruptInvalidate::Global);
        assert_ne!(covering(0, 4, 2), InterruptInvalidate::Global);
        assert_ne!(covering(7, 1, 0), InterruptInvalidate::Global);
    }
}
