// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver of QEMU's `edu` device: it copies between memory and a buffer of its own, and
//! interrupts when it is done.

use crate::machine::{Block, DEVICE, sleep_until};
use ioatlas_dma::units::{ByteCount, Direction, Iova, SourceId};
use ioatlas_vtd::acpi::Segment;
use ioatlas_vtd::registers::{Reg32, Reg64, Registers};

/// Where firmware places the configuration space of bus 0, 4 KiB a function (the ACPI
/// table MCFG says so).
pub const CONFIGURATION: u64 = 0xb000_0000;
/// Configuration space: device and vendor.
const IDS: Reg32 = Reg32(0x00);
const EDU: u32 = 0x11e8_1234;
const COMMAND: Reg32 = Reg32(0x04);
/// In COMMAND: registers answer.
const MEMORY: u32 = 0b010;
/// In COMMAND: DMA is on.
const MASTER: u32 = 0b100;
const BAR0: Reg32 = Reg32(0x10);
/// Where this device has the capability to interrupt by messages; its address and its value follow.
const MSI: Reg32 = Reg32(0x40);
const MSI_ENABLE: u32 = 1 << 16;
const ADDRESS: Reg32 = Reg32(0x44);
const VALUE: Reg32 = Reg32(0x4c);
/// Where such messages go, for the first CPU. No IOVA is ever there: the unit takes writes
/// to it for interrupts.
const MSI_ADDRESS: u32 = 0xfee0_0000;

/// The device's registers, from here on in its BAR 0.
const SOURCE: Reg64 = Reg64(0x80);
const DESTINATION: Reg64 = Reg64(0x88);
const COUNT: Reg64 = Reg64(0x90);
const GO: Reg64 = Reg64(0x98);
/// In GO: begin, and 0 again when done.
const BUSY: u64 = 0b001;
/// In GO: from the device to memory.
const TO_MEMORY: u64 = 0b010;
/// In GO: interrupt when done. It is a message, so it need not be taken back.
const INTERRUPT: u64 = 0b100;
/// The device's own buffer, as SOURCE or DESTINATION.
const BUFFER: u64 = 0x4_0000;
/// How long a copy takes, in nanoseconds.
pub const COPY_TIME: u32 = 100_000_000;

/// The configuration space of a function.
fn space(function: SourceId) -> Block {
    // SAFETY: firmware placed it there; one driver at a time configures a function.
    unsafe { Block::new(CONFIGURATION + (u64::from(function.0) << 12)) }
}

/// Reads configuration space, to find a device's unit: here it is that of segment 0.
pub fn configuration(_: Segment, function: SourceId, offset: u16) -> u32 {
    space(function).read32(Reg32(offset))
}

/// The device. It copies less than 4096 bytes at a time.
pub struct Edu {
    registers: Block,
    pci: Block,
    /// What the unit knows it by.
    pub source: SourceId,
}

impl Edu {
    /// The first on bus 0, ready for interrupts.
    pub fn find() -> Option<Self> {
        let mut functions = (0..256).map(SourceId);
        let source = functions.find(|at| space(*at).read32(IDS) == EDU)?;
        let pci = space(source);
        pci.write32(COMMAND, MEMORY);
        pci.write32(ADDRESS, MSI_ADDRESS);
        pci.write32(VALUE, DEVICE as u32);
        pci.write32(MSI, pci.read32(MSI) | MSI_ENABLE);
        // SAFETY: where firmware placed its registers, and nothing else drives it.
        let registers = unsafe { Block::new(u64::from(pci.read32(BAR0) & !0xf)) };
        Some(Edu {
            registers,
            pci,
            source,
        })
    }
    /// Lets it access memory. It is attached by then, so that a unit translates what it does.
    pub fn begin_dma(&self) {
        self.pci.write32(COMMAND, MEMORY | MASTER);
    }
    /// Begins to copy between its buffer and memory. It interrupts when it is done.
    pub fn begin(&self, direction: Direction, memory: Iova, len: ByteCount) {
        let (from, to, how) = match direction {
            Direction::FromDevice => (BUFFER, memory.0, TO_MEMORY),
            _ => (memory.0, BUFFER, 0),
        };
        self.registers.write64(SOURCE, from);
        self.registers.write64(DESTINATION, to);
        self.registers.write64(COUNT, len.0);
        self.registers.write64(GO, BUSY | INTERRUPT | how);
    }
    /// Copies, and sleeps until it is done.
    pub fn copy(&self, direction: Direction, memory: Iova, len: ByteCount) {
        self.begin(direction, memory, len);
        sleep_until(|| self.registers.read64(GO) & BUSY == 0);
    }
}
