// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Maps a buffer for a device, uses it, unmaps it; no hardware needed. README shows the same.

use ioatlas_dma::{domain::DomainConfig, platform::host::Host, table::fmt::VtdSecond48, units::*};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::Machine,
};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Arc::new(Host::new(Default::default()));
    let machine = Machine::new(memory, &UnitConfig::new(Geometry::VTD_48))?; // a software VT-d unit
    let domain = machine.domain::<VtdSecond48>(DomainConfig::default())?; // magazines, strict
    let nic = SourceId(0x20); // 00:04.0
    domain.attach(nic)?;

    let packet = PhysRange::new(PhysAddr(0x1234_5678), ByteCount(1500));
    let mapping = domain.map(packet, Direction::ToDevice)?;
    let iova = mapping.iova();
    let read = machine.access(nic, iova, AccessKind::Read);
    let write = machine.access(nic, iova, AccessKind::Write);
    domain.unmap(mapping)?;
    let later = machine.access(nic, iova, AccessKind::Read);
    println!("mapped at {iova}");
    println!("read:  {}", read.outcome);
    println!("write: {}", write.outcome);
    println!("later: {}", later.outcome);
    Ok(())
}
