// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Writes that the unit does not see yet: a chipset with write buffers (CAP.RWBF = 1, VT-d 4.1
//! §6.8).
//!
//! # Theory
//!
//! Walks read the tables *as they were at the last flush*. A flush copies every table that the root
//! table leads to, root table, context tables and second-stage tables of all domains; what a walk
//! then meets that was not among them reads as zeros. So
//!
//! - a map, or an attach, without a flush stays invisible: the device is blocked (P14);
//! - an unmap or a detach without one is undone by the next walk, however well the caches were
//!   invalidated: the device still gets through (P1), or through a freed table (P4).
//!
//! What flushes: the write-buffer flush command (GCMD.WBF), setting the root table pointer, and,
//! under [`FlushedByInvalidations`](WriteBuffers::FlushedByInvalidations), every context-cache and
//! IOTLB invalidation, which the specification obliges hardware to. The copy is made after the
//! command and before GSTS.WBFS drops, or before the invalidation removes anything; of two copies
//! the one that was begun later counts. The command is done where the queue is processed: at once,
//! by [`service`](SoftUnit::service), or never.
//!
//! Not handled: buffers that empty by themselves, at any moment or in part (every real one does:
//! this is the worst case), and buffers before the invalidation queue, whose descriptors are always
//! seen.

use crate::{
    config::{Features, Geometry, Processing, WriteBuffers},
    observe::Event,
    unit::{HARDWARE, SoftUnit, State},
};
use ioatlas_dma::{
    platform::{Atomic64, Lock, Ordering, PhysMemory, Platform},
    units::*,
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

/// Words of a page.
const WORDS: usize = 512;

/// Flushes asked for, and begun.
#[derive(Default)]
pub(crate) struct WriteBufferState {
    /// GSTS.WBFS: a flush was asked for.
    pub(crate) asked: bool,
    /// The root table pointer was set.
    pub(crate) root_changed: bool,
    begun: u64,
}

/// What walks see: the tables as of the last flush.
pub(crate) struct Seen {
    /// The number of the flush.
    at: u64,
    tables: Arc<Tables>,
}

impl Seen {
    /// Nothing, before the first flush. `None`: no write buffers.
    pub(crate) fn new<P: Platform>(buffers: WriteBuffers) -> Option<P::Lock<Seen>> {
        let empty = Seen {
            at: 0,
            tables: Arc::new(Tables::default()),
        };
        (buffers != WriteBuffers::None).then(|| P::Lock::new(empty))
    }
}

/// Table pages as they were at one moment, or rather each word at one moment of the copy.
#[derive(Default)]
struct Tables(BTreeMap<PhysPage, Vec<u64>>);

impl Tables {
    fn word(&self, table: PhysPage, index: usize) -> u64 {
        let page = self.0.get(&table);
        page.and_then(|words| words.get(index)).map_or(0, |w| *w)
    }

    /// Copies what the table in `root` leads to. What is not memory leads nowhere.
    fn reachable<P: Platform>(
        memory: &impl PhysMemory<P>,
        root: Option<PhysPage>,
        geometry: Geometry,
        features: &Features,
    ) -> Self {
        let mut tables = Tables::default();
        // second-stage tables by their level; above them context tables, and the root table
        let (contexts, top) = (geometry.levels + 1, geometry.levels + 2);
        let mut open: Vec<(PhysPage, u32)> = root.map(|table| (table, top)).into_iter().collect();
        let mut met: BTreeSet<(PhysPage, u32)> = open.iter().copied().collect();
        while let Some((table, level)) = open.pop() {
            let Some(words) = tables.copy(memory, table) else {
                continue;
            };
            let leads = |word: &&u64| match level {
                1 => false,
                _ if level >= contexts => **word & 1 != 0,
                _ => **word & 3 != 0 && (level > features.largest_leaf || **word & 1 << 7 == 0),
            };
            // root and context entries have two words each, the first of which points
            let step = if level >= contexts { 2 } else { 1 };
            let to = |word: &u64| PhysPage((word & ((1 << PHYS_BITS) - 1)) >> GRANULE_LG2);
            let next = words.iter().step_by(step).filter(leads).map(to);
            open.extend(
                next.map(|page| (page, level - 1))
                    .filter(|at| met.insert(*at)),
            );
        }
        tables
    }
    fn copy<P: Platform>(
        &mut self,
        memory: &impl PhysMemory<P>,
        table: PhysPage,
    ) -> Option<&Vec<u64>> {
        let load = |index| Some(memory.word(HARDWARE, table, index)?.load(Ordering::Acquire));
        Some(match self.0.entry(table) {
            Entry::Occupied(copied) => copied.into_mut(),
            Entry::Vacant(room) => room.insert((0..WORDS).map(load).collect::<Option<_>>()?),
        })
    }
}

impl State {
    /// Whether a flush is to be done by the code that processes the queue.
    fn flush_waits(&self) -> bool {
        let buffer = &self.write_buffer;
        (buffer.asked || buffer.root_changed) && self.queue.processing != Processing::Stuck
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// What a walk sees of a word: memory, or what was flushed there.
    pub(crate) fn seen_word(&self, table: PhysPage, index: usize) -> Option<u64> {
        let word = self.memory.word(HARDWARE, table, index)?;
        Some(match &self.seen {
            None => word.load(Ordering::Acquire),
            Some(seen) => seen.with(|seen| seen.tables.clone()).word(table, index),
        })
    }

    /// Does the flush that was asked for; returns whether there was one.
    pub(crate) fn flush_if_asked(&self) -> bool {
        let waits = self.seen.is_some() && self.state.with(|s| s.flush_waits());
        if waits {
            self.flush_write_buffers();
        }
        waits
    }

    /// An invalidation is about to begin.
    pub(crate) fn flush_before_invalidation(&self) {
        if self.features.write_buffers == WriteBuffers::FlushedByInvalidations {
            self.flush_write_buffers();
        }
    }

    fn flush_write_buffers(&self) {
        let Some(seen) = &self.seen else { return };
        let (number, asked, root) = self.state.with(|s| {
            let buffer = &mut s.write_buffer;
            buffer.begun += 1;
            buffer.root_changed = false;
            (buffer.begun, buffer.asked, s.registers.root)
        });
        let tables = Tables::reachable(&*self.memory, root, self.geometry, &self.features);
        let tables = Arc::new(tables);
        seen.with(|seen| {
            if seen.at < number {
                (seen.at, seen.tables) = (number, tables);
            }
        });
        self.state.with(|s| {
            s.write_buffer.asked &= !asked;
            s.stats.write_buffer_flushes += 1;
            s.emit(Event::WriteBuffersFlushed);
        });
    }
}
