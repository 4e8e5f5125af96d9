// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The `ioatlas` command line: `report`, `replay`, `papers`, `iotlb` and `trace info`.
//!
//! [`run`] is the whole program: arguments in, an exit status and text out. Results
//! go to standard output, errors and progress to standard error. The exit status is
//! 0, 1 if something failed, or 2 if the arguments make no sense. A reader that
//! closes its end of the pipe ends the program quietly.
#![forbid(unsafe_code)]

mod args;
pub mod bundled;
mod error;
mod host;
mod info;
mod iotlb;
mod loaded;
mod measure;
pub mod output;
mod papers;
pub mod progress;
mod replay;
pub mod report;
pub mod text;

pub use error::Error;
pub use loaded::LoadedTrace;

use args::{Arguments, Command, TraceCommand};
use clap::Parser as _;
use std::ffi::OsString;
use std::io::{self, Write};

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Exit status 0.
    Success,
    /// Exit status 1: something failed, and standard error says what.
    Failure,
    /// Exit status 2: the arguments make no sense.
    Usage,
}

impl From<Status> for std::process::ExitCode {
    fn from(status: Status) -> Self {
        Self::from(match status {
            Status::Success => 0,
            Status::Failure => 1,
            Status::Usage => 2,
        })
    }
}

/// What a command has to say: text for standard output, and what failed on the way
/// (a command over several traces gives the results of the good ones).
#[derive(Debug, Default)]
struct Answer {
    text: String,
    errors: Vec<Error>,
}

/// Runs the program.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Status {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = match Arguments::try_parse_from(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let shown = error.render().to_string();
            // `--help` and `--version` arrive here as well.
            if error.use_stderr() {
                let _ = stderr.write_all(shown.as_bytes());
                return Status::Usage;
            }
            return finish(stdout.write_all(shown.as_bytes()), stderr);
        }
    };
    let answer = match parsed.command {
        Command::Iotlb(command) => iotlb::run(&command),
        Command::Trace(TraceCommand::Info(command)) => info::run(&command),
        Command::Replay(command) => replay::command::run(&command),
        Command::Papers(command) => papers::run(&command, &arguments),
        Command::Report(command) => report::run(&command, &arguments),
    };
    let written = stdout
        .write_all(answer.text.as_bytes())
        .and_then(|()| stdout.flush());
    for error in &answer.errors {
        // Nowhere is left to report a failing standard error.
        let _ = writeln!(stderr, "error: {error}");
    }
    match (finish(written, stderr), answer.errors.is_empty()) {
        (Status::Success, true) => Status::Success,
        _ if answer.errors.iter().any(Error::is_usage) => Status::Usage,
        _ => Status::Failure,
    }
}

fn finish(written: io::Result<()>, stderr: &mut dyn Write) -> Status {
    match written {
        Ok(()) => Status::Success,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Status::Success,
        Err(error) => {
            let _ = writeln!(stderr, "error: cannot write to standard output: {error}");
            Status::Failure
        }
    }
}
