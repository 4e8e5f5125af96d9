// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Stand-in IOVAs for mappings that had none.
//!
//! Without an IOMMU two buffers in one page have one bus page, which no trace can hold. Each
//! mapping gets pages of its own, much as Linux does on one CPU: from 4 GiB downwards, aligned to
//! the next power of two, and what was freed last is given first to a request of the same size.
//! `replay` puts an allocator of your choice in its place.

use crate::units::{IovaPage, PageCount, PageRange};
use std::collections::HashMap;

/// Page 2^20: 4 GiB.
const TOP: u64 = 1 << 20;

/// Where larger spaces begin, when the one below 4 GiB is used up.
const FAR_TOP: u64 = 1 << 36;

#[derive(Debug)]
pub(super) struct Iovas {
    /// First page of what has been given from the top so far.
    lowest: u64,
    floor: u64,
    /// By size; the last freed is at the end.
    free: HashMap<u64, Vec<u64>>,
}

impl Default for Iovas {
    fn default() -> Self {
        Self {
            lowest: TOP,
            floor: 1,
            free: HashMap::new(),
        }
    }
}

impl Iovas {
    /// So many pages; `None` if there is no room left.
    pub fn take(&mut self, pages: PageCount) -> Option<PageRange> {
        let size = pages.0.checked_next_power_of_two()?;
        let first = match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(first) => first,
            None => match self.below(size) {
                Some(first) => first,
                None if self.floor == TOP => return None, // the far space is full, too
                None => {
                    (self.lowest, self.floor) = (FAR_TOP, TOP);
                    self.below(size)?
                }
            },
        };
        PageRange::new(IovaPage::new(first)?, pages)
    }

    fn below(&mut self, size: u64) -> Option<u64> {
        let first = self.lowest.checked_sub(size)? & !(size - 1);
        (first >= self.floor).then(|| self.lowest = first)?;
        Some(first)
    }

    /// Gives back what [`Iovas::take`] gave.
    pub fn give(&mut self, range: PageRange) {
        let size = range.pages().0.next_power_of_two();
        self.free
            .entry(size)
            .or_default()
            .push(range.first().number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_aligned_and_reused_and_never_overlap() {
        let mut iovas = Iovas::default();
        let mut take = |pages| iovas.take(PageCount(pages)).map(|r| r.first().number());
        assert_eq!(take(1), Some(0xfffff));
        assert_eq!(take(3), Some(0xffff8));
        assert_eq!(take(1), Some(0xffff7));
        let range = PageRange::new(IovaPage::new(0xffff8).unwrap(), PageCount(3)).unwrap();
        iovas.give(range);
        let mut take = |pages| iovas.take(PageCount(pages)).map(|r| r.first().number());
        assert_eq!((take(1), take(4)), (Some(0xffff6), Some(0xffff8)));
        // the low space is full; the next one is far above it
        assert_eq!(take(1 << 18), Some(1 << 19));
        assert_eq!(take(1 << 19), Some(FAR_TOP - (1 << 19)));
        assert_eq!((take(1 << 40), take(u64::MAX)), (None, None));
        assert_eq!(take(1), Some(FAR_TOP - (1 << 19) - 1));
    }
}
