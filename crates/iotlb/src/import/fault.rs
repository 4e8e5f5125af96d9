// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can be wrong with a capture, and where.

use super::Format;
use crate::error::TraceError;
use std::io;

/// What is wrong at one place of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A field that the event needs is not there.
    #[error("missing field: {0}")]
    MissingField(&'static str),
    /// Not a number, or one beyond 64 bits.
    #[error("bad number `{0}`")]
    BadNumber(String),
    /// Not a direction of DMA.
    #[error("unknown direction `{0}`")]
    BadDirection(String),
    /// Not a kind of mapping.
    #[error("unknown kind `{0}`, expected alloc, page or sg")]
    BadKind(String),
    /// Not a name of a device.
    #[error("bad device `{0}`: white space, `#` or too long")]
    BadDevice(String),
    /// The word names no event.
    #[error("unknown event `{0}`, expected map, unmap or access")]
    UnknownEvent(String),
    /// An array of bytes ends within an element.
    #[error("array ends within an element of {0} bytes")]
    PartialElement(usize),
    /// An array is longer than allowed.
    #[error("more than {0} elements")]
    TooManyElements(usize),
    /// Two arrays that belong together differ in length.
    #[error("{addresses} addresses but {lengths} lengths")]
    Lengths {
        /// Elements of the one.
        addresses: usize,
        /// Elements of the other.
        lengths: usize,
    },
    /// A column that has no meaning here.
    #[error(
        "unknown column `{0}`, expected event, device, iova, bytes, direction, phys, kind, time_ns, cpu or task"
    )]
    UnknownColumn(String),
    /// Columns that lines need, by their names, are none of those that the first line names.
    #[error("no column of the first line is named: {0}")]
    NoColumn(String),
    /// A column that stands twice in the first line.
    #[error("column {0} stands twice")]
    ColumnTwice(&'static str),
    /// A line with another number of columns than the first.
    #[error("{found} columns, expected {expected}")]
    Columns {
        /// Columns of this line.
        found: usize,
        /// On the first line.
        expected: usize,
    },
    /// The first line of CSV names no columns.
    #[error("expected a first line that names columns: event,device,iova,bytes,..")]
    NoHeader,
    /// More devices than allowed.
    #[error("more than {0} devices")]
    TooManyDevices(usize),
    /// More mappings at one time than allowed.
    #[error("more than {0} mappings alive at one time")]
    TooManyLive(usize),
    /// A line is longer than allowed.
    #[error("line is longer than {0} bytes")]
    LineTooLong(usize),
}

/// A capture could not be imported. Nothing of it is used then.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file could not be read, or is a trace with an error in it.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The beginning of the file is no trace and no capture that is known.
    #[error(
        "{file}:1:1: not a trace: first line must be `# ioatlas-trace 2`; and not a capture: expected events of QEMU (vtd_*, \
         virtio_iommu_*), of ftrace or perf script (dma:*, iommu:*), or CSV (event,device,iova,..)"
    )]
    UnknownFormat {
        /// Name as given by the user.
        file: String,
    },
    /// A capture that only its own tool can read.
    #[error("{file}: {what}, which is binary; have it printed: `{command} | ioatlas report -`")]
    Binary {
        /// Name as given by the user.
        file: String,
        /// What it is.
        what: &'static str,
        /// What prints it; `FILE` stands for its name.
        command: &'static str,
    },
    /// A capture without any event that tells of mappings.
    #[error("{file}: no event in {lines} lines; expected, as {format}: {}", format.expects())]
    NoEvents {
        /// Name as given by the user.
        file: String,
        /// Number of lines that were read.
        lines: u64,
        /// As what it was read.
        format: Format,
    },
    /// A known event that does not read as it should.
    #[error("{file}:{line}:{column}: {fault}")]
    Line {
        /// Name as given by the user.
        file: String,
        /// Its number, counted from 1.
        line: u64,
        /// In characters, from 1.
        column: usize,
        /// What is wrong there.
        fault: Fault,
    },
    /// Memory is too scattered to be renumbered.
    #[error("memory in more than {0} pieces: cannot renumber")]
    Scattered(usize),
    /// The text could not be passed on.
    #[error("cannot read: {0}")]
    Io(io::Error),
}

impl From<io::Error> for ImportError {
    /// What [`super::Capture`] reports as a reader, back to what it was.
    fn from(error: io::Error) -> Self {
        match error.downcast::<ImportError>() {
            Ok(error) => error,
            Err(error) => ImportError::Io(error),
        }
    }
}
