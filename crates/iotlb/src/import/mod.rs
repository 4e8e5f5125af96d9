// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Captures that are no traces yet: what tools leave that trace a kernel or an emulator.
//!
//! A *capture* is text of another tool; an *event* one line of it that tells of a mapping. The
//! stages are
//!
//! ```text
//! bytes -> lines -> events -> in order of time -> lines of a trace -> assumed accesses -> renumbered -> text
//!                   (ftrace, perf, qemu, csv)     (assemble)          (assume)            (anonymize)
//! ```
//!
//! and pull from each other one item at a time, so memory holds what is mapped at one time and a
//! window of events, never the whole. What is assumed, lost or left out is counted and written into
//! the trace as notes ([`crate::Note`]).
//!
//! # Bad input
//!
//! Captures are hostile like traces. Lines, lists, devices and mappings are bounded; a line that
//! means nothing is counted, a known event that does not read as it should is an [`ImportError`]
//! with file, line and column, and so is a file without any event. Only a last line without an end
//! may be cut: tracers are killed while they write.
//!
//! # Not handled
//!
//! The maps that a guest's kernel makes are in a log of QEMU only with dumps of registers, and then
//! [`qemu`] reads them; it is fed by the program that took the dumps and knows the kernel. Binary
//! captures (`trace.dat`, `perf.data`): their own tools print them, and the error says how.
//! `perf script` with other fields than time and event.

mod anonymize;
mod assemble;
mod assume;
mod capture;
mod csv;
mod dma;
mod fault;
mod fields;
mod foreign;
mod ftrace;
mod head;
mod iommu;
mod iovas;
mod item;
mod items;
mod native;
mod options;
mod order;
mod perf;
pub mod qemu;
mod qemu_events;
mod ragged;
mod raw;
mod runs;
mod tracepoint;

pub use assume::Assume;
pub use capture::{Capture, Reopen, load};
pub use fault::{Fault, ImportError};
pub use item::Item;
pub use options::{AssignIovas, Format, Identity, Options, UnknownFormat};

use crate::read::Limits;
use raw::Complaint;

/// Bytes of a line of a capture, at most: a list of 64 Ki entries in the longest print.
const LINE_BYTES: usize = 1 << 22;

/// Bytes of text of a capture, at most. It is not kept, so this only ends what does not end.
const TEXT_BYTES: u64 = 1 << 42;

/// Characters of a line that is shown because it means nothing.
const SHOWN: usize = 120;

/// The column, from 1, of a byte offset in a line.
fn column(line: &[u8], offset: usize) -> usize {
    let before = &line[..offset.min(line.len())];
    String::from_utf8_lossy(before).chars().count() + 1
}
