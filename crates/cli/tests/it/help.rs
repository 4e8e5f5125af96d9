// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the program says of itself: help, completions, manual pages.

use crate::common::ioatlas;
use ioatlas_cli::Status;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// The commands below `command`, as its help lists them.
fn below(command: &[&str]) -> Vec<String> {
    let help = ioatlas(&[command, &["--help"]].concat()).out;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let entries = lines.take_while(|line| !line.is_empty());
    let names = entries.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands = names.filter(|name| !["", "help"].contains(name));
    commands.map(String::from).collect()
}

/// All commands, by the words after the program's name.
fn commands() -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while let Some(command) = all.get(at).cloned() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        all.extend(below(&words).into_iter().map(|name| {
            let mut longer = command.clone();
            longer.push(name);
            longer
        }));
        at += 1;
    }
    all
}

/// Help in a terminal of this width, or to a pipe.
fn help(command: &[String], flag: &str, columns: Option<&str>) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    program.args(command).arg(flag).stdin(Stdio::null());
    match columns {
        Some(columns) => program.env("COLUMNS", columns),
        None => program.env_remove("COLUMNS"),
    };
    let output = program.stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_is_as_wide_as_the_terminal_and_never_wider_than_a_hundred_columns() {
    let commands = commands();
    assert!(commands.len() > 12, "{commands:?}");
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    for command in &commands {
        for flag in ["-h", "--help"] {
            for columns in [None, Some("300")] {
                let said = help(command, flag, columns);
                assert!(widest(&said) <= Some(100), "{command:?} {flag}: {said}");
            }
        }
    }
    let report = ["report".to_owned()];
    let narrow = help(&report, "--help", Some("60"));
    let wide = help(&report, "--help", None);
    assert!(widest(&narrow) <= Some(60) && widest(&wide) > Some(90));
}

#[test]
fn every_shell_gets_completions_of_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = ioatlas(&["completions", shell]);
        assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
        for command in commands().concat() {
            assert!(ran.out.contains(&command), "{shell}: {command}");
        }
    }
    assert_eq!(ioatlas(&["completions", "dos"]).status, Status::Usage);
}

#[test]
fn bash_completes_a_command_and_its_options() {
    let script = ioatlas(&["completions", "bash"]).out;
    let complete = |words: &str| {
        let asks = format!(
            "COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _ioatlas ioatlas \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        let mut bash = Command::new("bash");
        bash.arg("--norc")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut bash = bash.spawn().unwrap();
        let mut stdin = bash.stdin.take().unwrap();
        stdin.write_all(script.as_bytes()).unwrap();
        stdin.write_all(asks.as_bytes()).unwrap();
        drop(stdin);
        let said = bash.wait_with_output().unwrap().stdout;
        String::from_utf8(said).unwrap()
    };
    assert_eq!(complete("ioatlas rep"), "report\nreplay\n");
    assert_eq!(complete("ioatlas trace convert --anon"), "--anonymize\n");
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let ran = ioatlas(&["man", folder]);
    assert_eq!(
        (ran.status, ran.out.as_str(), ran.err.as_str()),
        (Status::Success, "", "")
    );
    let pages: BTreeSet<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let name = |words: &Vec<String>| {
        let words: Vec<&str> = std::iter::once("ioatlas")
            .chain(words.iter().map(String::as_str))
            .collect();
        format!("{}.1", words.join("-"))
    };
    assert_eq!(pages, commands().iter().map(name).collect());
    let page = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    for name in &pages {
        assert!(page(name).contains(".TH ioatlas"), "{name}");
    }
    assert!(page("ioatlas-trace-convert.1").contains("anonymize"));
    assert_eq!(ioatlas(&["man"]).out, page("ioatlas.1"));
}

#[test]
fn a_folder_for_manual_pages_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no/man1");
    let ran = ioatlas(&["man", missing.to_str().unwrap()]);
    assert_eq!(ran.status, Status::Failure);
    assert!(ran.err.contains("no/man1/ioatlas-"), "{}", ran.err);
}
