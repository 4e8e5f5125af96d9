// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Running the program in the test's process.

#[path = "../../../../crates/cli/tests/it/common/ran.rs"]
mod ran;

use ioatlas_experiments::run;
use ran::Ran;
use serde_json::Value;

/// Runs `cargo lab` with these arguments.
pub fn lab(arguments: &[&str]) -> Ran {
    Ran::of("cargo lab", arguments, run)
}

/// What it answers, as JSON.
#[track_caller]
pub fn json(arguments: &[&str]) -> Value {
    lab(arguments).json()
}
