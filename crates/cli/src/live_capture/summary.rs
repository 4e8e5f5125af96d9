// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a capture made.

use super::arguments::{Device, LiveCaptureArguments};
use super::recording::{Ended, Recording};
use super::tracefs::Plan;
use crate::capture::sentences;
use ioatlas_iotlb::{Note, Topic};
use ioatlas_present::{grouped, printable};
use serde::Serialize;
use std::fmt;

/// The capture and its numbers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    file: String,
    /// Of the file.
    bytes: u64,
    seconds: f64,
    ended: Ended,
    /// Of the kernel.
    events: u64,
    lost: u64,
    cpus: usize,
    recorded: &'static str,
    devices: Vec<Device>,
    buffer_kib: u64,
    notes: Vec<Note>,
}

impl Summary {
    pub fn new(
        arguments: &LiveCaptureArguments,
        plan: &Plan,
        recording: &Recording,
        notes: Vec<Note>,
        bytes: u64,
    ) -> Self {
        let count = |topic| {
            let of = notes.iter().filter(|note| note.topic == topic);
            of.map(|note| note.count).sum()
        };
        Self {
            file: arguments.output.display().to_string(),
            bytes,
            seconds: recording.seconds,
            ended: recording.ended,
            events: count(Topic::Ftrace),
            lost: count(Topic::Lost),
            cpus: recording.cpus,
            recorded: plan.events,
            devices: arguments.device.clone(),
            buffer_kib: recording.kib,
            notes,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = printable(&self.file, 200);
        let lost = match self.lost {
            0 => "none".into(),
            lost => format!("{} MORE", grouped(lost)),
        };
        writeln!(
            f,
            "{file}: {} events ({}) in {:.1} s on {} CPUs, {lost} lost; {} bytes",
            grouped(self.events),
            self.recorded,
            self.seconds,
            self.cpus,
            grouped(self.bytes)
        )?;
        if self.lost > 0 {
            writeln!(
                f,
                "  Larger buffers (--size, now {} KiB a CPU), fewer devices (--device) or fewer \
                 seconds lose fewer.",
                grouped(self.buffer_kib)
            )?;
        }
        f.write_str(&sentences(&self.notes, "  "))?;
        writeln!(f, "Next: ioatlas report {file}")
    }
}
