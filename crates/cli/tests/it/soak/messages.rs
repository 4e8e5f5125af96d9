// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Front ends that say what is half valid: messages that are, bent a little or a lot, in part, too
//! long, with all kinds of descriptors, and too many or too few of them.

use super::percent;
use crate::by_hand::*;
use crate::vhost_net::{Program, common::front::SOON};
use fastrand::Rng;
use ioatlas_dma::units::*;
use ioatlas_vhost::protocol::message::{Header, IotlbMessage};
use ioatlas_vhost::server::{Sealed, memory_file};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, OFlags, inotify, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with, socketpair};
use std::fs::File;
use std::io::pipe;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Descriptors with a message, at most: one more than the largest memory table has.
const MOST: u64 = 33;

/// Connects so many times; most come half-way through a session.
pub fn attack(program: &mut Program, random: &mut Rng, connections: u64) {
    for _ in 0..connections {
        let socket = program.connect();
        socket.set_write_timeout(Some(SOON)).unwrap();
        let script = Script::new(Twist {
            translated: percent(random, 70),
            sealed: *random.choice(&[Sealed::Yes, Sealed::No]).unwrap(),
            available: *random.choice(&[1, 1, 1, 16, 17, u16::MAX]).unwrap(),
            ..Twist::default()
        });
        let whole = match percent(random, 50) {
            true => script.messages.len(),
            false => random.usize(..script.messages.len()),
        };
        for message in &script.messages[..whole] {
            message.send(&socket, message.bytes.len());
        }
        if percent(random, 50) {
            script.kick();
        }
        for _ in 0..random.u64(..8) {
            let message = bent(&script, random);
            message.send(&socket, message.bytes.len());
            drain(&socket);
            match random.u64(..8) {
                0 => script.kick(),
                1 => script.offer(random.u16(..40)),
                // Refused where it is sealed.
                2 => drop(script.memory.set_len(random.u64(..MEMORY))),
                _ => (),
            }
        }
        if percent(random, 40) {
            // The rest is never sent.
            let message = bent(&script, random);
            let len = random.usize(..message.bytes.len());
            if len > 0 {
                message.send(&socket, len);
            }
        }
        drain(&socket);
    }
}

/// One of the script's messages that is not what it should be; or none of them.
fn bent(script: &Script, random: &mut Rng) -> Message {
    let whole = random.choice(&script.messages).unwrap();
    let mut message = Message {
        bytes: whole.bytes.clone(),
        files: whole.files.clone(),
    };
    match random.u64(..16) {
        // Some bits of it.
        0 | 1 => {
            for _ in 0..=random.u64(..3) {
                let at = random.usize(..message.bytes.len());
                message.bytes[at] ^= 1 << random.u64(..8);
            }
        }
        // A header that says another length, or wants something else.
        2 => {
            let size = random.u32(..100);
            message.bytes[8..12].copy_from_slice(&size.to_ne_bytes());
        }
        3 => message.bytes[4..8].copy_from_slice(&(random.u32(..32)).to_ne_bytes()),
        4 => {
            let request = random.u32(..50);
            let payload: Vec<u8> = (0..8 * random.u64(..9)).map(|_| random.u8(..)).collect();
            let header = Header::request_with_reply(request, payload.len()).encode();
            message.bytes = [&header[..], &payload].concat();
        }
        // Messages about translations.
        _ => {
            let page = |random: &mut Rng| match random.u64(..4) {
                0 => random.u64(..),
                1 => random.u64(..) << 12,
                _ => 4096 * random.u64(..80),
            };
            let (iova, len) = (
                Iova(GUEST.wrapping_add(page(random))),
                ByteCount(page(random)),
            );
            let plain = update(iova.0, len.0, FRONT.wrapping_add(page(random)));
            message = match percent(random, 50) {
                true => plain,
                false => {
                    let invalidation = IotlbMessage::invalidate(iova, len);
                    Message::new(IOTLB, &invalidation.encode(), &[])
                }
            };
        }
    }
    if percent(random, 15) {
        let count = match percent(random, 80) {
            true => random.u64(..3),
            false => random.u64(..MOST + 1),
        };
        message.files = (0..count).map(|_| Arc::new(descriptor(random))).collect();
    }
    message
}

/// Something open, of whatever kind.
fn descriptor(random: &mut Rng) -> OwnedFd {
    let open = |path: &str, flags| rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let memory = |sealed| memory_file(ByteCount(MEMORY), sealed).unwrap();
    let event = |flags| eventfd(0, EventfdFlags::CLOEXEC | flags).unwrap();
    let socket = |kind| {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, kind, flags, None)
            .unwrap()
            .0
    };
    match random.u64(..22) {
        0 => memory(Sealed::Yes).into(),
        1 => memory(Sealed::No).into(),
        2 => memfd_create("empty", MemfdFlags::CLOEXEC).unwrap(),
        3 => {
            let huge = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
            let file = memfd_create("huge", huge).unwrap();
            let _ = rustix::fs::ftruncate(&file, 4 << 20);
            file
        }
        4 => pipe().unwrap().0.into(),
        5 => pipe().unwrap().1.into(),
        6 => event(EventfdFlags::NONBLOCK),
        7 => event(EventfdFlags::SEMAPHORE),
        // The next write waits for ever.
        8 => {
            let full = event(EventfdFlags::empty());
            rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            full
        }
        9 => open("/dev/null", OFlags::RDWR).unwrap(),
        10 => open("/dev/zero", OFlags::RDWR).unwrap(),
        11 => open("/", OFlags::RDONLY | OFlags::DIRECTORY).unwrap(),
        12 => open("/", OFlags::PATH).unwrap(),
        13 => open("/proc/self/status", OFlags::RDONLY).unwrap(),
        14 => tempfile::tempfile().unwrap().into(),
        15 => File::open(std::env::current_exe().unwrap()).unwrap().into(),
        16 => socket(SocketType::STREAM),
        17 => socket(SocketType::DGRAM),
        18 => socket(SocketType::SEQPACKET),
        19 => {
            let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
            let socket = socket_with(AddressFamily::INET, kind, flags, None).unwrap();
            listen(&socket, 1).unwrap();
            socket
        }
        20 => epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
        _ => inotify::init(inotify::CreateFlags::CLOEXEC).unwrap(),
    }
}
