// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The streaming reader: bytes to [`Trace`], with bounded memory a line.

use crate::compress::Compression;
use crate::error::{Reason, TraceError};
use crate::event::{DeviceId, Event};
use crate::parse::{self, Body};
use crate::trace::{Mark, Trace};
use crate::units::EventTime;
use crate::write::HEADER;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

const HEADER_WITHOUT_VERSION: &str = "# ioatlas-trace ";

/// What a trace may at most ask for. The defaults admit any honest trace that
/// fits in memory and keep a hostile one (a small compressed file that unpacks
/// without end) below a few GB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in a line, without its end.
    pub line_bytes: usize,
    /// Events; one takes 48 bytes.
    pub events: usize,
    /// Devices. PCI can tell 65,536 apart in a segment.
    pub devices: usize,
    /// Marks.
    pub marks: usize,
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
            text_bytes: 1 << 32,
        }
    }
}

impl Trace {
    /// Reads the trace in `path`, decompressed if its name ends in `.zst` or
    /// `.gz` or its content says so.
    ///
    /// # Errors
    ///
    /// Any [`TraceError`].
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
    pub fn read(name: &str, mut source: impl BufRead, limits: Limits) -> Result<Self, TraceError> {
        let first_bytes = source
            .fill_buf()
            .map_err(|error| io_error(name, 1, error))?;
        if first_bytes.is_empty() {
            return Err(TraceError::Empty { file: name.into() });
        }
        let compression = Compression::detect(name, first_bytes);
        let lines = Lines {
            source: BufReader::new(compression.reader(source)),
            buffer: Vec::new(),
            number: 0,
            limit: limits.line_bytes,
            text_left: limits.text_bytes,
        };
        Builder::new(name, limits).run(lines)
    }
}

/// Splits the decompressed stream into lines of bounded length.
struct Lines<'a> {
    source: BufReader<Box<dyn Read + 'a>>,
    buffer: Vec<u8>,
    /// Number of the line in `buffer`, from 1.
    number: u64,
    limit: usize,
    /// Bytes that may still be read.
    text_left: u64,
}

enum LineError {
    TooLong,
    TooMuchText,
    Io(io::Error),
}

impl Lines<'_> {
    /// Reads the next line, without its end, into `buffer`; false at the end.
    fn advance(&mut self) -> Result<bool, LineError> {
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
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > self.limit {
            return Err(LineError::TooLong);
        }
        Ok(true)
    }
}

struct Builder {
    trace: Trace,
    device_ids: HashMap<String, DeviceId>,
    limits: Limits,
}

impl Builder {
    fn new(name: &str, limits: Limits) -> Self {
        let trace = Trace {
            name: name.into(),
            devices: Vec::new(),
            events: Vec::new(),
            marks: Vec::new(),
        };
        Self {
            trace,
            device_ids: HashMap::new(),
            limits,
        }
    }

    fn run(mut self, mut lines: Lines<'_>) -> Result<Trace, TraceError> {
        loop {
            match lines.advance() {
                Ok(true) => {}
                Ok(false) if lines.number == 1 => {
                    return Err(TraceError::Empty {
                        file: self.trace.name,
                    });
                }
                Ok(false) => return Ok(self.trace),
                Err(LineError::Io(error)) => {
                    return Err(io_error(&self.trace.name, lines.number, error));
                }
                Err(LineError::TooMuchText) => {
                    let reason = Reason::TooMuchText(self.limits.text_bytes);
                    return Err(self.at(lines.number, 1, reason));
                }
                Err(LineError::TooLong) if lines.number == 1 => {
                    return Err(TraceError::MissingHeader {
                        file: self.trace.name,
                    });
                }
                Err(LineError::TooLong) => {
                    let reason = Reason::LineTooLong(lines.limit);
                    return Err(self.at(lines.number, lines.limit + 1, reason));
                }
            }
            if lines.number == 1 {
                self.header(&lines.buffer)?;
                continue;
            }
            let text = match std::str::from_utf8(&lines.buffer) {
                Ok(text) => text,
                Err(error) => {
                    let valid = &lines.buffer[..error.valid_up_to()];
                    let column = String::from_utf8_lossy(valid).chars().count() + 1;
                    return Err(self.at(lines.number, column, Reason::NotUtf8));
                }
            };
            if let Err((offset, reason)) = self.line(text) {
                let column = text[..offset].chars().count() + 1;
                return Err(self.at(lines.number, column, reason));
            }
        }
    }

    fn header(&self, line: &[u8]) -> Result<(), TraceError> {
        if line == HEADER.as_bytes() {
            return Ok(());
        }
        let file = self.trace.name.clone();
        match line.strip_prefix(HEADER_WITHOUT_VERSION.as_bytes()) {
            Some(version) => {
                let version = parse::quoted(&String::from_utf8_lossy(version));
                Err(TraceError::Version { file, version })
            }
            None => Err(TraceError::MissingHeader { file }),
        }
    }

    fn line(&mut self, text: &str) -> Result<(), parse::Complaint> {
        if let Some(comment) = text.strip_prefix('#') {
            return self.comment(comment);
        }
        let line = parse::line(text)?;
        if self.trace.events.len() >= self.limits.events {
            return Err((0, Reason::TooManyEvents(self.limits.events)));
        }
        let device = self.device(line.device)?;
        self.trace.events.push(match line.body {
            Body::Map {
                range,
                permission,
                phys,
                kind,
            } => Event::Map {
                device,
                range,
                permission,
                phys,
                kind,
            },
            Body::Unmap { range } => Event::Unmap { device, range },
            Body::Access { page, direction } => Event::Access {
                device,
                page,
                direction,
            },
        });
        Ok(())
    }

    /// Keeps `# mark N`; other comments say nothing to a program.
    fn comment(&mut self, comment: &str) -> Result<(), parse::Complaint> {
        let Some(label) = comment.strip_prefix(" mark ") else {
            return Ok(());
        };
        if self.trace.marks.len() >= self.limits.marks {
            return Err((0, Reason::TooManyMarks(self.limits.marks)));
        }
        let time = EventTime(self.trace.events.len());
        self.trace.marks.push(Mark {
            label: label.into(),
            time,
        });
        Ok(())
    }

    fn device(&mut self, name: &str) -> Result<DeviceId, parse::Complaint> {
        if let Some(&id) = self.device_ids.get(name) {
            return Ok(id);
        }
        let count = self.trace.devices.len();
        if count >= self.limits.devices {
            // Offset 2: the device follows the event letter and a space.
            return Err((2, Reason::TooManyDevices(self.limits.devices)));
        }
        let id = DeviceId(u32::try_from(count).unwrap_or(u32::MAX));
        self.trace.devices.push(name.into());
        self.device_ids.insert(name.into(), id);
        Ok(id)
    }

    fn at(&self, line: u64, column: usize, reason: Reason) -> TraceError {
        TraceError::Line {
            file: self.trace.name.clone(),
            line,
            column,
            reason,
        }
    }
}

fn io_error(file: &str, line: u64, error: io::Error) -> TraceError {
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
