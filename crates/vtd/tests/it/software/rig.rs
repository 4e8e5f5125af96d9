// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver in front of a software unit.

use crate::common::{BY, shut_down};
use ioatlas_dma::{
    domain::{Domain, DomainConfig, PolicyConfig},
    invalidation::WaitLimit,
    iova::AllocatorConfig,
    platform::{Ordering, PhysMemory},
    table::{TableConfig, fmt::VtdSecond48},
    translator::Paged,
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{config::*, device::Ats, observe::Outcome, unit::SoftUnit};
use ioatlas_vtd::{
    acpi::find::Unreadable,
    driver::{Config, Unit},
    registers::*,
};
use std::sync::Arc;

pub const NIC: SourceId = SourceId(0x0020);
pub const DISK: SourceId = SourceId(0x0028);
pub const LIMIT: WaitLimit = WaitLimit(10_000);
pub const OLD: PhysPage = PhysPage(0x100);
pub const OTHER: PhysPage = PhysPage(0x200);

pub type Soft = SoftUnit<Host, Host>;
pub type Driver = Arc<Unit<Host, Stepping>>;
pub type Tables = Paged<Host, VtdSecond48, Driver>;
pub type TestDomain = Domain<Host, Tables>;

/// The unit's registers. Where no other code does, it takes a step of its queue whenever a caller
/// that waits looks at a status.
pub struct Stepping(pub Arc<Soft>);

// SAFETY: the software unit's.
unsafe impl Registers for Stepping {
    fn table_entries_lg2(&self) -> u32 {
        self.0.table_entries_lg2()
    }
    fn read32(&self, register: Reg32) -> u32 {
        self.0.service();
        self.0.read32(register)
    }
    fn read64(&self, register: Reg64) -> u64 {
        self.0.read64(register)
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.0.write32(register, value);
    }
    fn write64(&self, register: Reg64, value: u64) {
        self.0.write64(register, value);
    }
}

/// Reads of physical memory, which is the host's frames.
pub fn read(host: &Host) -> impl Fn(PhysAddr, &mut [u8]) -> Result<(), Unreadable> {
    |at, into| {
        for (n, bytes) in into.chunks_mut(8).enumerate() {
            let at = at.0 + 8 * n as u64;
            let index = (at % GRANULE / 8) as usize;
            let word = host
                .word(BY, PhysPage(at / GRANULE), index)
                .ok_or(Unreadable)?;
            bytes.copy_from_slice(&word.load(Ordering::SeqCst).to_le_bytes());
        }
        Ok(())
    }
}

pub struct Rig {
    pub host: Arc<Host>,
    pub soft: Arc<Soft>,
    pub driver: Driver,
}

pub fn config(change: impl FnOnce(&mut UnitConfig)) -> UnitConfig {
    let mut config = UnitConfig::new(Geometry::VTD_48);
    change(&mut config);
    config
}

pub fn memory() -> Arc<Host> {
    Arc::new(Host::new(HostConfig::default().frames(64).slots(2)))
}

pub const HOST: Config = Config::DEFAULT.limit(LIMIT);

impl Rig {
    pub fn new(change: impl FnOnce(&mut UnitConfig)) -> Self {
        let host = memory();
        let soft = Arc::new(Soft::new(host.clone(), &config(change)).unwrap());
        let driver = Unit::bring_up(host.clone(), Stepping(soft.clone()), HOST).unwrap();
        let driver = Arc::new(driver);
        Rig { host, soft, driver }
    }
    pub fn domain(&self) -> TestDomain {
        let design =
            DomainConfig::new(AllocatorConfig::RBTREE, PolicyConfig::Strict).wait_limit(LIMIT);
        let tables = Tables::new(&self.host, self.driver.clone(), TableConfig::default());
        Domain::new(self.host.clone(), tables.unwrap(), design).unwrap()
    }
    /// Attaches `source`, and switches its ATS on where it has it.
    pub fn attach(&self, domain: &TestDomain, source: SourceId) {
        domain.attach(source).unwrap();
        let _ = self.soft.switch_ats(source, Ats::On);
    }
    /// The opposite: its TLB is empty before its ATS is off.
    pub fn detach(&self, domain: &TestDomain, source: SourceId) {
        domain.detach(source).unwrap();
        let _ = self.soft.switch_ats(source, Ats::Off);
    }
    pub fn reach(&self, source: SourceId, at: Iova) -> Option<PhysPage> {
        match self
            .soft
            .access(source, at.page(), AccessKind::Read)
            .outcome
        {
            Outcome::Translated { page, .. } => Some(page),
            _ => None,
        }
    }
    pub fn end(self) {
        let driver = Arc::into_inner(self.driver).expect("no domain is left");
        shut_down(driver).map_err(|(e, _)| e).unwrap();
        assert_eq!(self.host.frames_in_use(), 0);
        self.soft.audit().unwrap();
    }
}
