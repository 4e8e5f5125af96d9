// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's `edu`: the smallest device that moves data by itself.
//!
//! It has a buffer of 4096 bytes and copies between that and memory, a tenth of a second after it
//! was told to. What makes it worth having is when it asks the remapping unit: at the end of that
//! time, not at its beginning. So a mapping that is taken away meanwhile is honoured, and
//! *revocation under way* can be tested with it, as it cannot with QEMU's NVMe controller, which
//! translates as a command begins.
//!
//! Source: QEMU, docs/specs/edu.

use crate::window::{Idle, RegisterWindow, TimedOut};
use ioatlas_dma::units::*;
use std::time::Duration;

/// PCI vendor and device.
pub const PCI_ID: (u16, u16) = (0x1234, 0x11e8);
/// Its buffer, in its own addresses.
const BUFFER: u64 = 0x4_0000;
/// QEMU 7.2 ends when asked to move all 4096.
pub const MOST: ByteCount = ByteCount(4095);
/// It takes a tenth of a second of the machine's time.
const LIMIT: Duration = Duration::from_secs(60);

const IDENTIFICATION: u64 = 0x00;
const LIVENESS: u64 = 0x04;
const DMA_SOURCE: u64 = 0x80;
const DMA_DESTINATION: u64 = 0x88;
const DMA_COUNT: u64 = 0x90;
const DMA_COMMAND: u64 = 0x98;
const START: u64 = 1 << 0;
const TO_MEMORY: u64 = 1 << 1;

/// One edu device, over its registers.
pub struct Edu<W> {
    registers: W,
}

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum EduError {
    /// It does not say that it is one.
    #[error("its identification is {0:#x}, not that of an edu (0x..0000ed)")]
    NotEdu(u32),
    /// It does not answer as it should.
    #[error("it was asked to invert {asked:#x} and answered {answered:#x}")]
    NotAlive { asked: u32, answered: u32 },
    /// It cannot move so much at once.
    #[error("{0} do not fit into its buffer")]
    TooMuch(ByteCount),
    /// It did not finish.
    #[error("a transfer was not over after {} s", .0.as_secs())]
    Stuck(Duration),
}

/// A transfer that was begun.
#[must_use = "wait for it before its memory is used for something else"]
pub struct Transfer<'d, W> {
    device: &'d Edu<W>,
}

impl<W: RegisterWindow> Edu<W> {
    /// Finds out whether it is one, and alive.
    pub fn new(registers: W) -> Result<Self, EduError> {
        let identification = registers.read32(IDENTIFICATION);
        if identification & 0xffff != 0x00ed {
            return Err(EduError::NotEdu(identification));
        }
        let asked = 0x1234_5678;
        registers.write32(LIVENESS, asked);
        match registers.read32(LIVENESS) {
            answered if answered == !asked => Ok(Edu { registers }),
            answered => Err(EduError::NotAlive { asked, answered }),
        }
    }

    /// Begins to fill the buffer from memory.
    ///
    /// # Errors
    /// [`EduError::TooMuch`], before the device is told.
    pub fn begin_read(&self, from: Iova, len: ByteCount) -> Result<Transfer<'_, W>, EduError> {
        self.begin(from.0, BUFFER, len, START)
    }

    /// Begins to copy the buffer to memory.
    ///
    /// # Errors
    /// [`EduError::TooMuch`], before the device is told.
    pub fn begin_write(&self, to: Iova, len: ByteCount) -> Result<Transfer<'_, W>, EduError> {
        self.begin(BUFFER, to.0, len, START | TO_MEMORY)
    }

    fn begin(
        &self,
        from: u64,
        to: u64,
        len: ByteCount,
        command: u64,
    ) -> Result<Transfer<'_, W>, EduError> {
        if len > MOST {
            return Err(EduError::TooMuch(len));
        }
        self.registers.write64(DMA_SOURCE, from);
        self.registers.write64(DMA_DESTINATION, to);
        self.registers.write64(DMA_COUNT, len.0);
        // what the CPU wrote to memory is there before the device is told
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.registers.write64(DMA_COMMAND, command);
        Ok(Transfer { device: self })
    }

    /// The registers, for what this driver does not do.
    pub fn registers(&self) -> &W {
        &self.registers
    }
}

impl<W: RegisterWindow> Transfer<'_, W> {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.device.registers.read64(DMA_COMMAND) & START == 0
    }

    /// Waits until it is over. Whether anything was moved, the device does not say.
    ///
    /// # Errors
    /// [`EduError::Stuck`] after a limit of time.
    pub fn wait(self) -> Result<(), EduError> {
        let nap = Idle::Nap(Duration::from_millis(1));
        let over = nap.until(LIMIT, || self.is_over().then_some(()));
        over.map_err(|TimedOut(limit)| EduError::Stuck(limit))
    }
}
