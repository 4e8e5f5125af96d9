// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel's error numbers.

use std::fmt;

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// The operation is not permitted.
    pub const PERM: Errno = Errno(1);
    /// No such file, or nothing mapped there.
    pub const NOENT: Errno = Errno(2);
    /// An access to a device failed.
    pub const IO: Errno = Errno(5);
    /// No such device behind the file.
    pub const NXIO: Errno = Errno(6);
    /// Not now: a lock is taken.
    pub const AGAIN: Errno = Errno(11);
    /// No memory, or none that may be pinned.
    pub const NOMEM: Errno = Errno(12);
    /// No permission for the file.
    pub const ACCES: Errno = Errno(13);
    /// No memory at that address.
    pub const FAULT: Errno = Errno(14);
    /// The file or device is in use.
    pub const BUSY: Errno = Errno(16);
    /// There is something already.
    pub const EXIST: Errno = Errno(17);
    /// No such device, or not any more.
    pub const NODEV: Errno = Errno(19);
    /// The arguments make no sense there.
    pub const INVAL: Errno = Errno(22);
    /// The file does not know that call.
    pub const NOTTY: Errno = Errno(25);
    /// No room: the limit of mappings.
    pub const NOSPC: Errno = Errno(28);
    /// A list that was to be filled is too short.
    pub const MSGSIZE: Errno = Errno(90);
    /// The address is reserved.
    pub const ADDRINUSE: Errno = Errno(98);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Errno(errno.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(Errno::IO, Errno)
    }
}
