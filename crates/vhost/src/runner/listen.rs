// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The socket in the file system at which front ends find a runner; and one with which a program
//! was started.
//!
//! A path that exists is never just taken: another back end may be listening there, or have left
//! the file when it was killed. Which of the two it is, a connection that is tried tells.
//!
//! No client can connect before the socket's permissions are what they shall be: it listens only
//! then.
//!
//! Not handled: two programs that replace the same stale socket at the same moment; the later one
//! wins.

use crate::protocol::foreign;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    fs::Permissions,
    io,
    os::{
        fd::{FromRawFd, OwnedFd, RawFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

/// Front ends that wait to be served, at most.
const WAITING: i32 = 128;

/// What is done about a socket at which no program listens any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stale {
    /// It is an error.
    #[default]
    Refuse,
    /// It is removed, and another takes its place.
    Replace,
}

/// Which users may connect to a socket in the file system: those that may write to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Its permission bits, as `chmod` takes them; without, all but those that the
    /// process's mask takes away.
    pub mode: Option<u32>,
    /// The number of the group that it belongs to; without, as every file that the process makes.
    pub group: Option<u32>,
}

/// Why a path cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum ListenError {
    /// Another program listens there.
    #[error("{}: in use: another program listens there; end it, or take another path", .0.display())]
    InUse(PathBuf),
    /// A program listened there, and has ended.
    #[error("{}: stale: the program that listened there has ended; remove the socket, or have it replaced", .0.display())]
    Stale(PathBuf),
    /// There is something else.
    #[error("{}: exists, and is not a socket; take another path", .0.display())]
    NotASocket(PathBuf),
    /// There is no such place.
    #[error("{}: no such directory; make it first", .0.display())]
    NoDirectory(PathBuf),
    /// Its permissions cannot be what they shall be.
    #[error("{}: cannot set which users may connect: {why}", .path.display())]
    Access {
        path: PathBuf,
        /// What the system says.
        #[source]
        why: io::Error,
    },
    /// What the program was started with is not a socket for front ends.
    #[error("file descriptor {number} is not a stream socket of the UNIX domain: {why}")]
    Inherited {
        number: RawFd,
        /// What the system says.
        #[source]
        why: io::Error,
    },
    /// A system call failed.
    #[error("{}: cannot listen: {why}", .path.display())]
    Io {
        path: PathBuf,
        /// What the system says.
        #[source]
        why: io::Error,
    },
}

/// A listening socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    /// There until it is dropped.
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Device and inode: what is at the path later may be another program's.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Makes a socket at `path` and listens.
    ///
    /// # Errors
    /// The same as for [`bind_for`](Self::bind_for).
    pub fn bind(path: &Path, stale: Stale) -> Result<Self, ListenError> {
        Self::bind_for(path, stale, Access::default())
    }

    /// The same for the users that `access` lets connect.
    ///
    /// # Errors
    /// See [`ListenError`]; no socket is left at the path.
    pub fn bind_for(path: &Path, stale: Stale, access: Access) -> Result<Self, ListenError> {
        let failed = |why| ListenError::Io {
            path: path.into(),
            why,
        };
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(parent) = parent.filter(|p| !p.is_dir()) {
            return Err(ListenError::NoDirectory(parent.into()));
        }
        if let Some(found) = identity(path).map_err(failed)? {
            what_is_there(path)?;
            if stale == Stale::Refuse {
                return Err(ListenError::Stale(path.into()));
            }
            // Not what another program has put there since.
            if identity(path).map_err(failed)? == Some(found) {
                std::fs::remove_file(path).map_err(failed)?;
                log::info!("{}: removed a stale socket", path.display());
            }
        }
        let socket = stream_socket(SocketFlags::empty()).map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
        rustix::net::bind(&socket, &address).map_err(|why| match why {
            Errno::ADDRINUSE => ListenError::InUse(path.into()),
            why => failed(why.into()),
        })?;
        // From here on an error removes it.
        let listener = Listener {
            listener: Some(UnixListener::from(socket)),
            path: path.into(),
            made: identity(path).map_err(failed)?,
        };
        access.set(path).map_err(|why| ListenError::Access {
            path: path.into(),
            why,
        })?;
        rustix::net::listen(listener.socket(), WAITING).map_err(|e| failed(e.into()))?;
        Ok(listener)
    }

    /// Where in the file system it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket, for [`Runner::serve`](super::Runner::serve) to accept connections from.
    pub fn socket(&self) -> &UnixListener {
        self.listener.as_ref().expect("it is not dropped yet")
    }
}

impl Access {
    fn set(self, path: &Path) -> io::Result<()> {
        if self.group.is_some() {
            std::os::unix::fs::lchown(path, None, self.group)?;
        }
        match self.mode {
            Some(mode) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

/// A socket that this process was started with, as by a management program.
#[derive(Debug)]
pub enum Inherited {
    /// Front ends connect to it: for [`Runner::serve`](super::Runner::serve).
    Listening(UnixListener),
    /// A front end is at its other end: for [`Runner::serve_stream`](super::Runner::serve_stream).
    Connected(UnixStream),
}

impl Inherited {
    /// Takes a copy of the socket that is open as `number`. The number itself stays open.
    ///
    /// # Errors
    /// Nothing is open there, or no such socket.
    #[allow(unsafe_code)]
    pub fn take(number: RawFd) -> Result<Self, ListenError> {
        let failed = |why| ListenError::Inherited { number, why };
        // SAFETY: takes plain numbers, and changes nothing that other code has.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: it was made just now, and no other code has it.
        let socket = unsafe { OwnedFd::from_raw_fd(copy) };
        match is_listening(&socket).map_err(failed)? {
            true => Ok(Self::Listening(socket.into())),
            false => Ok(Self::Connected(socket.into())),
        }
    }
}

/// Whether a stream socket of the UNIX domain listens.
fn is_listening(socket: &OwnedFd) -> io::Result<bool> {
    use rustix::net::sockopt;
    let domain = sockopt::socket_domain(socket)?;
    if domain != AddressFamily::UNIX || sockopt::socket_type(socket)? != SocketType::STREAM {
        return Err(io::Error::other("a socket of another kind"));
    }
    Ok(sockopt::socket_acceptconn(socket)?)
}

fn stream_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    Ok(socket?)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Ok(found) = identity(&self.path)
            && found == self.made
            && let Err(e) = std::fs::remove_file(&self.path)
        {
            log::warn!("{}: cannot remove the socket: {e}", self.path.display());
        }
        // with it go the messages of those that were not accepted, and files that these have
        if let Some(listener) = self.listener.take() {
            foreign::discard(OwnedFd::from(listener).into());
        }
    }
}

/// Which file is at a path, if there is one. Links are not followed: a socket cannot
/// be made through one.
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some((found.dev(), found.ino()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// `Ok` where a stale socket is at the path, or nothing any more.
fn what_is_there(path: &Path) -> Result<(), ListenError> {
    let failed = |why: io::Error| ListenError::Io {
        path: path.into(),
        why,
    };
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    // The program that listens may have a full queue of connections: that must not block us.
    let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
    let socket = stream_socket(SocketFlags::NONBLOCK).map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // of another type, for one: not ours in any case
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(ListenError::InUse(path.into())),
        Err(e) => Err(failed(e.into())),
    }
}
