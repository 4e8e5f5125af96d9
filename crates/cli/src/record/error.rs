// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why there is no recording.

use super::plan::Mismatch;
use ioatlas_guest::GuestError;
use ioatlas_iotlb::TraceError;
use ioatlas_iotlb::import::qemu::{MissingSymbol, QemuError};
use std::io;
use std::path::{Path, PathBuf};

/// A recording failed. No trace is written then.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The device cannot do the work.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// An option that the device or the workload does not have, or a value out of its range.
    #[error("{option}: {detail}")]
    Option {
        /// As on the command line.
        option: &'static str,
        /// What is wrong, with the numbers.
        detail: String,
    },
    /// There is no guest, or it failed.
    #[error("{_0}{hint}", hint = installs(_0))]
    Guest(#[source] GuestError),
    /// The guest's kernel is of a kind that cannot be traced.
    #[error(transparent)]
    Symbol(#[from] MissingSymbol),
    /// The guest's debugger port does not do as told.
    #[error("QEMU's debugger port: {0}")]
    Debugger(String),
    /// The log cannot be converted.
    #[error("QEMU's log: {0}")]
    Log(#[from] QemuError),
    /// The converted trace cannot be read back.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace does not agree with the guest's own counts, or with itself.
    #[error("the trace does not add up: {failed}; the guest's log: {}", log.display())]
    DoesNotAddUp {
        /// The checks that failed, with both numbers.
        failed: String,
        /// What the guest printed.
        log: PathBuf,
    },
}

/// How to get a program that is not there.
fn installs(error: &GuestError) -> &'static str {
    match error {
        GuestError::Tool { .. } => "; ci/install-record.sh installs what recording needs",
        GuestError::Interrupted => " and nothing written",
        _ => "",
    }
}

impl From<GuestError> for RecordError {
    fn from(error: GuestError) -> Self {
        Self::Guest(error)
    }
}

impl RecordError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        GuestError::file(path, source).into()
    }

    /// Whether it names a log.
    pub(super) fn names_a_log(&self) -> bool {
        match self {
            Self::Guest(error) => error.names_a_log(),
            Self::DoesNotAddUp { .. } => true,
            _ => false,
        }
    }

    /// Whether the arguments make no sense.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Mismatch(_) | Self::Option { .. })
    }
}
