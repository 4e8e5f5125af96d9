// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The second tier: chunks of memory that are mapped once and handed out by the page, when the
//! classes are full.
//!
//! A chunk has one permission, a number among those of that permission, and [`CHUNK_PAGES`] pages;
//! a bit of one word says of each whether it is taken. Of a chunk that devices only write, a bit of
//! another says of a page that all of it was zeroed when its last user left: a run of such needs no
//! zeroing when it is taken. Chunks are added as they are needed, up to a bound, and go, with the
//! tables that they fill, when no run of their permission was taken in an idle interval and none
//! is.
//!
//! Locking: each permission's list has a lock, held to take and to give a run, and to add or remove
//! a chunk, which is made and ended outside, while its place in the list is kept for it. Under it
//! at most `chunks_max` words are looked at. Which frames a chunk has is for the holders of its
//! runs to read; they get those through the lock.

use super::{
    class::{KINDS, PERMS, install_fresh, list_of, open_tables},
    config::CHUNK_PAGES,
    frame_table::{FrameTable, SlotFrames},
    stats::Lack,
    window::Extent,
};
use crate::{
    domain::{Domain, MapError, Region, free, zeroed_frames},
    iova::Limits,
    platform::{
        room::{Larger, with_room},
        *,
    },
    translator::Translator,
    units::*,
};
use alloc::vec::Vec;
use core::mem::{replace, take};

/// All pages of a chunk taken.
const ALL: u64 = u64::MAX;
const _: () = assert!(CHUNK_PAGES.0 == ALL.count_ones() as u64);

/// The chunks of one pool.
pub(crate) struct Chunks<P: Platform> {
    lists: [P::Lock<List>; KINDS],
    /// Those of each permission behind each other.
    frames: FrameTable<P>,
    max: u32,
}

struct List {
    /// By the numbers of the chunks.
    places: Vec<Place>,
    /// Whether a run was taken since the last tick that asked.
    used: bool,
    lost: u64,
}

enum Place {
    Vacant,
    /// A chunk is being made, or ended.
    Changing,
    Chunk(Chunk),
}

struct Chunk {
    region: Region,
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
    /// The number of the chunk.
    number: u32,
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
    fn take(&mut self, number: u32, pages: u32, perm: Perm) -> Option<Run> {
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
            number,
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

impl List {
    fn chunks(&mut self) -> impl Iterator<Item = (u32, &mut Chunk)> {
        let places = (0..).zip(&mut self.places);
        places.filter_map(|(number, place)| match place {
            Place::Chunk(chunk) => Some((number, chunk)),
            _ => None,
        })
    }
    /// A place for one more chunk, among `max`.
    fn begin(&mut self, max: u32) -> Result<Found, Larger<Place>> {
        let vacant = |place: &Place| matches!(place, Place::Vacant);
        let number = match self.places.iter().position(vacant) {
            Some(number) => number,
            None if self.places.len() == max as usize => return Ok(Found::Full),
            None => {
                let number = self.places.len();
                if let Some(larger) = Larger::of(&self.places, number + 1) {
                    return Err(larger);
                }
                self.places.push(Place::Vacant);
                number
            }
        };
        self.places[number] = Place::Changing;
        Ok(Found::Place(number as u32))
    }
}

/// What there is for a request.
enum Found {
    Run(Run),
    /// No pages, but a place for a chunk of this number.
    Place(u32),
    Full,
}

impl<P: Platform> Chunks<P> {
    pub fn new(max: u32) -> Self {
        let list = || {
            P::Lock::new(List {
                places: Vec::new(),
                used: false,
                lost: 0,
            })
        };
        Chunks {
            lists: [list(), list(), list()],
            frames: FrameTable::new(CHUNK_PAGES.0.ilog2(), KINDS as u32 * max),
            max,
        }
    }

    /// The frames of a run.
    #[inline]
    pub fn frames<'p>(&self, p: &'p P, run: &Run) -> SlotFrames<'p, P::A64> {
        let (first, end) = (run.first as usize, (run.first + run.pages) as usize);
        SlotFrames(&self.frames.of(p, self.slot(run.perm, run.number))[first..end])
    }

    /// The place of a chunk's frames.
    fn slot(&self, perm: Perm, number: u32) -> u32 {
        list_of(perm) as u32 * self.max + number
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
        let found = with_room(
            list,
            |list| &mut list.places,
            |list| {
                list.used = true;
                let run = list
                    .chunks()
                    .find_map(|(n, chunk)| chunk.take(n, pages, perm));
                run.map_or_else(|| list.begin(self.max), |run| Ok(Found::Run(run)))
            },
        );
        let number = match found? {
            Found::Run(run) => return Ok(run),
            Found::Full => return Err(Lack::Full),
            Found::Place(number) => number,
        };
        let made = self.make(domain, limits, perm, number);
        let (place, run) = match made {
            Ok(mut chunk) => {
                let run = chunk.take(number, pages, perm).ok_or(Lack::TooLarge); // they fit
                (Place::Chunk(chunk), run)
            }
            Err(why) => (Place::Vacant, Err(why)),
        };
        list.with(|list| {
            list.places[number as usize] = place;
            list.lost += u64::from(matches!(run, Err(Lack::Invalidate(_))));
        });
        run
    }

    /// The pages are free again; what is zero of them, if devices only write there.
    pub fn give(&self, run: Run, extent: Extent) {
        let list = &self.lists[list_of(run.perm)];
        list.with(|list| match list.places.get_mut(run.number as usize) {
            Some(Place::Chunk(chunk)) => chunk.give(&run, extent),
            _ => debug_assert!(false, "a chunk with taken pages stays"),
        });
    }

    fn make<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        limits: Limits,
        perm: Perm,
        number: u32,
    ) -> Result<Chunk, Lack> {
        let p = &**domain.platform();
        let slot = self.slot(perm, number);
        if !self.frames.make_room(p, slot) {
            return Err(Lack::NoFrame);
        }
        let made = self.map(domain, limits, perm, slot);
        if made.is_err() {
            self.frames.forget(p, slot);
        }
        Ok(made?)
    }

    /// Maps a chunk's frames, for which there is room in `slot`.
    fn map<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        limits: Limits,
        perm: Perm,
        slot: u32,
    ) -> Result<Chunk, MapError> {
        let p = &**domain.platform();
        let fresh = zeroed_frames(p, CHUNK_PAGES)?;
        let region = match open_tables(domain, CHUNK_PAGES, 0, limits) {
            Ok(region) => region,
            Err(why) => {
                free(p, fresh);
                return Err(why);
            }
        };
        let part = IovaRange::new(region.range().first, CHUNK_PAGES);
        match install_fresh(domain, &region, part, fresh, perm) {
            Ok(fresh) => {
                self.frames.put(p, slot, fresh);
                Ok(Chunk {
                    region,
                    taken: 0,
                    zeroed: ALL,
                })
            }
            // caches may hold any of it: the region stays allocated
            Err(error @ MapError::Invalidate(_)) => Err(error),
            Err(error) => {
                let _ = domain.close_region(region); // quarantined if that fails
                Err(error)
            }
        }
    }

    /// Ends chunks without taken pages, of permissions that no request has asked for
    /// since the last call.
    pub fn trim<T: Translator<P>>(&self, domain: &Domain<P, T>) {
        for perm in PERMS {
            let list = &self.lists[list_of(perm)];
            loop {
                let idle = list.with(|list| {
                    if list.used {
                        return None;
                    }
                    let (number, _) = list.chunks().find(|(_, chunk)| chunk.taken == 0)?;
                    let place = &mut list.places[number as usize];
                    Some((number, replace(place, Place::Changing)))
                });
                let Some((number, place)) = idle else { break };
                let lost = self.end(domain, perm, number, place);
                list.with(|list| {
                    list.places[number as usize] = Place::Vacant;
                    list.lost += lost;
                });
            }
            list.with(|list| list.used = false);
        }
    }

    /// Ends all; mappings that live in them end too.
    pub fn close<T: Translator<P>>(self, domain: &Domain<P, T>) {
        for perm in PERMS {
            let places = self.lists[list_of(perm)].with(|list| take(&mut list.places));
            for (number, place) in (0..).zip(places) {
                self.end(domain, perm, number, place);
            }
        }
    }

    /// Unmaps what is in a place, flushes it, and gives everything back; returns how many chunks
    /// were lost instead.
    fn end<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        perm: Perm,
        number: u32,
        place: Place,
    ) -> u64 {
        let Place::Chunk(chunk) = place else { return 0 };
        let (p, slot) = (&**domain.platform(), self.slot(perm, number));
        let range = IovaRange::new(chunk.region.range().first, CHUNK_PAGES);
        let part = core::iter::once(range);
        let frames = self.frames.taken(p, slot);
        let revoked = domain.revoke_last(&chunk.region, part, (), frames);
        self.frames.forget(p, slot);
        let ended = revoked.and_then(|_| domain.close_region(chunk.region));
        u64::from(ended.is_err())
    }

    /// Where the pages are, and how many chunks were lost. Exact only while nothing
    /// else uses the pool.
    pub fn usage(&self) -> ChunkUsage {
        let mut usage = ChunkUsage::default();
        for list in &self.lists {
            list.with(|list| {
                usage.lost += list.lost;
                for (_, chunk) in list.chunks() {
                    usage.chunks += 1;
                    usage.taken.0 += u64::from(chunk.taken.count_ones());
                }
            });
        }
        usage.kept = PageCount(usage.chunks * CHUNK_PAGES.0 - usage.taken.0);
        usage
    }

    /// Bytes of bookkeeping, without the pages themselves.
    pub fn metadata(&self) -> u64 {
        let of = |list: &P::Lock<List>| list.with(|list| list.places.capacity());
        let places: usize = self.lists.iter().map(of).sum();
        self.frames.bytes() + (places * size_of::<Place>()) as u64
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
