// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whom the table's structures concern.
//!
//! A scope's path begins on a bus and goes through bridges; the bus behind each is read from the bridge, so the answer holds as long as nobody
//! renumbers buses. A path through something that is no bridge, or is absent, names nobody. A scope that lists the device wins over a
//! unit that covers the rest of the segment, whatever the order of the table.

use super::*;
use core::ops::RangeInclusive;

/// Reads of PCI configuration space, by port or by memory window.
pub trait PciConfig {
    /// The aligned 32-bit word at byte `offset` of `function`; all ones where there is none.
    fn read32(&self, segment: Segment, function: SourceId, offset: u8) -> u32;
}

impl<F: Fn(Segment, SourceId, u8) -> u32> PciConfig for F {
    fn read32(&self, segment: Segment, function: SourceId, offset: u8) -> u32 {
        self(segment, function, offset)
    }
}

/// Header type in bits 23..16 (PCI Local Bus 3.0 §6.1); bit 7 of it says that there are more functions.
const HEADER_WORD: u8 = 0x0c;
/// Of a bridge: primary, secondary and subordinate bus, from bit 0, 8 and 16 (PCI-to-PCI Bridge 1.2 §3.2.5).
const BUSES_WORD: u8 = 0x18;
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
    /// The unit that translates what `device` of `segment` does, as an index into [`units`](Self::units); none where no unit covers it.
    pub fn unit_for(
        &self,
        segment: Segment,
        device: SourceId,
        pci: &impl PciConfig,
    ) -> Option<usize> {
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

    /// The memory that `device` must go on reaching at its own address.
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

    /// Whether the root port above `device` passes ATS requests on. Where an ATSR speaks for all ports, so it does for devices under none.
    pub fn may_use_ats(&self, segment: Segment, device: SourceId, pci: &impl PciConfig) -> bool {
        let mut all = self.ats.iter().filter(|a| a.segment == segment);
        all.any(|ats| match ats.ports {
            Covers::Rest => true,
            Covers::Listed => ats.scopes.iter().any(|s| s.names(segment, device, pci)),
        })
    }
}
