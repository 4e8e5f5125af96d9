// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The beginning of a file, which tells what it is and whether an IOMMU translated.

use super::fault::ImportError;
use super::foreign::Parser;
use super::options::Format;
use super::tracepoint::System;
use super::{Reopen, assemble, csv, ftrace, perf, qemu_events, raw};
use crate::compress::Compression;
use crate::error::TraceError;
use crate::read::{HEADER_WITHOUT_VERSION, io_error};
use std::io::{self, BufRead, Read};

/// Bytes of text that tell the format, and whether an IOMMU translates.
const HEAD: u64 = 1 << 20;

/// Bytes of names of tasks that may stand before this text, beside it: of as many as are kept.
const NAMES: usize = ftrace::NAMES * 64;

/// What some editors and spreadsheets put before text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

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
pub(super) struct Head<'a> {
    name: String,
    bytes: Vec<u8>,
    /// Of it, the lines of names at its beginning, which tell nothing else.
    names: usize,
    /// Why there is no more; told after the bytes.
    failed: Option<io::Error>,
    rest: Box<dyn Read + 'a>,
}

impl<'a> Head<'a> {
    pub fn open(name: &str, file: &'a dyn Reopen) -> Result<Self, ImportError> {
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
        let mut failed = (&mut rest).take(HEAD).read_to_end(&mut bytes).err();
        if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        let mut names = 0;
        while failed.is_none() {
            let more = names_at(&bytes[names..], NAMES - names);
            names += more;
            if more == 0 {
                break;
            }
            failed = (&mut rest).take(more as u64).read_to_end(&mut bytes).err();
        }
        Ok(Self {
            name: name.into(),
            bytes,
            names,
            failed,
            rest,
        })
    }

    /// The lines that are whole, and a last one that may not be.
    fn lines(&self) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
        let lines = self.bytes[self.names..].split(|byte| *byte == b'\n');
        lines.map(String::from_utf8_lossy)
    }

    /// What the file is.
    pub fn format(&self, asked: Option<Format>) -> Result<Format, ImportError> {
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
    pub fn is_overwritten(&self) -> bool {
        self.lines().any(|line| ftrace::is_overwritten(&line))
    }

    /// Which tracepoints to read: `dma:*` if there are any.
    pub fn system(&self, format: Format) -> System {
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
    pub fn survey(&self, format: Format) -> std::collections::HashMap<String, assemble::Addresses> {
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
    pub fn text(self) -> Box<dyn Read + 'a> {
        let failed = Failed(self.failed);
        Box::new(io::Cursor::new(self.bytes).chain(failed).chain(self.rest))
    }
}

/// Bytes of the lines that this begins with and that name tasks, of so many at most.
fn names_at(bytes: &[u8], most: usize) -> usize {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let names = lines.take_while(|line| {
        let line = line.strip_suffix(b"\n");
        line.is_some_and(|line| ftrace::is_name(&String::from_utf8_lossy(line)))
    });
    let ends = names.scan(0, |end, line| {
        *end += line.len();
        Some(*end)
    });
    ends.take_while(|end| *end <= most).last().unwrap_or(0)
}

/// A reader that has nothing but perhaps an error.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}
