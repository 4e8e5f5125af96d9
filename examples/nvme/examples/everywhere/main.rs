// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The same code over three things that are below a `Domain`: a software unit, QEMU's VT-d unit,
//! and the kernel's VFIO.
//!
//! `cargo run -p ioatlas-nvme --example everywhere` runs the first, and the second where QEMU is
//! installed; with the PCI address of an `edu` that is bound to vfio-pci it runs the third, too.

#[allow(dead_code)]
#[path = "../../tests/qtest/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../../../../crates/vtd/tests/conformance/qemu.rs"]
mod qemu;
mod software;

use ioatlas_dma::{domain::*, translator::Translator, units::*};
use ioatlas_host::Host;
use ioatlas_nvme::{
    edu::Edu, memory::Layout, round_trip::round_trip, vfio::Registers, window::RegisterWindow,
};
use ioatlas_vfio::{device::PciAddress, kernel::Linux, space::AnySpace, translator::Vfio};
use std::{error::Error, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    over_software()?;
    match qemu::program() {
        Some(_) => over_qemu()?,
        None => println!("QEMU's unit: {}", qemu::INSTALL),
    }
    if let Some(address) = std::env::args().nth(1) {
        over_vfio(address.parse()?)?;
    }
    Ok(())
}

/// All that differs is what `T` and `W` are.
fn run<T: Translator<Host>, W: RegisterWindow>(
    name: &str,
    domain: &Domain<Host, T>,
    registers: W,
) -> Result<(), Box<dyn Error>> {
    let edu = Edu::new(registers)?;
    let seen = round_trip(domain, &edu)?;
    println!(
        "{name}: {} bytes there and back, {} wrong; {} changed after unmap",
        seen.bytes, seen.wrong_bytes, seen.stray_bytes
    );
    match seen.is_good() {
        true => Ok(()),
        false => Err(format!("{name}: {seen:?}").into()),
    }
}

fn over_software() -> Result<(), Box<dyn Error>> {
    let (domain, edu) = software::machine()?;
    run("a software unit", &domain, edu)
}

fn over_qemu() -> Result<(), Box<dyn Error>> {
    let machine = machine::Machine::start()?;
    machine.qemu.monitor("cont")?; // edu needs the machine's clock
    run("QEMU's unit", &machine.domain, machine.edu())
}

fn over_vfio(address: PciAddress) -> Result<(), Box<dyn Error>> {
    let space = AnySpace::open(Arc::new(Linux), &[address])?;
    let name = space.to_string();
    let registers = Registers::of(&space.devices()[0])?;
    let memory = Arc::new(Layout::Small.arena(ByteCount(2 << 20))?);
    let domain = Vfio::domain(memory, space, DomainConfig::default())?;
    domain.attach(address.source())?;
    run(&name, &domain, registers)
}
