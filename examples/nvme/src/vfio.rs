// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is below the drivers where the kernel has given their devices to this process.

use crate::window::{Interrupts, RegisterWindow, Vector};
use ioatlas_vfio::{
    device::{Bar, BarIndex, Device, DeviceError, Interrupt, IrqKind},
    kernel::{Errno, Linux},
};
use std::{io, sync::Arc, time::Duration};

/// BAR 0, where all of the devices here have their registers.
pub struct Registers(Bar<Linux>);

impl Registers {
    /// Those of `device`.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn of(device: &Device<Linux>) -> Result<Arc<Self>, DeviceError> {
        Ok(Arc::new(Registers(device.bar(BarIndex(0))?)))
    }
}

/// A device that cannot be read is one that is gone, and reads as ones.
impl RegisterWindow for Registers {
    fn read32(&self, offset: u64) -> u32 {
        self.0.read(offset).unwrap_or(u32::MAX)
    }
    fn write32(&self, offset: u64, value: u32) {
        // the next read tells
        let _ = self.0.write(offset, value);
    }
    fn read64(&self, offset: u64) -> u64 {
        self.0.read(offset).unwrap_or(u64::MAX)
    }
    fn write64(&self, offset: u64, value: u64) {
        let _ = self.0.write(offset, value);
    }
}

fn system(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

/// The first vectors of a device's MSI-X table, each an event file. They are off again when this is dropped.
pub struct Msix {
    device: Device<Linux>,
    events: Vec<Interrupt>,
}

impl Msix {
    /// Turns on `vectors` of them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enable(
        device: &Device<Linux>,
        vectors: u16,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let events = (0..vectors).map(|_| Interrupt::new());
        let events = events.collect::<Result<Vec<_>, _>>().map_err(system)?;
        let all: Vec<&Interrupt> = events.iter().collect();
        device.enable(IrqKind::Msix, &all)?;
        let device = device.clone();
        Ok(Msix { device, events })
    }
}

impl Drop for Msix {
    fn drop(&mut self) {
        // a device that is gone raises none
        let _ = self.device.disable(IrqKind::Msix);
    }
}

impl Interrupts for Msix {
    fn wait(&self, vector: Vector, limit: Duration) -> io::Result<bool> {
        let event = self.events.get(usize::from(vector.0));
        let event = event.ok_or(io::ErrorKind::InvalidInput)?;
        let raised = event.wait(Some(limit)).map_err(system)?;
        Ok(raised > 0)
    }
}
