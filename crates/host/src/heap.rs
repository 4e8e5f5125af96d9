// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The host's heap: an [`Arena`] behind per-CPU magazines, as slab allocators have them.
//!
//! Blocks of 8 bytes to 4 KiB are kept by size, freed ones on the CPU that frees; larger ones go to
//! the arena. What is kept is taken as the arena sees it. When the arena is exhausted, everything
//! kept goes back to it and it is asked once more.

use super::*;
use ioatlas_dma::magazine::{MagazineSizes, Magazines, Overflow};

/// Log2 of the largest block that is kept.
const KEPT_MAX_LG2: u32 = 12;
/// Blocks taken from the arena at a time; with 8 bytes each, a cache line pair.
const REFILL: usize = 16;
const SIZES: MagazineSizes = MagazineSizes {
    magazine_len: 64,
    depot_full_max: 16,
};

/// An arena, and what each CPU keeps of it.
pub(super) struct Caches {
    arena: Arena,
    classes: Box<[Class]>,
}

struct Class {
    len: ByteCount,
    kept: Magazines<Host, u64>,
}

impl Class {
    /// Gives blocks back that came from the arena and are in no magazine any more.
    fn spill(&self, arena: &Arena, offsets: impl Iterator<Item = u64>) {
        // SAFETY: what magazines hold was taken from the arena with this length, and each thing
        // leaves them once.
        unsafe { arena.give(self.len, offsets) }
    }
}

impl Caches {
    /// Nothing is kept yet.
    pub fn new(host: &Host, arena: Arena) -> Self {
        let class = |lg2| Class {
            len: ByteCount(1u64 << lg2),
            kept: Magazines::new(host, SIZES),
        };
        let smallest = HeapBlock::MIN.0.trailing_zeros();
        Caches {
            arena,
            classes: (smallest..=KEPT_MAX_LG2).map(class).collect(),
        }
    }

    #[inline]
    fn class(&self, len: ByteCount) -> Option<&Class> {
        let nth = len.0.trailing_zeros() - HeapBlock::MIN.0.trailing_zeros();
        self.classes.get(nth as usize)
    }

    #[inline]
    fn alloc(&self, host: &Host, len: ByteCount) -> Option<HeapBlock> {
        let len = HeapBlock::rounded(len)?;
        let found = self.class(len).and_then(|class| {
            let kept = host.pinned(|cpu| class.kept.take(&cpu));
            kept.or_else(|| self.refill(host, class))
        });
        let single = || {
            let mut found = None;
            self.arena.take(len, 1, |offset| found = Some(offset));
            found
        };
        let offset = found.or_else(single).or_else(|| {
            self.drain();
            single()
        })?;
        Some(self.arena.tag(offset, len))
    }

    /// One of a batch; the others are kept for the CPU that this is.
    fn refill(&self, host: &Host, class: &Class) -> Option<u64> {
        let mut batch = [0; REFILL];
        let mut slots = batch.iter_mut();
        let taken = self.arena.take(class.len, REFILL, |offset| {
            if let Some(slot) = slots.next() {
                *slot = offset;
            }
        });
        let (first, others) = batch[..taken].split_first()?;
        let mut others = others.iter().copied();
        let home = host.pinned(|cpu| cpu.index());
        class.kept.fill(home, &mut others);
        // no room: another thread has filled this CPU's magazine meanwhile
        class.spill(&self.arena, others);
        Some(*first)
    }

    #[inline]
    fn free(&self, host: &Host, block: HeapBlock) -> Result<(), HeapBlockError> {
        self.arena.untag(block)?;
        let offset = block.offset.0;
        match self.class(block.len) {
            Some(class) => {
                let home = host.pinned(|cpu| cpu.index());
                if let Some(overflow) = class.kept.give(home, offset) {
                    self.overflow(class, overflow);
                }
            }
            // SAFETY: its tag said that it was taken with this length, and we have removed the tag.
            None => unsafe { self.arena.give(block.len, core::iter::once(offset)) },
        }
        Ok(())
    }

    fn overflow(&self, class: &Class, overflow: Overflow<u64>) {
        class.spill(&self.arena, overflow.things());
        class.kept.recycle(overflow);
    }

    fn drain(&self) {
        for class in &self.classes {
            class
                .kept
                .drain(|offsets| class.spill(&self.arena, offsets));
        }
    }

    fn in_use(&self) -> ByteCount {
        let classes = self.classes.iter();
        let kept: u64 = classes.map(|c| c.kept.kept() as u64 * c.len.0).sum();
        // the two looks are not at one moment
        ByteCount(self.arena.in_use().0.saturating_sub(kept))
    }
}

impl Heap for Host {
    fn arena(&self) -> ByteCount {
        let heap = self.heap.as_ref();
        heap.map_or(ByteCount(0), |heap| heap.arena.arena())
    }
    fn in_use(&self) -> ByteCount {
        let heap = self.heap.as_ref();
        heap.map_or(ByteCount(0), |heap| heap.in_use())
    }
    fn alloc(&self, len: ByteCount) -> Option<HeapBlock> {
        self.heap.as_ref()?.alloc(self, len)
    }
    fn free(&self, block: HeapBlock) -> Result<(), HeapBlockError> {
        let heap = self.heap.as_ref().ok_or(HeapBlockError(block))?;
        heap.free(self, block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: u64 = 1 << 20;

    fn host() -> Host {
        let config = HostConfig {
            frames: 1,
            slots: 2,
        };
        Host::new(config).with_heap(ByteCount(ARENA)).unwrap()
    }

    fn block(offset: u64, len: u64) -> HeapBlock {
        HeapBlock {
            offset: ByteCount(offset),
            len: ByteCount(len),
        }
    }

    #[test]
    fn blocks_are_rounded_aligned_disjoint_and_never_at_0() {
        let host = host();
        let mut held: Vec<HeapBlock> = Vec::new();
        for step in 0..2000u64 {
            let wanted = ByteCount([1, 8, 9, 100, 4096, 5000, 0, 64][step as usize % 8]);
            let Some(new) = host.alloc(wanted) else {
                break;
            };
            assert_eq!(Some(new.len), HeapBlock::rounded(wanted));
            assert!(new.offset.0 > 0 && new.offset.0.is_multiple_of(new.len.0));
            assert!(new.offset.0 + new.len.0 <= ARENA);
            held.push(new);
        }
        held.sort_by_key(|block| block.offset);
        for pair in held.windows(2) {
            assert!(pair[0].offset.0 + pair[0].len.0 <= pair[1].offset.0);
        }
        let sum: u64 = held.iter().map(|block| block.len.0).sum();
        assert_eq!(host.in_use(), ByteCount(sum));
        held.into_iter().for_each(|b| host.free(b).unwrap());
        assert_eq!(host.in_use(), ByteCount(0));
    }

    #[test]
    fn everything_kept_goes_back_before_a_request_fails() {
        let host = host();
        let small: Vec<_> = std::iter::from_fn(|| host.alloc(ByteCount(8))).collect();
        assert_eq!(small.len() as u64, ARENA / 8 - 1);
        small.into_iter().for_each(|b| host.free(b).unwrap());
        let half = host.alloc(ByteCount(ARENA / 2)).unwrap();
        assert_eq!(half.offset, ByteCount(ARENA / 2));
        assert_eq!(host.alloc(ByteCount(ARENA)), None);
        host.free(half).unwrap();
    }

    #[test]
    fn what_is_not_allocated_is_not_freed() {
        let host = host();
        let held = host.alloc(ByteCount(64)).unwrap();
        let at = held.offset.0;
        for wrong in [
            block(at, 8),
            block(at, 128),
            block(at + 8, 64),
            block(at + 1, 64),
            block(at, 0),
            block(at, 65),
            block(0, 8),
            block(ARENA, 8),
            block(u64::MAX, u64::MAX),
            block(u64::MAX - 7, 1 << 63),
        ] {
            assert_eq!(host.free(wrong), Err(HeapBlockError(wrong)));
        }
        host.free(held).unwrap();
        assert_eq!(host.free(held), Err(HeapBlockError(held)));
        let without = Host::new(HostConfig::default());
        assert!(Platform::heap(&without).is_none());
        assert_eq!(without.free(held), Err(HeapBlockError(held)));
        assert_eq!(without.alloc(ByteCount(8)), None);
    }

    #[test]
    fn arenas_of_no_use_are_refused() {
        for len in [0, 8, 15, (64 << 30) + 8, u64::MAX] {
            let refused = Arena::new(ByteCount(len)).err().unwrap();
            assert!(matches!(refused, ArenaError::Size { .. }), "{refused}");
        }
        // no power of two, and no multiple of 8
        let odd = Arena::new(ByteCount(1003)).unwrap();
        assert_eq!(odd.arena(), ByteCount(1000));
        let held: Vec<_> = std::iter::from_fn(|| odd.alloc(ByteCount(1))).collect();
        assert_eq!(held.len(), 124);
    }

    #[test]
    fn threads_never_hold_the_same_block() {
        let host = host();
        let owned: Vec<_> = (0..ARENA / 8).map(|_| Mutex::new(false)).collect();
        let mark = |block: HeapBlock, now: bool| {
            for at in block.offset.0 / 8..(block.offset.0 + block.len.0) / 8 {
                let before = std::mem::replace(&mut *locked(&owned[at as usize]), now);
                assert_ne!(before, now, "{block:?}");
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (host, mark) = (&host, &mark);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    let mut random = fastrand::Rng::with_seed(thread);
                    for _ in 0..4000 {
                        if random.bool() || held.is_empty() {
                            let new = host.alloc(ByteCount(8 << random.u8(..8)));
                            new.into_iter().for_each(|block| {
                                mark(block, true);
                                held.push(block);
                            });
                        } else {
                            let block = held.swap_remove(random.usize(..held.len()));
                            mark(block, false);
                            host.free(block).unwrap();
                        }
                    }
                    for block in held {
                        mark(block, false);
                        host.free(block).unwrap();
                    }
                });
            }
        });
        assert_eq!(host.in_use(), ByteCount(0));
    }
}
