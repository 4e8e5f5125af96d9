// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can fail.

use crate::vhost_compare::VhostCompareError;
use ioatlas_cli::Failure;
use std::path::PathBuf;

/// An experiment could not be done.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum Error {
    /// A file could not be written, or what the command does failed.
    #[error(transparent)]
    Command(#[from] ioatlas_cli::Error),
    /// A figure or table of a paper could not be made.
    #[error("{exhibit}: {detail}")]
    Experiment { exhibit: String, detail: String },
    /// A simulated multiprocessor could not run something.
    #[error("{point}: {detail}")]
    Simulation {
        /// What was to be simulated.
        point: String,
        detail: String,
    },
    /// The output path of several files names something that is no directory.
    #[error("{}: cannot write: not a directory", path.display())]
    NotADirectory {
        /// As given by the user.
        path: PathBuf,
    },
    /// Filters that no row of a benchmark passes.
    #[error(
        "no row is left: producer-consumer takes 2 threads, replace beyond 1,000 outstanding 1, and --quick has rings of 256 pages and the aims only"
    )]
    NoRows,
    /// The same of bounce buffers.
    #[error(
        "no row is left: --quick has 64 operations in flight, of 4, 16, 64 and 128 KiB on one thread but for the copy's overhead"
    )]
    NoCells,
    /// Two back ends could not be compared, or one of ours failed.
    #[error(transparent)]
    VhostCompare(#[from] VhostCompareError),
    /// A result could not be turned into JSON.
    #[error("cannot format JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        match self {
            Error::NoRows | Error::NoCells => true,
            Error::Command(error) => error.is_usage(),
            _ => false,
        }
    }
}
