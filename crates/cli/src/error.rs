// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can fail.

use crate::Failure;
use ioatlas_iotlb::import::ImportError;
use ioatlas_iotlb::{GeometryError, GridError, SetupError, TraceError};
use ioatlas_vhost_bench::BenchError;
use std::io;
use std::path::PathBuf;

/// A command could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum Error {
    /// A trace could not be read; the message names file, line and column.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A capture could not be imported; the message names file, line and column where there is one.
    #[error(transparent)]
    Import(ImportError),
    /// A file of counts could not be read; the message names file and line.
    #[error(transparent)]
    Histograms(#[from] crate::histograms::HistogramsError),
    /// No IOTLB can have this shape.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A sweep has too many points.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// An option of the simulation is out of its range.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The output file cannot be written. A file of that name is as it was before.
    #[error("{}: cannot write: {source}", path.display())]
    Output {
        /// As given by the user.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The output path names something that a rename would destroy.
    #[error("{}: cannot write: not a regular file", path.display())]
    NotAFile {
        /// As given by the user.
        path: PathBuf,
    },
    /// The output path names a trace that is to be read.
    #[error("{}: cannot write: it is one of the traces", path.display())]
    IsInput {
        /// As given by the user.
        path: PathBuf,
    },
    /// Two outputs would be one file.
    #[error("{}: cannot write: another output goes there", path.display())]
    SameOutput {
        /// As given by the user.
        path: PathBuf,
    },
    /// The oracle found that a design let a device do what it must not. The report is
    /// written all the same.
    #[error("violation: {first} (one of {count})")]
    Violation {
        /// The first in words.
        first: String,
        /// How many there are.
        count: u64,
    },
    /// A trace was given twice, so results could not be told apart.
    #[error("{}: given twice", path.display())]
    Twice {
        /// As given by the user.
        path: PathBuf,
    },
    /// `-` is no place for a page.
    #[error("-: cannot write: the page goes to a file, not to standard output")]
    StandardOutput,
    /// What comes from standard input has no name that its trace could have.
    #[error("standard input: say where to write the trace: -o FILE")]
    NoOutput,
    /// The page became larger than it may; nothing is written.
    #[error("page of {bytes} bytes, more than {most}")]
    PageTooLarge {
        /// Size of the page.
        bytes: usize,
        /// What it may have.
        most: usize,
    },
    /// A system could not be run or measured.
    #[error("system {system}: {detail}")]
    System {
        /// Name of the row.
        system: String,
        /// What went wrong, with its numbers.
        detail: String,
    },
    /// This machine could not be recorded.
    #[error(transparent)]
    Capture(#[from] crate::CaptureError),
    /// A trace could not be recorded.
    #[error(transparent)]
    Record(#[from] crate::RecordError),
    /// The back end could not begin, or go on.
    #[error(transparent)]
    VhostNet(#[from] crate::VhostNetError),
    /// A back end that was to be driven did not play its part, or is not there.
    #[error(transparent)]
    VhostBench(#[from] BenchError),
    /// The tree that a machine is to be known by cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Root {
        /// As given by the user.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A result could not be turned into JSON.
    #[error("cannot format JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl From<ImportError> for Error {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Trace(error) => Error::Trace(error),
            error => Error::Import(error),
        }
    }
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        match self {
            Error::Geometry(_)
            | Error::Setup(_)
            | Error::Grid(_)
            | Error::Twice { .. }
            | Error::IsInput { .. }
            | Error::SameOutput { .. }
            | Error::StandardOutput
            | Error::NoOutput => true,
            Error::Record(error) => error.is_usage(),
            Error::VhostNet(error) => error.is_usage(),
            Error::VhostBench(BenchError::Config(_)) => true,
            _ => false,
        }
    }
}

impl Error {
    /// Refuses paths of which two are the same.
    pub(crate) fn if_twice(paths: &[PathBuf]) -> Result<(), Error> {
        let mut seen = std::collections::HashSet::new();
        match paths.iter().find(|path| !seen.insert(*path)) {
            Some(path) => Err(Error::Twice { path: path.clone() }),
            None => Ok(()),
        }
    }
}
