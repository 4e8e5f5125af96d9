// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The socket in the file system at which front ends find a runner.
//!
//! A path that exists is never just taken: another back end may be listening there, or have left the file when it was killed. Which of
//! the two it is, a connection that is tried tells.
//!
//! Not handled: two programs that replace the same stale socket at the same moment; the later one wins.

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

/// What is done about a socket that nobody listens at any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stale {
    /// It is an error.
    #[default]
    Refuse,
    /// It is removed.
    Replace,
}

/// Why nobody can listen at a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else does.
    #[error("{}: in use: another program listens there; end it, or take another path", .0.display())]
    InUse(PathBuf),
    /// Somebody else did.
    #[error("{}: stale: whoever listened there has ended; remove the socket, or have it replaced", .0.display())]
    Stale(PathBuf),
    /// There is something else.
    #[error("{}: exists, and is not a socket; take another path", .0.display())]
    NotASocket(PathBuf),
    /// There is no such place.
    #[error("{}: no such directory; make it first", .0.display())]
    NoDirectory(PathBuf),
    /// The system's own.
    #[error("{}: cannot listen: {why}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        why: io::Error,
    },
}

/// A listening socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: what is at the path later may be somebody else's.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Makes a socket at `path` and listens.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &Path, stale: Stale) -> Result<Self, ListenError> {
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
            // Not what somebody has put there since.
            if identity(path).map_err(failed)? == Some(found) {
                std::fs::remove_file(path).map_err(failed)?;
                log::info!("{}: removed a stale socket", path.display());
            }
        }
        let listener = UnixListener::bind(path).map_err(|why| match why.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(path.into()),
            _ => failed(why),
        })?;
        Ok(Listener {
            listener,
            path: path.into(),
            made: identity(path).map_err(failed)?,
        })
    }

    /// For [`Runner::serve`](super::Runner::serve).
    pub fn socket(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Ok(found) = identity(&self.path)
            && found == self.made
            && let Err(e) = std::fs::remove_file(&self.path)
        {
            log::warn!("{}: cannot remove the socket: {e}", self.path.display());
        }
    }
}

/// Which file is at a path, if there is one. Links are not followed: a socket cannot be made through one.
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
    // Whoever listens may have a full queue of connections: that must not block us.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|e| failed(e.into()))?;
    match rustix::net::connect(&socket, &address) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // of another type, for one: not ours in any case
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(ListenError::InUse(path.into())),
        Err(e) => Err(failed(e.into())),
    }
}
