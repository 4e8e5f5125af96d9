// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The DMA API's interface: a client of each placement, all in one domain and over one pool.

use crate::suite::{placements::*, rig::*};
use ioatlas_dma::{
    dma_api::*,
    domain::{BufferError, MapError},
    platform::{FreshFrame, Platform},
    table::{Format, InstallCause},
    units::*,
};
use ioatlas_viommu::{
    machine::Driver,
    oracle::{Failing, WatchedClient, WatchedDma, WatchedMapping, WatchedPlatform},
};
use std::sync::Arc;

/// How a crowd maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// By the domain's own calls.
    Domain,
    /// By the DMA API, and what that has not by the domain's.
    Dma,
}

impl Interface {
    /// Frames of a machine: bounce buffers take some.
    pub fn frames(self) -> usize {
        match self {
            Interface::Domain => 64,
            Interface::Dma => 512,
        }
    }
}

/// Pages of the drivers' own.
const MEMORY: usize = 24;

type Tables<B> = Arc<Driver<WatchedPlatform<Failing<B>>>>;
type Api<B, F> = WatchedDma<WatchedPlatform<Failing<B>>, F, Tables<B>>;
type Placing<B, F> = WatchedClient<WatchedPlatform<Failing<B>>, F, Tables<B>>;

/// A client of each placement.
pub struct Clients<B: Base, F: Format> {
    clients: Vec<Placing<B, F>>,
    dma: Api<B, F>,
    /// What drivers map: memory that the oracle has not seen allocated, so that it is nobody's but
    /// theirs.
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
            let config = ClientConfig {
                placement,
                ..ClientConfig::default()
            };
            dma.client(config).expect("a pool")
        };
        Clients {
            clients: PLACEMENTS.map(client).into(),
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
        match self.clients[client].map_sg(list, direction) {
            Ok(mapping) => Some(mapping),
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

    /// Ends it, by the token API or the address API.
    pub fn end(&self, client: usize, mapping: WatchedMapping, raw: u64) {
        let client = &self.clients[client];
        match raw {
            0 => client.unmap_raw(mapping).expect("P14: a live mapping"),
            _ => drop(client.unmap(mapping).expect("P14: a live mapping")),
        }
    }

    pub fn tick(&self, now: TimeNs) {
        self.dma.dma().tick(now);
    }

    /// When all mappings have ended: checks that no buffer is in use (P10), and ends the pools.
    pub fn close(self, rig: &Rig<B>, context: &str) {
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
        memory.for_each(|frame| rig.failing().frame_free(frame));
    }
}
