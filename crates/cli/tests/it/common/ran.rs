// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A program that was run in the test's process. The laboratory's tests use it, too.

use ioatlas_cli::Status;
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write;

pub struct Ran {
    pub status: Status,
    pub out: String,
    pub err: String,
    line: String,
}

impl Ran {
    /// Runs `program`, which is `run`, with these arguments.
    pub fn of(
        program: &str,
        arguments: &[&str],
        run: fn(Vec<OsString>, &mut dyn Write, &mut dyn Write) -> Status,
    ) -> Self {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let line = [&[program], arguments].concat();
        let all = line.iter().map(OsString::from).collect();
        let status = run(all, &mut out, &mut err);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran {
            status,
            out: text(out),
            err: text(err),
            line: line.join(" "),
        }
    }

    /// What it answered, of one that has nothing to complain of.
    #[track_caller]
    pub fn json(&self) -> Value {
        let ended = (self.status, self.err.as_str());
        assert_eq!(ended, (Status::Success, ""), "{}", self.line);
        serde_json::from_str(&self.out).unwrap()
    }
}
