// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong with a device that is open.

use super::{BarIndex, IrqKind, PciAddress};
use crate::kernel::Errno;

/// What can go wrong with a device that is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields and messages say it
pub enum DeviceError {
    /// It is not there any more.
    #[error(
        "{device} was removed: drop it and its domain, which gives all of its memory back, and open it again when it is there"
    )]
    Removed { device: PciAddress },
    /// The kernel refused a call.
    #[error("{device}: {call}: {errno}")]
    Kernel {
        device: PciAddress,
        call: &'static str,
        errno: Errno,
    },
    /// It has no such BAR, or one that is no memory.
    #[error("{device} has no {bar}")]
    NoBar { device: PciAddress, bar: BarIndex },
    /// A register that is not inside, or not aligned.
    #[error(
        "{device}: {bytes} bytes at {at:#x} of {bar}, which has {len}, are not an aligned register"
    )]
    NoRegister {
        device: PciAddress,
        bar: BarIndex,
        at: u64,
        bytes: u64,
        len: u64,
    },
    /// Bytes that its configuration space does not have.
    #[error("{device}: {bytes} bytes at {at:#x} of its configuration space, which has {len}")]
    NoConfig {
        device: PciAddress,
        at: u64,
        bytes: u64,
        /// How large it is.
        len: u64,
    },
    /// More vectors than it has.
    #[error("{device} has {has} vectors of {kind:?}, not {wanted}")]
    NoVectors {
        device: PciAddress,
        kind: IrqKind,
        /// How many it has.
        has: u32,
        /// How many were asked for.
        wanted: usize,
    },
    /// A write to configuration space that would turn its memory off, or put it to sleep, while a
    /// BAR is mapped: the next access to that would be SIGBUS.
    #[error(
        "{device} would not answer at a BAR that is mapped; drop the `Bar` before its memory is turned off, or it is put to sleep"
    )]
    Mapped { device: PciAddress },
    /// It cannot be reset alone.
    #[error("{device} has no reset of its own; stop it by its own registers")]
    NoReset { device: PciAddress },
}

impl DeviceError {
    /// What the kernel said, if it was asked.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            DeviceError::Removed { .. } => Some(Errno::NODEV),
            DeviceError::Kernel { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}
