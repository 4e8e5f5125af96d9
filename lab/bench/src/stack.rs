// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Page numbers of one thread, as magazines would hand them out: what was given back last is taken
//! next.

use crate::Failure;
use ioatlas_dma::units::{IovaPage, IovaRange, PageCount};

/// Classes of ranges, of 1, 2, 4.. pages, up to what the largest of all sizes needs.
const CLASSES: usize = 6;
/// Pages of a thread, as log2: twice what the largest pattern has in mixed sizes, 200,000 ranges of
/// 13.6 pages as granted.
const REGION_LG2: u32 = 23;

/// A stack of free ranges for each size, powers of two of pages, aligned.
#[derive(Debug)]
pub struct Stacks {
    free: [Vec<IovaPage>; CLASSES],
    /// Where the pages never used begin, and where they end.
    untouched: u64,
    end: u64,
}

impl Stacks {
    /// Those of thread number `thread`; no two threads share any.
    pub fn of_thread(thread: usize) -> Self {
        let first = (thread as u64) << REGION_LG2;
        Stacks {
            free: Default::default(),
            untouched: first,
            end: first + (1 << REGION_LG2),
        }
    }
    #[inline]
    fn class(&mut self, pages: PageCount) -> Result<&mut Vec<IovaPage>, Failure> {
        let lg2 = pages.0.next_power_of_two().trailing_zeros();
        let class = self.free.get_mut(lg2 as usize);
        class.ok_or_else(|| Failure::new(format!("no range of {pages} pages")))
    }
    /// The first page of a free range.
    ///
    /// # Errors
    /// There is none, or none of that size.
    #[inline]
    pub fn pop(&mut self, pages: PageCount) -> Result<IovaPage, Failure> {
        match self.class(pages)?.pop() {
            Some(first) => Ok(first),
            None => self.extend(pages),
        }
    }
    /// Gives a range back, for the next of its size.
    ///
    /// # Errors
    /// There is none of that size.
    #[inline]
    pub fn push(&mut self, range: IovaRange) -> Result<(), Failure> {
        self.class(range.pages)?.push(range.first);
        Ok(())
    }
    #[cold]
    fn extend(&mut self, pages: PageCount) -> Result<IovaPage, Failure> {
        let place = pages.0.next_power_of_two();
        let first = self.untouched.next_multiple_of(place);
        if first + place > self.end {
            return Err(Failure::new(format!(
                "all ranges of {place} pages are taken"
            )));
        }
        self.untouched = first + place;
        Ok(IovaPage(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_apart_and_last_in_first_out() {
        let mut all = Vec::new();
        for thread in 0..2 {
            let mut stacks = Stacks::of_thread(thread);
            for pages in [1, 2, 17, 32, 1, 5].map(PageCount) {
                let first = stacks.pop(pages).unwrap();
                assert_eq!(first.0 % pages.0.next_power_of_two(), 0, "{first:?}");
                all.push((first.0, first.0 + pages.0.next_power_of_two()));
            }
            let range = IovaRange::new(stacks.pop(PageCount(3)).unwrap(), PageCount(3));
            stacks.push(range).unwrap();
            assert_eq!(stacks.pop(PageCount(4)).unwrap(), range.first);
            assert!(stacks.pop(PageCount(33)).is_err());
        }
        all.sort();
        assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{all:?}");
    }
}
