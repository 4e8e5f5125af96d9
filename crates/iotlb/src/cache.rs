// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The IOTLB: a set-associative cache of (device, page), least recently used out
//! first.
//!
//! An entry is in the index (sorted, so that a range of pages can be removed in
//! time proportional to what is there) and in its set's list, ordered by use. Cost
//! a step is logarithmic in the entries and independent of the ways, so a fully
//! associative cache is the same structure with one set.

use crate::event::DeviceId;
use crate::units::{IovaPage, PageRange};
use std::collections::BTreeMap;

/// Largest number of entries accepted: far above any hardware, and small enough
/// that a mistyped number exhausts no memory.
const MAX_ENTRIES: usize = 1 << 20;

/// Size and shape of an IOTLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    entries: usize,
    ways: usize,
}

/// No IOTLB can have this shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Entries or ways is 0.
    #[error("an IOTLB of {entries} entries and {ways} ways: neither may be 0")]
    Zero {
        /// As given.
        entries: usize,
        /// As given.
        ways: usize,
    },
    /// Sets would differ in size.
    #[error("{entries} entries are not a multiple of {ways} ways")]
    NotMultiple {
        /// As given.
        entries: usize,
        /// As given.
        ways: usize,
    },
    /// Beyond what the simulator accepts.
    #[error("{entries} entries are more than the {MAX_ENTRIES} that can be simulated")]
    TooLarge {
        /// As given.
        entries: usize,
    },
}

impl Default for Geometry {
    /// 32 entries in 2 ways, as WIOSCA'10 assumes.
    fn default() -> Self {
        Self {
            entries: 32,
            ways: 2,
        }
    }
}

impl Geometry {
    /// An IOTLB of `entries` entries, `ways` to a set.
    ///
    /// # Errors
    ///
    /// If either is 0, `entries` is not a multiple of `ways` or above 2^20.
    pub fn new(entries: usize, ways: usize) -> Result<Self, GeometryError> {
        if entries == 0 || ways == 0 {
            return Err(GeometryError::Zero { entries, ways });
        }
        if entries > MAX_ENTRIES {
            return Err(GeometryError::TooLarge { entries });
        }
        if !entries.is_multiple_of(ways) {
            return Err(GeometryError::NotMultiple { entries, ways });
        }
        Ok(Self { entries, ways })
    }

    /// The same number of entries in one set.
    #[must_use]
    pub const fn fully_associative(self) -> Self {
        Self {
            entries: self.entries,
            ways: self.entries,
        }
    }

    /// Number of entries.
    #[must_use]
    pub const fn entries(self) -> usize {
        self.entries
    }

    /// Entries a set.
    #[must_use]
    pub const fn ways(self) -> usize {
        self.ways
    }

    /// Number of sets.
    #[must_use]
    pub const fn sets(self) -> usize {
        self.entries / self.ways
    }
}

/// What an entry is looked up by.
pub(crate) type Key = (DeviceId, IovaPage);

/// The keys of a range of one device's pages, in the order of [`Key`].
pub(crate) fn keys(device: DeviceId, range: PageRange) -> std::ops::RangeInclusive<Key> {
    (device, range.first())..=(device, range.last())
}

/// No entry: end of a list.
const NONE: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    /// Neighbour used more recently.
    newer: usize,
    /// Neighbour used less recently.
    older: usize,
}

#[derive(Clone, Copy)]
struct Set {
    newest: usize,
    oldest: usize,
    len: usize,
}

/// The cache itself.
pub(crate) struct Iotlb {
    geometry: Geometry,
    index: BTreeMap<Key, usize>,
    entries: Vec<Entry>,
    free: Vec<usize>,
    sets: Vec<Set>,
}

impl Iotlb {
    pub fn new(geometry: Geometry) -> Self {
        let empty = Set {
            newest: NONE,
            oldest: NONE,
            len: 0,
        };
        Self {
            geometry,
            index: BTreeMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            sets: vec![empty; geometry.sets()],
        }
    }

    /// Looks `key` up and makes it the most recently used of its set.
    pub fn hit(&mut self, key: Key) -> bool {
        let Some(&at) = self.index.get(&key) else {
            return false;
        };
        let set = self.set_of(key);
        self.unlink(set, at);
        self.link_newest(set, at);
        true
    }

    /// Adds `key`, which is not there; returns what had to go.
    pub fn fill(&mut self, key: Key) -> Option<Key> {
        let set = self.set_of(key);
        let mut evicted = None;
        if self.sets[set].len == self.geometry.ways {
            let victim = self.sets[set].oldest;
            evicted = Some(self.entries[victim].key);
            self.remove(set, victim);
        }
        let entry = Entry {
            key,
            newer: NONE,
            older: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.index.insert(key, at);
        self.link_newest(set, at);
        evicted
    }

    /// Removes a device's entries for a range of pages; returns how many there were.
    pub fn invalidate(&mut self, device: DeviceId, range: PageRange) -> u64 {
        let mut removed = 0;
        while let Some((&key, &at)) = self.index.range(keys(device, range)).next() {
            self.remove(self.set_of(key), at);
            removed += 1;
        }
        removed
    }

    fn set_of(&self, (_, page): Key) -> usize {
        (page.number() % self.sets.len() as u64) as usize
    }

    fn remove(&mut self, set: usize, at: usize) {
        self.unlink(set, at);
        self.index.remove(&self.entries[at].key);
        self.free.push(at);
    }

    fn link_newest(&mut self, set: usize, at: usize) {
        let second = self.sets[set].newest;
        self.entries[at].newer = NONE;
        self.entries[at].older = second;
        if second == NONE {
            self.sets[set].oldest = at;
        } else {
            self.entries[second].newer = at;
        }
        self.sets[set].newest = at;
        self.sets[set].len += 1;
    }

    fn unlink(&mut self, set: usize, at: usize) {
        let Entry { newer, older, .. } = self.entries[at];
        if newer == NONE {
            self.sets[set].newest = older;
        } else {
            self.entries[newer].older = older;
        }
        if older == NONE {
            self.sets[set].oldest = newer;
        } else {
            self.entries[older].newer = newer;
        }
        self.sets[set].len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(page: u64) -> Key {
        (DeviceId(0), IovaPage::new(page).unwrap())
    }

    #[test]
    fn the_least_recently_used_of_the_set_goes() {
        let mut iotlb = Iotlb::new(Geometry::new(6, 2).unwrap());
        // Sets of 3: pages 0, 3, 6 and 9 share one, page 1 has another.
        for page in [0, 1, 3] {
            assert_eq!(iotlb.fill(key(page)), None);
        }
        assert!(iotlb.hit(key(0)));
        assert_eq!(iotlb.fill(key(6)), Some(key(3)));
        assert_eq!(iotlb.fill(key(9)), Some(key(0)));
        assert!(iotlb.hit(key(1)) && iotlb.hit(key(6)) && !iotlb.hit(key(0)));
    }

    #[test]
    fn invalidation_is_by_device_and_makes_room() {
        let mut iotlb = Iotlb::new(Geometry::new(2, 2).unwrap());
        let other = (DeviceId(1), IovaPage::new(4).unwrap());
        iotlb.fill(key(4));
        iotlb.fill(other);
        assert_eq!(
            iotlb.invalidate(DeviceId(0), PageRange::inclusive(0, (1 << 52) - 1)),
            1
        );
        assert_eq!(iotlb.fill(key(8)), None);
        assert!(iotlb.hit(other) && iotlb.hit(key(8)) && !iotlb.hit(key(4)));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(
            Geometry::new(0, 2),
            Err(GeometryError::Zero {
                entries: 0,
                ways: 2
            })
        );
        assert_eq!(
            Geometry::new(2, 0),
            Err(GeometryError::Zero {
                entries: 2,
                ways: 0
            })
        );
        assert_eq!(
            Geometry::new(32, 3),
            Err(GeometryError::NotMultiple {
                entries: 32,
                ways: 3
            })
        );
        let entries = MAX_ENTRIES + 2;
        assert_eq!(
            Geometry::new(entries, 2),
            Err(GeometryError::TooLarge { entries })
        );
        assert_eq!(Geometry::new(6, 2).unwrap().sets(), 3);
    }
}
