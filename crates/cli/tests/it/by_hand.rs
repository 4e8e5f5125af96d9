// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end by hand, message by message, with one queue pair that has a frame to move.

use crate::vhost_net::common::front::SOON;
use ioatlas_dma::units::*;
use ioatlas_vhost::protocol::message::{FrontAddr, HEADER_BYTES, Header, IotlbMessage};
use ioatlas_vhost::runner::{ACCESS_PLATFORM, VERSION_1};
use ioatlas_vhost::server::{Sealed, memory_file};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::RecvFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const IOTLB: u32 = 22;

/// `REPLY_ACK`, `BACKEND_REQ` and `CONFIGURE_MEM_SLOTS`.
const PROTOCOL: u64 = 1 << 3 | 1 << 5 | 1 << 15;
const PAGE: u64 = 4096;
/// Where memory is for the guest, and for its devices; and for the front end.
pub const GUEST: u64 = 0x10_0000;
pub const FRONT: u64 = 0x7000_0000;
pub const MEMORY: u64 = 64 * PAGE;
/// Where the guest has other memory, and the front end that.
pub const OTHER: u64 = 0x4000_0000;
pub const OTHER_FRONT: u64 = 0x1_4000_0000;
/// Bytes from one queue's ring to the next one's, and from each of a ring's parts to the next.
const RING: u64 = 4 * PAGE;
/// Buffers, in memory.
const TO: u64 = 16 * PAGE;
const FROM: u64 = 20 * PAGE;
const ENTRIES: u32 = 16;

/// A message, with what comes along.
pub struct Message {
    pub bytes: Vec<u8>,
    pub files: Vec<Arc<OwnedFd>>,
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn halves(halves: [u32; 2]) -> Vec<u8> {
    halves.map(u32::to_ne_bytes).concat()
}

impl Message {
    pub fn new(request: u32, payload: &[u8], files: &[&Arc<OwnedFd>]) -> Self {
        let header = Header::request(request, payload.len()).encode();
        Message {
            bytes: [&header[..], payload].concat(),
            files: files.iter().copied().cloned().collect(),
        }
    }

    /// Sends the first `len` bytes, with all files. The other side may have hung up.
    pub fn send(&self, socket: &UnixStream, len: usize) {
        let files: Vec<_> = self.files.iter().map(|file| file.as_raw_fd()).collect();
        let _ = socket.send_with_fds(&[&self.bytes[..len]], &files);
    }
}

/// A new event. Its other copies are the back end's, and may be another process's.
pub fn event() -> Arc<OwnedFd> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    Arc::new(eventfd(0, flags).unwrap())
}

/// Waits until an event is raised, or there is something to read; false if that takes too long.
pub fn is_raised(event: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(event, PollFlags::IN)];
    let timeout = Timespec::try_from(SOON).unwrap();
    poll(&mut polled, Some(&timeout)).unwrap() > 0
}

/// Files of guest memory, and where each is: for the guest, how much, for the front end, where in
/// the file.
pub type Regions = Vec<([u64; 4], Arc<OwnedFd>)>;

/// What a front end has to say, and what stays with it.
pub struct Script {
    pub messages: Vec<Message>,
    pub memory: File,
    /// Kick, call and error event of queue 0, which receives, and of queue 1.
    pub events: [[Arc<OwnedFd>; 3]; 2],
    /// Our end of the back channel.
    pub back: UnixStream,
}

/// What is different from a front end that means well.
pub struct Twist {
    /// Whether its memory could be truncated.
    pub sealed: Sealed,
    /// More memory.
    pub more: Regions,
    /// The frame that is sent is there.
    pub frame: u64,
    /// How many chains the transmit queue says that it has.
    pub available: u16,
    /// Whether anything is translated.
    pub translated: bool,
}

impl Default for Twist {
    fn default() -> Self {
        Twist {
            sealed: Sealed::Yes,
            more: Vec::new(),
            frame: GUEST + FROM,
            available: 1,
            translated: true,
        }
    }
}

impl Script {
    /// A whole session, up to the first kick.
    pub fn new(twist: Twist) -> Self {
        let memory = memory_file(ByteCount(MEMORY), twist.sealed).unwrap();
        let shared = Arc::new(OwnedFd::from(memory.try_clone().unwrap()));
        let mut regions = vec![([GUEST, MEMORY, FRONT, 0], shared)];
        regions.extend(twist.more);
        let (back, theirs) = UnixStream::pair().unwrap();
        let theirs = Arc::new(OwnedFd::from(theirs));
        let events = [0, 1].map(|_| [0, 1, 2].map(|_| event()));
        let mut table = words(&[regions.len() as u64]);
        for (region, _) in &regions {
            table.extend(words(region));
        }
        let files: Vec<_> = regions.iter().map(|(_, file)| file).collect();
        let features = VERSION_1 | ACCESS_PLATFORM | 1 << 30;
        let mut messages = vec![
            Message::new(SET_OWNER, &[], &[]),
            Message::new(GET_FEATURES, &[], &[]),
            Message::new(SET_PROTOCOL_FEATURES, &words(&[PROTOCOL]), &[]),
            Message::new(SET_FEATURES, &words(&[features]), &[]),
            Message::new(SET_BACKEND_REQ_FD, &[], &[&theirs]),
            Message::new(SET_MEM_TABLE, &table, &files),
        ];
        if twist.translated {
            messages.push(update(GUEST, MEMORY, FRONT));
            for (region, _) in &regions[1..] {
                messages.push(update(region[0], region[1], region[2]));
            }
        }
        for (queue, (address, writes)) in [(GUEST + TO, true), (twist.frame, false)]
            .into_iter()
            .enumerate()
        {
            let (number, ring) = (queue as u32, queue as u64 * RING);
            let (len, flags) = if writes { (2 * PAGE, 2) } else { (100, 0) };
            put_descriptor(&memory, ring, (address, len as u32, flags));
            let available = if writes { 1 } else { twist.available };
            memory
                .write_all_at(&available.to_le_bytes(), ring + PAGE + 2)
                .unwrap();
            let at = GUEST + ring;
            let parts = [number.into(), at, at + 2 * PAGE, at + PAGE, 0];
            let [kick, call, error] = &events[queue];
            let index = words(&[number.into()]);
            messages.extend([
                Message::new(SET_VRING_NUM, &halves([number, ENTRIES]), &[]),
                Message::new(SET_VRING_BASE, &halves([number, 0]), &[]),
                Message::new(SET_VRING_ADDR, &words(&parts), &[]),
                Message::new(SET_VRING_ERR, &index, &[error]),
                Message::new(SET_VRING_CALL, &index, &[call]),
                Message::new(SET_VRING_KICK, &index, &[kick]),
                Message::new(SET_VRING_ENABLE, &halves([number, 1]), &[]),
            ]);
        }
        Script {
            messages,
            memory,
            events,
            back,
        }
    }

    /// Says all of it, and kicks.
    pub fn run(&self, socket: &UnixStream) {
        for message in &self.messages {
            message.send(socket, message.bytes.len());
        }
        self.kick();
    }

    /// Makes `count` frames and buffers available in all, and kicks.
    pub fn offer(&self, count: u16) {
        for ring in [0, RING] {
            let index = ring + PAGE + 2;
            self.memory
                .write_all_at(&count.to_le_bytes(), index)
                .unwrap();
        }
        self.kick();
    }

    pub fn kick(&self) {
        for [kick, ..] in &self.events {
            let _ = rustix::io::write(kick, &1u64.to_ne_bytes());
        }
    }

    /// How many chains of a queue were used.
    pub fn used(&self, queue: u64) -> u16 {
        let mut index = [0; 2];
        let at = queue * RING + 2 * PAGE + 2;
        self.memory.read_exact_at(&mut index, at).unwrap();
        u16::from_le_bytes(index)
    }
}

/// Writes the first descriptor of the ring there: address, length, flags.
fn put_descriptor(memory: &File, ring: u64, (address, len, flags): (u64, u32, u16)) {
    let raw = [
        &address.to_le_bytes()[..],
        &len.to_le_bytes(),
        &flags.to_le_bytes(),
        &[0; 2],
    ];
    memory.write_all_at(&raw.concat(), ring).unwrap();
}

/// That a device may use this memory, by an IOVA that is its guest-physical address.
pub fn update(iova: u64, len: u64, front: u64) -> Message {
    let (iova, len, front) = (Iova(iova), ByteCount(len), FrontAddr(front));
    let update = IotlbMessage::update(iova, len, front, Perm::ReadWrite);
    Message::new(IOTLB, &update.encode(), &[])
}

/// Whether the back end answers this connection.
pub fn is_served(mut socket: &UnixStream) -> std::io::Result<()> {
    socket.set_read_timeout(Some(SOON))?;
    socket.write_all(&Header::request(GET_FEATURES, 0).encode())?;
    socket.read_exact(&mut [0; 20])
}

/// Reads what has come, so that the back end does not wait for this side.
pub fn drain(socket: &UnixStream) {
    let mut sink = [0; 4096];
    while let Ok((_, 1..)) = rustix::net::recv(socket, &mut sink, RecvFlags::DONTWAIT) {}
}

/// Reads answers up to that to `request`.
pub fn await_answer(mut socket: &UnixStream, request: u32) {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut raw = [0; HEADER_BYTES];
    loop {
        socket.read_exact(&mut raw).expect("an answer");
        let header = Header::decode(&raw);
        let mut payload = vec![0; header.size as usize];
        socket.read_exact(&mut payload).expect("an answer");
        if header.request == request {
            return;
        }
    }
}
