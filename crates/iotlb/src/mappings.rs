// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The mappings of one device that have pages left, from their beginning to their end.

use crate::runs::Runs;
use crate::units::{PageCount, PageRange};

/// The live mappings of a device, each with a value. A mapping ends with its last page, whether
/// that is unmapped or mapped over. Memory follows the live mappings.
#[derive(Clone, Debug)]
pub struct Mappings<T> {
    /// Indices of `mappings`.
    owners: Runs<usize>,
    mappings: Vec<Mapping<T>>,
    /// Indices of mappings that ended, for others to take.
    free: Vec<usize>,
    pages: PageCount,
}

#[derive(Clone, Copy, Debug)]
struct Mapping<T> {
    /// Pages that are still its own.
    pages: u64,
    value: T,
}

impl<T> Default for Mappings<T> {
    fn default() -> Self {
        Self {
            owners: Runs::default(),
            mappings: Vec::new(),
            free: Vec::new(),
            pages: PageCount(0),
        }
    }
}

impl<T: Copy> Mappings<T> {
    /// Pages that are mapped.
    #[must_use]
    pub const fn pages(&self) -> PageCount {
        self.pages
    }

    /// A mapping begins; `ended` hears of those that have no page left that was not mapped over.
    pub fn map(&mut self, range: PageRange, value: T, ended: impl FnMut(T)) {
        self.unmap(range, ended);
        let pages = range.pages().0;
        let mapping = Mapping { pages, value };
        let index = self.free.pop().unwrap_or(self.mappings.len());
        match self.mappings.get_mut(index) {
            Some(free) => *free = mapping,
            None => self.mappings.push(mapping),
        }
        let (first, last) = (range.first().number(), range.last().number());
        self.owners.insert(first, last, index);
        self.pages.0 += pages;
    }

    /// Takes pages from the mappings that have them; `ended` hears of those that have none left.
    pub fn unmap(&mut self, range: PageRange, mut ended: impl FnMut(T)) {
        let (first, last) = (range.first().number(), range.last().number());
        let taken = self.owners.take(first, last, |first, last, index| {
            let mapping = &mut self.mappings[index];
            mapping.pages -= last - first + 1;
            if mapping.pages == 0 {
                ended(mapping.value);
                self.free.push(index);
            }
        });
        self.pages.0 -= taken.0;
    }

    /// The values of the live mappings, in no order that means anything.
    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        let live = self.mappings.iter().filter(|mapping| mapping.pages > 0);
        live.map(|mapping| mapping.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::IovaPage;

    fn range(first: u64, pages: u64) -> PageRange {
        PageRange::new(IovaPage::known(first), PageCount(pages)).unwrap()
    }

    #[test]
    fn a_mapping_ends_with_its_last_page() {
        let (mut live, mut ended) = (Mappings::default(), Vec::new());
        live.map(range(0, 4), 'a', |_| panic!());
        live.unmap(range(1, 2), |_| panic!());
        live.map(range(8, 1), 'b', |_| panic!());
        assert_eq!((live.pages(), live.values().count()), (PageCount(3), 2));
        // over one of its two pages, then over the other
        live.map(range(3, 1), 'c', |_| panic!());
        live.map(range(0, 1), 'd', |value| ended.push(value));
        live.unmap(range(0, 100), |value| ended.push(value));
        assert_eq!(ended, ['a', 'd', 'c', 'b']);
        assert_eq!((live.pages(), live.values().count()), (PageCount(0), 0));
    }
}
