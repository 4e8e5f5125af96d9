// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The bar that a waiting person sees.

use crate::common::terminal;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

#[test]
fn a_terminal_is_told_how_much_was_read_while_it_is_imported() {
    let (mut screen, theirs) = terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command.args(["trace", "info", "-"]).env("TERM", "xterm");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(theirs);
    let mut child = command.spawn().unwrap();
    drop(command); // and with it this process' copy of their end
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"# ioatlas-trace 2\n").unwrap();
    let (mut seen, mut piece) = (String::new(), [0; 4096]);
    // it goes on reading for as long as nothing is shown
    while !seen.contains("reads standard input: ") {
        stdin.write_all("A d 1 r\n".repeat(100).as_bytes()).unwrap();
        let mut events = [rustix::event::PollFd::new(
            &screen,
            rustix::event::PollFlags::IN,
        )];
        let soon = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        if rustix::event::poll(&mut events, Some(&soon)).unwrap() > 0 {
            let count = screen.read(&mut piece).unwrap();
            seen += &String::from_utf8_lossy(&piece[..count]);
        }
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("standard input: "), "{said}");
}

#[test]
fn a_file_is_told_none() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command.args([
        "iotlb",
        &crate::common::bundled("e1000-stream"),
        "--strategy",
        "alh",
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
}
