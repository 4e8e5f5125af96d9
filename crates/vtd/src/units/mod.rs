// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every remapping unit of a machine: brought up together, each device routed to its own.
//!
//! # Theory
//!
//! A machine has as many units as its [`Dmar`] lists. [`Units::prepare`] makes each of them ready
//! and [`Units::activate`] lets each translate, as [`Unit::prepare`] and [`Unit::activate`] do for
//! one. In between is the time for devices that firmware has at work (USB keyboards, management
//! controllers): make a domain, map the memory that they must go on reaching
//! ([`Units::reserved_for`], [`map_reserved`]), attach them. Where firmware left the unit
//! translating, [`Unit::reserve_firmware_ids`] comes before the domain.
//!
//! **A unit that fails fails alone.** The others go on; what becomes of its devices is in
//! [`Failure`], and a caller that asks for the unit of one of them gets an error. So no device is
//! ever attached to a unit that does not translate.
//!
//! A device belongs to one unit, and a domain to one unit too: its tables are shaped and its caches
//! flushed by what that unit can do. [`Units::attach`] refuses to attach a device to a domain of
//! another unit, where it would be blocked forever.
//!
//! [`Units::from_acpi`] and [`Units::device`] do all of it, for a kernel that wants a client of the
//! DMA API for each device.
//!
//! Not handled: units that come and go while the machine runs, buses that are renumbered while
//! devices are attached.

mod device;
mod error;
mod reserved;

pub use device::{AcpiError, ClientError, DeviceClient};
pub use error::{AtsError, DeviceIs, Failure, FailureCause, RouteError, UnitAttachError};
pub use reserved::{ReservedError, map_reserved};

use crate::{
    acpi::{Dmar, PciConfig, Segment},
    driver::{BringUpError, Config, Unit},
    layout::{Capabilities, QueueDepth},
    registers::*,
};
use alloc::{sync::Arc, vec::Vec};
use core::fmt;
use ioatlas_dma::{
    domain::Domain,
    platform::Platform,
    translator::Translator,
    units::{ByteCount, PhysAddr, PhysRun, SourceId},
};

/// A unit that others share; its registers are shared with the code that reports on it.
pub type SharedUnit<P, R> = Arc<Unit<P, Arc<R>>>;

/// A PCI function of the whole machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Requester {
    /// The PCI segment it is in.
    pub segment: Segment,
    /// Its source id there.
    pub device: SourceId,
}

impl From<SourceId> for Requester {
    /// The one of segment 0, which most machines have alone.
    fn from(device: SourceId) -> Self {
        let segment = Segment(0);
        Requester { segment, device }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.device)
    }
}

/// All units of a machine. The index of a unit is that of its structure in [`Dmar::units`].
pub struct Units<P: Platform, R> {
    dmar: Dmar,
    all: Vec<Result<Up<P, R>, Failure>>,
}

struct Up<P: Platform, R> {
    unit: SharedUnit<P, R>,
    registers: Arc<R>,
}

impl<P: Platform, R: Registers> Units<P, R> {
    /// Makes every unit ready. `registers` gives access to so many bytes of registers at an
    /// address, or nothing where it cannot; it is asked again where a unit has more of them
    /// than the table says.
    pub fn prepare(
        platform: &Arc<P>,
        dmar: Dmar,
        config: Config,
        mut registers: impl FnMut(PhysAddr, ByteCount) -> Option<R>,
    ) -> Self {
        let all = dmar.units.iter().map(|listed| {
            let (at, bytes) = (listed.registers, listed.register_bytes());
            let cannot = Failure {
                registers: at,
                cause: FailureCause::NoRegisters,
                devices: DeviceIs::Unknown,
            };
            let mut window = registers(at, bytes).ok_or(cannot)?;
            let capabilities = Capabilities::new(window.read64(CAP), window.read64(ECAP));
            let needed = capabilities.register_bytes();
            if !capabilities.is_absent() && needed > bytes {
                window = registers(at, needed).ok_or(cannot)?;
            }
            let window = Arc::new(window);
            match Unit::prepare(platform.clone(), window.clone(), config) {
                Ok(unit) => Ok(Up {
                    unit: Arc::new(unit),
                    registers: window,
                }),
                Err(cause) => Err(Failure::of(at, cause, &*window, DeviceIs::AsBefore)),
            }
        });
        let all = all.collect();
        Units { dmar, all }
    }

    /// Lets every unit translate that was made ready. What was attached until now is
    /// translated, everything else blocked.
    pub fn activate(&mut self) {
        for (slot, listed) in self.all.iter_mut().zip(&self.dmar.units) {
            if let Ok(up) = slot
                && let Err(cause) = up.unit.activate()
            {
                let at = listed.registers;
                *slot = Err(Failure::of(at, cause, &*up.registers, DeviceIs::Unknown));
            }
        }
    }

    /// Both in one: no device is attached, so all are blocked that have a unit, and every unit
    /// either translates or is among the [`failures`](Self::failures).
    pub fn bring_up(
        platform: &Arc<P>,
        dmar: Dmar,
        config: Config,
        registers: impl FnMut(PhysAddr, ByteCount) -> Option<R>,
    ) -> Self {
        let mut units = Self::prepare(platform, dmar, config, registers);
        units.activate();
        units
    }

    /// The table that announced them.
    pub fn dmar(&self) -> &Dmar {
        &self.dmar
    }
    /// The units that work, with their indices.
    pub fn working(&self) -> impl Iterator<Item = (usize, &SharedUnit<P, R>)> {
        let all = self.all.iter().enumerate();
        all.filter_map(|(index, up)| Some((index, &up.as_ref().ok()?.unit)))
    }
    /// The units that do not, with their indices.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &Failure)> {
        let all = self.all.iter().enumerate();
        all.filter_map(|(index, up)| Some((index, up.as_ref().err()?)))
    }

    /// The unit that translates what `requester` does.
    ///
    /// # Errors
    /// No unit does, or the one that should failed.
    pub fn unit_of(
        &self,
        requester: Requester,
        pci: &impl PciConfig,
    ) -> Result<&SharedUnit<P, R>, RouteError> {
        let index = self.dmar.unit_for(requester.segment, requester.device, pci);
        match index.and_then(|index| self.all.get(index)) {
            None => Err(RouteError::NoUnit { requester }),
            Some(Ok(up)) => Ok(&up.unit),
            Some(Err(failure)) => Err(RouteError::Failed {
                requester,
                failure: *failure,
            }),
        }
    }

    /// Attaches `requester` to `domain`, if the domain is one of its unit.
    ///
    /// # Errors
    /// No working unit, another unit's domain, or what the unit answered ([`UnitAttachError`]).
    pub fn attach<T: Translator<P, Unit = SharedUnit<P, R>>>(
        &self,
        requester: Requester,
        pci: &impl PciConfig,
        domain: &Domain<P, T>,
    ) -> Result<(), UnitAttachError> {
        let unit = self.unit_of(requester, pci)?;
        if !Arc::ptr_eq(unit, domain.unit()) {
            return Err(UnitAttachError::OtherUnit { requester });
        }
        Ok(domain.attach(requester.device)?)
    }

    /// The memory that `requester` must go on reaching at its own address: ascending, without
    /// overlaps. [`map_reserved`] maps it, before the device is attached.
    pub fn reserved_for(&self, requester: Requester, pci: &impl PciConfig) -> Vec<PhysRun> {
        let all = self
            .dmar
            .reserved_for(requester.segment, requester.device, pci);
        reserved::merged(all.map(|rmrr| rmrr.memory).collect())
    }

    /// Declares that `requester` keeps translations of its own, if the root port above it may pass
    /// what it needs for that; see [`Unit::declare_device_tlb`].
    ///
    /// # Errors
    /// No working unit, no ATSR for its root port, or what the unit answered ([`AtsError`]).
    pub fn declare_device_tlb(
        &self,
        requester: Requester,
        pci: &impl PciConfig,
        depth: QueueDepth,
    ) -> Result<(), AtsError> {
        let unit = self.unit_of(requester, pci)?;
        if !self
            .dmar
            .may_use_ats(requester.segment, requester.device, pci)
        {
            return Err(AtsError::Port { requester });
        }
        Ok(unit.declare_device_tlb(requester.device, depth)?)
    }
}

impl Failure {
    /// A failure, and what the unit's status says of its devices; `translating` where it
    /// says that it translates.
    fn of<R: Registers>(
        registers: PhysAddr,
        cause: BringUpError,
        window: &R,
        translating: DeviceIs,
    ) -> Self {
        let devices = match cause {
            BringUpError::Absent { .. } => DeviceIs::Unknown,
            _ if window.read32(GSTS) & GCMD_TE == 0 => DeviceIs::Free,
            _ => translating,
        };
        Failure {
            registers,
            cause: FailureCause::BringUp(cause),
            devices,
        }
    }
}

impl<P: Platform, R> fmt::Debug for Units<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all.iter().map(|up| up.as_ref().map(|up| &up.unit));
        f.debug_list().entries(all).finish()
    }
}
