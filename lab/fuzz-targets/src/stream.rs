// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry point for fuzzers: arbitrary bytes become what a hostile front end and its guest do to a
//! back end.
//!
//! A session with an IOMMU, 16 pages of memory and one queue of 8 entries is set up; bit 0 of the
//! first byte leaves that out, bit 1 takes the list in place of the radix table. Then come records
//! of 12 bytes; what is left over, or comes after [`MAX_RECORDS`], is ignored. Numbers are
//! big-endian.
//!
//! | byte 0: what | byte 1 | bytes 2, 3 | bytes 4 to 11 |
//! |---|---|---|---|
//! | 0: bytes on the socket | how many of them, at most 8 | - | the bytes |
//! | 1: a request without payload but this | flags | request | payload, 8 bytes |
//! | 2: update | permission | pages | page of IOVA (4), page of memory (4) |
//! | 3: invalidate | - | pages | page of IOVA (4) |
//! | 4: write a descriptor | flags | index, next | IOVA (6), length (2) |
//! | 5: offer | kick if odd | how many, first head | - |
//! | 6: answer misses from a table in which page n is n | - | how many | - |
//! | 7: memory table | which: good, overlapping, too large, no file, two files | - | - |
//! | 8: stop the queue; start it | start if odd | page of the ring's IOVA | - |
//! | 9: an IOTLB message as it is | - | type, permission | IOVA (4), length (4) |
//! | 10: shut the back channel; send a new one | new if odd | - | - |
//! | 11: wait a moment | - | - | - |
//!
//! The device writes to each writable buffer. Afterwards the back end must have hung up or be idle,
//! hold nothing, and have written to no page that it was never given for writing.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    ListIotlb,
    cache::{DeviceIotlb, IotlbReader, Limits, RadixIotlb},
    guest_memory::Patience,
    protocol::{
        message::{FrontAddr, Header, IotlbMessage},
        socket::IOTLB_MSG,
    },
    runner::*,
    server::{Sealed, memory_file},
};
use std::{
    fs::File,
    io::{Read, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::Arc,
    time::Duration,
};
use vm_memory::Bytes;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Records beyond these are ignored.
pub const MAX_RECORDS: usize = 256;
const RECORD: usize = 12;
const PAGES: u64 = 16;
const SIZE: u64 = 8;
/// What every page holds in its last words until a device writes there.
const CANARY: u8 = 0xa5;
/// Where memory is, for the front end.
const FRONT: u64 = 0x7000_0000;

/// What became of one input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Whether the back end closed the connection because of what was sent.
    pub broken: bool,
    /// IOTLB messages that it obeyed.
    pub obeyed: u64,
    /// IOTLB messages that it refused.
    pub refused: u64,
    /// Questions that it asked.
    pub asked: u64,
    /// Chains that the device processed.
    pub chains: u16,
}

/// Fills what it is given.
struct Filler;

impl Device for Filler {
    fn queues(&self) -> u16 {
        1
    }
    fn max_queue_size(&self) -> u16 {
        SIZE as u16
    }
    fn features(&self) -> u64 {
        EVENT_IDX
    }
    fn process<R: IotlbReader>(
        &self,
        event: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure> {
        let Event::Queue(queue) = event else {
            return Ok(Next::Wait);
        };
        worker.each_chain(queue, |memory, chain| {
            let mut written = 0;
            for buffer in chain.writable() {
                let fill = vec![0xff; buffer.len() as usize];
                memory
                    .write_slice(&fill, buffer.addr())
                    .map_err(|e| Stop::Device(e.into()))?;
                written += buffer.len();
            }
            Ok(written)
        })
    }
}

/// The front end's side.
struct Hostile {
    socket: UnixStream,
    back: Option<UnixStream>,
    memory: File,
    kick: OwnedFd,
    avail: u16,
    /// Pages of memory that the device was given for writing at any time.
    writable: [bool; PAGES as usize],
}

/// Does what `data` says to a back end.
///
/// # Panics
/// The back end broke an invariant.
pub fn stream(data: &[u8]) -> Findings {
    let limits = Limits::default().runs(64).tables(256).readers(1).pins(16);
    // The second bit of the options chooses the cache.
    match data.first().unwrap_or(&0) & 2 {
        0 => stream_over(RadixIotlb::new(limits), data),
        _ => stream_over(ListIotlb::new(limits), data),
    }
}

fn stream_over<T: DeviceIotlb>(cache: Arc<T>, data: &[u8]) -> Findings {
    let config = Config::default()
        .patience(Patience {
            answer: Duration::from_millis(2),
        })
        .message(Duration::from_millis(5));
    let mut runner = Runner::new(Filler, cache, config).expect("a runner");
    let observer = runner.observer();
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let (mut hostile, end) = std::thread::scope(|scope| {
        let back_end = scope.spawn(|| runner.serve_stream(theirs));
        let mut hostile = Hostile::new(ours);
        let (options, records) = data.split_first().unwrap_or((&0, &[]));
        if options & 1 == 0 {
            hostile.set_up();
        }
        for record in records.chunks_exact(RECORD).take(MAX_RECORDS) {
            hostile.act(record.try_into().expect("a whole record"));
            hostile.drain();
        }
        let _ = hostile.socket.shutdown(Shutdown::Write);
        let end = back_end.join().expect("the back end does not panic");
        (hostile, end)
    });
    let stats = observer.stats();
    let census = observer.audit().expect("the cache is sound");
    assert_eq!(census.runs, 0, "a session left translations behind");
    hostile.check();
    let control = stats.control;
    Findings {
        broken: matches!(end, End::Broken(_)),
        obeyed: control.updates + control.invalidations,
        refused: control.refused,
        asked: stats.misses.sent,
        chains: hostile.used_index(),
    }
}

impl Hostile {
    fn new(socket: UnixStream) -> Self {
        let memory = memory_file(ByteCount(PAGES * GRANULE), Sealed::Yes).expect("memory");
        for page in 0..PAGES {
            memory
                .write_all_at(&[CANARY; 16], page * GRANULE + 4080)
                .expect("a canary");
        }
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        Hostile {
            socket,
            back: None,
            memory,
            kick: rustix::event::eventfd(0, flags).expect("an event"),
            avail: 0,
            writable: [false; PAGES as usize],
        }
    }

    /// Sends; a back end that has hung up is no error.
    fn send(&mut self, bytes: &[u8], fds: &[&dyn AsRawFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        let _ = self.socket.send_with_fds(&[bytes], &fds);
    }

    fn request(&mut self, request: u32, payload: &[u8]) {
        let header = Header::request(request, payload.len());
        self.send(&[&header.encode()[..], payload].concat(), &[]);
    }

    fn words(&mut self, request: u32, words: &[u64]) {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.request(request, &payload);
    }

    fn halves(&mut self, request: u32, halves: [u32; 2]) {
        self.request(request, &halves.map(u32::to_ne_bytes).concat());
    }

    fn with_file(&mut self, request: u32, word: u64, file: &dyn AsRawFd) {
        let header = Header::request(request, 8);
        let bytes = [&header.encode()[..], &word.to_ne_bytes()].concat();
        self.send(&bytes, &[file]);
    }

    fn set_up(&mut self) {
        self.request(3, &[]);
        self.request(1, &[]);
        self.words(16, &[1 << 3 | 1 << 5]);
        self.words(2, &[VERSION_1 | ACCESS_PLATFORM | 1 << 30 | EVENT_IDX]);
        self.new_back_channel();
        self.memory_table(0);
        self.start(0);
    }

    fn new_back_channel(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a flag");
        self.send(&Header::request(21, 0).encode(), &[&theirs]);
        self.back = Some(ours);
    }

    fn memory_table(&mut self, which: u8) {
        let len = PAGES * GRANULE;
        let one = [0, len, FRONT, 0];
        let regions: Vec<[u64; 4]> = match which % 5 {
            1 => vec![one, [GRANULE, len, FRONT + 2 * len, 0]],
            2 => vec![[0, len + GRANULE, FRONT, 0]],
            _ => vec![one],
        };
        let files = match which % 5 {
            1 | 4 => 2,
            3 => 0,
            _ => 1,
        };
        let mut payload = (regions.len() as u64).to_ne_bytes().to_vec();
        let words = regions.iter().flatten();
        payload.extend(words.flat_map(|word| word.to_ne_bytes()));
        let header = Header::request(5, payload.len());
        let memory = self.memory.try_clone().expect("a duplicate");
        let bytes = [&header.encode()[..], &payload].concat();
        let files: Vec<&dyn AsRawFd> = (0..files).map(|_| &memory as &dyn AsRawFd).collect();
        self.send(&bytes, &files);
    }

    /// Starts the queue; its three parts are on page 0 of memory, and on this page for the device.
    fn start(&mut self, page: u64) {
        let iova = page * GRANULE;
        self.memory.write_all_at(&[0; 0x300], 0).expect("a ring");
        self.avail = 0;
        self.halves(8, [0, SIZE as u32]);
        self.halves(10, [0, 0]);
        self.words(9, &[0, iova, iova + 0x200, iova + 0x100, 0]);
        let kick = self.kick.try_clone().expect("a duplicate");
        self.with_file(12, 0, &kick);
        self.halves(18, [0, 1]);
    }

    fn iotlb(&mut self, message: IotlbMessage) {
        // Whether it will be obeyed or not: the check may be too lenient for it, never too strict.
        if let Ok((_, len, front, perm)) = message.as_update()
            && perm != Perm::Read
        {
            let first = front.0.saturating_sub(FRONT) / GRANULE;
            let last = (front.0 + (len.0 - 1)).saturating_sub(FRONT) / GRANULE;
            for page in first..=last.min(PAGES - 1) {
                self.writable[page as usize] = true;
            }
        }
        self.request(IOTLB_MSG, &message.encode());
    }

    fn act(&mut self, record: &[u8; RECORD]) {
        let [what, option, rest @ ..] = record;
        let short = u64::from(u16::from_be_bytes([rest[0], rest[1]]));
        let half = |at: usize| {
            let bytes = rest[at..at + 4].try_into().expect("four bytes");
            u64::from(u32::from_be_bytes(bytes))
        };
        match what % 12 {
            0 => self.send(&rest[2..2 + usize::from(option % 9)], &[]),
            1 => {
                let mut raw = Header::request(short as u32 % 64, 8).encode();
                raw[4..8].copy_from_slice(&(1 | u32::from(*option) << 2).to_ne_bytes());
                self.send(&[&raw[..], &rest[2..]].concat(), &[]);
            }
            2 => self.iotlb(IotlbMessage::update(
                Iova(half(2) * GRANULE),
                ByteCount(short * GRANULE),
                FrontAddr(FRONT + half(6) * GRANULE),
                [Perm::Read, Perm::Write, Perm::ReadWrite][usize::from(option % 3)],
            )),
            3 => {
                let len = ByteCount(short * GRANULE);
                self.iotlb(IotlbMessage::invalidate(Iova(half(2) * GRANULE), len));
            }
            4 => {
                let mut raw = [0; 16];
                let iova = u64::from_be_bytes(rest[2..10].try_into().expect("eight bytes"));
                raw[0..8].copy_from_slice(&(iova >> 16).to_le_bytes());
                raw[8..12].copy_from_slice(&(iova as u16 as u32).to_le_bytes());
                raw[12..14].copy_from_slice(&u16::from(option % 8).to_le_bytes());
                raw[14..16].copy_from_slice(&u16::from(rest[1] % 16).to_le_bytes());
                let place = 16 * (u64::from(rest[0]) % SIZE);
                self.memory.write_all_at(&raw, place).expect("a descriptor");
            }
            5 => {
                for n in 0..rest[0] {
                    let head = u16::from(rest[1]).wrapping_add(n.into()) % 16;
                    let slot = 0x104 + 2 * (u64::from(self.avail) % SIZE);
                    self.memory
                        .write_all_at(&head.to_le_bytes(), slot)
                        .expect("a head");
                    self.avail = self.avail.wrapping_add(1);
                }
                let index = self.avail.to_le_bytes();
                self.memory.write_all_at(&index, 0x102).expect("an index");
                if option % 2 == 1 {
                    let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
                }
            }
            6 => {
                for _ in 0..short.min(64) {
                    if !self.answer() {
                        break;
                    }
                }
            }
            7 => self.memory_table(*option),
            8 if option % 2 == 0 => self.halves(11, [0, 0]),
            8 => self.start(short),
            9 => {
                let mut raw = IotlbMessage::invalidate(Iova(half(2)), ByteCount(half(6))).encode();
                (raw[24], raw[25]) = (rest[1], rest[0]);
                match IotlbMessage::decode(&raw) {
                    Ok(message) => self.iotlb(message),
                    Err(_) => self.request(IOTLB_MSG, &raw),
                }
            }
            10 if option % 2 == 0 => self.back = None,
            10 => self.new_back_channel(),
            _ => std::thread::sleep(Duration::from_micros(300)),
        }
    }

    /// Answers one miss, if there is one: page n is page n.
    fn answer(&mut self) -> bool {
        let mut raw = [0; 44];
        let got = self.back.as_mut().map(|back| back.read(&mut raw));
        let Some(Ok(44)) = got else { return false };
        let miss = IotlbMessage::decode(&raw[12..]).expect("a miss is well formed");
        let page = miss.iova.0 / GRANULE;
        if page < PAGES {
            let front = FrontAddr(FRONT + page * GRANULE);
            let iova = Iova(page * GRANULE);
            self.iotlb(IotlbMessage::update(
                iova,
                ByteCount(GRANULE),
                front,
                Perm::ReadWrite,
            ));
        }
        true
    }

    /// Reads what the back end says, so that it need not wait for us.
    fn drain(&mut self) {
        let mut sink = [0; 1024];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        while let Ok((_, 1..)) = rustix::net::recv(&self.socket, &mut sink, flags) {}
    }

    fn used_index(&self) -> u16 {
        let mut index = [0; 2];
        self.memory
            .read_exact_at(&mut index, 0x202)
            .expect("an index");
        u16::from_le_bytes(index)
    }

    /// Pages that were never given for writing are as they were.
    fn check(&mut self) {
        let _ = self.socket.flush();
        for page in (0..PAGES).filter(|&page| !self.writable[page as usize]) {
            let mut canary = [0; 16];
            self.memory
                .read_exact_at(&mut canary, page * GRANULE + 4080)
                .expect("a canary");
            assert_eq!(
                canary, [CANARY; 16],
                "page {page} was written, and never given for that"
            );
        }
    }
}
