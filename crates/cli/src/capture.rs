// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How the user wants captures read, and how results say what they rest on.

use crate::error::Error;
use crate::input::{self, Input};
use crate::progress::Progress;
use clap::{Args, ValueEnum};
use ioatlas_iotlb::import::{self, AssignIovas, Assume, Format, Options};
use ioatlas_iotlb::{Limits, Note, Trace};
use ioatlas_present::printable;
use serde::Serialize;
use std::path::Path;

/// Options of all commands that read traces.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CaptureArguments {
    /// What the file is: trace, qemu, ftrace, perf or csv [default: found out from its content].
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<Format>,
    /// Where accesses are put if the file has none: one to each streaming page just before its
    /// unmap, just after its map, or none.
    #[arg(long, value_name = "WHERE", value_enum, default_value_t)]
    pub assume: AssumeArgument,
    /// Whether mappings get new IOVAs while they are imported: auto, where bus addresses are memory
    /// addresses because no IOMMU translated (off, or passthrough); always; never.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub assign: AssignArgument,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum AssumeArgument {
    #[default]
    Unmap,
    Map,
    None,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum AssignArgument {
    #[default]
    Auto,
    Always,
    Never,
}

impl CaptureArguments {
    pub fn options(&self) -> Options {
        Options {
            from: self.from,
            assume: match self.assume {
                AssumeArgument::Unmap => Assume::Unmap,
                AssumeArgument::Map => Assume::Map,
                AssumeArgument::None => Assume::None,
            },
            assign: match self.assign {
                AssignArgument::Auto => AssignIovas::Auto,
                AssignArgument::Always => AssignIovas::Always,
                AssignArgument::Never => AssignIovas::Never,
            },
            ..Options::default()
        }
    }

    /// The same, with no accesses put where none were recorded.
    pub fn without_assumption(&self) -> Options {
        Options {
            assume: Assume::None,
            ..self.options()
        }
    }

    /// Reads a trace, or a capture as one.
    pub fn load(&self, path: &Path, progress: &dyn Progress) -> Result<Trace, Error> {
        let file = Input::open(path, progress)?;
        let name = input::name(path);
        Ok(import::load(
            &name,
            &file,
            self.options(),
            Limits::default(),
        )?)
    }
}

/// What notes say, a line each.
pub(crate) fn sentences(notes: &[Note], indent: &str) -> String {
    let line = |note: &Note| format!("{indent}{}\n", note.sentence());
    notes.iter().map(line).collect()
}

/// A result with what its trace says about its making, where it says something.
#[derive(Debug, Serialize)]
pub(crate) struct Noted<T> {
    #[serde(flatten)]
    pub result: T,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

impl<T> Noted<T> {
    pub fn new(trace: &Trace, result: T) -> Self {
        Self {
            result,
            notes: trace.notes().to_vec(),
        }
    }
}

/// The notes of results over one trace, under its name.
pub(crate) fn noted<T>(name: &str, results: &[Noted<T>]) -> String {
    noted_of(name, results.first())
}

/// The notes of any one result over a trace, under its name.
pub(crate) fn noted_of<T>(name: &str, result: Option<&Noted<T>>) -> String {
    match result.map(|result| result.notes.as_slice()) {
        None | Some([]) => String::new(),
        Some(notes) => format!("{}:\n{}", printable(name, 60), sentences(notes, "  ")),
    }
}
