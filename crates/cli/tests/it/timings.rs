// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Times that a report takes from those of an earlier one.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What a report of a small trace answers, with its cache and its page in this folder.
fn report(folder: &Path, more: &[&str]) -> String {
    let trace = folder.join("t.trace");
    fs::write(&trace, "# ioatlas-trace 1\nM d 1 1 r\nA d 1 r\nU d 1 1\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command
        .arg("report")
        .arg(&trace)
        .args(["--as", "linux-strict", "-o"]);
    command.arg(folder.join("page.html")).args(more);
    let output = command.env("XDG_CACHE_HOME", folder).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// Where its times came from, and one of them.
fn json(folder: &Path, more: &[&str]) -> (String, Value) {
    let said = report(folder, &[&["--json"], more].concat());
    let report: Value = serde_json::from_str(&said).unwrap();
    let kind = report["provenance"]["timings"]["kind"].as_str().unwrap();
    let time = report["systems"][0]["ns_per_pair_1_thread"].clone();
    (kind.to_owned(), time)
}

#[test]
fn a_report_takes_times_from_the_cache_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let (kind, time) = json(folder, &[]);
    assert_eq!(kind, "measured");
    // as if it had been two days ago
    let cache = folder.join("ioatlas/timings.json");
    let aged = {
        let text = fs::read_to_string(&cache).unwrap();
        let mut cached: Value = serde_json::from_str(&text).unwrap();
        for kept in cached["times"].as_array_mut().unwrap() {
            let measured = kept["measured"].as_u64().unwrap();
            kept["measured"] = (measured - 2 * 24 * 3600).into();
        }
        cached.to_string()
    };
    fs::write(&cache, &aged).unwrap();
    assert_eq!(json(folder, &[]), ("cached".to_owned(), time));
    let said = report(folder, &[]);
    assert!(said.contains(", cached (--fresh-bench)\n"), "{said}");
    assert!(
        said.lines().all(|line| line.chars().count() <= 100),
        "{said}"
    );
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.contains(", cached</dd>"));
    let (kind, _) = json(folder, &["--fresh-bench"]);
    assert_eq!(kind, "measured");
    assert_ne!(fs::read_to_string(&cache).unwrap(), aged);
    let said = report(folder, &["--fresh-bench"]);
    assert!(said.contains("Details: --json"), "{said}");
}
