// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The text of a trace, made from whatever a file is.

use super::anonymize::{Anonymous, Memory};
use super::assume::{Assume, Assuming};
use super::fault::ImportError;
use super::foreign::{Foreign, Parser};
use super::head::Head;
use super::items::{self, Items, Text};
use super::native::Native;
use super::options::{Format, Identity, Options};
use super::{LINE_BYTES, TEXT_BYTES, ragged};
use crate::error::TraceError;
use crate::event::Event;
use crate::note::Note;
use crate::read::{Limits, Lines};
use crate::trace::Trace;
use std::io::{self, BufRead, Read};

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
