// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What drivers ask of addresses, and what clients have promised of theirs.

use dma_api::{DmaAddr, DmaConstraints, DmaError};
use ioatlas_dma::{dma_api::Limits, units::*};

/// What all addresses within `limits` keep.
pub(crate) fn of_limits(limits: &Limits) -> DmaConstraints {
    let bytes = |end: IovaPage| end.0.checked_mul(GRANULE);
    let last = |end| bytes(end).map_or(u64::MAX, |bytes| bytes.saturating_sub(1));
    let constraints = DmaConstraints::new(limits.end.map_or(u64::MAX, last));
    let bytes = |pages_lg2| 1_usize.checked_shl(GRANULE_LG2.saturating_add(pages_lg2));
    match limits.boundary_lg2.and_then(bytes) {
        Some(boundary) => constraints.with_boundary(boundary),
        None => constraints,
    }
}

/// Whether `size` bytes at `iova` are as a driver asked for.
pub(crate) fn check(asked: &DmaConstraints, iova: Iova, size: usize) -> Result<(), DmaError> {
    let (addr, mask) = (DmaAddr::from(iova.0), asked.addr_mask);
    let last = iova.0.checked_add(size.saturating_sub(1) as u64);
    let Some(last) = last.filter(|last| *last <= mask) else {
        return Err(DmaError::DmaMaskNotMatch { addr, mask });
    };
    if !iova.0.is_multiple_of(asked.align.max(1) as u64) {
        return Err(DmaError::AlignMismatch {
            required: asked.align,
            address: addr,
        });
    }
    if let Some(max) = asked.max_segment_size.filter(|max| size > *max) {
        return Err(DmaError::SegmentTooLarge { size, max });
    }
    let crosses = |boundary: &usize| {
        let boundary = (*boundary).max(1) as u64;
        iova.0 / boundary != last / boundary
    };
    match asked.boundary.filter(crosses) {
        Some(boundary) => Err(DmaError::BoundaryCross {
            addr,
            size,
            boundary,
        }),
        None => Ok(()),
    }
}
