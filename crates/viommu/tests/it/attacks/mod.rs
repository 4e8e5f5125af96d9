// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A driver of safe code alone attacks. It forgets what it should end, drops it in any order, ends
//! it at the wrong place, twice or half, panics wherever it is called back, and keeps every address
//! that it ever learned. Then all memory that is free becomes that of victims, and its device
//! writes by all those addresses.
//!
//! `forgotten`: what is lost, or is dropped out of order. `calls`: wrong arguments, tokens and
//! iterators.
//!
//! What the types refuse is not here: arrays of elements without bytes, a domain that is closed
//! while an unmap is pending, memory that is lent without a promise. (Of one buffer that it gives
//! up for ever a driver can have the loan and the token, though: see [`Lab::token`].)
#![forbid(unsafe_code)]

mod calls;
mod forgotten;

use crate::suite::placements::{ON_DEMAND, PLACEMENTS, tight};
use ioatlas_dma::{dma_api::*, domain::*, iova::Limits, platform::Platform, units::*};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::machine::*;
use std::{cell::Cell, sync::Arc};

type Vtd = ioatlas_dma::table::fmt::VtdSecond48;
type Dom = SoftDomain<Host, Vtd>;
type Tables = ioatlas_dma::translator::Paged<Host, Vtd, Arc<Driver<Host>>>;
type Api = Dma<Host, Tables, Hostile>;
type Dev = Client<Host, Tables, Hostile>;
type Given = DeviceBuffer<Host, BothWays>;
type Token = DmaMapping<Lent<Arc<[PhysRange]>>>;

const BOTH: Direction = Direction::Bidirectional;
const NIC: SourceId = SourceId(0x0020);
const DISK: SourceId = SourceId(0x0108);
const FRAMES: usize = 192;
const PAGE: usize = GRANULE as usize;
/// What the device writes. No victim does.
const DEVICE: u8 = 0xd0;
/// Two pages, and a part of a third: each placement maps or copies it in its own way.
const LEN: ByteCount = ByteCount(2 * GRANULE + 100);
const PAGES: usize = 3;

const POLICIES: [PolicyConfig; 4] = [
    PolicyConfig::Strict,
    PolicyConfig::DeferredGlobal(
        DeferredConfig::DEFAULT
            .batch(250)
            .window(TimeNs(10_000_000))
            .tick_budget(256),
    ),
    PolicyConfig::MacOs(MacOsConfig::DEFAULT.depth(64)),
    PolicyConfig::Solaris,
];

/// An attacker's machine and client for every policy and placement.
fn cases() -> impl Iterator<Item = (Lab, Dev, Placement)> {
    let all = POLICIES
        .into_iter()
        .flat_map(|policy| PLACEMENTS.map(|placement| (policy, placement)));
    all.map(|(policy, placement)| {
        let mut lab = Lab::new(policy);
        lab.what += &format!(", {placement:?}");
        let client = lab.client(placement);
        (lab, client, placement)
    })
}

/// What the driver's clock and watch do when they are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Quiet,
    /// The watch says that it is on every second time.
    Fickle,
    /// The watch is on, and after so many calls one panics.
    Bomb(u32),
}

thread_local! {
    static MOOD: Cell<Mood> = const { Cell::new(Mood::Quiet) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// A call of the driver's code; returns how many there were before.
fn called() -> u64 {
    if let Mood::Bomb(left) = MOOD.get() {
        MOOD.set(left.checked_sub(1).map_or(Mood::Quiet, Mood::Bomb));
        assert!(left > 0, "the driver panics");
    }
    CALLS.replace(CALLS.get() + 1)
}

struct Hostile;

impl Watch<Host> for Hostile {
    fn mapped(&self, _: &Event, _: &[PhysRange]) {
        called();
    }
    fn unmapped(&self, _: &Event) {
        called();
    }
    fn flushed(&self, _: &Event) {
        called();
    }
    fn synced(&self, _: Iova, _: Span, _: SyncFor) {
        called();
    }
    fn is_on(&self) -> bool {
        match MOOD.get() {
            Mood::Quiet => false,
            Mood::Fickle => called().is_multiple_of(2),
            Mood::Bomb(_) => true,
        }
    }
}

/// What becomes of a buffer's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// The driver loses them: they are never anyone's again.
    Lost,
    /// They come back.
    Free,
}

/// The attacker's machine, domain and device, beside those of a victim on the same platform.
struct Lab {
    host: Arc<Host>,
    machine: Machine<Host>,
    domain: Arc<Dom>,
    dma: Arc<Api>,
    /// Of another `Dma`: it refuses what it is given.
    stranger: Dev,
    /// Where the device was ever told to go.
    told: Vec<IovaPage>,
    lost: Vec<PhysPage>,
    victims: Victims,
    what: String,
}

impl Lab {
    fn new(policy: PolicyConfig) -> Self {
        let slots = 4;
        let frames = FRAMES;
        let host = Arc::new(Host::new(HostConfig::default().frames(frames).slots(slots)));
        let unit = UnitConfig::new(Geometry::of::<Vtd>());
        let machine = Machine::new(host.clone(), &unit).expect("a machine");
        let domain = |device, policy| {
            let config = DomainConfig::new(AllocatorConfig::RBTREE, policy);
            let domain = Arc::new(machine.domain::<Vtd>(config).expect("a domain"));
            domain.attach(device).expect("attached");
            domain
        };
        let (domain, theirs) = (domain(NIC, policy), domain(DISK, PolicyConfig::Strict));
        let api = |domain: &Arc<Dom>| {
            let clock = Some(Clock(|| TimeNs(100 * called())));
            let config = tight(ON_DEMAND).clock(clock);
            Arc::new(Dma::watched(domain.clone(), config, Hostile))
        };
        let client = |dma: &Arc<Api>, end| {
            let limits = Limits::default().end(end);
            let config = ClientConfig::default().limits(limits);
            dma.client(config).expect("no pool")
        };
        Lab {
            dma: api(&domain),
            stranger: client(&api(&domain), None),
            victims: Victims {
                // apart from all else, so that its first array needs tables
                client: client(&api(&theirs), Some(IovaPage(1 << 20))),
                buffers: Vec::new(),
                rings: Vec::new(),
            },
            what: policy.name().into(),
            told: Vec::new(),
            lost: Vec::new(),
            host,
            machine,
            domain,
        }
    }

    fn client(&self, placement: Placement) -> Dev {
        let config = ClientConfig::default().placement(placement);
        self.dma.client(config).expect("a pool")
    }

    /// A buffer that the device has reached, at each of its pages.
    fn give(&mut self, client: &Dev, fate: Fate) -> Given {
        let buffer = client.buffer(LEN).expect("memory");
        self.give_this(client, buffer, fate)
    }

    fn give_this(&mut self, client: &Dev, buffer: CpuBuffer<Host, BothWays>, fate: Fate) -> Given {
        if fate == Fate::Lost {
            self.lost
                .extend(buffer.list().iter().map(|at| at.addr.page()));
        }
        let given = client.give(buffer).expect("room");
        given.segments().for_each(|at| self.tell(at));
        given
    }

    /// A token with memory on loan, which no driver makes by itself: another client refuses a
    /// buffer, whose memory is lost then, and gives this back.
    fn token(&mut self, client: &Dev) -> Token {
        let given = self.give(client, Fate::Lost);
        match self.stranger.take_back(given) {
            Err(DmaUnmapError::Foreign(token)) => *token,
            _ => panic!("{}: P8: a stranger ended it", self.what),
        }
    }

    /// The device goes there, and keeps the translation.
    fn tell(&mut self, at: Iova) {
        let reached = self.machine.dma_write(NIC, at, &[DEVICE]);
        assert_eq!(reached, Ok(()), "{}: P14: at {at}", self.what);
        self.told.push(at.page());
    }

    /// Whether the device gets there.
    fn reaches(&self, at: Iova) -> bool {
        self.machine.dma_write(NIC, at, &[DEVICE]).is_ok()
    }

    /// The device writes whole pages, wherever it was ever told to go.
    fn strike(&self) {
        for page in &self.told {
            let _ = self.machine.dma_write(NIC, page.addr(), &[DEVICE; PAGE]);
        }
    }

    /// A mapping has ended, which had been bounced or not.
    fn ended(&self, at: Iova, bounced: bool) {
        let strict = self.domain.exposure() == Exposure::None;
        let reached = strict && !bounced && self.reaches(at);
        assert!(!reached, "{}: P1: {at} is reached still", self.what);
    }

    /// All memory that is free becomes that of victims, before a flush and after it, and the device
    /// writes what it can.
    fn judge(&mut self) {
        let what = &self.what;
        MOOD.set(Mood::Quiet);
        for flushed in [false, true] {
            if flushed {
                self.domain.flush().expect("the unit answers");
            }
            self.victims.settle(&self.lost, what);
            self.strike();
            self.victims.check(what);
            self.audit();
        }
    }

    fn audit(&self) {
        let say = |error| -> String { panic!("{}: P10: {error}", self.what) };
        for domain in [&self.domain, self.victims.client.dma().domain()] {
            domain.audit().map_err(say).expect("an audit");
        }
        self.dma.audit().map_err(say).expect("an audit");
        self.machine.unit().audit().map_err(say).expect("the unit");
    }

    /// Ends all, after which what was lost is in use, and nothing else.
    fn end(self) {
        let lost = self.lost.len();
        self.end_with(lost);
    }

    /// The same where so many frames are lost.
    fn end_with(mut self, lost: usize) {
        self.judge();
        let Lab {
            host,
            machine,
            domain,
            dma,
            stranger,
            victims,
            what,
            ..
        } = self;
        let theirs = victims.client.dma().domain().clone();
        drop((dma, stranger, victims));
        for domain in [domain, theirs] {
            let domain = Arc::into_inner(domain).expect("no owner of the domain is left");
            domain.close().expect("closed");
        }
        machine.shut_down().expect("off");
        assert_eq!(host.frames_in_use(), lost, "{what}: P10: frames");
    }
}

/// The owners of all memory that is free.
struct Victims {
    client: Dev,
    buffers: Vec<CpuBuffer<Host, BothWays>>,
    rings: Vec<Coherent<[u64]>>,
}

impl Drop for Victims {
    /// After a failure, frames may have two owners: none is freed twice before it is told.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(std::mem::take(&mut self.buffers));
            std::mem::forget(std::mem::take(&mut self.rings));
        }
    }
}

impl Victims {
    /// What is in word `at` of the array `nth`.
    fn word(nth: usize, at: usize) -> u64 {
        (nth as u64) << 32 | at as u64
    }
    fn bytes(nth: usize) -> [u8; PAGE] {
        [1 + (nth % 128) as u8; PAGE]
    }

    /// Takes all frames: an array, tables for it, and buffers.
    fn settle(&mut self, lost: &[PhysPage], what: &str) {
        if let Ok(mut ring) = self.client.alloc_coherent(PAGE / 8) {
            let nth = self.rings.len();
            (0..ring.len()).for_each(|at| ring.write(at, Self::word(nth, at)));
            self.rings.push(ring);
        }
        while let Some(buffer) = self.client.buffer(ByteCount(GRANULE)) {
            let bytes = Self::bytes(self.buffers.len());
            buffer.write(ByteCount(0), &bytes).expect("inside");
            self.buffers.push(buffer);
        }
        let buffers = self
            .buffers
            .iter()
            .map(|buffer| buffer.list()[0].addr.page());
        let rings = self.rings.iter().map(|ring| ring.frames().first);
        let mut pages: Vec<_> = buffers.chain(rings).collect();
        let is_lost = pages.iter().find(|page| lost.contains(page));
        assert_eq!(is_lost, None, "{what}: P10: what was lost is a victim's");
        pages.sort_unstable();
        let twice = pages.windows(2).find(|two| two[0] == two[1]);
        assert_eq!(twice, None, "{what}: P10: a frame has two owners");
    }

    fn check(&self, what: &str) {
        for (nth, buffer) in self.buffers.iter().enumerate() {
            let mut seen = [0; PAGE];
            buffer.read(ByteCount(0), &mut seen).expect("inside");
            let same = seen == Self::bytes(nth);
            assert!(same, "{what}: P4: a victim's buffer was written");
        }
        for (nth, ring) in self.rings.iter().enumerate() {
            let same = (0..ring.len()).all(|at| ring.read(at) == Self::word(nth, at));
            assert!(same, "{what}: P4: a victim's array was written");
        }
    }
}
