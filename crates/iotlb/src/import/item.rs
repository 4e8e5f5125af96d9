// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an importer that is fed line by line, such as [`super::qemu`], hands to its caller.

use crate::event::Event;
use crate::trace::Stamp;
use std::fmt;

/// What goes into a trace; shown as its line, without the line's end.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// `# at <ns> <cpu>`: time since the first event of the capture, and CPU by a number of
    /// the importer's, of the maps and unmaps from here to the next such line. A comment to
    /// every reader of traces.
    At(Stamp),
    /// `# mark <n>`: a boundary between phases of the workload.
    Mark(u64),
    /// An event. The device's index in it means nothing; `device` is its name.
    Event {
        /// Name of the device.
        device: &'a str,
        /// What goes into the trace.
        event: Event,
    },
}

impl fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Item::At(stamp) => stamp.fmt(f),
            Item::Mark(number) => write!(f, "# mark {number}"),
            Item::Event { device, event } => crate::write::Line { device, event }.fmt(f),
        }
    }
}
