// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A PCI device that VFIO has given to this process: configuration space, BARs, interrupts, reset.
//!
//! # Theory
//!
//! A device comes open from its space ([`Container::open`](crate::space::Container::open),
//! [`Ioas::open`](crate::space::Ioas::open)), which keeps a handle of it, as drivers do; it is
//! closed with the last.
//!
//! **A device is a bus master only while it is attached to a domain.**
//! [`Domain::attach`](ioatlas_dma::domain::Domain::attach) turns it on,
//! [`Domain::detach`](ioatlas_dma::domain::Domain::detach) *quiesces*: no bus master any more, then
//! reset, where the device has one of its own. A domain detaches every device before it removes
//! what is mapped. So a device is always quiet before its mappings go, in whatever order a driver
//! drops what it has. Writes to the command register by [`Device::config_write`] cannot change that
//! bit.
//!
//! A device that was removed counts as quiet.
//!
//! **While a BAR is mapped the device answers at it.** An access to a mapped BAR of a device whose
//! memory is off, or which sleeps (D3hot), is SIGBUS: the kernel has taken the mapping away.
//! Opening a BAR wakes the device and turns its memory on, and [`Device::config_write`] refuses
//! what would end that until the last [`Bar`] that is mapped is dropped.
//!
//! Locking: one lock a device, for attach, detach, configuration space and opening BARs; none for
//! BARs and other registers.
//!
//! Not handled: hot reset of several devices together, power states, PASIDs, INTx masking beyond
//! what the kernel does itself.

mod address;
mod bar;
mod error;
mod interrupt;

pub use address::{AddressError, PciAddress};
pub use bar::{Bar, BarIndex, Word};
pub use error::DeviceError;
pub use interrupt::{Interrupt, IrqKind};

use crate::kernel::{DeviceInfo, Errno, Kernel, RegionInfo, Reset};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const CONFIG_REGION: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
/// PCI Local Bus Specification 3.0, §6.2.2.
const COMMAND: u64 = 4;
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const STATUS: u64 = 6;
const HAS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: u64 = 0x34;
/// PCI Bus Power Management Interface Specification 1.2, §3.2.
const POWER_MANAGEMENT: u8 = 1;
/// Behind the capability's beginning; the state is in its lowest bits (§3.2.4).
const POWER_CONTROL: u64 = 4;
const POWER_STATE: u8 = 3;
const D3HOT: u8 = 3;

/// A device, open. Clones are the same device.
pub struct Device<K: Kernel>(Arc<Inner<K>>);

struct Inner<K: Kernel> {
    standing: Mutex<Standing>,
    config: RegionInfo,
    info: DeviceInfo,
    address: PciAddress,
    fd: K::Fd,
    kernel: Arc<K>,
}

/// What of configuration space is not a driver's to change now.
#[derive(Debug)]
struct Standing {
    stage: Stage,
    /// BARs of which parts are mapped.
    mapped: usize,
}

/// Where a device stands with its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// In the space that opened it, and no bus master.
    Quiet,
    /// Attached to the domain, and a bus master.
    Going,
    /// Quiet, and out of the space.
    Away,
}

impl<K: Kernel> Clone for Device<K> {
    fn clone(&self) -> Self {
        Device(self.0.clone())
    }
}

impl<K: Kernel> Device<K> {
    pub(crate) fn new(kernel: Arc<K>, fd: K::Fd, address: PciAddress) -> Result<Self, DeviceError> {
        let at = |call| move |errno| failed(address, call, errno);
        let info = kernel.device_info(&fd);
        let info = info.map_err(at("VFIO_DEVICE_GET_INFO"))?;
        let config = kernel.region_info(&fd, CONFIG_REGION);
        let config = config.map_err(at("VFIO_DEVICE_GET_REGION_INFO"))?;
        let device = Device(Arc::new(Inner {
            standing: Mutex::new(Standing {
                stage: Stage::Quiet,
                mapped: 0,
            }),
            config,
            info,
            address,
            fd,
            kernel,
        }));
        // whatever had it before may have left it going
        device.set_bus_master(0)?;
        Ok(device)
    }

    /// Its address on the PCI bus.
    pub fn address(&self) -> PciAddress {
        self.0.address
    }
    fn kernel(&self) -> &K {
        &self.0.kernel
    }
    fn failed(&self, call: &'static str) -> impl Fn(Errno) -> DeviceError {
        let address = self.0.address;
        move |errno| failed(address, call, errno)
    }
    fn standing(&self) -> MutexGuard<'_, Standing> {
        // each field is whole at any time
        let standing = self.0.standing.lock();
        standing.unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads configuration space from byte `at` on, all of `into`.
    pub fn config_read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.config_at(at, into.len())?;
        let read = self.kernel().read_at(&self.0.fd, at, into);
        read.map_err(self.failed("reading configuration space"))
    }
    /// Writes configuration space. Whether the device is a bus master stays as it is: that is
    /// its domain's to say.
    ///
    /// # Errors
    /// [`DeviceError::Mapped`] where a [`Bar`] is mapped that could not be accessed afterwards;
    /// nothing is written then.
    pub fn config_write(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let standing = self.standing();
        if standing.mapped > 0 {
            self.check_keeps_memory(at, from)?;
        }
        let end = at.saturating_add(from.len() as u64);
        let mut bytes = from.to_vec();
        if (at..end).contains(&COMMAND)
            && let Some(byte) = bytes.get_mut((COMMAND - at) as usize)
        {
            let master = BUS_MASTER as u8;
            *byte &= !master;
            *byte |= match standing.stage {
                Stage::Going => master,
                Stage::Quiet | Stage::Away => 0,
            };
        }
        self.config_write_raw(at, &bytes)
    }
    /// That the device answers at its BARs after this write, if it does before.
    fn check_keeps_memory(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let byte = |place: u64| {
            let nth = usize::try_from(place.checked_sub(at)?).ok()?;
            from.get(nth).copied()
        };
        let is_off = |command: u8| command & MEMORY as u8 == 0;
        let sleeps = |control: u8| control & POWER_STATE == D3HOT;
        let power = self.capability(POWER_MANAGEMENT)?;
        let control = power.and_then(|power| byte(power + POWER_CONTROL));
        match byte(COMMAND).is_some_and(is_off) || control.is_some_and(sleeps) {
            true => Err(DeviceError::Mapped {
                device: self.0.address,
            }),
            false => Ok(()),
        }
    }
    /// Makes the device answer at its BARs.
    fn turn_memory_on(&self) -> Result<(), DeviceError> {
        // first, since what wakes may have forgotten its command register
        if let Some(power) = self.capability(POWER_MANAGEMENT)? {
            let control: u8 = self.config(power + POWER_CONTROL)?;
            if control & POWER_STATE == D3HOT {
                self.config_write_raw(power + POWER_CONTROL, &[control & !POWER_STATE])?;
            }
        }
        let command: u16 = self.config(COMMAND)?;
        match command & MEMORY {
            0 => self.config_write_raw(COMMAND, &(command | MEMORY).to_le_bytes()),
            _ => Ok(()),
        }
    }
    fn config_write_raw(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let at = self.config_at(at, from.len())?;
        let written = self.kernel().write_at(&self.0.fd, at, from);
        written.map_err(self.failed("writing configuration space"))
    }
    /// Where in the device's file.
    fn config_at(&self, at: u64, bytes: usize) -> Result<u64, DeviceError> {
        let (len, bytes) = (self.0.config.len.0, bytes as u64);
        match at.checked_add(bytes) {
            Some(end) if end <= len => Ok(self.0.config.offset + at),
            _ => Err(DeviceError::NoConfig {
                device: self.0.address,
                at,
                bytes,
                len,
            }),
        }
    }
    /// A register of configuration space.
    pub fn config<W: Word>(&self, at: u64) -> Result<W, DeviceError> {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<W>()];
        self.config_read(at, bytes)?;
        Ok(W::from_bytes(bytes))
    }
    /// Where the capability `id` begins in configuration space.
    pub fn capability(&self, id: u8) -> Result<Option<u64>, DeviceError> {
        if self.config::<u16>(STATUS)? & HAS_CAPABILITIES == 0 {
            return Ok(None);
        }
        let mut at = u64::from(self.config::<u8>(CAPABILITIES)? & !3);
        // of 4 bytes at least each, behind the header: not more than this in 256 bytes
        for _ in 0..48 {
            if at == 0 {
                break;
            }
            if self.config::<u8>(at)? == id {
                return Ok(Some(at));
            }
            at = u64::from(self.config::<u8>(at + 1)? & !3);
        }
        Ok(None)
    }
    /// Vendor in the low half, device in the high one, as PCI has them.
    ///
    /// # Errors
    /// [`DeviceError::Removed`] where all bits are set, which is what reads of a device that
    /// is not there give.
    pub fn id(&self) -> Result<u32, DeviceError> {
        match self.config::<u32>(0)? {
            u32::MAX => Err(DeviceError::Removed {
                device: self.0.address,
            }),
            id => Ok(id),
        }
    }

    /// A BAR, mapped as far as the kernel permits. The device is awake and its memory is on then.
    pub fn bar(&self, bar: BarIndex) -> Result<Bar<K>, DeviceError> {
        Bar::open(self, bar)
    }

    /// How many vectors of a kind it has.
    pub fn vectors(&self, kind: IrqKind) -> Result<u32, DeviceError> {
        if kind.index() >= self.0.info.irqs {
            return Ok(0);
        }
        let info = self.kernel().irq_info(&self.0.fd, kind.index());
        let info = info.map_err(self.failed("VFIO_DEVICE_GET_IRQ_INFO"))?;
        Ok(info.vectors)
    }
    /// Lets vector n, from 0, raise `interrupts[n]`. They stay the caller's, and may be dropped
    /// once this is off again.
    pub fn enable(&self, kind: IrqKind, interrupts: &[&Interrupt]) -> Result<(), DeviceError> {
        let has = self.vectors(kind)?;
        if interrupts.is_empty() || interrupts.len() > has as usize {
            return Err(DeviceError::NoVectors {
                device: self.0.address,
                kind,
                has,
                wanted: interrupts.len(),
            });
        }
        let events: Vec<_> = interrupts.iter().map(|i| i.file()).collect();
        let set = self.kernel().set_irqs(&self.0.fd, kind.index(), &events);
        set.map_err(self.failed("VFIO_DEVICE_SET_IRQS"))
    }
    /// Turns a kind of interrupts off.
    pub fn disable(&self, kind: IrqKind) -> Result<(), DeviceError> {
        let set = self.kernel().set_irqs(&self.0.fd, kind.index(), &[]);
        set.map_err(self.failed("VFIO_DEVICE_SET_IRQS"))
    }

    /// Resets the device. It stays what it was with its domain.
    ///
    /// # Errors
    /// [`DeviceError::NoReset`], and what the kernel says.
    pub fn reset(&self) -> Result<(), DeviceError> {
        let standing = self.standing();
        self.reset_only()?;
        self.set_bus_master(match standing.stage {
            Stage::Going => BUS_MASTER,
            Stage::Quiet | Stage::Away => 0,
        })
    }
    fn reset_only(&self) -> Result<(), DeviceError> {
        match self.0.info.reset {
            Reset::Unsupported => Err(DeviceError::NoReset {
                device: self.0.address,
            }),
            Reset::Supported => {
                let reset = self.kernel().reset(&self.0.fd);
                reset.map_err(self.failed("VFIO_DEVICE_RESET"))
            }
        }
    }

    /// `master` is the bit, or nothing.
    fn set_bus_master(&self, master: u16) -> Result<(), DeviceError> {
        let command: u16 = self.config(COMMAND)?;
        if command == u16::MAX {
            return Err(DeviceError::Removed {
                device: self.0.address,
            });
        }
        let wanted = command & !BUS_MASTER | master;
        self.config_write_raw(COMMAND, &wanted.to_le_bytes())
    }

    /// It is attached: a bus master from now on.
    pub(crate) fn let_go(&self) -> Result<(), DeviceError> {
        self.let_go_after(|_| Ok(()))
    }
    /// The same where `again` brings it back into its space.
    pub(crate) fn let_go_after(
        &self,
        again: impl FnOnce(&K::Fd) -> Result<(), Errno>,
    ) -> Result<(), DeviceError> {
        let mut standing = self.standing();
        if standing.stage == Stage::Away {
            again(&self.0.fd).map_err(self.failed("VFIO_DEVICE_ATTACH_IOMMUFD_PT"))?;
            standing.stage = Stage::Quiet;
        }
        self.set_bus_master(BUS_MASTER)?;
        standing.stage = Stage::Going;
        Ok(())
    }
    /// It is detached: quiet, when this returns.
    pub(crate) fn quiesce(&self) -> Result<(), DeviceError> {
        let mut standing = self.standing();
        self.quiet()?;
        standing.stage = Stage::Quiet;
        Ok(())
    }
    /// The same where `away` takes it out of its space then.
    pub(crate) fn quiesce_before(
        &self,
        away: impl FnOnce(&K::Fd) -> Result<(), Errno>,
    ) -> Result<(), DeviceError> {
        let mut standing = self.standing();
        self.quiet()?;
        standing.stage = Stage::Quiet;
        match away(&self.0.fd) {
            Err(errno) if !is_gone(errno) => Err(failed(
                self.0.address,
                "VFIO_DEVICE_DETACH_IOMMUFD_PT",
                errno,
            )),
            _ => {
                standing.stage = Stage::Away;
                Ok(())
            }
        }
    }
    fn quiet(&self) -> Result<(), DeviceError> {
        let quiet = self
            .set_bus_master(0)
            .and_then(|()| match self.reset_only() {
                // what it can still start, it cannot bring to memory
                Err(DeviceError::NoReset { .. }) => Ok(()),
                // something keeps the kernel from it, or had the device locked just now
                // (`pci_try_reset_function`); it is no bus master any more
                Err(DeviceError::Kernel {
                    errno: Errno::BUSY | Errno::AGAIN,
                    ..
                }) => Ok(()),
                reset => reset,
            });
        match quiet {
            Err(DeviceError::Removed { .. }) => Ok(()),
            quiet => quiet,
        }
    }
}

impl<K: Kernel> Drop for Inner<K> {
    /// No bus master, if it is there still; the kernel resets what it can when the file is closed.
    fn drop(&mut self) {
        let at = self.config.offset + COMMAND;
        let mut bytes = [0; 2];
        if self.kernel.read_at(&self.fd, at, &mut bytes).is_ok() {
            let command = u16::from_le_bytes(bytes) & !BUS_MASTER;
            let _ = self.kernel.write_at(&self.fd, at, &command.to_le_bytes());
        }
    }
}

fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NODEV | Errno::NXIO)
}

fn failed(device: PciAddress, call: &'static str, errno: Errno) -> DeviceError {
    match is_gone(errno) {
        true => DeviceError::Removed { device },
        false => DeviceError::Kernel {
            device,
            call,
            errno,
        },
    }
}
