// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Explains remapping units: what each can do, and what the driver does because of it.
//!
//! `cargo run --release --example vtd-unit`
//!
//! First QEMU's, if QEMU is installed: its ACPI table says where the unit is, its registers say the
//! rest. Then the software unit: each kind as a table of ACPI would announce it, brought up by the
//! driver; of the first every line, of the others what differs from it.

mod qemu;

use ioatlas_dma::{
    domain::WaitLimit,
    units::{PhysAddr, SourceId},
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{
    announce::{Announcement, UnitPlace},
    config::*,
    mmio::MmioWindow,
    unit::SoftUnit,
};
use ioatlas_vtd::{
    acpi::{Covers, Dmar, Segment},
    driver::{Config, Explanation},
    layout::Capabilities,
    registers::{CAP, ECAP},
    units::{Requester, Units},
};
use std::{error::Error, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    println!("QEMU's unit\n===========");
    match qemu::Qemu::start("intel-iommu,intremap=on,device-iotlb=on")? {
        Some(mut qemu) => explain_qemu(&mut qemu)?,
        None => println!("{}", qemu::INSTALL),
    }
    println!("\nThe software unit\n=================");
    let mut plain = None;
    for (name, change) in KINDS {
        let text = explain_software(change).map_err(|e| format!("{name}: {e}"))?;
        match &plain {
            None => {
                println!("{name}\n{text}");
                plain = Some(text);
            }
            Some(plain) => println!("{name}\n{}", different(plain, &text)),
        }
    }
    Ok(())
}

fn explain_qemu(qemu: &mut qemu::Qemu) -> Result<(), Box<dyn Error>> {
    let tables = qemu.firmware_file("etc/acpi/tables")?;
    let dmar = dmar_among(&tables).ok_or("QEMU announces no unit")??;
    print!("{}", announced(&dmar));
    for unit in &dmar.units {
        let mut read = |register| qemu.read64(unit.registers.0 + u64::from(register));
        let capabilities = Capabilities::new(read(CAP.0)?, read(ECAP.0)?);
        print!("{}", Explanation::of(&capabilities));
    }
    Ok(())
}

/// The tables lie one after the other as firmware is to place them, each with its length; checksums
/// are firmware's to fill in.
fn dmar_among(mut tables: &[u8]) -> Option<Result<Dmar, Box<dyn Error>>> {
    loop {
        let length = u32::from_le_bytes(tables.get(4..8)?.try_into().ok()?) as usize;
        if tables.starts_with(b"DMAR") {
            let mut table = tables.get(..length)?.to_vec();
            let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            *table.get_mut(9)? = table.get(9)?.wrapping_sub(sum);
            return Some(Dmar::parse(&table).map_err(Into::into));
        }
        // the table FACS and padding before the others have no checksum to step by, but a length
        tables = tables.get(length.max(8)..)?;
    }
}

fn announced(dmar: &Dmar) -> String {
    let mut text = format!(
        "ACPI: addresses of {} bits, interrupts {}\n",
        dmar.host_address_bits,
        if dmar.interrupt_remapping {
            "can be remapped"
        } else {
            "cannot be remapped"
        },
    );
    for unit in &dmar.units {
        let devices = match unit.devices {
            Covers::Rest => "every device of its segment".to_string(),
            Covers::Listed => format!("{} functions and I/O APICs", unit.scopes.len()),
        };
        let (bytes, at) = (unit.register_bytes(), unit.registers);
        text += &format!("ACPI: a unit, {bytes} bytes of registers at {at}, for {devices}\n");
    }
    text
}

type Change = fn(&mut UnitConfig);

const KINDS: [(&str, Change); 9] = [
    ("plain", |_| {}),
    ("caching mode", |c| c.features.caching_mode = true),
    ("write buffers", |c| {
        c.features.write_buffers = WriteBuffers::FlushedByCommand
    }),
    ("walks that do not snoop", |c| c.features.coherent = false),
    ("no queue", |c| {
        c.registers.interface = InvalidationInterface::Registers
    }),
    ("no pages, no drains, few domains", |c| {
        c.features.page_selective = None;
        (c.features.drain_reads, c.features.drain_writes) = (false, false);
        c.features.nd = 0;
    }),
    ("device TLBs, interrupts, large leaves", |c| {
        c.features.device_tlbs = true;
        c.registers.interrupts = InterruptRemapping::Extended;
        c.features.largest_leaf = 3;
    }),
    ("39 bits", |c| *c = UnitConfig::new(Geometry::VTD_39)),
    ("flushed by its root pointer, 256 fault records", |c| {
        c.registers.root_pointer = RootPointer::LatchesAndFlushes;
        (c.fault_records, c.registers.fault_offset) = (256, 0x400);
    }),
];

/// As a guest finds it: by the table's bytes, through the window.
fn explain_software(change: Change) -> Result<String, Box<dyn Error>> {
    const REGISTERS: PhysAddr = PhysAddr(0xfed9_0000);
    let mut config = UnitConfig::new(Geometry::VTD_48);
    change(&mut config);
    let host = Arc::new(Host::new(HostConfig::default().frames(16).slots(1)));
    let unit = Arc::new(SoftUnit::new(host.clone(), &config)?);
    let window = Arc::new(MmioWindow::new(unit));
    let place = UnitPlace {
        segment: Segment(0),
        registers: REGISTERS,
        devices: Covers::Rest,
        scopes: Vec::new(),
    };
    let table = Announcement::new(48).unit(&window, place).build()?;
    let dmar = Dmar::parse(&table)?;
    let text = announced(&dmar);
    let config = Config::default().limit(WaitLimit(1000));
    let units = Units::bring_up(&host, dmar, config, |at, bytes| {
        (at == REGISTERS && bytes.0 <= window.len()).then(|| window.clone())
    });
    let requester = Requester {
        segment: Segment(0),
        device: SourceId(0x20),
    };
    let no_pci = |_: Segment, _: SourceId, _: u16| u32::MAX;
    let unit = units.unit_of(requester, &no_pci)?;
    Ok(format!("{text}{}", unit.explain()))
}

/// The lines of `text` that are not in `plain`.
fn different(plain: &str, text: &str) -> String {
    let other = |line: &&str| !plain.lines().any(|l| l == *line);
    text.lines()
        .filter(other)
        .map(|line| format!("{line}\n"))
        .collect()
}
