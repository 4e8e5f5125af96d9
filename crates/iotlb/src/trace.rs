// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A trace in memory.

use crate::event::{DeviceId, Event};
use crate::note::{Note, Topic};
use crate::units::EventTime;
use std::collections::HashMap;
use std::fmt;

/// A `# mark N` line: a boundary between phases of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What follows `# mark ` on the line.
    pub label: String,
    /// Time of the first event after the mark.
    pub time: EventTime,
}

/// Index of a task among those of its trace, in order of first appearance;
/// [`Trace::task_name`] gives its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// When and where something happened, on the machine that was traced, and what ran there:
/// `# at <ns> <cpu> [<task>]`, with `-` for a CPU that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Nanoseconds, since when only the tracer knows.
    pub nanoseconds: u64,
    /// Number of the CPU, where recorded.
    pub cpu: Option<u32>,
    /// The task that ran on it, where recorded. All tasks of a name are one.
    pub task: Option<TaskId>,
}

/// In place of the number of a CPU.
const UNKNOWN: &str = "-";

impl Stamp {
    /// Reads what follows `# at ` on a line, the task by its name; `None` if it does not fit.
    pub(crate) fn parse(text: &str) -> Option<(Self, Option<&str>)> {
        let (time, rest) = text.split_once(' ')?;
        let (cpu, task) = match rest.split_once(' ') {
            Some((cpu, task)) => (cpu, Some(task).filter(|task| !task.is_empty())),
            None => (rest, None),
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(time) || !digits(cpu) && cpu != UNKNOWN {
            return None;
        }
        let stamp = Self {
            nanoseconds: time.parse().ok()?,
            cpu: match cpu {
                UNKNOWN => None,
                cpu => Some(cpu.parse().ok()?),
            },
            task: None,
        };
        Some((stamp, task))
    }
}

impl fmt::Display for Stamp {
    /// As a line of a trace, without its end and without the task, whose name the trace knows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(cpu) => write!(f, "# at {} {cpu}", self.nanoseconds),
            None => write!(f, "# at {} {UNKNOWN}", self.nanoseconds),
        }
    }
}

/// Tasks by name, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    pub names: Vec<String>,
    ids: HashMap<String, TaskId>,
}

/// Tasks with names of their own, at most; what others do has no task.
const MAX_TASKS: usize = 1 << 16;

/// Bytes of the name of a task, at most; a kernel keeps 15. What a longer one does has no task.
pub(crate) const TASK_BYTES: usize = 64;

impl Tasks {
    /// The task of this name; `None` if it is one too many, or too long.
    pub fn get(&mut self, name: &str) -> Option<TaskId> {
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        let id = TaskId(u32::try_from(self.names.len()).ok()?);
        (self.names.len() < MAX_TASKS && name.len() <= TASK_BYTES).then(|| {
            self.names.push(name.into());
            self.ids.insert(name.into(), id);
            id
        })
    }
}

/// A stamp and the first event that it is of; it holds up to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// Time and CPU of the events.
    pub stamp: Stamp,
    /// Time of the first event after it.
    pub time: EventTime,
}

/// A whole trace: events in order, devices in order of first appearance, marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub(crate) name: String,
    pub(crate) devices: Vec<String>,
    pub(crate) events: Vec<Event>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) stamps: Vec<Stamped>,
    pub(crate) tasks: Vec<String>,
    pub(crate) notes: Vec<Note>,
    pub(crate) origin: Option<String>,
    pub(crate) not_understood: Option<String>,
}

/// How the comment begins that names events which its importer did not know, after its `#`.
pub(crate) const NOT_UNDERSTOOD: &str = " not understood: ";

/// What a comment, without its `#`, says the trace was recorded of.
pub(crate) fn origin(comment: &str) -> Option<&str> {
    let words = [" recorded: ", " source: "];
    words.iter().find_map(|word| comment.strip_prefix(word))
}

impl Trace {
    /// Name of the file, as given by the user.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All events; an event's time is its index.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Marks in order of time.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// When and where events happened, where recorded, in order of events;
    /// [`crate::Limits::stamps`] bounds how many are kept.
    #[must_use]
    pub fn stamps(&self) -> &[Stamped] {
        &self.stamps
    }

    /// The tasks in order of appearance.
    pub fn tasks(&self) -> impl ExactSizeIterator<Item = TaskId> + use<> {
        // the reader admits at most 65,536 tasks
        (0..self.tasks.len() as u32).map(TaskId)
    }

    /// The task's name, as the tracer gave it.
    ///
    /// # Panics
    ///
    /// If `task` is not of this trace.
    #[must_use]
    pub fn task_name(&self, task: TaskId) -> &str {
        &self.tasks[task.0 as usize]
    }

    /// The events of the capture that its importer did not know, by number and name, where it said
    /// so: `39 sched_switch, 2 others`.
    #[must_use]
    pub fn not_understood(&self) -> Option<&str> {
        self.not_understood.as_deref()
    }

    /// What the trace says about its making, at most one note a topic.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// What the trace says it was recorded of, if it does: what follows `# recorded: `, or in older
    /// ones `# source: `, on the first such line. Words for people, by the makers of the file.
    #[must_use]
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// What the trace notes of a topic: 0 where it says nothing of it.
    #[must_use]
    pub fn noted(&self, topic: Topic) -> u64 {
        let mut notes = self.notes.iter();
        let note = notes.find(|note| note.topic == topic);
        note.map_or(0, |note| note.count)
    }

    /// Events that the tracer lost, at least; 0 where the trace says of no loss.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.noted(Topic::Lost)
    }

    /// The trace up to its first `events` events, with all devices, tasks and notes.
    #[must_use]
    pub fn beginning(&self, events: usize) -> Self {
        let events = events.min(self.events.len());
        Self {
            name: self.name.clone(),
            devices: self.devices.clone(),
            events: self.events[..events].to_vec(),
            marks: self
                .marks
                .iter()
                .filter(|m| m.time.0 < events)
                .cloned()
                .collect(),
            stamps: self
                .stamps
                .iter()
                .filter(|s| s.time.0 < events)
                .copied()
                .collect(),
            tasks: self.tasks.clone(),
            notes: self.notes.clone(),
            origin: self.origin.clone(),
            not_understood: self.not_understood.clone(),
        }
    }

    /// The devices in order of their first event.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        // The reader admits at most 65,536 devices.
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// The device's name in the trace, usually `bus:device.function`.
    ///
    /// # Panics
    ///
    /// If `device` is not of this trace.
    #[must_use]
    pub fn device_name(&self, device: DeviceId) -> &str {
        &self.devices[device.index()]
    }
}
