// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry point for fuzzers: arbitrary bytes in, everything the crate does with a
//! trace exercised, memory and time bounded.

use ioatlas_iotlb::{
    Geometry, Limits, MissCounts, Outcome, Setup, Trace, TraceError, TraceInfo, diagnose,
    import::{self, Capture, Format, Identity, ImportError, Options},
    simulate,
};
use std::io::Read;

/// Small, so that one input takes milliseconds.
const LIMITS: Limits = Limits {
    line_bytes: 256,
    events: 4096,
    devices: 64,
    marks: 64,
    stamps: 4096,
    text_bytes: 1 << 20,
};

/// What the parts of the crate say about one input, for cross-checks.
#[derive(Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Findings {
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
    let outcome = simulate(&trace, &Setup::default().with_geometry(geometry));
    let counts = diagnose(&trace, geometry).total;
    Ok(Findings {
        info: trace.info(),
        outcome,
        counts,
    })
}

/// What becomes of one capture, for cross-checks.
#[derive(Debug)]
pub struct Imported {
    /// The trace as it was loaded.
    pub trace: Trace,
    /// As converted to text and read again, if its assumed accesses leave it within the limits.
    pub converted: Option<Trace>,
    /// The same without what tells about the machine, once and twice over.
    pub anonymous: Option<[String; 2]>,
}

/// Reads `data` as a capture of `format`, or of any if `None`, and converts it.
///
/// # Errors
///
/// If `data` is no valid capture within small limits.
pub fn capture(format: Option<Format>, data: &[u8]) -> Result<Imported, ImportError> {
    let options = Options {
        from: format,
        ..Options::default()
    };
    let trace = import::load("fuzz", &data, options, LIMITS)?;
    let converted = text(&data, options)?;
    let anonymous = Options {
        identity: Identity::Removed,
        ..options
    };
    let once = text(&data, anonymous)?;
    let anonymous = Options {
        from: Some(Format::Trace),
        ..anonymous
    };
    Ok(Imported {
        trace,
        converted: Trace::read("fuzz", converted.as_bytes(), LIMITS).ok(),
        anonymous: match text(&once.as_bytes(), anonymous) {
            Ok(twice) => Some([once, twice]),
            Err(_) => None,
        },
    })
}

fn text(data: &&[u8], options: Options) -> Result<String, ImportError> {
    let mut text = Vec::new();
    let mut capture = Capture::new("fuzz", data, options, LIMITS)?;
    capture.read_to_end(&mut text)?;
    // a stream of lines of ours
    Ok(String::from_utf8_lossy(&text).into_owned())
}
