// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The device, as the runner sees it: queue pairs, a thread each.
//!
//! Queues 2n and 2n+1 are pair n's receive and transmit queues (virtio 1.2, 5.1.2). The control
//! queue is the front end's own affair, as always with vhost-user.
//!
//! A device that *polls* is called all the time and never wants a kick. One that is *notified*
//! sleeps when there is nothing to do, having asked for kicks and looked once more.
//!
//! Lock order: `the runner's worker -> pair`.

use crate::{
    pair::*,
    port::{Port, TapPort},
    queue::{Depth, Side},
    ring::Kicks,
    stats::PairStats,
    tap::{Tap, TapError, TapQueues},
};
use ioatlas_vhost::{
    IotlbReader, Miss,
    guest_memory::IovaMemory,
    protocol::misses::{Asked, Waiting},
    runner::{self, Device, Event, Failure, Next, QueueWorker, Ring, Stop},
};
use std::{
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// `VIRTIO_NET_F_MQ` (virtio 1.2, 5.1.3): several queue pairs.
pub const MQ: u64 = 1 << 22;
/// `VIRTIO_RING_F_INDIRECT_DESC` (virtio 1.2, 6): chains may have indirect tables.
pub const INDIRECT_DESC: u64 = 1 << 28;

/// Bursts of one call, after which control requests have their turn.
const BURSTS: usize = 16;
/// How long a notified queue sleeps for an answer at a time; kicks of the other queue wait as long.
const SLEEP: Duration = Duration::from_millis(1);
/// How long the thread of a lost TAP interface sleeps at a time.
const LOST: Duration = Duration::from_millis(10);

/// What happens to frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Each goes back as it is.
    Loopback,
    /// Each goes back with its addresses exchanged.
    MacSwap,
    /// To and from the TAP interface of this name.
    Tap(String),
}

/// How a device learns of new buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wakeup {
    /// It looks all the time.
    Poll,
    /// It waits for kicks.
    Notify,
}

/// Which ring layouts are offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum Layouts {
    Split,
    /// Packed rings, too; the driver chooses.
    SplitAndPacked,
}

/// What a device is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NetConfig {
    /// Queue pairs, 1 to 32.
    pub pairs: u16,
    /// What happens to frames.
    pub mode: Mode,
    /// How it learns of new buffers.
    pub wakeup: Wakeup,
    /// Which ring layouts are offered.
    pub layouts: Layouts,
    /// Chains that are read ahead in each queue; at least one.
    pub depth: Depth,
    /// How long a translation may take before a queue stops, and stays so until the driver resets
    /// the device; `None`: any time.
    pub patience: Option<Duration>,
}

/// Queue pairs, at most: the runner's masks have 64 bits.
pub const MAX_PAIRS: u16 = 32;

ioatlas_dma::setters!(NetConfig {
    pairs: u16,
    mode: Mode,
    wakeup: Wakeup,
    layouts: Layouts,
    depth: Depth;
    patience?: Duration,
});

impl Default for NetConfig {
    /// One pair in loopback, notified, both layouts, 64 chains ahead, no end of patience.
    fn default() -> Self {
        NetConfig {
            pairs: 1,
            mode: Mode::Loopback,
            wakeup: Wakeup::Notify,
            layouts: Layouts::SplitAndPacked,
            depth: Depth(64),
            patience: None,
        }
    }
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Too few, or too many.
    #[error("{0} queue pairs: 1 to {MAX_PAIRS} can be")]
    Pairs(u16),
    /// Not as many TAP queues as there must be.
    #[error("{given} TAP queues, where {wanted} are needed")]
    Taps {
        /// How many there must be.
        wanted: usize,
        /// How many there are.
        given: usize,
    },
    /// No TAP interface could be opened.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// It cannot be polled.
    #[error("TAP: {0}")]
    Io(#[from] std::io::Error),
}

/// A virtio-net device. See the module.
#[derive(Debug)]
pub struct Net {
    pairs: Vec<Mutex<Pair>>,
    taps: Vec<Mutex<Option<OwnedFd>>>,
    config: NetConfig,
}

impl Net {
    /// A device, its TAP interface opened.
    ///
    /// # Errors
    /// See [`NetError`]; queues that were opened are closed again.
    pub fn new(config: NetConfig) -> Result<Self, NetError> {
        let queues = match config.pairs {
            1 => TapQueues::One,
            _ => TapQueues::Several,
        };
        let taps = match &config.mode {
            Mode::Tap(name) if config.pairs <= MAX_PAIRS => (0..config.pairs)
                .map(|_| Tap::open(name, queues))
                .collect::<Result<_, _>>()?,
            _ => Vec::new(),
        };
        Net::with_taps(config, taps)
    }

    /// A device on queues of a TAP interface that were opened elsewhere, one for each pair; on none
    /// where the mode is another.
    ///
    /// # Errors
    /// See [`NetError`]; `taps` are closed then.
    pub fn with_taps(config: NetConfig, taps: Vec<Tap>) -> Result<Self, NetError> {
        if !(1..=MAX_PAIRS).contains(&config.pairs) {
            return Err(NetError::Pairs(config.pairs));
        }
        let wanted = match config.mode {
            Mode::Tap(_) => config.pairs.into(),
            Mode::Loopback | Mode::MacSwap => 0,
        };
        if taps.len() != wanted {
            let given = taps.len();
            return Err(NetError::Taps { wanted, given });
        }
        let mut given = taps.into_iter();
        let (mut pairs, mut taps) = (Vec::new(), Vec::new());
        for _ in 0..config.pairs {
            let mut polled = None;
            let port = match (&config.mode, given.next()) {
                (_, Some(tap)) => {
                    polled = Some(tap.try_clone()?);
                    Port::Tap(Box::new(TapPort::new(tap)))
                }
                (Mode::MacSwap, None) => Port::MacSwap,
                (_, None) => Port::Loopback,
            };
            let depth = Depth(config.depth.0.max(1));
            pairs.push(Mutex::new(Pair::new(port, depth, config.patience)));
            taps.push(Mutex::new(polled));
        }
        Ok(Net {
            pairs,
            taps,
            config,
        })
    }

    /// What it is made of.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// What the pairs have done so far.
    pub fn stats(&self) -> Vec<PairStats> {
        self.pairs.iter().map(|pair| locked(pair).stats()).collect()
    }

    /// Does what there is to do in a pair.
    fn run<R: IotlbReader>(
        &self,
        pair: &mut Pair,
        rings: &[Ring],
        memory: &mut IovaMemory<R>,
    ) -> Result<Next, (Side, Stop)> {
        let poll = self.config.wakeup == Wakeup::Poll || rings.iter().any(Ring::is_polled);
        pair.want(memory, Kicks::Unwanted)?;
        for _ in 0..BURSTS {
            let answers = memory.misses().answers();
            let turn = pair.burst(memory)?;
            if let Some(late) = turn.late {
                log_late(rings, &late);
            }
            for (side, due) in [
                (Side::Receive, turn.call_receive),
                (Side::Transmit, turn.call_transmit),
            ] {
                let ring = rings.iter().find(|ring| side_of(ring) == side);
                if due
                    && let Some(ring) = ring
                    && let Err(e) = ring.notify()
                    && let Some(times) = pair.count_failed_call()
                {
                    let queue = ring.index();
                    log::warn!(
                        "queue {queue}: cannot call the driver: {e} ({times} times in this pair)"
                    );
                }
            }
            if turn.moved > 0 {
                continue;
            }
            if pair.lost().is_some() && !pair.is_live() {
                // The interface is still polled, and is ready for ever.
                std::thread::sleep(LOST);
                return Ok(Next::Wait);
            }
            if poll {
                return Ok(Next::Again);
            }
            if turn.blocked {
                let until = Instant::now() + SLEEP;
                let wait = Waiting::Unpinned;
                memory.misses().wait(answers, until, wait, Asked::Sent);
                return Ok(Next::Again);
            }
            if !pair.want(memory, Kicks::Wanted)? {
                return Ok(Next::Wait);
            }
        }
        Ok(Next::Again)
    }
}

/// A panic elsewhere is reported there; a pair is whole between bursts.
fn locked(pair: &Mutex<Pair>) -> MutexGuard<'_, Pair> {
    pair.lock().unwrap_or_else(PoisonError::into_inner)
}

fn log_late(rings: &[Ring], late: &Late) {
    let ring = rings.iter().find(|ring| side_of(ring) == late.side);
    let queue = ring.map_or(u16::MAX, Ring::index);
    let Late { miss, times, .. } = late;
    let Miss { iova, need, .. } = miss;
    log::warn!(
        "queue {queue}: the front end has not answered a miss at IOVA {:#x} for {need:?} for long; it is asked again until it does ({times} times in this pair)",
        iova.0
    );
}

fn side_of(ring: &Ring) -> Side {
    match ring.index() % 2 {
        0 => Side::Receive,
        _ => Side::Transmit,
    }
}

impl Device for Net {
    fn queues(&self) -> u16 {
        2 * self.config.pairs
    }

    fn queue_num(&self) -> u16 {
        self.config.pairs
    }

    fn max_queue_size(&self) -> u16 {
        1 << 15
    }

    fn features(&self) -> u64 {
        let mut features = MRG_RXBUF | INDIRECT_DESC | runner::EVENT_IDX;
        if self.config.pairs > 1 {
            features |= MQ;
        }
        if self.config.layouts == Layouts::SplitAndPacked {
            features |= runner::RING_PACKED;
        }
        features
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.config.pairs).map(|pair| 3 << (2 * pair)).collect()
    }

    fn events(&self, thread: usize) -> Vec<(OwnedFd, u64)> {
        let tap = self.taps[thread].lock();
        let tap = tap.unwrap_or_else(PoisonError::into_inner).take();
        tap.into_iter().map(|fd| (fd, 0)).collect()
    }

    fn process<R: IotlbReader>(
        &self,
        _: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure> {
        let mut pair = locked(&self.pairs[worker.thread()]);
        let (rings, memory) = worker.split();
        for ring in rings.iter() {
            let broken = |error: crate::ring::RingError| Failure {
                queue: ring.index(),
                why: Stop::Device(error.into()),
            };
            pair.follow(side_of(ring), ring).map_err(broken)?;
        }
        let result = self.run(&mut pair, rings, memory);
        for ring in rings.iter_mut() {
            if let Some(base) = pair.base(side_of(ring)) {
                match ring.is_packed() {
                    true => ring.set_base(base),
                    false => virtio_queue::QueueT::set_next_avail(&mut ring.queue, base as u16),
                }
            }
        }
        result.map_err(|(side, why)| {
            pair.drop_queue(side);
            let ring = rings.iter().find(|ring| side_of(ring) == side);
            let queue = ring.map_or(u16::MAX, Ring::index);
            Failure { queue, why }
        })
    }

    fn stopped(&self, queue: u16, _why: &Stop) {
        if let Some(pair) = self.pairs.get(usize::from(queue / 2)) {
            locked(pair).count_stop();
        }
    }
}
