// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which physical function a virtual function belongs to, from configuration space (PCI Express
//! 6.0 §9.3.3, the SR-IOV extended capability of the physical function).
//!
//! A virtual function does not say whose it is: it reads as a function without vendor. Its physical
//! function says how many there are and where: the first is at its own source id plus an offset,
//! each further one a stride behind. So the search goes down from the virtual function, through
//! every function that is there, until one counts it among its own. It looks at fewer than 65,536
//! functions, and of each at [`MOST`] capabilities at most.

use super::{PciConfig, Segment};
use ioatlas_dma::units::SourceId;

/// Vendor and device (PCI Express 6.0 §7.5.1.1.1), the vendor in bits 15..0.
const ID_WORD: u16 = 0x00;
/// The vendor of what is absent, and of every virtual function (§9.3.4.1.1).
const NO_VENDOR: u16 = 0xffff;
/// Extended capabilities begin here, and end before [`END`] (§7.6.2).
const EXTENDED: u16 = 0x100;
const END: u16 = 0x1000;
/// How many capabilities of one function are looked at: more than there are kinds of them (about
/// 50), and what bounds a list that is a circle.
const MOST: usize = 64;
/// Of a capability's header: where the next one is, in bits 31..20; its kind is
/// in bits 15..0 (§7.6.3).
const NEXT_SHIFT: u32 = 20;
/// The kind that is SR-IOV (§9.3.3.1).
const SR_IOV: u16 = 0x10;
/// From there: control, with VF Enable in bit 0 (§9.3.3.3).
const CONTROL_AT: u16 = 0x08;
const VF_ENABLE: u32 = 1 << 0;
/// From there: NumVFs in bits 15..0 (§9.3.3.7).
const COUNT_AT: u16 = 0x10;
/// From there: First VF Offset in bits 15..0, VF Stride in bits 31..16 (§9.3.3.9, §9.3.3.10).
const PLACES_AT: u16 = 0x14;

/// The physical function of `function`, if that is a virtual one.
pub(super) fn physical_function_of<C: PciConfig + ?Sized>(
    pci: &C,
    segment: Segment,
    function: SourceId,
) -> Option<SourceId> {
    let is_there = |one: SourceId| pci.read32(segment, one, ID_WORD) as u16 != NO_VENDOR;
    if is_there(function) {
        return None;
    }
    (0..function.0).rev().map(SourceId).find(|owner| {
        is_there(*owner)
            && VirtualFunctions::of(pci, segment, *owner)
                .is_some_and(|all| all.contain(function.0 - owner.0))
    })
}

/// Where a physical function has its virtual functions, as distances from its own source id.
struct VirtualFunctions {
    first: u16,
    stride: u16,
    count: u16,
}

impl VirtualFunctions {
    /// Those of `owner`, if it has any enabled.
    fn of<C: PciConfig + ?Sized>(pci: &C, segment: Segment, owner: SourceId) -> Option<Self> {
        let capability = capability(pci, segment, owner)?;
        let word = |at| pci.read32(segment, owner, capability + at);
        if word(CONTROL_AT) & VF_ENABLE == 0 {
            return None;
        }
        let places = word(PLACES_AT);
        Some(VirtualFunctions {
            first: places as u16,
            stride: (places >> 16) as u16,
            count: word(COUNT_AT) as u16,
        })
    }

    /// Whether one of them is at that distance. A distance of 0 is the physical function itself,
    /// and a stride of 0 is that of an only one.
    fn contain(&self, distance: u16) -> bool {
        let Some(beyond) = distance.checked_sub(self.first) else {
            return false;
        };
        let index = match beyond {
            0 => Some(0),
            _ if self.stride == 0 || beyond % self.stride != 0 => None,
            _ => Some(beyond / self.stride),
        };
        self.first != 0 && index.is_some_and(|index| index < self.count)
    }
}

/// Where the SR-IOV capability of `function` begins, if it has one that ends within the space.
fn capability<C: PciConfig + ?Sized>(pci: &C, segment: Segment, function: SourceId) -> Option<u16> {
    let mut at = EXTENDED;
    for _ in 0..MOST {
        let header = pci.read32(segment, function, at);
        // no capability at all, or no such space
        if header == 0 || header == u32::MAX {
            return None;
        }
        if header as u16 == SR_IOV {
            return (at + PLACES_AT < END).then_some(at);
        }
        at = (header >> NEXT_SHIFT) as u16 & !3;
        if at < EXTENDED {
            return None;
        }
    }
    None
}
