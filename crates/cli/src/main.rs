// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The `ioatlas` command line. Everything is in the library, so that tests can call it.
#![forbid(unsafe_code)]

use ioatlas_cli::Surroundings;
use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    ioatlas_cli::run_in(
        &Surroundings::of_process(),
        std::env::args_os(),
        &mut io::stdout().lock(),
        &mut io::stderr(),
    )
    .into()
}
