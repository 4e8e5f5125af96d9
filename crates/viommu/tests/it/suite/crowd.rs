// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What CPUs, devices, a timer and the unit do when they all act at once, for threads and for
//! schedules alike.
//!
//! They map by one of two interfaces ([`Interface`]): the domain's own, or the DMA API, by each of
//! its placements in turn, beside what only the domain has. What is expected is the same.
//!
//! Everything is bounded by operations. The choices come from seeds; what is mapped where depends
//! on the interleaving.

use crate::suite::{interface::*, rig::*};
use ioatlas_dma::{
    design::Design, domain::*, invalidation::WaitLimit, platform::Platform, table::*, units::*,
};
use ioatlas_viommu::{
    config::{Geometry, Processing, UnitConfig},
    device::Ats,
    machine::WatchedMachine,
    oracle::{Failing, Oracle, WatchedMapping},
    queue::Progress,
    walk::Step,
};
use ioatlas_vtd::{driver, layout::QueueDepth};
use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What a CPU holds and may hand to another.
pub enum Live {
    Mapped(Mapping),
    /// By this client.
    Placed(usize, WatchedMapping),
    /// A typed buffer of this client, by its number.
    Given(usize, usize, IovaRange),
    Memory(Consistent),
}

impl Live {
    pub fn range(&self) -> IovaRange {
        match self {
            Live::Mapped(mapping) => mapping.range(),
            Live::Placed(_, mapping) => mapping.runs()[0],
            Live::Given(_, _, range) => *range,
            Live::Memory(memory) => {
                let pages = PageCount(memory.len().0 / GRANULE);
                IovaRange::new(memory.iova().page(), pages)
            }
        }
    }
}

/// One domain with the NIC attached, and where devices had better look.
pub struct Crowd<B: Base, F: Format> {
    pub rig: Rig<B>,
    pub domain: Dom<B, F>,
    pub span: IovaRange,
    /// Whether its IOVAs follow from addresses.
    pub by_address: bool,
    /// If it maps by the DMA API.
    clients: Option<Clients<B, F>>,
    hot: Mutex<Vec<IovaPage>>,
}

/// Pages from here on are no frames of a platform.
const BEYOND_FRAMES: u64 = 1 << 20;
/// Pages that devices prefer: mapped or unmapped lately.
const HOT: usize = 12;

/// One end of the exchange between two CPUs.
pub struct End(Sender<Live>, Receiver<Live>);

impl End {
    /// What was handed over and not fetched.
    pub fn fetch_all(&self) -> impl Iterator<Item = Live> {
        self.1.try_iter()
    }
}

/// Two CPUs hand things to each other.
pub fn exchange() -> (End, End) {
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    (End(to_b, from_b), End(to_a, from_a))
}

/// IOVA pages used under `F`: few, so that they come again soon, across an edge of leaf tables.
pub fn playground<F: Format>() -> IovaRange {
    let whole = F::aperture();
    let pages = whole.pages.0.min(64);
    let table: u64 = 1 << F::ENTRIES_LG2;
    let first = if whole.pages.0 > 64 {
        table.max(64) - 32
    } else {
        0
    };
    IovaRange::new(IovaPage(first), PageCount(pages))
}

impl<B: Base, F: Format> Crowd<B, F> {
    /// By the domain, on a machine of `frames` frames, whose unit `adjust` has changed: where it
    /// has devices with ATS, the NIC must be one, and uses it. `limit` bounds every wait.
    pub fn new(
        frames: usize,
        design: impl Into<Design>,
        limit: WaitLimit,
        adjust: impl FnOnce(&mut UnitConfig),
    ) -> Self {
        Self::on(B::make(frames), Interface::Domain, design, limit, adjust)
    }

    /// The same by an interface, with as many frames as it takes.
    pub fn by(
        interface: Interface,
        design: impl Into<Design>,
        limit: WaitLimit,
        adjust: impl FnOnce(&mut UnitConfig),
    ) -> Self {
        Self::on(
            B::make(interface.frames()),
            interface,
            design,
            limit,
            adjust,
        )
    }

    /// The same on that platform, by that interface.
    pub fn on(
        base: B,
        interface: Interface,
        design: impl Into<Design>,
        limit: WaitLimit,
        adjust: impl FnOnce(&mut UnitConfig),
    ) -> Self {
        let Design {
            domain: mut design,
            tables,
        } = design.into();
        let mut config = UnitConfig::new(Geometry::of::<F>());
        adjust(&mut config);
        let processing = config.processing;
        config.processing = Processing::Inline;
        let host = driver::Config::default().limit(limit);
        let base = Failing::new(base);
        let machine = WatchedMachine::new(base, &config, Oracle::new(), host);
        let rig = Rig {
            machine: machine.expect("a machine"),
        };
        let span = design.aperture.unwrap_or(match interface {
            Interface::Domain | Interface::Combined => playground::<F>(),
            Interface::Dma => room::<F>(),
        });
        let by_address = !chooses_freely(&design);
        if !by_address {
            design.aperture = Some(span);
        }
        design.wait_limit = limit;
        let (driver, unit) = (rig.machine.machine().driver(), rig.machine.machine().unit());
        if config.features.device_tlbs {
            let depth = QueueDepth::from_capability(4);
            let declared = driver.declare_device_tlb(NIC, depth);
            declared.expect("a unit that flushes device TLBs");
        }
        let design = Design {
            domain: design,
            tables,
        };
        let domain = match interface {
            Interface::Combined => rig.combining::<F>(design),
            Interface::Domain | Interface::Dma => rig.domain::<F>(design),
        };
        if config.features.device_tlbs {
            unit.switch_ats(NIC, Ats::On).expect("a device with ATS");
        }
        let clients = (interface == Interface::Dma).then(|| Clients::new(&rig, &domain));
        // once it is up
        rig.machine.machine().unit().set_processing(processing);
        let hot = Mutex::new(Vec::new());
        Crowd {
            rig,
            domain,
            span,
            by_address,
            clients,
            hot,
        }
    }

    /// Devices look there from now on.
    pub fn heat(&self, range: IovaRange) {
        let mut hot = locked(&self.hot);
        for page in range.iter().take(HOT) {
            if hot.len() == HOT {
                hot.remove(0);
            }
            hot.push(page);
        }
    }

    /// A page that a device might look at.
    fn target(&self, random: &mut Random) -> IovaPage {
        let hot = locked(&self.hot);
        if hot.is_empty() || random.below(8) == 0 {
            return IovaPage(self.span.first.0 + random.below(self.span.pages.0));
        }
        hot[random.below(hot.len() as u64) as usize]
    }

    /// What a map returned: a mapping, or `None` where there was no room or no frame; all else is a
    /// bug.
    pub fn taken<T>(&self, result: Result<T, MapError>) -> Option<T> {
        match result {
            Ok(taken) => Some(taken),
            Err(MapError::NoIova(_) | MapError::NoReserve(_) | MapError::NoFrame { .. }) => None,
            Err(MapError::Install(e)) if e.cause == InstallCause::NoFrame => None,
            Err(MapError::Install(e)) => panic!("P3: two allocations overlap: {e}"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends what it is given, by the token API or the address API.
    pub fn end(&self, live: Live, raw: u64) {
        self.heat(live.range());
        let ended = match live {
            Live::Memory(memory) => self.domain.free_consistent(memory),
            Live::Mapped(mapping) if raw == 0 && !self.is_shared(&mapping) => {
                self.domain.unmap_raw(mapping)
            }
            Live::Mapped(mapping) => self.domain.unmap(mapping),
            Live::Placed(client, mapping) => {
                let clients = self.clients.as_ref().expect("the client that mapped it");
                return clients.end(client, mapping, raw);
            }
            Live::Given(client, number, _) => {
                let clients = self.clients.as_ref().expect("the client that gave it");
                return clients.take_back(client, number, raw != 1);
            }
        };
        ended.unwrap_or_else(|error| panic!("P14: a live mapping was not whole: {error}"));
    }

    /// Whether others may share its pages, so that no address tells it from theirs.
    fn is_shared(&self, mapping: &Mapping) -> bool {
        let shared = self.domain.domain().shared();
        shared.is_some_and(|shared| shared.overlaps(&mapping.range()))
    }

    /// A CPU: maps, unmaps, hands over; what it still holds is ended at last.
    pub fn cpu(&self, seed: u64, ops: u64, most: usize, end: &End) {
        let mut random = Random(seed);
        let mut held: Vec<Live> = Vec::new();
        for op in 0..ops {
            thread::yield_now(); // threads of a host take turns by the millisecond otherwise
            if random.below(4) == 0
                && let Ok(live) = end.1.try_recv()
            {
                self.end(live, random.below(4));
            }
            if held.len() >= most || !held.is_empty() && random.below(3) == 0 {
                let live = held.swap_remove(random.below(held.len() as u64) as usize);
                match random.below(3) {
                    0 => end
                        .0
                        .send(live)
                        .unwrap_or_else(|_| unreachable!("both ends live")),
                    _ => match random.below(4) {
                        3 => {
                            held.push(live);
                            self.end_together(held.drain(..));
                        }
                        raw => self.end(live, raw),
                    },
                }
                continue;
            }
            if let Some(live) = self.begin(&mut random, seed << 32 | op << 4) {
                self.heat(live.range());
                held.push(live);
            }
        }
        self.end_together(held.drain(..));
    }

    /// Ends the mappings among them by two calls, the first of which is finished last, those of
    /// clients by one each, and all else one by one.
    fn end_together(&self, lives: impl Iterator<Item = Live>) {
        let (mut mappings, mut placed) = (Vec::new(), Vec::new());
        for live in lives {
            self.heat(live.range());
            match live {
                Live::Mapped(mapping) => mappings.push(mapping),
                Live::Placed(client, mapping) => placed.push((client, mapping)),
                other => self.end(other, 1),
            }
        }
        if let Some(clients) = &self.clients {
            clients.end_together(placed);
        }
        let half = mappings.split_off(mappings.len() / 2);
        let pending = self.domain.unmap_start(&mut mappings.into_iter());
        let ended = self.domain.unmap_batch(&mut half.into_iter());
        let ended = ended.and(pending.finish().map(drop));
        ended.unwrap_or_else(|error| panic!("P14: a live mapping was not whole: {error}"));
    }

    /// Maps something, of the physical pages from `fresh`.
    fn begin(&self, random: &mut Random, fresh: u64) -> Option<Live> {
        // where buffers may share pages, they do; and then these had better be unowned frames
        let memory = self.clients.as_ref().map_or(0x20, Clients::first_page);
        let fresh = match self.domain.domain().shared() {
            Some(_) => memory + random.below(4),
            // a typed buffer's frame may have any number that the platform has: these are beyond
            None if self.clients.is_some() => BEYOND_FRAMES + (fresh & 0xff_ffff_ffff),
            None => fresh & 0xff_ffff_ffff,
        };
        let direction = [
            Direction::ToDevice,
            Direction::FromDevice,
            Direction::Bidirectional,
        ][random.below(3) as usize];
        let d = &self.domain;
        if let Some(clients) = &self.clients
            && random.below(4) > 0
        {
            let list = [
                buffer(fresh, 1),
                inside(random, fresh + 1),
                buffer(fresh + 4, 2),
            ];
            let list = match random.below(3) {
                0 => &list[..1],
                1 => &list[1..2],
                _ => &list[..],
            };
            let client = random.below(clients.len() as u64) as usize;
            if random.below(3) == 0 {
                let (number, range) = clients.give(client, 1 + random.below(2), direction)?;
                return Some(Live::Given(client, number, range));
            }
            let mapping = clients.map(client, list, direction)?;
            return Some(Live::Placed(client, mapping));
        }
        match random.below(8) {
            0 => {
                let len = ByteCount(GRANULE * (1 + random.below(2)));
                self.taken(d.alloc_consistent(len)).map(Live::Memory)
            }
            1 => {
                let at = IovaPage(self.span.first.0 + random.below(self.span.pages.0));
                let pages = 1 + random.below(4);
                let buffer = buffer(fresh, pages);
                self.taken(d.map_at(at.addr(), buffer, direction))
                    .map(Live::Mapped)
            }
            2 | 3 => {
                let list = [buffer(fresh, 1), buffer(fresh + 4, 3), buffer(fresh + 2, 1)];
                let segments = 2 + random.below(2) as usize;
                self.taken(d.map_list(&list[..segments], direction))
                    .map(Live::Mapped)
            }
            _ => {
                let inside = inside(random, fresh);
                self.taken(d.map(inside, direction)).map(Live::Mapped)
            }
        }
    }

    /// A device: accesses of both kinds, some given up half way, some overlapping others.
    pub fn device(&self, source: SourceId, seed: u64, ops: u64) {
        let mut random = Random(seed);
        let unit = self.rig.machine.machine().unit();
        for op in 0..ops {
            if op % 8 == 0 {
                thread::yield_now();
            }
            let kind = [AccessKind::Read, AccessKind::Write][random.below(2) as usize];
            let mut slow = unit.begin(source, self.target(&mut random), kind);
            for _ in 0..random.below(4) {
                if slow.step() == Step::Ready {
                    break;
                }
            }
            if random.below(3) == 0 {
                let _ = self
                    .rig
                    .access_by(source, self.target(&mut random), AccessKind::Read);
            }
            match random.below(8) {
                0 => drop(slow),
                _ => drop(slow.finish()),
            }
        }
    }

    /// The host's timer, 3 ms apart.
    pub fn ticker(&self, ticks: u64) {
        for tick in 1..=ticks {
            let now = TimeNs(3_000_000 * tick);
            if let Some(clients) = &self.clients {
                clients.tick(now);
            }
            let report = self.domain.tick(now).expect("a tick");
            assert!(report.drained <= 4, "P11: {report:?}");
            self.rig.machine.machine().platform().relax();
        }
    }

    /// The unit's own work, until `over` says so and nothing is left.
    pub fn unit(&self, over: impl Fn() -> bool) {
        let machine = self.rig.machine.machine();
        loop {
            match machine.unit().service() {
                Progress::Did => {}
                _ if over() => return,
                _ => machine.platform().relax(),
            }
        }
    }

    /// When all is over: what was handed over and not fetched is ended, then everything is checked.
    pub fn check(self, ends: [End; 2], context: &str) -> Checked {
        let unit = self.rig.machine.machine().unit();
        unit.set_processing(Processing::Inline);
        for end in &ends {
            end.fetch_all().for_each(|live| self.end(live, 1));
        }
        self.finish(context)
    }

    /// Checks the oracle (P1 to P6, P8, P9, P14) and the audits (P10), ends the domain and the
    /// machine: every frame is back.
    pub fn finish(self, context: &str) -> Checked {
        let machine = self.rig.machine.machine();
        let platform: Arc<_> = machine.platform().clone();
        machine.unit().set_processing(Processing::Inline);
        if let Some(clients) = self.clients {
            clients.close(&self.rig, context);
        }
        let audit = self.domain.domain().audit();
        let audit = audit.unwrap_or_else(|e| panic!("{context}: P10: {e}"));
        assert_eq!(audit.stats.live, PageCount(0), "{context}: P10");
        self.domain.domain().flush().expect("a flush");
        let after = self.domain.domain().audit();
        let after = after.unwrap_or_else(|e| panic!("{context}: P10: {e}"));
        assert_eq!(after.usage.allocated, PageCount(0), "{context}: P10");
        self.domain.close(&[]).expect("closed");
        machine
            .unit()
            .audit()
            .unwrap_or_else(|e| panic!("{context}: the unit: {e}"));
        let summary = self.rig.machine.oracle().summary();
        assert!(summary.violations.is_empty(), "{context}: {summary}");
        self.rig.machine.into_machine().shut_down().expect("off");
        let left = platform.inner().inner().frames_in_use();
        assert_eq!(left, 0, "{context}: P10: frames not given back");
        Checked {
            maps: audit.stats.maps,
            succeeded: summary.succeeded,
            blocked: summary.accesses - summary.succeeded,
            stale: summary.stale,
        }
    }
}

/// Up to two granules and a half, somewhere in `page` and what follows.
fn inside(random: &mut Random, page: u64) -> PhysRange {
    PhysRange::new(
        PhysAddr(PhysPage(page).addr().0 + random.below(2) * 0x800),
        ByteCount(1 + random.below(2 * GRANULE)),
    )
}

/// How much a run did, to show that it did something.
#[derive(Clone, Copy, Default, Debug)]
pub struct Checked {
    pub maps: u64,
    pub succeeded: u64,
    pub blocked: u64,
    pub stale: u64,
}

impl Checked {
    pub fn add(&mut self, other: Checked) {
        self.maps += other.maps;
        self.succeeded += other.succeeded;
        self.blocked += other.blocked;
        self.stale += other.stale;
    }
}
