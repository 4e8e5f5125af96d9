// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Sizes and shapes that an IOTLB can have.

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
#[allow(missing_docs)] // its fields say it
pub enum GeometryError {
    /// Entries or ways is 0.
    #[error("an IOTLB of {entries} entries and {ways} ways: neither may be 0")]
    Zero { entries: usize, ways: usize },
    /// Sets would differ in size.
    #[error("{entries} entries are not a multiple of {ways} ways")]
    NotMultiple { entries: usize, ways: usize },
    /// Beyond what the simulator accepts.
    #[error("{entries} entries are more than the {MAX_ENTRIES} that can be simulated")]
    TooLarge { entries: usize },
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

    /// Number of entries of all sets.
    #[must_use]
    pub const fn entries(self) -> usize {
        self.entries
    }

    /// Entries of one set.
    #[must_use]
    pub const fn ways(self) -> usize {
        self.ways
    }

    /// Number of sets: entries divided by ways.
    #[must_use]
    pub const fn sets(self) -> usize {
        self.entries / self.ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
