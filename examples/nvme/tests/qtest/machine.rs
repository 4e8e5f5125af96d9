// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine with a unit, a controller with a disk, and an `edu`.

use crate::qemu::Qemu;
use ioatlas_dma::{
    dma_api::Lent,
    domain::{Domain, DomainConfig},
    platform::Authority,
    translator::{Paged, TableConfig, VtdSecond48},
    units::*,
};
use ioatlas_host::*;
use ioatlas_nvme::{
    nvme::{command::*, controller::Controller, namespace::Namespace},
    pattern,
    policy::Policy,
    window::{Idle, RegisterWindow},
};
use ioatlas_vtd::{driver, registers::*};
use std::{error::Error, fs, path::Path, sync::Arc, time::Duration};

const MEMORY: u64 = 256 << 20;
const UNIT: u64 = 0xfed9_0000;
/// Below 1 MiB a PC has other things than memory.
const FIRST: PhysPage = PhysPage(0x100);
const NVME: SourceId = SourceId(0x28);
const NVME_REGISTERS: u64 = 0xfe00_0000;
pub const EDU: SourceId = SourceId(0x20);
const EDU_REGISTERS: u64 = 0xfd00_0000;
/// Registers of either.
const REGISTERS_LEN: u64 = 1 << 16;
/// What reads and writes the arena.
// SAFETY: it is the test's own.
pub const OWNER: Authority = unsafe { Authority::assume() };
/// A page of the test's own, lent to a device.
pub fn lend<L>(list: L) -> Lent<L> {
    // SAFETY: as of `OWNER`; it is looked at by copies alone.
    unsafe { Lent::new(list) }
}
pub const DISK: ByteCount = ByteCount(8 << 20);
pub const IDLE: Idle = Idle::Nap(Duration::from_micros(50));

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;
pub type Tables = Paged<Host, VtdSecond48, Arc<driver::Unit<Host, Arc<Window>>>>;

/// Registers at the other end of the socket; of a QEMU that is gone they read as ones, as a device
/// that was pulled out does.
pub struct Window {
    qemu: Arc<Qemu>,
    at: u64,
}

impl Window {
    fn place(&self, offset: u64) -> u64 {
        assert!(offset < REGISTERS_LEN, "{offset:#x} is no register");
        self.at + offset
    }
}

impl RegisterWindow for Window {
    fn read32(&self, offset: u64) -> u32 {
        self.qemu.read32(self.place(offset)).unwrap_or(u32::MAX)
    }
    fn write32(&self, offset: u64, value: u32) {
        let _ = self.qemu.write32(self.place(offset), value);
    }
    fn read64(&self, offset: u64) -> u64 {
        self.qemu.read64(self.place(offset)).unwrap_or(u64::MAX)
    }
    fn write64(&self, offset: u64, value: u64) {
        let _ = self.qemu.write64(self.place(offset), value);
    }
}

// SAFETY: QEMU's unit, by its socket; one machine has it.
unsafe impl Registers for Window {
    fn read32(&self, register: Reg32) -> u32 {
        RegisterWindow::read32(self, register.0.into())
    }
    fn read64(&self, register: Reg64) -> u64 {
        RegisterWindow::read64(self, register.0.into())
    }
    fn write32(&self, register: Reg32, value: u32) {
        RegisterWindow::write32(self, register.0.into(), value);
    }
    fn write64(&self, register: Reg64, value: u64) {
        RegisterWindow::write64(self, register.0.into(), value);
    }
}

pub struct Machine {
    pub qemu: Arc<Qemu>,
    pub host: Arc<Host>,
    pub unit: Arc<driver::Unit<Host, Arc<Window>>>,
    pub domain: Arc<Domain<Host, Tables>>,
    _disk: tempfile::TempDir,
}

impl Machine {
    pub fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let disk = directory.path().join("disk");
        make_disk(&disk)?;
        let devices = [
            "intel-iommu,intremap=off,aw-bits=48",
            "nvme,id=n,addr=05.0,serial=qtest,drive=d",
            "edu,addr=04.0,dma_mask=0xffffffffffffffff",
        ];
        let drive = format!("if=none,id=d,format=raw,file={}", disk.display());
        let qemu = Arc::new(Qemu::start_with(MEMORY, &devices, &["-drive", &drive])?);
        for (device, registers) in [(NVME, NVME_REGISTERS), (EDU, EDU_REGISTERS)] {
            qemu.configure(device, 0x10, registers as u32)?;
            // memory space, bus master
            qemu.configure(device, 0x04, 6)?;
        }
        let config = HostConfig::default()
            .frames((MEMORY >> GRANULE_LG2) as usize)
            .slots(2);
        let host = Arc::new(Host::on_file(qemu.memory(), FIRST, config)?);
        let registers = Arc::new(Window {
            qemu: qemu.clone(),
            at: UNIT,
        });
        let unit = driver::Unit::bring_up(host.clone(), registers, Default::default())?;
        let unit = Arc::new(unit);
        let tables = Paged::new(&host, unit.clone(), TableConfig::default())?;
        let domain = Arc::new(Domain::new(host.clone(), tables, DomainConfig::default())?);
        domain.attach(NVME)?;
        domain.attach(EDU)?;
        Ok(Machine {
            qemu,
            host,
            unit,
            domain,
            _disk: directory,
        })
    }

    fn window(&self, at: u64) -> Arc<Window> {
        let qemu = self.qemu.clone();
        Arc::new(Window { qemu, at })
    }
    pub fn nvme(&self) -> Arc<Window> {
        self.window(NVME_REGISTERS)
    }
    pub fn edu(&self) -> Arc<Window> {
        self.window(EDU_REGISTERS)
    }

    pub fn controller(&self) -> Result<Controller<Tables>> {
        let client = Policy::MapUnmap.client(&self.domain)?;
        Ok(Controller::start(
            self.window(NVME_REGISTERS),
            &client,
            IDLE,
        )?)
    }

    pub fn namespace(&self, controller: &mut Controller<Tables>) -> Result<Namespace> {
        let client = Policy::MapUnmap.client(&self.domain)?;
        Ok(Namespace::open(controller, &client, NamespaceId(1))?)
    }
}

fn make_disk(at: &Path) -> Result<()> {
    let bytes: Vec<u8> = pattern::disk(DISK).flatten().collect();
    Ok(fs::write(at, bytes)?)
}
