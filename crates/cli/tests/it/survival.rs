// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas vhost-net` and front ends that are hostile or out of luck, and die at any point of it:
//! the program goes on, the next front end is served without waiting for what the one before has
//! left, and SIGTERM ends it.
//!
//! What each kind of trouble does to a queue is tested in `ioatlas-vhost`: `hostile_memory`,
//! `hostile_events`, `hostile_queues`, `membarrier`, `late_answers`.

#[path = "../../../vhost/tests/it/common/huge.rs"]
mod huge;
#[path = "../../../vhost/tests/it/common/waiting.rs"]
mod waiting;

use crate::by_hand::*;
use crate::vhost_net::{Program, case, common::driver::Kind, common::front::*};
use huge::{Drained, huge_file};
use ioatlas_dma::units::*;
use ioatlas_vhost::protocol::message::{Header, IotlbMessage};
use ioatlas_vhost::server::Sealed;
use ioatlas_vhost_net::Wakeup;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waiting::{Lingering, Silent};

/// A front end that makes trouble.
struct Trouble {
    /// What it says.
    script: fn() -> Script,
    /// What it does after the kick. It comes so far with a back end that lives.
    then: fn(&Script, &UnixStream),
}

/// How much of a message is sent before its sender dies.
fn cuts(message: &Message) -> [usize; 4] {
    [0, 5, 12, message.bytes.len() - 1]
}

/// It is made by front ends that die after each message, and in the middle of each.
fn survives(trouble: &Trouble, arguments: &[&str]) {
    let mut program = Program::start(arguments);
    let messages = (trouble.script)().messages.len();
    // Another process may have copies of what a front end had when it died.
    let mut copies = None;
    for whole in 0..messages {
        for cut in 0..4 {
            let script = (trouble.script)();
            let socket = program.connect();
            for message in &script.messages[..whole] {
                message.send(&socket, message.bytes.len());
            }
            let last = &script.messages[whole];
            if cuts(last)[cut] > 0 {
                last.send(&socket, cuts(last)[cut]);
            }
            drop(socket);
            copies = Some(script);
            let served = is_served(&program.connect());
            served.unwrap_or_else(|e| panic!("after {whole} messages, cut {cut}: {e}"));
        }
    }
    drop(copies);
    for done in ["the kick", "the trouble"] {
        let script = (trouble.script)();
        let socket = program.connect();
        script.run(&socket);
        if done == "the trouble" {
            (trouble.then)(&script, &socket);
        }
        drop(socket);
        // Whose copies still are there.
        let mut case = case(Kind::Split, Wakeup::Notify);
        case.pairs = 1;
        let mut front = Front::new(program.connect(), &case);
        front.exchange(&case, 10);
        front.stop(case.pairs);
        front.guest.assert_canaries();
        program.pid();
    }
    let script = (trouble.script)();
    let socket = program.connect();
    script.run(&socket);
    (trouble.then)(&script, &socket);
    let said = program.statistics(Signal::TERM);
    assert!(said["connections"].as_u64() > Some(4 * messages as u64));
}

fn with_huge(sealed: Sealed, len: impl Fn(u64) -> u64) -> Script {
    let (file, page) = huge_file("survival", 2, sealed);
    let region = [OTHER, len(page), OTHER_FRONT, 0];
    Script::new(Twist {
        more: vec![(region, Arc::new(file.into()))],
        frame: OTHER,
        ..Twist::default()
    })
}

/// Both queues have stopped, and the front end is told.
fn stopped(script: &Script, _: &UnixStream) {
    for [_, _, error] in &script.events {
        assert!(is_raised(error), "nothing stops");
    }
}

#[test]
fn huge_pages_that_run_out() {
    let _drained = Drained::new();
    let scripts: [fn() -> Script; 2] = [
        || with_huge(Sealed::No, |page| page),
        || with_huge(Sealed::Yes, |page| page),
    ];
    for script in scripts {
        let trouble = Trouble {
            script,
            then: stopped,
        };
        survives(&trouble, &["--json"]);
    }
}

/// The connection was closed.
fn closed(_: &Script, mut socket: &UnixStream) {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut sink = [0; 64];
    loop {
        match socket.read(&mut sink) {
            Ok(0) => return,
            Ok(_) => (),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
            Err(e) => panic!("it is still open: {e}"),
        }
    }
}

#[test]
fn parts_of_huge_pages() {
    let scripts: [fn() -> Script; 2] = [
        || with_huge(Sealed::Yes, |_| 4096),
        || with_huge(Sealed::No, |page| page + 4096),
    ];
    for script in scripts {
        let then = closed;
        survives(&Trouble { script, then }, &["--json"]);
    }
}

#[test]
fn memory_that_is_truncated() {
    let trouble = Trouble {
        script: || {
            Script::new(Twist {
                sealed: Sealed::No,
                ..Twist::default()
            })
        },
        then: |script, socket| {
            used(script, 1);
            script.memory.set_len(0).unwrap();
            script.kick();
            stopped(script, socket);
        },
    };
    survives(&trouble, &["--json"]);
}

/// Waits until so many frames came back.
fn used(script: &Script, count: u16) {
    let start = Instant::now();
    while [0, 1].iter().any(|queue| script.used(*queue) != count) {
        assert!(start.elapsed() < SOON, "frame {count} does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next write to the event waits for a reader, of which there is none.
fn block_and_fill(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let flags = fcntl_getfl(event).unwrap();
    fcntl_setfl(event, flags - OFlags::NONBLOCK).unwrap();
}

/// Stops both queues; the answers come.
fn stop_queues(socket: &UnixStream) {
    for queue in [0, 1] {
        let stop = Message::new(GET_VRING_BASE, &halves([queue, 0]), &[]);
        stop.send(socket, stop.bytes.len());
        await_answer(socket, GET_VRING_BASE);
    }
}

#[test]
fn calls_that_block() {
    let trouble = Trouble {
        script: || Script::new(Twist::default()),
        then: |script, socket| {
            used(script, 1);
            for [_, call, _] in &script.events {
                block_and_fill(call);
            }
            for frame in 2..5 {
                script.offer(frame);
                used(script, frame);
            }
            stop_queues(socket);
        },
    };
    for wakeup in ["notify", "poll"] {
        survives(&trouble, &["--json", "--wakeup", wakeup]);
    }
}

#[test]
fn errors_that_block() {
    let trouble = Trouble {
        script: || Script::new(Twist::default()),
        then: |script, socket| {
            used(script, 1);
            for [_, _, error] in &script.events {
                block_and_fill(error);
            }
            script.offer(1000);
            stop_queues(socket);
        },
    };
    for wakeup in ["notify", "poll"] {
        survives(&trouble, &["--json", "--wakeup", wakeup]);
    }
}

#[test]
fn misses_that_are_never_answered() {
    let trouble = Trouble {
        script: || {
            Script::new(Twist {
                translated: false,
                ..Twist::default()
            })
        },
        then: |script, _| {
            script.back.set_read_timeout(Some(SOON)).unwrap();
            (&script.back).read_exact(&mut [0; 44]).expect("a question");
        },
    };
    survives(&trouble, &["--json"]);
}

/// As many as go out until nothing more does for a while: then each side waits for the other.
fn sends_without_reading(_: &Script, socket: &UnixStream) {
    socket.set_nonblocking(true).unwrap();
    let invalidation = IotlbMessage::invalidate(Iova(0), ByteCount(4096)).encode();
    let message = Message::new(IOTLB, &invalidation, &[]).bytes;
    let mut since = Instant::now();
    let mut left = &message[..];
    while since.elapsed() < Duration::from_millis(300) {
        let mut writer = socket;
        match writer.write(left) {
            Ok(sent) => {
                left = &left[sent..];
                since = Instant::now();
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        if left.is_empty() {
            left = &message;
        }
    }
}

#[test]
fn answers_that_are_never_read() {
    let trouble = Trouble {
        script: || Script::new(Twist::default()),
        then: sends_without_reading,
    };
    survives(&trouble, &["--json"]);
}

/// A header that does not go on blocks nothing: neither the next front end, when its sender is
/// dead, nor the end of the program.
#[test]
fn half_a_header() {
    let trouble = Trouble {
        script: || Script::new(Twist::default()),
        then: |_, socket| {
            let half = &Header::request(SET_OWNER, 0).encode()[..5];
            let mut writer = socket;
            writer.write_all(half).unwrap();
        },
    };
    survives(&trouble, &["--json"]);
}

/// When a message comes.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// While another front end is served, with all messages before it.
    Early,
    /// When all before it have been taken.
    Late,
}

/// Each message of a session in turn comes with a file whose close waits, in place of its own. What
/// becomes of our copies, `ours` says. No other front end waits for it. The program still has one
/// such front end.
fn come_with(
    comes: &[Comes],
    mut file: impl FnMut() -> OwnedFd,
    mut ours: impl FnMut(Vec<Arc<OwnedFd>>),
) -> (Program, UnixStream) {
    let mut program = Program::start(&["--json"]);
    let mut send = |program: &mut Program, comes: Comes, last: usize| {
        let before = matches!(comes, Comes::Early).then(|| program.connect());
        if let Some(before) = &before {
            is_served(before).expect("the first");
        }
        let script = Script::new(Twist::default());
        let socket = program.connect();
        for message in &script.messages[..last] {
            message.send(&socket, message.bytes.len());
        }
        if let Comes::Late = comes {
            let ask = Message::new(GET_PROTOCOL_FEATURES, &[], &[]);
            ask.send(&socket, ask.bytes.len());
            await_answer(&socket, GET_PROTOCOL_FEATURES);
        }
        let message = &script.messages[last];
        let sent = (0..message.files.len().max(1)).map(|_| Arc::new(file()));
        let with = Message {
            bytes: message.bytes.clone(),
            files: sent.collect(),
        };
        with.send(&socket, with.bytes.len());
        ours(with.files);
        socket
    };
    let messages = Script::new(Twist::default()).messages.len();
    for &comes in comes {
        for last in 0..messages {
            drop(send(&mut program, comes, last));
            let served = is_served(&program.connect());
            served.unwrap_or_else(|e| panic!("{comes:?}, message {last}: {e}"));
            program.pid();
        }
    }
    let last = send(&mut program, comes[0], 5);
    (program, last)
}

#[test]
fn sockets_that_linger() {
    let mut lingering = Lingering::new(SOON * 2);
    // ours are not the last
    let (program, _last) = come_with(&[Comes::Early], || lingering.socket(), drop);
    program.statistics(Signal::TERM);
}

/// A message is not even read: its sender stands behind another front end when the end comes.
#[test]
fn a_socket_that_lingers_in_line() {
    let mut lingering = Lingering::new(SOON * 2);
    let mut program = Program::start(&["--json"]);
    let served = program.connect();
    is_served(&served).expect("the first");
    let behind = program.connect();
    let script = Script::new(Twist::default());
    let message = &script.messages[5];
    let with = Message {
        bytes: message.bytes.clone(),
        files: vec![Arc::new(lingering.socket())],
    };
    with.send(&behind, with.bytes.len());
    drop(with);
    program.statistics(Signal::TERM);
}

/// No program may be started meanwhile: its copies of these files would be closed, and that waited
/// for, before it begins.
#[test]
#[ignore = "needs root and /dev/fuse: ci/full.sh silent-files"]
fn files_whose_server_never_answers() {
    let directory = tempfile::tempdir().unwrap();
    let mut system = Silent::new(directory.path().join("silent"), SOON * 2);
    let mut kept = Vec::new();
    let comes = [Comes::Early, Comes::Late];
    let (program, _last) = come_with(&comes, || system.file(), |ours| kept.extend(ours));
    // no process ends before that server does, if it has had the file: the kernel waits for it
    assert!(!system.end(), "the program waited for the file's server");
    program.statistics(Signal::TERM);
}
