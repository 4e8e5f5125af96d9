// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The root entry of legacy mode (VT-d 4.1 §9.1): one a bus, 256 in the root table.
//!
//! | bits | |
//! |---|---|
//! | 0 | P, present |
//! | 63..12 | CTP, the context table's physical page |
//! | others | 0 |

use super::Words;
use ioatlas_dma::units::{GRANULE, PHYS_BITS, PhysAddr, PhysPage};

/// P: the context table exists (§9.1, bit 0).
pub const PRESENT: u64 = 1 << 0;
/// CTP, without what lies above the physical address width (§9.1, bits 63..12).
pub(crate) const CONTEXT_TABLE: u64 = ((1 << PHYS_BITS) - 1) & !(GRANULE - 1);

/// A present root entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootEntry {
    /// The context table of this bus.
    pub contexts: PhysPage,
}

impl RootEntry {
    /// Its bits, with the present one set.
    pub fn encode(self) -> Words {
        Words {
            low: self.contexts.addr().0 & CONTEXT_TABLE | PRESENT,
            high: 0,
        }
    }
    /// What the low word says, or `None` where the bus has no context table.
    pub fn decode(low: u64) -> Option<Self> {
        (low & PRESENT != 0).then(|| RootEntry {
            contexts: PhysAddr(low & CONTEXT_TABLE).page(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_bit_lands_where_the_specification_puts_it() {
        assert_eq!(
            RootEntry {
                contexts: PhysPage(0)
            }
            .encode(),
            Words { low: 1, high: 0 }
        );
        for bit in 12..52 {
            let contexts = PhysPage(1 << (bit - 12));
            let words = RootEntry { contexts }.encode();
            assert_eq!((words.low, words.high), (1u64 << bit | 1, 0), "bit {bit}");
            assert_eq!(
                RootEntry::decode(words.low),
                Some(RootEntry { contexts }),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn an_entry_without_the_present_bit_says_nothing() {
        assert_eq!(RootEntry::decode(!1), None);
    }
}
