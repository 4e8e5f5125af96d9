// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest without a machine: split rings, buffers anywhere, and a page table for them.
#![allow(dead_code)] // each test file takes what it needs

pub mod huge;
pub mod raw;
pub mod waiting;

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    IntervalIotlb, ListIotlb, cache::*, protocol::message::FrontAddr, runner::*, server::*,
};
use std::{
    cell::Cell,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, Once},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress};

/// Entries of a ring.
pub const SIZE: u16 = 16;
/// Guest-physical addresses: memory begins here, and the rings are at its start.
pub const GUEST: u64 = 0x10_0000;
/// Bytes of guest memory.
pub const MEMORY: u64 = 4 << 20;
/// What to add to a guest address to get its IOVA, where rings and buffers are mapped so.
pub const IOVA: u64 = 0x40_0000_0000;
/// How long a test waits for what must come.
pub const SOON: Duration = Duration::from_secs(60);
/// Where the parts of queue n begin in guest memory: n times this after the start.
const RING_BYTES: u64 = 0x3000;

/// Writes the readable bytes of each chain, each xor 0xff, to its writable buffers.
pub struct Inverter {
    pub stopped: Arc<Mutex<Vec<String>>>,
}

impl Device for Inverter {
    fn queues(&self) -> u16 {
        2
    }
    fn max_queue_size(&self) -> u16 {
        256
    }
    fn features(&self) -> u64 {
        EVENT_IDX
    }
    fn queues_per_thread(&self) -> Vec<u64> {
        vec![1, 2]
    }
    fn process<R: IotlbReader>(
        &self,
        event: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure> {
        let Event::Queue(queue) = event else {
            return Ok(Next::Wait);
        };
        worker.each_chain(queue, |memory, chain| invert(memory, chain))
    }
    fn stopped(&self, queue: u16, why: &Stop) {
        self.stopped.lock().unwrap().push(format!("{queue}: {why}"));
    }
}

/// What any device of `virtio_queue` would do; it knows nothing of IOVAs.
pub fn invert<M: vm_memory::GuestMemory>(
    memory: &M,
    chain: DescriptorChain<&M>,
) -> Result<u32, Stop> {
    let mut bytes = Vec::new();
    for buffer in chain.clone().readable() {
        let at = bytes.len();
        bytes.resize(at + buffer.len() as usize, 0);
        memory
            .read_slice(&mut bytes[at..], buffer.addr())
            .map_err(|e| Stop::Device(e.into()))?;
    }
    bytes.iter_mut().for_each(|byte| *byte ^= 0xff);
    let mut left = &bytes[..];
    let mut written = 0;
    for buffer in chain.writable() {
        let (now, later) = left.split_at(left.len().min(buffer.len() as usize));
        memory
            .write_slice(now, buffer.addr())
            .map_err(|e| Stop::Device(e.into()))?;
        written += now.len() as u32;
        left = later;
    }
    Ok(written)
}

/// Which cache a test's back ends have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    Radix,
    List,
    Interval,
}

thread_local! {
    static CACHE: Cell<Cache> = const { Cell::new(Cache::List) };
}

/// Runs a test whose back ends have this cache.
pub fn with_cache(cache: Cache, test: impl FnOnce()) {
    CACHE.set(cache);
    test();
}

/// The one of this test.
pub fn cache() -> Cache {
    CACHE.get()
}

/// Makes three tests of each function.
#[macro_export]
macro_rules! with_every_cache {
    ($($test:ident),* $(,)?) => {
        $crate::with_every_cache!(@ radix Radix $($test)*);
        $crate::with_every_cache!(@ list List $($test)*);
        $crate::with_every_cache!(@ interval Interval $($test)*);
    };
    (@ $module:ident $cache:ident $($test:ident)*) => {
        mod $module {
            $(#[test]
            fn $test() {
                $crate::common::with_cache($crate::common::Cache::$cache, super::$test);
            })*
        }
    };
}

/// A runner on a thread of its own, and the socket to it.
pub struct Back {
    pub stop: StopHandle,
    pub observer: Seen,
    pub stopped: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<Vec<End>>>,
    streams: std::sync::mpsc::Sender<UnixStream>,
}

/// An observer of whatever cache.
#[derive(Clone)]
pub struct Seen {
    stats: Arc<dyn Fn() -> RunnerStats + Send + Sync>,
    audit: Arc<dyn Fn() -> Result<Census, String> + Send + Sync>,
}

impl Seen {
    pub fn stats(&self) -> RunnerStats {
        (self.stats)()
    }
    pub fn audit(&self) -> Result<Census, String> {
        (self.audit)()
    }
}

impl Back {
    pub fn new(config: Config) -> Self {
        let stopped: Arc<Mutex<Vec<String>>> = Arc::default();
        let device = Inverter {
            stopped: stopped.clone(),
        };
        Back {
            stopped,
            ..Back::of(device, config)
        }
    }

    /// One with this device, whose queues that stop are not noted.
    pub fn of(device: impl Device, config: Config) -> Self {
        let limits = Limits::default().runs(4096).readers(2).pins(64);
        Self::of_limits(device, limits, config)
    }

    /// The same with a cache of these limits.
    pub fn of_limits(device: impl Device, limits: Limits, config: Config) -> Self {
        match cache() {
            Cache::Radix => Back::with(device, RadixIotlb::new(limits), config),
            Cache::List => Back::with(device, ListIotlb::new(limits), config),
            Cache::Interval => Back::with(device, IntervalIotlb::new(limits), config),
        }
    }

    fn with<T: DeviceIotlb>(device: impl Device, cache: Arc<T>, config: Config) -> Self {
        let mut runner = Runner::new(device, cache, config).unwrap();
        let (stop, observer) = (runner.stop_handle(), runner.observer());
        let (streams, incoming) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let incoming = incoming.into_iter();
            incoming.map(|stream| runner.serve_stream(stream)).collect()
        });
        let other = observer.clone();
        Back {
            stop,
            observer: Seen {
                stats: Arc::new(move || observer.stats()),
                audit: Arc::new(move || other.audit()),
            },
            stopped: Arc::default(),
            thread: Some(thread),
            streams,
        }
    }

    /// A connection to it; connections are served one after the other.
    pub fn socket(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.streams.send(theirs).unwrap();
        ours
    }

    /// Waits for the end of all connections.
    pub fn ends(mut self) -> Vec<End> {
        let thread = self.thread.take().unwrap();
        drop(self.streams);
        thread.join().expect("the back end does not panic")
    }

    /// Waits until a queue has stopped; returns why.
    pub fn why_stopped(&self) -> String {
        eventually("a queue stops", || {
            self.stopped.lock().unwrap().first().cloned()
        })
    }
}

/// Asks until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A runner's settings for tests in which all goes well, however slow the machine.
pub fn patient() -> Config {
    Config::default()
        .patience(ioatlas_vhost::guest_memory::Patience { answer: SOON })
        .message(SOON)
}

/// How long a test waits for what must not come. What must come has [`SOON`]; where a runner has
/// one patience for both, what must come is asked for before.
const NEVER: Duration = Duration::from_secs(5);

/// The same where an answer to a miss is waited for that does not come.
pub fn without_answers() -> Config {
    patient().patience(ioatlas_vhost::guest_memory::Patience { answer: NEVER })
}

/// The same where the rest of a message does not come, or no answer is taken.
pub fn without_ends() -> Config {
    patient().message(NEVER)
}

/// A front end's settings.
pub fn front_config(features: u64) -> FrontEndConfig {
    FrontEndConfig::new(features, 2).answer(SOON)
}

/// The features of a front end with an IOMMU, and of one without.
pub const WITH_IOMMU: u64 = VERSION_1 | ACCESS_PLATFORM | 1 << 30;
pub const WITHOUT: u64 = VERSION_1 | 1 << 30;

/// A front end with [`MEMORY`] bytes.
pub fn front_end(back: &Back, config: FrontEndConfig) -> FrontEnd<PageMap> {
    let file = memory_file(ByteCount(MEMORY), Sealed::Yes).unwrap();
    let regions = vec![(GUEST, ByteCount(MEMORY), file)];
    FrontEnd::connect(back.socket(), config, regions, PageMap::default()).unwrap()
}

/// Maps `len` bytes at `iova` to guest memory at `guest`.
pub fn map(front: &FrontEnd<PageMap>, iova: u64, guest: u64, len: u64, perm: Perm) {
    front.server().table().map(Mapping {
        iova: Iova(iova),
        len: ByteCount(len),
        front: front.front_addr(guest),
        perm,
    });
}

/// A split ring's driver.
pub struct Driver {
    pub queue: usize,
    pub events: QueueEvents,
    start: u64,
    avail: u16,
    used: u16,
}

/// One buffer of a chain: address as the device sees it, length, and whether the device writes it.
pub type Buffer = (u64, u32, Way);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Read,
    Write,
}

impl Driver {
    /// Starts a queue whose ring is in guest memory; the device finds it at the same place,
    /// `offset` later.
    pub fn start(
        front: &mut FrontEnd<PageMap>,
        queue: usize,
        ring_at: impl Fn(u64) -> u64,
    ) -> Self {
        let start = GUEST + queue as u64 * RING_BYTES;
        let ring = RingAddresses {
            descriptors: ring_at(start),
            driver: ring_at(start + 0x1000),
            device: ring_at(start + 0x2000),
        };
        let memory = front.memory();
        memory
            .write_slice(&[0; RING_BYTES as usize], GuestAddress(start))
            .unwrap();
        let events = front.start_queue(queue, SIZE, ring, 0).unwrap();
        Driver {
            queue,
            events,
            start,
            avail: 0,
            used: 0,
        }
    }

    /// Starts one by IOVA, its ring mapped.
    pub fn by_iova(front: &mut FrontEnd<PageMap>, queue: usize) -> Self {
        let start = GUEST + queue as u64 * RING_BYTES;
        map(front, start + IOVA, start, RING_BYTES, Perm::ReadWrite);
        Self::start(front, queue, |guest| guest + IOVA)
    }

    /// Writes one descriptor.
    pub fn descriptor(
        &self,
        front: &FrontEnd<PageMap>,
        at: u16,
        (addr, len, way): Buffer,
        next: Option<u16>,
    ) {
        let flags = u16::from(next.is_some()) | if way == Way::Write { 2 } else { 0 };
        let mut raw = addr.to_le_bytes().to_vec();
        raw.extend(len.to_le_bytes());
        raw.extend(flags.to_le_bytes());
        raw.extend(next.unwrap_or(0).to_le_bytes());
        let place = GuestAddress(self.start + 16 * u64::from(at));
        front.memory().write_slice(&raw, place).unwrap();
    }

    /// Makes the chain that begins at `head` available, and kicks.
    pub fn offer(&mut self, front: &FrontEnd<PageMap>, head: u16) {
        self.offer_all(front, &[head]);
    }

    /// The same of several chains, with one kick.
    pub fn offer_all(&mut self, front: &FrontEnd<PageMap>, heads: &[u16]) {
        let memory = front.memory();
        let ring = self.start + 0x1000;
        for head in heads {
            let slot = ring + 4 + 2 * u64::from(self.avail % SIZE);
            memory.write_obj(*head, GuestAddress(slot)).unwrap();
            self.avail = self.avail.wrapping_add(1);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        memory
            .write_obj(self.avail, GuestAddress(ring + 2))
            .unwrap();
        self.events.kick.write(1).unwrap();
    }

    /// The next used chain, if there is one: head and bytes written.
    pub fn used(&mut self, front: &FrontEnd<PageMap>) -> Option<(u32, u32)> {
        let memory = front.memory();
        let ring = self.start + 0x2000;
        let index: u16 = memory.read_obj(GuestAddress(ring + 2)).unwrap();
        if index == self.used {
            return None;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let slot = ring + 4 + 8 * u64::from(self.used % SIZE);
        self.used = self.used.wrapping_add(1);
        let head = memory.read_obj(GuestAddress(slot)).unwrap();
        Some((head, memory.read_obj(GuestAddress(slot + 4)).unwrap()))
    }

    /// Sends `bytes` through the inverter: a buffer to read, a buffer to write; returns what came
    /// back.
    pub fn invert(
        &mut self,
        front: &FrontEnd<PageMap>,
        (source, from): (u64, u64),
        (target, to): (u64, u64),
        bytes: &[u8],
    ) -> Vec<u8> {
        let len = bytes.len() as u32;
        front
            .memory()
            .write_slice(bytes, GuestAddress(from))
            .unwrap();
        self.descriptor(front, 0, (source, len, Way::Read), Some(1));
        self.descriptor(front, 1, (target, len, Way::Write), None);
        self.offer(front, 0);
        let used = eventually("the chain is used", || self.used(front));
        assert_eq!(used, (0, len));
        let mut got = vec![0; bytes.len()];
        front
            .memory()
            .read_slice(&mut got, GuestAddress(to))
            .unwrap();
        got
    }
}

/// Lines that are counted, by what is in them.
const COUNTED: [&str; 4] = [
    "are not in guest memory",
    "hung up",
    "connection closed",
    "queue 0 stops",
];
static COUNTS: Mutex<[u64; COUNTED.len()]> = Mutex::new([0; COUNTED.len()]);

/// How many lines there were so far with one of the texts that are counted.
pub fn lines_with(text: &str) -> u64 {
    let at = COUNTED.iter().position(|counted| *counted == text);
    COUNTS.lock().unwrap()[at.expect("a text that is counted")]
}

/// Prints the log of a test that fails.
pub fn log_to_stderr() {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            let line = record.args().to_string();
            let mut counts = COUNTS.lock().unwrap();
            for (text, count) in COUNTED.iter().zip(&mut *counts) {
                *count += u64::from(line.contains(text));
            }
            drop(counts);
            println!("{}: {line}", record.level());
        }
        fn flush(&self) {}
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = log::set_logger(&Stderr);
        log::set_max_level(log::LevelFilter::Debug);
    });
}

/// What the inverter makes of bytes.
pub fn inverted(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// For building mappings by hand.
pub fn front_of(front: &FrontEnd<PageMap>, guest: u64) -> FrontAddr {
    front.front_addr(guest)
}
