// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `iotlb` and `trace info` through the program, and what every command does with bad
//! input.

use crate::common::{bundled, ioatlas, json};
use ioatlas_cli::Status;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_version_names_the_commit() {
    let said = ioatlas(&["--version"]);
    let expected = format!(
        "ioatlas {} (commit {})\n",
        env!("CARGO_PKG_VERSION"),
        ioatlas_cli::COMMIT
    );
    assert_eq!(said.out, expected);
}

#[test]
fn iotlb_gives_the_reference_numbers() {
    for (name, accesses, hits, misses) in [
        ("e1000-stream", 35959, 26467, 9492),
        ("2xe1000-stream-norcache", 36246, 26291, 9955),
        ("lsi-bonnie", 42777, 26831, 15946),
    ] {
        let results = json(&["iotlb", &bundled(name), "--strategy", "baseline", "--json"]);
        assert_eq!(results.as_array().unwrap().len(), 1);
        let result = &results[0];
        assert_eq!(result["strategy"], "baseline");
        assert_eq!(
            (&result["accesses"], &result["hits"]),
            (&accesses.into(), &hits.into())
        );
        assert_eq!(result["misses"], misses);
        let rate = f64::from(misses) / f64::from(accesses);
        assert!((result["miss_rate"].as_f64().unwrap() - rate).abs() < 1e-12);
        for field in [
            "prefetch_hits",
            "faults",
            "prefetches",
            "useful_prefetches",
            "evictions",
            "invalidations",
        ] {
            assert!(result[field].is_u64(), "{field}");
        }
    }
}

#[test]
fn several_traces_give_an_object_by_file_name() {
    let (a, b) = (bundled("lsi-bonnie"), bundled("e1000-stream"));
    let results = json(&["iotlb", &a, &b, "--json", "--strategy", "baseline,baseline"]);
    assert_eq!(results.as_object().unwrap().len(), 2);
    assert_eq!(results[&a].as_array().unwrap().len(), 2);
    assert_eq!(results[&b][1]["misses"], 9492);
    let info = json(&["trace", "info", "--json", &a, &b]);
    assert_eq!(info[&a]["devices"][0]["maps"], 1262);
}

#[test]
fn geometry_is_the_users() {
    let results = json(&[
        "iotlb",
        &bundled("e1000-stream"),
        "--entries",
        "256",
        "--ways",
        "4",
        "--json",
    ]);
    assert!(results[0]["misses"].as_u64().unwrap() < 9492);
    let ran = ioatlas(&[
        "iotlb",
        &bundled("e1000-stream"),
        "--entries",
        "32",
        "--ways",
        "3",
    ]);
    assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
    assert_eq!(ran.err, "error: 32 entries are not a multiple of 3 ways\n");
}

#[test]
fn trace_info_says_what_is_there() {
    let info = json(&["trace", "info", &bundled("e1000-stream"), "--json"]);
    assert_eq!(info["events"], 42833);
    assert_eq!(info["peak_live_pages"], 415);
    assert_eq!(info["marks"], 2);
    assert_eq!(info["devices"][0]["device"], "00:04.0");
    assert_eq!(info["anomalies"]["faults"], 0);
    let kinds = &info["devices"][0]["kinds"];
    let sum: u64 = ["alloc", "page", "sg", "not_recorded"]
        .map(|k| kinds[k].as_u64().unwrap())
        .iter()
        .sum();
    assert_eq!(sum, 3438);
    let plain = ioatlas(&["trace", "info", &bundled("e1000-stream")]);
    assert!(
        plain.out.contains("42,833 events") && plain.out.contains("3,438"),
        "{}",
        plain.out
    );
    assert!(
        ioatlas(&["iotlb", &bundled("e1000-stream")])
            .out
            .contains("9,492")
    );
}

#[test]
fn unknown_strategies_are_refused_with_what_exists() {
    let ran = ioatlas(&["iotlb", "t", "--strategy", "alh+lru"]);
    assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
    assert!(
        ran.err
            .contains("unknown strategy `lru`; there is: baseline"),
        "{}",
        ran.err
    );
    for usage in [
        &["nonsense"][..],
        &[],
        &["iotlb"],
        &["report", "--inv-ns", "-1"],
        &["report", "--inv-ns", "NaN"],
        &["report", "--inv-ns", "2e12"],
        &["report", "-o", "-"],
        &["iotlb", "a.trace", "b.trace", "a.trace"],
        &["iotlb", "a.trace", "--strategy", "opt-ev+alh"],
        &["iotlb", "a.trace", "--entries", "0"],
        &["iotlb", "a.trace", "--ways", "64"],
        &["iotlb", "a.trace", "--entries", "33"],
        &["iotlb", "a.trace", "--levels", "9"],
        &["iotlb", "a.trace", "--walk-cache", "L9=1"],
        &["iotlb", "a.trace", "--walk-cache", "L2=1,L2=2"],
        &["iotlb", "a.trace", "--trigger", "hit"],
        &["iotlb", "a.trace", "--direction", "left"],
        &["iotlb", "a.trace", "--ih", "2"],
        &["iotlb", "a.trace", "--jobs", "0"],
        &["iotlb", "a.trace", "--sweep", "ways=x"],
        &["iotlb", "a.trace", "--csv", "a.csv"],
        &["report", "a.trace", "a.trace"],
    ] {
        assert_eq!(ioatlas(usage).status, Status::Usage, "{usage:?}");
    }
    assert_eq!(ioatlas(&["--help"]).status, Status::Success);
}

#[test]
fn a_sweep_gives_every_point_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (csv, plot) = (path("s.csv"), path("s.svg"));
    let trace = bundled("e1000-stream");
    let sweep = "entries=16|32,ways=2|32,strategy=baseline|alh";
    let ran = ioatlas(&[
        "iotlb", &trace, "--json", "--sweep", sweep, "--csv", &csv, "--plot", &plot,
    ]);
    assert_eq!(ran.status, Status::Success, "{}", ran.err);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let points = json["points"].as_array().unwrap();
    // 16 entries have no 32 ways.
    assert_eq!((points.len(), &json["skipped"]), (6, &serde_json::json!(2)));
    let of = |entries: usize, strategy: &str| {
        let point = points.iter().find(|point| {
            point["entries"] == entries && point["ways"] == 2 && point["strategy"] == strategy
        });
        point.unwrap()["misses"].as_u64().unwrap()
    };
    assert_eq!((of(32, "baseline"), of(32, "alh")), (9492, 4197));
    let csv = std::fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 7);
    assert!(
        csv.contains(",baseline,4k,32,2,4,35959,26467,0,9492,"),
        "{csv}"
    );
    let svg = std::fs::read_to_string(plot).unwrap();
    assert_eq!(svg.matches("<rect").count(), 6);
    let ran = ioatlas(&["iotlb", &trace, "--sweep", sweep, "--csv", &trace]);
    assert_eq!(ran.status, Status::Usage, "never over a trace: {}", ran.err);
}

/// Writes bad files into `dir` and gives their names with what the error must say.
fn bad_files(dir: &Path) -> Vec<(String, &'static str)> {
    let whole = std::fs::read(bundled("e1000-stream")).unwrap();
    let files: [(&str, &[u8], &str); 5] = [
        (
            "malformed.trace",
            b"# ioatlas-trace 1\nA d 1 r\nA d xyz r\n",
            "malformed.trace:3:5: bad page number `xyz`",
        ),
        (
            "truncated.zst",
            &whole[..whole.len() / 2],
            "compressed file is truncated",
        ),
        ("empty.trace", b"", "file is empty"),
        (
            "headless.trace",
            b"A d 1 r\n",
            "headless.trace:1:1: not a trace",
        ),
        ("directory", b"", "cannot open: it is a directory"),
    ];
    let mut bad = vec![(dir.join("missing").to_str().unwrap().into(), "cannot open")];
    for (name, bytes, message) in files {
        let path = dir.join(name);
        if name == "directory" {
            std::fs::create_dir(&path).unwrap();
        } else {
            std::fs::write(&path, bytes).unwrap();
        }
        bad.push((path.to_str().unwrap().into(), message));
    }
    bad
}

#[test]
fn bad_traces_fail_with_their_place_and_without_a_result() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    std::fs::write(&page, "old").unwrap();
    let good = bundled("e1000-stream");
    for (path, message) in bad_files(dir.path()) {
        for command in [
            &["iotlb", &path, "--json"][..],
            &["iotlb", &path],
            &["trace", "info", &path],
            &["trace", "info", &path, "--json"],
            &["report", &good, &path, "-o", page.to_str().unwrap()],
        ] {
            let ran = ioatlas(command);
            assert_eq!(
                (ran.status, ran.out.as_str()),
                (Status::Failure, ""),
                "{command:?}"
            );
            assert!(
                ran.err.contains(message) && ran.err.contains(&path),
                "{}",
                ran.err
            );
        }
        // The good files among several keep their results.
        let ran = ioatlas(&["iotlb", &path, &good, "--json"]);
        assert_eq!(ran.status, Status::Failure);
        let results: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            results.as_object().unwrap().keys().collect::<Vec<_>>(),
            [&good]
        );
    }
    assert_eq!(std::fs::read(&page).unwrap(), b"old");
}

#[test]
fn unwritable_output_is_named_before_any_trace_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("no/such/dir/report.html");
    let ran = ioatlas(&["report", "missing.trace", "-o", output.to_str().unwrap()]);
    assert_eq!((ran.status, ran.out.as_str()), (Status::Failure, ""));
    assert!(
        ran.err.contains(output.to_str().unwrap()) && ran.err.contains("cannot write"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("missing.trace"), "{}", ran.err);
}

/// Standard output whose reader has gone, or whose disk is full.
struct Broken(io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
    let arguments = ["ioatlas", "trace", "info", &bundled("lsi-bonnie")].map(OsString::from);
    let mut err = Vec::new();
    let status = ioatlas_cli::run(
        arguments.clone(),
        &mut Broken(io::ErrorKind::BrokenPipe),
        &mut err,
    );
    assert_eq!((status, err.as_slice()), (Status::Success, &b""[..]));
    let status = ioatlas_cli::run(arguments, &mut Broken(io::ErrorKind::StorageFull), &mut err);
    assert_eq!(status, Status::Failure);
    assert!(
        String::from_utf8(err)
            .unwrap()
            .starts_with("error: cannot write to standard output")
    );
}

/// The kernel kills a process in the middle of the write that passes its limit on file size.
#[cfg(unix)]
#[test]
fn a_report_killed_while_it_writes_leaves_the_old_page() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    std::fs::write(&page, "old").unwrap();
    let status = Command::new("sh")
        .args(["-c", "ulimit -c 0; ulimit -f 16; exec \"$@\"", "sh"])
        .args([
            env!("CARGO_BIN_EXE_ioatlas"),
            "report",
            &bundled("lsi-bonnie"),
            "-o",
        ])
        .arg(&page)
        .env("XDG_CACHE_HOME", dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.signal().is_some(), "not killed: {status}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");
}

#[test]
fn a_page_never_replaces_one_of_the_traces() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.trace");
    let text = "# ioatlas-trace 1\nM d 1 1 r\nA d 1 r\n";
    std::fs::write(&trace, text).unwrap();
    let link = dir.path().join("link");
    std::fs::hard_link(&trace, &link).unwrap();
    let around = dir.path().join(".").join("t.trace");
    for output in [&trace, &link, &around] {
        let ran = ioatlas(&[
            "report",
            trace.to_str().unwrap(),
            "-o",
            output.to_str().unwrap(),
        ]);
        assert_eq!(ran.out, "");
        assert_eq!(ran.status, Status::Usage);
        assert!(ran.err.contains("it is one of the traces"), "{}", ran.err);
        assert_eq!(std::fs::read_to_string(&trace).unwrap(), text);
    }
}

#[test]
fn the_old_name_of_recording_a_guest_says_the_new_one() {
    for rest in [&[][..], &["--device", "e1000"], &["--help"]] {
        let ran = ioatlas(&[&["trace", "record"], rest].concat());
        assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
        assert!(ran.err.contains("`trace record-guest`"), "{}", ran.err);
    }
}

#[test]
fn experiments_are_the_laboratorys() {
    for name in ["papers", "bench", "scale", "vhost-compare"] {
        let ran = ioatlas(&[name, "--quick"]);
        assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
        assert!(
            ran.err.contains(&format!("cargo lab {name}")),
            "{}",
            ran.err
        );
    }
}
