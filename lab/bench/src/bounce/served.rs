// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A domain with pools over an expensive translator, and a driver's operations on it.

use super::{expensive::Expensive, load::Load, policy::Policy};
use crate::{
    Failure, Subject,
    platform::{Slots, lend},
};
use ioatlas_dma::{
    design::Design,
    dma_api::{
        ClassConfig, Client, ClientConfig, Clock, Dma, DmaConfig, DmaMapping, PoolConfig, Route,
    },
    domain::Domain,
    platform::{Authority, CopyMemory, FreshFrame, Platform},
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

/// The tables under the charge.
pub type Tables = Paged<Host, VtdSecond48, Arc<Uncached<Host>>>;
/// The translator of all measurements.
pub type Dear = Expensive<Host, Tables>;

/// The design of every domain here: what is charged for an unmap has its invalidation in it,
/// and nothing is deferred.
const DESIGN: &str = "magazine,strict";
/// Slots of threads: two measure, and others may be there.
const SLOTS: usize = 16;
/// Frames for tables and for what pools keep beyond what is in flight.
const SPARE: usize = 1 << 12;
/// Log2 of the pages of the largest slot, 1 MiB, and how many slots each class has: more than any
/// load has in flight.
const LARGEST_LG2: u32 = 8;
const ENOUGH: u32 = 256;

/// Pools with room for whatever is in flight in a measured cell.
pub fn roomy() -> PoolConfig {
    let class = |pages_lg2| ClassConfig {
        pages_lg2,
        slots: ENOUGH,
    };
    let mut pool = PoolConfig::of(class(0));
    pool.classes.extend((1..=LARGEST_LG2).map(class));
    pool
}

/// This process's clock, from some beginning.
fn now() -> TimeNs {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let begun = BEGUN.get_or_init(Instant::now);
    TimeNs(begun.elapsed().as_nanos() as u64)
}

/// Memory of a driver: one run of frames.
pub struct Buffers {
    first: PhysPage,
    /// Kept for as long as a copy may go there.
    _frames: Vec<FreshFrame>,
}

impl Buffers {
    /// So many frames of a new platform.
    ///
    /// # Errors
    /// There are not as many that follow each other.
    fn new(platform: &Host, pages: PageCount) -> Result<Self, Failure> {
        let taken = (0..pages.0).map(|_| platform.frame_alloc());
        let frames: Option<Vec<FreshFrame>> = taken.collect();
        let frames =
            frames.ok_or_else(|| Failure::new(format!("no {pages} frames for buffers")))?;
        let first = frames.first().map_or(PhysPage(0), |frame| frame.page());
        let follows = |(nth, frame): (u64, &FreshFrame)| frame.page().0 == first.0 + nth;
        match (0..).zip(&frames).all(follows) {
            true => Ok(Buffers {
                first,
                _frames: frames,
            }),
            false => Err(Failure::new("the frames of a new platform are scattered")),
        }
    }
    /// The nth buffer of so many granules.
    fn nth(&self, nth: u64, pages: PageCount) -> PhysRange {
        let first = PhysPage(self.first.0 + nth * pages.0);
        PhysRange::new(first.addr(), ByteCount(pages.0 * GRANULE))
    }
}

/// Everything that a load needs, made for it.
#[allow(missing_docs)] // its fields say it
pub struct Served {
    /// The load that it was made for.
    pub load: Load,
    pub policy: Policy,
    /// The way to map.
    pub client: Client<Host, Dear>,
    buffers: Buffers,
}

/// A platform for a load: frames for its buffers and twice as many for slots.
fn platform(load: &Load, slots: usize) -> (Arc<Host>, PageCount) {
    let flying = load.block.pages().0 * (load.depth * load.threads) as u64;
    let frames = 3 * flying as usize + SPARE;
    let config = HostConfig::default().frames(frames).slots(slots);
    (Arc::new(Host::new(config)), PageCount(flying))
}

impl Served {
    /// A domain and pools of its own.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn new(load: Load, policy: Policy, pool: PoolConfig) -> Result<Self, Failure> {
        Self::with_slots(load, policy, pool, SLOTS)
    }

    /// The same on a platform of so many CPUs.
    pub fn with_slots(
        load: Load,
        policy: Policy,
        pool: PoolConfig,
        slots: usize,
    ) -> Result<Self, Failure> {
        let (platform, flying) = platform(&load, slots);
        let buffers = Buffers::new(&platform, flying)?;
        let design = Design::parse(DESIGN).map_err(Failure::new)?;
        let unit = Arc::new(Uncached::new());
        let tables: Tables = Paged::new(&platform, unit, design.tables).map_err(Failure::new)?;
        let translator = Expensive::new(tables, load.preset.charge());
        let domain = Domain::new(platform, translator, design.domain).map_err(Failure::new)?;
        let dma = Arc::new(Dma::new(
            Arc::new(domain),
            DmaConfig::default().pool(pool).clock(Clock(now)),
        ));
        let config = ClientConfig::default().placement(policy.placement());
        Ok(Served {
            load,
            policy,
            client: dma.client(config).map_err(Failure::new)?,
            buffers,
        })
    }

    /// What [`Policy::Adaptive`] has found for this load; `None` while it does not know,
    /// and of other policies.
    pub fn settled(&self) -> Option<Route> {
        let (pages, direction) = (self.load.block.pages(), self.load.direction.direction());
        let learned = self.client.dma().learned();
        let mut cells = learned.iter();
        let cell = cells.find(|cell| (cell.pages, cell.direction) == (pages, direction))?;
        cell.settled
    }

    /// The nth run of so many granules of the buffers.
    pub fn buffer(&self, nth: u64, pages: PageCount) -> PhysRange {
        self.buffers.nth(nth, pages)
    }

    /// Frames of its platform that are in use.
    pub fn frames_in_use(&self) -> usize {
        self.platform().frames_in_use()
    }

    fn platform(&self) -> &Arc<Host> {
        self.client.dma().domain().platform()
    }
}

/// The buffers of a thread: each operation that is in flight has its own, used again when
/// its operation is over.
pub struct Hand {
    thread: u64,
    done: u64,
}

impl Subject for Served {
    type Token = DmaMapping;
    type Hand = Hand;

    fn hand(&self, thread: usize) -> Hand {
        self.platform().enter();
        Hand {
            thread: thread as u64,
            done: 0,
        }
    }
    /// One operation, whatever `pages` says.
    #[inline]
    fn take(&self, hand: &mut Hand, _: PageCount) -> Result<DmaMapping, Failure> {
        let depth = self.load.depth as u64;
        let nth = hand.thread * depth + hand.done % depth;
        hand.done += 1;
        let buffer = self.buffers.nth(nth, self.load.block.pages());
        let mapped = self
            .client
            .map_single(lend(buffer), self.load.direction.direction());
        mapped.map_err(Failure::new)
    }
    #[inline]
    fn give(&self, _: &mut Hand, mapping: DmaMapping) -> Result<(), Failure> {
        self.client.unmap(mapping).map(drop).map_err(Failure::new)
    }
}

/// The copy itself: as many bytes, between as many buffers, with the platform's own
/// copy, and nothing else.
pub struct Copies {
    load: Load,
    platform: Arc<Host>,
    buffers: Buffers,
    slots: Buffers,
}

impl Copies {
    /// Buffers on both sides for all operations of a load that are in flight.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(load: Load) -> Result<Self, Failure> {
        let (platform, flying) = platform(&load, SLOTS);
        Ok(Copies {
            load,
            buffers: Buffers::new(&platform, flying)?,
            slots: Buffers::new(&platform, flying)?,
            platform,
        })
    }
}

impl Subject for Copies {
    type Token = u64;
    type Hand = Hand;

    fn hand(&self, thread: usize) -> Hand {
        self.platform.enter();
        Hand {
            thread: thread as u64,
            done: 0,
        }
    }
    #[inline]
    fn take(&self, hand: &mut Hand, _: PageCount) -> Result<u64, Failure> {
        let depth = self.load.depth as u64;
        let nth = hand.thread * depth + hand.done % depth;
        hand.done += 1;
        Ok(nth)
    }
    #[inline]
    fn give(&self, _: &mut Hand, nth: u64) -> Result<(), Failure> {
        let pages = self.load.block.pages();
        let (slot, buffer) = (self.slots.nth(nth, pages), self.buffers.nth(nth, pages));
        // SAFETY: slots and buffers are frames that were taken for them.
        #[allow(unsafe_code)]
        let by = unsafe { Authority::assume() };
        self.platform
            .copy(by, slot, buffer.addr)
            .map_err(Failure::new)
    }
}
