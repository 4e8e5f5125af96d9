// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a driver needs of a bus: a window of registers, and what tells of interrupts.
//!
//! Two small traits, so that the drivers here run wherever a device can be reached: over VFIO in a
//! process, over QEMU's test socket in a test, over a device that is nothing but code. What differs
//! between these is here, and in no other module's way.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// The registers of a device, by their offset in bytes.
///
/// An access reaches the device in program order with the others of its window. An offset outside
/// of the window is an error of the driver's, and may panic.
pub trait RegisterWindow: Send + Sync {
    /// Reads 4 bytes. All ones if the device is gone.
    fn read32(&self, offset: u64) -> u32;
    /// Writes 4 bytes, in order with other accesses.
    fn write32(&self, offset: u64, value: u32);
    /// Reads 8 bytes, as two reads where the device knows no wider ones.
    fn read64(&self, offset: u64) -> u64 {
        u64::from(self.read32(offset)) | u64::from(self.read32(offset + 4)) << 32
    }
    /// Writes 8 bytes, the lower half first where it takes two writes.
    fn write64(&self, offset: u64, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }
}

impl<W: RegisterWindow + ?Sized> RegisterWindow for Arc<W> {
    fn read32(&self, offset: u64) -> u32 {
        (**self).read32(offset)
    }
    fn write32(&self, offset: u64, value: u32) {
        (**self).write32(offset, value);
    }
    fn read64(&self, offset: u64) -> u64 {
        (**self).read64(offset)
    }
    fn write64(&self, offset: u64, value: u64) {
        (**self).write64(offset, value);
    }
}

/// The number of an interrupt in a device's MSI-X table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vector(pub u16);

/// A source of a device's interrupts.
pub trait Interrupts: Send + Sync {
    /// Waits for the next interrupt of `vector`, at most so long; returns whether there was one.
    /// One that came before the call counts.
    ///
    /// # Errors
    /// What the system says.
    fn wait(&self, vector: Vector, limit: Duration) -> io::Result<bool>;
}

/// How a driver waits for what it polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// It looks again at once: the lowest latency.
    Spin,
    /// It sleeps in between, so that waiting is not counted among its costs.
    Nap(Duration),
}

/// What was waited for did not happen in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut(pub Duration);

impl Idle {
    /// Looks until `look` returns something, for at most `limit`.
    pub fn until<R>(
        self,
        limit: Duration,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<R, TimedOut> {
        // the clock is read once in many looks
        const LOOKS: u32 = 1 << 10;
        let begun = Instant::now();
        let mut looks = 0u32;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            match self {
                Idle::Spin => core::hint::spin_loop(),
                Idle::Nap(time) => std::thread::sleep(time),
            }
            looks = looks.wrapping_add(1);
            let ask = matches!(self, Idle::Nap(_)) || looks.is_multiple_of(LOOKS);
            if ask && begun.elapsed() > limit {
                return Err(TimedOut(limit));
            }
        }
    }
}
