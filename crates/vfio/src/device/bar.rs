// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! BARs: registers of a device, mapped where the kernel permits, by reads and writes of the
//! device's file elsewhere.

use super::{Device, DeviceError};
use crate::kernel::{AsRegion, Kernel, RegionInfo};
use crate::platform::fence_before_registers;
use std::fmt;

/// Which BAR, 0 to 5.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BarIndex(pub u8);

impl fmt::Display for BarIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BAR {}", self.0)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What a register holds.
pub trait Word: Copy + sealed::Sealed {
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Self;
    #[doc(hidden)]
    fn to_bytes(self, into: &mut [u8]);
}

macro_rules! word {
    ($($t:ty),*) => {$(
        impl sealed::Sealed for $t {}
        impl Word for $t {
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut word = [0; size_of::<$t>()];
                word.copy_from_slice(bytes);
                <$t>::from_le_bytes(word)
            }
            fn to_bytes(self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
word!(u8, u16, u32, u64);

/// A BAR of a device. It holds the device open, and where it is mapped also awake,
/// with its memory on.
pub struct Bar<K: Kernel> {
    device: Device<K>,
    index: BarIndex,
    info: RegionInfo,
    parts: Vec<Part<K::Mapped>>,
}

/// A part of the BAR that is mapped.
struct Part<M> {
    from: u64,
    len: u64,
    mapped: M,
}

impl<K: Kernel> Bar<K> {
    pub(super) fn open(device: &Device<K>, index: BarIndex) -> Result<Self, DeviceError> {
        let no_bar = DeviceError::NoBar {
            device: device.address(),
            bar: index,
        };
        if index.0 > 5 || u32::from(index.0) >= device.0.info.regions {
            return Err(no_bar);
        }
        let kernel = device.kernel();
        let info = kernel.region_info(&device.0.fd, u32::from(index.0));
        let info = info.map_err(device.failed("VFIO_DEVICE_GET_REGION_INFO"))?;
        if info.len.0 == 0 {
            return Err(no_bar);
        }
        let mut standing = device.standing();
        device.turn_memory_on()?;
        let mut parts = Vec::new();
        for (from, len) in &info.mappable {
            let mapped = kernel.map_region(&device.0.fd, info.offset + from, *len);
            let mapped = mapped.map_err(device.failed("mapping a BAR"))?;
            parts.push(Part {
                from: *from,
                len: (mapped.bytes().len() as u64).min(len.0),
                mapped,
            });
        }
        standing.mapped += usize::from(!parts.is_empty());
        Ok(Bar {
            device: device.clone(),
            index,
            info,
            parts,
        })
    }

    /// How long it is, in bytes.
    pub fn len(&self) -> ioatlas_dma::units::ByteCount {
        self.info.len
    }

    /// Reads the register at byte `at` of the BAR.
    ///
    /// # Errors
    /// [`DeviceError::NoRegister`]; where the register is not mapped, also what the kernel says.
    #[inline]
    pub fn read<W: Word>(&self, at: u64) -> Result<W, DeviceError> {
        if let Some(register) = self.mapped::<W>(at) {
            // SAFETY: an aligned register inside a mapped part, as `mapped` found. The kernel
            // does not take it away, since nothing turns the device's memory off meanwhile.
            return Ok(unsafe { register.read_volatile() });
        }
        self.read_slowly(at)
    }
    /// Writes a register. What was written to memory before is seen by the device before:
    /// a fence stands between.
    ///
    /// # Errors
    /// The same as of [`read`](Self::read).
    #[inline]
    pub fn write<W: Word>(&self, at: u64, word: W) -> Result<(), DeviceError> {
        fence_before_registers();
        if let Some(register) = self.mapped::<W>(at) {
            // SAFETY: as above.
            unsafe { register.write_volatile(word) };
            return Ok(());
        }
        self.write_slowly(at, word)
    }

    #[inline]
    fn mapped<W: Word>(&self, at: u64) -> Option<*mut W> {
        let bytes = size_of::<W>() as u64;
        let inside = |part: &&Part<K::Mapped>| {
            let from = at.checked_sub(part.from);
            from.is_some_and(|from| from < part.len && bytes <= part.len - from)
        };
        let part = self.parts.iter().find(inside)?;
        let base = part.mapped.bytes().cast::<u8>();
        let register = base.wrapping_add((at - part.from) as usize).cast::<W>();
        at.is_multiple_of(bytes).then_some(register)
    }

    #[cold]
    fn read_slowly<W: Word>(&self, at: u64) -> Result<W, DeviceError> {
        let at = self.in_file::<W>(at)?;
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<W>()];
        let device = &self.device;
        let read = device.kernel().read_at(&device.0.fd, at, bytes);
        read.map_err(device.failed("reading a BAR"))?;
        Ok(W::from_bytes(bytes))
    }
    #[cold]
    fn write_slowly<W: Word>(&self, at: u64, word: W) -> Result<(), DeviceError> {
        let at = self.in_file::<W>(at)?;
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<W>()];
        word.to_bytes(bytes);
        let device = &self.device;
        let written = device.kernel().write_at(&device.0.fd, at, bytes);
        written.map_err(device.failed("writing a BAR"))
    }
    fn in_file<W: Word>(&self, at: u64) -> Result<u64, DeviceError> {
        let (bytes, len) = (size_of::<W>() as u64, self.info.len.0);
        let end = at.checked_add(bytes);
        match at.is_multiple_of(bytes) && end.is_some_and(|end| end <= len) {
            true => Ok(self.info.offset + at),
            false => Err(DeviceError::NoRegister {
                device: self.device.address(),
                bar: self.index,
                at,
                bytes,
                len,
            }),
        }
    }
}

impl<K: Kernel> Drop for Bar<K> {
    fn drop(&mut self) {
        if !self.parts.is_empty() {
            self.parts.clear();
            self.device.standing().mapped -= 1;
        }
    }
}
