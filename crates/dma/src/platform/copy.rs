// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How the CPU reaches memory by physical address: what bouncing needs of a platform beside
//! [`Platform`].

use super::{Authority, Platform};
use crate::units::*;

/// A platform whose CPUs reach physical memory: a kernel by its direct map, a process by its arena.
///
/// # Safety
/// A driver gets the bytes that these calls bring, and a device those that they leave. For as long
/// as the platform lives:
///
/// * What is read and written is the memory that is named, all of it and nothing else.
/// * Devices may read and write the same bytes at the same time, and so may other CPUs. An
///   implementation makes no references to them; it moves bytes by accesses that may race
///   (volatile, relaxed atomic, or assembly). Which of two racing writes a byte holds is open;
///   every byte is moved once.
/// * What [`read`](Self::read) and [`copy`](Self::copy) bring is stable from then on: it
///   is not read again.
/// * A range that is not memory all of it is refused before the first byte is moved.
/// * Bytes moved before a later store to a doorbell, or after a load that told of a completion, are
///   in order with it by the fences that drivers have there anyway; an implementation adds none.
///
/// That no byte of others is seen (P7) rests on it. Nothing checks it at run time; the oracle's
/// tests of bounced buffers run on copies of this process's.
///
/// What calls it answers for the bytes that it names, by an [`Authority`]: a domain shows its
/// platform to all code, safe code among it.
///
/// ```
/// # use ioatlas_dma::{platform::*, units::*};
/// # use ioatlas_host::*;
/// let host = Host::new(HostConfig::default().frames(1));
/// // SAFETY: nothing else has anything in this arena.
/// let by = unsafe { Authority::assume() };
/// host.write(by, b"hello", PhysAddr(0x10))?;
/// # Ok::<(), NotMemoryError>(())
/// ```
///
/// ```compile_fail,E0061
/// # use ioatlas_dma::{platform::*, units::*};
/// # use ioatlas_host::*;
/// let host = Host::new(HostConfig::default().frames(1));
/// host.write(b"hello", PhysAddr(0x10))?;
/// # Ok::<(), NotMemoryError>(())
/// ```
#[allow(unsafe_code)]
pub unsafe trait CopyMemory: Platform {
    /// Whether every byte of `range` is memory that the CPU can reach.
    fn is_memory(&self, range: PhysRange) -> bool;
    /// Copies `from` to as many bytes at `to`. The two must not overlap, or what is at
    /// `to` then is open.
    ///
    /// # Errors
    /// [`NotMemoryError`]; nothing is copied.
    fn copy(&self, by: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError>;
    /// Writes zeroes to all of `range`.
    ///
    /// # Errors
    /// [`NotMemoryError`]; nothing is written.
    fn zero(&self, by: Authority, range: PhysRange) -> Result<(), NotMemoryError>;
    /// Copies `from` to as many bytes at `to`, and leaves zeroes behind: [`copy`](Self::copy) and
    /// [`zero`](Self::zero), which a platform may do in one pass. Both keep their contracts; of
    /// what a device writes to `from` meanwhile, any byte may be copied, be zeroed unseen, or stay.
    ///
    /// # Errors
    /// [`NotMemoryError`]; nothing is moved.
    #[inline]
    fn take(&self, by: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
        self.copy(by, from, to)?;
        self.zero(by, from)
    }
    /// Reads the bytes at `from`.
    ///
    /// # Errors
    /// [`NotMemoryError`]; nothing is read.
    fn read(&self, by: Authority, from: PhysAddr, into: &mut [u8]) -> Result<(), NotMemoryError>;
    /// Writes `from` to `to`.
    ///
    /// # Errors
    /// [`NotMemoryError`]; nothing is written.
    fn write(&self, by: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError>;
}

/// Bytes that the CPU cannot reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is not memory, or not all of it")]
pub struct NotMemoryError(pub PhysRange);
