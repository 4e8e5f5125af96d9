// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A trace as a stream: the form in which it is imported, changed and written.

use super::ImportError;
use super::raw::Owner;
use crate::event::{DeviceId, Event};
use crate::note::Note;
use crate::trace::{Stamp, TaskId};
use crate::units::PageRange;
use crate::write::{HEADER, Line};
use std::collections::HashMap;
use std::io::{self, Read};

/// One line of a trace to be, or what only a later stage wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Event(Event),
    At(Stamp),
    Mark(String),
    Note(Note),
    /// Any other comment, without its `#`.
    Comment(String),
    /// A line of a capture that means nothing, to be shown. No line of a trace.
    NotUnderstood(String),
    /// Mapped pages change hands. No line of a trace.
    Handed {
        device: DeviceId,
        range: PageRange,
        to: Owner,
    },
}

/// A stream of items.
pub(super) trait Items {
    /// The next one; `None` at the end.
    fn next(&mut self) -> Result<Option<Item>, ImportError>;

    /// The name of a device of any event so far.
    fn device_name(&self, device: DeviceId) -> &str;

    /// The name of a task of any stamp so far.
    fn task_name(&self, task: TaskId) -> &str;
}

impl<I: Items + ?Sized> Items for Box<I> {
    fn next(&mut self) -> Result<Option<Item>, ImportError> {
        (**self).next()
    }

    fn device_name(&self, device: DeviceId) -> &str {
        (**self).device_name(device)
    }

    fn task_name(&self, task: TaskId) -> &str {
        (**self).task_name(task)
    }
}

/// Devices by name, in order of appearance.
#[derive(Debug, Default)]
pub(super) struct Devices {
    names: Vec<String>,
    ids: HashMap<String, DeviceId>,
}

impl Devices {
    /// The device of this name, a new one if there is none; `None` if there are `most` already.
    pub fn get(&mut self, name: &str, most: usize) -> Option<DeviceId> {
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        if self.names.len() >= most {
            return None;
        }
        let id = DeviceId(u32::try_from(self.names.len()).ok()?);
        self.names.push(name.into());
        self.ids.insert(name.into(), id);
        Some(id)
    }

    pub fn name(&self, device: DeviceId) -> &str {
        &self.names[device.index()]
    }
}

/// The text of a stream. An [`ImportError`] comes out as the inside of an [`io::Error`].
pub(super) struct Text<I> {
    items: I,
    line: Vec<u8>,
    given: usize,
    /// What stands in the text so far.
    pub written: Written,
    ended: bool,
}

/// How much of what a text holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub events: u64,
    pub accesses: u64,
    pub notes: Vec<Note>,
    /// Lines that mean nothing, with their numbers.
    pub samples: Vec<String>,
}

impl<I: Items> Text<I> {
    pub fn new(items: I) -> Self {
        Self {
            items,
            line: format!("{HEADER}\n").into_bytes(),
            given: 0,
            written: Written::default(),
            ended: false,
        }
    }

    fn advance(&mut self) -> Result<(), ImportError> {
        use io::Write as _;
        self.given = 0;
        self.line.clear();
        let Some(item) = self.items.next()? else {
            self.ended = true;
            return Ok(());
        };
        // writing to a vector cannot fail
        let _ = match item {
            Item::Event(event) => {
                self.written.events += 1;
                self.written.accesses += u64::from(matches!(event, Event::Access { .. }));
                let device = self.items.device_name(event.device());
                writeln!(self.line, "{}", Line { device, event })
            }
            Item::At(stamp) => match stamp.task {
                Some(task) => writeln!(self.line, "{stamp} {}", self.items.task_name(task)),
                None => writeln!(self.line, "{stamp}"),
            },
            Item::Mark(label) => writeln!(self.line, "# mark {label}"),
            Item::Note(note) => {
                self.written.notes.push(note);
                writeln!(self.line, "{note}")
            }
            Item::Comment(text) => writeln!(self.line, "#{text}"),
            // shown, but not kept: it is the machine's
            Item::NotUnderstood(text) => {
                self.written.samples.push(text);
                Ok(())
            }
            Item::Handed { .. } => Ok(()),
        };
        Ok(())
    }
}

impl<I: Items> Read for Text<I> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            if self.given == self.line.len() {
                if self.ended {
                    break;
                }
                // what is there first, so that an error is not told before it
                match self.advance() {
                    Ok(()) => continue,
                    Err(error) => return Err(io::Error::other(error)),
                }
            }
            let count = (self.line.len() - self.given).min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&self.line[self.given..self.given + count]);
            self.given += count;
            done += count;
        }
        Ok(done)
    }
}
