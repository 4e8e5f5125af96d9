// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is below the drivers where the kernel has given their devices to this process.

use crate::window::{Interrupts, RegisterWindow, Vector};
use ioatlas_dma::units::GRANULE_LG2;
use ioatlas_vfio::{
    device::{Bar, BarIndex, Device, DeviceError, Interrupt, IrqKind},
    kernel::{Errno, Kernel, Linux, PageSizes},
    space::{AddressSpace, AnySpace},
};
use serde::Serialize;
use std::{fmt, io, sync::Arc, time::Duration};

/// The address space that the devices are in, as the kernel describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Space {
    /// Name of VFIO's interface: `type1` or `iommufd`.
    pub kind: &'static str,
    /// First and last byte of each range of IOVAs that can be mapped, ascending.
    pub iovas: Vec<[u64; 2]>,
    /// The IOMMU's smallest page.
    pub granule_bytes: u64,
    /// All sizes of its pages; none where the kernel does not tell, as under iommufd.
    pub page_bytes: Option<Vec<u64>>,
    /// How many mappings it takes, where there is a limit.
    pub mappings: Option<u64>,
}

impl Space {
    /// What the kernel says of `space`.
    pub fn of<K: Kernel>(space: &AnySpace<K>) -> Self {
        let limits = space.limits();
        let iovas = limits.ranges().iter().map(|range| {
            let end = u128::from(range.end().0) << GRANULE_LG2;
            [range.first.addr().0, (end - 1) as u64]
        });
        let sizes = |sizes: PageSizes| sizes.iter().map(|size| size.0).collect();
        Space {
            kind: space.kind().name(),
            iovas: iovas.collect(),
            granule_bytes: limits.granule().0,
            page_bytes: limits.page_sizes().map(sizes),
            mappings: limits.mappings(),
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, IOVAs", self.kind)?;
        for [first, last] in &self.iovas {
            write!(f, " {first:#x}..={last:#x}")?;
        }
        match self.mappings {
            Some(most) => write!(f, ", {most} mappings"),
            None => Ok(()),
        }
    }
}

/// BAR 0, where all of the devices here have their registers.
pub struct Registers(Bar<Linux>);

impl Registers {
    /// Maps BAR 0 of `device`.
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

/// The first vectors of a device's MSI-X table, each an event file. They are off again
/// when this is dropped.
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
