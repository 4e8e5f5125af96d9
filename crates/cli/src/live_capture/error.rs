// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why there is no capture.

use std::io;
use std::path::{Path, PathBuf};

/// This machine could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// There is no tracefs at any of these places.
    #[error("no tracefs at {places}; as root: mount -t tracefs nodev /sys/kernel/tracing")]
    NotMounted {
        /// Where it was looked for.
        places: String,
    },
    /// The kernel does not let us.
    #[error(
        "{}: cannot {what}: {source}; run as root (where root may not either, the kernel is locked \
         down, or this is a container)",
        path.display()
    )]
    NeedsRoot {
        /// The file.
        path: PathBuf,
        /// What was to be done with it.
        what: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The kernel has none of the events that tell of mappings.
    #[error(
        "no events dma:* and no iommu:map in {}: this is Linux {kernel}; dma:* came with 6.12, \
         iommu:map needs a kernel built with tracing and an IOMMU driver",
        path.display()
    )]
    NoEvents {
        /// The directory of events.
        path: PathBuf,
        /// The kernel's release.
        kernel: String,
    },
    /// Events cannot be filtered by device.
    #[error(
        "--device: {events} have no field `device`, so this kernel cannot tell whose a mapping is; \
         record without it"
    )]
    NoDeviceField {
        /// The events that there are.
        events: &'static str,
    },
    /// The kernel refuses something else.
    #[error("{}: cannot {what}: {source}{}", path.display(), hint(path))]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What was to be done with it.
        what: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// No event was recorded.
    #[error(
        "nothing recorded: in {seconds:.1} s no driver mapped or unmapped anything ({events}{})",
        of(devices)
    )]
    NothingRecorded {
        /// How long.
        seconds: f64,
        /// What was enabled.
        events: &'static str,
        /// What was asked for; empty: all.
        devices: Vec<String>,
    },
    /// The kernel's text is not what the importer knows.
    #[error("{why}; what the kernel wrote is kept: {}", kept.display())]
    NotUnderstood {
        /// The importer's complaint.
        why: String,
        /// Where it is.
        kept: PathBuf,
    },
    /// The trace could not be written.
    #[error(
        "{why}; what the kernel wrote is kept: {}, which `ioatlas report` reads as well",
        kept.display()
    )]
    NotWritten {
        /// Why not.
        why: String,
        /// Where it is.
        kept: PathBuf,
    },
    /// Not even the first of the kernel's text could be written.
    #[error(
        "{}: cannot write beside it what the kernel says: {source}; nothing was recorded: record \
         elsewhere (-o)",
        path.display()
    )]
    NoRoom {
        /// The trace that was to be.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The kernel's text could be written only for a while.
    #[error(
        "{}: THE DISK BECAME FULL, so recording ended after {seconds:.1} of {asked:.1} s; the trace \
         has what could be written until then ({source}). Record elsewhere (-o), for fewer seconds, \
         or only some devices (--device)",
        path.display()
    )]
    DiskFull {
        /// The trace.
        path: PathBuf,
        /// How long was recorded.
        seconds: f64,
        /// How long it was to be.
        asked: f64,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The instance is still there.
    #[error(
        "{}: cannot remove it: {source}; when no program has its files open: rmdir {}",
        path.display(),
        path.display()
    )]
    StillThere {
        /// The instance.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Signals cannot be handled.
    #[error("signals: {0}")]
    Signals(io::Error),
}

impl CaptureError {
    /// That `what` could not be done with a file of tracefs.
    pub(super) fn of(path: &Path, what: impl Into<String>, source: io::Error) -> Self {
        let (path, what) = (path.into(), what.into());
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NeedsRoot { path, what, source },
            _ => Self::Kernel { path, what, source },
        }
    }
}

fn hint(path: &Path) -> &'static str {
    match path.ends_with("buffer_size_kb") {
        true => "; a smaller --size needs less memory",
        false => "",
    }
}

fn of(devices: &[String]) -> String {
    match devices {
        [] => String::new(),
        _ => format!(
            " of {}; lspci -D has the names of devices",
            devices.join(", ")
        ),
    }
}
