// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Experiments, one module each: `cargo lab papers`, `bench`, `scale`, `vhost-compare`.
//!
//! Nothing here is part of a product. What an experiment needs of the command, progress, files that
//! appear whole, replays, it takes from there; [`run`] is the whole program, as the command's is.
#![forbid(unsafe_code)]

mod bench;
mod error;
mod growth;
mod papers;
mod scale;
mod stated;
mod vhost_compare;

pub use error::Error;
pub use vhost_compare::VhostCompareError;

pub(crate) use ioatlas_cli::{bundled, output, progress, replay, report};

use clap::{Parser, Subcommand};
use ioatlas_cli::{Screen, Status, drive};
use std::ffi::OsString;
use std::io::Write;

pub(crate) type Answer = ioatlas_cli::Answer<Error>;

/// The laboratory: what was measured, and figures of papers, made again on this machine.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Papers(papers::PapersArguments),
    Bench(bench::arguments::BenchArguments),
    Scale(scale::arguments::ScaleArguments),
    VhostCompare(vhost_compare::arguments::VhostCompareArguments),
}

/// Runs the experiment that `arguments` name, the program's own name first among them.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Status {
    drive(
        &Screen::default(),
        arguments,
        stdout,
        stderr,
        |parsed: Arguments, line| match parsed.command {
            Command::Papers(command) => papers::run(&command, line),
            Command::Bench(command) => bench::run(&command),
            Command::Scale(command) => scale::run(&command),
            Command::VhostCompare(command) => vhost_compare::run(&command),
        },
    )
}
