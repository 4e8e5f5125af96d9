// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a space has, in pages.

use crate::{
    error::OpenError,
    kernel::{PageSizes, SpaceInfo},
};
use ioatlas_dma::units::*;

/// IOVAs beyond so many bits are left alone, also where a kernel has them: no IOMMU's tables are
/// deeper (VT-d's five levels are 57).
pub const APERTURE_BITS_MAX: u32 = 57;

/// What IOVAs a space has, and how many mappings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceLimits {
    ranges: Vec<IovaRange>,
    mappings: Option<u64>,
    granule: ByteCount,
    page_sizes: Option<PageSizes>,
}

impl SpaceLimits {
    /// From what the kernel said.
    ///
    /// # Errors
    /// [`OpenError::Granule`] where its pages are larger than ours, [`OpenError::NoRanges`]
    /// where it has none.
    pub fn new(info: &SpaceInfo) -> Result<Self, OpenError> {
        if info.granule.0 > GRANULE {
            return Err(OpenError::Granule {
                bytes: info.granule,
            });
        }
        let most = 1u64 << (APERTURE_BITS_MAX - GRANULE_LG2);
        let mut ranges: Vec<IovaRange> = Vec::new();
        for (first, last) in &info.ranges {
            // whole pages inside
            let from = first.0.div_ceil(GRANULE).min(most);
            let end = (last.0 >> GRANULE_LG2) + u64::from(last.offset() == GRANULE - 1);
            let end = end.min(most);
            if from < end {
                ranges.push(IovaRange::new(IovaPage(from), PageCount(end - from)));
            }
        }
        ranges.sort_by_key(|range| range.first);
        match ranges.is_empty() {
            true => Err(OpenError::NoRanges),
            false => Ok(SpaceLimits {
                ranges,
                mappings: info.mappings,
                granule: info.granule,
                page_sizes: info.page_sizes,
            }),
        }
    }

    /// What can be mapped, ascending.
    pub fn ranges(&self) -> &[IovaRange] {
        &self.ranges
    }
    /// How many mappings could be made when the space was opened, where there is a limit: 65,535 by
    /// default under type 1.
    pub fn mappings(&self) -> Option<u64> {
        self.mappings
    }
    /// The smallest page of the IOMMU.
    pub fn granule(&self) -> ByteCount {
        self.granule
    }
    /// All sizes of its pages, where the kernel tells: type 1 does, iommufd
    /// tells the smallest only.
    pub fn page_sizes(&self) -> Option<PageSizes> {
        self.page_sizes
    }
    /// From page 0 to the end of the last range.
    pub fn whole(&self) -> IovaRange {
        let end = self.ranges.last().map_or(0, |last| last.end().0);
        IovaRange::new(IovaPage(0), PageCount(end))
    }
    /// What of [`whole`](Self::whole) cannot be mapped: below the first range, and between ranges
    /// (the interrupt window, reserved memory).
    pub fn holes(&self) -> Vec<IovaRange> {
        let mut holes = Vec::new();
        let mut at = 0;
        for range in &self.ranges {
            if range.first.0 > at {
                holes.push(IovaRange::new(IovaPage(at), PageCount(range.first.0 - at)));
            }
            at = at.max(range.end().0);
        }
        holes
    }
    /// Whether all of `range` can be mapped.
    pub fn has(&self, range: &IovaRange) -> bool {
        // few: one for each hole, and one more
        self.ranges.iter().any(|own| own.contains(range))
    }
}
