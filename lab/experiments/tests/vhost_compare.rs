// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab vhost-compare`. What needs DPDK's testpmd, and both CPUs, is ignored unless asked
//! for: `ci/full.sh compare`.

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

const IGNORED: &str = "runs DPDK's testpmd on all CPUs: ci/full.sh compare";
const INSTALL: &str = "needs DPDK's testpmd: ci/install-dpdk.sh";

fn main() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let both = Trial::test(
        "vhost_compare: both back ends are driven, ours loses nothing",
        both,
    )
    .with_kind(IGNORED)
    .with_ignored_flag(true);
    vec![
        both,
        Trial::test(
            "vhost_compare: without testpmd it says what installs it",
            no_testpmd,
        ),
        Trial::test(
            "vhost_compare: a testpmd that dies is quoted, its log kept",
            dies,
        ),
        Trial::test("vhost_compare: what cannot be is refused", refusals),
    ]
}

fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

fn compare(arguments: &[&str]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_ioatlas-lab"));
    lab.arg("vhost-compare").args(arguments);
    lab.stdin(Stdio::null()).output().expect("it can be run")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn both() -> Result<(), Failed> {
    if !has("dpdk-testpmd") {
        return Err(INSTALL.into());
    }
    let logs = tempfile::tempdir()?;
    let output = compare(&[
        "--rounds=2",
        "--seconds=0.05",
        "--case=off-512,2m-512,off-scattered-512,4k-scattered-512,dynamic-pages",
        "--json",
        "--logs",
        logs.path().to_str().ok_or("a name in ASCII")?,
    ]);
    if !output.status.success() {
        return Err(said(&output).into());
    }
    let found: Value = serde_json::from_slice(&output.stdout)?;
    let runs = found["runs"].as_array().ok_or("runs")?;
    assert_eq!(runs.len(), 2 * 5 * 2);
    for run in runs {
        assert_eq!(run["failure"], Value::Null, "{run}");
        assert_eq!(run["frames_corrupt"], 0, "{run}");
        // A rate counts what came back in a time so short that a busy machine may give none of it
        // to what forwards.
        assert!(run["frames_per_second"].is_number(), "{run}");
        assert!(run["frames_sent"].as_u64() > Some(0), "{run}");
        if run["back_end"] == "ours" {
            assert_eq!(run["frames_lost"], 0, "{run}");
        }
    }
    let lines = found["comparisons"].as_array().ok_or("comparisons")?;
    assert_eq!(lines.len(), 8);
    let measured = |line: &&Value| line["ratio"].is_number();
    for line in lines.iter().filter(measured) {
        let both = line["ours"].is_number() && line["testpmd"].is_number();
        assert!(both, "{line}");
    }
    let measured = lines.iter().filter(measured).count();
    assert_eq!(measured, 4, "2M, 512 pages, off, dynamic");
    assert_eq!(fs::read_dir(logs.path())?.count(), 20, "a log a run");
    Ok(())
}

fn no_testpmd() -> Result<(), Failed> {
    let output = compare(&["--testpmd", "no-such-testpmd"]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(
        said.contains("no-such-testpmd") && said.contains("ci/install-dpdk.sh"),
        "{said}"
    );
    Ok(())
}

fn dies() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let (testpmd, logs) = (
        directory.path().join("testpmd"),
        directory.path().join("logs"),
    );
    fs::write(&testpmd, "#!/bin/sh\necho 'EAL: no memory' >&2\nexit 3\n")?;
    fs::set_permissions(&testpmd, fs::Permissions::from_mode(0o755))?;
    let name = |path: &Path| path.to_str().expect("a name in ASCII").to_string();
    let output = compare(&["--testpmd", &name(&testpmd), "--logs", &name(&logs)]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("testpmd does not listen"), "{said}");
    assert!(said.contains("EAL: no memory"), "{said}");
    let log = fs::read_to_string(logs.join("off-512-testpmd-0.log"))?;
    assert_eq!(log, "EAL: no memory\n");
    Ok(())
}

fn refusals() -> Result<(), Failed> {
    for (arguments, why) in [
        ("--case=off-511", "no such case"),
        ("--rounds=0", "rounds"),
        ("--seconds=0", "0.05 to 3600"),
    ] {
        let output = compare(&[arguments]);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(
            said(&output).contains(why),
            "{arguments}: {}",
            said(&output)
        );
    }
    Ok(())
}
