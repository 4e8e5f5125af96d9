// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which frames the slots of a class have: a word a page, in memory that there is only while slots
//! have theirs.
//!
//! The words lie in frames of the platform's. A *group* is the slots whose words share one such
//! frame, which it has from when the first of them gets memory until the last has lost it; so a
//! pool that is idle keeps a word for every 512 pages.
//!
//! Locking: how many slots of a group have memory is under one lock, alone; no frame is allocated
//! or freed under it. Which frame a group has is in a word of its own: the holder of a slot with
//! memory may follow it, since the group keeps its frame for that slot. Slots change hands through
//! locks, so relaxed accesses do.

use super::pieces::Frames;
use crate::{platform::*, units::*};
use alloc::{boxed::Box, vec::Vec};

/// Words of a frame, as log2.
const WORDS_LG2: u32 = GRANULE_LG2 - 3;

pub(crate) struct FrameTable<P: Platform> {
    pages_lg2: u32,
    /// The page of each group's frame.
    at: Box<[P::A64]>,
    groups: P::Lock<Vec<Group>>,
}

/// The frames of one slot, or of a part of it.
pub(crate) struct SlotFrames<'c, A>(pub &'c [A]);

impl<A: Atomic64> Frames for SlotFrames<'_, A> {
    #[inline]
    fn frame(&self, nth: usize) -> PhysPage {
        PhysPage(self.0[nth].load(Ordering::Relaxed))
    }
}

#[derive(Default)]
struct Group {
    /// Slots that have memory, or are about to.
    slots: u32,
    frame: Option<FreshFrame>,
}

impl<P: Platform> FrameTable<P> {
    /// Of `slots` slots of so many pages, none of which has memory.
    pub fn new(pages_lg2: u32, slots: u32) -> Self {
        let groups = (u64::from(slots) << pages_lg2).div_ceil(1 << WORDS_LG2);
        FrameTable {
            pages_lg2,
            at: (0..groups).map(|_| P::A64::new(0)).collect(),
            groups: P::Lock::new((0..groups).map(|_| Group::default()).collect()),
        }
    }

    #[inline(always)]
    fn place(&self, slot: u32) -> (usize, usize) {
        let word = u64::from(slot) << self.pages_lg2;
        let within = word & ((1 << WORDS_LG2) - 1);
        ((word >> WORDS_LG2) as usize, within as usize)
    }

    /// The words of a slot for which there [is room](Self::make_room).
    #[inline]
    pub fn of<'p>(&self, p: &'p P, slot: u32) -> &'p [P::A64] {
        let (group, from) = self.place(slot);
        let frame = PhysPage(self.at[group].load(Ordering::Relaxed));
        // a slot is a power of two of words, and no larger than a frame's
        &p.entries(OURS, FrameRef::of_entry(frame))[from..from + (1 << self.pages_lg2)]
    }

    /// The page that the first of them names.
    #[inline(always)]
    pub fn first(&self, p: &P, slot: u32) -> PhysPage {
        let (group, from) = self.place(slot);
        let frame = PhysPage(self.at[group].load(Ordering::Relaxed));
        PhysPage(p.entries(OURS, FrameRef::of_entry(frame))[from].load(Ordering::Relaxed))
    }

    /// Notes the frames of a slot for which there is room, which a device reaches from now on.
    pub fn put(&self, p: &P, slot: u32, frames: Vec<FreshFrame>) {
        for (frame, word) in frames.into_iter().zip(self.of(p, slot)) {
            word.store(frame.publish().page().0, Ordering::Relaxed);
        }
    }

    /// The frames of a slot, which are nowhere else any more.
    pub fn taken<'p>(&self, p: &'p P, slot: u32) -> impl Iterator<Item = TableFrame> + 'p {
        let words = self.of(p, slot).iter();
        words.map(|word| TableFrame::from_entry(PhysPage(word.load(Ordering::Relaxed))))
    }

    /// Before a slot gets memory; whether there is room for its words then.
    #[must_use]
    pub fn make_room(&self, p: &P, slot: u32) -> bool {
        let (group, _) = self.place(slot);
        let is_there = self.groups.with(|groups| {
            let group = &mut groups[group];
            group.slots += 1;
            group.frame.is_some()
        });
        if is_there {
            return true;
        }
        let mut fresh = p.frame_alloc();
        let is_there = self.groups.with(|groups| {
            let entry = &mut groups[group];
            if entry.frame.is_none() {
                if let Some(frame) = &fresh {
                    self.at[group].store(frame.page().0, Ordering::Relaxed);
                }
                entry.frame = fresh.take();
            }
            entry.slots -= u32::from(entry.frame.is_none());
            entry.frame.is_some()
        });
        // another thread was faster
        fresh
            .into_iter()
            .for_each(|frame| p.frame_free(OURS, frame));
        is_there
    }

    /// After a slot has lost its memory.
    pub fn forget(&self, p: &P, slot: u32) {
        let (group, _) = self.place(slot);
        let unused = self.groups.with(|groups| {
            let group = &mut groups[group];
            debug_assert!(group.slots > 0, "slot {slot} had memory");
            group.slots -= 1;
            (group.slots == 0).then(|| group.frame.take()).flatten()
        });
        unused
            .into_iter()
            .for_each(|frame| p.frame_free(OURS, frame));
    }

    /// Bytes, of frames in use too.
    pub fn bytes(&self) -> u64 {
        let group = size_of::<Group>() + size_of::<P::A64>();
        let frames = self.groups.with(|groups| {
            let some = groups.iter().filter(|group| group.frame.is_some());
            some.count() as u64
        });
        (self.at.len() * group) as u64 + (frames << GRANULE_LG2)
    }
}
