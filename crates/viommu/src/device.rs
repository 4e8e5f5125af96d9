// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices with ATS: translations that a device asked for and keeps (VT-d 4.1 §4, PCI Express ATS).
//!
//! # Theory
//!
//! While ATS is on for a device, each of its accesses first looks into the device's own TLB. What
//! is there goes out as a *translated request*: of the unit's tables and caches it meets the
//! context entry only, which must allow it (TT = 01b). What is not there is asked of the unit by a
//! *translation request*, which is a walk like any other; its answer enters the device's TLB, and
//! the access goes on with it. A translation request that finds nothing is answered so, and is
//! recorded as no fault (reasons 5h and 6h); other faults are.
//!
//! An invalidation of the IOTLB drains translation requests that are not answered yet, and nothing
//! that the device does with an answer. That is what an invalidation of the device's TLB does: it
//! removes entries, and is done when the accesses that use them have ended. It does not touch
//! translation requests that are not answered yet. So one that comes before the IOTLB's is of no
//! use: the device asks again, and the IOTLB still knows. [`Refetch::AtOnce`] makes a device do
//! just that.
//!
//! A device that does not answer keeps what it holds, and the wait descriptor that follows finds
//! the time-out (ITE). So does one whose ATS is off, and one that does not exist.
//!
//! Not handled: translation requests without an access, entries of more than a page, page requests,
//! PASIDs, untranslated accesses of a device whose ATS is on, the depth of a device's invalidation
//! queue, global and no-snoop attributes.

pub use crate::config::{Answer, Ats, AtsDevice, DeviceError, Refetch};

use crate::{caches::Lru, unit::SoftUnit, unit::State};
use ioatlas_dma::{
    platform::{Lock, PhysMemory, Platform},
    units::*,
};
use std::collections::BTreeMap;

/// No device with ATS has this source id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no device with ATS")]
pub struct NotAtsError(pub SourceId);

/// A translation as a device keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) to: PhysPage,
    pub(crate) perm: Perm,
    /// By whose tables: the device does not know, the observer wants to.
    pub(crate) domain: DomainId,
}

/// How an access comes to the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressType {
    Untranslated,
    /// The device wants to know first.
    TranslationRequest,
    /// The device has the translation already.
    Translated(Held),
}

struct Device {
    config: AtsDevice,
    ats: Ats,
    tlb: Lru<IovaPage, Held>,
}

/// Every device with ATS.
pub(crate) struct Devices {
    by_source: BTreeMap<SourceId, Device>,
    /// What devices want to ask again, and have not yet.
    wanted: Vec<Wanted>,
}

/// An access by which a device asks again.
pub(crate) type Wanted = (SourceId, IovaPage, AccessKind);

impl Devices {
    pub(crate) fn new(configs: &[AtsDevice]) -> Self {
        let device = |config: &AtsDevice| {
            let device = Device {
                config: *config,
                ats: Ats::Off,
                tlb: Lru::new(config.entries),
            };
            (config.source, device)
        };
        Devices {
            by_source: configs.iter().map(device).collect(),
            wanted: Vec::new(),
        }
    }
    fn using(&mut self, source: SourceId) -> Option<&mut Device> {
        self.by_source
            .get_mut(&source)
            .filter(|device| device.ats == Ats::On)
    }
    /// How the device makes an access; a hit is a use.
    pub(crate) fn address_type(
        &mut self,
        source: SourceId,
        page: IovaPage,
        kind: AccessKind,
    ) -> AddressType {
        let Some(device) = self.using(source) else {
            return AddressType::Untranslated;
        };
        match device.tlb.get(&page).filter(|held| held.perm.allows(kind)) {
            Some(held) => AddressType::Translated(held),
            None => AddressType::TranslationRequest,
        }
    }
    /// The device is told a translation. `None`: its ATS was switched off meanwhile. Otherwise how
    /// many others that displaced.
    pub(crate) fn keep(&mut self, source: SourceId, page: IovaPage, held: Held) -> Option<u64> {
        let device = self.using(source)?;
        Some(device.tlb.insert(page, held))
    }
    /// Whether the device answers invalidations.
    pub(crate) fn answers(&mut self, source: SourceId) -> bool {
        self.using(source)
            .is_some_and(|device| device.config.answer == Answer::WhenDrained)
    }
    /// Removes what is named; returns how many entries that were.
    pub(crate) fn invalidate(&mut self, source: SourceId, pages: IovaRange) -> u64 {
        let mut gone = Vec::new();
        let Some(device) = self.using(source) else {
            return 0;
        };
        device.tlb.sweep(|page, held| {
            let named = pages.first <= *page && *page < pages.end();
            if named {
                gone.push((*page, held.perm));
            }
            named
        });
        let removed = gone.len() as u64;
        if device.config.refetch == Refetch::AtOnce {
            let kind = |perm: Perm| match perm.allows(AccessKind::Read) {
                true => AccessKind::Read,
                false => AccessKind::Write,
            };
            let again = gone.into_iter().map(|(page, p)| (source, page, kind(p)));
            self.wanted.extend(again);
        }
        removed
    }
    pub(crate) fn take_wanted(&mut self) -> Vec<Wanted> {
        core::mem::take(&mut self.wanted)
    }
    /// Every entry of every device.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SourceId, &IovaPage, &Held)> {
        self.by_source.iter().flat_map(|(source, device)| {
            let entries = device.tlb.iter();
            entries.map(|(page, held)| (*source, page, held))
        })
    }
    pub(crate) fn audit(&self) -> Result<(), String> {
        for (source, device) in &self.by_source {
            device
                .tlb
                .audit()
                .map_err(|e| format!("TLB of {source}: {e}"))?;
            if device.ats == Ats::Off && device.tlb.len() > 0 {
                return Err(format!("{source} keeps translations without ATS"));
            }
        }
        Ok(())
    }
}

impl State {
    fn switch_ats(&mut self, source: SourceId, ats: Ats) -> Result<(), NotAtsError> {
        let devices = &mut self.devices.by_source;
        let device = devices.get_mut(&source).ok_or(NotAtsError(source))?;
        device.ats = ats;
        if ats == Ats::Off {
            device.tlb.sweep(|_, _| true);
        }
        self.emit(crate::observe::Event::AtsSwitched { source, ats });
        Ok(())
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// Switches ATS of a device on or off, as the host does by its configuration space. Off empties
    /// its TLB. After reset it is off.
    ///
    /// # Errors
    /// The unit's configuration names no such device.
    pub fn switch_ats(&self, source: SourceId, ats: Ats) -> Result<(), NotAtsError> {
        self.state.with(|s| s.switch_ats(source, ats))
    }
    /// What a device's TLB holds for a page. Not a use.
    pub fn device_tlb_holds(&self, source: SourceId, page: IovaPage) -> Option<(PhysPage, Perm)> {
        self.state.with(|s| {
            let mut entries = s.devices.iter();
            let found = entries.find(|(device, at, _)| *device == source && **at == page);
            found.map(|(_, _, held)| (held.to, held.perm))
        })
    }
    /// Devices ask again for what they have just lost.
    pub(crate) fn refetch(&self, wanted: Vec<Wanted>) {
        for (source, page, kind) in wanted {
            self.access(source, page, kind);
        }
    }
}
