// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Looking at the front end's next request before `vhost` does.
//!
//! `vhost`'s `BackendReqHandler` reads and answers every request on a socket, and ends with an
//! error at message 22. It is left to do so: before each call the next message is *peeked* at.
//! Message 22 is then read and answered here; messages with file descriptors are peeked at with
//! them, of which the kernel gives duplicates: that of message 21 is used, since `vhost` keeps its
//! own to itself, and files whose end a thread might have to wait for end the connection, since
//! `vhost`, or the kernel where a read has no room for them, closes them where it finds them;
//! message 18 is read here where it comes before features are set, as QEMU sends it and `vhost`
//! refuses it; anything else stays where it is. No second socket, no thread, no copy of any message
//! that `vhost` knows.
//!
//! A read that takes files ends with what was sent together with them, and a peek shows no files
//! beyond the first that there are. So a message is looked at when all of it has come; one that
//! came with files, and not in one piece, ends the connection: of the second piece nothing is seen.
//!
//! # Bounds
//! A front end that sends half a message cannot hold us for longer than the configured time: the
//! wait for a whole message is counted here, and `vhost`'s own reads have the socket's receive
//! timeout (`SO_RCVTIMEO`). File descriptors with message 22 never arrive: without room for them
//! the kernel closes them and says so.

use super::{
    foreign::Foreign,
    memory::Files,
    message::{HEADER_BYTES, Header, IOTLB_BYTES, IotlbMessage, MessageError},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags},
};
use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

/// File descriptors that the kernel sends with one message at the most (`SCM_MAX_FD`, unix(7)). Of
/// these `vhost` takes 32, and the kernel closes the rest.
const MOST_FILES: usize = 253;
/// Bytes of a payload that `vhost` reads at the most.
const MOST_PAYLOAD: usize = 0x1000;
/// `VHOST_USER_SET_VRING_ENABLE`: the front end enables or disables a ring.
pub const SET_VRING_ENABLE: u32 = 18;
/// Bytes of its payload: the queue, and 0 or 1.
const ENABLE_BYTES: usize = 8;
/// `VHOST_USER_SET_BACKEND_REQ_FD`: the front end sends the back channel's socket.
pub const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_IOTLB_MSG`: the front end sends an update or an invalidation.
pub const IOTLB_MSG: u32 = 22;
/// `VHOST_USER_BACKEND_IOTLB_MSG`: the back end sends a miss or an access failure.
pub const BACKEND_IOTLB_MSG: u32 = 1;

/// Why the connection cannot go on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum SocketError {
    /// The front end hung up between two messages.
    #[error("the front end hung up")]
    HungUp,
    /// It stopped in the middle of a message.
    #[error("the front end stopped in the middle of a message ({got} of {want} bytes)")]
    Stalled {
        got: usize,
        /// Bytes that the message has.
        want: usize,
    },
    /// It connected, and then said nothing.
    #[error("the front end said nothing for {0:?} after it had connected")]
    Silent(Duration),
    /// It sent an IOTLB message that is none, so what follows cannot be trusted to be a header.
    #[error("IOTLB message of {0} bytes, not {IOTLB_BYTES}")]
    Length(u32),
    /// It sent file descriptors with a message that has none.
    #[error("file descriptors with a message that has none")]
    Descriptors,
    /// It sent a file that may be of a file system that never answers, or whose end may take long.
    #[error(
        "a message with a file that is not of a regular file in memory (memfd, tmpfs, hugetlbfs), \
         and no event, pipe or UNIX socket, or that came in pieces"
    )]
    Files,
    /// A header that is not one of a request.
    #[error("not a request: {0:?}")]
    NotARequest(Header),
    /// A system call on it failed.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
}

/// What the front end wants next.
#[derive(Debug)]
pub enum Next {
    /// A message that `vhost` knows; it is still in the socket.
    Known(Header),
    /// Message 21, still in the socket, with a duplicate of the file descriptor that came with it.
    BackChannel(OwnedFd),
    /// This message, or one after it, has a file that `vhost` must not have. Its header is read,
    /// and the connection has to end.
    BadFiles(Header),
    /// Message 22, which was read from the socket.
    Iotlb(Header, Result<IotlbMessage, MessageError>),
    /// Nothing came for as long as the socket lets us wait (`SO_RCVTIMEO`).
    Nothing,
}

/// Waits until `fd` can be read, or `stop` can.
///
/// # Errors
/// Those of `poll`, other than an interruption.
pub fn wait_for(fd: impl AsFd, stop: impl AsFd, timeout: Option<Duration>) -> io::Result<Woken> {
    let mut fds = [
        PollFd::new(&fd, PollFlags::IN),
        PollFd::new(&stop, PollFlags::IN),
    ];
    let until = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec::try_from(left).expect("a configured time"));
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(0) => return Ok(Woken::TimedOut),
            Ok(_) if !fds[1].revents().is_empty() => return Ok(Woken::Stopped),
            Ok(_) => return Ok(Woken::Readable),
        }
    }
}

/// What ended a call of [`wait_for`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// There is something to read, or the other side hung up.
    Readable,
    /// The stop event was raised.
    Stopped,
    /// The time was up before either.
    TimedOut,
}

/// Looks at the next request; blocks until there is one, at most `patience` once its first byte is
/// there, and no longer than the socket's receive timeout before. Where any file may be memory, no
/// file is looked at.
///
/// # Errors
/// See [`SocketError`]; the connection is of no use any more.
pub fn next(socket: &UnixStream, patience: Duration, memory: Files) -> Result<Next, SocketError> {
    let Some((header, files)) = peek_message(socket, patience)? else {
        return Ok(Next::Nothing);
    };
    let is_back = header.request == SET_BACKEND_REQ_FD;
    let is_iotlb = header.request == IOTLB_MSG;
    let mut first = None;
    // The last of such a file to go is our duplicate, or the one in the socket.
    let mut waits = Vec::new();
    if files != Waiting::No && (memory == Files::InMemory || is_back || is_iotlb) {
        for file in peek_files(socket)? {
            match Foreign::from(file).closing_at_once() {
                Ok(file) => first = first.or(Some(file)),
                Err(foreign) => waits.push(foreign),
            }
        }
    }
    if memory == Files::InMemory && (files == Waiting::InPieces || !waits.is_empty()) {
        discard_header(socket)?;
        drop(waits);
        return Ok(Next::BadFiles(header));
    }
    if is_iotlb {
        let read = read_iotlb(socket, header);
        drop(waits);
        return read;
    }
    Ok(match first {
        Some(file) if is_back => Next::BackChannel(file.into()),
        _ => Next::Known(header),
    })
}

/// Whether file descriptors have come with this message, or with one that waits behind it: a peek
/// shows the first there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Yes,
    No,
    /// Some came with a part of this message, and another part came apart from them.
    InPieces,
}

/// The header of a message all of which has come, and whether there are file descriptors.
fn peek_message(
    socket: &UnixStream,
    patience: Duration,
) -> Result<Option<(Header, Waiting)>, SocketError> {
    let (mut short, mut long) = ([0; HEADER_BYTES + IOTLB_BYTES], Vec::new());
    let mut raw = &mut short[..];
    let (start, mut waited) = (Instant::now(), false);
    loop {
        // Looked at first: what it sent before it hung up is there then.
        let over = waited && has_hung_up(socket)?;
        let mut none = RecvAncillaryBuffer::default(); // the kernel says what has no room in it
        let peeked = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(raw)],
            &mut none,
            RecvFlags::PEEK,
        );
        let (got, files) = match peeked {
            Ok(peeked) => (peeked.bytes, peeked.flags.contains(ReturnFlags::CTRUNC)),
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => (0, false),
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(SocketError::Io(e.into())),
        };
        if got == 0 {
            return Err(SocketError::HungUp);
        }
        let header = raw.first_chunk().filter(|_| got >= HEADER_BYTES);
        let header = header.map(Header::decode);
        let want = HEADER_BYTES + header.as_ref().map_or(0, payload_read);
        match header {
            Some(header) if got >= want => {
                let files = if files { Waiting::Yes } else { Waiting::No };
                return Ok(Some((header, files)));
            }
            _ if got == raw.len() => {
                long.resize(want, 0);
                raw = &mut long[..];
            }
            // a peek ends with what came together with files
            Some(header) if files => return Ok(Some((header, Waiting::InPieces))),
            _ if !over && start.elapsed() < patience => {
                // A message in pieces is not the normal case, and there is no event for "more".
                std::thread::sleep(Duration::from_millis(1));
                waited = true;
            }
            _ => return Err(SocketError::Stalled { got, want }),
        }
    }
}

/// Bytes of payload that are read after this header: none where it is refused.
fn payload_read(header: &Header) -> usize {
    match header.size as usize {
        _ if !header.is_request() => 0,
        len if header.request == IOTLB_MSG && len != IOTLB_BYTES => 0,
        len if len > MOST_PAYLOAD => 0,
        len => len,
    }
}

/// Whether nothing more will come. What has come stays in the socket, and reading it does not tell.
fn has_hung_up(socket: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec::default();
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))? > 0)
}

/// Duplicates of all file descriptors with the message at the head of the socket; where it has
/// none, of those with the next that has. Messages stay, with their own.
fn peek_files(socket: &UnixStream) -> Result<Vec<OwnedFd>, SocketError> {
    let mut raw = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let peeked = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut raw)],
        &mut control,
        RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(io::Error::from)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    if peeked.flags.contains(ReturnFlags::CTRUNC) {
        // Not all were seen.
        return Err(SocketError::Io(Errno::MFILE.into()));
    }
    Ok(files)
}

/// Reads the header at the head of the socket. The file descriptors with it never arrive, as with
/// message 22; their file systems, which have not been told of them, are not asked, either.
fn discard_header(socket: &UnixStream) -> Result<(), SocketError> {
    match read_whole(socket, &mut [0; HEADER_BYTES]) {
        Ok(()) | Err(SocketError::Descriptors) => Ok(()),
        Err(e) => Err(e),
    }
}

fn read_iotlb(socket: &UnixStream, header: Header) -> Result<Next, SocketError> {
    if !header.is_request() {
        return Err(SocketError::NotARequest(header));
    }
    if header.size as usize != IOTLB_BYTES {
        return Err(SocketError::Length(header.size));
    }
    let mut raw = [0; HEADER_BYTES + IOTLB_BYTES];
    read_whole(socket, &mut raw)?;
    let message = IotlbMessage::decode(&raw[HEADER_BYTES..]);
    Ok(Next::Iotlb(header, message))
}

/// Reads message 18 at the head of the socket: the queue, and whether it is to be enabled, as the
/// front end says it. `None`, and nothing read, if it is not as long as it has to be.
///
/// # Errors
/// See [`SocketError`]; the message may be read in part.
pub fn read_enable(socket: &UnixStream, header: Header) -> Result<Option<(u32, u32)>, SocketError> {
    if !header.is_request() || header.size as usize != ENABLE_BYTES {
        return Ok(None);
    }
    let mut raw = [0; HEADER_BYTES + ENABLE_BYTES];
    read_whole(socket, &mut raw)?;
    let word = |at: usize| {
        let bytes = [raw[at], raw[at + 1], raw[at + 2], raw[at + 3]];
        u32::from_ne_bytes(bytes)
    };
    Ok(Some((word(HEADER_BYTES), word(HEADER_BYTES + 4))))
}

/// Reads a message that has no file descriptors.
fn read_whole(socket: &UnixStream, raw: &mut [u8]) -> Result<(), SocketError> {
    let mut got = 0;
    while got < raw.len() {
        let mut control = RecvAncillaryBuffer::default(); // no room: the kernel closes what comes, and says so
        let read = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut raw[got..])],
            &mut control,
            RecvFlags::empty(),
        );
        match read {
            Ok(read) if read.flags.contains(ReturnFlags::CTRUNC) => {
                return Err(SocketError::Descriptors);
            }
            Ok(read) if read.bytes > 0 => got += read.bytes,
            Err(Errno::INTR) => (),
            Ok(_) | Err(Errno::AGAIN) => {
                return Err(SocketError::Stalled {
                    got,
                    want: raw.len(),
                });
            }
            Err(e) => return Err(SocketError::Io(e.into())),
        }
    }
    Ok(())
}

/// Sends a message in one piece, so that no other message comes between.
///
/// # Errors
/// The system's own; the other side hung up, or does not read (`SO_SNDTIMEO`).
pub fn send(
    socket: BorrowedFd<'_>,
    header: Header,
    payload: &[u8],
    flags: SendFlags,
) -> io::Result<()> {
    let mut raw = [0; HEADER_BYTES + IOTLB_BYTES];
    raw[..HEADER_BYTES].copy_from_slice(&header.encode());
    raw[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
    let mut left = &raw[..HEADER_BYTES + payload.len()];
    while !left.is_empty() {
        match rustix::net::send(socket, left, flags | SendFlags::NOSIGNAL) {
            Ok(sent) => left = &left[sent..],
            Err(Errno::INTR) => (),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Answers an IOTLB message: 0 says that it was obeyed. The protocol demands an answer,
/// asked for or not.
///
/// # Errors
/// The same as for [`send`].
pub fn acknowledge(socket: &UnixStream, request: Header, code: u64) -> io::Result<()> {
    send(
        socket.as_fd(),
        request.reply(8),
        &code.to_ne_bytes(),
        SendFlags::empty(),
    )
}
