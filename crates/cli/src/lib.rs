// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The `ioatlas` command line: `report`, `replay`, `papers`, `iotlb`, `trace info`, `trace record`,
//! `vhost-net`, `vhost-bench` and `vhost-compare`.
//!
//! [`run`] is the whole program: arguments in, an exit status and text out. Results
//! go to standard output, errors and progress to standard error. The exit status is
//! 0, 1 if something failed, or 2 if the arguments make no sense. A reader that
//! closes its end of the pipe ends the program quietly.
#![forbid(unsafe_code)]

mod args;
mod assumption;
mod bench;
pub mod bundled;
mod capture;
mod convert;
mod error;
mod growth;
mod info;
mod iotlb;
mod loaded;
pub mod output;
mod papers;
pub mod progress;
mod record;
mod replay;
pub mod report;
mod scale;
mod vhost_bench;
mod vhost_compare;
mod vhost_net;

pub use error::Error;
pub use loaded::LoadedTrace;
pub use record::RecordError;
pub use vhost_compare::VhostCompareError;
pub use vhost_net::VhostNetError;

use args::{Arguments, Command, TraceCommand};
use clap::Parser as _;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Exit status 0: all was done.
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

impl Answer {
    /// A value as JSON, where that is asked for, or else as `plain` shows it.
    fn show<T: Serialize>(value: &T, json: bool, plain: impl FnOnce(&T) -> String) -> Self {
        match json {
            true => ioatlas_present::json(value).map_err(Error::from).into(),
            false => plain(value).into(),
        }
    }
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        let errors = Vec::new();
        Answer { text, errors }
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        vec![error].into()
    }
}

impl From<Vec<Error>> for Answer {
    fn from(errors: Vec<Error>) -> Self {
        let text = String::new();
        Answer { text, errors }
    }
}

impl<A: Into<Answer>> From<Result<A, Error>> for Answer {
    fn from(result: Result<A, Error>) -> Self {
        result.map_or_else(Answer::from, Into::into)
    }
}

/// Runs the command that `arguments` name, the program's own name first among them.
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
        Command::Trace(TraceCommand::Convert(command)) => convert::run(&command),
        Command::Trace(TraceCommand::Record(command)) => record::run(&command, &arguments),
        Command::Replay(command) => replay::command::run(&command),
        Command::Papers(command) => papers::run(&command, &arguments),
        Command::Bench(command) => bench::run(&command),
        Command::Scale(command) => scale::run(&command),
        Command::VhostNet(command) => vhost_net::run(&command),
        Command::VhostBench(command) => vhost_bench::run(&command),
        Command::VhostCompare(command) => vhost_compare::run(&command),
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
