// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Buffers of CPUs that begin at different times.
//!
//! `ftrace` keeps of each CPU what its buffer holds, the last part of what it wrote, so that of a
//! busier CPU reaches less far back. Before the latest beginning the events of some CPUs are
//! missing: there rates are too low, and mappings have no end. What the file's first lines say is
//! how many entries were overwritten, of all CPUs together.
//!
//! A buffer that was not overwritten has no beginning but that of the recording, however late its
//! first event is. Buffers are equally large, so one that was overwritten is full, and has about as
//! much text as the fullest; what has less than an eighth of that is taken to be whole.

use super::ftrace;
use crate::read::{LineError, Lines};
use std::collections::HashMap;

/// CPUs that are told apart, at most; a kernel has at most 8,192.
const CPUS: usize = 1 << 16;

/// By how much the texts of full buffers can differ in length: their events are of different kinds.
const DIFFERENCE: u64 = 8;

/// What the buffer of a CPU holds.
struct Buffer {
    /// Nanoseconds of the first event.
    first: u64,
    /// Bytes of text.
    bytes: u64,
}

/// From when on no full buffer lacks anything, in nanoseconds; `None` without times, or where
/// nothing of interest is left then.
pub(super) fn begin(mut lines: Lines<'_>) -> Result<Option<u64>, LineError> {
    let mut buffers: HashMap<u32, Buffer> = HashMap::new();
    let mut last = None;
    while lines.advance()? {
        let line = String::from_utf8_lossy(&lines.buffer);
        let Some(event) = ftrace::tracepoint(&line) else {
            continue;
        };
        let Some(stamp) = event.stamp else {
            continue;
        };
        if event.system().is_some() {
            last = last.max(Some(stamp.nanoseconds));
        }
        if buffers.len() >= CPUS && !buffers.contains_key(&stamp.cpu) {
            continue;
        }
        let buffer = buffers.entry(stamp.cpu).or_insert(Buffer {
            first: stamp.nanoseconds,
            bytes: 0,
        });
        buffer.first = buffer.first.min(stamp.nanoseconds);
        buffer.bytes += line.len() as u64;
    }
    let most = buffers.values().map(|buffer| buffer.bytes).max();
    let full = |buffer: &&Buffer| Some(buffer.bytes.saturating_mul(DIFFERENCE)) >= most;
    let firsts = buffers.values().filter(full).map(|buffer| buffer.first);
    Ok(firsts.max().filter(|begin| last >= Some(*begin)))
}
