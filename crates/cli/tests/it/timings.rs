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

/// Numbers that are named as measured, or follow from such, within a value.
fn times(value: &Value, found: &mut Vec<Value>) {
    const NAMES: [&str; 6] = [
        "ns_per_pair",
        "cpus_busy",
        "ns_per_pair_1_thread",
        "ns_per_pair_1_thread_range",
        "ns_per_pair_2_threads",
        "ns_per_pair_2_threads_range",
    ];
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match NAMES.contains(&name.as_str()) {
                    true => found.push(value.clone()),
                    false => times(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| times(value, found)),
        _ => {}
    }
}

#[test]
fn without_a_bench_nothing_measured_is_there_and_the_report_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    // what there is in the cache is not taken
    assert_eq!(json(folder, &[]).0, "measured");
    let (kind, time) = json(folder, &["--no-bench"]);
    assert_eq!((kind.as_str(), time), ("not-measured", Value::Null));
    let said = report(folder, &["--no-bench"]);
    assert!(said.contains("No times measured (--no-bench)\n"), "{said}");
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    let why = "not measured: --no-bench was given; without it this machine is measured";
    assert_eq!(page.matches(why).count(), 3);
    assert!(!page.contains("data-file=\"cost-against-safety\""));
    let system: Value = serde_json::from_str(&report(folder, &["--no-bench", "--json"])).unwrap();
    assert_eq!(system["systems"][0]["violations"]["value"], 0.0);
    let reason = system["provenance"]["timings"]["reason"].as_str().unwrap();
    assert!(why.ends_with(reason), "{reason}");
    // without one in the cache, none comes there
    let empty = tempfile::tempdir().unwrap();
    report(empty.path(), &["--no-bench"]);
    assert!(!empty.path().join("ioatlas").exists());
    let both = crate::common::ioatlas(&["report", "--no-bench", "--fresh-bench"]);
    assert_eq!(both.status, ioatlas_cli::Status::Usage);
}

#[test]
fn a_capture_without_a_bench_keeps_what_linux_takes() {
    let dir = tempfile::tempdir().unwrap();
    let pair = |n: u64| format!("# at {} 0\nM d 1 1 w 7 page 64+1514\nU d 1 1\n", n * 1000);
    let text: String = (0..1000).map(pair).collect();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (trace, page) = (path("t.trace"), path("page.html"));
    fs::write(&trace, format!("# ioatlas-trace 2\n{text}")).unwrap();
    fs::copy(&trace, path("u.trace")).unwrap();
    let no_bench = ["report", &trace, "--no-bench", "-o", &page];
    let shown = crate::common::ioatlas(&no_bench).out;
    assert!(
        shown.contains("CPUs busy: not measured (--no-bench); Linux's own"),
        "{shown}"
    );
    // which the name of another file does not take the place of
    let out = path("o.json");
    let for_viewers = [&no_bench[..], &["--perfetto", &out]].concat();
    let both = crate::common::ioatlas(&for_viewers).out;
    let mut end = both.lines().rev();
    let last = end.next().unwrap();
    assert!(last.ends_with("No times measured (--no-bench)"), "{both}");
    assert!(end.next().unwrap().starts_with("For Perfetto: "), "{both}");
    let report = crate::common::json(&[&no_bench[..], &["--json"]].concat());
    let mut found = Vec::new();
    times(&report["captures"][0]["costs"]["modes"], &mut found);
    // Linux's own, of strict and of lazy, and passthrough, which takes nothing
    let there = found.iter().filter(|value| !value.is_null());
    assert_eq!((found.len(), there.count()), (10, 5));
    let mode = |at: usize| &report["captures"][0]["costs"]["modes"][at];
    assert_eq!(mode(0)["cpus_busy"], Value::Null);
    assert!(mode(0)["linux"]["cpus_busy"][0]["value"].as_f64() > Some(0.0));
    let remedies = report["captures"][0]["devices"][0]["remedies"].to_string();
    assert!(remedies.contains("page-pool") && !remedies.contains("\"lazy\""));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("Times of this machine: not measured: --no-bench"));
    let both = crate::common::json(&[&no_bench[..], &["--json", &path("u.trace")]].concat());
    let strict = &both["comparison"]["all_devices"][1];
    assert_eq!(strict["what"], "strict: CPUs busy");
    assert_eq!(strict["untold"], "not measured (--no-bench)");
}
