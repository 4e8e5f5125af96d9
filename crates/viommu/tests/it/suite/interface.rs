// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The DMA API's interface: a client of each placement, all in one domain and over one pool.

use crate::lend;
use crate::suite::{placements::*, rig::*};
use ioatlas_dma::{
    dma_api::*,
    domain::{BufferError, MapError},
    platform::{FreshFrame, Platform},
    table::{Format, InstallCause},
    units::*,
};
use ioatlas_viommu::{
    machine::WatchedUnit,
    oracle::{Failing, WatchedBuffer, WatchedClient, WatchedDma, WatchedMapping, WatchedPlatform},
};
use std::sync::{Arc, Mutex};

/// How a crowd maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// By the domain's own calls.
    Domain,
    /// By the same, and what is asked of the unit is combined.
    Combined,
    /// By the DMA API, and what that has not by the domain's.
    Dma,
}

impl Interface {
    /// Frames of a machine: bounce buffers take some.
    pub fn frames(self) -> usize {
        match self {
            Interface::Domain | Interface::Combined => 64,
            Interface::Dma => 512,
        }
    }
}

/// Pages of the drivers' own.
const MEMORY: usize = 24;

type Memory<B> = WatchedPlatform<Failing<B>>;
type Tables<B> = WatchedUnit<Failing<B>>;
type Api<B, F> = WatchedDma<Memory<B>, F, Tables<B>>;
type Placing<B, F> = WatchedClient<Memory<B>, F, Tables<B>>;

/// A typed buffer that its device has.
enum Given<B: Base> {
    To(WatchedBuffer<Memory<B>, ToDevice>),
    From(WatchedBuffer<Memory<B>, FromDevice>),
    Both(WatchedBuffer<Memory<B>, BothWays>),
}

impl<B: Base> Given<B> {
    fn runs(&self) -> &[IovaRange] {
        match self {
            Given::To(buffer) => buffer.runs(),
            Given::From(buffer) => buffer.runs(),
            Given::Both(buffer) => buffer.runs(),
        }
    }
}

/// Typed buffers of all CPUs. The locks are held across no call.
struct Typed<B: Base> {
    given: Mutex<Vec<Option<Given<B>>>>,
    /// Taken back, to be given again.
    back: Mutex<Vec<CpuBuffer<Memory<B>, BothWays>>>,
}

/// A client of each placement.
pub struct Clients<B: Base, F: Format> {
    clients: Vec<Placing<B, F>>,
    dma: Api<B, F>,
    typed: Typed<B>,
    /// What drivers map: memory that the oracle has not seen allocated, so that it is theirs alone.
    memory: Vec<FreshFrame>,
}

/// IOVA pages for a crowd and its pools, which take whole tables.
pub fn room<F: Format>() -> IovaRange {
    let whole = F::aperture();
    let pages = (16 * span::<F>()).max(256).min(whole.pages.0);
    IovaRange::new(whole.first, PageCount(pages))
}

impl<B: Base, F: Format> Clients<B, F> {
    /// Of `domain`.
    pub fn new(rig: &Rig<B>, domain: &Dom<B, F>) -> Self {
        let dma = domain.dma(tight(ON_DEMAND));
        let client = |placement| {
            let config = ClientConfig::default().placement(placement);
            dma.client(config).expect("a pool")
        };
        Clients {
            clients: PLACEMENTS.map(client).into(),
            typed: Typed {
                given: Mutex::default(),
                back: Mutex::default(),
            },
            memory: adjoining(rig.failing(), MEMORY),
            dma,
        }
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// The first page of the drivers' own memory.
    pub fn first_page(&self) -> u64 {
        self.memory[0].page().0
    }

    /// Maps as much memory as `list` has, of the drivers' own, if there is room.
    pub fn map(
        &self,
        client: usize,
        list: &[PhysRange],
        direction: Direction,
    ) -> Option<WatchedMapping> {
        let own = |buffer: &PhysRange| {
            let first = self.first_page();
            let page = first + buffer.addr.page().0 % (MEMORY as u64 - buffer.pages().0);
            let addr = PhysAddr(PhysPage(page).addr().0 + buffer.addr.offset());
            PhysRange::new(addr, buffer.len)
        };
        let list: Arc<[PhysRange]> = list.iter().map(own).collect();
        Self::taken(client, self.clients[client].map_sg(lend(list), direction))
    }

    /// What a map returned, or `None` where there was no room; all else is a bug.
    fn taken<T>(client: usize, result: Result<T, DmaMapError>) -> Option<T> {
        match result {
            Ok(taken) => Some(taken),
            Err(DmaMapError::NoSpace(_)) => None,
            Err(DmaMapError::Direct(MapError::NoIova(_) | MapError::NoFrame { .. })) => None,
            // where nothing is ever copied, inner edges cannot be mapped
            Err(
                DmaMapError::Buffer(BufferError::InnerEdge { .. })
                | DmaMapError::Direct(MapError::Buffer(_)),
            ) if PLACEMENTS[client] == Placement::Never => None,
            Err(DmaMapError::Direct(MapError::Install(e))) if e.cause == InstallCause::NoFrame => {
                None
            }
            Err(error) => panic!("{:?}: {error}", PLACEMENTS[client]),
        }
    }

    /// Gives a typed buffer of `pages` pages, or one that was taken back before from whichever
    /// client, if there is memory and room. Its number, and where it is.
    pub fn give(
        &self,
        client: usize,
        pages: u64,
        direction: Direction,
    ) -> Option<(usize, IovaRange)> {
        let again = locked(&self.typed.back).pop();
        let at = &self.clients[client];
        let buffer = again.or_else(|| at.buffer(ByteCount(pages * GRANULE)))?;
        let given = match direction {
            Direction::ToDevice => Self::taken(client, at.give(buffer.turned())).map(Given::To),
            Direction::FromDevice => Self::taken(client, at.give(buffer.turned())).map(Given::From),
            Direction::Bidirectional => Self::taken(client, at.give(buffer)).map(Given::Both),
        };
        let given = given?;
        let range = given.runs()[0];
        let mut all = locked(&self.typed.given);
        all.push(Some(given));
        Some((all.len() - 1, range))
    }

    /// Takes it back, and drops it, or keeps it to be given again.
    pub fn take_back(&self, client: usize, number: usize, drops: bool) {
        let given = locked(&self.typed.given)[number].take();
        let at = &self.clients[client];
        const LIVE: &str = "P14: a live mapping";
        let back = match given.expect("given once, and taken back once") {
            Given::To(buffer) => at.take_back(buffer).expect(LIVE).turned(),
            Given::From(buffer) => at.take_back(buffer).expect(LIVE).turned(),
            Given::Both(buffer) => at.take_back(buffer).expect(LIVE),
        };
        match drops {
            true => at.free(back),
            false => locked(&self.typed.back).push(back),
        }
    }

    /// Ends it, by the token API or the address API.
    pub fn end(&self, client: usize, mapping: WatchedMapping, raw: u64) {
        let client = &self.clients[client];
        match raw {
            0 => client.unmap_raw(mapping).expect("P14: a live mapping"),
            _ => drop(client.unmap(mapping).expect("P14: a live mapping")),
        }
    }

    /// Ends them by one call for each client that mapped some.
    pub fn end_together(&self, mut mappings: Vec<(usize, WatchedMapping)>) {
        for (nth, client) in self.clients.iter().enumerate() {
            let (its, others): (Vec<_>, Vec<_>) =
                mappings.into_iter().partition(|(of, _)| *of == nth);
            mappings = others;
            let ended = client.unmap_batch(&mut its.into_iter().map(|(_, mapping)| mapping));
            ended.expect("P14: live mappings");
        }
    }

    pub fn tick(&self, now: TimeNs) {
        self.dma.tick(now);
    }

    /// When all mappings have ended: checks that no buffer is in use (P10), and ends the pools.
    pub fn close(self, rig: &Rig<B>, context: &str) {
        drop(self.typed);
        let audit = self.dma.dma().audit();
        let audit = audit.unwrap_or_else(|e| panic!("{context}: P10: {e}"));
        for pool in audit {
            for (bytes, slots) in &pool.classes {
                let left = (slots.taken, slots.lost);
                assert_eq!(left, (0, 0), "{context}: P10: slots of {bytes}");
            }
            assert_eq!(pool.chunks.taken, PageCount(0), "{context}: P10");
        }
        assert_eq!(self.dma.dma().raw_mappings(), 0, "{context}: P10");
        let memory = self.memory.into_iter();
        memory.for_each(|frame| rig.failing().frame_free(crate::BY, frame));
    }
}
