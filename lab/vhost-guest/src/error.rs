// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong.

use ioatlas_guest::GuestError;
use std::io;
use std::path::Path;

/// A guest did not do all that it was to do, or could not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no guest, or it failed.
    #[error("{_0}{hint}", hint = installs(_0))]
    Guest(#[source] GuestError),
    /// No directory for packages.
    #[error("--cache: neither HOME nor XDG_CACHE_HOME is set")]
    NoCache,
    /// The back end does not come up, or fails.
    #[error("back end {program}: {detail}")]
    BackEnd {
        program: String,
        /// Why, with what to do.
        detail: String,
    },
    /// The guest's work is done, but the back end's counts are not what they should be.
    #[error("{mode}: {what}")]
    Counts {
        /// How the IOMMU was used.
        mode: String,
        what: String,
    },
    /// An error of the operating system's.
    #[error("{what}: {why}")]
    Io {
        /// What was to be done.
        what: String,
        /// What the system says.
        #[source]
        why: io::Error,
    },
}

/// How to get a program that is not there.
fn installs(error: &GuestError) -> &'static str {
    match error {
        GuestError::Tool { .. } => "; ci/install-record.sh installs it",
        GuestError::Package { .. } => {
            "; ci/install-record.sh fetches packages, ci/install-dpdk.sh testpmd's"
        }
        _ => "",
    }
}

impl Error {
    /// An error with a file of this machine.
    pub fn file(path: &Path, why: io::Error) -> Self {
        GuestError::file(path, why).into()
    }

    /// Whether a guest was there and did not do its work, and no signal asked it to stop.
    pub fn is_of_a_guest(&self) -> bool {
        match self {
            Self::Guest(error) => error.names_a_log(),
            Self::Counts { .. } => true,
            _ => false,
        }
    }

    /// Anything else of the system's.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |why| Self::Io { what, why }
    }
}

impl From<GuestError> for Error {
    fn from(error: GuestError) -> Self {
        Self::Guest(error)
    }
}

impl From<io::Error> for Error {
    fn from(why: io::Error) -> Self {
        Self::Io {
            what: "in the guest".into(),
            why,
        }
    }
}
