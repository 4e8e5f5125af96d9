// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Maps a buffer for a device, uses it, unmaps it; no hardware needed. README shows the same.

use ioatlas_dma::{domain::DomainConfig, table::fmt::VtdSecond48, units::*};
use ioatlas_host::Host;
use ioatlas_viommu::{config::*, machine::Machine};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = std::sync::Arc::new(Host::new(Default::default()));
    let machine = Machine::new(memory, &UnitConfig::new(Geometry::VTD_48))?; // a software VT-d unit
    let domain = machine.domain::<VtdSecond48>(DomainConfig::default())?; // magazines, strict
    let nic = SourceId(0x20); // 00:04.0
    domain.attach(nic)?;

    let packet = PhysRange::new(PhysAddr(0x1234_5678), ByteCount(1500));
    let mapping = domain.map(packet, Direction::ToDevice)?;
    let iova = mapping.iova();
    let access = |kind| machine.access(nic, iova, kind).outcome;
    println!("read at {iova}: {}", access(AccessKind::Read));
    println!("write: {}", access(AccessKind::Write)); // blocked: mapped to be read
    domain.unmap(mapping)?;
    println!("read after unmap: {}", access(AccessKind::Read)); // blocked
    Ok(())
}
