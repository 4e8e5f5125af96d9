// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Running the program in the test's process.

use ioatlas::Status;
use ioatlas_experiments::run;
use serde_json::Value;
use std::ffi::OsString;

pub struct Ran {
    pub status: Status,
    pub out: String,
    pub err: String,
}

/// Runs `cargo lab` with these arguments.
pub fn lab(arguments: &[&str]) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let all = ["cargo lab"].iter().chain(arguments).map(OsString::from);
    let status = run(all, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        status,
        out: text(out),
        err: text(err),
    }
}

/// What it answers, as JSON.
pub fn json(arguments: &[&str]) -> Value {
    let ran = lab(arguments);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    serde_json::from_str(&ran.out).unwrap()
}
