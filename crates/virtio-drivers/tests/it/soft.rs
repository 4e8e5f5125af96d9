// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A software unit over this process, its domains, and their end, by which everything must be back.

use crate::platform::Process;
use ioatlas_dma::{dma_api::Dma, domain::*, table::fmt::VtdSecond48, translator::Paged, units::*};
use ioatlas_viommu::machine::{Driver, Geometry, Machine, UnitConfig};
use std::sync::Arc;

/// The translator of a software domain.
type Tables = Paged<Process, VtdSecond48, Arc<Driver<Process>>>;
pub type SoftDma = Dma<Process, Tables>;

/// What most tests have: 64 MiB.
pub const FRAMES: u64 = 16 << 10;

pub fn machine(frames: u64) -> Arc<Machine<Process>> {
    let memory = Arc::new(Process::new(frames));
    Arc::new(Machine::new(memory, &UnitConfig::new(Geometry::VTD_48)).unwrap())
}

pub fn strict() -> DomainConfig {
    DomainConfig::default()
}

pub fn deferred() -> DomainConfig {
    let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default());
    DomainConfig::new(AllocatorConfig::Magazine(Default::default()), policy)
}

/// Ends a domain whose drivers have ended: nothing is mapped.
pub fn end_domain(dma: Arc<SoftDma>) {
    assert_eq!(
        (dma.raw_mappings(), dma.drop_errors()),
        (0, 0),
        "P10: all was unmapped"
    );
    dma.audit().unwrap();
    let domain = dma.domain().clone();
    drop(Arc::into_inner(dma).expect("nothing else has it")); // with its pools
    domain.flush().unwrap();
    let audit = domain.audit().unwrap();
    assert_eq!(audit.census.pages, PageCount(0), "P10: {audit:?}");
    assert_eq!(audit.stats.live, PageCount(0), "P10: {audit:?}");
    assert_eq!(
        audit.stats.quarantined,
        Default::default(),
        "P10: {audit:?}"
    );
    drop(Arc::into_inner(domain).expect("nothing else has it"));
}

/// Ends a machine whose domains have ended: no frame is taken.
pub fn end_machine(machine: Arc<Machine<Process>>) {
    let memory = machine.platform().clone();
    let machine = Arc::into_inner(machine).expect("nothing else has the machine");
    machine.shut_down().unwrap();
    assert_eq!(memory.frames_in_use(), 0, "P10: all frames are back");
}
