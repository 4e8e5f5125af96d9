// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The IOTLB: set-associative, tagged by domain and page, least recently used within the set.
//!
//! The set of a page is its number modulo the number of sets (WIOSCA'10 §4 leaves it open; the
//! trace simulator does the same, so that the two agree to the last miss). Lookups and fills touch
//! one set, page-selective invalidation only the sets its pages can be in.

use crate::config::SetGeometry;
use core::ops::Range;
use ioatlas_dma::units::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Translation {
    pub(crate) domain: DomainId,
    pub(crate) page: IovaPage,
    pub(crate) to: PhysPage,
    pub(crate) perm: Perm,
}

#[derive(Clone, Copy)]
struct Slot {
    entry: Translation,
    used: u64,
}

pub(crate) struct Iotlb {
    slots: Vec<Option<Slot>>,
    ways: usize,
    sets: usize,
    /// Advances with every use; the stamp of the latest.
    clock: u64,
}

impl Iotlb {
    pub(crate) fn new(geometry: SetGeometry) -> Self {
        Iotlb {
            slots: vec![None; geometry.entries],
            ways: geometry.ways,
            sets: geometry.entries.checked_div(geometry.ways).unwrap_or(0),
            clock: 0,
        }
    }

    /// Looks up, as a use.
    pub(crate) fn get(&mut self, domain: DomainId, page: IovaPage) -> Option<Translation> {
        let slot = self.find(domain, page)?;
        self.clock += 1;
        let slot = self.slots[slot].as_mut()?;
        slot.used = self.clock;
        Some(slot.entry)
    }
    /// Looks up without using.
    pub(crate) fn peek(&self, domain: DomainId, page: IovaPage) -> Option<Translation> {
        self.find(domain, page)
            .and_then(|at| self.slots[at])
            .map(|s| s.entry)
    }
    /// Enters a translation as its set's latest; says how many others that displaced (0 or 1).
    pub(crate) fn fill(&mut self, entry: Translation) -> u64 {
        let set = self.set_of(entry.page);
        let there = self.find(entry.domain, entry.page);
        // an empty way counts as used before all others
        let victim = there.or_else(|| set.min_by_key(|&at| self.slots[at].map_or(0, |s| s.used)));
        let Some(at) = victim else { return 0 };
        self.clock += 1;
        let displaced = there.is_none() && self.slots[at].is_some();
        self.slots[at] = Some(Slot {
            entry,
            used: self.clock,
        });
        u64::from(displaced)
    }
    /// Removes what `condemned` says; returns how many.
    pub(crate) fn sweep(&mut self, condemned: impl FnMut(&Translation) -> bool) -> u64 {
        self.sweep_slots(0..self.slots.len(), condemned)
    }
    /// The same, looking only where pages of `range` can be. `condemned` sees other pages
    /// of those sets too.
    pub(crate) fn sweep_range(
        &mut self,
        range: IovaRange,
        mut condemned: impl FnMut(&Translation) -> bool,
    ) -> u64 {
        if range.pages.0 >= self.sets as u64 {
            return self.sweep(condemned);
        }
        range
            .iter()
            .map(|page| self.sweep_slots(self.set_of(page), &mut condemned))
            .sum()
    }
    /// Evicts what lies in the slot that `random` picks, if anything; returns how many (0 or 1).
    pub(crate) fn evict(&mut self, random: u64) -> u64 {
        match self.slots.len() as u64 {
            0 => 0,
            n => u64::from(self.slots[(random % n) as usize].take().is_some()),
        }
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Translation> {
        self.slots.iter().flatten().map(|s| &s.entry)
    }
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }
    /// Checks that each translation is in its set, and once.
    pub(crate) fn audit(&self) -> Result<(), String> {
        for (at, slot) in self.slots.iter().enumerate() {
            let Some(Slot { entry, used }) = slot else {
                continue;
            };
            if self.find(entry.domain, entry.page) != Some(at) {
                let (page, domain) = (entry.page, entry.domain);
                return Err(format!(
                    "page {page} of domain {domain} is twice or in a wrong set"
                ));
            }
            if *used > self.clock {
                return Err(format!("slot {at} was used in the future"));
            }
        }
        Ok(())
    }

    fn set_of(&self, page: IovaPage) -> Range<usize> {
        match self.sets as u64 {
            0 => 0..0,
            sets => {
                let first = (page.0 % sets) as usize * self.ways;
                first..first + self.ways
            }
        }
    }
    fn find(&self, domain: DomainId, page: IovaPage) -> Option<usize> {
        self.set_of(page).find(|&at| {
            self.slots[at].is_some_and(|s| s.entry.domain == domain && s.entry.page == page)
        })
    }
    fn sweep_slots(
        &mut self,
        slots: Range<usize>,
        mut condemned: impl FnMut(&Translation) -> bool,
    ) -> u64 {
        let mut removed = 0;
        for slot in &mut self.slots[slots] {
            if slot.is_some_and(|s| condemned(&s.entry)) {
                *slot = None;
                removed += 1;
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        Get(u16, u64),
        Fill(u16, u64, u64),
        Invalidate(u16, u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..2u16, 0..16u64).prop_map(|(d, p)| Op::Get(d, p)),
            3 => (0..2u16, 0..16u64, 0..99u64).prop_map(|(d, p, to)| Op::Fill(d, p, to)),
            1 => (0..2u16, 0..16u64, 1..9u64).prop_map(|(d, p, n)| Op::Invalidate(d, p, n)),
        ]
    }

    proptest! {
        /// Against one list a set, kept in order of use.
        #[test]
        fn behaves_as_lists_in_order_of_use(
            (sets, ways) in (0..5usize, 1..4usize),
            ops in prop::collection::vec(op(), 0..80),
        ) {
            let mut tlb = Iotlb::new(SetGeometry { entries: sets * ways, ways });
            let mut model: BTreeMap<u64, Vec<(u16, u64, u64)>> = BTreeMap::new(); // oldest first
            for op in ops {
                match op {
                    Op::Get(d, p) => {
                        let got = tlb.get(DomainId(d), IovaPage(p)).map(|t| t.to.0);
                        let want = sets.checked_sub(1).and_then(|_| {
                            let set = model.entry(p % sets as u64).or_default();
                            let at = set.iter().position(|e| (e.0, e.1) == (d, p))?;
                            let e = set.remove(at);
                            set.push(e);
                            Some(e.2)
                        });
                        prop_assert_eq!(got, want);
                    }
                    Op::Fill(d, p, to) => {
                        let entry = Translation { domain: DomainId(d), page: IovaPage(p), to: PhysPage(to), perm: Perm::Read };
                        let displaced = tlb.fill(entry);
                        if sets == 0 { prop_assert_eq!(displaced, 0); continue; }
                        let set = model.entry(p % sets as u64).or_default();
                        set.retain(|e| (e.0, e.1) != (d, p));
                        set.push((d, p, to));
                        let over = set.len().saturating_sub(ways);
                        set.drain(..over);
                        prop_assert_eq!(displaced, over as u64);
                    }
                    Op::Invalidate(d, p, n) => {
                        let range = IovaRange::new(IovaPage(p), PageCount(n));
                        let hit = |d2: u16, p2: u64| d2 == d && (p..p + n).contains(&p2);
                        let removed = tlb.sweep_range(range, |t| hit(t.domain.0, t.page.0));
                        let before: usize = model.values().map(Vec::len).sum();
                        model.values_mut().for_each(|s| s.retain(|e| !hit(e.0, e.1)));
                        let after: usize = model.values().map(Vec::len).sum();
                        prop_assert_eq!(removed, (before - after) as u64);
                    }
                }
                prop_assert_eq!(tlb.audit(), Ok(()));
                let held = tlb.iter().count();
                prop_assert_eq!(held, model.values().map(Vec::len).sum::<usize>());
            }
        }
    }
}
