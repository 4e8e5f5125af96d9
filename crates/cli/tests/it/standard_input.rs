// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `-` as the name of a file: the program at the end of a pipe.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../iotlb/tests/fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

/// The program, with those bytes coming through a pipe.
fn piped(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // without a cache, what it says does not depend on what was run before
    command.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // a program that has seen enough closes its end
            let _ = pipe.write_all(input);
        });
        child.wait_with_output().unwrap()
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn succeeds(arguments: &[&str], input: &[u8]) -> String {
    let output = piped(arguments, input);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    stdout
}

#[test]
fn commands_read_standard_input_as_they_read_a_file() {
    let name = fixture("ftrace-pipe-off-6.12.txt.zst");
    let bytes = std::fs::read(&name).unwrap();
    for command in [
        &["trace", "info", "--json"][..],
        &["iotlb", "--json", "--strategy", "alh"],
        &["replay", "--json", "--as", "linux-strict"],
    ] {
        let of = |path| succeeds(&[command, &[path]].concat(), &bytes);
        let (file, input) = (of(&name), of("-"));
        assert!(file.len() > 100, "{file}");
        assert_eq!(input, file.replace(&name, "standard input"), "{command:?}");
    }
}

#[test]
fn a_report_of_standard_input_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("r.html");
    let bytes = std::fs::read(fixture("perf-off-6.12.txt.zst")).unwrap();
    let to = page.to_str().unwrap();
    let said = succeeds(&["report", "-", "-o", to, "--as", "linux-strict"], &bytes);
    assert!(
        said.contains("ASSUMED of standard input: IOVAs of"),
        "{said}"
    );
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("standard input"));
}

#[test]
fn captures_from_a_pipe_are_converted_in_one_or_two_readings() {
    let dir = tempfile::tempdir().unwrap();
    for (name, option) in [
        ("ftrace-7.2.txt.zst", "--assume=unmap"),
        ("ftrace-7.2.txt.zst", "--anonymize"),
        ("qemu-virtio-iommu.log.zst", "--assume=map"),
    ] {
        let [of_file, of_pipe] = ["file.trace", "pipe.trace"].map(|name| dir.path().join(name));
        let file = fixture(name);
        let bytes = std::fs::read(&file).unwrap();
        for (from, to) in [(file.as_str(), &of_file), ("-", &of_pipe)] {
            let to = to.to_str().unwrap();
            succeeds(&["trace", "convert", from, option, "-o", to], &bytes);
        }
        let [file, pipe] = [of_file, of_pipe].map(|path| std::fs::read(path).unwrap());
        assert!(file.len() > 10_000 && file == pipe, "{name} {option}");
    }
}

#[test]
fn what_is_wrong_with_standard_input_is_said_of_it() {
    for (arguments, input, status, said) in [
        (
            &["trace", "info", "-"][..],
            &b""[..],
            1,
            "standard input:1:1: file is empty",
        ),
        (
            &["trace", "info", "-"],
            b"# ioatlas-trace 2\nA d x r\n",
            1,
            "standard input:2:5: ",
        ),
        (
            &["report", "-"],
            b"PERFILE2\x68\0\0\0\0\0\0\0",
            1,
            "perf script -i FILE | ioatlas report -",
        ),
        (&["iotlb", "-", "-"], b"", 2, "-: given twice"),
        (&["trace", "convert", "-"], b"", 2, "-o FILE"),
    ] {
        let output = piped(arguments, input);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
        assert!(output.stdout.is_empty());
    }
}
