// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Interrupts as files.

use crate::kernel::Errno;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::{AsFd, BorrowedFd, OwnedFd},
    io,
};
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio as b;

/// Kinds of interrupts, as VFIO counts them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum IrqKind {
    Intx,
    Msi,
    /// Messages, by the table in a BAR.
    Msix,
    /// The bus reports an error of the device.
    Error,
    /// The kernel wants the device back: it is about to be removed, or unbound.
    Request,
}

impl IrqKind {
    pub(super) fn index(self) -> u32 {
        match self {
            IrqKind::Intx => b::VFIO_PCI_INTX_IRQ_INDEX,
            IrqKind::Msi => b::VFIO_PCI_MSI_IRQ_INDEX,
            IrqKind::Msix => b::VFIO_PCI_MSIX_IRQ_INDEX,
            IrqKind::Error => b::VFIO_PCI_ERR_IRQ_INDEX,
            IrqKind::Request => b::VFIO_PCI_REQ_IRQ_INDEX,
        }
    }
}

/// An interrupt: an eventfd that the kernel counts up.
#[derive(Debug)]
pub struct Interrupt(OwnedFd);

impl Interrupt {
    /// One that nothing raises yet.
    pub fn new() -> Result<Self, Errno> {
        Ok(Interrupt(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }
    /// How often it was raised since it was taken last; 0 is not at all.
    pub fn take(&self) -> Result<u64, Errno> {
        let mut count = [0; 8];
        match io::read(&self.0, &mut count) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(io::Errno::AGAIN) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
    /// Waits until it is raised, for `most` at most, then takes it.
    pub fn wait(&self, most: Option<Duration>) -> Result<u64, Errno> {
        let begun = Instant::now();
        loop {
            let left = most.map(|most| {
                Timespec::try_from(most.saturating_sub(begun.elapsed())).unwrap_or(Timespec {
                    tv_sec: i64::MAX,
                    tv_nsec: 0,
                })
            });
            let mut files = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut files, left.as_ref()) {
                Ok(_) => return self.take(),
                // a signal: the time is not over
                Err(io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    /// Raises it, as the device would.
    pub fn raise(&self) -> Result<(), Errno> {
        io::write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }
    /// The file, to wait for it beside others.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
