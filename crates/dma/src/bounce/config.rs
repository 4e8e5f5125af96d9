// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How large pools are.

use crate::units::*;
use alloc::{vec, vec::Vec};

/// One size class: how large its slots are, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassConfig {
    /// Log2 of the pages of a slot: 0 is 4 KiB. At most [`SLOT_PAGES_LG2_MAX`].
    pub pages_lg2: u32,
    /// How many slots; each has its metadata and its IOVAs from the beginning, and memory only
    /// while it is used or kept. At least 1.
    pub slots: u32,
}

/// The largest slot, as log2 of its pages: 1 MiB.
pub const SLOT_PAGES_LG2_MAX: u32 = 8;
/// The most slots of a class.
pub const SLOTS_MAX: u32 = 1 << 16;
/// The pages of a chunk of the second tier: 256 KiB.
pub const CHUNK_PAGES: PageCount = PageCount(64);
/// The most chunks of a permission: 16 GiB.
pub const CHUNKS_MAX: u32 = 1 << 16;

impl ClassConfig {
    /// The pages of a slot.
    pub fn pages(&self) -> PageCount {
        PageCount(1 << self.pages_lg2)
    }
}

/// What a pool is made of: its size classes, and what serves beyond them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolConfig {
    /// The size classes, smallest slots first.
    pub classes: Vec<ClassConfig>,
    /// What happens beyond them.
    pub growth: Growth,
    /// Slots and chunks that no request asked for in this time lose their memory. In
    /// nanoseconds of [`Dma::tick`](crate::dma_api::Dma::tick)'s clock.
    pub idle_ns: u64,
}

setters!(PoolConfig {
    classes: Vec<ClassConfig>,
    growth: Growth,
    idle_ns: u64,
});

/// Whether a pool takes memory as it needs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Growth {
    /// Slots get memory when they are first needed, and lose it when they are idle. Beyond them
    /// come chunks, and beyond those buffers that are mapped for one use.
    OnDemand {
        /// The most chunks of [`CHUNK_PAGES`], for each permission; at most [`CHUNKS_MAX`]. Some of
        /// the bookkeeping of all of them is there from the beginning.
        chunks_max: u32,
        /// Buffers for one use.
        single_use: SingleUse,
    },
    /// All slots have memory from the beginning, mapped both ways, and keep it; there is nothing
    /// beyond them. No map or unmap ever happens: what a confidential VM's shared region needs. As
    /// the device may read whatever it is, more must be zeroed.
    Fixed,
}

/// Whether buffers may be mapped for one use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SingleUse {
    /// Where nothing else is left.
    Allowed,
    /// Not even where nothing else is left.
    Never,
}

impl Default for Growth {
    /// Up to 64 chunks (16 MiB) for each permission, and single use beyond.
    fn default() -> Self {
        Growth::OnDemand {
            chunks_max: 64,
            single_use: SingleUse::Allowed,
        }
    }
}

impl Default for PoolConfig {
    /// Slots of 4 KiB to 256 KiB: 256, 256, 128, 128, 64, 32 and 8 of them. Bookkeeping is 25 KiB
    /// and 1.8 KiB for each CPU; for the frames' numbers up to 38 KiB more, while there are frames.
    /// Idle after 100 ms.
    fn default() -> Self {
        let class = |(pages_lg2, slots)| ClassConfig { pages_lg2, slots };
        let classes = [256, 256, 128, 128, 64, 32, 8];
        PoolConfig {
            classes: (0..).zip(classes).map(class).collect(),
            growth: Growth::default(),
            idle_ns: 100_000_000,
        }
    }
}

impl PoolConfig {
    /// One class only, and the defaults for all else.
    pub fn of(class: ClassConfig) -> Self {
        PoolConfig {
            classes: vec![class],
            ..PoolConfig::default()
        }
    }
    /// Whether it can be built.
    ///
    /// # Errors
    /// [`PoolConfigError`], if a class or the chunks are out of bounds, or classes do not ascend.
    pub fn check(&self) -> Result<(), PoolConfigError> {
        for (nth, class) in self.classes.iter().enumerate() {
            if class.pages_lg2 > SLOT_PAGES_LG2_MAX || !(1..=SLOTS_MAX).contains(&class.slots) {
                return Err(PoolConfigError::Class { nth, class: *class });
            }
        }
        if let Growth::OnDemand { chunks_max, .. } = self.growth
            && chunks_max > CHUNKS_MAX
        {
            return Err(PoolConfigError::Chunks { chunks_max });
        }
        match self.classes.is_sorted_by(|a, b| a.pages_lg2 < b.pages_lg2) {
            true => Ok(()),
            false => Err(PoolConfigError::Order),
        }
    }
}

/// Why a pool cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolConfigError {
    /// A class is out of bounds.
    #[error("class {nth}: {} slots of 2^{} pages; there must be 1 to 65536 of up to 2^8", class.slots, class.pages_lg2)]
    Class {
        /// Its index in [`PoolConfig::classes`].
        nth: usize,
        /// What was asked for.
        class: ClassConfig,
    },
    /// There would be too many chunks.
    #[error("up to {chunks_max} chunks for each permission; there can be 65536")]
    Chunks {
        /// What was asked for.
        chunks_max: u32,
    },
    /// Classes must have ever larger slots.
    #[error("the classes do not ascend")]
    Order,
}
