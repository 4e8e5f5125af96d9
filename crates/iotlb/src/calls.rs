// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The calls of drivers that lines of a trace tell of: a scatter-gather list is one, however many
//! `M` lines it has.

use crate::event::Event;
use crate::lists::{Lists, lists};
use crate::trace::Trace;
use crate::units::PageRange;

/// One call of a driver's: a map or an unmap, of a list as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The event; of a list its first line, with the pages of all lines.
    pub event: Event,
    /// How many bytes a map is for, where recorded of all its lines.
    pub bytes: Option<u64>,
    /// Lines `M` or `U` that it has.
    pub lines: usize,
}

/// Finds the calls of a trace.
#[derive(Debug)]
pub struct Calls<'t> {
    trace: &'t Trace,
    lists: Lists,
}

impl Trace {
    /// Finds its calls.
    #[must_use]
    pub fn calls(&self) -> Calls<'_> {
        Calls {
            trace: self,
            lists: lists(self),
        }
    }
}

impl Calls<'_> {
    /// The call that begins with the event at this index of [`Trace::events`]; `None` of an access,
    /// and of all lines of a list but its first.
    ///
    /// # Panics
    ///
    /// If the trace has no such event.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Call> {
        let event = &self.trace.events()[index];
        if matches!(event, Event::Access { .. }) || self.lists.members.contains(&index) {
            return None;
        }
        let mut call = Call {
            event: *event,
            bytes: event.bytes(),
            lines: 1,
        };
        // the lines of a list lie side by side, in this order
        for &line in self.lists.heads.get(&index).into_iter().flatten().skip(1) {
            let next = &self.trace.events()[line];
            if let (Event::Map { range, .. }, Event::Map { range: more, .. }) =
                (&mut call.event, next)
            {
                let pages = range.pages().plus(more.pages());
                *range = PageRange::new(range.first(), pages).unwrap_or(*range);
            }
            let sum = call.bytes.zip(next.bytes());
            call.bytes = sum.map(|(bytes, more)| bytes.saturating_add(more));
            call.lines += 1;
        }
        Some(call)
    }
}
