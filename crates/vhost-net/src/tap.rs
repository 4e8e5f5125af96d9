// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A TAP device: frames to and from the host's network stack.
#![allow(unsafe_code)]

use rustix::{fs::OFlags, io::Errno};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

/// Bytes of an interface's name, the zero behind it included.
const NAME: usize = libc::IFNAMSIZ;

/// Why there is no TAP device.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum TapError {
    /// Not what an interface can be called.
    #[error("'{0}' is no interface name: 1 to 15 bytes, without '/' and spaces")]
    Name(String),
    /// The machine has no TAP driver, or it is not for us.
    #[error("/dev/net/tun: {0} ({hint})", hint = open_hint(.0))]
    Open(#[source] io::Error),
    /// Making or attaching to an interface takes the capability `CAP_NET_ADMIN`, unless it was
    /// made for this user.
    #[error("TAP interface '{name}': {why} ({hint})", hint = attach_hint(name, *queues, why))]
    Attach {
        name: String,
        /// How it was to be attached to.
        queues: TapQueues,
        /// What the system says.
        #[source]
        why: io::Error,
    },
}

/// Why nothing comes from an interface any more. It was removed, or what stood behind it is gone;
/// reading does not begin again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("TAP: frames cannot be read any more: {0}")]
pub struct TapLost(#[source] pub(crate) Arc<io::Error>);

/// What to do about a TAP driver that cannot be opened.
fn open_hint(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::PermissionDenied => "run as a user that may open it",
        _ => "load the kernel's TAP driver: `modprobe tun`",
    }
}

/// What to do about an interface that cannot be attached to.
fn attach_hint(name: &str, queues: TapQueues, why: &io::Error) -> String {
    let several = match queues {
        TapQueues::One => "",
        TapQueues::Several => " multi_queue",
    };
    let made = format!("`ip tuntap add {name} mode tap{several} user NAME`");
    match why.raw_os_error() {
        Some(libc::EBUSY) => "another program has it; end that, or name another".into(),
        Some(libc::EINVAL) => format!(
            "it exists, and is no TAP interface or has other queues; remove it, or make it so: {made}"
        ),
        _ => format!("run with CAP_NET_ADMIN, or have the interface made for you: {made}"),
    }
}

/// One queue of a TAP interface, which does not block.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
}

/// Whether an interface has one queue or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum TapQueues {
    One,
    /// As many as are opened.
    Several,
}

impl Tap {
    /// Attaches to interface `name`, which is made if there is none.
    ///
    /// # Errors
    /// See [`TapError`], whose messages say what to do.
    pub fn open(name: &str, queues: TapQueues) -> Result<Self, TapError> {
        let bad = |c: char| c == '/' || c.is_whitespace() || c == '\0';
        if name.is_empty() || name.len() >= NAME || name.contains(bad) {
            return Err(TapError::Name(name.into()));
        }
        const DEVICE: &CStr = c"/dev/net/tun";
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(DEVICE, flags, rustix::fs::Mode::empty())
            .map_err(|e| TapError::Open(e.into()))?;
        // SAFETY: all-zero is a value of this plain struct.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let several = match queues {
            TapQueues::One => 0,
            TapQueues::Several => libc::IFF_MULTI_QUEUE,
        };
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | several) as libc::c_short;
        // SAFETY: the request reads and writes one `ifreq`, which this is.
        let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
        match set {
            0 => Ok(Tap { fd }),
            _ => Err(TapError::Attach {
                name: name.into(),
                queues,
                why: io::Error::last_os_error(),
            }),
        }
    }

    /// A queue that a process with more rights has opened. Any file will do of which one read is a
    /// frame, and one write, too.
    ///
    /// # Errors
    /// It cannot be made not to block.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Tap { fd })
    }

    /// Another descriptor of the same queue, to be polled.
    ///
    /// # Errors
    /// Those of duplicating a file descriptor.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Reads a frame, if there is one.
    ///
    /// # Errors
    /// The system's own; the end of what can be read is one, too.
    pub fn read(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *frame) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => return Ok(Some(len)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => (),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Writes a frame, in one piece.
    ///
    /// # Errors
    /// The frame is lost: the interface is down, or its queue is full.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, frame) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => (),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", "a\0b"] {
            let refused = Tap::open(name, TapQueues::One);
            assert!(matches!(refused, Err(TapError::Name(_))), "{name:?}");
        }
    }
}
