// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which addresses there are, and the I/O page table behind them.
//!
//! Vocabulary: an *offset* counts bytes of memory from its start. The *plan* of IOVAs is the same
//! for every mapping: rings first, then receive pages, then transmit pages; a *page* is named by
//! its number in the plan, and is at the offset that [`Space::offset`] says, which is another one
//! where leaves are scattered. A *slot* is a page of the windows from which dynamic mappings take
//! their IOVAs.
//!
//! Rings are where they are in the plan, so that those of more than a page are contiguous for back
//! ends that need it.
//!
//! # Ordering
//! Only the generator's thread changes slots and looks them up; they are atomic because a page
//! table must be shareable.

use crate::config::{Config, Lie, Mapping};
use ioatlas_dma::platform::{Ordering, Platform};
use ioatlas_dma::units::*;
use ioatlas_host::Host;
use ioatlas_vhost::server::{self, FrontAddr, IoPageTable};
use std::sync::OnceLock;

type Word = <Host as Platform>::A64;

/// Where memory begins for the guest. Not 0, so that addresses and offsets are never
/// mistaken for each other.
pub(crate) const GUEST_START: u64 = 1 << 32;
/// Where the plan begins in IOVAs.
const STATIC_START: u64 = 0x10_0000_0000;
/// Where the windows of dynamic mappings begin, one for each direction.
const WINDOWS: u64 = 0x20_0000_0000;
/// Log2 of a window's slots: twice all that [`crate::config`] lets be in rings and batches (2 pages
/// of 8,192 buffers), and eight times more.
const WINDOW_LG2: u32 = 17;
/// Bytes of the plan for rings: four times both of the largest size (4,096
/// entries: 106,518 bytes each).
pub(crate) const RINGS_BYTES: u64 = 1 << 20;

/// The direction of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Queue 0; the back end writes.
    Receive,
    /// Queue 1; the back end reads.
    Transmit,
}

impl Way {
    pub(crate) fn queue(self) -> u16 {
        match self {
            Way::Receive => 0,
            Way::Transmit => 1,
        }
    }

    /// What dynamic mappings permit. Receive buffers may be read, too: back ends
    /// ask so (DPDK does).
    fn perm(self) -> Perm {
        match self {
            Way::Receive => Perm::ReadWrite,
            Way::Transmit => Perm::Read,
        }
    }
}

/// A page of the dynamic windows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot(pub u32);

impl Slot {
    /// The one that many pages further on, in the same window.
    pub(crate) fn next(self, pages: u32) -> Slot {
        let mask = (1 << WINDOW_LG2) - 1;
        Slot(self.0 & !mask | (self.0 + pages) & mask)
    }

    /// The first of a window.
    pub(crate) fn first(way: Way) -> Slot {
        Slot(u32::from(way.queue()) << WINDOW_LG2)
    }

    pub(crate) fn iova(self) -> Iova {
        Iova(WINDOWS + u64::from(self.0) * GRANULE)
    }

    /// Whether `pages` pages from it on stay in its window.
    pub(crate) fn fits(self, pages: u32) -> bool {
        (self.0 & ((1 << WINDOW_LG2) - 1)) + pages <= 1 << WINDOW_LG2
    }
}

/// The plan, and the tables.
pub(crate) struct Space {
    mapping: Mapping,
    pages: u32,
    /// Leaf of the plan -> leaf of memory; empty if they are the same.
    leaves: Vec<u32>,
    leaf_lg2: u32,
    /// Slot -> page of memory plus 1.
    slots: Vec<Word>,
    /// Where memory begins for the front end; known once it is shared.
    front: OnceLock<u64>,
    len: u64,
}

impl Space {
    pub(crate) fn new(config: &Config) -> Self {
        let leaf_lg2 = config.leaf().lg2();
        let needed = RINGS_BYTES + 2 * u64::from(config.pages) * GRANULE;
        let len = needed.next_multiple_of(1 << leaf_lg2);
        let first = RINGS_BYTES.div_ceil(1 << leaf_lg2) as u32;
        let leaves = match config.lie() {
            Lie::Contiguous => Vec::new(),
            Lie::Scattered => scattered(first, (len >> leaf_lg2) as u32),
        };
        let slots = match config.mapping {
            Mapping::Dynamic { .. } => 2 << WINDOW_LG2,
            _ => 0,
        };
        Space {
            mapping: config.mapping,
            pages: config.pages,
            leaves,
            leaf_lg2,
            slots: (0..slots).map(|_| Word::new(0)).collect(),
            front: OnceLock::new(),
            len,
        }
    }

    pub(crate) fn len(&self) -> ByteCount {
        ByteCount(self.len)
    }

    /// Where memory begins for the front end.
    pub(crate) fn shared_at(&self, front: FrontAddr) {
        self.front.set(front.0).expect("memory is shared once");
    }

    /// The place in the plan of a page of buffers.
    pub(crate) fn planned(&self, way: Way, page: u32) -> u64 {
        let before = u64::from(way.queue()) * u64::from(self.pages);
        RINGS_BYTES + (before + u64::from(page)) * GRANULE
    }

    /// Where a byte of the plan is in memory.
    pub(crate) fn offset(&self, planned: u64) -> usize {
        let low = planned & ((1 << self.leaf_lg2) - 1);
        let offset = match self.leaves.get((planned >> self.leaf_lg2) as usize) {
            None => planned,
            Some(leaf) => u64::from(*leaf) << self.leaf_lg2 | low,
        };
        offset as usize
    }

    /// What a device calls a byte of the plan; not for buffers of dynamic mappings.
    pub(crate) fn device_addr(&self, planned: u64) -> Iova {
        match self.mapping {
            Mapping::Off { .. } => Iova(GUEST_START + self.offset(planned) as u64),
            _ => Iova(STATIC_START + planned),
        }
    }

    /// Maps a slot to the page of memory at `offset`.
    pub(crate) fn map(&self, slot: Slot, offset: usize) {
        let page = (offset as u64 >> GRANULE_LG2) + 1;
        let old = self.slots[slot.0 as usize].swap(page, Ordering::Relaxed);
        debug_assert_eq!(old, 0, "a window is longer than what is mapped at once");
    }

    pub(crate) fn unmap(&self, slot: Slot) {
        self.slots[slot.0 as usize].store(0, Ordering::Relaxed);
    }

    fn lookup_static(&self, planned: u64, front: u64) -> Option<server::Mapping> {
        let dynamic = matches!(self.mapping, Mapping::Dynamic { .. });
        // Buffers of dynamic mappings have no other name.
        let end = if dynamic { RINGS_BYTES } else { self.len };
        if planned >= end {
            return None;
        }
        let first = planned >> self.leaf_lg2 << self.leaf_lg2;
        Some(server::Mapping {
            iova: Iova(STATIC_START + first),
            len: ByteCount(1 << self.leaf_lg2),
            front: FrontAddr(front + self.offset(first) as u64),
            perm: Perm::ReadWrite,
        })
    }

    fn lookup_slot(&self, iova: u64, front: u64) -> Option<server::Mapping> {
        let slot = (iova - WINDOWS) >> GRANULE_LG2;
        let page = self.slots.get(slot as usize)?.load(Ordering::Relaxed);
        let way = match slot >> WINDOW_LG2 {
            0 => Way::Receive,
            _ => Way::Transmit,
        };
        Some(server::Mapping {
            iova: Slot(slot as u32).iova(),
            len: ByteCount(GRANULE),
            front: FrontAddr(front + page.checked_sub(1)? * GRANULE),
            perm: way.perm(),
        })
    }
}

impl IoPageTable for Space {
    fn lookup(&self, iova: Iova) -> Option<server::Mapping> {
        let front = *self.front.get()?;
        match iova.0 {
            at if at >= WINDOWS => self.lookup_slot(at, front),
            at => self.lookup_static(at.checked_sub(STATIC_START)?, front),
        }
    }
}

/// A permutation of 0 to `count` that leaves what is before `first` alone. The rest goes in steps
/// by about the golden ratio, prime to its number, so that neighbours are far from each other.
fn scattered(first: u32, count: u32) -> Vec<u32> {
    let n = u64::from(count.saturating_sub(first));
    if n < 2 {
        return (0..count).collect();
    }
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let step = (n * 618 / 1000..).find(|&step| step > 1 && gcd(step, n) == 1);
    let step = step.expect("there are primes");
    let rest = (0..n).map(|leaf| first + (leaf * step % n) as u32);
    (0..first).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Leaf;

    fn space(mapping: Mapping) -> Space {
        let space = Space::new(&Config {
            mapping,
            ..Config::default()
        });
        space.shared_at(FrontAddr(0x7000_0000_0000));
        space
    }

    #[test]
    fn a_scattered_plan_names_every_page_once_and_no_two_neighbours() {
        let (leaf, lie) = (Leaf::Small, Lie::Scattered);
        let space = space(Mapping::Static { leaf, lie });
        let pages: Vec<usize> = (0..512)
            .map(|page| space.offset(space.planned(Way::Receive, page)))
            .collect();
        let mut sorted = pages.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 512);
        assert!(sorted[0] as u64 >= RINGS_BYTES);
        assert!(*sorted.last().unwrap() as u64 + GRANULE <= space.len().0);
        assert!(pages.windows(2).all(|two| two[0] + 4096 != two[1]));
    }

    #[test]
    fn the_table_says_what_the_plan_says() {
        for leaf in [Leaf::Small, Leaf::Large, Leaf::Huge] {
            for lie in [Lie::Contiguous, Lie::Scattered] {
                let space = space(Mapping::Static { leaf, lie });
                for page in [0, 7, 511] {
                    let planned = space.planned(Way::Transmit, page) + 100;
                    let iova = space.device_addr(planned);
                    let found = space.lookup(iova).unwrap();
                    let front = found.front.0 + (iova.0 - found.iova.0);
                    assert_eq!(front - 0x7000_0000_0000, space.offset(planned) as u64);
                    assert_eq!(found.len.0, 1 << leaf.lg2());
                }
                assert_eq!(space.lookup(space.device_addr(space.len().0)), None);
            }
        }
    }

    #[test]
    fn a_slot_is_mapped_until_it_is_unmapped() {
        let (batch, lie) = (1, Lie::Contiguous);
        let space = space(Mapping::Dynamic { batch, lie });
        let slot = Slot::first(Way::Transmit).next(5);
        assert_eq!(space.lookup(slot.iova()), None);
        space.map(slot, 0x20_0000);
        let found = space.lookup(Iova(slot.iova().0 + 9)).unwrap();
        assert_eq!((found.iova, found.perm), (slot.iova(), Perm::Read));
        assert_eq!(found.front.0, 0x7000_0020_0000);
        space.unmap(slot);
        assert_eq!(space.lookup(slot.iova()), None);
        let hidden = space.planned(Way::Transmit, 0);
        assert_eq!(space.lookup(space.device_addr(hidden)), None);
    }
}
