// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs pairs of a case and exits: what to count instructions of.
//!
//! `pairs CASE N` fills the pattern, warms up, and runs N pairs; then it exits without giving back
//! what is outstanding. It reads no clock and draws from fixed sequences, so what 2 N pairs take
//! beyond N is what N pairs take:
//!
//! ```text
//! valgrind --tool=callgrind target/release/pairs domain/magazine+deferred-percpu/ring256/1 100000
//! ```
#![forbid(unsafe_code)]

use ioatlas_bench::{Case, Failure, case::Ours};
use std::process::ExitCode;

/// Pairs before those that count, besides filling the pattern: every magazine, queue and table that
/// they use is there by then.
const WARM_UP: u32 = 20_000;
/// Slots of the host: the shared one, and one for the only thread.
const SLOTS: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [case, pairs] => run(case, pairs),
        _ => Err("usage: pairs CASE N, with a case like domain/magazine+strict/ring256/1".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pairs: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(case: &str, pairs: &str) -> Result<(), String> {
    let case: Case = case.parse().map_err(|e| format!("{e}"))?;
    let pairs: u32 = pairs
        .parse()
        .map_err(|e| format!("`{pairs}` is no number of pairs: {e}"))?;
    let failed = |failure: Failure| failure.to_string();
    // neither is dropped: what is outstanding ends with the process
    let ours = Box::leak(Box::new(Ours::new(case.kind, SLOTS).map_err(failed)?));
    let contestant = ours.contestant(case.pattern, case.sizes, 1);
    if contestant.threads() > 1 {
        return Err(format!("{} takes two threads", case.pattern));
    }
    let mut worker = contestant.worker(0).map_err(failed)?;
    worker.fill(&mut || true).map_err(failed)?;
    worker.run(WARM_UP).map_err(failed)?;
    worker.run(pairs).map_err(failed)?;
    std::mem::forget(worker);
    Ok(())
}
