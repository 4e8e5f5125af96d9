// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From a device to what its driver maps with: where most kernels begin.
//!
//! What it is made of can be had by itself, for several devices in one domain, or another format:
//!
//! ```text
//! Units::unit_of   the device's unit
//! Paged::new       page tables under it
//! Domain::new      IOVAs, and when to invalidate
//! map_reserved     what firmware has the device reach
//! Domain::attach   from now on it reaches what is mapped
//! Dma::client      the DMA API, with bounce buffers
//! ```

use super::{Requester, ReservedError, RouteError, SharedUnit, Units, map_reserved};
use crate::{
    acpi::{Dmar, DmarError, PciConfig, find},
    driver::Config,
    registers::Registers,
};
use alloc::sync::Arc;
use ioatlas_dma::{
    design::Design,
    dma_api::{Client, ClientConfig, Dma, DmaConfig, PoolError},
    domain::{Domain, DomainConfig, DomainError},
    platform::{CopyMemory, Platform},
    table::fmt::VtdSecond48,
    translator::{AttachError, Paged, PagedError},
    units::{ByteCount, PhysAddr},
};

/// The DMA API's client of a device, in a domain with tables of four levels.
pub type DeviceClient<P, R> = Client<P, Paged<P, VtdSecond48, SharedUnit<P, R>>>;

/// Why a machine has no units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcpiError {
    /// No table announces them.
    #[error(transparent)]
    Find(#[from] find::FindError),
    /// The table that does is malformed.
    #[error(transparent)]
    Parse(#[from] DmarError),
}

/// Why a device has no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// It has no unit that works.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// There are no tables for it.
    #[error(transparent)]
    Tables(#[from] PagedError),
    /// There is no domain for it: for one, its unit does not walk tables of four levels.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// What firmware has it reach cannot be mapped.
    #[error(transparent)]
    Reserved(#[from] ReservedError),
    /// There is no pool of bounce buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// It is in a domain already, or the unit did not answer.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl<P: Platform, R: Registers> Units<P, R> {
    /// Brings up all units that firmware announces: reads the tables that begin at `root_pointer`
    /// ([`find::root_pointer`], where no loader hands it over), and then as
    /// [`bring_up`](Self::bring_up).
    ///
    /// # Errors
    /// [`AcpiError`]. A unit that fails is among the [`failures`](Self::failures).
    pub fn from_acpi(
        platform: &Arc<P>,
        memory: &impl find::PhysRead,
        root_pointer: PhysAddr,
        registers: impl FnMut(PhysAddr, ByteCount) -> Option<R>,
    ) -> Result<Self, AcpiError> {
        let dmar = Dmar::parse(&find::dmar(memory, root_pointer)?)?;
        Ok(Self::bring_up(platform, dmar, Config::DEFAULT, registers))
    }
}

impl<P: CopyMemory, R: Registers> Units<P, R> {
    /// What the driver of `requester` maps with. The device has a domain of its own, which is
    /// strict: after an unmap it reaches nothing. A buffer that shares a page is bounced, so that
    /// it never reaches what lies beside ([`ClientConfig::UNTRUSTED`]).
    ///
    /// The device may be a bus master from then on. It is blocked again when the last clone of the
    /// client is gone, and the last array of it; it should be quiet then, or its accesses are
    /// faults.
    ///
    /// # Errors
    /// [`ClientError`]; the device is blocked then, as before.
    pub fn device(
        &self,
        requester: impl Into<Requester>,
        pci: &impl PciConfig,
    ) -> Result<DeviceClient<P, R>, ClientError> {
        self.device_with(
            requester,
            pci,
            DomainConfig::default(),
            DmaConfig::default(),
            ClientConfig::UNTRUSTED,
        )
    }

    /// The same under a design, pools and a placement of one's own. A design that defers
    /// invalidations wants [`Domain::tick`] called, and bounce buffers [`Dma::tick`], of
    /// [`Client::dma`].
    ///
    /// Memory that firmware reserves for the device ([`reserved_for`](Self::reserved_for)) stays
    /// mapped where it is, until the domain ends.
    ///
    /// # Errors
    /// [`ClientError`]; the device is blocked then, as before.
    pub fn device_with(
        &self,
        requester: impl Into<Requester>,
        pci: &impl PciConfig,
        design: impl Into<Design>,
        dma: DmaConfig,
        client: ClientConfig,
    ) -> Result<DeviceClient<P, R>, ClientError> {
        let (requester, design) = (requester.into(), design.into());
        let unit = self.unit_of(requester, pci)?;
        let platform = unit.shared_platform();
        let tables = Paged::new(platform, unit.clone(), design.tables)?;
        let domain = Domain::new(platform.clone(), tables, design.domain)?;
        let domain = Arc::new(domain);
        // SAFETY: what firmware's tables say of this device, which is alone in the domain.
        #[allow(unsafe_code)]
        let reserved = unsafe { map_reserved(&domain, &self.reserved_for(requester, pci)) }?;
        drop(reserved); // they end with the domain
        let client = Arc::new(Dma::new(domain.clone(), dma)).client(client)?;
        domain.attach(requester.device)?;
        Ok(client)
    }
}
