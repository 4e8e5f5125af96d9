// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map and an unmap cost, and whose costs these are.

use super::model;
use ioatlas_dma::units::PageCount;
use std::{fmt, str::FromStr, time::Duration};

/// Nanoseconds: so many, and so many more a page.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Nanoseconds of any request.
    pub base_ns: f64,
    /// Nanoseconds more for each page of it.
    pub page_ns: f64,
}

impl Cost {
    /// No time at all.
    pub const NONE: Self = Self {
        base_ns: 0.0,
        page_ns: 0.0,
    };
    /// The line through two measured points, (pages, nanoseconds) each.
    pub const fn through(one: (f64, f64), two: (f64, f64)) -> Self {
        let page_ns = (two.1 - one.1) / (two.0 - one.0);
        Self {
            base_ns: one.1 - page_ns * one.0,
            page_ns,
        }
    }
    /// Of a request of so many pages, in nanoseconds.
    pub fn ns(&self, pages: PageCount) -> f64 {
        self.base_ns + self.page_ns * pages.0 as f64
    }
    /// The same; never negative.
    pub fn time(&self, pages: PageCount) -> Duration {
        Duration::from_nanos(self.ns(pages).max(0.0) as u64)
    }
}

/// Whether a translator holds one lock over all that it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BigLock {
    /// It does, as virtio-iommu and VFIO type 1 do: requests of two threads take the time of both.
    Held,
    /// It does not: two threads wait at the same time.
    #[default]
    None,
}

/// What a translator charges.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Charge {
    /// For each installation of translations.
    pub map: Cost,
    /// For each removal, with the wait until no cache holds them any more.
    pub unmap: Cost,
    /// Whether others wait meanwhile.
    pub lock: BigLock,
}

impl Charge {
    /// Of a map and its unmap, in nanoseconds.
    pub fn pair_ns(&self, pages: PageCount) -> f64 {
        self.map.ns(pages) + self.unmap.ns(pages)
    }
    /// Whether anything is charged.
    pub fn is_free(&self) -> bool {
        self.map == Cost::NONE && self.unmap == Cost::NONE
    }
}

/// Costs with a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Preset {
    /// Our own tables under a unit that caches nothing: nothing is charged.
    Free,
    /// A hardware unit under a strict policy: 2,127 cycles of 2.4 GHz for each invalidation, waited
    /// for at each unmap, whatever its pages (rIOMMU, ASPLOS 2015). Waiting holds no lock (ATC'15
    /// §5). Writing the tables is not charged: it is done.
    Moderate,
    /// VFIO type 1 over virtio-iommu in an emulated guest (QEMU 7.2 with TCG, Linux 6.12): wall
    /// time of the two ioctls, measured by this project on one page and on 32 pages of buffers that
    /// lie together: map 10.2 and 13.5 us, unmap 7.1 and 12.0 us. Nothing is fitted. An exit is
    /// nearly free there, so hardware is dearer.
    VfioGuest,
    /// BOUNCE'21's laptop (i5-10210U, NVMe passed through, virtio-iommu): see
    /// [`model::Machine::bounce21`], fitted on one number of four.
    Bounce21,
}

impl Preset {
    /// Every one, the cheapest first.
    pub const ALL: [Self; 4] = [
        Preset::Free,
        Preset::Moderate,
        Preset::VfioGuest,
        Preset::Bounce21,
    ];

    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Preset::Free => "free",
            Preset::Moderate => "moderate",
            Preset::VfioGuest => "vfio-guest",
            Preset::Bounce21 => "bounce21",
        }
    }

    /// Where its costs come from, in a few words.
    pub fn source(&self) -> &'static str {
        match self {
            Preset::Free => "own tables, nothing charged",
            Preset::Moderate => "one strict invalidation, 2,127 cycles at 2.4 GHz (rIOMMU)",
            Preset::VfioGuest => {
                "VFIO over virtio-iommu in an emulated guest, measured, not fitted"
            }
            Preset::Bounce21 => "BOUNCE'21's laptop, fitted on 2.8 times at 4 KiB",
        }
    }

    /// What maps and unmaps of this preset are charged.
    pub fn charge(&self) -> Charge {
        match self {
            Preset::Free => Charge::default(),
            Preset::Moderate => Charge {
                unmap: Cost {
                    base_ns: 2_127.0 / 2.4,
                    page_ns: 0.0,
                },
                ..Charge::default()
            },
            Preset::VfioGuest => Charge {
                map: Cost::through((1.0, 10_200.0), (32.0, 13_500.0)),
                unmap: Cost::through((1.0, 7_100.0), (32.0, 12_000.0)),
                lock: BigLock::Held,
            },
            Preset::Bounce21 => model::Machine::bounce21().charge,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no preset.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no translator (free, moderate, vfio-guest, bounce21)")]
pub struct PresetError(String);

impl FromStr for Preset {
    type Err = PresetError;
    fn from_str(word: &str) -> Result<Self, PresetError> {
        let named = Self::ALL.into_iter().find(|preset| preset.name() == word);
        named.ok_or_else(|| PresetError(word.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_both_points() {
        let cost = Cost::through((1.0, 10_200.0), (32.0, 13_500.0));
        assert!((cost.ns(PageCount(1)) - 10_200.0).abs() < 1e-6);
        assert!((cost.ns(PageCount(32)) - 13_500.0).abs() < 1e-6);
        assert_eq!(cost.time(PageCount(1)).as_nanos() / 10, 1_020);
        let falling = Cost::through((1.0, 10.0), (2.0, 0.0));
        assert_eq!(falling.time(PageCount(9)), Duration::ZERO);
    }

    #[test]
    fn presets_are_named_once_and_get_dearer() {
        for preset in Preset::ALL {
            assert_eq!(preset.name().parse(), Ok(preset));
        }
        let error = "cheap".parse::<Preset>().unwrap_err().to_string();
        for preset in Preset::ALL {
            assert!(error.contains(preset.name()), "{error}");
        }
        let dear = |pages| Preset::ALL.map(|preset| preset.charge().pair_ns(PageCount(pages)));
        let [free, moderate, vfio, _] = dear(1);
        assert!(free == 0.0 && free < moderate && moderate < vfio);
        assert!(Preset::Free.charge().is_free() && !Preset::Moderate.charge().is_free());
    }

    #[test]
    fn measured_costs_lie_near_their_lines() {
        // the two sizes between, as measured: 16 KiB and 64 KiB
        let charge = Preset::VfioGuest.charge();
        for (pages, map, unmap) in [(4, 10_500.0, 7_100.0), (16, 12_000.0, 8_800.0)] {
            let pages = PageCount(pages);
            assert!((charge.map.ns(pages) / map - 1.0).abs() < 0.1);
            assert!((charge.unmap.ns(pages) / unmap - 1.0).abs() < 0.1);
        }
    }
}
