// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The fast paths of map and unmap: what most calls are, without what few need.
//!
//! # Theory
//!
//! A single buffer without limits, an allocation cached in this CPU's magazine, leaves in one table
//! that this CPU knows ([`crate::table`]), and neither a policy nor a unit that needs anything of a
//! map: then map is one pinned section that takes the allocation, writes the leaves and counts. An
//! unmap whose token says where the leaves are clears them without a walk, and cannot detach a
//! table; under a deferred policy, where the queue has room, it is one pinned section that clears,
//! fences, stamps, queues and counts. Under `strict` one fence serves it and its own invalidation
//! ([`crate::invalidation::FlushSequence::flush_retired`]).
//!
//! **Whatever is not so is found before anything has been written**, and goes the slow path
//! (`map.rs`, `unmap.rs`) from the start: an allocation is looked at, its leaf table looked up, and
//! its leaves found absent, before it leaves the magazine; leaves are cleared when their place in
//! the queue is sure. So the fast paths hand nothing over. They call nothing, and take and return
//! what fits into registers: their callers pin the CPU and make the token, so that neither is saved
//! and copied on the way. A map that finds this CPU's magazine empty, or does not know its leaf
//! table, goes to the depot, walks, and goes on, out of line. The slow path of a map ends by
//! learning where its leaves are. (Leaves that are not absent are a bug of the code that made the
//! allocation, which the slow path says.)
//!
//! Nothing here writes a word that another CPU writes, but for those of the depot, the unit and,
//! where an invalidation starts, the domain's sequence.
//!
//! Locking: the magazine's lock is held while leaves are written; the queue's lock while leaves are
//! cleared, stamped and queued. Both are this CPU's own but for drains, and no lock is taken
//! inside. As everything in a queue is stamped under its lock, its order is that of the stamps.
//! While either is held, or the CPU pinned, at most as many leaves are written as a leaf table has,
//! less one.

use super::*;
use crate::{
    iova::{AllocKind, IovaAlloc, granted},
    policy::{CpuResource, Queued, Resource},
    table::{LeafAttrs, LeafTable},
};

/// How far the fast path of an unmap comes.
#[derive(Clone, Copy)]
enum Ended {
    Queued,
    /// And with that a batch, on this CPU.
    BatchFull(CpuIndex),
    /// Nowhere: nothing has happened.
    Nowhere,
}

/// The fast paths of a size class.
type FastPaths<P, T> = (
    fn(
        &Domain<P, T>,
        Cpu<'_>,
        PhysPage,
        PageCount,
        Direction,
        Lifetime,
    ) -> Option<(IovaPage, LeafTable)>,
    fn(&Domain<P, T>, Cpu<'_>, IovaAlloc, LeafTable, PageCount) -> Ended,
);

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// The fast paths by number of pages; what is known of the number is left out of each.
    const FAST_PATHS: [FastPaths<P, T>; 33] = {
        let mut fast_paths = [Self::fast_paths::<32>(); 33];
        let mut pages = 0;
        while pages <= 16 {
            fast_paths[pages] = match pages {
                0 | 1 => Self::fast_paths::<1>(), // there is no mapping of no pages
                2 => Self::fast_paths::<2>(),
                3..=4 => Self::fast_paths::<4>(),
                5..=8 => Self::fast_paths::<8>(),
                _ => Self::fast_paths::<16>(),
            };
            pages += 1;
        }
        fast_paths
    };
    const fn fast_paths<const MOST: usize>() -> FastPaths<P, T> {
        (Self::map_pages::<MOST>, Self::unmap_pages::<MOST>)
    }

    /// Maps one buffer without limits. Each size class has code of its own.
    #[inline(always)] // so that the token is made in its place
    pub(super) fn map_buffer(
        &self,
        buffer: PhysRange,
        direction: Direction,
        lifetime: Lifetime,
    ) -> Result<Mapping, MapError> {
        if buffer.len.0 == 0 || buffer.end().is_none() {
            return self.map_slow_unlimited(&{ buffer }, direction, lifetime);
        }
        let (to, pages) = (buffer.addr.page(), touched(&buffer));
        let fast_path = self.platform.try_pinned(|cpu| {
            if pages == PageCount(1) {
                return self.map_pages::<1>(cpu, to, pages, direction, lifetime);
            }
            match Self::FAST_PATHS.get(pages.0 as usize) {
                Some((map, _)) => map(self, cpu, to, pages, direction, lifetime),
                None => self.map_pages::<0>(cpu, to, pages, direction, lifetime),
            }
        });
        match fast_path.flatten() {
            Some((first, table)) => Ok(self.token(&buffer, first, table)),
            None => self.map_walking(&{ buffer }, direction, lifetime),
        }
    }

    /// A buffer that touches at most `MOST` pages, and more than half as many; or any number of
    /// pages if that is 0. Two registers come back, so that the token is made where it is to be.
    #[inline(never)] // callers have other uses for registers
    fn map_pages<const MOST: usize>(
        &self,
        cpu: Cpu<'_>,
        to: PhysPage,
        pages: PageCount,
        direction: Direction,
        lifetime: Lifetime,
    ) -> Option<(IovaPage, LeafTable)> {
        let known = |first| self.translator.knows(OURS, &cpu, first);
        let pages = if MOST == 1 { PageCount(1) } else { pages };
        self.map_fast::<MOST>(&cpu, to, pages, direction, lifetime, known)
    }

    /// The same, with an exchange of magazines where this CPU's is empty, and a walk to a leaf
    /// table that it does not know yet.
    #[cold]
    #[inline(never)]
    fn map_walking(
        &self,
        buffer: &PhysRange,
        direction: Direction,
        lifetime: Lifetime,
    ) -> Result<Mapping, MapError> {
        let p = &*self.platform;
        let (to, pages) = (buffer.addr.page(), touched(buffer));
        let fast_path = p.try_pinned(|cpu| {
            self.allocator.bring_to_hand(&cpu, pages);
            let found = |first| self.translator.get_to_know(OURS, p, &cpu, first);
            self.map_fast::<0>(&cpu, to, pages, direction, lifetime, found)
        });
        match fast_path.flatten() {
            Some((first, table)) => Ok(self.token(buffer, first, table)),
            None => self.map_slow_unlimited(buffer, direction, lifetime),
        }
    }

    /// Takes an allocation that is available, whose leaf table `table_of` knows, and writes its
    /// leaves; or nothing has happened.
    #[inline(always)]
    fn map_fast<const MOST: usize>(
        &self,
        cpu: &Cpu<'_>,
        to: PhysPage,
        pages: PageCount,
        direction: Direction,
        lifetime: Lifetime,
        table_of: impl FnOnce(IovaPage) -> Option<LeafTable>,
    ) -> Option<(IovaPage, LeafTable)> {
        let leaf = LeafAttrs {
            perm: direction.perm(),
            kind: AllocKind::Dynamic,
            lifetime,
        };
        if self.policy.minds_maps() {
            return None;
        }
        self.allocator
            .alloc_fast_with::<MOST, _>(cpu, pages, |alloc| {
                let table = table_of(alloc.first)?;
                let words = self.counters.of(cpu)?;
                let range = IovaRange::new(alloc.first, pages);
                let p = &*self.platform;
                let translator = &self.translator;
                if !translator.install_known::<MOST>(OURS, p, range, to, leaf, table) {
                    return None;
                }
                words.mapped(pages, alloc.pages);
                Some(table)
            })
    }

    /// Of a buffer that is mapped from page `first` on, by an allocation that was cached.
    #[inline(always)]
    fn token(&self, buffer: &PhysRange, first: IovaPage, table: LeafTable) -> Mapping {
        let range = IovaRange::new(first, granted(touched(buffer)));
        Mapping {
            iova: Iova(first.addr().0 | buffer.addr.offset()),
            len: buffer.len,
            key: self.key,
            table: Some(table),
            alloc: IovaAlloc::new(range, AllocKind::Dynamic),
        }
    }

    /// Ends a mapping. As with maps, each size class has code of its own.
    #[inline(always)]
    pub(super) fn unmap_token(&self, mapping: Mapping) -> Result<(), UnmapError> {
        if let (Policy::Deferred(_), Some(table)) = (&self.policy, self.leaf_table_of(&mapping)) {
            let pages = mapping.range().pages;
            let ended = self.platform.try_pinned(|cpu| {
                // the token ends with this, so there is one allocation still
                let alloc = mapping.alloc.duplicate();
                if pages == PageCount(1) {
                    return self.unmap_pages::<1>(cpu, alloc, table, pages);
                }
                match Self::FAST_PATHS.get(pages.0 as usize) {
                    Some((_, unmap)) => unmap(self, cpu, alloc, table, pages),
                    None => self.unmap_pages::<0>(cpu, alloc, table, pages),
                }
            });
            match ended {
                Some(Ended::Queued) => return Ok(()),
                Some(Ended::BatchFull(origin)) => return self.flush_batch(origin, mapping),
                Some(Ended::Nowhere) | None => {}
            }
        }
        self.unmap_strict_or_slow(mapping)
    }

    /// Under a deferred policy. The mapping of the allocation, which has at most `MOST` pages
    /// and more than half as many, has ended, unless this comes nowhere. Any number of pages
    /// if that is 0.
    #[inline(never)] // callers have other uses for registers
    fn unmap_pages<const MOST: usize>(
        &self,
        cpu: Cpu<'_>,
        alloc: IovaAlloc,
        table: LeafTable,
        pages: PageCount,
    ) -> Ended {
        let pages = if MOST == 1 { PageCount(1) } else { pages };
        let p = &*self.platform;
        let Policy::Deferred(queues) = &self.policy else {
            return Ended::Nowhere;
        };
        let range = IovaRange::new(alloc.range().first, pages);
        let Some(leaves) = self.translator.leaves_in(OURS, p, range, table) else {
            return Ended::Nowhere;
        };
        let queued = queues.push_fast(&cpu, || {
            let words = self.counters.of(&cpu)?;
            if !self.translator.clear_known::<MOST>(OURS, p, leaves) {
                return None;
            }
            words.unmapped(pages, alloc.range().pages);
            let what = CpuResource::alloc(cpu.index(), alloc);
            Some(self.sequence.retire(p, what, Scope::leaves(range)))
        });
        match queued {
            Some(Queued::Waits) => Ended::Queued,
            Some(Queued::BatchFull) => Ended::BatchFull(cpu.index()),
            None => Ended::Nowhere,
        }
    }

    /// Where the leaves of a mapping of this domain are, if the token says so.
    #[inline(always)]
    fn leaf_table_of(&self, mapping: &Mapping) -> Option<LeafTable> {
        if mapping.key != self.key {
            return None;
        }
        mapping.table
    }

    #[cold]
    #[inline(never)]
    fn flush_batch(&self, origin: CpuIndex, ended: Mapping) -> Result<(), UnmapError> {
        let Policy::Deferred(queues) = &self.policy else {
            return Ok(()); // never: a batch is full
        };
        let flushed = queues.flush_batch(&self.engine(), origin);
        flushed.map_err(|failed| self.failed(ended.range(), failed))
    }

    /// Under `strict`, or the slow path.
    #[inline(never)]
    fn unmap_strict_or_slow(&self, mapping: Mapping) -> Result<(), UnmapError> {
        match (&self.policy, self.leaf_table_of(&mapping)) {
            (Policy::Strict, Some(table)) => self.unmap_strict(mapping, table),
            (Policy::Deferred(_), Some(table)) => self.unmap_switched_or_slow(mapping, table),
            _ => self.unmap_slow(mapping),
        }
    }

    /// In a domain that has been switched to strict, or the slow path. By itself, so that `strict`
    /// does not pay for it.
    #[cold]
    #[inline(never)]
    fn unmap_switched_or_slow(&self, mapping: Mapping, table: LeafTable) -> Result<(), UnmapError> {
        match self.policy.is_strict() {
            true => self.unmap_strict(mapping, table),
            false => self.unmap_slow(mapping),
        }
    }

    #[inline(always)] // so that each has its own
    fn unmap_strict(&self, mapping: Mapping, table: LeafTable) -> Result<(), UnmapError> {
        let p = &*self.platform;
        let range = mapping.range();
        let leaves = self.translator.leaves_in(OURS, p, range, table);
        if !leaves.is_some_and(|leaves| self.translator.clear_known::<0>(OURS, p, leaves)) {
            return self.unmap_slow(mapping);
        }
        let owned = mapping.alloc.owned();
        let engine = self.engine();
        let flushed = engine.flush_retired(Resource::Iova(mapping.alloc), Scope::leaves(range));
        let origin = p.pinned(|cpu| {
            self.counters.unmapped(&cpu, range.pages, owned);
            cpu.index()
        });
        match flushed {
            Ok(flushed) => {
                engine.free(origin, flushed);
                Ok(())
            }
            Err(failed) => Err(self.failed(range, failed)),
        }
    }
}

/// The pages of a buffer that ends where memory may; of others, some number.
#[inline(always)]
fn touched(buffer: &PhysRange) -> PageCount {
    let end = buffer.addr.offset().wrapping_add(buffer.len.0);
    PageCount(end.wrapping_add(GRANULE - 1) >> GRANULE_LG2)
}
