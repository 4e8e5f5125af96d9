// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Buffers of CPUs that begin at different times.
//!
//! `ftrace` keeps of each CPU what its buffer holds, the last part of what it wrote, so that of a
//! busier CPU reaches less far back. Before the latest beginning the events of some CPUs are
//! missing: there rates are too low, and mappings have no end. What the file's first lines say is
//! how many entries were overwritten, of all CPUs together.
//!
//! A buffer that was not overwritten has no beginning but that of the recording, however late its
//! first event is. Which CPUs were overwritten is known exactly where the file has the lines of
//! `per_cpu/cpu*/stats` as `grep` prints them. Else it is computed: buffers are equally large, and
//! one that was overwritten is full, so what its events take in it is about as much as what those
//! of the fullest take. Of the events that are read here it is known how much that is; of others
//! only within bounds, by the length of their text.
//!
//! The lines `##### CPU 3 buffer started ####` do not tell: where any buffer was overwritten the
//! kernel prints one for each CPU but the first.

use super::ftrace::{self, Statistic};
use super::raw::{Parsed, Raw};
use super::tracepoint::Tracepoint;
use crate::read::{LineError, Lines};
use std::collections::HashMap;

/// CPUs that are told apart, at most; a kernel has at most 8,192.
const CPUS: usize = 1 << 16;

/// Bytes of a page of a buffer that are for events; one that does not fit goes to the next page.
const PAGE: u64 = 4080;

/// Bytes of an event's head in a buffer, and of the fields that all events have.
const HEAD: u64 = 4 + 8;

/// Of the fullest buffer's bytes, in percent, those of a full one at least: it lacks the page that
/// was given up last, of a few at least.
const FULL_PERCENT: u64 = 75;

/// By how much the text of an event can be longer than its record.
const LONGER: u64 = 8;

/// Bytes in the pages of a buffer, with what is left over at their ends.
#[derive(Clone, Copy, Default)]
struct Filled {
    pages: u64,
    of_last: u64,
}

impl Filled {
    fn add(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(4).min(PAGE);
        if self.of_last + bytes > PAGE {
            self.pages += 1;
            self.of_last = 0;
        }
        self.of_last += bytes;
    }

    fn bytes(self) -> u64 {
        self.pages * PAGE + self.of_last
    }
}

/// What the buffer of a CPU holds.
#[derive(Default)]
struct Buffer {
    /// Nanoseconds of the first event.
    first: Option<u64>,
    /// Bytes that its events take, at least and at most.
    least: Filled,
    most: Filled,
    /// Entries that were overwritten, where the file says it.
    overrun: Option<u64>,
}

impl Buffer {
    fn add(&mut self, nanoseconds: u64, event: &Tracepoint<'_>, line: &str) {
        let first = self.first.unwrap_or(nanoseconds);
        self.first = Some(first.min(nanoseconds));
        let text = line.len() as u64;
        let (least, most) = match record(event) {
            Some(bytes) => (bytes, bytes),
            None => (text / LONGER, text),
        };
        self.least.add(HEAD + least);
        self.most.add(HEAD + most);
    }

    /// Whether entries of it were overwritten, as far as that can be known, beside one that has so
    /// many bytes.
    fn was_overwritten(&self, fullest: u64) -> bool {
        match self.overrun {
            Some(entries) => entries > 0,
            None => self.most.bytes() * 100 >= fullest * FULL_PERCENT,
        }
    }
}

/// Bytes of the fields of an event in a buffer, but for those that all events have; `None` where
/// its record is not known.
fn record(event: &Tracepoint<'_>) -> Option<u64> {
    let Ok(Parsed::Event { device, raw, .. }) = event.parse(event.system()?) else {
        return None;
    };
    let name = device.len() as u64 + 1;
    Some(match raw {
        Raw::Map { .. } => 48 + name,
        Raw::Unmap { .. } => 40 + name,
        Raw::MapList { segments, phys, .. } => {
            36 + name + 8 * phys.len() as u64 + 12 * segments.len() as u64
        }
        Raw::UnmapList { phys } => 24 + name + 8 * phys.len() as u64,
        Raw::Sync { segments, .. } => 32 + name + 12 * segments.len() as u64,
        Raw::Access { .. } | Raw::Translated { .. } | Raw::Invalidate { .. } => return None,
    })
}

/// From when on no overwritten buffer lacks anything, in nanoseconds; `None` without times, or
/// where nothing of interest is left then.
pub(super) fn begin(mut lines: Lines<'_>) -> Result<Option<u64>, LineError> {
    let mut buffers: HashMap<Option<u32>, Buffer> = HashMap::new();
    let mut last = None;
    while lines.advance()? {
        let line = String::from_utf8_lossy(&lines.buffer);
        if let Some((cpu, statistic)) = ftrace::statistic(&line) {
            if let Statistic::Overwritten(entries) = statistic
                && let Some(buffer) = buffer_of(&mut buffers, Some(cpu))
            {
                buffer.overrun = Some(entries);
            }
            continue;
        }
        let Some(event) = ftrace::tracepoint(&line) else {
            continue;
        };
        let Some(stamp) = event.stamp else {
            continue;
        };
        if event.system().is_some() {
            last = last.max(Some(stamp.nanoseconds));
        }
        if let Some(buffer) = buffer_of(&mut buffers, stamp.cpu) {
            buffer.add(stamp.nanoseconds, &event, &line);
        }
    }
    let fullest = buffers.values().map(|buffer| buffer.least.bytes()).max();
    let fullest = fullest.unwrap_or_default();
    let overwritten = buffers
        .values()
        .filter(|buffer| buffer.was_overwritten(fullest));
    let firsts = overwritten.filter_map(|buffer| buffer.first);
    Ok(firsts.max().filter(|begin| last >= Some(*begin)))
}

/// The buffer of a CPU, or of an unknown one; `None` of one too many.
fn buffer_of(buffers: &mut HashMap<Option<u32>, Buffer>, cpu: Option<u32>) -> Option<&mut Buffer> {
    match buffers.len() < CPUS {
        true => Some(buffers.entry(cpu).or_default()),
        false => buffers.get_mut(&cpu),
    }
}
