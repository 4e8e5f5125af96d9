// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The streaming reader: bytes to [`Trace`], with bounded memory a line.

use crate::compress::Compression;
use crate::error::{Reason, TraceError};
use crate::event::{DeviceId, Event};
use crate::note::Note;
use crate::parse;
use crate::step::MAX_DEVICES;
use crate::trace::{Mark, NOT_UNDERSTOOD, Stamp, Stamped, Tasks, Trace, origin};
use crate::units::EventTime;
use crate::write::{HEADER, HEADER_1};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

pub(crate) const HEADER_WITHOUT_VERSION: &str = "# ioatlas-trace ";

/// What a trace may at most ask for. The defaults admit any honest trace that
/// fits in memory and keep a hostile one (a small compressed file that unpacks
/// without end) below a few GB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in a line, without its end.
    pub line_bytes: usize,
    /// Events; one takes 48 bytes.
    pub events: usize,
    /// Devices; never more than 65,536, which PCI can tell apart in a segment.
    pub devices: usize,
    /// Marks, lines `# mark`, in all.
    pub marks: usize,
    /// Stamps (`# at`) that are kept; later ones are passed over as comments. One takes 32 bytes.
    pub stamps: usize,
    /// Bytes of decompressed text. Comments count here only.
    pub text_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            line_bytes: 4096,
            events: 1 << 26,
            devices: 1 << 16,
            marks: 1 << 16,
            stamps: 1 << 26,
            text_bytes: 1 << 32,
        }
    }
}

impl Trace {
    /// Reads the trace in `path`, decompressed if its name ends in `.zst` or
    /// `.gz` or its content says so.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::read(&name, BufReader::new(file), Limits::default()),
            Err(source) => Err(TraceError::Open { file: name, source }),
        }
    }

    /// Reads a trace from `source`; `name` appears in errors, and its ending
    /// takes part in telling the compression.
    ///
    /// # Errors
    ///
    /// Any [`TraceError`] but `Open`.
    pub fn read(name: &str, source: impl BufRead, limits: Limits) -> Result<Self, TraceError> {
        Self::of(Reader::new(name, source, limits)?)
    }

    /// Shows `each` the events of a trace in batches, and keeps none: for traces that do not
    /// fit in memory. Names and marks are as in [`Self::read`].
    ///
    /// # Errors
    ///
    /// Any [`TraceError`] but `Open`, perhaps after some batches.
    pub fn scan(
        name: &str,
        source: impl BufRead,
        limits: Limits,
        mut each: impl FnMut(&[Event]),
    ) -> Result<(), TraceError> {
        let mut reader = Reader::new(name, source, limits)?;
        let mut batch = Vec::with_capacity(BATCH);
        while reader.read(&mut batch, BATCH)? {
            each(&batch);
            batch.clear();
        }
        Ok(())
    }

    /// Reads a trace from text that is not compressed, whatever its name.
    pub(crate) fn read_text<'a>(
        name: &str,
        text: Box<dyn Read + 'a>,
        limits: Limits,
    ) -> Result<Self, TraceError> {
        Self::of(Reader::of_text(name, text, limits)?)
    }

    fn of(mut reader: Reader<'_>) -> Result<Self, TraceError> {
        let mut events = Vec::new();
        while reader.read(&mut events, BATCH)? {}
        Ok(Self {
            name: reader.name,
            devices: reader.devices,
            events,
            marks: reader.marks,
            stamps: reader.stamps,
            tasks: reader.tasks.names,
            notes: reader.notes,
            origin: reader.origin,
            not_understood: reader.not_understood,
        })
    }
}

/// Events read at a time.
pub(crate) const BATCH: usize = 1 << 14;

/// Bytes of text read at a time.
const BLOCK: usize = 1 << 16;

/// Reads events in batches.
///
/// Lines of the usual form take a fast path ([`parse::usual`]); whatever that does not
/// know takes the way that can say what is wrong.
pub(crate) struct Reader<'a> {
    name: String,
    limits: Limits,
    source: Box<dyn Read + 'a>,
    /// Text that was read; `taken..` is not yet used.
    text: Vec<u8>,
    taken: usize,
    at_end: bool,
    /// Number of the line that begins at `taken`, from 1.
    line: u64,
    /// Bytes that may still be used.
    text_left: u64,
    events: usize,
    pub devices: Vec<String>,
    device_ids: HashMap<String, DeviceId>,
    /// The device of the latest line: the next one is often the same.
    latest: DeviceId,
    pub marks: Vec<Mark>,
    pub stamps: Vec<Stamped>,
    tasks: Tasks,
    pub notes: Vec<Note>,
    origin: Option<String>,
    not_understood: Option<String>,
}

impl<'a> Reader<'a> {
    /// Reads the first line.
    pub fn new(
        name: &str,
        mut source: impl BufRead + 'a,
        limits: Limits,
    ) -> Result<Self, TraceError> {
        let first_bytes = source
            .fill_buf()
            .map_err(|error| io_error(name, 1, error))?;
        if first_bytes.is_empty() {
            return Err(TraceError::Empty { file: name.into() });
        }
        let compression = Compression::detect(name, first_bytes);
        Self::of_text(name, compression.reader(source), limits)
    }

    /// Reads the first line of text that is not compressed.
    fn of_text(name: &str, source: Box<dyn Read + 'a>, limits: Limits) -> Result<Self, TraceError> {
        let mut reader = Self {
            name: name.into(),
            limits,
            source,
            text: Vec::new(),
            taken: 0,
            at_end: false,
            line: 1,
            text_left: limits.text_bytes,
            events: 0,
            devices: Vec::new(),
            device_ids: HashMap::new(),
            latest: DeviceId(0),
            marks: Vec::new(),
            stamps: Vec::new(),
            tasks: Tasks::default(),
            notes: Vec::new(),
            origin: None,
            not_understood: None,
        };
        reader.header()?;
        Ok(reader)
    }

    /// Adds up to `most` events to `events`; false at the end, with none added.
    pub fn read(&mut self, events: &mut Vec<Event>, most: usize) -> Result<bool, TraceError> {
        let mut added = 0;
        while added < most {
            if let Some(event) = self.usual_line() {
                events.push(event);
                added += 1;
                continue;
            }
            let Some(length) = self.whole_line()? else {
                break;
            };
            if let Some(event) = self.any_line(length)? {
                events.push(event);
                added += 1;
            }
            self.line += 1;
        }
        Ok(added > 0)
    }

    /// The event of the next line, if that is of the usual form and nothing is in its way.
    #[inline]
    fn usual_line(&mut self) -> Option<Event> {
        let latest = self
            .devices
            .get(self.latest.index())
            .map_or("", |name| name);
        let (line, length) = parse::usual(&self.text[self.taken..], latest)?;
        let fits = length <= self.limits.line_bytes
            && self.text_left > length as u64
            && self.events < self.limits.events;
        if !fits {
            return None;
        }
        let device = match line.device {
            parse::UsualDevice::Latest => self.latest,
            parse::UsualDevice::Other(name) => *self.device_ids.get(name)?,
        };
        self.latest = device;
        self.taken += length + 1;
        self.text_left -= length as u64 + 1;
        self.line += 1;
        self.events += 1;
        Some(line.body.event(device))
    }

    /// Has the next line whole in `text`, uses it up, and returns its length without its
    /// end; `None` at the end of the file. The line is the `length` bytes before `taken`,
    /// and its end, if it has one.
    fn whole_line(&mut self) -> Result<Option<usize>, TraceError> {
        let mut searched = 0;
        loop {
            let rest = &self.text[self.taken + searched..];
            if let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let length = searched + end;
                return self.use_up(length, 1).map(Some);
            }
            searched += rest.len();
            // One byte more than a line may have proves excess.
            if searched > self.limits.line_bytes {
                return self.use_up(searched, 0).map(Some);
            }
            if self.at_end {
                return match searched {
                    0 => Ok(None),
                    _ => self.use_up(searched, 0).map(Some),
                };
            }
            self.fill()?;
        }
    }

    fn use_up(&mut self, length: usize, end: usize) -> Result<usize, TraceError> {
        if length > self.limits.line_bytes {
            if self.line == 1 {
                return Err(self.no_header());
            }
            let limit = self.limits.line_bytes;
            return Err(self.at(limit + 1, Reason::LineTooLong(limit)));
        }
        self.text_left = self
            .text_left
            .checked_sub((length + end) as u64)
            .ok_or_else(|| self.at(1, Reason::TooMuchText(self.limits.text_bytes)))?;
        self.taken += length + end;
        // So that the line can be found before `taken`.
        if end == 0 {
            self.text.push(b'\n');
            self.taken += 1;
        }
        Ok(length)
    }

    /// Reads more text behind what is not yet used.
    fn fill(&mut self) -> Result<(), TraceError> {
        self.text.drain(..self.taken);
        self.taken = 0;
        let old = self.text.len();
        self.text.resize(old + BLOCK, 0);
        let read = loop {
            match self.source.read(&mut self.text[old..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let count = *read.as_ref().unwrap_or(&0);
        self.text.truncate(old + count);
        self.at_end = count == 0;
        read.map(|_| ())
            .map_err(|error| io_error(&self.name, self.line, error))
    }

    /// Takes a line of any form.
    fn any_line(&mut self, length: usize) -> Result<Option<Event>, TraceError> {
        let end = self.taken - 1;
        let line = self.text[end - length..end].to_vec();
        let text = match std::str::from_utf8(&line) {
            Ok(text) => text,
            Err(error) => {
                let valid = &line[..error.valid_up_to()];
                let column = String::from_utf8_lossy(valid).chars().count() + 1;
                return Err(self.at(column, Reason::NotUtf8));
            }
        };
        self.line_of(text).map_err(|(offset, reason)| {
            let column = text[..offset].chars().count() + 1;
            self.at(column, reason)
        })
    }

    fn header(&mut self) -> Result<(), TraceError> {
        let file = self.name.clone();
        let Some(length) = self.whole_line()? else {
            return Err(TraceError::Empty { file });
        };
        let end = self.taken - 1;
        check_header(&self.name, &self.text[end - length..end])?;
        self.line += 1;
        Ok(())
    }

    fn no_header(&self) -> TraceError {
        TraceError::MissingHeader {
            file: self.name.clone(),
        }
    }

    fn line_of(&mut self, text: &str) -> Result<Option<Event>, parse::Complaint> {
        if let Some(comment) = text.strip_prefix('#') {
            return self.comment(comment).map(|()| None);
        }
        let line = parse::line(text)?;
        if self.events >= self.limits.events {
            return Err((0, Reason::TooManyEvents(self.limits.events)));
        }
        let device = self.device(line.device)?;
        self.events += 1;
        Ok(Some(line.body.event(device)))
    }

    /// Keeps `# mark N`, `# at NS CPU TASK`, `# note TOPIC COUNT`, what the trace was recorded
    /// of and what was not understood; other comments say nothing to a program.
    fn comment(&mut self, comment: &str) -> Result<(), parse::Complaint> {
        let time = EventTime(self.events);
        if let Some((mut stamp, task)) = comment.strip_prefix(" at ").and_then(Stamp::parse) {
            if self.stamps.len() < self.limits.stamps {
                stamp.task = task.and_then(|name| self.tasks.get(name));
                self.stamps.push(Stamped { stamp, time });
            }
            return Ok(());
        }
        if let Some(note) = comment.strip_prefix(" note ").and_then(Note::parse) {
            let same = |other: &&mut Note| other.topic == note.topic;
            match self.notes.iter_mut().find(same) {
                Some(known) => *known = note,
                None => self.notes.push(note),
            }
            return Ok(());
        }
        let Some(label) = comment.strip_prefix(" mark ") else {
            let recorded = origin(comment).map(str::to_owned);
            self.origin = self.origin.take().or(recorded);
            let names = comment.strip_prefix(NOT_UNDERSTOOD).map(str::to_owned);
            self.not_understood = self.not_understood.take().or(names);
            return Ok(());
        };
        if self.marks.len() >= self.limits.marks {
            return Err((0, Reason::TooManyMarks(self.limits.marks)));
        }
        self.marks.push(Mark {
            label: label.into(),
            time,
        });
        Ok(())
    }

    fn device(&mut self, name: &str) -> Result<DeviceId, parse::Complaint> {
        if let Some(&id) = self.device_ids.get(name) {
            return Ok(id);
        }
        let most = self.limits.devices.min(MAX_DEVICES);
        if self.devices.len() >= most {
            // Offset 2: the device follows the event letter and a space.
            return Err((2, Reason::TooManyDevices(most)));
        }
        let id = DeviceId(self.devices.len() as u32);
        self.devices.push(name.into());
        self.device_ids.insert(name.into(), id);
        self.latest = id;
        Ok(id)
    }

    fn at(&self, column: usize, reason: Reason) -> TraceError {
        at(&self.name, self.line, column, reason)
    }
}

/// Splits the decompressed stream into lines of bounded length.
pub(crate) struct Lines<'a> {
    source: BufReader<Box<dyn Read + 'a>>,
    pub buffer: Vec<u8>,
    /// Number of the line in `buffer`, from 1.
    pub number: u64,
    /// Whether the line in `buffer` had an end.
    pub ended: bool,
    limit: usize,
    /// Bytes that may be read.
    text_limit: u64,
    /// Bytes that may still be read.
    text_left: u64,
}

#[derive(Debug)]
pub(crate) enum LineError {
    TooLong,
    TooMuchText,
    Io(io::Error),
}

impl<'a> Lines<'a> {
    pub fn new(text: Box<dyn Read + 'a>, limits: Limits) -> Self {
        Self {
            source: BufReader::new(text),
            buffer: Vec::new(),
            number: 0,
            ended: false,
            limit: limits.line_bytes,
            text_limit: limits.text_bytes,
            text_left: limits.text_bytes,
        }
    }

    /// Reads the next line, without its end, into `buffer`; false at the end.
    pub fn advance(&mut self) -> Result<bool, LineError> {
        self.buffer.clear();
        self.number += 1;
        // Room for the line end and for one byte that proves excess.
        let room = self.limit as u64 + 1;
        let mut limited = (&mut self.source).take(room);
        let read = limited
            .read_until(b'\n', &mut self.buffer)
            .map_err(LineError::Io)?;
        if read == 0 {
            return Ok(false);
        }
        self.text_left = self
            .text_left
            .checked_sub(read as u64)
            .ok_or(LineError::TooMuchText)?;
        self.ended = self.buffer.last() == Some(&b'\n');
        if self.ended {
            self.buffer.pop();
        } else if self.buffer.len() > self.limit {
            return Err(LineError::TooLong);
        }
        Ok(true)
    }
}

/// A complaint about a place of a file.
pub(crate) fn at(file: &str, line: u64, column: usize, reason: Reason) -> TraceError {
    TraceError::Line {
        file: file.into(),
        line,
        column,
        reason,
    }
}

/// A line that could not be read.
pub(crate) fn line_error(file: &str, lines: &Lines<'_>, error: LineError) -> TraceError {
    match error {
        LineError::Io(error) => io_error(file, lines.number, error),
        LineError::TooMuchText => at(file, lines.number, 1, Reason::TooMuchText(lines.text_limit)),
        LineError::TooLong if lines.number == 1 => TraceError::MissingHeader { file: file.into() },
        LineError::TooLong => {
            let reason = Reason::LineTooLong(lines.limit);
            at(file, lines.number, lines.limit + 1, reason)
        }
    }
}

/// Checks the first line of a trace.
pub(crate) fn check_header(file: &str, line: &[u8]) -> Result<(), TraceError> {
    if [HEADER, HEADER_1].map(str::as_bytes).contains(&line) {
        return Ok(());
    }
    let file = file.to_owned();
    match line.strip_prefix(HEADER_WITHOUT_VERSION.as_bytes()) {
        Some(version) => {
            let version = parse::quoted(&String::from_utf8_lossy(version));
            Err(TraceError::Version { file, version })
        }
        None => Err(TraceError::MissingHeader { file }),
    }
}

pub(crate) fn io_error(file: &str, line: u64, error: io::Error) -> TraceError {
    let file = file.to_owned();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => TraceError::Truncated {
            file,
            line,
            detail: error.to_string(),
        },
        io::ErrorKind::InvalidData => TraceError::Damaged {
            file,
            line,
            detail: error.to_string(),
        },
        _ => TraceError::Read {
            file,
            line,
            source: error,
        },
    }
}
