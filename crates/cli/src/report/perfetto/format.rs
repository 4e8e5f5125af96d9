// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The Trace Event Format, as far as it is written here.
//!
//! Perfetto and Chrome tell slices of one process apart by the local `id2`; they match the end of a
//! slice with its beginning by that, by `cat` and `name`. Time is in microseconds. Events need no
//! order of time in the file.

use serde::Serialize;
use std::io::{self, Write};

/// Category of all events.
const CATEGORY: &str = "dma";

/// A file that is being written.
pub(super) struct Writer<'w> {
    file: &'w mut dyn Write,
    separator: &'static str,
    /// Numbers of processes and threads that were given; from 1, as 0 is the idle task.
    given: u32,
}

/// A track: a thread of a process.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    pid: u32,
    tid: u32,
}

/// What an event is, and its name.
#[derive(Clone, Copy)]
pub(super) enum Name<'a> {
    /// A slice with this number begins.
    Begin(&'a str, usize),
    /// It ends.
    End(&'a str, usize),
    Instant(&'a str),
    /// Each field of its arguments is a counter.
    Counter(&'a str),
}

#[derive(Serialize)]
struct TraceEvent<'a, A> {
    ph: &'static str,
    cat: &'static str,
    name: &'a str,
    ts: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id2: Option<Id>,
    /// Of an instant: of its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: &'a A,
}

#[derive(Serialize)]
struct Id {
    local: String,
}

#[derive(Serialize)]
struct Metadata<'a, A> {
    ph: &'static str,
    name: &'static str,
    pid: u32,
    tid: u32,
    args: &'a A,
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u32,
}

/// The address of a page.
pub(super) fn address(page: u64) -> String {
    format!("{:#x}", u128::from(page) * 4096)
}

impl<'w> Writer<'w> {
    pub fn begin(file: &'w mut dyn Write, other: &impl Serialize) -> io::Result<Self> {
        file.write_all(b"{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
        serde_json::to_writer(&mut *file, other)?;
        file.write_all(b",\"traceEvents\":[\n")?;
        Ok(Self {
            file,
            separator: "",
            given: 0,
        })
    }

    pub fn end(self) -> io::Result<()> {
        self.file.write_all(b"\n]}\n")
    }

    fn line(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.file.write_all(self.separator.as_bytes())?;
        self.separator = ",\n";
        Ok(serde_json::to_writer(&mut *self.file, event)?)
    }

    /// The next process, shown in this order, and its first thread.
    pub fn process(&mut self, name: &str) -> io::Result<Thread> {
        self.given += 1;
        let thread = Thread {
            pid: self.given,
            tid: self.given,
        };
        self.metadata(thread, "process_name", &Called { name })?;
        let sort_index = thread.pid;
        self.metadata(thread, "process_sort_index", &SortIndex { sort_index })?;
        Ok(thread)
    }

    /// The next thread of a process; viewers show it by `sort_index`.
    pub fn thread(&mut self, of: Thread, name: &str, sort_index: u32) -> io::Result<Thread> {
        self.given += 1;
        let thread = Thread {
            pid: of.pid,
            tid: self.given,
        };
        self.metadata(thread, "thread_name", &Called { name })?;
        self.metadata(thread, "thread_sort_index", &SortIndex { sort_index })?;
        Ok(thread)
    }

    fn metadata(
        &mut self,
        thread: Thread,
        name: &'static str,
        args: &impl Serialize,
    ) -> io::Result<()> {
        self.line(&Metadata {
            ph: "M",
            name,
            pid: thread.pid,
            tid: thread.tid,
            args,
        })
    }

    /// Something on a track at a time.
    pub fn at(
        &mut self,
        track: Thread,
        what: Name,
        ns: u64,
        args: &impl Serialize,
    ) -> io::Result<()> {
        let id = |number: usize| {
            Some(Id {
                local: format!("{number:#x}"),
            })
        };
        let (ph, name, id2, s) = match what {
            Name::Begin(name, number) => ("b", name, id(number), None),
            Name::End(name, number) => ("e", name, id(number), None),
            Name::Instant(name) => ("i", name, None, Some("t")),
            Name::Counter(name) => ("C", name, None, None),
        };
        self.line(&TraceEvent {
            ph,
            cat: CATEGORY,
            name,
            ts: ns as f64 / 1e3,
            pid: track.pid,
            tid: track.tid,
            id2,
            s,
            args,
        })
    }
}
