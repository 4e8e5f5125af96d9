// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Steps: events with everything resolved that does not depend on the cache, in 16
//! bytes.
//!
//! Whether an access is in a live mapping, whether the pages beside it are, and which
//! class its mapping has are the same for every strategy and geometry, so they are
//! found once ([`crate::plan`]) and not in every simulation. A map or unmap step has a
//! run of pages; an unmap that removes nothing has no step. Every access line of the
//! trace has exactly one step.
//!
//! ```text
//! head: page << 12 | flags << 2 | operation
//! tail: device << 48 | slot of an access, or (pages - 1) of a run
//! ```

use crate::cache::{Span, Tag};

/// Devices that a step can tell apart.
pub(crate) const MAX_DEVICES: usize = 1 << 16;

/// Largest run of pages in one step; longer ones take several.
pub(crate) const MAX_PAGES: u64 = 1 << 48;

const PAGE_SHIFT: u32 = 12;
const DEVICE_SHIFT: u32 = 48;
const OPERATION: u64 = 0b11;

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    /// An access in a live mapping.
    Access = 0,
    /// An access outside every live mapping.
    Fault = 1,
    Map = 2,
    /// An unmap; every page of the run is unmapped now.
    Unmap = 3,
}

/// Facts that come with a step; those that do not concern its operation are not set.
pub(crate) mod flag {
    /// Access, map: the (latest) mapping is streaming.
    pub(crate) const STREAMING: u64 = 1 << 2;
    /// Access: the next page is mapped too.
    pub(crate) const NEXT: u64 = 1 << 3;
    /// Access: the previous page is mapped too.
    pub(crate) const PREVIOUS: u64 = 1 << 4;
    /// Access: the first since the page was mapped or mapped over.
    pub(crate) const FIRST: u64 = 1 << 5;
    /// Map: a page of the run was mapped before.
    pub(crate) const REPLACES: u64 = 1 << 6;
    /// Unmap: a page of the run was mapped before.
    pub(crate) const REMOVES: u64 = 1 << 7;
    /// Map: opens a group, whose first page is the first of the run.
    pub(crate) const OPENS_FIRST: u64 = 1 << 8;
    /// Map: opens a group, whose first page is the last of the run (mirrored).
    pub(crate) const OPENS_LAST: u64 = 1 << 9;
}

/// One event as a view shows it, with all that a simulation asks of it, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    head: u64,
    tail: u64,
}

impl Step {
    /// An access step; `slot` stands for the page from its first access until it is
    /// unmapped or mapped over.
    #[inline]
    pub fn access(tag: Tag, flags: u64, slot: u64) -> Self {
        Self::new(Operation::Access, tag, flags, slot)
    }

    #[inline]
    pub fn fault(tag: Tag) -> Self {
        Self::new(Operation::Fault, tag, 0, 0)
    }

    /// The map or unmap steps of a run of pages, in order of pages.
    pub fn runs(operation: Operation, span: Span, flags: u64) -> impl Iterator<Item = Self> {
        let opens = flag::OPENS_FIRST | flag::OPENS_LAST;
        let firsts = (span.first..=span.last).step_by(MAX_PAGES as usize);
        firsts.map(move |first| {
            let last = span.last.min(first + (MAX_PAGES - 1));
            let mut kept = flags & !opens;
            if first == span.first {
                kept |= flags & flag::OPENS_FIRST;
            }
            if last == span.last {
                kept |= flags & flag::OPENS_LAST;
            }
            let tag = Tag {
                device: span.device,
                page: first,
            };
            Self::new(operation, tag, kept, last - first)
        })
    }

    #[inline]
    fn new(operation: Operation, tag: Tag, flags: u64, argument: u64) -> Self {
        debug_assert!((tag.device as usize) < MAX_DEVICES);
        debug_assert!(argument < MAX_PAGES && flags & OPERATION == 0);
        Self {
            head: tag.page << PAGE_SHIFT | flags | operation as u64,
            tail: u64::from(tag.device) << DEVICE_SHIFT | argument,
        }
    }

    #[inline]
    pub fn operation(self) -> Operation {
        match self.head & OPERATION {
            0 => Operation::Access,
            1 => Operation::Fault,
            2 => Operation::Map,
            _ => Operation::Unmap,
        }
    }

    #[inline]
    pub fn has(self, flag: u64) -> bool {
        self.head & flag != 0
    }

    /// Device and page, or first page of the run.
    #[inline]
    pub fn tag(self) -> Tag {
        Tag {
            device: (self.tail >> DEVICE_SHIFT) as u32,
            page: self.head >> PAGE_SHIFT,
        }
    }

    /// Of an access: the slot.
    #[inline]
    pub fn slot(self) -> usize {
        (self.tail & (MAX_PAGES - 1)) as usize
    }

    /// Of a map or unmap: its run.
    #[inline]
    pub fn span(self) -> Span {
        let Tag { device, page } = self.tag();
        Span {
            device,
            first: page,
            last: page + (self.tail & (MAX_PAGES - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let tag = Tag {
            device: 65_535,
            page: (1 << 52) - 1,
        };
        let flags = flag::STREAMING | flag::NEXT;
        let step = Step::access(tag, flags, 7);
        assert_eq!((step.tag(), step.slot()), (tag, 7));
        assert_eq!(step.operation(), Operation::Access);
        assert!(step.has(flag::NEXT) && !step.has(flag::PREVIOUS));
        assert_eq!(Step::fault(tag).operation(), Operation::Fault);
    }

    #[test]
    fn long_runs_take_several_steps_and_open_once() {
        let span = Span {
            device: 3,
            first: 1,
            last: (1 << 52) - 1,
        };
        let flags = flag::OPENS_LAST | flag::STREAMING;
        let steps: Vec<Step> = Step::runs(Operation::Map, span, flags).collect();
        assert_eq!(steps.len(), 16);
        let pages: u64 = steps
            .iter()
            .map(|s| s.span().last - s.span().first + 1)
            .sum();
        assert_eq!(pages, span.last);
        let opens: Vec<usize> = (0..16)
            .filter(|&i| steps[i].has(flag::OPENS_LAST))
            .collect();
        assert_eq!(opens, [15]);
        assert!(steps.iter().all(|step| step.has(flag::STREAMING)));
        assert_eq!(steps[15].span().last, span.last);
    }
}
