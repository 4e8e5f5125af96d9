// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Commands that a signal ends while they write.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// More than a pipe holds and than is read to find out what a file is.
const READ: usize = 4 << 20;

/// `trace convert`, which has begun to write and waits for more to read.
fn converting(output: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command
        .args(["trace", "convert", "--from", "ftrace", "-", "-o"])
        .arg(output);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut text = String::new();
    for n in 0..READ / 100 {
        let (address, micros) = (n << 12, n % 1_000_000);
        text += &format!(
            "  task-1 [000] d..1. 1.{micros:06}: dma_map_page: 0000:00:1f.2 dir=TO_DEVICE \
             dma_addr={address:x} size=4096 phys_addr={address:x} attrs=\n"
        );
    }
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    child
}

#[test]
fn a_signal_leaves_the_old_file_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("t.trace");
    fs::write(&output, "old").unwrap();
    let mut child = converting(&output);
    // one that is not ignored where the tests run, as others may be
    let signal = Signal::TERM;
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
    assert_eq!(fs::read_to_string(&output).unwrap(), "old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_was_ignored_when_it_began_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("t.trace");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "trap '' HUP; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_ioatlas"),
    ]);
    command.args(["trace", "convert", "-", "-o"]).arg(&output);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut text = String::from("# ioatlas-trace 1\n");
    text += &"A d 1 r\n".repeat(READ / 8);
    stdin.write_all(text.as_bytes()).unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert!(fs::metadata(&output).unwrap().len() > 0);
}
