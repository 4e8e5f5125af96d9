// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! ```text
//! import      captures of ftrace, perf script, QEMU, CSV
//! Trace       maps, unmaps, accesses: read, written, looked at
//! Laboratory  runs a trace through an Iotlb, with a Strategy or without
//! diagnose    why it missed; sweep: whether a larger one would
//! ```
//!
//! A *trace* is the sequence of map, unmap and access events that an IOMMU saw ([`Trace`]); an
//! *IOTLB* is the IOMMU's cache of translations ([`Geometry`], [`simulate`]). The crate answers
//! three questions about a trace: how often does it miss ([`Outcome`]), why ([`diagnose`]: first
//! touch, capacity or conflict), and would a larger IOTLB help ([`sweep`]). The model is that of
//! Amit, Ben-Yehuda and Yassour, "IOMMU: Strategies for Mitigating the IOTLB Bottleneck" (WIOSCA
//! 2010), section 4; where the paper leaves room, the documentation of each type says what is
//! chosen. What maps and unmaps alone tell, as of a capture without accesses, is [`Traffic`].
//!
//! # Vocabulary
//!
//! * *IOVA*: the address a device uses; *page*: 4 KiB of it ([`IovaPage`]).
//! * *Device*: the source of accesses. Every device is its own domain, so the
//!   same page number of two devices names two translations.
//! * *Mapping*: what one `M` line created. A page belongs to at most one.
//! * *Consistent* mapping: long-lived, such as a descriptor ring. *Streaming*
//!   mapping: lives for one transfer. See [`Class`].
//! * *Event time*: the index of an event, from 0; marks and comments have none.
//!
//! # Bad input
//!
//! Traces come from other machines, so the reader treats them as hostile: lines,
//! device names, devices and events are bounded ([`Limits`]), a mapping of 2^51
//! pages costs as much memory as one of one page, and every complaint is a
//! [`TraceError`] that names file, line and column.
#![forbid(unsafe_code)]

mod blocks;
mod buffer;
mod cache;
mod calls;
mod classify;
mod clock;
mod compress;
mod diagnose;
mod engine;
mod error;
mod event;
mod geometry;
mod grid;
pub mod import;
mod info;
mod iotlb;
mod lists;
mod live;
mod many;
mod mappings;
mod mirror;
mod named;
mod note;
mod optimal;
mod parse;
mod plan;
mod read;
#[cfg(feature = "viommu")]
pub mod record;
mod runs;
mod setup;
mod simulate;
mod step;
mod strategy;
mod sweep;
mod trace;
mod traffic;
mod units;
mod walk;
mod working_set;
mod write;

pub use calls::{Call, Calls};
pub use classify::Class;
pub use clock::{ClockInfo, Span};
pub use compress::{compress_gzip, compress_zstd};
pub use diagnose::{Diagnosis, MissCause, MissCounts, Verdict, diagnose, diagnose_with};
pub use error::{Reason, TraceError};
pub use event::{DeviceId, Direction, Event, Kind, Permission};
pub use geometry::{Geometry, GeometryError};
pub use grid::{Grid, GridError, Point};
pub use info::{Anomalies, DeviceInfo, KindCounts, TraceInfo};
pub use iotlb::Iotlb;
pub use lists::{Lists, lists};
pub use live::{Effect, LiveMappings};
pub use many::{simulate_file, simulate_many};
pub use mappings::Mappings;
pub use named::{Named, Part, StrategyError, Toward};
pub use note::{Note, Topic};
pub use read::Limits;
pub use setup::{BufferSize, InvalidationHint, Setup, SetupError, Trigger, Walks};
pub use simulate::{Laboratory, Outcome, simulate};
pub use strategy::{Ending, Filled, Mapped, Prefetch, Ranked, Strategy};
pub use sweep::{SWEEP_ENTRIES, SweepPoint, sweep};
pub use trace::{Mark, Stamp, Stamped, TaskId, Trace};
pub use traffic::{
    ByteCounts, CpuCount, DeviceTraffic, Lifetimes, SLOTS, SizeCount, Slot, TaskCount, Traffic,
};
pub use units::{EventTime, Extent, IovaPage, PageCount, PageRange, PhysPage};
pub use working_set::{PageSize, WorkingSet};
pub use write::{HEADER, Line};
