// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A trace in our own format, as a stream.

use super::items::{Devices, Item, Items};
use super::{ImportError, Limits};
use crate::error::{Reason, TraceError};
use crate::event::DeviceId;
use crate::note::Note;
use crate::parse::{self, Complaint};
use crate::read::{Lines, at, check_header, line_error};
use crate::trace::{Stamp, TaskId, Tasks};

pub(super) struct Native<'a> {
    name: String,
    lines: Lines<'a>,
    limits: Limits,
    devices: Devices,
    tasks: Tasks,
}

impl<'a> Native<'a> {
    pub fn new(name: &str, lines: Lines<'a>, limits: Limits) -> Self {
        Self {
            name: name.into(),
            lines,
            limits,
            devices: Devices::default(),
            tasks: Tasks::default(),
        }
    }

    fn item(&mut self) -> Result<Item, Complaint> {
        let text = std::str::from_utf8(&self.lines.buffer)
            .map_err(|error| (error.valid_up_to(), Reason::NotUtf8))?;
        if let Some(comment) = text.strip_prefix('#') {
            return Ok(item_of_comment(comment, &mut self.tasks));
        }
        let line = parse::line(text)?;
        let device = self.devices.get(line.device, self.limits.devices);
        let device = device.ok_or((2, Reason::TooManyDevices(self.limits.devices)))?;
        Ok(Item::Event(line.body.event(device)))
    }
}

fn item_of_comment(comment: &str, tasks: &mut Tasks) -> Item {
    if let Some((mut stamp, task)) = comment.strip_prefix(" at ").and_then(Stamp::parse) {
        stamp.task = task.and_then(|name| tasks.get(name));
        Item::At(stamp)
    } else if let Some(note) = comment.strip_prefix(" note ").and_then(Note::parse) {
        Item::Note(note)
    } else if let Some(label) = comment.strip_prefix(" mark ") {
        Item::Mark(label.into())
    } else {
        Item::Comment(comment.into())
    }
}

impl Items for Native<'_> {
    fn next(&mut self) -> Result<Option<Item>, ImportError> {
        loop {
            match self.lines.advance() {
                Ok(true) => {}
                Ok(false) if self.lines.number == 1 => {
                    let file = self.name.clone();
                    return Err(TraceError::Empty { file }.into());
                }
                Ok(false) => return Ok(None),
                Err(error) => return Err(line_error(&self.name, &self.lines, error).into()),
            }
            if self.lines.number == 1 {
                check_header(&self.name, &self.lines.buffer)?;
                continue;
            }
            return match self.item() {
                Ok(item) => Ok(Some(item)),
                Err((offset, reason)) => {
                    let column = super::column(&self.lines.buffer, offset);
                    Err(at(&self.name, self.lines.number, column, reason).into())
                }
            };
        }
    }

    fn device_name(&self, device: DeviceId) -> &str {
        self.devices.name(device)
    }

    fn task_name(&self, task: TaskId) -> &str {
        &self.tasks.names[task.0 as usize]
    }
}
