// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Event file descriptors, our own and those that came from outside and may be anything.
//!
//! Whether a read or write of an eventfd waits is decided by `O_NONBLOCK`, which belongs to the
//! open file. The front end has the same open file: it can take the flag away and fill the counter,
//! and the thread that writes next sleeps for as long as the front end likes, also after its death
//! if another process has a copy. Asking `poll` first only makes a race of it. So of a descriptor
//! from outside
//!
//! * a *call* or *error* is raised by the kernel, which never waits (`eventfd_signal`), as the
//!   completion of an asynchronous read of nothing (`io_submit(2)`, `IOCB_FLAG_RESFD`): [`Raiser`].
//!   For writes of an eventfd there is no `RWF_NOWAIT`;
//! * a *kick* is read with `RWF_NOWAIT`.
//!
//! Not handled: kernels without asynchronous I/O or without `RWF_NOWAIT` for eventfds (before 5.8),
//! and filters that forbid it. There a front end as above holds the thread up.

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::MemfdFlags,
    io::{Errno, ReadWriteFlags},
};
use std::{
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

/// A new one, which does not block.
pub(super) fn new() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Raises one of our own. One that is raised so often that it is full counts as raised.
pub(super) fn raise(fd: impl AsFd) -> io::Result<()> {
    loop {
        match rustix::io::write(&fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => (),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Takes one of our own back.
pub(super) fn clear(fd: impl AsFd) {
    let mut count = [0; 8];
    while let Err(Errno::INTR) = rustix::io::read(&fd, &mut count) {}
}

/// Takes one from outside back. Another reader of it may have done so before.
///
/// # Errors
/// It is at its end, or cannot be read, or not without waiting: it will never be raised again, but
/// may look so for ever.
pub(super) fn clear_foreign(fd: impl AsFd) -> io::Result<()> {
    loop {
        let read = match can_read_at_once() {
            true => read_at_once(&fd),
            false => rustix::io::read(&fd, &mut [0; 8]),
        };
        match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => (),
            Err(e) => return Err(e.into()),
        }
    }
}

fn read_at_once(fd: impl AsFd) -> rustix::io::Result<usize> {
    let mut count = [0; 8];
    let mut count = [IoSliceMut::new(&mut count)];
    // This offset stands for none.
    rustix::io::preadv2(fd, &mut count, u64::MAX, ReadWriteFlags::NOWAIT)
}

/// Whether this kernel reads eventfds with `RWF_NOWAIT`; found out once, with one of our own.
fn can_read_at_once() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let tried = eventfd(0, EventfdFlags::CLOEXEC).map(|event| read_at_once(&event));
        let can = matches!(tried, Ok(Err(Errno::AGAIN)));
        if !can {
            log::warn!(
                "no RWF_NOWAIT for events: a front end can hold its own device up by a kick that blocks"
            );
        }
        can
    })
}

/// Raises event file descriptors from outside, and never waits.
#[derive(Debug)]
pub(super) struct Raiser {
    /// Of `io_setup(2)`; none where the system has none.
    context: Option<libc::c_ulong>,
    /// An empty file: reading it is over at once.
    nothing: OwnedFd,
}

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    flags_of_read: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completion {
    data: u64,
    request: u64,
    result: [i64; 2],
}

/// `IOCB_CMD_PREAD` of `linux/aio_abi.h`: a read.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD` of `linux/aio_abi.h`: its completion raises an event.
const RAISE_EVENT: u32 = 1;
/// Completions that are kept until they are collected.
const COMPLETIONS: usize = 64;
/// Attempts to find room for a completion: each collects all there are.
const ATTEMPTS: usize = 100;

impl Raiser {
    /// # Errors
    /// The system's own. That it has no asynchronous I/O, or forbids it, is none; that others have
    /// used it up is.
    pub fn new() -> io::Result<Self> {
        let nothing = rustix::fs::memfd_create("nothing", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the pointer is to a context, which is 0 as it has to be.
        let done = unsafe { libc::syscall(libc::SYS_io_setup, COMPLETIONS, &raw mut context) };
        let context = match (done, io::Error::last_os_error()) {
            (0, _) => Some(context),
            (_, why) if matches!(why.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                log::warn!(
                    "no asynchronous I/O ({why}): a front end can hold its own device up by an event that blocks"
                );
                None
            }
            // Whatever may use up what the system has of it must not take it from us like this.
            (_, why) => {
                let what = format!("asynchronous I/O (limited by fs.aio-max-nr): {why}");
                return Err(io::Error::new(why.kind(), what));
            }
        };
        Ok(Raiser { context, nothing })
    }

    /// Raises `fd`. One that is full stays so, and counts as raised.
    ///
    /// # Errors
    /// It is no eventfd, or the system's own.
    pub fn raise(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let Some(context) = self.context else {
            return raise(fd);
        };
        for _ in 0..ATTEMPTS {
            match self.submit(context, fd) {
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => self.collect(context),
                // A filter that was installed since.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    return raise(fd);
                }
                done => return done,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn submit(&self, context: libc::c_ulong, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut byte = 0u8;
        let mut request = Request {
            opcode: READ,
            file: self.nothing.as_raw_fd() as u32,
            buffer: (&raw mut byte) as usize as u64,
            len: 1,
            flags: RAISE_EVENT,
            event: fd.as_raw_fd() as u32,
            ..Request::default()
        };
        let requests = [&raw mut request];
        // SAFETY: one request, which lives until the call is over, and so does its buffer: a read
        // of a file in memory is complete when the call returns, and this one reads no byte.
        let done = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, requests.as_ptr()) };
        match done {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes room for further completions.
    fn collect(&self, context: libc::c_ulong) {
        let mut completions = [Completion::default(); COMPLETIONS];
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: room for as many completions as are asked for; a time that lives as long.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                context,
                0,
                COMPLETIONS,
                completions.as_mut_ptr(),
                &raw const at_once,
            )
        };
    }
}

impl Drop for Raiser {
    fn drop(&mut self) {
        if let Some(context) = self.context {
            // SAFETY: the context that `new` made, and nothing uses any more.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn an_event_is_raised_as_often_as_asked() {
        let raiser = Raiser::new().unwrap();
        let event = new().unwrap();
        // More often than completions have room.
        for _ in 0..10 * COMPLETIONS {
            raiser.raise(event.as_fd()).unwrap();
        }
        assert_eq!(count(&event), 10 * COMPLETIONS as u64);
    }

    #[test]
    fn an_event_that_blocks_is_not_waited_for() {
        let raiser = Raiser::new().unwrap();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        for _ in 0..3 {
            clear_foreign(&event).unwrap();
        }
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            raiser.raise(event.as_fd()).unwrap();
        }
        assert!(count(&event) >= u64::MAX - 1);
    }

    #[test]
    fn what_is_no_event_is_not_raised() {
        let raiser = Raiser::new().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for other in [reader.as_fd(), writer.as_fd(), null.as_fd()] {
            assert!(raiser.raise(other).is_err());
        }
    }
}
