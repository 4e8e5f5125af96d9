// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab NAME`: one experiment. Everything is in the library, so that tests can call it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr());
    // vhost-compare starts the back end that it compares as this same program
    if arguments.get(1).is_some_and(|first| first == "ioatlas") {
        arguments.remove(0);
        return ioatlas_cli::run(arguments, &mut stdout, &mut stderr).into();
    }
    ioatlas_experiments::run(arguments, &mut stdout, &mut stderr).into()
}
