// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a unit is made of: walk geometry, caches, capabilities. Every size is checked before
//! anything is allocated.

mod devices;
mod features;
mod registers;

pub use devices::{Answer, Ats, AtsDevice, DeviceError, Refetch};
pub use features::{Features, LARGEST_LEAF_LEVEL, WriteBuffers};
pub use registers::*;

use core::num::NonZeroU32;
use ioatlas_dma::{
    table::Format,
    units::{GRANULE_LG2, PHYS_BITS},
};

/// The largest cache that can be asked for, in entries.
pub const MAX_CACHE_ENTRIES: usize = 1 << 20;
/// The largest number of pages prefetched after a walk.
pub const MAX_PREFETCH: u32 = 512;
/// The largest number of fault records (VT-d 4.1 §11.4.2, NFR: 8 bits, N+1).
pub const MAX_FAULT_RECORDS: usize = 256;

/// The shape of a walk: `levels` tables of 2^`entries_lg2` entries each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Levels of a walk; the root table is at this level, leaves at level 1. 1 to 5.
    pub levels: u32,
    /// Log2 of the entries of one table. 1 to 9.
    pub entries_lg2: u32,
}

impl Geometry {
    /// VT-d second stage, 39-bit: 3 levels of 512 entries (VT-d 4.1 §3.7).
    pub const VTD_39: Geometry = Geometry {
        levels: 3,
        entries_lg2: 9,
    };
    /// The same, 48-bit: 4 levels.
    pub const VTD_48: Geometry = Geometry {
        levels: 4,
        entries_lg2: 9,
    };
    /// The same, 57-bit: 5 levels.
    pub const VTD_57: Geometry = Geometry {
        levels: 5,
        entries_lg2: 9,
    };

    /// The geometry of a table format.
    pub fn of<F: Format>() -> Self {
        Geometry {
            levels: F::LEVELS,
            entries_lg2: F::ENTRIES_LG2,
        }
    }
    /// Log2 of the pages that a leaf found at `level` maps.
    pub fn leaf_span_lg2(self, level: u32) -> u32 {
        self.entries_lg2 * (level - 1)
    }
    /// Log2 of the pages that a whole table at `level` maps.
    pub fn table_span_lg2(self, level: u32) -> u32 {
        self.entries_lg2 * level
    }
    /// Which entry of a table at `level` a walk to `page` reads.
    pub fn index(self, page: u64, level: u32) -> usize {
        (page >> (self.entries_lg2 * (level - 1))) as usize & ((1 << self.entries_lg2) - 1)
    }
    /// Log2 of the pages that can be translated.
    pub fn aperture_lg2(self) -> u32 {
        self.entries_lg2 * self.levels
    }
    /// Bits of an IOVA.
    pub fn address_bits(self) -> u32 {
        self.aperture_lg2() + GRANULE_LG2
    }
}

/// A set-associative cache, least recently used within the set. `entries: 0` disables it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetGeometry {
    /// Entries in all, a multiple of `ways`.
    pub entries: usize,
    /// Entries of a set. The set of a page is its number modulo `entries / ways`.
    pub ways: usize,
}

/// Entries evicted at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// Seed of the choices.
    pub seed: u64,
    /// On average one access in so many evicts one entry.
    pub one_in: NonZeroU32,
}

/// Sizes of the translation caches, and how they evict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Context cache entries, fully associative; 0 disables.
    pub context: usize,
    /// Entries and ways of the IOTLB.
    pub iotlb: SetGeometry,
    /// Walk caches, fully associative: element i caches entries of tables at level i + 2 (their
    /// pointers to tables one level down). Missing elements are 0, 0 disables.
    pub walk: Vec<usize>,
    /// IOTLB entries for large leaves, fully associative and beside [`iotlb`](Self::iotlb), which
    /// holds pages only: element i caches leaves of tables at level i + 2. Missing elements are 0,
    /// 0 disables. Levels that have no leaves hold nothing.
    pub large: Vec<usize>,
    /// Entries that are absent or faulty, of all levels together, fully associative; 0 disables.
    /// Nothing without caching mode.
    pub absent: usize,
    /// How many following pages (of the same table) a walk reads ahead into the IOTLB.
    pub prefetch: u32,
    /// Eviction at random, since hardware may evict whenever it likes (P13).
    pub eviction: Option<Eviction>,
}

/// What processes the invalidation queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Processing {
    /// The write of the tail register does, until done or blocked; the call that ends what
    /// blocked it goes on.
    Inline,
    /// Calls of [`SoftUnit::service`](crate::unit::SoftUnit::service) do, a micro-step at a time.
    Asynchronous,
    /// Nothing: a dead unit, for fault injection.
    Stuck,
}

/// When a wait descriptor's status is written (VT-d 4.1 §6.5.2.11: after everything ahead of it is
/// done, in the order of the queue; how much later is the unit's affair).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WaitReports {
    /// Before the next descriptor is fetched.
    #[default]
    InTurn,
    /// As late as can be: what follows in the queue is fetched and carried out first, up to
    /// [`MAX_UNREPORTED`] wait descriptors. The head is far ahead of what was reported then, and
    /// after an error the unit reports what it had fetched before.
    Late,
}

/// The most wait descriptors that a unit which reports late has fetched and not reported.
pub const MAX_UNREPORTED: usize = 16;

/// The whole configuration of a unit.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitConfig {
    /// The shape of a walk.
    pub geometry: Geometry,
    pub caches: CacheConfig,
    pub features: Features,
    /// What processes the invalidation queue.
    pub processing: Processing,
    /// When wait descriptors are reported.
    pub wait_reports: WaitReports,
    /// How many fault records are kept until they are read. 1 to 256.
    pub fault_records: usize,
    pub registers: RegisterConfig,
    pub devices: Vec<AtsDevice>,
}

impl UnitConfig {
    /// A unit for `geometry` with an IOTLB of 32 entries in 2 ways (WIOSCA'10 §4) and small walk
    /// caches, nothing at random.
    pub fn new(geometry: Geometry) -> Self {
        UnitConfig {
            geometry,
            caches: CacheConfig {
                context: 16,
                iotlb: SetGeometry {
                    entries: 32,
                    ways: 2,
                },
                walk: vec![8; geometry.levels.saturating_sub(1) as usize],
                large: vec![8; geometry.levels.clamp(1, LARGEST_LEAF_LEVEL) as usize - 1],
                absent: 16,
                prefetch: 0,
                eviction: None,
            },
            features: Features {
                page_selective: Some(geometry.aperture_lg2().min(18) as u8),
                nd: 6,
                drain_reads: true,
                drain_writes: true,
                coherent: true,
                pass_through: false,
                phys_bits: PHYS_BITS,
                largest_leaf: 1,
                caching_mode: false,
                write_buffers: WriteBuffers::None,
                device_tlbs: false,
            },
            processing: Processing::Inline,
            wait_reports: WaitReports::InTurn,
            fault_records: 16,
            registers: RegisterConfig::default(),
            devices: Vec::new(),
        }
    }

    /// Checks every number against its range.
    ///
    /// # Errors
    /// The first that does not fit.
    pub fn check(&self) -> Result<(), ConfigError> {
        let within = |what, value: u64, min, max| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange {
                    what,
                    value,
                    min,
                    max,
                })
            }
        };
        let (g, c, f) = (self.geometry, &self.caches, &self.features);
        let most = MAX_CACHE_ENTRIES as u64;
        within("levels", g.levels.into(), 1, 5)?;
        within("log2 of the entries of a table", g.entries_lg2.into(), 1, 9)?;
        within("context cache entries", c.context as u64, 0, most)?;
        within("IOTLB entries", c.iotlb.entries as u64, 0, most)?;
        if c.iotlb.entries > 0 && (c.iotlb.ways == 0 || c.iotlb.entries % c.iotlb.ways != 0) {
            return Err(ConfigError::Ways {
                entries: c.iotlb.entries,
                ways: c.iotlb.ways,
            });
        }
        within(
            "walk caches",
            c.walk.len() as u64,
            0,
            u64::from(g.levels) - 1,
        )?;
        for &entries in &c.walk {
            within("walk cache entries", entries as u64, 0, most)?;
        }
        devices::check(&self.devices)?;
        let leaf_levels = Features::leaf_levels(g);
        within(
            "caches of large leaves",
            c.large.len() as u64,
            0,
            leaf_levels - 1,
        )?;
        for &entries in &c.large {
            within("entries for large leaves", entries as u64, 0, most)?;
        }
        within("cached absent entries", c.absent as u64, 0, most)?;
        within(
            "level of the largest leaf",
            f.largest_leaf.into(),
            1,
            leaf_levels,
        )?;
        within(
            "prefetched pages",
            c.prefetch.into(),
            0,
            MAX_PREFETCH.into(),
        )?;
        within("MAMV", f.page_selective.unwrap_or(0).into(), 0, 52)?;
        within("ND", f.nd.into(), 0, 6)?;
        within(
            "physical address bits",
            f.phys_bits.into(),
            13,
            PHYS_BITS.into(),
        )?;
        within(
            "fault records",
            self.fault_records as u64,
            1,
            MAX_FAULT_RECORDS as u64,
        )?;
        Ok(self.registers.check(self.fault_records)?)
    }
}

/// Why a unit cannot be made.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number is out of its range.
    #[error("{what}: {value} is not within {min} to {max}")]
    OutOfRange {
        what: &'static str,
        value: u64,
        min: u64,
        max: u64,
    },
    /// The sets do not come out even.
    #[error("an IOTLB of {entries} entries has no whole number of sets of {ways} ways")]
    Ways {
        entries: usize,
        /// Entries of a set.
        ways: usize,
    },
    /// The registers do not fit.
    #[error(transparent)]
    Registers(#[from] PlaceError),
    /// The devices do not fit.
    #[error(transparent)]
    Devices(#[from] DeviceError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_dma::table::fmt::{Toy, VtdSecond48};

    #[test]
    fn geometry_follows_the_format() {
        assert_eq!(Geometry::of::<VtdSecond48>(), Geometry::VTD_48);
        let toy = Geometry::of::<Toy<2, 3>>();
        assert_eq!((toy.levels, toy.entries_lg2, toy.aperture_lg2()), (3, 2, 6));
        assert_eq!(
            [3, 2, 1].map(|level| toy.index(0b11_01_10, level)),
            [3, 1, 2]
        );
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let ok = UnitConfig::new(Geometry::VTD_48);
        assert_eq!(ok.check(), Ok(()));
        let mut bad = ok.clone();
        bad.caches.iotlb = SetGeometry {
            entries: 32,
            ways: 3,
        };
        assert_eq!(
            bad.check(),
            Err(ConfigError::Ways {
                entries: 32,
                ways: 3
            })
        );
        let mut bad = ok.clone();
        bad.caches.walk = vec![1; 4];
        assert_eq!(
            bad.check().unwrap_err().to_string(),
            "walk caches: 4 is not within 0 to 3"
        );
        for (level, good) in [(0, false), (1, true), (3, true), (4, false)] {
            let mut leaves = ok.clone();
            leaves.features.largest_leaf = level;
            assert_eq!(leaves.check().is_ok(), good, "leaves up to level {level}");
        }
        let mut bad = ok;
        bad.caches.context = usize::MAX;
        assert!(matches!(bad.check(), Err(ConfigError::OutOfRange { .. })));
    }
}
