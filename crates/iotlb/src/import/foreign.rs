// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A capture of another tool, as a stream of lines of a trace.

use super::assemble::{Addresses, Assembler, Lengths, Unmaps};
use super::items::{Item, Items};
use super::order::{Order, Waiting};
use super::qemu_events::Log;
use super::raw::{Complaint, Parsed};
use super::tracepoint::System;
use super::{
    AssignIovas, Fault, Format, ImportError, LINE_BYTES, Limits, SHOWN, csv, ftrace, perf,
};
use crate::event::{DeviceId, Event};
use crate::note::{Note, Topic};
use crate::parse::quoted;
use crate::read::{LineError, Lines, line_error};
use crate::trace::{NOT_UNDERSTOOD, TaskId};
use std::collections::{BTreeMap, HashMap};

/// Characters of a device's name, at most.
const DEVICE_CHARS: usize = 128;

/// Unknown lines that are shown.
const SAMPLES: usize = 3;

/// Names of unknown events that are told apart.
const NAMES: usize = 8;

/// Reads lines of one format.
pub(super) enum Parser {
    Ftrace(System, ftrace::Names),
    Perf(System),
    Qemu(Log),
    Csv(Option<csv::Table>),
}

impl Parser {
    pub fn new(format: Format, system: System) -> Self {
        match format {
            Format::Ftrace => Parser::Ftrace(system, ftrace::Names::default()),
            Format::Perf => Parser::Perf(system),
            Format::Qemu => Parser::Qemu(Log::default()),
            Format::Csv | Format::Trace => Parser::Csv(None),
        }
    }

    pub fn line(&mut self, line: &str) -> Result<Parsed, Complaint> {
        match self {
            Parser::Ftrace(system, names) => ftrace::parse(line, *system, names),
            Parser::Perf(system) => perf::parse(line, *system),
            Parser::Qemu(log) => log.parse(line),
            Parser::Csv(Some(table)) => table.parse(line),
            Parser::Csv(table) => {
                if line.starts_with('#') || line.trim().is_empty() {
                    return Ok(Parsed::Nothing);
                }
                *table = Some(csv::Table::new(line)?);
                Ok(Parsed::Nothing)
            }
        }
    }

    /// Whether the addresses can be those of memory, because no IOMMU was asked.
    pub fn can_be_physical(&self) -> bool {
        matches!(
            self,
            Parser::Ftrace(System::Dma, _) | Parser::Perf(System::Dma) | Parser::Csv(_)
        )
    }

    fn unmaps(&self) -> Unmaps {
        match self {
            Parser::Ftrace(System::Dma, _) | Parser::Perf(System::Dma) => Unmaps::AfterTheFact,
            _ => Unmaps::InTime,
        }
    }

    fn lengths(&self) -> Lengths {
        match self.can_be_physical() {
            // what asks no IOMMU is told of buffers
            true => Lengths::Bytes,
            false => Lengths::WholePages,
        }
    }

    /// The note that says where the trace is from.
    fn origin(&self) -> Topic {
        match self {
            Parser::Ftrace(..) => Topic::Ftrace,
            Parser::Perf(_) => Topic::Perf,
            Parser::Qemu(_) => Topic::Qemu,
            Parser::Csv(_) => Topic::Csv,
        }
    }

    fn format(&self) -> Format {
        match self {
            Parser::Ftrace(..) => Format::Ftrace,
            Parser::Perf(_) => Format::Perf,
            Parser::Qemu(_) => Format::Qemu,
            Parser::Csv(_) => Format::Csv,
        }
    }
}

/// Events of which nothing is known here, by name.
#[derive(Default)]
struct Others {
    counts: BTreeMap<String, u64>,
    /// Those of names beyond the first [`NAMES`].
    more: u64,
}

impl Others {
    fn add(&mut self, name: String) {
        let known = self.counts.len() < NAMES || self.counts.contains_key(&name);
        match known {
            true => *self.counts.entry(name).or_default() += 1,
            false => self.more += 1,
        }
    }

    /// The counts, largest first; `None` without any.
    fn sentence(&self) -> Option<String> {
        let mut counts: Vec<(&str, u64)> = Vec::new();
        counts.extend(
            self.counts
                .iter()
                .map(|(name, count)| (name.as_str(), *count)),
        );
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.extend((self.more > 0).then_some(("others", self.more)));
        let of = |(name, count): (&str, u64)| format!("{count} {name}");
        let all: Vec<String> = counts.into_iter().map(of).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

pub(super) struct Foreign<'a> {
    name: String,
    lines: Lines<'a>,
    parser: Parser,
    order: Order,
    assembler: Assembler,
    events: u64,
    maps: u64,
    samples: Vec<(u64, String)>,
    others: Others,
    /// Events before are left out, in nanoseconds.
    begin: Option<u64>,
    ended: bool,
}

impl<'a> Foreign<'a> {
    pub fn new(
        name: &str,
        lines: Lines<'a>,
        parser: Parser,
        assign: AssignIovas,
        survey: HashMap<String, Addresses>,
        begin: Option<u64>,
        limits: Limits,
    ) -> Self {
        let assign = match parser.can_be_physical() {
            true => assign,
            false => AssignIovas::Never,
        };
        Self {
            name: name.into(),
            assembler: Assembler::new(assign, parser.unmaps(), parser.lengths(), survey, limits),
            lines,
            parser,
            order: Order::default(),
            events: 0,
            maps: 0,
            samples: Vec::new(),
            others: Others::default(),
            begin,
            ended: false,
        }
    }

    /// Reads one line; false at the end.
    fn line(&mut self) -> Result<bool, ImportError> {
        match self.lines.advance() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(LineError::TooLong) => {
                return Err(self.at(LINE_BYTES + 1, Fault::LineTooLong(LINE_BYTES)));
            }
            Err(error) => return Err(line_error(&self.name, &self.lines, error).into()),
        }
        let line = String::from_utf8_lossy(&self.lines.buffer);
        let line = line.trim_end_matches('\r'); // of a serial line
        let parsed = match self.parser.line(line) {
            // killed while it wrote
            Err(_) if !self.lines.ended => {
                self.assembler.counts.add(Topic::CutLine, 1);
                return Ok(true);
            }
            Err(complaint) => {
                // of the line as shown, which may be longer than its bytes where they are no text
                let before = line.get(..complaint.offset).unwrap_or(line);
                let column = before.chars().count() + 1;
                return Err(self.at(column, complaint.reason));
            }
            Ok(parsed) => parsed,
        };
        let counts = &mut self.assembler.counts;
        match parsed {
            Parsed::Nothing => {}
            Parsed::Lost(events) => counts.add(Topic::Lost, events),
            Parsed::Overwritten(entries) => counts.add(Topic::Overwritten, entries),
            Parsed::Failed => {
                self.events += 1;
                counts.add(Topic::Failed, 1);
            }
            Parsed::Interrupt => counts.add(Topic::Interrupts, 1),
            Parsed::Unknown => {
                counts.add(Topic::UnknownLines, 1);
                if self.samples.len() < SAMPLES {
                    let shown: String = line.chars().take(SHOWN).collect();
                    self.samples.push((self.lines.number, shown));
                }
            }
            Parsed::OtherEvent(name) => {
                counts.add(Topic::UnknownLines, 1);
                self.others.add(name);
            }
            Parsed::Mark(label) => {
                // after what is held back, which was before it
                self.order.finish();
                self.drain()?;
                self.assembler.out.push_back(Item::Mark(label));
            }
            Parsed::Event {
                stamp,
                task,
                device,
                raw,
            } => {
                let bad = |c: char| c.is_whitespace() || c.is_control();
                if device.is_empty()
                    || device.chars().count() > DEVICE_CHARS
                    || device.contains(bad)
                {
                    let column = line.find(&device).unwrap_or(0);
                    return Err(self.at(column + 1, Fault::BadDevice(quoted(&device))));
                }
                if stamp.is_some_and(|stamp| Some(stamp.nanoseconds) < self.begin) {
                    self.assembler.counts.add(Topic::Trimmed, 1);
                    return Ok(true);
                }
                self.events += 1;
                self.order.push(Waiting {
                    stamp,
                    task,
                    device,
                    raw,
                });
                self.drain()?;
            }
        }
        Ok(true)
    }

    fn drain(&mut self) -> Result<(), ImportError> {
        while let Some(waiting) = self.order.pop() {
            if let Err(fault) = self.assembler.event(waiting) {
                return Err(self.at(1, fault));
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ImportError> {
        self.order.finish();
        self.drain()?;
        if self.events == 0 {
            return Err(ImportError::NoEvents {
                file: self.name.clone(),
                lines: self.lines.number - 1,
                format: self.parser.format(),
            });
        }
        for item in self.assembler.out.iter() {
            self.maps += u64::from(matches!(item, Item::Event(Event::Map { .. })));
        }
        let counts = &mut self.assembler.counts;
        counts.add(Topic::Late, self.order.late);
        counts.add(self.parser.origin(), self.events);
        if matches!(
            self.parser,
            Parser::Ftrace(System::Iommu, _) | Parser::Perf(System::Iommu)
        ) {
            counts.add(Topic::DeviceUnknown, self.maps);
        }
        let notes = counts
            .iter()
            .map(|(topic, count)| Item::Note(Note { topic, count }));
        let notes: Vec<Item> = notes.collect();
        self.assembler.out.extend(notes);
        if let Some(names) = self.others.sentence() {
            let comment = Item::Comment(format!("{NOT_UNDERSTOOD}{names}"));
            self.assembler.out.push_back(comment);
            self.assembler.out.push_back(Item::NotUnderstood(names));
        }
        for (number, line) in &self.samples {
            let shown = format!("line {number}: {line}");
            self.assembler.out.push_back(Item::NotUnderstood(shown));
        }
        Ok(())
    }

    fn at(&self, column: usize, fault: Fault) -> ImportError {
        ImportError::Line {
            file: self.name.clone(),
            line: self.lines.number,
            column,
            fault,
        }
    }
}

impl Items for Foreign<'_> {
    fn next(&mut self) -> Result<Option<Item>, ImportError> {
        loop {
            if let Some(item) = self.assembler.out.pop_front() {
                self.maps += u64::from(matches!(item, Item::Event(Event::Map { .. })));
                return Ok(Some(item));
            }
            if self.ended {
                return Ok(None);
            }
            if !self.line()? {
                self.ended = true;
                self.finish()?;
            }
        }
    }

    fn device_name(&self, device: DeviceId) -> &str {
        self.assembler.device_name(device)
    }

    fn task_name(&self, task: TaskId) -> &str {
        self.assembler.task_name(task)
    }
}
