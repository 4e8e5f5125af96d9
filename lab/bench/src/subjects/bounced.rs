// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A short operation through a bounce slot that is kept: what the DMA API adds to the copy, of
//! memory that is named by its addresses, and of slices.

use super::{Tables, dma_api};
use crate::{
    Failure, Subject,
    bounce::Way,
    platform::{Slots, lend},
};
use ioatlas_dma::{
    dma_api::{
        ClassConfig, Client, ClientConfig, DmaConfig, DmaMapping, MappedSlice, Placement,
        PoolConfig,
    },
    platform::ContiguousMemory,
    units::*,
};
use ioatlas_host::Host;
use std::sync::Arc;

/// Bytes of an operation: so few that their copy is a few instructions.
pub(super) const LEN: u64 = 64;
/// Slots, of a page each: more than any pattern that is counted has in flight.
const SLOTS: u32 = 2048;
/// A thread's buffers; a power of two.
pub(super) const BUFFERS: u64 = 2048;
const THREADS: u64 = 2;

/// Pools over real tables, under a unit that caches nothing. Pairs are `map_single`
/// and `unmap` under [`Placement::Always`].
pub struct Bounced {
    client: Client<Host, Tables>,
    way: Way,
    /// Contiguous memory of all threads' buffers.
    memory: PhysAddr,
}

impl Bounced {
    /// On `platform`.
    ///
    /// # Errors
    /// It is too small.
    pub fn new(platform: Arc<Host>, way: Way) -> Result<Self, Failure> {
        let frames = PageCount(THREADS * BUFFERS * LEN / GRANULE);
        let Some(memory) = platform.frames_alloc(frames) else {
            return Err(Failure::new(
                "a platform without contiguous memory for buffers",
            ));
        };
        Ok(Bounced {
            client: client(platform)?,
            way,
            memory: memory.run().first.addr(),
        })
    }
    #[inline]
    fn buffer(&self, hand: &mut Hand) -> PhysRange {
        let nth = hand.thread * BUFFERS + (hand.next & (BUFFERS - 1));
        hand.next += 1;
        PhysRange::new(PhysAddr(self.memory.0 + nth * LEN), ByteCount(LEN))
    }
}

pub(super) fn client(platform: Arc<Host>) -> Result<Client<Host, Tables>, Failure> {
    let pool = PoolConfig::of(ClassConfig {
        pages_lg2: 0,
        slots: SLOTS,
    });
    let config = DmaConfig::default().pool(pool);
    let dma = dma_api(platform, config)?;
    let config = ClientConfig::default().placement(Placement::Always);
    dma.client(config).map_err(Failure::new)
}

/// Which buffer comes next.
pub struct Hand {
    thread: u64,
    next: u64,
}

impl Subject for Bounced {
    type Token = DmaMapping;
    type Hand = Hand;

    fn hand(&self, thread: usize) -> Hand {
        self.client.dma().domain().platform().enter();
        Hand {
            thread: thread as u64 % THREADS,
            next: 0,
        }
    }
    #[inline]
    fn take(&self, hand: &mut Hand, _: PageCount) -> Result<DmaMapping, Failure> {
        let buffer = self.buffer(hand);
        let mapped = self.client.map_single(lend(buffer), self.way.direction());
        mapped.map_err(Failure::new)
    }
    /// As in a driver that keeps what it gets.
    #[inline(always)]
    fn take_into(
        &self,
        hand: &mut Hand,
        _: PageCount,
        place: &mut Option<DmaMapping>,
    ) -> Result<(), Failure> {
        let buffer = self.buffer(hand);
        match self.client.map_single(lend(buffer), self.way.direction()) {
            Ok(mapping) => {
                *place = Some(mapping);
                Ok(())
            }
            Err(why) => Err(Failure::new(why)),
        }
    }
    #[inline(always)]
    fn give(&self, _: &mut Hand, mapping: DmaMapping) -> Result<(), Failure> {
        self.client.unmap(mapping).map(drop).map_err(Failure::new)
    }
}

/// The same of slices: pairs are `map_slice` and `finish`. What a pattern has outstanding borrows
/// the client and the bytes, so neither ever ends.
pub struct Slices {
    client: &'static Client<Host, Tables>,
    way: Way,
}

impl Slices {
    /// On `platform`.
    ///
    /// # Errors
    /// It is too small.
    pub fn new(platform: Arc<Host>, way: Way) -> Result<Self, Failure> {
        let client = Box::leak(Box::new(client(platform)?));
        Ok(Slices { client, way })
    }
}

type Bytes = &'static mut [u8];

impl Subject for Slices {
    type Token = MappedSlice<'static, Bytes>;
    /// Those that are not mapped.
    type Hand = Vec<Bytes>;

    fn hand(&self, _: usize) -> Vec<Bytes> {
        self.client.dma().domain().platform().enter();
        let all = vec![0; (BUFFERS * LEN) as usize].leak();
        all.chunks_mut(LEN as usize).collect()
    }
    #[inline]
    fn take(&self, hand: &mut Vec<Bytes>, _: PageCount) -> Result<Self::Token, Failure> {
        let none = || Failure::new("no slice left");
        let bytes = hand.pop().ok_or_else(none)?;
        let mapped = self.client.map_slice(bytes, self.way.direction());
        mapped.map_err(Failure::new)
    }
    #[inline(always)]
    fn take_into(
        &self,
        hand: &mut Vec<Bytes>,
        pages: PageCount,
        place: &mut Option<Self::Token>,
    ) -> Result<(), Failure> {
        *place = Some(self.take(hand, pages)?);
        Ok(())
    }
    #[inline(always)]
    fn give(&self, hand: &mut Vec<Bytes>, mapped: Self::Token) -> Result<(), Failure> {
        hand.push(mapped.finish().map_err(Failure::new)?);
        Ok(())
    }
}
