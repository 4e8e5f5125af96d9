// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's unit and its devices. Its memory is a file that we map as our platform's arena, so
//! driver, tables and domains run on it unchanged.
//!
//! Reset is by registers, in the order that QEMU's unit insists on: it disables its queue only when
//! that is empty and the last descriptor was a wait.

use crate::BY;
use crate::{
    bench::*,
    nvme::Nvme,
    qemu::{Gone, Qemu},
};
use ioatlas_dma::{
    platform::{Ordering, PhysMemory},
    units::*,
};
use ioatlas_host::*;
use ioatlas_vtd::{layout::AddressWidth, registers::*};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

/// Where q35 has its unit.
const UNIT: u64 = 0xfed9_0000;
/// The first that is handed out: below 1 MiB a PC has other things than memory. What is there below
/// 640 KiB serves resets.
const FIRST: PhysPage = PhysPage(0x100);
const EMPTY_ROOT: PhysPage = PhysPage(0x50);
const SCRATCH: PhysPage = PhysPage(0x51);

pub struct QemuBench {
    qemu: Arc<Qemu>,
    registers: Arc<Socket>,
    host: Arc<Host>,
    devices: Vec<Nvme>,
    width: AddressWidth,
}

/// Registers at the other end of the socket. After the first failure all read as 0, which no driver
/// waits for without end.
struct Socket {
    qemu: Arc<Qemu>,
    failed: Mutex<Option<Gone>>,
}

impl Socket {
    fn note<T: Default>(&self, result: Result<T, Gone>) -> T {
        result.unwrap_or_else(|gone| {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(gone);
            T::default()
        })
    }
}

// SAFETY: QEMU's unit, by its socket; one bench has it.
unsafe impl Registers for Socket {
    fn read32(&self, register: Reg32) -> u32 {
        self.note(self.qemu.read32(UNIT + u64::from(register.0)))
    }
    fn read64(&self, register: Reg64) -> u64 {
        self.note(self.qemu.read64(UNIT + u64::from(register.0)))
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.note(self.qemu.write32(UNIT + u64::from(register.0), value));
    }
    fn write64(&self, register: Reg64, value: u64) {
        self.note(self.qemu.write64(UNIT + u64::from(register.0), value));
    }
}

impl QemuBench {
    /// Starts a machine whose unit walks tables up to `width`.
    ///
    /// # Errors
    /// It did not start.
    pub fn start(width: AddressWidth) -> io::Result<Self> {
        Self::start_with(width, &DEVICES, &[])
    }

    /// The same, with some of the devices only, and with others, in QEMU's words.
    ///
    /// # Errors
    /// It did not start.
    pub fn start_with(
        width: AddressWidth,
        sources: &[SourceId],
        others: &[&str],
    ) -> io::Result<Self> {
        let unit = format!("intel-iommu,intremap=off,aw-bits={}", width.bits());
        let devices: Vec<String> = sources.iter().copied().map(Nvme::argument).collect();
        let arguments: Vec<&str> = [unit.as_str()]
            .into_iter()
            .chain(devices.iter().map(String::as_str))
            .chain(others.iter().copied())
            .collect();
        let qemu = Arc::new(Qemu::start(MEMORY, &arguments)?);
        let config = HostConfig::default()
            .frames((MEMORY >> GRANULE_LG2) as usize)
            .slots(2);
        let host = Arc::new(
            Host::on_file(qemu.memory(), FIRST, config)?
                .with_heap(ByteCount(16 << 20))
                .map_err(io::Error::other)?,
        );
        let devices = sources
            .iter()
            .enumerate()
            .map(|(n, source)| Nvme::start(&qemu, n, *source))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        let registers = Arc::new(Socket {
            qemu: qemu.clone(),
            failed: Mutex::new(None),
        });
        refill(&host);
        Ok(QemuBench {
            qemu,
            registers,
            host,
            devices,
            width,
        })
    }

    pub fn qemu(&self) -> Arc<Qemu> {
        self.qemu.clone()
    }

    fn transfer(&mut self, source: SourceId, at: Iova, kind: AccessKind) -> Result<Reach, Gone> {
        let device = self.devices.iter_mut().find(|d| d.source() == source);
        let device = device.ok_or_else(|| Gone::because("an access", "there is no such device"))?;
        let word = (at.offset() / 8) as usize;
        if kind == AccessKind::Read {
            return Ok(match device.read(&self.qemu, at)? {
                0 => Reach::Blocked,
                value => filled(value, word).map_or(Reach::Strange(value), Reach::Page),
            });
        }
        let value = device.write(&self.qemu, at)?;
        // above 48 bits lies where the timestamp comes from
        let written = |page: &PhysPage| {
            let held = self.host.word(BY, *page, word);
            held.is_some_and(|held| held.load(Ordering::Acquire) << 16 == value << 16)
        };
        let pages: Vec<PhysPage> = TARGETS.into_iter().filter(written).collect();
        refill_word(&self.host, word);
        Ok(match pages[..] {
            [] => Reach::Blocked,
            [page] => Reach::Page(page),
            _ => Reach::Strange(value),
        })
    }
}

impl Bench for QemuBench {
    fn which(&self) -> Which {
        Which::Qemu
    }
    fn width(&self) -> AddressWidth {
        self.width
    }
    fn host(&self) -> &Arc<Host> {
        &self.host
    }
    fn registers(&self) -> Arc<dyn Registers> {
        self.registers.clone()
    }
    fn devices(&self) -> usize {
        self.devices.len()
    }
    fn access(&mut self, source: SourceId, at: Iova, kind: AccessKind) -> Reach {
        if self.trouble().is_some() {
            return Reach::Strange(0);
        }
        let reach = self.transfer(source, at, kind);
        reach.unwrap_or_else(|gone| {
            self.registers.note::<()>(Err(gone));
            Reach::Strange(0)
        })
    }
    fn reset(&mut self) {
        let r = &*self.registers;
        r.write32(FSTS, FSTS_QUEUE | FSTS_PFO);
        let status = r.read32(GSTS);
        if status & GCMD_QIE != 0 {
            // one wait descriptor in the place of all that is left, so that the last one was a wait
            let ring = PhysAddr(r.read64(IQA)).page();
            let head = r.read64(IQH) >> IQ_INDEX_SHIFT & IQ_INDEX_MASK;
            for (n, word) in [0x25, SCRATCH.addr().0].into_iter().enumerate() {
                if let Some(slot) = self.host.word(BY, ring, head as usize * 2 + n) {
                    slot.store(word, Ordering::Release);
                }
            }
            r.write64(IQT, ((head + 1) % 256) << IQ_INDEX_SHIFT);
            r.write32(GCMD, status & GSTS_ENABLES & !GCMD_QIE);
        }
        // this empties every cache of QEMU's unit; translation stays as it is, since switching it
        // takes milliseconds
        r.write64(RTADDR, EMPTY_ROOT.addr().0);
        r.write32(GCMD, status & GCMD_TE | GCMD_SRTP);
        r.write64(Reg64(0x228), 1 << 63);
        r.write32(FSTS, FSTS_QUEUE | FSTS_PFO);
        let left = r.read32(GSTS) & GCMD_QIE;
        let faults = r.read32(FSTS);
        if left != 0 || faults != 0 {
            let why = format!("global status {left:#x}, fault status {faults:#x}");
            self.registers
                .note::<()>(Err(Gone::because("a reset", &why)));
        }
    }
    fn kill(&mut self) {
        self.qemu.kill();
    }
    fn trouble(&self) -> Option<String> {
        let failed = self.registers.failed.lock();
        let failed = failed.unwrap_or_else(PoisonError::into_inner);
        failed.as_ref().map(Gone::to_string)
    }
}
