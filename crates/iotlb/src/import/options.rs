// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a file is, and how it is to be read.

use super::Assume;
use std::str::FromStr;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A trace as this crate writes them.
    Trace,
    /// A log of QEMU with trace events of its IOMMUs.
    Qemu,
    /// The text of `/sys/kernel/tracing/trace` or `trace_pipe`.
    Ftrace,
    /// The text of `perf script`.
    Perf,
    /// Comma-separated values whose first line names the columns.
    Csv,
}

impl Format {
    /// All formats, in the order of the enumeration.
    pub const ALL: [Format; 5] = [
        Format::Trace,
        Format::Qemu,
        Format::Ftrace,
        Format::Perf,
        Format::Csv,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Trace => "trace",
            Format::Qemu => "qemu",
            Format::Ftrace => "ftrace",
            Format::Perf => "perf",
            Format::Csv => "csv",
        }
    }

    /// What lines it must have.
    #[must_use]
    pub const fn expects(self) -> &'static str {
        match self {
            Format::Trace => "`# ioatlas-trace 2` and lines M, U, A",
            Format::Qemu => {
                "vtd_iotlb_page_hit, vtd_iotlb_page_update and vtd_inv_desc_iotlb_pages, or virtio_iommu_map, _unmap and _translate"
            }
            Format::Ftrace => {
                "`task-pid [cpu] time: dma_map_..: ..` and other events of dma:*, or map, unmap of iommu:*"
            }
            Format::Perf => {
                "`task pid [cpu] time: dma:dma_map_..: ..` and other events of dma:*, or iommu:map, iommu:unmap"
            }
            Format::Csv => "a header with event,device,iova,bytes and lines map, unmap, access",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format `{0}`, expected trace, qemu, ftrace, perf or csv")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| UnknownFormat(text.into()))
    }
}

/// Whether mappings get IOVAs here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssignIovas {
    /// On devices whose bus addresses are memory addresses: no IOMMU translates for them.
    #[default]
    Auto,
    /// On all devices, whatever their addresses.
    Always,
    /// On none. Two buffers in one page are then an anomaly.
    Never,
}

/// Whether a trace keeps what tells about the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Names, addresses, times and comments stay.
    #[default]
    Kept,
    /// Devices, memory and times are renumbered, comments dropped.
    Removed,
}

/// How a file is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// As what; found out from the content if `None`.
    pub from: Option<Format>,
    /// Where accesses are assumed in a file without any.
    pub assume: Assume,
    /// Whether mappings get IOVAs here.
    pub assign: AssignIovas,
    /// Whether the machine is to be recognised.
    pub identity: Identity,
}
