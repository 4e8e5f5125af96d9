// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The slices of one device.

use super::counters::{Pages, Rate};
use super::format::{Name, Thread, Writer, address};
use super::{Clock, Moment};
use ioatlas_iotlb::{Call, Event, Kind, Mappings, PageRange, Permission};
use serde::Serialize;
use std::io;

pub(super) struct Device {
    thread: Thread,
    live: Mappings<Slice>,
    pages: Pages,
    rate: Option<Rate>,
}

/// A slice that has begun.
#[derive(Clone, Copy)]
struct Slice {
    /// Its number: the index of the event.
    number: usize,
    begin_ns: u64,
    kind: Option<Kind>,
    /// As [`up_to`] shows it.
    size_lg2: u32,
}

/// What is known of a mapping as it begins.
#[derive(Serialize)]
struct Begin<'a> {
    iova: String,
    pages: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    direction: &'static str,
    /// Lines of the trace that were one scatter-gather list.
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    begins: Option<&'static str>,
}

/// What is known as it ends.
#[derive(Default, Serialize)]
struct End<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    unmapped_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unmapped_on_cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends: Option<&'static str>,
}

impl Slice {
    fn name(&self) -> String {
        let size = up_to(self.size_lg2);
        match self.kind {
            Some(kind) => format!("{kind} up to {size}"),
            None => format!("mapping up to {size}"),
        }
    }

    fn end(&self, writer: &mut Writer, thread: Thread, ns: u64, args: &End) -> io::Result<()> {
        let name = self.name();
        let what = Name::End(&name, self.number);
        writer.at(thread, what, ns.max(self.begin_ns), args)
    }
}

impl Device {
    pub fn new(thread: Thread, clock: Clock) -> Self {
        Self {
            thread,
            live: Mappings::default(),
            pages: Pages::new(clock),
            rate: Rate::new(clock),
        }
    }

    pub fn call(&mut self, writer: &mut Writer, call: &Call, moment: &Moment) -> io::Result<()> {
        let mut ended = Vec::new();
        let mut end = End::default();
        if let Some((range, slice, begin)) = beginning(call, moment) {
            if let Some(rate) = &mut self.rate {
                rate.map(writer, self.thread, moment.ns)?;
            }
            let name = slice.name();
            let what = Name::Begin(&name, slice.number);
            writer.at(self.thread, what, moment.ns, &begin)?;
            self.live.map(range, slice, |slice| ended.push(slice));
            end.ends = Some("mapped over");
        }
        if let Event::Unmap { range, .. } = call.event {
            self.live.unmap(range, |slice| ended.push(slice));
            end.unmapped_by = moment.task;
            end.unmapped_on_cpu = moment.cpu;
        }
        for slice in ended {
            slice.end(writer, self.thread, moment.ns, &end)?;
        }
        let pages = self.live.pages().0;
        self.pages.are(writer, self.thread, moment.ns, pages)
    }

    /// Ends what is left with the trace.
    pub fn finish(&mut self, writer: &mut Writer, end_ns: u64) -> io::Result<()> {
        let end = End {
            ends: Some("with the trace, still mapped"),
            ..End::default()
        };
        for slice in self.live.values() {
            slice.end(writer, self.thread, end_ns, &end)?;
        }
        if let Some(rate) = &mut self.rate {
            rate.finish(writer, self.thread)?;
        }
        self.pages.finish(writer, self.thread, end_ns)
    }
}

/// The mapping that a call makes, if it makes one.
fn beginning<'a>(call: &Call, moment: &Moment<'a>) -> Option<(PageRange, Slice, Begin<'a>)> {
    let Event::Map {
        range,
        permission,
        kind,
        ..
    } = call.event
    else {
        return None;
    };
    let reachable = u128::from(range.pages().0) * 4096;
    let slice = Slice {
        number: moment.index,
        begin_ns: moment.ns,
        kind,
        size_lg2: call
            .bytes
            .map_or(reachable, u128::from)
            .next_power_of_two()
            .trailing_zeros(),
    };
    let begin = Begin {
        iova: address(range.first().number()),
        pages: range.pages().0,
        bytes: call.bytes,
        direction: match permission {
            Permission::Read => "to the device",
            Permission::Write => "from the device",
            Permission::ReadWrite => "both",
        },
        segments: Some(call.lines).filter(|lines| *lines > 1),
        task: moment.task,
        cpu: moment.cpu,
        begins: moment.remark,
    };
    Some((range, slice, begin))
}

/// So many bytes, of which the argument is the logarithm.
fn up_to(bytes_lg2: u32) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // a mapping has at most 2^64 bytes
    let unit = UNITS.get((bytes_lg2 / 10) as usize).unwrap_or(&"");
    format!("{} {unit}", 1u32 << (bytes_lg2 % 10))
}
