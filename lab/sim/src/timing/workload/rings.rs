// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One CPU's rings.

use super::{
    mapper::{Mapper, MapsInOrder},
    scenario::Iovas,
};
use crate::{
    random::Random,
    timing::{Params, UnitRegisters},
};
use ioatlas_dma::{
    domain::{MapError, Mapping},
    platform::{Heap, HeapBlock},
    units::{ByteCount, CpuIndex, Direction, IovaPage, IovaRange, PageCount, PhysAddr, PhysRange},
};
use std::collections::VecDeque;

/// Physical address of the heap's first byte: above what tables use.
const HEAP_AT: u64 = 1 << 40;

/// The rings' own pages, two for each CPU: mapped for good, where no allocator comes to.
const RING_PAGES: u64 = 1 << 34;

/// Buffers that a device may reach.
struct Lent {
    blocks: Vec<HeapBlock>,
    mapping: Option<Mapping>,
}

pub(super) struct Rings<'a> {
    heap: &'a dyn Heap,
    mapper: &'a Mapper,
    receive: VecDeque<Lent>,
    send: VecDeque<Lent>,
    send_lag: usize,
    /// Room of a buffer, whatever is in it.
    room: ByteCount,
    /// Pages of a chunk, where rings map into such.
    chunk: Option<PageCount>,
    receive_chunk: Option<Box<dyn MapsInOrder + 'a>>,
    send_chunk: Option<Box<dyn MapsInOrder + 'a>>,
    /// Empty between reapings.
    reaped: Vec<Lent>,
    /// Of blocks, so that an operation allocates nothing on the host once warm.
    spare: Vec<Vec<HeapBlock>>,
    /// What sees the device's accesses, and the first of the rings' own two pages.
    watched: Option<(&'a UnitRegisters, IovaPage)>,
}

/// Whose descriptors a device reads.
#[derive(Clone, Copy)]
enum Ring {
    Receive = 0,
    Send = 1,
}

impl<'a> Rings<'a> {
    /// With the receive ring full, of `receive` buffers.
    pub fn new(
        heap: &'a dyn Heap,
        mapper: &'a Mapper,
        params: &Params,
        iovas: Iovas,
        receive: u64,
    ) -> Result<Self, MapError> {
        let mut rings = Rings {
            heap,
            mapper,
            receive: VecDeque::new(),
            send: VecDeque::new(),
            send_lag: params.send_lag as usize,
            room: ByteCount(params.buffer),
            chunk: match iovas {
                Iovas::Fresh | Iovas::Scattered => None,
                Iovas::InChunks(pages) => Some(pages),
            },
            receive_chunk: None,
            send_chunk: None,
            reaped: Vec::new(),
            spare: Vec::new(),
            watched: None,
        };
        for _ in 0..receive {
            let lent = rings.lend(rings.room, Direction::FromDevice)?;
            rings.receive.push_back(lent);
        }
        Ok(rings)
    }
    /// From now on `unit` is told what the device of `cpu` accesses: for each packet a page of the
    /// ring, for its descriptor, and the pages of the buffer.
    pub fn watched_by(&mut self, unit: &'a UnitRegisters, cpu: CpuIndex) {
        let own = IovaPage(RING_PAGES + 2 * cpu.0 as u64);
        self.watched = Some((unit, own));
    }
    /// The device has filled the `nth` buffer of the receive ring.
    pub fn filled(&self, nth: usize) {
        if let Some(lent) = self.receive.get(nth) {
            self.accessed(Ring::Receive, lent);
        }
    }
    /// What has come and gone is reaped by one call: so many packets, and of the pieces under way
    /// out all but as many as always are. Then the packets' buffers are replaced.
    pub fn reap(&mut self, packets: usize) -> Result<(), MapError> {
        self.end(packets, self.gone())
    }
    /// So many packets are reaped by one call, and their buffers replaced.
    pub fn reap_received(&mut self, packets: usize) -> Result<(), MapError> {
        self.end(packets, 0)
    }
    /// The same of the pieces under way out, where at least `pieces` have gone: a multiple of that.
    pub fn reap_sent(&mut self, pieces: usize) -> Result<(), MapError> {
        let gone = self.gone();
        self.end(0, gone - gone % pieces)
    }
    /// How many have gone out: all but as many as always are under way.
    fn gone(&self) -> usize {
        self.send.len().saturating_sub(self.send_lag)
    }
    fn end(&mut self, packets: usize, gone: usize) -> Result<(), MapError> {
        let packets = packets.min(self.receive.len());
        let mut reaped = std::mem::take(&mut self.reaped);
        reaped.extend(self.receive.drain(..packets));
        reaped.extend(self.send.drain(..gone));
        let mappings = reaped.iter_mut().filter_map(|lent| lent.mapping.take());
        self.mapper.unmap_batch(&mut { mappings });
        for lent in reaped.drain(..) {
            self.take_back(lent);
        }
        self.reaped = reaped;
        for _ in 0..packets {
            let fresh = self.lend(self.room, Direction::FromDevice)?;
            self.receive.push_back(fresh);
        }
        Ok(())
    }
    /// A piece of `bytes` goes out, and none is taken back before the next reaping.
    pub fn post(&mut self, bytes: ByteCount) -> Result<(), MapError> {
        let lent = self.lend(bytes, Direction::ToDevice)?;
        self.accessed(Ring::Send, &lent);
        self.send.push_back(lent);
        Ok(())
    }
    /// A packet has come; its buffer is replaced.
    pub fn receive(&mut self) -> Result<(), MapError> {
        self.filled(0);
        if let Some(filled) = self.receive.pop_front() {
            self.take_back(filled);
        }
        let fresh = self.lend(self.room, Direction::FromDevice)?;
        self.receive.push_back(fresh);
        Ok(())
    }
    /// A piece of `bytes` goes out, and an earlier one has gone.
    pub fn send(&mut self, bytes: ByteCount) -> Result<(), MapError> {
        let lent = self.lend(bytes, Direction::ToDevice)?;
        self.sent(lent);
        Ok(())
    }
    /// A list of `segments` pages goes out, and an earlier one has gone.
    pub fn send_list(&mut self, segments: u64) -> Result<(), MapError> {
        let mut blocks = self.spare.pop().unwrap_or_default();
        blocks.extend((0..segments).map(|_| self.block()));
        let list: Vec<PhysRange> = blocks.iter().map(|b| buffer(b, self.room)).collect();
        let mapping = self.mapper.map_list(&list, Direction::ToDevice)?;
        self.sent(Lent { blocks, mapping });
        Ok(())
    }
    /// All buffers come back.
    pub fn stop(mut self) {
        while let Some(lent) = self.receive.pop_front().or_else(|| self.send.pop_front()) {
            self.take_back(lent);
        }
    }

    fn accessed(&self, ring: Ring, lent: &Lent) {
        if let (Some((unit, own)), Some(mapping)) = (self.watched, &lent.mapping) {
            unit.accessed(IovaPage(own.0 + ring as u64));
            let IovaRange { first, pages } = mapping.range();
            (first.0..first.0 + pages.0).for_each(|page| unit.accessed(IovaPage(page)));
        }
    }
    fn sent(&mut self, lent: Lent) {
        self.accessed(Ring::Send, &lent);
        self.send.push_back(lent);
        if self.send.len() > self.send_lag
            && let Some(gone) = self.send.pop_front()
        {
            self.take_back(gone);
        }
    }
    fn lend(&mut self, bytes: ByteCount, direction: Direction) -> Result<Lent, MapError> {
        let block = self.block();
        let mapping = self.map(buffer(&block, bytes), direction)?;
        let mut blocks = self.spare.pop().unwrap_or_default();
        blocks.push(block);
        Ok(Lent { blocks, mapping })
    }
    fn map(
        &mut self,
        buffer: PhysRange,
        direction: Direction,
    ) -> Result<Option<Mapping>, MapError> {
        let Some(pages) = self.chunk else {
            return self.mapper.map(buffer, direction);
        };
        let open = match direction {
            Direction::FromDevice => &mut self.receive_chunk,
            _ => &mut self.send_chunk,
        };
        if let Some(chunk) = open {
            match chunk.map(buffer, direction) {
                Err(MapError::ChunkFull { .. }) => {}
                mapped => return mapped.map(Some),
            }
        }
        *open = self.mapper.chunk(pages)?;
        let mapped = open.as_mut().map(|chunk| chunk.map(buffer, direction));
        mapped.transpose()
    }
    fn block(&self) -> HeapBlock {
        let block = self.heap.alloc(self.room);
        block.expect("the heap has room for all rings")
    }
    fn take_back(&mut self, lent: Lent) {
        if let Some(mapping) = lent.mapping {
            self.mapper.unmap(mapping);
        }
        let mut blocks = lent.blocks;
        for block in blocks.drain(..) {
            self.heap.free(block).expect("allocated by this ring");
        }
        self.spare.push(blocks);
    }
}

/// Maps `count` buffers and ends them in an order of chance, so that free IOVAs lie so.
pub(super) fn scatter(
    heap: &dyn Heap,
    mapper: &Mapper,
    params: &Params,
    count: u64,
    random: &mut Random,
) -> Result<(), MapError> {
    let mut rings = Rings::new(heap, mapper, params, Iovas::Scattered, count)?;
    let all = rings.receive.make_contiguous();
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
    let mut mappings = all.iter_mut().filter_map(|lent| lent.mapping.take());
    mapper.unmap_batch(&mut mappings);
    rings.stop();
    Ok(())
}

fn buffer(block: &HeapBlock, bytes: ByteCount) -> PhysRange {
    PhysRange::new(PhysAddr(HEAP_AT + block.offset.0), bytes)
}
