// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files that the front end sent and of which nothing is known yet, and their end.
//!
//! `close` asks the file system, and a file system in user space (FUSE) may be the front end's own
//! and never answer. No time limit helps: the wait ends with the answer, or with that server. So a
//! foreign file is closed on a thread that may be lost. `close` frees the descriptor before it
//! asks, so such a thread keeps none. Files in memory are closed at once: the kernel answers for
//! them.
//!
//! # Bounds
//! At most 256 threads close files at a time. Beyond, and where no thread can be had, files wait
//! in line and stay open; the log says so.
//!
//! Other files take their time, too: a TCP socket that is told to linger is closed when its other
//! end has taken what was written, a terminal when it has shown it. So those that `vhost` may close
//! by itself have to be of kinds that never wait ([`Foreign::closing_at_once`]). What is in the
//! receive queue of a socket is closed with the socket, and by then it cannot be looked at
//! ([`close_stream`]). So it is with connections that a listening socket has not accepted.
//!
//! Not handled: what is in the receive queue of a socket that the front end sent, which is closed
//! with that; files that `vhost` closes, where any file may be memory; and the end of the process,
//! which not even SIGKILL brings about before that server's.

use crate::log_limit::peer_log;
use rustix::net::{AddressFamily, sockopt};
use std::{
    fs::{self, File},
    io::ErrorKind,
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

/// Threads that close files at a time.
const MOST: usize = 256;
/// Bytes of such a thread's stack: it makes one system call.
const STACK: usize = 64 << 10;

/// A file from outside, of which nothing is known. However it is dropped, the thread that does so
/// does not wait for it.
#[derive(Debug)]
pub struct Foreign(Option<File>);

impl Foreign {
    /// The file, if it is of the kind that is asked for; else it is closed.
    pub fn known_if(mut self, known: impl FnOnce(&File) -> bool) -> Option<File> {
        self.0.take_if(|file| known(file))
    }

    /// The file, if no thread has to wait when it is closed; else it is kept.
    ///
    /// # Errors
    /// The same again.
    pub fn closing_at_once(mut self) -> Result<File, Self> {
        self.0.take_if(|file| closes_at_once(file)).ok_or(self)
    }
}

impl From<File> for Foreign {
    fn from(file: File) -> Self {
        Foreign(Some(file))
    }
}

impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Self {
        File::from(fd).into()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(file) = self.0.take_if(|file| !closes_at_once(file)) {
            discard(file);
        }
    }
}

/// Whether a file is a `memfd`, or on tmpfs or hugetlbfs. No file system is asked:
/// only these know seals.
pub fn is_in_memory(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

/// Whether closing a file waits for nothing: it is in memory, a UNIX socket, a pipe or an
/// event. No file system is asked for that.
fn closes_at_once(file: &File) -> bool {
    let is_unix = || sockopt::socket_domain(file) == Ok(AddressFamily::UNIX);
    is_in_memory(file) || is_unix() || is_event_or_pipe(file)
}

/// Where there is no `/proc` nothing tells, and each is taken for one.
fn is_event_or_pipe(file: &File) -> bool {
    // A path begins with a slash, whatever the file is called.
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    name.map_or(true, |name| {
        let name = name.as_os_str().as_bytes();
        name == b"anon_inode:[eventfd]" || name.starts_with(b"pipe:[")
    })
}

/// Closes a connection. Messages that were not read may have files, which are closed with it.
pub fn close_stream(stream: UnixStream) {
    // From here on nothing more can be sent. It may have been hung up before.
    match stream.shutdown(Shutdown::Both) {
        Err(e) if e.kind() != ErrorKind::NotConnected => {
            peer_log!(Warn, "cannot shut a connection down: {e}");
        }
        _ => (),
    }
    if rustix::io::ioctl_fionread(&stream) != Ok(0) {
        discard(OwnedFd::from(stream).into());
    }
}

struct Closers {
    threads: usize,
    line: Vec<File>,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers {
    threads: 0,
    line: Vec::new(),
});

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a file, however long that takes; returns at once.
pub(crate) fn discard(file: File) {
    let mut state = closers();
    // Not given to the thread: where there is none, that would close it here.
    state.line.push(file);
    let waiting = state.line.len();
    // One for each file, for every other may wait for ever.
    if state.threads == MOST {
        drop(state);
        if waiting.is_power_of_two() {
            log::error!("{MOST} threads close files of front ends; {waiting} more stay open");
        }
        return;
    }
    state.threads += 1;
    drop(state);
    let builder = thread::Builder::new().name("vhost-close".into());
    if let Err(e) = builder.stack_size(STACK).spawn(close_all) {
        closers().threads -= 1;
        peer_log!(Error, "no thread to close files of front ends: {e}");
    }
}

/// What a thread does: closes what is in line, until there is nothing more.
fn close_all() {
    loop {
        let mut state = closers();
        let Some(file) = state.line.pop() else {
            state.threads -= 1;
            return;
        };
        drop(state);
        drop(file);
    }
}
