// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the parsers of all formats agree on: one thing that happened, in bytes and addresses, not
//! yet pages.

use crate::event::{Direction, Kind, Permission};
use crate::trace::Stamp;

/// A run of bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// First address, in bytes.
    pub address: u64,
    pub bytes: u64,
}

/// The side that a `dma_sync_*` call hands a buffer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The CPU: the device has been at the buffer.
    Cpu,
    /// The device, for one more transfer.
    Device,
}

/// One thing that happened to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    /// One buffer was mapped.
    Map {
        segment: Segment,
        /// Address in physical memory of the first byte, where recorded.
        phys: Option<u64>,
        permission: Permission,
        kind: Option<Kind>,
    },
    /// One buffer was unmapped.
    Unmap { segment: Segment, via: Via },
    /// A scatter-gather list was mapped.
    MapList {
        segments: Vec<Segment>,
        /// Address of each entry in physical memory; there are as many segments, or fewer
        /// if some were merged.
        phys: Vec<u64>,
        permission: Permission,
        /// Entries of the list, where the record was cut: more than `phys` has.
        entries: usize,
        /// Segments that the record leaves out.
        cut: u64,
    },
    /// A list was unmapped, named by the physical addresses of its entries.
    UnmapList { phys: Vec<u64> },
    /// Buffers changed hands without being unmapped.
    Sync { segments: Vec<Segment>, to: Owner },
    /// The device used an address.
    Access {
        address: u64,
        direction: Option<Direction>,
    },
    /// The device used an address, and the log says what it maps to.
    Translated {
        address: u64,
        phys: u64,
        permission: Permission,
    },
    /// The unit forgot a range of addresses: whatever is mapped there has been unmapped.
    Invalidate { first_page: u64, last_page: u64 },
}

/// Which interface reported an unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// The kernel's DMA interface, *after* the unmap: another CPU may have mapped the
    /// range again by then.
    Dma,
    /// The IOMMU's, before the range can be used again.
    Iommu,
}

/// A line that means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// An event of a device, at a time where the format has one.
    Event {
        /// Without its task.
        stamp: Option<Stamp>,
        /// Name of the task that ran, where the format has it.
        task: Option<String>,
        device: String,
        raw: Raw,
    },
    /// A phase of the workload begins.
    Mark(String),
    /// Events were lost by the tracer; 1 where it does not say how many.
    Lost(u64),
    /// So many entries, older than all others, are gone.
    Overwritten(u64),
    /// A known event that says nothing about mappings, or a comment.
    Nothing,
    /// A map that failed: nothing is mapped.
    Failed,
    /// An interrupt message; no memory is touched.
    Interrupt,
    /// A line that means nothing here.
    Unknown,
    /// An event by its name, of which nothing is known here.
    OtherEvent(String),
}

/// A known event that does not read as it should, and the byte offset in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub offset: usize,
    pub reason: super::Fault,
}
