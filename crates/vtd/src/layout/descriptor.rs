// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Descriptors of the invalidation queue, 128 bits each (VT-d 4.1 §6.5.2).
//!
//! | bits | context-cache invalidate (§6.5.2.1) | IOTLB invalidate (§6.5.2.3) | invalidation wait (§6.5.2.8) |
//! |---|---|---|---|
//! | 3..0 | 1 | 2 | 5 |
//! | 4 | G: 1 global, 2 domain, 3 device | G: 1 global, 2 domain, 3 pages | IF, interrupt |
//! | 5 | (G) | (G) | SW, status write |
//! | 6 | 0 | DW, drain writes | FN, fence |
//! | 7 | 0 | DR, drain reads | 0 (PD) |
//! | 31..16 | DID | DID | 0 |
//! | 47..32 | SID | 0 | status data (63..32) |
//! | 49..48 | FM | 0 | |
//! | 69..64 | 0 | AM | 0 (65..64) |
//! | 70 | 0 | IH | status address (127..66) |
//! | 127..76 | 0 | page address | |
//!
//! Device-TLB and interrupt-entry descriptors are in [`super::device_tlb`] and
//! [`super::interrupt`]. Not here: PASID descriptors, and completion by interrupt.

use super::Words;
use ioatlas_dma::units::{DomainId, IovaPage, PhysAddr, SourceId};

/// Type of a context-cache invalidate descriptor (§6.5.2.1, bits 3..0).
pub(crate) const TYPE_CONTEXT: u64 = 1;
/// Type of an IOTLB invalidate descriptor (§6.5.2.3).
pub const TYPE_IOTLB: u64 = 2;
/// Type of an invalidation wait descriptor (§6.5.2.8).
pub const TYPE_WAIT: u64 = 5;
/// G begins here (§6.5.2.1, §6.5.2.3, bits 5..4).
pub const GRANULARITY_SHIFT: u32 = 4;
/// Granularity G: everything (§6.5.2.1, §6.5.2.3).
pub const GLOBAL: u64 = 1;
/// Granularity G: one domain (§6.5.2.1, §6.5.2.3).
pub const DOMAIN: u64 = 2;
/// G: one device (context cache) or some pages (IOTLB).
pub(crate) const SELECTIVE: u64 = 3;
/// DW: drain writes (§6.5.2.3, bit 6).
pub(crate) const DRAIN_WRITES: u64 = 1 << 6;
/// DR: drain reads (§6.5.2.3, bit 7).
pub(crate) const DRAIN_READS: u64 = 1 << 7;
/// DID begins here (§6.5.2.1, §6.5.2.3, bits 31..16).
pub(crate) const DOMAIN_SHIFT: u32 = 16;
/// SID begins here (§6.5.2.1, bits 47..32).
pub(crate) const SOURCE_SHIFT: u32 = 32;
/// FM begins here (§6.5.2.1, bits 49..48).
pub(crate) const FUNCTION_MASK_SHIFT: u32 = 48;
/// IH in the high word (§6.5.2.3, bit 70).
pub(crate) const LEAF_HINT: u64 = 1 << 6;
/// AM in the high word (§6.5.2.3, bits 69..64).
pub(crate) const ADDRESS_MASK: u64 = 0x3f;
/// The page address begins here in the high word (§6.5.2.3, bits 127..76).
pub(crate) const ADDRESS_SHIFT: u32 = 12;
/// SW: write the status data (§6.5.2.8, bit 5).
pub(crate) const STATUS_WRITE: u64 = 1 << 5;
/// FN: what follows waits for this (§6.5.2.8, bit 6).
pub(crate) const FENCE: u64 = 1 << 6;
/// The status data begins here (§6.5.2.8, bits 63..32).
pub const STATUS_SHIFT: u32 = 32;

/// Which functions of a device a context-cache invalidation takes in: how many low bits of the
/// function number to ignore, from the top down (VT-d 4.1 §6.5.2.1, FM).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FunctionMask {
    /// The named function alone.
    Exact = 0,
    /// Bit 2 is ignored.
    Bit2 = 1,
    /// Bits 2..1 are ignored.
    Bits21 = 2,
    /// All functions of the device.
    All = 3,
}

/// Removes cached context entries (VT-d 4.1 §6.5.2.1). IOTLB invalidation must follow.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextInvalidate {
    Global,
    /// Those of one domain.
    Domain(DomainId),
    /// That of one device.
    Device {
        /// The domain id that the cached entry has; 0 for one cached as not
        /// present (§6.1, caching mode).
        domain: DomainId,
        device: SourceId,
        /// Which of its functions.
        functions: FunctionMask,
    },
}

impl ContextInvalidate {
    /// Its bits as a descriptor.
    pub fn encode(self) -> Words {
        let low = match self {
            ContextInvalidate::Global => GLOBAL << GRANULARITY_SHIFT,
            ContextInvalidate::Domain(id) => {
                DOMAIN << GRANULARITY_SHIFT | u64::from(id.0) << DOMAIN_SHIFT
            }
            ContextInvalidate::Device {
                domain,
                device,
                functions,
            } => {
                SELECTIVE << GRANULARITY_SHIFT
                    | u64::from(domain.0) << DOMAIN_SHIFT
                    | u64::from(device.0) << SOURCE_SHIFT
                    | u64::from(functions as u8) << FUNCTION_MASK_SHIFT
            }
        };
        Words {
            low: low | TYPE_CONTEXT,
            high: 0,
        }
    }
}

/// What is in flight and has to land before an invalidation counts as done (VT-d 4.1
/// §6.5.2.3, DR and DW).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain(u64);

#[allow(missing_docs)] // its constants say it
impl Drain {
    pub const NONE: Drain = Drain(0);
    pub const READS: Drain = Drain(DRAIN_READS);
    pub const WRITES: Drain = Drain(DRAIN_WRITES);

    /// What either of them drains.
    pub const fn with(self, other: Drain) -> Self {
        Drain(self.0 | other.0)
    }
    /// Whether all of `other` is drained.
    pub const fn has(self, other: Drain) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Log2 of the pages that a page-selective invalidation covers, naturally aligned (VT-d 4.1
/// §6.5.2.3, AM). At most 63.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AddressMask(u8);

impl AddressMask {
    /// One page.
    pub const ONE: AddressMask = AddressMask(0);
    /// Log2 of the pages, or `None` above what the field holds.
    pub fn new(pages_lg2: u32) -> Option<Self> {
        (u64::from(pages_lg2) <= ADDRESS_MASK).then_some(AddressMask(pages_lg2 as u8))
    }
    /// Log2 of the pages.
    pub fn pages_lg2(self) -> u32 {
        u32::from(self.0)
    }
}

/// Whether walk caches may keep what they hold (VT-d 4.1 §6.5.2.3, IH).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafHint {
    /// Non-leaf entries may have changed.
    Anything,
    /// Only leaf entries changed.
    LeavesOnly,
}

/// Which translations to remove (VT-d 4.1 §6.5.2.3, G).
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IotlbTarget {
    Global,
    /// Those of one domain.
    Domain(DomainId),
    /// Those of some pages of one domain.
    Pages {
        domain: DomainId,
        /// The first page, aligned to `mask`.
        first: IovaPage,
        mask: AddressMask,
        /// Whether walk caches may stay.
        hint: LeafHint,
    },
}

/// Removes cached translations, and those of the walk caches (VT-d 4.1 §6.5.2.3).
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IotlbInvalidate {
    pub target: IotlbTarget,
    pub drain: Drain,
}

impl IotlbInvalidate {
    /// Its bits as a descriptor.
    pub fn encode(self) -> Words {
        let (granularity, domain, high) = match self.target {
            IotlbTarget::Global => (GLOBAL, DomainId(0), 0),
            IotlbTarget::Domain(domain) => (DOMAIN, domain, 0),
            IotlbTarget::Pages {
                domain,
                first,
                mask,
                hint,
            } => {
                let hint = match hint {
                    LeafHint::Anything => 0,
                    LeafHint::LeavesOnly => LEAF_HINT,
                };
                let high = first.0 << ADDRESS_SHIFT | hint | u64::from(mask.0);
                (SELECTIVE, domain, high)
            }
        };
        Words {
            low: TYPE_IOTLB
                | granularity << GRANULARITY_SHIFT
                | self.drain.0
                | u64::from(domain.0) << DOMAIN_SHIFT,
            high,
        }
    }
}

/// Whether later descriptors wait for a wait descriptor (VT-d 4.1 §6.5.2.8, FN).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOrder {
    /// They may begin before it is done.
    Unfenced,
    /// They begin after it is done.
    Fenced,
}

/// Writes a 32-bit word when everything before it in the queue is done (VT-d 4.1 §6.5.2.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusWait {
    /// Where, a multiple of 4.
    pub address: PhysAddr,
    /// The word to write.
    pub data: u32,
    /// What later descriptors do.
    pub order: WaitOrder,
}

impl StatusWait {
    /// Its bits as a descriptor.
    pub fn encode(self) -> Words {
        let fence = match self.order {
            WaitOrder::Unfenced => 0,
            WaitOrder::Fenced => FENCE,
        };
        Words {
            low: TYPE_WAIT | STATUS_WRITE | fence | u64::from(self.data) << STATUS_SHIFT,
            high: self.address.0 & !3,
        }
    }
}
