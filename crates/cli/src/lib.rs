// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The `ioatlas` command line: `report`, `doctor`, `capture`, `replay`, `iotlb`, `trace info`,
//! `trace convert`, `trace record-guest`, `vhost-net`, `vhost-bench`, `completions` and `man`.
//!
//! [`run_in`] is the whole program: arguments in, an exit status and text out. Results
//! go to standard output, errors and progress to standard error. The exit status is
//! 0, 1 if something failed, or 2 if the arguments make no sense. A reader that
//! closes its end of the pipe ends the program quietly.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod assumption;
pub mod bundled;
mod capture;
mod convert;
mod doctor;
mod error;
pub mod histograms;
mod info;
mod input;
mod iotlb;
mod live_capture;
mod loaded;
pub mod output;
mod packaging;
pub mod progress;
mod record;
pub mod replay;
pub mod report;
mod screen;
mod signals;
mod vhost_bench;
mod vhost_net;

pub use answer::{Answer, Failure, Status, drive};
pub use error::Error;
pub use live_capture::CaptureError;
pub use loaded::LoadedTrace;
pub use record::RecordError;
pub use screen::Screen;
pub use vhost_net::VhostNetError;

use args::{Arguments, Command, TraceCommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// The commit that this was built from, or `unknown`.
pub const COMMIT: &str = env!("IOATLAS_COMMIT");

/// What `cargo lab` does, and this does not.
const EXPERIMENTS: [&str; 4] = ["papers", "bench", "scale", "vhost-compare"];

/// Where to find what was once a command of this name.
fn moved(arguments: &[OsString]) -> Option<String> {
    let word = |at: usize| arguments.get(at)?.to_str();
    match (word(1)?, word(2)) {
        (name, _) if EXPERIMENTS.contains(&name) => Some(format!(
            "{name} is an experiment: in a checkout, cargo lab {name}"
        )),
        ("trace", Some("record")) => Some(
            "`trace record` is now `trace record-guest`: it records a guest that it boots".into(),
        ),
        _ => None,
    }
}

/// What a command finds besides its arguments and the files that they name.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// The folder where it may keep what it can make again.
    pub cache: Option<PathBuf>,
    /// What standard output is shown on.
    pub screen: Screen,
}

impl Surroundings {
    /// Those of a user's process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            cache: report::timings::cache_folder(),
            screen: Screen::of_process(),
        }
    }
}

/// Runs the command that `arguments` name, the program's own name first among them, with nothing
/// around it: so that it does the same wherever it runs.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Status {
    run_in(&Surroundings::default(), arguments, stdout, stderr)
}

/// The same in surroundings.
pub fn run_in(
    surroundings: &Surroundings,
    arguments: impl IntoIterator<Item = OsString>,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Status {
    let screen = &surroundings.screen;
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(instead) = moved(&arguments) {
        // Nowhere is left to report a failing standard error.
        let _ = writeln!(stderr, "error: {instead}");
        return Status::Usage;
    }
    drive(
        screen,
        arguments,
        stdout,
        stderr,
        |parsed: Arguments, line| match parsed.command {
            Command::Iotlb(command) => iotlb::run(&command, screen),
            Command::Trace(TraceCommand::Info(command)) => info::run(&command, screen),
            Command::Trace(TraceCommand::Convert(command)) => convert::run(&command),
            Command::Trace(TraceCommand::RecordGuest(command)) => record::run(&command, line),
            Command::Capture(command) => live_capture::run(&command),
            Command::Doctor(command) => doctor::run(&command),
            Command::Replay(command) => replay::command::run(&command, screen),
            Command::VhostNet(command) => vhost_net::run(&command),
            Command::VhostBench(command) => vhost_bench::run(&command),
            Command::Report(command) => report::run(&command, line, surroundings),
            Command::Completions(command) => packaging::completions(&command),
            Command::Man(command) => packaging::man(&command),
        },
    )
}

/// The example in README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
