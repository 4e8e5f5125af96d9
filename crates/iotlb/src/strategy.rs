// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a strategy may do: rank the entries of a set, and prefetch.
//!
//! Everything else (hits, fills, invalidations, the buffer's order, the counts) is the
//! model's and the same for all. [`Named`](crate::Named) is the strategies of WIOSCA'10,
//! section 4; `examples/own_strategy.rs` adds one of its own.

use crate::classify::Class;
use crate::event::DeviceId;
use crate::units::IovaPage;

/// An entry of the IOTLB whose rank is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ranked {
    /// Whose page it is.
    pub device: DeviceId,
    /// The page, or the superpage where those are simulated.
    pub page: IovaPage,
    /// Class of the page's latest mapping.
    pub class: Class,
    /// Number of the step: what an oracle needs.
    pub(crate) step: usize,
    /// Whether the page was mapped over, and not accessed.
    pub(crate) mapped_over: bool,
}

/// An access that was filled into the IOTLB.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// The device that accesses the page.
    pub device: DeviceId,
    /// The page, or the superpage where those are simulated.
    pub page: IovaPage,
    /// Class of the page's latest mapping.
    pub class: Class,
    /// A miss, or a prefetch hit.
    pub ending: Ending,
}

/// Pages that were mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The device that may access them.
    pub device: DeviceId,
    /// First page, or superpage.
    pub first: IovaPage,
    /// Last page, part of them.
    pub last: IovaPage,
    /// Class of the mapping.
    pub class: Class,
    /// Where the map is the first of a group (WIOSCA'10, section 4.7): the first
    /// page of that group.
    pub opens_group_at: Option<IovaPage>,
}

/// How an access ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Found in the IOTLB.
    Hit,
    /// In the prefetch buffer.
    PrefetchHit,
    /// In neither: the page table is walked.
    Miss,
    /// Outside every live mapping.
    Fault,
}

/// Takes what a strategy wants to prefetch. What is not mapped is not prefetched.
pub trait Prefetch {
    /// The page after the one accessed.
    fn next(&mut self);

    /// The page before the one accessed.
    fn previous(&mut self);

    /// Any page of the same device.
    fn page(&mut self, page: IovaPage);
}

/// A way of managing the IOTLB.
pub trait Strategy {
    /// Whether it prefetches at all. Without, the prefetch buffer is not used.
    const PREFETCHES: bool = true;

    /// Whether [`Self::rank`] is asked.
    const RANKS: bool = true;

    /// Whether it asks [`Prefetch::page`] for pages that it does not know to be mapped.
    const ASKS_ANY_PAGE: bool = true;

    /// Rank of an entry, asked at each access to it and when its page is mapped over. A
    /// full set evicts the lowest, and of several the least recently used.
    fn rank(&mut self, entry: &Ranked) -> u32 {
        let _ = entry;
        0
    }

    /// A miss or a prefetch hit was filled (prefetch hits only where the trigger asks for them).
    fn after_fill(&mut self, filled: &Filled, prefetch: &mut impl Prefetch) {
        let _ = (filled, prefetch);
    }

    /// A mapping was installed.
    fn after_map(&mut self, mapped: &Mapped, prefetch: &mut impl Prefetch) {
        let _ = (mapped, prefetch);
    }
}
