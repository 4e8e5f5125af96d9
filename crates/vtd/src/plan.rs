// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which invalidations a change calls for: a pure function of the change, of what the unit can do,
//! and of the devices with TLBs of their own.
//!
//! A [`Plan`] is run from left to right, each step done (or ahead in one queue) before the next:
//!
//! | change | unit | write buffers | context cache | IOTLB | device TLBs |
//! |---|---|---|---|---|---|
//! | translations | | if RWBF | | see below | each of the domain's devices: the block, or all |
//! | context entry removed | | if RWBF | the device, by the domain id it had | the domain | that device's, all of it |
//! | context entry made | CM = 0 | if RWBF | | | |
//! | context entry made | CM = 1 | if RWBF | the device, by domain id 0 | the domain | |
//! | root table | ESRTPS = 0 | if RWBF | all | all | |
//! | root table | ESRTPS = 1 | if RWBF | | | |
//! | everything | | if RWBF | all | all | |
//!
//! Of the IOTLB, for a scope of translations:
//!
//! | scope | invalidation |
//! |---|---|
//! | the whole domain | domain-selective |
//! | pages, no PSI | domain-selective |
//! | pages | page-selective: the smallest aligned power of two that covers them, if its mask is at most MAMV |
//! | pages, mask above MAMV | domain-selective |
//! | leaves only | IH = 1, where page-selective; a domain-selective one takes the walk caches with it |
//! | always | DR and DW where the unit offers them (P5: done means drained) |
//!
//! Several scopes at once: see [`Blocks`].
//!
//! Sources: VT-d 4.1 §6.5 (what must follow a change), §6.5.2.5 (IOTLB before device TLB), §6.1
//! (caching mode), §6.8 (write buffers), §11.4.5 with §11.4.2 (root table, ESRTPS).

mod blocks;

pub use blocks::{BLOCKS, Blocks, BlocksPlan, InvalidationCosts};

use crate::layout::*;
use ioatlas_dma::{
    invalidation::{Caches, Scope},
    units::{DomainId, IovaPage, IovaRange, PageCount, SourceId},
};

/// Page numbers of the ADDR field have this many bits (VT-d 4.1 §6.5.2.3, bits 127..76).
const PAGE_NUMBER_BITS: u32 = 52;

/// A device that keeps translations of its own (PCI Express ATS).
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtsDevice {
    pub device: SourceId,
    /// How many invalidations it takes at once.
    pub depth: QueueDepth,
}

impl AtsDevice {
    /// Fills room that holds none.
    pub(crate) const NONE: AtsDevice = AtsDevice {
        device: SourceId(0),
        depth: QueueDepth::ONE,
    };
}

/// What was changed in memory.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Translations of a domain were removed or narrowed; under caching mode, also made.
    Translations { domain: DomainId, scope: Scope },
    /// A context entry is no longer present.
    ContextRemoved {
        device: SourceId,
        /// The domain id it had.
        domain: DomainId,
    },
    /// A context entry became present.
    ContextMade {
        device: SourceId,
        /// The domain id it has.
        domain: DomainId,
    },
    /// The unit was pointed to another root table.
    RootTable,
    /// It is not known what, as at the end.
    Everything,
}

/// One invalidation, in the order of [`Plan::invalidations`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Of the context cache.
    Context(ContextInvalidate),
    /// Of IOTLB and walk caches.
    Iotlb(IotlbInvalidate),
    /// Of one device's TLB.
    DeviceTlb(DeviceTlbInvalidate),
    /// Of the interrupt-entry cache.
    Interrupts(InterruptInvalidate),
}

impl Invalidation {
    /// Its bits as a descriptor of the queue.
    pub fn encode(self) -> Words {
        match self {
            Invalidation::Context(context) => context.encode(),
            Invalidation::Iotlb(iotlb) => iotlb.encode(),
            Invalidation::DeviceTlb(tlb) => tlb.encode(),
            Invalidation::Interrupts(interrupts) => interrupts.encode(),
        }
    }
}

/// Whether write buffers must be flushed first (VT-d 4.1 §6.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBuffers {
    /// The unit has none.
    Leave,
    /// They must be flushed.
    Flush,
}

/// What follows one change, in the order of the fields.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan<'d> {
    pub write_buffers: WriteBuffers,
    pub context: Option<ContextInvalidate>,
    pub iotlb: Option<IotlbInvalidate>,
    /// Devices whose TLBs are invalidated.
    pub devices: &'d [AtsDevice],
    /// And of each of them, these pages.
    pub device_pages: DevicePages,
}

/// What must follow `change` on that unit. `devices` are those with TLBs of their own: of the
/// domain where translations changed, of the context entry where that was removed.
pub fn plan<'d>(unit: &Capabilities, change: Change, devices: &'d [AtsDevice]) -> Plan<'d> {
    let (context, iotlb) = match change {
        Change::Translations { domain, scope } => (None, Some(iotlb(unit, domain, scope))),
        Change::ContextRemoved { device, domain } => (
            Some(of_device(device, domain)),
            Some(iotlb(unit, domain, Scope::DOMAIN)),
        ),
        // absent entries are cached with domain id 0
        Change::ContextMade { device, domain } if unit.caching_mode() => (
            Some(of_device(device, DomainId(0))),
            Some(iotlb(unit, domain, Scope::DOMAIN)),
        ),
        Change::RootTable if unit.root_pointer_flushes() => (None, None),
        Change::ContextMade { .. } => (None, None),
        Change::RootTable | Change::Everything => (
            Some(ContextInvalidate::Global),
            Some(IotlbInvalidate {
                target: IotlbTarget::Global,
                drain: drain(unit),
            }),
        ),
    };
    let (devices, device_pages) = match change {
        Change::Translations { scope, .. } => (devices, device_pages(scope)),
        Change::ContextRemoved { .. } => (devices, DevicePages::All),
        _ => (&[][..], DevicePages::All),
    };
    Plan {
        write_buffers: match unit.needs_write_buffer_flush() {
            true => WriteBuffers::Flush,
            false => WriteBuffers::Leave,
        },
        context,
        iotlb,
        devices,
        device_pages,
    }
}

impl<'d> Plan<'d> {
    /// Device TLBs alone, the rest of a plan for more devices than go into one submission.
    pub fn devices_only(self, devices: &'d [AtsDevice]) -> Self {
        Plan {
            write_buffers: WriteBuffers::Leave,
            context: None,
            iotlb: None,
            devices,
            device_pages: self.device_pages,
        }
    }

    /// Its invalidations, in the order in which the unit must take them.
    pub fn invalidations(self) -> impl Iterator<Item = Invalidation> + Clone {
        let unit = self
            .context
            .map(Invalidation::Context)
            .into_iter()
            .chain(self.iotlb.map(Invalidation::Iotlb));
        let devices = self.devices.iter().map(move |of| {
            Invalidation::DeviceTlb(DeviceTlbInvalidate {
                device: of.device,
                depth: of.depth,
                pages: self.device_pages,
            })
        });
        unit.chain(devices)
    }
}

fn of_device(device: SourceId, domain: DomainId) -> ContextInvalidate {
    ContextInvalidate::Device {
        domain,
        device,
        functions: FunctionMask::Exact,
    }
}

/// The IOTLB invalidation that removes at least `scope` of `domain`. It never fails: the
/// whole domain always serves.
pub fn iotlb(unit: &Capabilities, domain: DomainId, scope: Scope) -> IotlbInvalidate {
    let hint = hint(scope.caches);
    let max = unit.max_address_mask();
    let target = scope
        .pages
        .and_then(block)
        .filter(|(_, mask)| max.is_some_and(|max| *mask <= max))
        .map_or(IotlbTarget::Domain(domain), |(first, mask)| {
            IotlbTarget::Pages {
                domain,
                first,
                mask,
                hint,
            }
        });
    IotlbInvalidate {
        target,
        drain: drain(unit),
    }
}

fn hint(caches: Caches) -> LeafHint {
    match caches {
        Caches::Leaves => LeafHint::LeavesOnly,
        Caches::LeavesAndWalks => LeafHint::Anything,
    }
}

fn drain(unit: &Capabilities) -> Drain {
    unit.drains()
}

/// Devices know no MAMV: any aligned power of two can be named.
fn device_pages(scope: Scope) -> DevicePages {
    scope
        .pages
        .and_then(block)
        .map_or(DevicePages::All, |(first, mask)| DevicePages::Block {
            first,
            mask,
        })
}

/// The smallest aligned power of two of pages around `range`, if a descriptor can name it.
fn block(range: IovaRange) -> Option<(IovaPage, AddressMask)> {
    let first = range.first.0;
    let last = first.checked_add(range.pages.0.saturating_sub(1))?;
    if last >> PAGE_NUMBER_BITS != 0 {
        return None;
    }
    // the highest bit in which first and last differ is the highest that the mask must ignore
    let pages_lg2 = u64::BITS - (first ^ last).leading_zeros();
    let mask = AddressMask::new(pages_lg2)?;
    Some((IovaPage(first >> pages_lg2 << pages_lg2), mask))
}
