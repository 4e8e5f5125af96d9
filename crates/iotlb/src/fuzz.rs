// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry point for fuzzers: arbitrary bytes in, everything the crate does with a
//! trace exercised, memory and time bounded.

use crate::cache::Geometry;
use crate::diagnose::{MissCounts, diagnose};
use crate::error::TraceError;
use crate::info::TraceInfo;
use crate::read::Limits;
use crate::simulate::{Outcome, Strategy, simulate};
use crate::trace::Trace;

/// Small, so that one input takes milliseconds.
const LIMITS: Limits = Limits {
    line_bytes: 256,
    events: 4096,
    devices: 64,
    marks: 64,
    text_bytes: 1 << 20,
};

/// What the parts of the crate say about one input, for cross-checks.
#[derive(Debug)]
pub struct Findings {
    /// From [`Trace::info`].
    pub info: TraceInfo,
    /// From [`simulate`], 8 entries in 2 ways.
    pub outcome: Outcome,
    /// From [`diagnose`] with the same IOTLB.
    pub counts: MissCounts,
}

/// Reads `data` as a trace, plain or compressed, and runs it.
///
/// # Errors
///
/// If `data` is not a valid trace within small limits.
pub fn trace(data: &[u8]) -> Result<Findings, TraceError> {
    let trace = Trace::read("fuzz", data, LIMITS)?;
    let geometry = Geometry::new(8, 2).unwrap_or_default();
    let outcome = simulate(&trace, Strategy::Baseline, geometry);
    let counts = diagnose(&trace, geometry).total;
    Ok(Findings {
        info: trace.info(),
        outcome,
        counts,
    })
}
