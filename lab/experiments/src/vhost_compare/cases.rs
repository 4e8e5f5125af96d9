// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is run.

use super::back_end::Whose;
use ioatlas_vhost_bench::{Answers, Config, Leaf, Length, Lie, Mapping};
use std::time::Duration;

/// Pages of the seed's cells: 128 MiB of buffers in each direction, 64 leaves of 2 MiB; a guest's
/// testpmd has some 300 MB of them.
const MANY: u32 = 32_768;
/// Buffers that are invalidated together.
const BATCH: u32 = 32;
/// How long is run before counting begins, unless all pages are to be used before.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long ours may owe something, on the busiest machine; and how long testpmd may, of which it
/// is known to happen.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_WITH_TESTPMD: Duration = Duration::from_secs(10);

/// A case, by what its name says. `Off` cases have the same pages as what is compared with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    Off,
    Large,
    Huge,
    OffScattered512,
    Small512,
    OffScattered1000,
    Small1000,
    OffScattered100k,
    Small100k,
    DynamicPages,
    DynamicRanges,
    SeedOff,
    SeedLarge,
    SeedHuge,
}

/// Which back ends run a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Both,
    /// testpmd cannot: its cache has 2,048 entries.
    OursOnly,
}

impl Case {
    pub const ALL: [Case; 14] = [
        Case::Off,
        Case::Large,
        Case::Huge,
        Case::OffScattered512,
        Case::Small512,
        Case::OffScattered1000,
        Case::Small1000,
        Case::OffScattered100k,
        Case::Small100k,
        Case::DynamicPages,
        Case::DynamicRanges,
        Case::SeedOff,
        Case::SeedLarge,
        Case::SeedHuge,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Case::Off => "off-512",
            Case::Large => "2m-512",
            Case::Huge => "1g-512",
            Case::OffScattered512 => "off-scattered-512",
            Case::Small512 => "4k-scattered-512",
            Case::OffScattered1000 => "off-scattered-1000",
            Case::Small1000 => "4k-scattered-1000",
            Case::OffScattered100k => "off-scattered-100000",
            Case::Small100k => "4k-scattered-100000",
            Case::DynamicPages => "dynamic-pages",
            Case::DynamicRanges => "dynamic-ranges",
            Case::SeedOff => "off-32768",
            Case::SeedLarge => "2m-32768",
            Case::SeedHuge => "1g-32768",
        }
    }

    pub(super) fn by(self) -> By {
        match self {
            Case::OffScattered100k | Case::Small100k => By::OursOnly,
            _ => By::Both,
        }
    }

    /// Whether the highest rate at 0.005 % loss is looked for, too: the seed's PVP benchmark.
    pub fn is_searched(self) -> bool {
        matches!(self, Case::SeedOff | Case::SeedLarge | Case::SeedHuge)
    }

    fn mapping(self) -> Mapping {
        let (near, far) = (Lie::Contiguous, Lie::Scattered);
        match self {
            Case::Off | Case::SeedOff => Mapping::Off { lie: near },
            Case::OffScattered512 | Case::OffScattered1000 | Case::OffScattered100k => {
                Mapping::Off { lie: far }
            }
            Case::Large | Case::SeedLarge => Mapping::Static {
                leaf: Leaf::Large,
                lie: near,
            },
            Case::Huge | Case::SeedHuge => Mapping::Static {
                leaf: Leaf::Huge,
                lie: near,
            },
            Case::Small512 | Case::Small1000 | Case::Small100k => Mapping::Static {
                leaf: Leaf::Small,
                lie: far,
            },
            Case::DynamicPages | Case::DynamicRanges => Mapping::Dynamic {
                batch: BATCH,
                lie: near,
            },
        }
    }

    /// Whether a back end needs IOMMU support.
    pub fn has_iommu(self) -> bool {
        !matches!(self.mapping(), Mapping::Off { .. })
    }

    pub(super) fn config(self, whose: Whose) -> Config {
        let pages = match self {
            Case::OffScattered1000 | Case::Small1000 => 1000,
            Case::DynamicPages | Case::DynamicRanges => 1000,
            Case::OffScattered100k | Case::Small100k => 100_000,
            Case::SeedOff | Case::SeedLarge | Case::SeedHuge => MANY,
            _ => 512,
        };
        // Every page is used, so that what is counted has no first touches in it.
        let each_page = Length::Frames(u64::from(pages) + u64::from(pages) / 4);
        Config::default()
            .mapping(self.mapping())
            .answers(match self {
                Case::DynamicRanges => Answers::Range,
                _ => Answers::Page,
            })
            .pages(pages)
            .patience(match whose {
                Whose::Ours => PATIENCE,
                Whose::Testpmd => PATIENCE_WITH_TESTPMD,
            })
            .warm_up(match self {
                Case::Small512 | Case::Small1000 => Length::Frames(8 * u64::from(pages)),
                Case::Small100k | Case::OffScattered100k => each_page,
                Case::SeedOff | Case::SeedLarge | Case::SeedHuge => each_page,
                _ => Length::Time(WARM_UP),
            })
    }
}
