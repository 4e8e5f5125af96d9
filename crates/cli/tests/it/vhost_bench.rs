// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas vhost-bench` against `ioatlas vhost-net`, each a program of its own; and against what
//! is no back end.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// However slow the machine, all is done by then.
const PATIENCE: Duration = Duration::from_secs(300);

fn ioatlas(command: &str) -> Command {
    let mut ioatlas = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    ioatlas.arg(command).stdin(Stdio::null());
    ioatlas.stdout(Stdio::piped()).stderr(Stdio::piped());
    ioatlas
}

/// A back end, running.
struct BackEnd {
    child: Child,
    directory: TempDir,
}

impl BackEnd {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let mut command = ioatlas("vhost-net");
        command.args(["--socket-path"]).arg(&socket);
        command.args(["--miss-timeout", "300000"]).args(arguments);
        let child = command.spawn().unwrap();
        let back = BackEnd { child, directory };
        let start = Instant::now();
        while !back.socket().exists() {
            assert!(start.elapsed() < PATIENCE, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        back
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn drive(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = ioatlas("vhost-bench");
    command.arg(socket).args(["--patience", "300"]);
    command.args(arguments).output().unwrap()
}

/// What it found.
fn found(socket: &Path, arguments: &[&str]) -> Value {
    let output = drive(socket, &[arguments, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_way_of_mapping_returns_every_frame() {
    let back = BackEnd::start(&["--mode", "macswap"]);
    let frames = ["--frames", "3000", "--warm-up", "0.01"];
    for (options, mapping, asks) in [
        (vec!["--map", "off"], "off", false),
        (vec!["--map", "static", "--leaf", "1g"], "static", true),
        (
            vec!["--map", "static", "--leaf", "2m", "--ring", "packed"],
            "static",
            true,
        ),
        (
            vec!["--map", "static", "--scattered", "--pages", "1000"],
            "static",
            true,
        ),
        (vec!["--map", "dynamic"], "dynamic", true),
        (
            vec!["--map", "dynamic", "--answers", "range", "--batch", "8"],
            "dynamic",
            true,
        ),
    ] {
        let options = [&options[..], &frames].concat();
        let found = found(&back.socket(), &options);
        let said = format!("{options:?}: {found:#}");
        let count = |field: &str| found[field].as_u64().expect(field);
        assert!(count("frames_sent") >= 3000, "{said}");
        assert_eq!(count("frames_sent"), count("frames_returned"), "{said}");
        for none in ["frames_corrupt", "frames_lost"] {
            assert_eq!(count(none), 0, "{said}");
        }
        let is = &found["settings"]["mapping"];
        assert!(*is == mapping || is.get(mapping).is_some(), "{said}");
        let invalidations = found["messages"]["invalidations"].as_u64().unwrap();
        assert_eq!(invalidations > 0, mapping == "dynamic", "{said}");
        // Static mappings are asked for in the warm-up, too, which is not counted.
        let updates = found["messages"]["updates"].as_u64().unwrap();
        assert!(asks || updates == 0, "{said}");
    }
}

#[test]
fn a_table_names_what_was_counted() {
    let back = BackEnd::start(&[]);
    let output = drive(&back.socket(), &["--frames", "500", "--warm-up", "0.01"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for row in ["frames a second", "frames corrupt", "frames lost", "misses"] {
        let cell = text.lines().find(|line| line.starts_with(row));
        assert!(cell.is_some(), "{row}: {text}");
    }
}

#[test]
fn the_highest_rate_without_loss_is_found() {
    let back = BackEnd::start(&[]);
    let options = ["--loss", "50%", "--frames", "2000", "--warm-up", "0.01"];
    let found = found(&back.socket(), &options);
    assert_eq!(found["tolerated_loss"], 0.5, "{found:#}");
    let tried = found["tried"].as_array().unwrap();
    assert!(!tried.is_empty() && tried.len() <= 12, "{found:#}");
    let best = found["best"]["offered_per_second"].as_f64().unwrap();
    let passed = |trial: &Value| trial["loss"].as_f64().unwrap() <= 0.5;
    let highest = tried.iter().filter(|trial| passed(trial));
    let rates = highest.map(|trial| trial["offered_per_second"].as_f64().unwrap());
    assert_eq!(best, rates.fold(0.0, f64::max), "{found:#}");
}

#[test]
fn what_is_no_back_end_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let fails = |socket: &Path, arguments: &[&str], code: i32, words: &str| {
        let output = ioatlas("vhost-bench")
            .arg(socket)
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(output.stdout.is_empty(), "{said}");
    };
    fails(&at("none"), &[], 1, "no such socket");
    drop(UnixListener::bind(at("stale")).unwrap());
    fails(&at("stale"), &[], 1, "no program listens");
    let silent = UnixListener::bind(at("silent")).unwrap();
    fails(&at("silent"), &["--patience", "0.2"], 1, "is silent");
    drop(silent);
    for (arguments, words) in [
        (&["--ring-size", "100"][..], "power of two"),
        (&["--pages", "7"], "8 to"),
        (&["--frame-bytes", "59"], "60 to"),
        (&["--map", "dynamic", "--batch", "0"], "batches"),
        (&["--loss", "100%"], "less than 100%"),
        (&["--loss", "1%", "--rate", "5"], "cannot be used with"),
        (&["--seconds", "0"], "millisecond"),
        (&["--seconds=-1"], "zero or more"),
    ] {
        fails(&at("none"), arguments, 2, words);
    }
}
