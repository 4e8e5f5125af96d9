// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the program prints for terminals of some width, with and without colours.

use crate::common::terminal;
use std::io::Read;
use std::process::{Command, Stdio};

/// Where the traces are, so that names are short.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces");

/// The program with these variables and no others that would matter.
fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    for name in ["COLUMNS", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied());
    command.current_dir(TRACES);
    command
}

/// What it prints with these variables.
fn prints(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = command(arguments, variables).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn widest(text: &str) -> usize {
    let lines = text.lines().map(|line| line.chars().count());
    lines.max().unwrap()
}

#[test]
fn tables_keep_to_the_width_and_lose_no_number() {
    let trace = "2xe1000-stream.trace.zst";
    for (arguments, number) in [
        (&["trace", "info", trace][..], "1,960"),
        (
            &["replay", trace, "--as", "linux-strict", "--as", "macos"],
            "36,360",
        ),
        (&["iotlb", trace, "--strategy", "baseline,alh"], "36,360"),
    ] {
        let whole = prints(arguments, &[]);
        assert!(widest(&whole) > 100, "{whole}");
        assert_eq!(prints(arguments, &[("COLUMNS", "200")]), whole);
        for columns in ["100", "80", "60"] {
            let narrow = prints(arguments, &[("COLUMNS", columns)]);
            // but for the sentence above the table
            let lines = narrow.lines().filter(|line| !line.contains(" events, "));
            let tables: Vec<&str> = lines.collect();
            assert!(
                widest(&tables.join("\n")) <= columns.parse().unwrap(),
                "{narrow}"
            );
            assert!(
                whole.contains(number) && narrow.contains(number),
                "{narrow}"
            );
        }
    }
}

#[test]
fn a_report_keeps_to_the_width_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let capture = "../crates/iotlb/tests/fixtures/ftrace-7.2.txt.zst";
    let (one, other) = ("e1000-stream.trace.zst", "2xe1000-stream.trace.zst");
    for traces in [&[][..], &[one, other], &[capture], &[capture, one]] {
        let fixed = ["report", "--no-bench", "-o", page.to_str().unwrap()];
        let report = |columns: &[(&str, &str)]| prints(&[&fixed, traces].concat(), columns);
        let whole = report(&[]);
        assert!(
            whole.lines().count() <= 24 && widest(&whole) <= 100,
            "{whole}"
        );
        for wide in ["100", "200"] {
            assert_eq!(report(&[("COLUMNS", wide)]), whole);
        }
        for columns in ["80", "60"] {
            let narrow = report(&[("COLUMNS", columns)]);
            assert!(widest(&narrow) <= columns.parse().unwrap(), "{narrow}");
            // a system's row of numbers is left, or a block
            let first = narrow
                .lines()
                .find(|line| line.starts_with("as Linux 3.17"));
            assert!(
                first.is_none_or(|line| !line.contains("measured")),
                "{narrow}"
            );
            let of_systems = whole.contains("as Solaris");
            assert_eq!(narrow.contains("as Solaris"), of_systems, "{narrow}");
            let numbers = whole
                .split_ascii_whitespace()
                .filter(|word| word.contains("%"));
            for number in numbers.map(|word| word.trim_end_matches([',', ';', '.'])) {
                assert!(narrow.contains(number), "{number}: {narrow}");
            }
        }
    }
}

#[test]
fn colours_are_for_terminals_and_those_who_ask() {
    let arguments = ["trace", "info", "e1000-stream.trace.zst"];
    let plain = prints(&arguments, &[]);
    assert!(!plain.contains('\u{1b}'));
    let forced = prints(&arguments, &[("CLICOLOR_FORCE", "1")]);
    assert!(forced.contains("\u{1b}[1mdevice"), "{forced}");
    assert_eq!(
        forced.replace("\u{1b}[1m", "").replace("\u{1b}[0m", ""),
        plain
    );
    let refused = [("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")];
    assert_eq!(prints(&arguments, &refused), plain);
}

/// The beginning of what it prints on a terminal.
fn shows(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let (mut screen, theirs) = terminal();
    let mut command = command(arguments, variables);
    command.env("TERM", "xterm").stdin(Stdio::null());
    let mut child = command.stdout(theirs).spawn().unwrap();
    drop(command); // and with it this process' copy of their end
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    // once their end is closed, and all is read, reading fails
    while let Ok(count @ 1..) = screen.read(&mut piece) {
        seen.extend_from_slice(&piece[..count]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(seen).unwrap().replace("\r\n", "\n")
}

#[test]
fn help_is_coloured_on_a_terminal_and_nowhere_else() {
    for arguments in [
        &["--help"][..],
        &["report", "-h"],
        &["help", "trace", "info"],
    ] {
        let plain = prints(arguments, &[]);
        assert!(plain.contains("Usage:") && !plain.contains('\u{1b}'));
        let shown = shows(arguments, &[]);
        assert!(
            shown.contains("\u{1b}[") && shown.contains("Usage:"),
            "{shown}"
        );
        let refused = shows(arguments, &[("NO_COLOR", "1")]);
        assert!(refused.contains("Usage:") && !refused.contains('\u{1b}'));
    }
}
