// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why there is no guest, or none that did its work.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A guest could not be made, or failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum GuestError {
    /// A program of this machine is not there.
    #[error("needs {tool}: {source} (apt-get install {package})")]
    Tool {
        tool: String,
        /// Debian's package that has it.
        package: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A package cannot be had.
    #[error("package {package}: {detail}")]
    Package { package: String, detail: String },
    /// No network of our own.
    #[error(
        "the other side of the guest's network cards needs a network of its own (unshare --user --map-root-user --net, ip tuntap): {detail}"
    )]
    Network { detail: String },
    /// The fetched packages lack a file.
    #[error("{name}: in none of the fetched packages")]
    NoFile { name: String },
    /// A file of a package is not what it should be.
    #[error("{name}: {detail}")]
    BadFile { name: String, detail: String },
    /// A file of this machine cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The guest did not end in time and was killed.
    #[error("the guest did not end within {} s and was killed, at: {phase}; its log: {}", limit.as_secs(), log.display())]
    Hangs {
        /// How long it was given.
        limit: Duration,
        /// What it was at.
        phase: String,
        log: PathBuf,
    },
    /// The guest ended, and not as it should.
    #[error("the guest failed at: {phase}: {said}; its log: {}", log.display())]
    Failed {
        /// What it was at.
        phase: String,
        /// Its own words, QEMU's, or those of the code that listened to it.
        said: String,
        log: PathBuf,
    },
    /// A signal asked to stop.
    #[error("interrupted; the guest is ended")]
    Interrupted,
}

impl GuestError {
    /// A file of this machine failed us.
    #[must_use]
    pub fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.into(),
            source,
        }
    }

    /// A program of this machine cannot be run.
    #[must_use]
    pub fn tool(tool: &str, source: io::Error) -> Self {
        let package = match tool {
            "apt-get" | "apt-cache" => "apt, on Debian",
            "dpkg-deb" => "dpkg, on Debian",
            "unshare" | "setpriv" => "util-linux",
            "ip" => "iproute2",
            "xz" => "xz-utils",
            _ => "--no-install-recommends qemu-system-x86",
        };
        Self::Tool {
            tool: tool.into(),
            package,
            source,
        }
    }

    /// Whether it names a log, so that the directory of the run is to be kept.
    #[must_use]
    pub fn names_a_log(&self) -> bool {
        matches!(self, Self::Hangs { .. } | Self::Failed { .. })
    }
}
