// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device-TLB invalidate descriptor (VT-d 4.1 §6.5.2.5): removes what a device with ATS keeps
//! of its own.
//!
//! | bits | |
//! |---|---|
//! | 3..0 | 3 |
//! | 15..12 | PFSID 3..0, 0: the device is no virtual function with a shared queue |
//! | 20..16 | MIP, how many invalidations the device takes at once; 0 is 32 |
//! | 47..32 | SID |
//! | 63..52 | PFSID 15..4, 0 |
//! | 64 | S, the address says how many pages |
//! | 127..76 | page address |
//!
//! **Size**, as PCI Express has it (ATS, invalidate request): with S = 0 it is one page. With S = 1
//! the lowest 0 among the address bits from 12 up ends the size: none below it is one, and 2^(n+1)
//! pages are meant where n ones are. So of 8 pages the address bits 12 and 13 are 1 and bit 14
//! is 0. All of the address space is every bit 1 but the topmost.

use super::{AddressMask, Words};
use ioatlas_dma::units::{GRANULE_LG2, IovaPage, SourceId};

/// Type of a device-TLB invalidate descriptor (§6.5.2.5, bits 3..0).
pub(crate) const TYPE_DEVICE_TLB: u64 = 3;
/// MIP begins here (§6.5.2.5, bits 20..16).
pub(crate) const QUEUE_DEPTH_SHIFT: u32 = 16;
/// SID begins here (§6.5.2.5, bits 47..32).
pub(crate) const SOURCE_SHIFT: u32 = 32;
/// S in the high word (§6.5.2.5, bit 64).
pub(crate) const SIZED: u64 = 1 << 0;
/// The address in the high word that means every page.
const EVERYTHING: u64 = (u64::MAX >> 1 >> GRANULE_LG2) << GRANULE_LG2;

/// How many invalidations a device takes before it has answered one: the invalidate queue depth of
/// its ATS capability, 1 to 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueDepth(u8);

impl QueueDepth {
    /// One at a time.
    pub const ONE: QueueDepth = QueueDepth(1);
    /// From the five bits of the ATS capability, where 0 is 32.
    pub fn from_capability(field: u16) -> Self {
        match field & 0x1f {
            0 => QueueDepth(32),
            depth => QueueDepth(depth as u8),
        }
    }
    /// How many invalidations the device takes at once.
    pub fn invalidations(self) -> u32 {
        u32::from(self.0)
    }
}

/// Which pages of a device TLB to remove.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DevicePages {
    All,
    /// A power of two of them.
    Block {
        /// The first, aligned to `mask`.
        first: IovaPage,
        mask: AddressMask,
    },
}

/// Removes translations that a device keeps (VT-d 4.1 §6.5.2.5). The IOTLB must have been
/// invalidated before, or the device fetches the old translation again.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceTlbInvalidate {
    pub device: SourceId,
    /// How many it takes at once.
    pub depth: QueueDepth,
    pub pages: DevicePages,
}

impl DeviceTlbInvalidate {
    /// Its bits as a descriptor.
    pub fn encode(self) -> Words {
        let high = match self.pages {
            DevicePages::All => EVERYTHING | SIZED,
            DevicePages::Block { first, mask } => match mask.pages_lg2() {
                0 => first.addr().0,
                // no lowest 0 is left for it
                lg2 if lg2 + GRANULE_LG2 >= u64::BITS => EVERYTHING | SIZED,
                lg2 => {
                    let ones = (1 << (lg2 - 1)) - 1;
                    let block = first.0 >> lg2 << lg2;
                    IovaPage(block | ones).addr().0 | SIZED
                }
            },
        };
        Words {
            low: TYPE_DEVICE_TLB
                | u64::from(self.depth.0 & 0x1f) << QUEUE_DEPTH_SHIFT
                | u64::from(self.device.0) << SOURCE_SHIFT,
            high,
        }
    }

    /// Whose device TLB a descriptor in the ring names, if it is one of this kind.
    pub(crate) fn device_of(words: Words) -> Option<SourceId> {
        (words.low & 0xf == TYPE_DEVICE_TLB).then_some(SourceId((words.low >> SOURCE_SHIFT) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn high(first: u64, pages_lg2: u32) -> u64 {
        let mask = AddressMask::new(pages_lg2).unwrap();
        let first = IovaPage(first);
        let invalidate = DeviceTlbInvalidate {
            device: SourceId(0),
            depth: QueueDepth::from_capability(1),
            pages: DevicePages::Block { first, mask },
        };
        invalidate.encode().high
    }

    /// By a decoder of its own: the pages that a device removes.
    fn pages(high: u64) -> (u64, u128) {
        if high & 1 == 0 {
            return (high >> 12, 1);
        }
        let ones = (high >> 12).trailing_ones();
        let lg2 = ones + 1;
        let first = high >> 12 >> lg2 << lg2;
        (first, 1 << lg2)
    }

    #[test]
    fn sizes_are_told_by_the_lowest_zero() {
        assert_eq!(high(0x1234, 0), 0x123_4000);
        assert_eq!(high(0x1234, 1), 0x123_4001);
        assert_eq!(high(0x1234, 2), 0x123_5001);
        assert_eq!(high(0x1238, 3), 0x123_b001);
        for lg2 in 0..51 {
            let first = 0x5_5555_5555_5555 >> lg2 << lg2;
            let (from, count) = pages(high(first, lg2));
            assert_eq!((from, count), (first, 1 << lg2), "2^{lg2} pages");
        }
    }

    #[test]
    fn everything_is_everything() {
        for lg2 in 52..64 {
            assert_eq!(high(0, lg2), 0x7fff_ffff_ffff_f001, "2^{lg2} pages");
        }
        assert_eq!(pages(0x7fff_ffff_ffff_f001), (0, 1 << 52));
    }

    #[test]
    fn each_field_alone_has_the_bits_of_the_specification() {
        let low = |device, depth| {
            let invalidate = DeviceTlbInvalidate {
                device: SourceId(device),
                depth: QueueDepth::from_capability(depth),
                pages: DevicePages::All,
            };
            invalidate.encode().low
        };
        assert_eq!(low(0, 0), 3, "a depth of 32 is written as 0");
        for depth in 1..32 {
            assert_eq!(low(0, depth), 3 | u64::from(depth) << 16);
        }
        for bit in 0..16 {
            assert_eq!(low(1 << bit, 0), 3 | 1 << (32 + bit));
        }
        assert_eq!(QueueDepth::from_capability(0xffe0).invalidations(), 32);
    }
}
