// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a command has to say, and how a program says it and ends.

use crate::{Error, Screen};
use clap::Parser;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Display;
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

/// Why a command could not do what was asked.
pub trait Failure: Display {
    /// Whether the arguments make no sense, whatever the files hold.
    fn is_usage(&self) -> bool;
}

/// What a command has to say: text for standard output, and what failed on the way
/// (a command over several traces gives the results of the good ones).
#[derive(Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Answer<E = Error> {
    pub text: String,
    pub errors: Vec<E>,
}

impl<E> Default for Answer<E> {
    fn default() -> Self {
        String::new().into()
    }
}

impl<E: From<serde_json::Error> + Failure> Answer<E> {
    /// A value as JSON, where that is asked for, or else as `plain` shows it.
    pub fn show<T: Serialize>(value: &T, json: bool, plain: impl FnOnce(&T) -> String) -> Self {
        match json {
            true => ioatlas_present::json(value).map_err(E::from).into(),
            false => plain(value).into(),
        }
    }
}

impl<E> From<String> for Answer<E> {
    fn from(text: String) -> Self {
        let errors = Vec::new();
        Answer { text, errors }
    }
}

impl<E: Failure> From<E> for Answer<E> {
    fn from(error: E) -> Self {
        vec![error].into()
    }
}

impl<E: Failure> From<Vec<E>> for Answer<E> {
    fn from(errors: Vec<E>) -> Self {
        let text = String::new();
        Answer { text, errors }
    }
}

impl<A: Into<Answer<E>>, E: Failure> From<Result<A, E>> for Answer<E> {
    fn from(result: Result<A, E>) -> Self {
        result.map_or_else(Answer::from, Into::into)
    }
}

/// A whole program: parses `arguments`, its own name first among them, gives them to `act`, also as
/// they are, and says what that answers. Help is for `screen`, on which standard output is shown.
pub fn drive<P: Parser, E: Failure>(
    screen: &Screen,
    arguments: impl IntoIterator<Item = OsString>,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
    act: impl FnOnce(P, &[OsString]) -> Answer<E>,
) -> Status {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = match P::try_parse_from(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let shown = error.render();
            // `--help` and `--version` arrive here as well.
            if error.use_stderr() {
                let _ = write!(stderr, "{shown}");
                return Status::Usage;
            }
            return finish(stdout.write_all(screen.help(&shown).as_bytes()), stderr);
        }
    };
    let answer = act(parsed, &arguments);
    let written = stdout
        .write_all(answer.text.as_bytes())
        .and_then(|()| stdout.flush());
    for error in &answer.errors {
        // Nowhere is left to report a failing standard error.
        let _ = writeln!(stderr, "error: {error}");
    }
    match (finish(written, stderr), answer.errors.is_empty()) {
        (Status::Success, true) => Status::Success,
        _ if answer.errors.iter().any(Failure::is_usage) => Status::Usage,
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
