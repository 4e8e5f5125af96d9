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
mod csv;
mod dma;
mod fault;
mod fields;
mod foreign;
mod ftrace;
mod iommu;
mod iovas;
mod item;
mod items;
mod native;
mod order;
mod perf;
pub mod qemu;
mod qemu_events;
mod ragged;
mod raw;
mod runs;
mod tracepoint;

pub use assume::Assume;
pub use fault::{Fault, ImportError};
pub use item::Item;

use crate::compress::Compression;
use crate::error::TraceError;
use crate::event::Event;
use crate::note::Note;
use crate::read::{HEADER_WITHOUT_VERSION, Limits, Lines, io_error};
use crate::trace::Trace;
use anonymize::{Anonymous, Memory};
use assume::Assuming;
use foreign::{Foreign, Parser};
use items::{Items, Text};
use native::Native;
use raw::Complaint;
use std::io::{self, BufRead, Read};
use std::str::FromStr;
use tracepoint::System;

/// Bytes of text that tell the format, and whether an IOMMU translates.
const HEAD: u64 = 1 << 20;

/// What some editors and spreadsheets put before text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Bytes of a line of a capture, at most: a list of 64 Ki entries in the longest print.
const LINE_BYTES: usize = 1 << 22;

/// Bytes of text of a capture, at most. It is not kept, so this only ends what does not end.
const TEXT_BYTES: u64 = 1 << 42;

/// Characters of a line that is shown because it means nothing.
const SHOWN: usize = 120;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A trace as this crate writes them.
    Trace,
    /// A log of QEMU with trace events of its IOMMUs.
    Qemu,
    /// The text of `/sys/kernel/tracing/trace` or `trace_pipe`.
    Ftrace,
    /// The text of `perf script`.
    Perf,
    /// Comma-separated values whose first line names the columns.
    Csv,
}

impl Format {
    /// All formats, in the order of the enumeration.
    pub const ALL: [Format; 5] = [
        Format::Trace,
        Format::Qemu,
        Format::Ftrace,
        Format::Perf,
        Format::Csv,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Trace => "trace",
            Format::Qemu => "qemu",
            Format::Ftrace => "ftrace",
            Format::Perf => "perf",
            Format::Csv => "csv",
        }
    }

    /// What lines it must have.
    #[must_use]
    pub const fn expects(self) -> &'static str {
        match self {
            Format::Trace => "`# ioatlas-trace 2` and lines M, U, A",
            Format::Qemu => {
                "vtd_iotlb_page_hit, vtd_iotlb_page_update and vtd_inv_desc_iotlb_pages, or virtio_iommu_map, _unmap and _translate"
            }
            Format::Ftrace => {
                "`task-pid [cpu] time: dma_map_..: ..` and other events of dma:*, or map, unmap of iommu:*"
            }
            Format::Perf => {
                "`task pid [cpu] time: dma:dma_map_..: ..` and other events of dma:*, or iommu:map, iommu:unmap"
            }
            Format::Csv => "a header with event,device,iova,bytes and lines map, unmap, access",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format `{0}`, expected trace, qemu, ftrace, perf or csv")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| UnknownFormat(text.into()))
    }
}

/// Whether mappings get IOVAs here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssignIovas {
    /// On devices whose bus addresses are memory addresses: no IOMMU translates for them.
    #[default]
    Auto,
    /// On all devices, whatever their addresses.
    Always,
    /// On none. Two buffers in one page are then an anomaly.
    Never,
}

/// Whether a trace keeps what tells about the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Names, addresses, times and comments stay.
    #[default]
    Kept,
    /// Devices, memory and times are renumbered, comments dropped.
    Removed,
}

/// How a file is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// As what; found out from the content if `None`.
    pub from: Option<Format>,
    /// Where accesses are assumed in a file without any.
    pub assume: Assume,
    /// Whether mappings get IOVAs here.
    pub assign: AssignIovas,
    /// Whether the machine is to be recognised.
    pub identity: Identity,
}

/// A file that can be read again from its beginning.
pub trait Reopen {
    /// Reads from the beginning.
    ///
    /// # Errors
    ///
    /// Those of opening the file.
    fn reopen(&self) -> io::Result<Box<dyn BufRead + '_>>;

    /// Says that only what was opened last is read on, and nothing opened again: what is kept for
    /// that is not needed any more.
    fn is_last(&self) {}
}

impl Reopen for &[u8] {
    fn reopen(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(*self))
    }
}

/// The text of a trace, made from whatever a file is.
pub struct Capture<'a> {
    text: Text<Box<dyn Items + 'a>>,
    origin: Option<String>,
    format: Format,
    name: String,
    limits: Limits,
}

impl std::fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("written", &self.text.written)
            .finish_non_exhaustive()
    }
}

impl<'a> Capture<'a> {
    /// Begins to read `file`; `name` appears in errors, and its ending takes part in telling the
    /// compression. A second reading goes ahead where the first must know what comes: of a trace, a
    /// log of QEMU or CSV (are there accesses?), of ftrace that overwrote its buffers (from when on
    /// are there all CPUs?), or to renumber.
    ///
    /// # Errors
    ///
    /// Any [`ImportError`] that the beginning of the file, or the reading ahead, can have.
    pub fn new(
        name: &str,
        file: &'a dyn Reopen,
        options: Options,
        limits: Limits,
    ) -> Result<Self, ImportError> {
        let (items, format) = items(name, file, options, limits)?;
        let ahead = options.identity == Identity::Removed;
        let unsure = !matches!(format, Format::Ftrace | Format::Perf);
        let may_assume = options.assume != Assume::None;
        let mut found = Found::default();
        if ahead || unsure && may_assume {
            let (mut items, _) = self::items(name, file, options, limits)?;
            found.look(&mut items, ahead)?;
        }
        let assume = match format {
            Format::Ftrace | Format::Perf => may_assume,
            Format::Qemu | Format::Trace | Format::Csv => may_assume && !found.has_accesses,
        };
        let items: Box<dyn Items + 'a> = match assume {
            true => Box::new(Assuming::new(items, options.assume)),
            false => items,
        };
        let items: Box<dyn Items + 'a> = match options.identity {
            Identity::Kept => items,
            Identity::Removed => {
                let memory = std::mem::take(&mut found.memory);
                Box::new(Anonymous::new(items, memory.renumbering()))
            }
        };
        file.is_last();
        Ok(Self {
            text: Text::new(items),
            origin: found.origin,
            format,
            name: name.into(),
            limits,
        })
    }

    /// What the file says it was recorded of, if it was read ahead to be renumbered: the comment
    /// that says so is left out.
    #[must_use]
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// What the file is.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Lines M, U and A that were read from it so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.text.written.events
    }

    /// Notes that were read from it so far; all of them at its end.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.text.written.notes
    }

    /// Some of the lines that mean nothing; all of these at its end.
    #[must_use]
    pub fn samples(&self) -> &[String] {
        &self.text.written.samples
    }

    /// Reads it all into memory.
    pub fn load(mut self) -> Result<Trace, ImportError> {
        match Trace::read_text(&self.name, Box::new(&mut self.text), self.limits) {
            Err(TraceError::Read { source, file, line }) => match ImportError::from(source) {
                ImportError::Io(source) => Err(TraceError::Read { file, line, source }.into()),
                error => Err(error),
            },
            other => Ok(other?),
        }
    }
}

/// The text; an [`ImportError`] comes out as the inside of an [`io::Error`], and
/// [`ImportError::from`] gets it out.
impl Read for Capture<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.text.read(buf)
    }
}

/// Reads `file` into memory, whatever it is; twice only if it is of ftrace that overwrote its
/// buffers.
///
/// # Errors
///
/// Any [`ImportError`]; of a trace, those of [`Trace::read`].
pub fn load(
    name: &str,
    file: &dyn Reopen,
    options: Options,
    limits: Limits,
) -> Result<Trace, ImportError> {
    let (head, format, begin) = whole(name, file, options)?;
    file.is_last();
    let trace = match format {
        Format::Trace => Trace::read_text(name, head.text(), limits)?,
        format => {
            let mut items: Box<dyn Items + '_> =
                Box::new(foreign(name, head, format, begin, options, limits));
            if matches!(format, Format::Ftrace | Format::Perf) && options.assume != Assume::None {
                items = Box::new(Assuming::new(items, options.assume));
            }
            let capture = Capture {
                text: Text::new(items),
                origin: None,
                format,
                name: name.into(),
                limits,
            };
            capture.load()?
        }
    };
    Ok(trace.with_assumed_accesses(options.assume))
}

/// The lines of a trace that `file` is or becomes.
fn items<'a>(
    name: &str,
    file: &'a dyn Reopen,
    options: Options,
    limits: Limits,
) -> Result<(Box<dyn Items + 'a>, Format), ImportError> {
    let (head, format, begin) = whole(name, file, options)?;
    let items: Box<dyn Items + 'a> = match format {
        Format::Trace => {
            let unbounded = Limits {
                text_bytes: TEXT_BYTES,
                ..limits
            };
            let lines = Lines::new(head.text(), unbounded);
            Box::new(Native::new(name, lines, limits))
        }
        format => Box::new(foreign(name, head, format, begin, options, limits)),
    };
    Ok((items, format))
}

/// The beginning of a file, what it is, and from when on it is whole if it is not from its start:
/// to know that, all of it is read before.
fn whole<'a>(
    name: &str,
    file: &'a dyn Reopen,
    options: Options,
) -> Result<(Head<'a>, Format, Option<u64>), ImportError> {
    let head = Head::open(name, file)?;
    let format = head.format(options.from)?;
    if format != Format::Ftrace || !head.is_overwritten() {
        return Ok((head, format, None));
    }
    // what cannot be read is told when it is read again
    let begin = ragged::begin(lines(head, Limits::default())).unwrap_or_default();
    Ok((Head::open(name, file)?, format, begin))
}

/// The lines of a capture.
fn lines(head: Head<'_>, limits: Limits) -> Lines<'_> {
    let limits = Limits {
        line_bytes: LINE_BYTES,
        text_bytes: TEXT_BYTES,
        ..limits
    };
    Lines::new(head.text(), limits)
}

fn foreign<'a>(
    name: &str,
    head: Head<'a>,
    format: Format,
    begin: Option<u64>,
    options: Options,
    limits: Limits,
) -> Foreign<'a> {
    let survey = head.survey(format);
    let parser = Parser::new(format, head.system(format));
    let lines = lines(head, limits);
    Foreign::new(name, lines, parser, options.assign, survey, begin, limits)
}

/// What a first reading finds.
#[derive(Default)]
struct Found {
    has_accesses: bool,
    memory: Memory,
    origin: Option<String>,
}

impl Found {
    /// Reads as far as needed: to the first access, or for `memory` to the end.
    fn look(&mut self, items: &mut dyn Items, memory: bool) -> Result<(), ImportError> {
        while let Some(item) = items.next()? {
            match item {
                items::Item::Event(event) => {
                    self.has_accesses |= matches!(event, Event::Access { .. });
                    if memory {
                        self.memory.event(&event)?;
                    } else if self.has_accesses {
                        return Ok(());
                    }
                }
                items::Item::Comment(comment) if self.origin.is_none() => {
                    self.origin = crate::trace::origin(&comment).map(str::to_owned);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Beginnings of binary captures, what they are of, and what prints them.
const BINARY: [(&[u8], &str, &str); 5] = [
    (
        // of 16 bytes: what `perf record -o -` writes, which older `perf` reads from a pipe only
        b"PERFILE2\x10\0\0\0\0\0\0\0",
        "a capture of perf as it goes into a pipe",
        "perf script -i - <FILE",
    ),
    (b"PERFILE2", PERF_DATA, PERF_SCRIPT),
    // by a machine of the other byte order, and by old `perf`
    (b"2ELIFREP", PERF_DATA, PERF_SCRIPT),
    (b"PERFFILE", PERF_DATA, PERF_SCRIPT),
    (
        b"\x17\x08\x44tracing",
        "a capture of trace-cmd (trace.dat)",
        "trace-cmd report FILE",
    ),
];
const PERF_DATA: &str = "a capture of perf (perf.data)";
const PERF_SCRIPT: &str = "perf script -i FILE";

/// The beginning of a file, and the rest.
struct Head<'a> {
    name: String,
    bytes: Vec<u8>,
    /// Why there is no more; told after the bytes.
    failed: Option<io::Error>,
    rest: Box<dyn Read + 'a>,
}

impl<'a> Head<'a> {
    fn open(name: &str, file: &'a dyn Reopen) -> Result<Self, ImportError> {
        let mut file = file.reopen().map_err(|source| TraceError::Open {
            file: name.into(),
            source,
        })?;
        let first = file.fill_buf().map_err(|error| io_error(name, 1, error))?;
        if first.is_empty() {
            return Err(TraceError::Empty { file: name.into() }.into());
        }
        let mut rest = Compression::detect(name, first).reader(file);
        let mut bytes = Vec::new();
        let failed = (&mut rest).take(HEAD).read_to_end(&mut bytes).err();
        if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(Self {
            name: name.into(),
            bytes,
            failed,
            rest,
        })
    }

    /// The lines that are whole, and a last one that may not be.
    fn lines(&self) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
        let lines = self.bytes.split(|byte| *byte == b'\n');
        lines.map(String::from_utf8_lossy)
    }

    /// What the file is.
    fn format(&self, asked: Option<Format>) -> Result<Format, ImportError> {
        let known = |(begin, _, _): &&(&[u8], _, _)| self.bytes.starts_with(begin);
        if let Some(&(_, what, command)) = BINARY.iter().find(known) {
            return Err(ImportError::Binary {
                file: self.name.clone(),
                what,
                command,
            });
        }
        if let Some(format) = asked {
            return Ok(format);
        }
        // what cannot be read at all is the reader's to complain about
        let unreadable = self.bytes.is_empty();
        if unreadable || self.bytes.starts_with(HEADER_WITHOUT_VERSION.as_bytes()) {
            return Ok(Format::Trace);
        }
        let mut lines = self.lines().filter(|line| !line.is_empty());
        let first = lines.by_ref().find(|line| !line.starts_with('#'));
        if first.as_deref().is_some_and(csv::is_header) {
            return Ok(Format::Csv);
        }
        let mut found = [(Format::Qemu, 0), (Format::Ftrace, 0), (Format::Perf, 0)];
        for line in self.lines() {
            found[0].1 += u64::from(qemu_events::is_event(&line));
            found[1].1 +=
                u64::from(ftrace::tracepoint(&line).is_some_and(|t| t.system().is_some()));
            found[2].1 += u64::from(perf::tracepoint(&line).is_some_and(|t| t.system().is_some()));
        }
        match found.into_iter().max_by_key(|(_, count)| *count) {
            Some((format, count)) if count > 0 => Ok(format),
            // the error is to say which columns are missing
            _ if first.as_deref().is_some_and(csv::resembles_header) => Ok(Format::Csv),
            _ => Err(ImportError::UnknownFormat {
                file: self.name.clone(),
            }),
        }
    }

    /// Whether `ftrace` says that it overwrote events.
    fn is_overwritten(&self) -> bool {
        self.lines().any(|line| ftrace::is_overwritten(&line))
    }

    /// Which tracepoints to read: `dma:*` if there are any.
    fn system(&self, format: Format) -> System {
        let mut iommu = false;
        for line in self.lines() {
            let event = match format {
                Format::Ftrace => ftrace::tracepoint(&line),
                Format::Perf => perf::tracepoint(&line),
                _ => return System::Dma,
            };
            match event.and_then(|event| event.system()) {
                Some(System::Dma) => return System::Dma,
                Some(System::Iommu) => iommu = true,
                None => {}
            }
        }
        match iommu {
            true => System::Iommu,
            false => System::Dma,
        }
    }

    /// Whether devices use memory addresses.
    fn survey(&self, format: Format) -> std::collections::HashMap<String, assemble::Addresses> {
        let mut survey = std::collections::HashMap::new();
        let mut parser = Parser::new(format, self.system(format));
        if !parser.can_be_physical() {
            return survey;
        }
        for line in self.lines() {
            // complaints come when the line is read
            if let Ok(raw::Parsed::Event { device, raw, .. }) = parser.line(&line) {
                let found = assemble::addresses(&raw);
                let sum: &mut assemble::Addresses = survey.entry(device).or_default();
                sum.physical += found.physical;
                sum.translated += found.translated;
            }
        }
        survey
    }

    /// All of the text.
    fn text(self) -> Box<dyn Read + 'a> {
        let failed = Failed(self.failed);
        Box::new(io::Cursor::new(self.bytes).chain(failed).chain(self.rest))
    }
}

/// A reader that has nothing but perhaps an error.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// The column, from 1, of a byte offset in a line.
fn column(line: &[u8], offset: usize) -> usize {
    let before = &line[..offset.min(line.len())];
    String::from_utf8_lossy(before).chars().count() + 1
}
