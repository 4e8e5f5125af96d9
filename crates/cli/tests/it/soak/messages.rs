// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Front ends that say what is half valid: messages that are, bent a little or a lot, in part, too
//! long, with all kinds of descriptors, and too many or too few of them.

use super::Random;
use crate::by_hand::*;
use crate::vhost_net::{Program, common::front::SOON};
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
pub fn attack(program: &mut Program, random: &mut Random, connections: u64) {
    for _ in 0..connections {
        let socket = program.connect();
        socket.set_write_timeout(Some(SOON)).unwrap();
        let script = Script::new(Twist {
            translated: random.percent(70),
            sealed: *random.one_of(&[Sealed::Yes, Sealed::No]),
            available: *random.one_of(&[1, 1, 1, 16, 17, u16::MAX]),
            ..Twist::default()
        });
        let whole = match random.percent(50) {
            true => script.messages.len(),
            false => random.below(script.messages.len() as u64) as usize,
        };
        for message in &script.messages[..whole] {
            message.send(&socket, message.bytes.len());
        }
        if random.percent(50) {
            script.kick();
        }
        for _ in 0..random.below(8) {
            let message = bent(&script, random);
            message.send(&socket, message.bytes.len());
            drain(&socket);
            match random.below(8) {
                0 => script.kick(),
                1 => script.offer(random.below(40) as u16),
                // Refused where it is sealed.
                2 => drop(script.memory.set_len(random.below(MEMORY))),
                _ => (),
            }
        }
        if random.percent(40) {
            // The rest is never sent.
            let message = bent(&script, random);
            let len = random.below(message.bytes.len() as u64) as usize;
            if len > 0 {
                message.send(&socket, len);
            }
        }
        drain(&socket);
    }
}

/// One of the script's messages that is not what it should be; or none of them.
fn bent(script: &Script, random: &mut Random) -> Message {
    let whole = random.one_of(&script.messages);
    let mut message = Message {
        bytes: whole.bytes.clone(),
        files: whole.files.clone(),
    };
    match random.below(16) {
        // Some bits of it.
        0 | 1 => {
            for _ in 0..=random.below(3) {
                let at = random.below(message.bytes.len() as u64) as usize;
                message.bytes[at] ^= 1 << random.below(8);
            }
        }
        // A header that says another length, or wants something else.
        2 => {
            let size = random.below(100) as u32;
            message.bytes[8..12].copy_from_slice(&size.to_ne_bytes());
        }
        3 => message.bytes[4..8].copy_from_slice(&(random.below(32) as u32).to_ne_bytes()),
        4 => {
            let request = random.below(50) as u32;
            let payload: Vec<u8> = (0..8 * random.below(9))
                .map(|_| random.next() as u8)
                .collect();
            let header = Header::request_with_reply(request, payload.len()).encode();
            message.bytes = [&header[..], &payload].concat();
        }
        // Messages about translations.
        _ => {
            let page = |random: &mut Random| match random.below(4) {
                0 => random.next(),
                1 => random.next() << 12,
                _ => 4096 * random.below(80),
            };
            let (iova, len) = (
                Iova(GUEST.wrapping_add(page(random))),
                ByteCount(page(random)),
            );
            let plain = update(iova.0, len.0, FRONT.wrapping_add(page(random)));
            message = match random.percent(50) {
                true => plain,
                false => {
                    let invalidation = IotlbMessage::invalidate(iova, len);
                    Message::new(IOTLB, &invalidation.encode(), &[])
                }
            };
        }
    }
    if random.percent(15) {
        let count = match random.percent(80) {
            true => random.below(3),
            false => random.below(MOST + 1),
        };
        message.files = (0..count).map(|_| Arc::new(descriptor(random))).collect();
    }
    message
}

/// Something open, of whatever kind.
fn descriptor(random: &mut Random) -> OwnedFd {
    let open = |path: &str, flags| rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let memory = |sealed| memory_file(ByteCount(MEMORY), sealed).unwrap();
    let event = |flags| eventfd(0, EventfdFlags::CLOEXEC | flags).unwrap();
    let socket = |kind| {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, kind, flags, None)
            .unwrap()
            .0
    };
    match random.below(22) {
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
