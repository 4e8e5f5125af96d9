// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Misses against the size of the IOTLB.

use crate::diagnose::{Diagnosis, diagnose};
use crate::geometry::{Geometry, GeometryError};
use crate::trace::Trace;

/// The sizes that reports sweep over: a quarter to 8 times WIOSCA'10's 32 entries.
pub const SWEEP_ENTRIES: [usize; 6] = [8, 16, 32, 64, 128, 256];

/// What one size would give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepPoint {
    /// The IOTLB of that size.
    pub geometry: Geometry,
    /// How its accesses end.
    pub diagnosis: Diagnosis,
}

/// Diagnoses `trace` once for each number of entries, all with the same ways.
///
/// # Errors
///
/// If a number of entries cannot be had with that many ways.
pub fn sweep(
    trace: &Trace,
    entries: &[usize],
    ways: usize,
) -> Result<Vec<SweepPoint>, GeometryError> {
    let point = |&entries: &usize| {
        let geometry = Geometry::new(entries, ways)?;
        Ok(SweepPoint {
            geometry,
            diagnosis: diagnose(trace, geometry),
        })
    };
    entries.iter().map(point).collect()
}
