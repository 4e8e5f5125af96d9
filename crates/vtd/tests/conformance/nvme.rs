// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A device that moves 8 bytes where it is told: QEMU's NVMe controller and its feature
//! "timestamp", which a host sets (the device reads memory) and gets (the device writes memory).
//!
//! Nothing but those 8 bytes goes through the unit under test. Commands lie in the controller's own
//! memory buffer, and so does the other end of each transfer; completions are written to the
//! address range of interrupts, which is not translated, and where a CPU that never runs takes no
//! notice. That the commands are done is told by the last of them, which gets the timestamp into
//! the controller's buffer. While the machine is stopped its clock is, so a timestamp stays what it
//! was set to.
//!
//! Source: NVM Express base specification 2.0 §3.1 (registers, CMBMSC), §3.3 (queues), §5.15 and
//! §5.27 (features), §5.27.1.11 (timestamp).

use crate::qemu::{Gone, Qemu};
use ioatlas_dma::units::*;

const REGISTERS: u64 = 0xfe00_0000;
const REGISTERS_LEN: u64 = 0x1_0000;
/// Where the CPU finds the controller's buffers.
const BUFFERS: u64 = 0xe000_0000;
const BUFFER_LEN: u64 = 1 << 20;
/// Where the controller finds its own: far above every IOVA.
const OWN: u64 = 1 << 62;
/// In the buffer: submission queue, timestamp to set, timestamp got.
const QUEUE: u64 = 0;
const SOURCE: u64 = 0x8000;
const RESULT: u64 = 0x9000;
/// Entries of a queue.
const ENTRIES: u64 = 32;
/// Completions go where nothing is translated.
const NOWHERE: u64 = 0xfee0_0000;
const SET_FEATURES: u64 = 0x09;
const GET_FEATURES: u64 = 0x0a;
const TIMESTAMP: u64 = 0x0e;
/// A timestamp has 48 bits; what lies above says where it comes from.
const BITS: u64 = (1 << 48) - 1;
/// It takes one or two.
const LOOKS: usize = 10_000;
/// No timestamp.
const UNTOUCHED: u64 = u64::MAX;

/// One controller.
pub struct Nvme {
    source: SourceId,
    number: u64,
    tail: u64,
    /// Different in every access.
    nonce: u64,
}

impl Nvme {
    /// As an argument of QEMU's `-device`.
    pub fn argument(source: SourceId) -> String {
        let (slot, function) = (source.0 >> 3 & 31, source.0 & 7);
        let many = if function == 0 {
            ",multifunction=on"
        } else {
            ""
        };
        format!("nvme,addr={slot:02x}.{function:x},serial=T{slot}{function},cmb_size_mb=1{many}")
    }

    /// Places the controller's registers and buffer and starts it.
    pub fn start(qemu: &Qemu, number: usize, source: SourceId) -> Result<Self, Gone> {
        let nvme = Nvme {
            source,
            number: number as u64,
            tail: 0,
            nonce: 1,
        };
        qemu.configure(source, 0x10, nvme.register(0) as u32)?;
        qemu.configure(source, 0x14, 0)?;
        qemu.configure(source, 0x18, nvme.buffer(0) as u32)?;
        qemu.configure(source, 0x1c, 0)?;
        // memory space, bus master
        qemu.configure(source, 0x04, 6)?;
        // CMBMSC: the buffer is there, and at this address for the controller; the half with the
        // enable bits takes the address
        qemu.write32(nvme.register(0x54), (OWN >> 32) as u32)?;
        qemu.write32(nvme.register(0x50), 3)?;
        // AQA, ASQ, ACQ
        qemu.write32(
            nvme.register(0x24),
            ((ENTRIES - 1) << 16 | (ENTRIES - 1)) as u32,
        )?;
        qemu.write64(nvme.register(0x28), OWN + QUEUE)?;
        qemu.write64(nvme.register(0x30), NOWHERE)?;
        // CC: entries of 64 and 16 bytes, enable
        qemu.write32(nvme.register(0x14), 0x46_0001)?;
        Ok(nvme)
    }

    pub fn source(&self) -> SourceId {
        self.source
    }
    fn register(&self, at: u64) -> u64 {
        REGISTERS + self.number * REGISTERS_LEN + at
    }
    fn buffer(&self, at: u64) -> u64 {
        BUFFERS + self.number * BUFFER_LEN + at
    }

    /// The 8 bytes that a device read at `at` brings; 0 where it brings nothing.
    pub fn read(&mut self, qemu: &Qemu, at: Iova) -> Result<u64, Gone> {
        let mut batch = Vec::new();
        self.command(&mut batch, SET_FEATURES, at.0);
        self.run(qemu, batch)
    }

    /// Writes 8 bytes at `at`, which were not written before, and returns them.
    pub fn write(&mut self, qemu: &Qemu, at: Iova) -> Result<u64, Gone> {
        self.nonce += 1;
        let mut batch = Vec::new();
        let source = self.buffer(SOURCE);
        batch.push(format!("writeq {source:#x} {:#x}", self.nonce));
        self.command(&mut batch, SET_FEATURES, OWN + SOURCE);
        self.command(&mut batch, GET_FEATURES, at.0);
        self.run(qemu, batch)
    }

    fn command(&mut self, batch: &mut Vec<String>, opcode: u64, at: u64) {
        let entry = self.buffer(QUEUE + self.tail * 64);
        let words = [opcode | self.tail << 16, 0, 0, at, 0, TIMESTAMP, 0, 0];
        for (n, word) in words.iter().enumerate() {
            batch.push(format!("writeq {:#x} {word:#x}", entry + 8 * n as u64));
        }
        self.tail = (self.tail + 1) % ENTRIES;
    }

    /// Rings the doorbell and waits; the timestamp at the end.
    fn run(&mut self, qemu: &Qemu, mut batch: Vec<String>) -> Result<u64, Gone> {
        let result = self.buffer(RESULT);
        batch.push(format!("writeq {result:#x} {UNTOUCHED:#x}"));
        self.command(&mut batch, GET_FEATURES, OWN + RESULT);
        batch.push(format!(
            "writel {:#x} {:#x}",
            self.register(0x1000),
            self.tail
        ));
        qemu.ask_all(&batch)?;
        // the controller works between our commands
        for _ in 0..LOOKS {
            let got = qemu.read64(result)?;
            if got != UNTOUCHED {
                qemu.write32(self.register(0x1004), self.tail as u32)?;
                return Ok(got & BITS);
            }
        }
        let status = qemu.read32(self.register(0x1c))?;
        let why = format!("not carried out, controller status {status:#x}");
        Err(Gone::because("an NVMe command", &why))
    }
}
