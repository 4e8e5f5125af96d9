// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Event file descriptors, our own and those that came from outside and may be anything.

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// A new one, which does not block.
pub(super) fn new() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Raises it. One that is raised so often that it is full counts as raised.
pub(super) fn raise(fd: impl AsFd) -> io::Result<()> {
    loop {
        match rustix::io::write(&fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => (),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Takes it back. Whoever else reads it may have done so.
///
/// # Errors
/// It is at its end, or cannot be read: it will never be raised again, but may look so for ever.
pub(super) fn clear(fd: impl AsFd) -> io::Result<()> {
    let mut count = [0; 8];
    loop {
        match rustix::io::read(&fd, &mut count) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => (),
            Err(e) => return Err(e.into()),
        }
    }
}
