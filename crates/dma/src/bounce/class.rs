// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One size class: a fixed number of slots in one IOVA range.
//!
//! # Theory
//!
//! Slot `n` has the `n`-th run of pages of the class's region for good, so IOVA and slot follow
//! from each other by arithmetic. A slot is in exactly one of these states:
//!
//! * *empty*: it has no memory, and nothing is mapped there. All are, at first.
//! * *kept*: it has memory, mapped with one permission, and no mapping of a client uses it. Its
//!   number is in the magazines of that permission.
//! * *taken*: as kept, but a client's mapping uses it. Its number is in a [`Slot`], which cannot be
//!   copied.
//! * *lost*: an invalidation of it failed; it is never used again, nor are its frames.
//!
//! From kept or taken to empty, and from one permission to another, a slot goes by
//! [`Domain::revoke`] alone: the invalidation has completed before its frames are free or mapped
//! again.
//!
//! What is known of a slot's bytes ([`Extent`]) goes with its number, from magazine to mapping and
//! back: so CPUs that use different slots write no word in common, and no line. The region is whole
//! page tables where there are IOVAs for that. When the last slot has lost its memory, all of it is
//! cleared at once, and its tables go too.
//!
//! Locking: taking and giving a kept slot is one push or pop of this CPU's magazine. Everything
//! else is rare, and takes the lock of `empty` by itself. That a look at all magazines was in vain
//! is a hint in a relaxed word. A slot's frames belong to the holder of its number; numbers change
//! hands through locks, so relaxed accesses do.

mod account;

pub use account::SlotUsage;

use super::{
    config::{ClassConfig, SLOT_PAGES_LG2_MAX, SLOTS_MAX},
    frame_table::{FrameTable, SlotFrames},
    pieces::zero_bytes,
    window::Extent,
};
use crate::{
    domain::{Domain, MapError, Region, free, zeroed_frames},
    invalidation::InvalidateError,
    iova::Limits,
    magazine::{MagazineSizes, Magazines, Rack, Shelf},
    platform::*,
    translator::Translator,
    units::*,
};
use alloc::vec::Vec;
use core::mem::take;

/// Pages of a leaf table, as log2, where tables have 512 entries; elsewhere some of them stay, or
/// more go at once.
const TABLE_LG2: u32 = 9;
/// Address spaces of less, 32 bits, are too small for that.
const WIDE: PageCount = PageCount(1 << 20);

/// Permissions, in the order of their lists.
pub(super) const PERMS: [Perm; KINDS] = [Perm::Read, Perm::Write, Perm::ReadWrite];

/// The number of a permission's list.
pub(super) fn list_of(perm: Perm) -> usize {
    match perm {
        Perm::Read => 0,
        Perm::Write => 1,
        Perm::ReadWrite => 2,
    }
}

/// Words that are kept for CPUs: slots, and what else a pool keeps.
pub(crate) type WordRack<P> = Rack<P, u64>;
pub(crate) type WordShelf<P> = Shelf<P, u64>;
pub(crate) type Words<P> = Magazines<P, u64, WordShelf<P>>;

/// Slots that lose their memory in one tick.
const TRIM_MAX: usize = 128;

/// Kinds in it that a class has.
pub(crate) const KINDS: usize = 3;

/// The slots of one size.
pub(crate) struct Class<P: Platform> {
    pages: PageCount,
    slots: u32,
    region: Region,
    frames: FrameTable<P>,
    kept: [Words<P>; KINDS],
    unmapped: P::Lock<Unmapped>,
    /// For how many more operations the look at other CPUs' magazines is skipped.
    bare: P::A64,
}

/// What is known of the other slots while some are revoked.
enum Rest {
    /// They are not mapped, and are not to be meanwhile.
    Unmapped,
    Unknown,
}

/// The numbers of slots that are not mapped.
struct Unmapped {
    /// Those that are lost first, then those that are empty. It has room for all.
    slots: Vec<u32>,
    lost: usize,
}

impl Unmapped {
    fn empty(&self) -> &[u32] {
        &self.slots[self.lost..]
    }
    fn pop_empty(&mut self) -> Option<u32> {
        (self.slots.len() > self.lost).then(|| self.slots.pop())?
    }
    fn push_lost(&mut self, index: u32) {
        self.slots.push(index);
        let last = self.slots.len() - 1;
        self.slots.swap(self.lost, last);
        self.lost += 1;
    }
}

/// For so many operations after a look at all CPUs' magazines in vain: a slot that another CPU gets
/// back meanwhile is found that much later.
const BARE: u64 = 32;

/// The right to use one slot.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped slot is taken for good"]
pub(crate) struct Slot {
    pub class: u8,
    pub perm: Perm,
    pub kept: Kept,
}

/// A slot in a magazine, in one word: its number, of 16 bits, and its extent, whose ends
/// are up to 2^20.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept(u64);

const END_BITS: u32 = 21;
const _: () = assert!(GRANULE << SLOT_PAGES_LG2_MAX < 1 << END_BITS);
const _: () = assert!((SLOTS_MAX as u64 - 1) << (2 * END_BITS) < 1 << 63);

impl Kept {
    #[inline]
    pub fn new(index: u32, extent: Extent) -> Self {
        let ends = u64::from(extent.from) << END_BITS | u64::from(extent.to);
        Kept(u64::from(index) << (2 * END_BITS) | ends)
    }
    #[inline]
    pub fn index(self) -> u32 {
        (self.0 >> (2 * END_BITS)) as u32
    }
    #[inline]
    pub fn extent(self) -> Extent {
        let end = |word: u64| word as u32 & ((1 << END_BITS) - 1);
        Extent {
            from: end(self.0 >> END_BITS),
            to: end(self.0),
        }
    }
}

/// Why a class has no slot to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSlot {
    /// Every slot is taken.
    Full,
    /// There is no memory for one.
    NoFrame,
    /// It could not be mapped.
    Map(MapError),
}

impl From<MapError> for NoSlot {
    fn from(error: MapError) -> Self {
        match error {
            MapError::NoFrame { .. } => NoSlot::NoFrame,
            error => NoSlot::Map(error),
        }
    }
}

/// A region of whole page tables, whose slots lie at multiples of their size; one that is neither
/// where there are no IOVAs for that.
pub(super) fn open_tables<P: Platform, T: Translator<P>>(
    domain: &Domain<P, T>,
    pages: PageCount,
    pages_lg2: u32,
    limits: Limits,
) -> Result<Region, MapError> {
    let open = |pages, align_lg2| {
        let aligned = Limits {
            align_lg2,
            ..limits
        };
        domain.open_region(pages, aligned)
    };
    // where addresses are few, none are wasted
    let is_wide = limits.end.is_none_or(|end| end.0 >= WIDE.0) && domain.usage().aperture >= WIDE;
    if is_wide {
        let tables = PageCount(pages.0.next_multiple_of(1 << TABLE_LG2));
        if let Ok(region) = open(tables, TABLE_LG2) {
            return Ok(region);
        }
    }
    open(pages, pages_lg2).or_else(|_| open(pages, 0))
}

/// Maps `part` of a region to `fresh`, which comes back. Where it fails, the frames have been
/// freed, or are lost where [`Domain::install_part`] could not flush.
pub(super) fn install_fresh<P: Platform, T: Translator<P>>(
    domain: &Domain<P, T>,
    region: &Region,
    part: IovaRange,
    fresh: Vec<FreshFrame>,
    perm: Perm,
) -> Result<Vec<FreshFrame>, MapError> {
    let runs = fresh.iter().map(|f| PhysRun::new(f.page(), PageCount(1)));
    let Err(error) = domain.install_part(region, part, runs, perm) else {
        return Ok(fresh);
    };
    match error {
        MapError::Invalidate(_) => domain.lose_frames(fresh.len() as u64),
        _ => free(&**domain.platform(), fresh),
    }
    Err(error)
}

impl<P: CopyMemory> Class<P> {
    pub fn new<T: Translator<P>>(
        domain: &Domain<P, T>,
        config: ClassConfig,
        limits: Limits,
        shelves: [WordShelf<P>; KINDS],
    ) -> Result<Self, MapError> {
        let pages = config.pages();
        let slots = u64::from(config.slots);
        let all = PageCount(slots * pages.0);
        let region = open_tables(domain, all, config.pages_lg2, limits)?;
        let magazine_len = (config.slots as usize / 8).clamp(1, 16);
        let sizes = MagazineSizes {
            magazine_len,
            // room for all there are, so that none overflows while there is memory for magazines
            depot_full_max: config.slots as usize / magazine_len + 1,
        };
        Ok(Class {
            pages,
            slots: config.slots,
            region,
            frames: FrameTable::new(config.pages_lg2, config.slots),
            kept: shelves.map(|shelf| Magazines::in_places(shelf, sizes)),
            unmapped: P::Lock::new(Unmapped {
                slots: (0..config.slots).rev().collect(),
                lost: 0,
            }),
            bare: P::A64::new(0),
        })
    }

    /// Bytes of a slot.
    pub fn bytes(&self) -> u64 {
        self.pages.0 << GRANULE_LG2
    }

    /// Whether every slot lies within these limits, if the region does within theirs: how it is
    /// aligned, and which boundaries it crosses.
    #[inline]
    pub fn keeps(&self, limits: &Limits) -> bool {
        if limits.align_lg2 == 0 && limits.boundary_lg2.is_none() {
            return true;
        }
        let lg2 = self.pages.0.trailing_zeros();
        let aligned = self.region.range().first.0.is_multiple_of(self.pages.0);
        aligned && limits.align_lg2 <= lg2 && limits.boundary_lg2.is_none_or(|at| lg2 <= at)
    }

    /// The pages of slot `index`.
    pub fn range(&self, index: u32) -> IovaRange {
        let first = self.region.range().first.0 + u64::from(index) * self.pages.0;
        IovaRange::new(IovaPage(first), self.pages)
    }
    /// The first of those of a slot that has memory.
    #[inline(always)]
    pub fn first_frame(&self, p: &P, index: u32) -> PhysPage {
        self.frames.first(p, index)
    }
    /// Those of a slot that has memory.
    #[inline]
    pub fn frames<'p>(&self, p: &'p P, index: u32) -> SlotFrames<'p, P::A64> {
        SlotFrames(self.frames.of(p, index))
    }

    /// A kept slot of this permission, from this CPU's magazine.
    pub fn take_kept(&self, cpu: &Cpu<'_>, perm: Perm) -> Option<Kept> {
        let kept = self.list(perm);
        let word = kept.take_fast(cpu).or_else(|| kept.take(cpu));
        word.map(Kept)
    }

    /// The same where nothing has to be called for it.
    #[inline(always)] // on the fast path of a map
    pub fn take_fast(&self, cpu: &Cpu<'_>, perm: Perm) -> Option<Kept> {
        self.list(perm).take_fast(cpu).map(Kept)
    }

    #[inline(always)]
    fn list(&self, perm: Perm) -> &Words<P> {
        &self.kept[list_of(perm)]
    }

    /// An empty slot, given memory and mapped.
    pub fn populate<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        perm: Perm,
    ) -> Result<Kept, NoSlot> {
        let p = &**domain.platform();
        let Some(index) = self.unmapped.with(Unmapped::pop_empty) else {
            return Err(NoSlot::Full);
        };
        if !self.frames.make_room(p, index) {
            self.unmapped.with(|unmapped| unmapped.slots.push(index));
            return Err(NoSlot::NoFrame);
        }
        let fresh = match zeroed_frames(p, self.pages) {
            Ok(fresh) => fresh,
            Err(why) => {
                self.put_empty(p, &[index]);
                return Err(why.into());
            }
        };
        match install_fresh(domain, &self.region, self.range(index), fresh, perm) {
            Ok(fresh) => {
                self.frames.put(p, index, fresh);
                Ok(self.fresh(index, perm))
            }
            Err(error @ MapError::Invalidate(_)) => {
                self.lose(p, index);
                Err(error.into())
            }
            Err(error) => {
                self.put_empty(p, &[index]);
                Err(error.into())
            }
        }
    }

    /// A slot all of whose bytes are zero.
    fn fresh(&self, index: u32, perm: Perm) -> Kept {
        Kept::new(index, Extent::zeroed(perm, self.bytes()))
    }

    /// These slots have no memory any more.
    fn put_empty(&self, p: &P, slots: &[u32]) {
        slots.iter().for_each(|at| self.frames.forget(p, *at));
        let unmapped = &self.unmapped;
        unmapped.with(|unmapped| unmapped.slots.extend_from_slice(slots)); // it has room for all
    }

    /// Slot `index` is never used again: caches may hold translations of it.
    #[cold]
    fn lose(&self, p: &P, index: u32) {
        self.frames.forget(p, index);
        self.unmapped.with(|unmapped| unmapped.push_lost(index));
    }

    /// Keeps a slot for this CPU; where the heap has no memory for the magazine that this takes,
    /// and no CPU's has room, takes the slot's memory away. Returns whether it is kept.
    ///
    /// Slots that have all been kept at once, as those of a fixed pool have, are always kept: what
    /// magazines there are has room for them.
    #[inline]
    pub fn give<T: Translator<P>>(&self, domain: &Domain<P, T>, slot: Kept, perm: Perm) -> bool {
        let kept = self.list(perm);
        let p = domain.platform();
        p.pinned(|cpu| kept.give_fast(cpu.index(), slot.0))
            || self.give_otherwise(domain, slot, perm)
    }

    #[cold]
    #[inline(never)]
    fn give_otherwise<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        slot: Kept,
        perm: Perm,
    ) -> bool {
        let kept = self.list(perm);
        let origin = domain.platform().pinned(|cpu| cpu.index());
        // the depot has room for all, but the heap may have no memory for a magazine
        let Some(over) = kept.give(origin, slot.0) else {
            return true;
        };
        for word in over.things() {
            self.depopulate(domain, &[Kept(word).index()]);
        }
        kept.recycle(over);
        false
    }

    /// Takes the memory of these slots, which the caller has, away, by one invalidation; and the
    /// tables, where these are the last.
    pub fn depopulate<T: Translator<P>>(&self, domain: &Domain<P, T>, slots: &[u32]) {
        let p = &**domain.platform();
        // with all numbers here, nothing else maps anything in the region meanwhile, or puts a
        // number there
        let rest = self.unmapped.with(|unmapped| {
            let all = unmapped.empty().len() + slots.len() == self.slots as usize;
            all.then(|| take(&mut unmapped.slots))
        });
        let revoked = match &rest {
            Some(_) => self.revoke(domain, slots, Rest::Unmapped),
            None => self.revoke(domain, slots, Rest::Unknown),
        };
        if let Some(rest) = rest {
            self.unmapped.with(|unmapped| unmapped.slots = rest);
        }
        match revoked {
            Ok(()) => self.put_empty(p, slots),
            Err(_) => slots.iter().for_each(|at| self.lose(p, *at)),
        }
    }

    fn revoke<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        slots: &[u32],
        rest: Rest,
    ) -> Result<(), InvalidateError> {
        let p = &**domain.platform();
        let frames = slots.iter().flat_map(|at| self.frames.taken(p, *at));
        let parts = slots.iter().map(|at| self.range(*at));
        match rest {
            Rest::Unmapped => domain.revoke_last(&self.region, parts, (), frames),
            Rest::Unknown => domain.revoke(&self.region, parts, (), frames),
        }
        .map(drop)
    }

    /// Nothing is kept for anybody.
    pub fn found_bare(&self) {
        self.bare.store(BARE, Ordering::Relaxed);
    }

    /// Whether that was so a few operations ago. Two at once may count as one.
    pub fn was_bare_lately(&self) -> bool {
        let left = self.bare.load(Ordering::Relaxed);
        if left > 0 {
            self.bare.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// A kept slot of this permission, from the magazines of any CPU, this one's last.
    pub fn take_anyones(&self, p: &P, perm: Perm) -> Option<Kept> {
        let next = p.pinned(|cpu| CpuIndex((cpu.index().0 + 1) % p.cpus()));
        let mut found = [0];
        match self.list(perm).take_from(next, &mut found) {
            // what another CPU had may be in the depot now
            0 => p.pinned(|cpu| self.take_kept(&cpu, perm)),
            _ => Some(Kept(found[0])),
        }
    }

    /// A kept slot of another permission, which it has then no more.
    pub fn take_other<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        perm: Perm,
    ) -> Result<Kept, NoSlot> {
        let p = &**domain.platform();
        for other in PERMS.into_iter().filter(|other| *other != perm) {
            let kept = p.pinned(|cpu| self.take_kept(&cpu, other));
            if let Some(kept) = kept.or_else(|| self.take_anyones(p, other)) {
                return self.convert(domain, kept.index(), perm);
            }
        }
        Err(NoSlot::Full)
    }

    /// Takes the memory of some kept slots away, [`TRIM_MAX`] at most; returns how many it was.
    pub fn trim<T: Translator<P>>(&self, domain: &Domain<P, T>) -> usize {
        let p = &**domain.platform();
        let mut trimmed = 0;
        for kept in &self.kept {
            let mut words = [0; TRIM_MAX];
            let words = &mut words[trimmed..];
            let mut found = kept.take_from(CpuIndex(0), words);
            // what the depot has
            while found < words.len()
                && let Some(word) = p.pinned(|cpu| kept.take(&cpu))
            {
                words[found] = word;
                found += 1;
            }
            let mut slots = [0; TRIM_MAX];
            let numbers = slots.iter_mut().zip(&words[..found]);
            numbers.for_each(|(slot, word)| *slot = Kept(*word).index());
            if found > 0 {
                self.depopulate(domain, &slots[..found]);
            }
            trimmed += found;
            kept.free_empty();
        }
        trimmed
    }

    /// Changes the permission of slot `index`, which the caller has. All its bytes are zero then.
    fn convert<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        index: u32,
        perm: Perm,
    ) -> Result<Kept, NoSlot> {
        let p = &**domain.platform();
        let range = self.range(index);
        let part = core::iter::once(range);
        let revoked = domain.revoke(&self.region, part, index, []);
        let index = match revoked {
            Ok(flushed) => flushed.into_inner(),
            Err(cause) => {
                self.lose(p, index);
                domain.lose_frames(self.pages.0);
                return Err(NoSlot::Map(MapError::Invalidate(cause)));
            }
        };
        let frames = self.frames(p, index);
        // the CPU could reach them when they were given out
        let _ = zero_bytes(p, 0, self.bytes(), &frames);
        let words = frames.0.iter();
        let runs = words.map(|w| PhysRun::new(PhysPage(w.load(Ordering::Relaxed)), PageCount(1)));
        match domain.install_part(&self.region, range, runs, perm) {
            Ok(()) => Ok(self.fresh(index, perm)),
            Err(error) => {
                // unmapped, and of unknown fate: as good as lost, and rare
                self.lose(p, index);
                domain.lose_frames(self.pages.0);
                Err(NoSlot::Map(error))
            }
        }
    }

    /// Revokes every kept slot; for the end. Those taken are revoked too: their mappings
    /// end with the pool.
    pub fn close<T: Translator<P>>(self, domain: &Domain<P, T>) {
        let p = &**domain.platform();
        let (mut slots, lost) = self.unmapped.with(|all| (take(&mut all.slots), all.lost));
        // there is room for all numbers: those that are mapped go behind the others
        let unmapped = slots.len();
        slots.sort_unstable();
        for at in 0..self.slots {
            if slots[..unmapped].binary_search(&at).is_err() {
                slots.push(at);
            }
        }
        let mapped = &slots[unmapped..];
        let revoked = match mapped.is_empty() {
            true => Ok(()),
            false => self.revoke(domain, mapped, Rest::Unmapped),
        };
        mapped.iter().for_each(|at| self.frames.forget(p, *at));
        // Caches may hold what is lost, so those IOVAs stay allocated, and the region with them,
        // until the domain ends.
        if lost == 0 && revoked.is_ok() {
            let _ = domain.close_region(self.region); // quarantined if that fails
        }
    }
}
