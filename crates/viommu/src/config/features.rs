// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the capability registers say (VT-d 4.1 §11.4.2 and §11.4.3), as choices.

use super::Geometry;

/// The highest level at which the specification has leaves: 1 GiB (§11.4.2, SLLPS).
pub const LARGEST_LEAF_LEVEL: u32 = 3;

/// What lies between a CPU's writes to tables and the unit's reads of them, and what empties
/// it (VT-d 4.1 §6.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteBuffers {
    /// Nothing: writes are seen at once (RWBF = 0).
    #[default]
    None,
    /// Buffers that the write-buffer flush command empties, and, as the specification demands,
    /// every context-cache and IOTLB invalidation before it removes anything (RWBF = 1).
    FlushedByInvalidations,
    /// Buffers that nothing but the command empties (RWBF = 1): stricter than the specification,
    /// for drivers that are to flush whatever they changed.
    FlushedByCommand,
}

/// What the capability registers say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Page-selective invalidation of up to 2^n pages at once (PSI, MAMV), or none.
    pub page_selective: Option<u8>,
    /// Domain ids have 4 + 2n bits (ND). At most 6.
    pub nd: u8,
    /// Draining of reads (DRD). Without it the DR bit of a descriptor is ignored.
    pub drain_reads: bool,
    /// Draining of writes (DWD). Without it the DW bit is ignored.
    pub drain_writes: bool,
    /// The page-walk snoops CPU caches (ECAP.C).
    pub coherent: bool,
    /// Pass-through context entries are allowed (ECAP.PT).
    pub pass_through: bool,
    /// Bits of a physical address (HAW); higher ones are reserved in every entry. 13 to 52.
    pub phys_bits: u32,
    /// The highest level at which an entry may be a leaf (SLLPS): 1 for pages only, 2 for 2 MiB
    /// too, 3 for 1 GiB too. At most the levels of a walk.
    pub largest_leaf: u32,
    /// Entries that are absent or faulty may be cached too (CM).
    pub caching_mode: bool,
    /// Whether writes to tables must be pushed (RWBF).
    pub write_buffers: WriteBuffers,
    /// Devices may keep translations (ECAP.DT): context entries may allow it, and the queue takes
    /// invalidations of device TLBs.
    pub device_tlbs: bool,
}

impl Features {
    /// The bits of CAP that say so, of those that nothing else sets: RWBF 4, CM 7, SLLPS
    /// 37:34 (VT-d 4.1 §11.4.2).
    pub(crate) fn capability_bits(&self) -> u64 {
        let large_leaves = (1 << (self.largest_leaf - 1)) - 1;
        u64::from(self.write_buffers != WriteBuffers::None) << 4
            | u64::from(self.caching_mode) << 7
            | large_leaves << 34
    }
    /// The same of ECAP: DT 2 (VT-d 4.1 §11.4.3).
    pub(crate) fn extended_capability_bits(&self) -> u64 {
        u64::from(self.device_tlbs) << 2
    }
    /// The highest leaf that a walk of this shape can meet.
    pub(super) fn leaf_levels(geometry: Geometry) -> u64 {
        geometry.levels.min(LARGEST_LEAF_LEVEL).into()
    }
}
