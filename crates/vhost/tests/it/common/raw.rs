// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end that sends what it likes.

use super::*;
use ioatlas_vhost::protocol::message::{Header, IotlbMessage};
use std::{
    fs::File,
    io::Read,
    os::fd::{AsRawFd, OwnedFd},
};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

pub struct Raw {
    pub socket: UnixStream,
    /// Our end of the back channel, if there is one.
    pub back: Option<UnixStream>,
}

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const RESET_OWNER: u32 = 4;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;
pub const IOTLB: u32 = 22;

/// One region of a memory table: guest address, length, front-end address, file offset.
pub type RegionWords = [u64; 4];

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Raw {
    /// Connects and does nothing.
    pub fn connect(back: &Back) -> Self {
        let socket = back.socket();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Raw { socket, back: None }
    }

    /// Sets a session up to before the memory table.
    pub fn negotiate(back: &Back, features: u64) -> Self {
        let mut raw = Self::connect(back);
        raw.send(SET_OWNER, &[], &[]);
        // what was not asked for cannot be accepted
        raw.send(GET_FEATURES, &[], &[]);
        raw.code(&Header::request(GET_FEATURES, 0));
        raw.send(SET_PROTOCOL_FEATURES, &words(&[1 << 3 | 1 << 5]), &[]);
        raw.send(SET_FEATURES, &words(&[features]), &[]);
        raw
    }

    /// Bytes as they are.
    pub fn bytes(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        self.try_bytes(bytes, fds).unwrap();
    }

    /// The same where it may have hung up.
    pub fn try_bytes(&self, bytes: &[u8], fds: &[&OwnedFd]) -> std::io::Result<()> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        self.socket.send_with_fds(&[bytes], &fds)?;
        Ok(())
    }

    /// A request without a reply.
    pub fn send(&self, request: u32, payload: &[u8], fds: &[&OwnedFd]) {
        let header = Header::request(request, payload.len());
        self.bytes(&[&header.encode()[..], payload].concat(), fds);
    }

    /// A request with one; returns the code.
    pub fn ask(&mut self, request: u32, payload: &[u8], fds: &[&OwnedFd]) -> u64 {
        let header = Header::request_with_reply(request, payload.len());
        self.bytes(&[&header.encode()[..], payload].concat(), fds);
        self.code(&header)
    }

    pub fn code(&mut self, request: &Header) -> u64 {
        let mut reply = [0; 20];
        self.socket.read_exact(&mut reply).unwrap();
        let header = Header::decode(reply[..12].try_into().unwrap());
        assert!(header.answers(request), "{header:?} after {request:?}");
        u64::from_ne_bytes(reply[12..].try_into().unwrap())
    }

    pub fn iotlb(&mut self, message: IotlbMessage) -> u64 {
        self.ask(IOTLB, &message.encode(), &[])
    }

    /// A memory table of these regions, each with its file.
    pub fn table(regions: &[RegionWords]) -> Vec<u8> {
        let mut payload = (regions.len() as u64).to_ne_bytes().to_vec();
        payload.extend(regions.iter().flat_map(|region| words(region)));
        payload
    }

    /// Whether the back end has hung up.
    pub fn is_closed(&mut self) -> bool {
        !matches!(self.socket.read(&mut [0; 64]), Ok(n) if n > 0)
    }
}

pub fn memory(len: u64) -> OwnedFd {
    memory_file(ByteCount(len), Sealed::Yes).unwrap().into()
}

pub fn pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = std::io::pipe().unwrap();
    (read.into(), write.into())
}

pub fn file(fd: OwnedFd) -> File {
    fd.into()
}
