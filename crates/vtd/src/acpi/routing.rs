// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which devices the table's structures concern.
//!
//! A scope's path begins on a bus and goes through bridges; the bus behind each is read from the
//! bridge, so the answer holds as long as buses keep their numbers. A path through something that
//! is no bridge, or is absent, names no device. A scope that lists the device wins over a unit that
//! covers the rest of the segment, whatever the order of the table.
//!
//! **Virtual functions** (SR-IOV) are in no scope of their own: they are under the unit and the
//! root port of their physical function, so that function is looked up instead of them:
//! [`PciConfig::physical_function_of`]. Memory that is reserved for the physical function by name
//! is not theirs: firmware uses it by a function that was at work before any virtual one was
//! enabled. What is reserved for all behind a bridge concerns them too, by their own bus.

use super::{sr_iov, *};
use core::ops::RangeInclusive;

/// Reads of PCI configuration space, by port or by memory window.
///
/// It must tell of all functions: one that is missing here, or a virtual function whose physical
/// function is not found, is taken for one that no scope lists, and goes to the unit for the rest
/// of its segment, which may not be the one that its requests reach.
pub trait PciConfig {
    /// The aligned 32-bit word at byte `offset`, below 4,096, of `function`; all ones where there
    /// is none. Access by port reaches the first 256 bytes alone: it must answer all ones beyond,
    /// and where there are virtual functions supply
    /// [`physical_function_of`](Self::physical_function_of) by other means.
    fn read32(&self, segment: Segment, function: SourceId, offset: u16) -> u32;

    /// The physical function to which `function` belongs, if it is a virtual one (PCI Express
    /// SR-IOV). What is supplied looks through the functions with smaller source ids for one
    /// whose enabled SR-IOV capability counts `function` among its own (PCI Express 6.0
    /// §9.3.3), which needs extended configuration space. A host that knows it from elsewhere
    /// answers without a search.
    fn physical_function_of(&self, segment: Segment, function: SourceId) -> Option<SourceId> {
        sr_iov::physical_function_of(self, segment, function)
    }
}

impl<F: Fn(Segment, SourceId, u16) -> u32> PciConfig for F {
    fn read32(&self, segment: Segment, function: SourceId, offset: u16) -> u32 {
        self(segment, function, offset)
    }
}

/// The function in whose name scopes are searched for `device`.
fn listed_as(pci: &impl PciConfig, segment: Segment, device: SourceId) -> SourceId {
    pci.physical_function_of(segment, device).unwrap_or(device)
}

/// Header type in bits 23..16 (PCI Local Bus 3.0 §6.1); bit 7 of it says that
/// there are more functions.
const HEADER_WORD: u16 = 0x0c;
/// Of a bridge: primary, secondary and subordinate bus, from bit 0, 8 and 16
/// (PCI-to-PCI Bridge 1.2 §3.2.5).
const BUSES_WORD: u16 = 0x18;
const BRIDGE: u32 = 1;

/// The buses behind `bridge`, if it is one and they are numbered.
fn buses_behind(
    pci: &impl PciConfig,
    segment: Segment,
    bridge: SourceId,
) -> Option<RangeInclusive<u8>> {
    let header = pci.read32(segment, bridge, HEADER_WORD);
    if header == u32::MAX || header >> 16 & 0x7f != BRIDGE {
        return None;
    }
    let buses = pci.read32(segment, bridge, BUSES_WORD);
    let (secondary, subordinate) = ((buses >> 8) as u8, (buses >> 16) as u8);
    (secondary != 0 && secondary <= subordinate).then_some(secondary..=subordinate)
}

impl Scope {
    /// The function that the path leads to, if it leads somewhere.
    pub fn function(&self, segment: Segment, pci: &impl PciConfig) -> Option<SourceId> {
        let (last, bridges) = self.path.split_last()?;
        let bus = bridges.iter().try_fold(self.start_bus, |bus, step| {
            buses_behind(pci, segment, step.on(bus)).map(|behind| *behind.start())
        })?;
        Some(last.on(bus))
    }

    /// Whether it names the PCI function `device`, by itself or as one behind a bridge.
    pub fn names(&self, segment: Segment, device: SourceId, pci: &impl PciConfig) -> bool {
        let found = match self.kind {
            ScopeKind::Endpoint | ScopeKind::Bridge => self.function(segment, pci),
            _ => None,
        };
        match found {
            None => false,
            Some(function) if function == device => true,
            Some(function) => {
                let bus = (device.0 >> 8) as u8;
                self.kind == ScopeKind::Bridge
                    && buses_behind(pci, segment, function).is_some_and(|b| b.contains(&bus))
            }
        }
    }
}

impl Dmar {
    /// The unit that translates what `device` of `segment` does, as an index into
    /// [`units`](Self::units); none where no unit covers it. A virtual function is under the unit
    /// of its physical function.
    pub fn unit_for(
        &self,
        segment: Segment,
        device: SourceId,
        pci: &impl PciConfig,
    ) -> Option<usize> {
        let device = listed_as(pci, segment, device);
        let units = || self.units.iter().enumerate();
        let lists = |unit: &Drhd| {
            let mut scopes = unit.scopes.iter();
            unit.segment == segment && scopes.any(|s| s.names(segment, device, pci))
        };
        let rest = |unit: &Drhd| unit.segment == segment && unit.devices == Covers::Rest;
        let listed = units().find(|(_, unit)| lists(unit));
        let found = listed.or_else(|| units().find(|(_, unit)| rest(unit)));
        found.map(|(index, _)| index)
    }

    /// The memory that `device` must go on reaching at its own address. A virtual function has none
    /// of its physical function's: that would let whatever is given it reach firmware's memory.
    pub fn reserved_for<'d>(
        &'d self,
        segment: Segment,
        device: SourceId,
        pci: &'d impl PciConfig,
    ) -> impl Iterator<Item = &'d Rmrr> {
        self.reserved.iter().filter(move |r| {
            let mut scopes = r.scopes.iter();
            r.segment == segment && scopes.any(|s| s.names(segment, device, pci))
        })
    }

    /// Whether the root port above `device`, or above its physical function, passes ATS requests
    /// on. Where an ATSR speaks for all ports, so it does for devices under none.
    pub fn may_use_ats(&self, segment: Segment, device: SourceId, pci: &impl PciConfig) -> bool {
        let device = listed_as(pci, segment, device);
        let mut all = self.ats.iter().filter(|a| a.segment == segment);
        all.any(|ats| match ats.ports {
            Covers::Rest => true,
            Covers::Listed => ats.scopes.iter().any(|s| s.names(segment, device, pci)),
        })
    }
}
