// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Address spaces: what can be mapped, what is, and in which order the real kernel looks for what
//! is wrong.

use crate::kernel::*;
use ioatlas_dma::units::*;
use std::collections::BTreeMap;

/// A mapping of a simulated space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Mapped {
    /// Where the device finds it.
    pub iova: Iova,
    /// Where it is in this process.
    pub memory: VirtAddr,
    pub len: ByteCount,
    /// What the device may do.
    pub perm: Perm,
}

/// Whose rules a space follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rules {
    Type1,
    Iommufd,
}

#[derive(Clone, Debug)]
pub(super) struct Space {
    pub rules: Rules,
    pub ranges: Vec<(Iova, Iova)>,
    granule: u64,
    /// How many mappings it takes yet. iommufd has no limit.
    pub avail: Option<u64>,
    pub allowed: Vec<(Iova, Iova)>,
    maps: BTreeMap<u64, Mapped>,
}

/// How much memory may be pinned, and how much is; and where there is none.
pub(super) struct Pins<'s> {
    pub pinned: &'s mut u64,
    pub limit: Option<u64>,
    pub no_memory: &'s [(u64, u64)],
}

const EOVERFLOW: Errno = Errno(75);

impl Space {
    pub fn new(
        rules: Rules,
        ranges: Vec<(Iova, Iova)>,
        granule: ByteCount,
        avail: Option<u64>,
    ) -> Self {
        Space {
            rules,
            ranges,
            granule: granule.0,
            avail,
            allowed: Vec::new(),
            maps: BTreeMap::new(),
        }
    }

    pub fn map(&mut self, call: &MapCall, pins: Pins<'_>) -> Result<(), Errno> {
        let (iova, len, memory) = (call.iova.0, call.len.0, call.memory.0);
        let aligned = |number: u64| number.is_multiple_of(self.granule);
        let memory_last = memory.checked_add(len.wrapping_sub(1));
        let last = match self.rules {
            Rules::Type1 => {
                if len == 0 || !aligned(len | iova | memory) {
                    return Err(Errno::INVAL);
                }
                let last = iova.checked_add(len - 1).ok_or(Errno::INVAL)?;
                memory_last.ok_or(Errno::INVAL)?;
                if self.overlaps(iova, last) {
                    return Err(Errno::EXIST);
                }
                if self.avail == Some(0) {
                    return Err(Errno::NOSPC);
                }
                if !self.has(iova, last) {
                    return Err(Errno::INVAL);
                }
                last
            }
            Rules::Iommufd => {
                if len == 0 || !aligned(iova) || !aligned(len) {
                    return Err(Errno::INVAL);
                }
                let last = iova.checked_add(len - 1).ok_or(EOVERFLOW)?;
                memory_last.ok_or(EOVERFLOW)?;
                if !self.has(iova, last) {
                    return Err(Errno::INVAL);
                }
                if self.overlaps(iova, last) {
                    return Err(Errno::EXIST);
                }
                last
            }
        };
        debug_assert!(last >= iova);
        let end = memory + (len - 1);
        let gone = |(from, to): &(u64, u64)| memory < *to && *from <= end;
        if pins.no_memory.iter().any(gone) {
            return Err(Errno::FAULT);
        }
        if pins.limit.is_some_and(|limit| *pins.pinned + len > limit) {
            return Err(Errno::NOMEM);
        }
        *pins.pinned += len;
        self.avail = self.avail.map(|avail| avail - 1);
        let mapped = Mapped {
            iova: call.iova,
            memory: call.memory,
            len: call.len,
            perm: call.perm,
        };
        self.maps.insert(iova, mapped);
        Ok(())
    }

    /// Returns what was unmapped; where the kernel stops half-way, what was before that is gone.
    pub fn unmap(&mut self, iova: Iova, len: ByteCount) -> (Vec<Mapped>, Result<ByteCount, Errno>) {
        let (iova, len) = (iova.0, len.0);
        let refused = |errno| (Vec::new(), Err(errno));
        let aligned = (iova | len).is_multiple_of(self.granule);
        let last = match (self.rules, iova.checked_add(len.wrapping_sub(1))) {
            (Rules::Type1, Some(last)) if len > 0 && aligned => last,
            (Rules::Type1, _) => return refused(Errno::INVAL),
            (Rules::Iommufd, _) if len == 0 => return refused(Errno::INVAL),
            (Rules::Iommufd, None) => return refused(EOVERFLOW),
            (Rules::Iommufd, Some(last)) => last,
        };
        let across = |map: &Mapped| map.iova.0 < iova || map.last() > last;
        let touched: Vec<Mapped> = self.within(iova, last);
        if self.rules == Rules::Type1 && touched.iter().any(across) {
            return refused(Errno::INVAL);
        }
        let mut gone = Vec::new();
        for map in touched {
            if across(&map) {
                self.forget(&gone);
                return (gone, Err(Errno::NOENT));
            }
            gone.push(map);
        }
        self.forget(&gone);
        let bytes = ByteCount(gone.iter().map(|map| map.len.0).sum());
        match self.rules {
            Rules::Iommufd if gone.is_empty() => refused(Errno::NOENT),
            _ => (gone, Ok(bytes)),
        }
    }
    fn forget(&mut self, gone: &[Mapped]) {
        for map in gone {
            self.maps.remove(&map.iova.0);
        }
        self.avail = self.avail.map(|avail| avail + gone.len() as u64);
    }

    /// A device came that has only these.
    pub fn narrow(&mut self, ranges: Vec<(Iova, Iova)>, granule: ByteCount) {
        self.ranges = ranges;
        self.granule = granule.0;
    }

    pub fn allow(&mut self, ranges: &[(Iova, Iova)]) -> Result<(), Errno> {
        for (first, last) in ranges {
            if first >= last {
                return Err(Errno::INVAL);
            }
            if !self.has(first.0, last.0) {
                return Err(Errno::ADDRINUSE);
            }
        }
        self.allowed = ranges.to_vec();
        Ok(())
    }

    /// Takes a mapping away; returns its bytes.
    pub fn steal(&mut self, iova: Iova) -> u64 {
        let stolen = self.maps.remove(&iova.0);
        self.avail = self.avail.map(|avail| avail + u64::from(stolen.is_some()));
        stolen.map_or(0, |map| map.len.0)
    }
    pub fn bytes(&self) -> u64 {
        self.maps.values().map(|map| map.len.0).sum()
    }
    pub fn all(&self) -> Vec<Mapped> {
        self.maps.values().copied().collect()
    }
    pub fn reach(&self, iova: Iova, kind: AccessKind) -> Option<VirtAddr> {
        let (_, map) = self.maps.range(..=iova.0).next_back()?;
        if map.last() < iova.0 {
            return None;
        }
        let at = VirtAddr(map.memory.0 + (iova.0 - map.iova.0));
        map.perm.allows(kind).then_some(at)
    }

    fn has(&self, first: u64, last: u64) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.any(|range| range.0.0 <= first && last <= range.1.0)
    }
    fn overlaps(&self, first: u64, last: u64) -> bool {
        !self.within(first, last).is_empty()
    }
    /// The mappings that touch these bytes.
    fn within(&self, first: u64, last: u64) -> Vec<Mapped> {
        let below = self.maps.range(..first).next_back();
        let below = below.filter(|(_, map)| map.last() >= first);
        let inside = self.maps.range(first..=last);
        below
            .into_iter()
            .chain(inside)
            .map(|(_, map)| *map)
            .collect()
    }
}

impl Mapped {
    fn last(&self) -> u64 {
        self.iova.0 + (self.len.0 - 1)
    }
}
