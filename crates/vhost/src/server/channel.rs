// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How messages reach a back end.

use crate::protocol::{
    message::*,
    socket::{self, BACKEND_IOTLB_MSG, IOTLB_MSG},
};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Mutex, PoisonError},
};

/// Carries updates and invalidations to one back end.
pub trait IotlbChannel: Send {
    /// Sends an update or an invalidation, and returns when it is in force.
    ///
    /// # Errors
    /// It may not be.
    fn send(&mut self, message: &IotlbMessage) -> Result<(), ChannelError>;
}

/// Why a message may not be in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The back end answered that it did not obey.
    #[error("the back end refused {0:?} with code {1}")]
    Refused(IotlbMessage, u64),
    /// Something else came where the answer should be.
    #[error("the back end answered {0:?} with {1:?}")]
    OutOfStep(IotlbMessage, Header),
    /// The socket or the file failed; a timeout of the socket's is one of these.
    #[error("{0:?} was not acknowledged: {1}")]
    Io(IotlbMessage, #[source] io::Error),
    /// What came from the back end is no message.
    #[error("from the back end: {0}")]
    Bad(#[from] MessageError),
    /// The same, for its header.
    #[error("from the back end: {0:?} where an IOTLB message should be")]
    NotIotlb(Header),
    /// An earlier message got no answer, or another one, so the channel was shut down: an answer
    /// that came late would be taken for that of this message.
    #[error("{0:?} was not sent, since the channel is shut down: {1}")]
    ShutDown(IotlbMessage, Arc<str>),
    /// Nothing more comes from it.
    #[error("the back end's channel: {0}")]
    Closed(#[source] io::Error),
}

/// Whether requests and answers still belong together.
///
/// Answers carry no number. One that is late, or of which only a part was read, would be taken for
/// that of the next request, and a back end would seem to have forgotten what it still uses. So the
/// first failure that leaves an answer outstanding is the last: the channel keeps what it said.
#[derive(Debug, Default)]
struct Step {
    lost: Option<Arc<str>>,
}

impl Step {
    fn check(&self, message: &IotlbMessage) -> Result<(), ChannelError> {
        match &self.lost {
            Some(why) => Err(ChannelError::ShutDown(*message, why.clone())),
            None => Ok(()),
        }
    }

    fn lose(&mut self, why: &ChannelError) {
        self.lost.get_or_insert_with(|| why.to_string().into());
    }
}

/// The vhost-user protocol: updates on the control socket, acknowledged; misses from the back
/// channel, which is read by [`UserChannel::receive`].
///
/// How long an acknowledgement may take is the control socket's receive timeout. One that has not
/// come by then, has come in part, or is none, ends the session: the socket is shut down, for the
/// VMM's own requests as well, and every later message fails with [`ChannelError::ShutDown`]. A
/// refusal is an answer like any other.
#[derive(Debug)]
pub struct UserChannel {
    control: UnixStream,
    /// The thread that holds it may use the control socket; the VMM's own requests take it too.
    turn: Arc<Mutex<()>>,
    step: Step,
}

impl UserChannel {
    /// A channel over a duplicate of the control socket. `turn` is held from a
    /// request to its answer.
    pub fn new(control: UnixStream, turn: Arc<Mutex<()>>) -> Self {
        UserChannel {
            control,
            turn,
            step: Step::default(),
        }
    }

    /// Reads the next message from the back channel, whose other end went to the back end with
    /// `SET_BACKEND_REQ_FD`. A message whose sender waits for a reply gets one.
    ///
    /// # Errors
    /// The channel is closed, or what came is no IOTLB message. Where a message was read in part
    /// only, the socket is shut down: what follows would be taken for the beginning of another.
    pub fn receive(back: &UnixStream) -> Result<IotlbMessage, ChannelError> {
        let mut from = Counted {
            from: back,
            bytes: 0,
        };
        let received = receive(&mut from, back);
        let whole = match &received {
            Ok(_) | Err(ChannelError::Bad(_)) => true,
            // The socket's timeout, before the first byte: nothing was lost.
            Err(_) => from.bytes == 0,
        };
        if !whole {
            shut_down(back);
        }
        received
    }

    /// Sends a request and reads its answer. The caller has the turn.
    fn exchange(&mut self, message: &IotlbMessage) -> Result<(), ChannelError> {
        let failed = |e| ChannelError::Io(*message, e);
        let request = Header::request_with_reply(IOTLB_MSG, IOTLB_BYTES);
        let flags = SendFlags::empty();
        socket::send(self.control.as_fd(), request, &message.encode(), flags).map_err(failed)?;
        let mut raw = [0; HEADER_BYTES + 8];
        self.control.read_exact(&mut raw).map_err(failed)?;
        let (header, code) = raw.split_at(HEADER_BYTES);
        let header = Header::decode(header.try_into().expect("as split"));
        if !header.answers(&request) || header.size != 8 {
            return Err(ChannelError::OutOfStep(*message, header));
        }
        match u64::from_ne_bytes(code.try_into().expect("as split")) {
            0 => Ok(()),
            code => Err(ChannelError::Refused(*message, code)),
        }
    }
}

/// Ends both directions of a socket, for every duplicate of it: a peer that answers late is not
/// heard, and another user of the socket fails before it reads what was meant for us.
pub(super) fn shut_down(socket: &UnixStream) {
    match socket.shutdown(Shutdown::Both) {
        Ok(()) => (),
        // The peer has gone, which is as good.
        Err(e) if e.kind() == ErrorKind::NotConnected => (),
        Err(e) => log::error!("cannot shut a back end's socket down: {e}"),
    }
}

/// Counts what was read.
struct Counted<'s> {
    from: &'s UnixStream,
    bytes: usize,
}

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(buf)?;
        self.bytes += got;
        Ok(got)
    }
}

/// Messages of a back channel, read as many at a time as have come.
#[derive(Debug, Default)]
pub(super) struct MissInbox {
    bytes: Vec<u8>,
    /// What of them is done.
    done: usize,
}

/// Bytes of a message.
const MESSAGE: usize = HEADER_BYTES + IOTLB_BYTES;
/// Messages that are read at a time, at most.
const AT_ONCE: usize = 64;

impl MissInbox {
    /// The next message, if one has come. One that has begun is waited for, as long
    /// as the socket lets.
    ///
    /// # Errors
    /// Those of [`UserChannel::receive`]; the socket is not shut down here.
    pub fn next(&mut self, back: &UnixStream) -> Result<Option<IotlbMessage>, ChannelError> {
        if self.bytes.len() - self.done < MESSAGE && !self.fill(back)? {
            return Ok(None);
        }
        let mut rest = &self.bytes[self.done..];
        let received = receive(&mut rest, back);
        match &received {
            Ok(_) => self.done += MESSAGE,
            // A reply that it waits for was not sent, or not whole.
            Err(ChannelError::Closed(_)) => shut_down(back),
            Err(_) => (),
        }
        received.map(Some)
    }

    /// Reads until there is a whole message; false if there is not even the start of one.
    fn fill(&mut self, mut back: &UnixStream) -> Result<bool, ChannelError> {
        self.bytes.drain(..self.done);
        self.done = 0;
        let mut raw = [0; AT_ONCE * MESSAGE];
        while self.bytes.len() < MESSAGE {
            let got = match self.bytes.is_empty() {
                true => match rustix::net::recv(back, &mut raw, RecvFlags::DONTWAIT) {
                    Err(Errno::AGAIN) => return Ok(false),
                    Ok((_, got)) => Ok(got),
                    Err(e) => Err(e.into()),
                },
                false => back.read(&mut raw),
            };
            match got {
                Ok(0) => return Err(ChannelError::Closed(ErrorKind::UnexpectedEof.into())),
                Ok(got) => self.bytes.extend_from_slice(&raw[..got]),
                Err(e) if e.kind() == ErrorKind::Interrupted => (),
                Err(e) => return Err(ChannelError::Closed(e)),
            }
        }
        Ok(true)
    }
}

/// Reads a message; a reply that its sender waits for goes to `back`.
fn receive(from: &mut impl Read, back: &UnixStream) -> Result<IotlbMessage, ChannelError> {
    let mut raw = [0; HEADER_BYTES];
    from.read_exact(&mut raw).map_err(ChannelError::Closed)?;
    let header = Header::decode(&raw);
    let expected = header.request == BACKEND_IOTLB_MSG
        && header.is_request()
        && header.size as usize == IOTLB_BYTES;
    if !expected {
        return Err(ChannelError::NotIotlb(header));
    }
    let mut raw = [0; IOTLB_BYTES];
    from.read_exact(&mut raw).map_err(ChannelError::Closed)?;
    let message = IotlbMessage::decode(&raw)?;
    if header.needs_reply() {
        socket::acknowledge(back, header, 0).map_err(ChannelError::Closed)?;
    }
    Ok(message)
}

impl IotlbChannel for UserChannel {
    fn send(&mut self, message: &IotlbMessage) -> Result<(), ChannelError> {
        self.step.check(message)?;
        let turn = self.turn.clone();
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.exchange(message);
        match &sent {
            Ok(()) | Err(ChannelError::Refused(..)) => (),
            Err(why) => {
                self.step.lose(why);
                shut_down(&self.control);
            }
        }
        sent
    }
}

/// The format of vhost in the kernel: `struct vhost_msg_v2`, written to and read
/// from the device's file.
///
/// The kernel obeys within the write, so no answer can come late, and after a write that failed the
/// next may succeed. Only one that takes a part of a message ends the channel.
#[derive(Debug)]
pub struct KernelChannel<F> {
    file: F,
    step: Step,
}

impl<F> KernelChannel<F> {
    /// A channel over `file`, an open vhost device with `VHOST_BACKEND_F_IOTLB_MSG_V2`.
    pub fn new(file: F) -> Self {
        KernelChannel {
            file,
            step: Step::default(),
        }
    }
}

impl<F: Read> KernelChannel<F> {
    /// Reads the next miss.
    ///
    /// # Errors
    /// The file failed, or what came is no IOTLB message.
    pub fn receive(&mut self) -> Result<IotlbMessage, ChannelError> {
        let mut raw = [0; KERNEL_BYTES];
        let got = loop {
            match self.file.read(&mut raw) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => break other.map_err(ChannelError::Closed)?,
            }
        };
        if got == 0 {
            return Err(ChannelError::Closed(ErrorKind::UnexpectedEof.into()));
        }
        Ok(IotlbMessage::decode_kernel(&raw[..got])?)
    }
}

impl<F: Write + Send> IotlbChannel for KernelChannel<F> {
    fn send(&mut self, message: &IotlbMessage) -> Result<(), ChannelError> {
        self.step.check(message)?;
        // One write is one message, and in force when it returns.
        let raw = message.encode_kernel();
        let failed = |e| ChannelError::Io(*message, e);
        if self.file.write(&raw).map_err(failed)? == KERNEL_BYTES {
            return Ok(());
        }
        let half = failed(ErrorKind::WriteZero.into());
        self.step.lose(&half);
        Err(half)
    }
}
