// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Mappings on a time line: a file in the Trace Event Format, which ui.perfetto.dev and
//! chrome://tracing open.
//!
//! A device is a process there, since viewers keep a process's slices and counters together; so are
//! the CPUs of a trace. In that of a device each mapping is a slice from its map to its unmap, in
//! nestable asynchronous events, as they overlap; they are named by kind and size, which viewers
//! make tracks and colours of. On the CPUs each call that maps or unmaps is an instant. A
//! scatter-gather list is one mapping, as everywhere in a report.
//!
//! Times are those of the trace's stamps, from its earliest on. Where there are none, an event
//! takes a microsecond. Time can step back where tracers disagree; no slice ends before it begins.
//!
//! The file is written as the trace is read: beside the trace, memory follows the live mappings.

mod counters;
mod device;
mod format;

use crate::error::Error;
use crate::loaded::{LoadedTrace, NAME};
use crate::output::Target;
use device::Device;
use flate2::Compression;
use flate2::write::GzEncoder;
use format::{Name, Thread, Writer};
use ioatlas_iotlb::{Call, Event, Span, Stamp, Trace};
use ioatlas_present::short;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

/// Writes the traces to a file, compressed if it is called `.gz`.
///
/// # Errors
///
/// [`Error::Output`]; a file that was there is as it was then.
pub fn export(traces: &[LoadedTrace], target: &Target) -> Result<(), Error> {
    let gzip = target.path().extension().is_some_and(|end| end == "gz");
    target.replace(|file| {
        let file = BufWriter::new(file);
        if gzip {
            let mut file = GzEncoder::new(file, Compression::fast());
            write(traces, &mut file)?;
            return file.finish()?.flush();
        }
        let mut file = file;
        write(traces, &mut file)?;
        file.flush()
    })
}

/// What a viewer need not understand.
#[derive(Serialize)]
struct OtherData {
    program: &'static str,
    traces: Vec<About>,
}

#[derive(Serialize)]
struct About {
    trace: String,
    /// What a microsecond of the file is.
    time: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_stamp_ns: Option<u64>,
    lost_events: u64,
}

fn write(traces: &[LoadedTrace], file: &mut dyn Write) -> io::Result<()> {
    let about = |loaded: &LoadedTrace| {
        let span = loaded.trace.span();
        About {
            trace: loaded.label.clone(),
            time: match span {
                Some(_) => "since the trace's earliest stamp",
                None => "virtual: the trace has no times, and an event takes 1 us",
            },
            first_stamp_ns: span.map(|span| span.first_ns),
            lost_events: loaded.trace.lost_events(),
        }
    };
    let other = OtherData {
        program: concat!("ioatlas ", env!("CARGO_PKG_VERSION")),
        traces: traces.iter().map(about).collect(),
    };
    let mut writer = Writer::begin(file, &other)?;
    for loaded in traces {
        Export::new(&mut writer, loaded).run()?;
    }
    writer.end()
}

/// A trace on its way to the file.
struct Export<'a, 'w> {
    writer: &'a mut Writer<'w>,
    loaded: &'a LoadedTrace,
    clock: Clock,
    devices: Vec<Option<Device>>,
    cpus: Option<Thread>,
    /// The track of each CPU.
    tracks: HashMap<u32, Thread>,
}

impl<'a, 'w> Export<'a, 'w> {
    fn new(writer: &'a mut Writer<'w>, loaded: &'a LoadedTrace) -> Self {
        Self {
            writer,
            clock: Clock::of(&loaded.trace),
            devices: loaded.trace.devices().map(|_| None).collect(),
            loaded,
            cpus: None,
            tracks: HashMap::new(),
        }
    }

    fn run(mut self) -> io::Result<()> {
        let trace = &self.loaded.trace;
        let calls = trace.calls();
        for (index, stamp) in trace.stamps_of_events().enumerate() {
            let Some(call) = calls.at(index) else {
                continue;
            };
            let moment = Moment {
                index,
                ns: self.clock.ns(index, stamp),
                cpu: stamp.and_then(|stamp| stamp.cpu),
                task: stamp.and_then(|stamp| Some(trace.task_name(stamp.task?))),
                remark: (self.clock.span.is_some() && stamp.is_none())
                    .then_some("before the first time of the trace"),
            };
            if let Some(cpu) = moment.cpu {
                let track = self.track(cpu)?;
                let name = trace.device_name(call.event.device());
                self.writer
                    .instant(track, &call, &moment, &short(name, NAME))?;
            }
            self.device(&call, &moment)?;
        }
        let end_ns = self.clock.end_ns;
        for device in self.devices.iter_mut().flatten() {
            device.finish(self.writer, end_ns)?;
        }
        Ok(())
    }

    fn device(&mut self, call: &Call, moment: &Moment) -> io::Result<()> {
        let id = call.event.device();
        let device = match &mut self.devices[id.index()] {
            Some(device) => device,
            none => {
                let name = short(self.loaded.trace.device_name(id), NAME);
                let lost = match self.loaded.trace.lost_events() {
                    0 => "",
                    _ => " (events were LOST)",
                };
                let (label, remark) = (&self.loaded.label, self.clock.remark());
                let name = format!("{label} {name}{remark}{lost}");
                let thread = self.writer.process(&name)?;
                none.insert(Device::new(thread, self.clock))
            }
        };
        device.call(self.writer, call, moment)
    }

    /// The track of a CPU.
    fn track(&mut self, cpu: u32) -> io::Result<Thread> {
        if let Some(track) = self.tracks.get(&cpu) {
            return Ok(*track);
        }
        let process = match self.cpus {
            Some(process) => process,
            None => {
                let name = format!("{} CPUs: maps and unmaps", self.loaded.label);
                self.writer.process(&name)?
            }
        };
        self.cpus = Some(process);
        let track = self.writer.thread(process, &format!("CPU {cpu}"), cpu)?;
        self.tracks.insert(cpu, track);
        Ok(track)
    }
}

/// When and where a call was.
struct Moment<'a> {
    /// Index of its event.
    index: usize,
    /// From the beginning of the trace.
    ns: u64,
    cpu: Option<u32>,
    task: Option<&'a str>,
    /// Of one without a time in a trace with times.
    remark: Option<&'static str>,
}

/// How a trace's events get their times.
#[derive(Clone, Copy)]
struct Clock {
    span: Option<Span>,
    /// Events of the trace.
    events: u64,
    /// From the beginning of the trace to its end.
    end_ns: u64,
}

/// How long an event takes where no times are known.
const VIRTUAL_NS: u64 = 1000;

impl Clock {
    fn of(trace: &Trace) -> Self {
        let span = trace.span();
        let events = trace.events().len() as u64;
        let length = |span: Span| span.last_ns.saturating_sub(span.first_ns);
        Self {
            span,
            events,
            end_ns: span.map_or(events * VIRTUAL_NS, length),
        }
    }

    /// The time of an event; of those before the first stamp, which have none, the beginning.
    fn ns(&self, index: usize, stamp: Option<Stamp>) -> u64 {
        let since = |(span, stamp): (Span, Stamp)| stamp.nanoseconds.saturating_sub(span.first_ns);
        match self.span {
            Some(span) => stamp.map_or(0, |stamp| since((span, stamp))),
            None => index as u64 * VIRTUAL_NS,
        }
    }

    fn remark(&self) -> &'static str {
        match self.span {
            Some(_) => "",
            None => " (no times: 1 us is 1 event)",
        }
    }
}

impl Writer<'_> {
    /// A call on the track of its CPU.
    fn instant(
        &mut self,
        track: Thread,
        call: &Call,
        moment: &Moment,
        device: &str,
    ) -> io::Result<()> {
        #[derive(Serialize)]
        struct Args<'a> {
            device: &'a str,
            iova: String,
            pages: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            task: Option<&'a str>,
        }
        let (name, range) = match call.event {
            Event::Map { range, .. } => ("map", range),
            Event::Unmap { range, .. } => ("unmap", range),
            Event::Access { .. } => return Ok(()),
        };
        let args = Args {
            device,
            iova: format::address(range.first().number()),
            pages: range.pages().0,
            task: moment.task,
        };
        self.at(track, Name::Instant(name), moment.ns, &args)
    }
}
