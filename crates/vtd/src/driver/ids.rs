// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domain ids: a bitmap of as many as the unit has (VT-d 4.1 §11.4.2, ND).
//!
//! Id 0 is never given: units in caching mode tag entries that are not present with it (§6.1). The
//! search begins one word after the last success, so that an id that was given back usually rests.
//!
//! While a unit translates by firmware's tables its caches hold entries under the ids of firmware's
//! contexts, and go on holding them between the moment at which the root table is ours and the end
//! of the global invalidation that follows. An id that is given meanwhile must be none of those:
//! none is given before it is known which they are.

use alloc::boxed::Box;
use ioatlas_dma::units::DomainId;

/// Which ids are taken, one bit each.
pub(super) struct Ids {
    taken: Box<[u64]>,
    /// The word to look at first.
    next: usize,
    stale: Stale,
}

/// Under which ids the unit may have entries that are not ours.
pub(super) enum Stale {
    None,
    /// It is not known: under any.
    Any,
    /// Under these, one bit each.
    These(Box<[u64]>),
}

impl Ids {
    /// `count` ids, of which 0 is taken. `count` is a power of two from 16 to 65,536.
    pub(super) fn new(count: u32, stale: Stale) -> Self {
        let words = (count as usize).div_ceil(64);
        let mut taken = alloc::vec![0u64; words].into_boxed_slice();
        taken[0] = 1;
        if count < 64 {
            taken[0] |= u64::MAX << count;
        }
        Ids {
            taken,
            next: 0,
            stale,
        }
    }

    /// A free id under which the unit has nothing. Looks at each word at most once.
    pub(super) fn take(&mut self) -> Option<DomainId> {
        let words = self.taken.len();
        let (word, bit) =
            (0..words)
                .map(|n| (self.next + n) % words)
                .find_map(|word| match self.occupied(word).trailing_ones() {
                    64 => None,
                    bit => Some((word, bit)),
                })?;
        self.taken[word] |= 1 << bit;
        self.next = (word + 1) % words;
        Some(DomainId((word * 64 + bit as usize) as u16))
    }

    /// The ids of this word that are taken or may not be given yet.
    fn occupied(&self, word: usize) -> u64 {
        let stale = match &self.stale {
            Stale::None => 0,
            Stale::Any => u64::MAX,
            Stale::These(ids) => ids[word],
        };
        self.taken[word] | stale
    }

    /// Whether it is unknown which ids the unit has entries under.
    pub(super) fn any_is_stale(&self) -> bool {
        matches!(self.stale, Stale::Any)
    }
    /// Where that was unknown, it is these ids, and no others. Those that the unit does not
    /// have are left out.
    pub(super) fn stale_are(&mut self, ids: impl Iterator<Item = DomainId>) {
        if !self.any_is_stale() {
            return;
        }
        let mut these = alloc::vec![0u64; self.taken.len()].into_boxed_slice();
        for id in ids {
            if let Some(word) = these.get_mut(usize::from(id.0) / 64) {
                *word |= 1 << (id.0 % 64);
            }
        }
        self.stale = Stale::These(these);
    }
    /// The unit's caches were emptied of all that is not ours.
    pub(super) fn none_is_stale(&mut self) {
        self.stale = Stale::None;
    }

    /// Gives `id` back. One that is not taken, or 0, stays as it is.
    pub(super) fn give_back(&mut self, id: DomainId) {
        let (word, bit) = (usize::from(id.0) / 64, id.0 % 64);
        if id.0 != 0
            && let Some(word) = self.taken.get_mut(word)
        {
            *word &= !(1 << bit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_unit_gives_each_of_its_ids_once_and_never_0() {
        for count in (0..7).map(|nd| 1u32 << (4 + 2 * nd)) {
            let mut ids = Ids::new(count, Stale::None);
            let given: BTreeSet<u16> = core::iter::from_fn(|| ids.take()).map(|id| id.0).collect();
            assert_eq!(given.len() as u32, count - 1, "of {count}");
            assert!(!given.contains(&0), "of {count}");
            assert!(given.iter().all(|id| u32::from(*id) < count), "of {count}");
        }
    }

    #[test]
    fn an_id_comes_again_only_after_it_was_given_back() {
        let mut ids = Ids::new(16, Stale::None);
        let all: alloc::vec::Vec<_> = core::iter::from_fn(|| ids.take()).collect();
        ids.give_back(all[4]);
        assert_eq!(ids.take(), Some(all[4]));
        assert_eq!(ids.take(), None);
    }

    #[test]
    fn giving_back_0_or_one_beyond_the_last_gives_nothing() {
        let mut ids = Ids::new(16, Stale::None);
        while ids.take().is_some() {}
        ids.give_back(DomainId(0));
        ids.give_back(DomainId(64));
        assert_eq!(ids.take(), None);
    }

    #[test]
    fn what_is_stale_is_given_only_once_it_is_not() {
        let mut ids = Ids::new(256, Stale::Any);
        assert_eq!(ids.take(), None);
        ids.stale_are([1, 2, 3, 64, 255, 9999].into_iter().map(DomainId));
        let given: BTreeSet<u16> = core::iter::from_fn(|| ids.take()).map(|id| id.0).collect();
        assert_eq!(given.len(), 256 - 6, "all but five, and 0");
        assert!(given.is_disjoint(&BTreeSet::from([0, 1, 2, 3, 64, 255])));
        // said once
        ids.stale_are(core::iter::empty());
        assert_eq!(ids.take(), None);
        ids.none_is_stale();
        let rest: BTreeSet<u16> = core::iter::from_fn(|| ids.take()).map(|id| id.0).collect();
        assert_eq!(rest, BTreeSet::from([1, 2, 3, 64, 255]));
    }
}
