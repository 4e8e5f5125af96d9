// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The second tier: chunks of memory that are mapped once and handed out by the page, when the
//! classes are full.
//!
//! A chunk has one permission and [`CHUNK_PAGES`] pages; a bit of one word says of each whether it
//! is taken. Of a chunk that devices only write, a bit of another says of a page that all of it was
//! zeroed when its last user left: a run of such needs no zeroing when it is taken. Chunks are
//! added as they are needed, up to a bound, and go, with the tables that they fill, when no run of
//! their permission was taken in an idle interval and none is.
//!
//! Locking: each permission's list has a lock, held to take and to give a run, and to add or remove
//! a chunk, which is made and ended outside. Under it at most `chunks_max` words are looked at.

use super::{
    class::open_tables, config::CHUNK_PAGES, pieces::Frames, single_use::zeroed_frames,
    stats::Lack, window::Extent,
};
use crate::{
    domain::{Domain, MapError, Region},
    iova::Limits,
    platform::*,
    translator::Translator,
    units::*,
};
use alloc::{sync::Arc, vec::Vec};

/// All pages of a chunk taken.
const ALL: u64 = u64::MAX;
const _: () = assert!(CHUNK_PAGES.0 == ALL.count_ones() as u64);

/// The chunks of one pool.
pub(crate) struct Chunks<P: Platform> {
    lists: [P::Lock<List>; 3],
    max: usize,
}

struct List {
    chunks: Vec<Chunk>,
    /// Those that exist, or are being made.
    count: usize,
    /// Whether a run was taken since the last tick that asked.
    used: bool,
    lost: u64,
}

struct Chunk {
    region: Region,
    frames: Arc<[PhysPage]>,
    taken: u64,
    /// Pages that were zero when they were given.
    zeroed: u64,
}

/// The right to use some pages of a chunk.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped run is taken for good"]
pub(crate) struct Run {
    /// Where the chunk begins.
    base: IovaPage,
    frames: Arc<[PhysPage]>,
    first: u32,
    pages: u32,
    pub perm: Perm,
    /// What is known of its bytes.
    pub extent: Extent,
}

impl Run {
    pub fn range(&self) -> IovaRange {
        let first = self.base.0 + u64::from(self.first);
        IovaRange::new(IovaPage(first), PageCount(u64::from(self.pages)))
    }
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) << GRANULE_LG2
    }
}

impl Frames for &Run {
    #[inline]
    fn frame(&self, nth: usize) -> PhysPage {
        self.frames[self.first as usize + nth]
    }
}

fn mask(first: u32, pages: u32) -> u64 {
    ALL >> (64 - pages) << first
}

/// The lowest of `pages` free bits in a row, of a word whose taken bits are ones. `pages`
/// is 1 to 64.
fn find_run(taken: u64, pages: u32) -> Option<u32> {
    // bit n stays as long as the bits from n on are all free
    let mut free = !taken;
    let mut known = 1;
    while known < pages {
        let step = known.min(pages - known);
        free &= free >> step;
        known += step;
    }
    (free != 0).then(|| free.trailing_zeros())
}

impl Chunk {
    fn take(&mut self, pages: u32, perm: Perm) -> Option<Run> {
        let first = find_run(self.taken, pages)?;
        let ours = mask(first, pages);
        self.taken |= ours;
        let bytes = u64::from(pages) << GRANULE_LG2;
        let extent = match self.zeroed & ours == ours {
            true => Extent::zeroed(perm, bytes),
            false => Extent::unknown(perm, bytes),
        };
        self.zeroed &= !ours;
        Some(Run {
            base: self.region.range().first,
            frames: self.frames.clone(),
            first,
            pages,
            perm,
            extent,
        })
    }
    fn give(&mut self, run: &Run, extent: Extent) {
        self.taken &= !mask(run.first, run.pages);
        // what devices may read is not zeroed; of the rest, what is zero to both ends of a page
        let first = extent.from.div_ceil(GRANULE as u32);
        let end = (extent.to / GRANULE as u32).min(run.pages);
        if run.perm == Perm::Write && first < end {
            self.zeroed |= mask(run.first + first, end - first);
        }
    }
}

fn list_of(perm: Perm) -> usize {
    match perm {
        Perm::Read => 0,
        Perm::Write => 1,
        Perm::ReadWrite => 2,
    }
}

impl<P: Platform> Chunks<P> {
    pub fn new(max: u32) -> Self {
        let list = || {
            P::Lock::new(List {
                chunks: Vec::new(),
                count: 0,
                used: false,
                lost: 0,
            })
        };
        Chunks {
            lists: [list(), list(), list()],
            max: max as usize,
        }
    }

    /// Whether chunks could ever have so many bytes.
    pub fn may_have(&self, bytes: u64) -> Result<(), Lack> {
        match self.max {
            0 => Err(Lack::Off),
            _ if bytes > CHUNK_PAGES.0 << GRANULE_LG2 => Err(Lack::TooLarge),
            _ => Ok(()),
        }
    }

    /// `bytes` in a row, in a chunk that may have to be added.
    pub fn take<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        limits: Limits,
        bytes: u64,
        perm: Perm,
    ) -> Result<Run, Lack> {
        self.may_have(bytes)?;
        let pages = bytes.div_ceil(GRANULE) as u32;
        let list = &self.lists[list_of(perm)];
        let may_grow = list.with(|list| {
            list.used = true;
            let mut chunks = list.chunks.iter_mut();
            if let Some(run) = chunks.find_map(|chunk| chunk.take(pages, perm)) {
                return Err(run);
            }
            let may = list.count < self.max;
            list.count += usize::from(may);
            Ok(may)
        });
        match may_grow {
            Err(found) => Ok(found),
            Ok(false) => Err(Lack::Full),
            Ok(true) => {
                let made = self.grow(domain, limits, perm);
                let mut chunk = made.inspect_err(|why| {
                    let lost = matches!(why, Lack::Invalidate(_));
                    list.with(|list| {
                        list.count -= 1;
                        list.lost += u64::from(lost);
                    });
                })?;
                let run = chunk.take(pages, perm).ok_or(Lack::TooLarge)?; // it is empty, and they fit
                self.add(list, chunk);
                Ok(run)
            }
        }
    }

    /// The pages are free again; what is zero of them, if devices only write there.
    pub fn give(&self, run: Run, extent: Extent) {
        self.lists[list_of(run.perm)].with(|list| {
            let mut chunks = list.chunks.iter_mut();
            let chunk = chunks.find(|chunk| chunk.region.range().first == run.base);
            debug_assert!(chunk.is_some(), "a chunk with taken pages stays");
            if let Some(chunk) = chunk {
                chunk.give(&run, extent);
            }
        });
    }

    fn add(&self, list: &P::Lock<List>, chunk: Chunk) {
        let mut room = Vec::with_capacity(self.max);
        list.with(|list| {
            if list.chunks.capacity() == 0 {
                core::mem::swap(&mut list.chunks, &mut room);
            }
            list.chunks.push(chunk);
        });
    }

    fn grow<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        limits: Limits,
        perm: Perm,
    ) -> Result<Chunk, Lack> {
        let p = &**domain.platform();
        let fresh = zeroed_frames(p, CHUNK_PAGES).ok_or(Lack::NoFrame)?;
        let region = match open_tables(domain, CHUNK_PAGES, 0, limits) {
            Ok(region) => region,
            Err(why) => {
                fresh.into_iter().for_each(|frame| p.frame_free(frame));
                return Err(why.into());
            }
        };
        let runs = fresh.iter().map(|f| PhysRun::new(f.page(), PageCount(1)));
        let part = IovaRange::new(region.range().first, CHUNK_PAGES);
        match domain.install_part(&region, part, runs, perm) {
            Ok(()) => {
                let frames = fresh.into_iter().map(|frame| frame.publish().page());
                Ok(Chunk {
                    region,
                    frames: frames.collect(),
                    taken: 0,
                    zeroed: ALL,
                })
            }
            Err(error @ MapError::Invalidate(_)) => {
                // caches may hold any of it: the region stays allocated
                domain.lose_frames(fresh.len() as u64);
                Err(error.into())
            }
            Err(error) => {
                fresh.into_iter().for_each(|frame| p.frame_free(frame));
                let _ = domain.close_region(region); // quarantined if that fails
                Err(error.into())
            }
        }
    }

    /// Ends chunks without taken pages, of permissions that no request has asked for
    /// since the last call.
    pub fn trim<T: Translator<P>>(&self, domain: &Domain<P, T>) {
        for list in &self.lists {
            loop {
                let idle = list.with(|list| {
                    if list.used {
                        return None;
                    }
                    let at = list.chunks.iter().position(|chunk| chunk.taken == 0)?;
                    Some(list.chunks.swap_remove(at))
                });
                let Some(chunk) = idle else { break };
                let lost = end(domain, chunk);
                list.with(|list| {
                    list.count -= 1;
                    list.lost += u64::from(lost);
                });
            }
            list.with(|list| list.used = false);
        }
    }

    /// Ends all; mappings that live in them end too.
    pub fn close<T: Translator<P>>(self, domain: &Domain<P, T>) {
        for list in self.lists {
            let chunks = list.with(|list| core::mem::take(&mut list.chunks));
            for chunk in chunks {
                end(domain, chunk);
            }
        }
    }

    /// Where the pages are, and how many chunks were lost. Exact only while nothing
    /// else uses the pool.
    pub fn usage(&self) -> ChunkUsage {
        let mut usage = ChunkUsage::default();
        for list in &self.lists {
            list.with(|list| {
                usage.chunks += list.chunks.len() as u64;
                usage.lost += list.lost;
                for chunk in &list.chunks {
                    usage.taken.0 += u64::from(chunk.taken.count_ones());
                }
            });
        }
        usage.kept = PageCount(usage.chunks * CHUNK_PAGES.0 - usage.taken.0);
        usage
    }

    /// Bytes of bookkeeping, without the pages themselves.
    pub fn metadata(&self) -> u64 {
        let frames = CHUNK_PAGES.0 * size_of::<PhysPage>() as u64 + size_of::<Chunk>() as u64;
        let of = |list: &P::Lock<List>| {
            list.with(|list| {
                list.chunks.len() as u64 * frames
                    + (list.chunks.capacity() * size_of::<usize>()) as u64
            })
        };
        self.lists.iter().map(of).sum()
    }
}

/// Unmaps a chunk, flushes it, and gives everything back; returns whether it was lost instead.
fn end<P: Platform, T: Translator<P>>(domain: &Domain<P, T>, chunk: Chunk) -> bool {
    let range = IovaRange::new(chunk.region.range().first, CHUNK_PAGES);
    let frames = chunk.frames.iter().map(|at| TableFrame::from_entry(*at));
    let part = core::iter::once(range);
    match domain.revoke_last(&chunk.region, part, (), frames) {
        Ok(_) => domain.close_region(chunk.region).is_err(),
        Err(_) => true,
    }
}

/// Where the pages of the second tier are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChunkUsage {
    /// Chunks that exist, each of [`CHUNK_PAGES`].
    pub chunks: u64,
    /// Pages that mappings use.
    pub taken: PageCount,
    /// Pages mapped and unused.
    pub kept: PageCount,
    /// Chunks given up after a failed invalidation.
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::find_run;
    use proptest::prelude::*;

    fn naive(taken: u64, pages: u32) -> Option<u32> {
        let free = |at: u32| taken >> at & 1 == 0;
        (0..=64 - pages).find(|first| (*first..first + pages).all(free))
    }

    proptest! {
        #[test]
        fn runs_are_those_that_a_search_bit_by_bit_finds(
            a in any::<u64>(), b in any::<u64>(), pages in 1..=64u32
        ) {
            for taken in [a, a & b, a | b, a & b & a.rotate_left(7)] {
                prop_assert_eq!(find_run(taken, pages), naive(taken, pages));
            }
        }
    }

    #[test]
    fn an_empty_word_has_every_run_and_a_full_one_none() {
        for pages in 1..=64 {
            assert_eq!(find_run(0, pages), Some(0));
            assert_eq!(find_run(u64::MAX, pages), None);
        }
    }
}
