// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Back ends that are silent, corrupt, die or answer wrongly: the generator says which, and ends by
//! itself.

use crate::common::*;
use ioatlas_vhost::{
    IotlbReader,
    runner::{Device, Event, Failure, Next, QueueWorker, Stop, StopHandle},
};
use ioatlas_vhost_bench::*;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use virtio_queue::QueueT;
use vm_memory::Bytes;

/// What never comes need not be waited for longer.
const NEVER: Duration = Duration::from_secs(20);

/// What a device does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vice {
    /// It takes nothing.
    Idle,
    /// It takes, and gives nothing back.
    Swallows,
    /// Every third frame has a byte changed.
    Corrupts,
    /// Every third frame comes twice.
    Repeats,
    /// Every third frame is not received.
    Drops,
    /// After a few frames it hangs up.
    Dies,
    /// After a few frames it uses a buffer again that it used before.
    UsesTwice,
    /// After a few frames its queue stops with an error.
    Stops,
}

struct Hostile {
    vice: Vice,
    frames: Mutex<(u64, VecDeque<Vec<u8>>)>,
    stop: Arc<OnceLock<StopHandle>>,
}

impl Hostile {
    /// What becomes of the n-th frame.
    fn treat(&self, n: u64, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
        match (self.vice, n % 3) {
            (Vice::Swallows, _) | (Vice::Drops, 2) => Vec::new(),
            (Vice::Corrupts, 2) => {
                let last = frame.len() - 1;
                frame[last] ^= 1;
                vec![frame]
            }
            (Vice::Repeats, 2) => vec![frame.clone(), frame],
            _ => vec![frame],
        }
    }

    fn deliver<R: IotlbReader>(
        &self,
        n: u64,
        frame: &[u8],
        worker: &mut QueueWorker<R>,
    ) -> Option<bool> {
        let (ring, memory) = worker.ring(0)?;
        let guard = memory.pin();
        let mut chain = ring.queue.pop_descriptor_chain(&guard)?;
        let head = chain.head_index();
        let buffer = chain.next().unwrap();
        guard.write_slice(frame, buffer.addr()).unwrap();
        let times = match self.vice {
            Vice::UsesTwice if n > 50 => 2,
            _ => 1,
        };
        for _ in 0..times {
            let len = frame.len() as u32;
            ring.queue.add_used(&guard, head, len).unwrap();
        }
        Some(true)
    }
}

impl Device for Hostile {
    fn queues(&self) -> u16 {
        2
    }
    fn features(&self) -> u64 {
        0
    }
    fn queues_per_thread(&self) -> Vec<u64> {
        vec![3]
    }
    fn process<R: IotlbReader>(
        &self,
        _: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure> {
        if self.vice == Vice::Idle {
            return Ok(Next::Wait);
        }
        let mut state = self.frames.lock().unwrap();
        let (count, frames) = &mut *state;
        worker.each_chain(1, |memory, mut chain| {
            let buffer = chain.next().unwrap();
            let mut frame = vec![0; buffer.len() as usize];
            let read = memory.read_slice(&mut frame, buffer.addr());
            read.map_err(|e| Stop::Device(e.into()))?;
            *count += 1;
            frames.extend(self.treat(*count, frame));
            Ok(0)
        })?;
        while let Some(frame) = frames.front() {
            if self.deliver(*count, frame, worker).is_none() {
                break;
            }
            frames.pop_front();
        }
        match self.vice {
            Vice::Dies if *count > 50 => self.stop.get().unwrap().stop(),
            Vice::Stops if *count > 50 => {
                let why = Stop::Device("a vice".into());
                return Err(Failure { queue: 1, why });
            }
            _ => (),
        }
        Ok(Next::Wait)
    }
}

fn driven_with(vice: Vice, patience: Duration) -> Result<Report, BenchError> {
    let stop = Arc::new(OnceLock::new());
    let device = Hostile {
        vice,
        frames: Mutex::default(),
        stop: stop.clone(),
    };
    let config = config().patience(patience).warm_up(Length::Frames(0));
    let started = |handle| stop.set(handle).map_err(drop).unwrap();
    let frames = match vice {
        // More than one call of the device can take, so that there are frames that it never sees.
        Vice::Dies => 3000,
        _ => 300,
    };
    with_device(device, started, |stream| run(stream, config, frames))
}

fn driven(vice: Vice) -> Result<Report, BenchError> {
    driven_with(vice, SOON)
}

#[test]
fn a_back_end_that_takes_nothing_is_silent() {
    let error = driven_with(Vice::Idle, NEVER).unwrap_err();
    let BenchError::Silent { what, .. } = &error else {
        panic!("{error}");
    };
    assert!(what.contains("frames are not taken"), "{what}");
}

#[test]
fn a_back_end_that_gives_nothing_back_swallows() {
    let error = driven_with(Vice::Swallows, NEVER).unwrap_err();
    assert!(matches!(error, BenchError::Swallowed { .. }), "{error}");
}

#[test]
fn frames_that_changed_are_counted_and_the_first_is_named() {
    let error = driven(Vice::Corrupts).unwrap_err();
    let BenchError::Corrupt { report, first } = &error else {
        panic!("{error}");
    };
    assert_eq!(report.frames_corrupt, 100);
    assert_eq!((report.frames_returned, report.frames_lost), (200, 0));
    let (number, at) = (1, 63);
    let Damage::Payload {
        number: n, at: a, ..
    } = first
    else {
        panic!("{first}");
    };
    assert_eq!((*n, *a), (number, at));
}

#[test]
fn frames_that_come_twice_are_corrupt() {
    let error = driven(Vice::Repeats).unwrap_err();
    let BenchError::Corrupt { report, first } = &error else {
        panic!("{error}");
    };
    assert_eq!((report.frames_corrupt, report.frames_lost), (100, 0));
    assert_eq!(*first, Damage::Again(1));
}

#[test]
fn frames_that_do_not_come_are_lost_and_not_for_a_translation() {
    let report = driven(Vice::Drops).unwrap();
    assert_eq!((report.frames_lost, report.frames_returned), (100, 200));
    assert_eq!(report.frames_lost_for_translation, 0);
    assert_eq!(report.frames_corrupt, 0);
    assert!((report.loss() - 1.0 / 3.0).abs() < 1e-9);
}

#[test]
fn a_back_end_that_hangs_up_in_the_middle_died() {
    let error = driven(Vice::Dies).unwrap_err();
    assert!(matches!(error, BenchError::Died { .. }), "{error}");
}

#[test]
fn a_buffer_that_is_used_twice_is_a_wrong_answer() {
    let error = driven(Vice::UsesTwice).unwrap_err();
    // Which rule is broken first depends on how many are looked at together.
    assert!(
        matches!(error, BenchError::Ring { queue: 0, .. }),
        "{error}"
    );
}

#[test]
fn a_queue_that_stops_is_told() {
    let error = driven(Vice::Stops).unwrap_err();
    assert!(matches!(error, BenchError::QueueStopped(1)), "{error}");
}

/// Sets a session up with a peer that does as it likes with the socket.
fn set_up(peer: impl FnOnce(UnixStream) + Send, patience: Duration) -> BenchError {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| peer(theirs));
        let config = config().patience(patience);
        Bench::over(ours, config).err().expect("no back end")
    })
}

#[test]
fn a_back_end_that_never_answers_is_silent() {
    let listens = |mut stream: UnixStream| {
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let error = set_up(listens, NEVER);
    let BenchError::Silent { what, .. } = &error else {
        panic!("{error}");
    };
    assert!(what.contains("no answer"), "{what}");
}

#[test]
fn a_back_end_that_hangs_up_at_once_died() {
    let error = set_up(drop, SOON);
    assert!(matches!(error, BenchError::Died { .. }), "{error}");
}

#[test]
fn a_back_end_that_answers_garbage_answers_wrongly() {
    let error = set_up(
        |mut stream| {
            let _ = stream.write_all(&[0xff; 64]);
            let _ = stream.read_to_end(&mut Vec::new());
        },
        SOON,
    );
    assert!(matches!(error, BenchError::WrongAnswer(_)), "{error}");
}

#[test]
fn sockets_that_cannot_be_used_are_told_apart() {
    let dir = std::env::temp_dir().join(format!("vhost-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("socket");
    let config = config().patience(NEVER);
    let open = |socket| Bench::connect(&socket, config).err().expect("no back end");
    let error = open(Socket::Connect(path.clone()));
    assert!(matches!(error, BenchError::Missing(_)), "{error}");
    let error = open(Socket::Listen(path.clone()));
    assert!(matches!(error, BenchError::NoConnection { .. }), "{error}");
    assert!(!path.exists(), "it is removed");
    let listener = UnixListener::bind(&path).unwrap();
    let error = open(Socket::Listen(path.clone()));
    assert!(matches!(error, BenchError::InUse(_)), "{error}");
    let error = open(Socket::Connect(path.clone()));
    assert!(matches!(error, BenchError::Silent { .. }), "{error}");
    drop(listener);
    let error = open(Socket::Connect(path));
    assert!(matches!(error, BenchError::NotListening(_)), "{error}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_cannot_be_is_refused() {
    let (stream, _peer) = UnixStream::pair().unwrap();
    let config = config().ring_size(100);
    let error = Bench::over(stream, config).err().unwrap();
    assert!(
        matches!(error, BenchError::Config(ConfigError::RingSize(100))),
        "{error}"
    );
}
