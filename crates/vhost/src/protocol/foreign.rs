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
//! Not handled: files with messages that `vhost` refuses by itself, which closes them where it
//! finds them; and the end of the process, which not even SIGKILL brings about before that
//! server's.

use std::{
    fs::File,
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
}

impl From<File> for Foreign {
    fn from(file: File) -> Self {
        Foreign(Some(file))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(file) = self.0.take_if(|file| !is_in_memory(file)) {
            discard(file);
        }
    }
}

/// Whether a file is a `memfd`, or on tmpfs or hugetlbfs. No file system is asked:
/// only these know seals.
pub fn is_in_memory(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
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
fn discard(file: File) {
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
        log::error!("no thread to close files of front ends: {e}");
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
