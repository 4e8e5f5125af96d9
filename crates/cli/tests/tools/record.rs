// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Recording a guest, from packages to a checked trace: ignored unless asked for, by
//! `ci/full.sh recording`. The packages' directory is named by `IOATLAS_RECORD_PACKAGES`; without
//! it the user's cache is looked at. And what is refused, which needs no guest.

use ioatlas_guest::Cache;
use ioatlas_iotlb::{Event, Kind, Trace};
use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

const IGNORED: &str = "boots a guest: ci/full.sh recording";
const INSTALL: &str = "needs QEMU and packages: ci/install-record.sh";

pub fn trials() -> Vec<Trial> {
    let run = || e1000_stream(&packages().ok_or(INSTALL)?);
    let recording = Trial::test("record: a recording of an e1000 adds up", run)
        .with_kind(IGNORED)
        .with_ignored_flag(true);
    vec![
        recording,
        Trial::test("record: what cannot be is refused with a reason", refusals),
        Trial::test("record: without QEMU it says what installs it", no_qemu),
        Trial::test(
            "record: a guest that hangs is killed and its log kept",
            hangs,
        ),
        Trial::test("record: a QEMU that gives up is quoted", gives_up),
        Trial::test("record: a signal ends QEMU and leaves nothing", signalled),
    ]
}

/// The directory with the packages that the test needs, if QEMU is there as well.
fn packages() -> Option<PathBuf> {
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    qemu.ok().filter(|output| output.status.success())?;
    let named = env::var_os("IOATLAS_RECORD_PACKAGES").map(PathBuf::from);
    let directory = named.or_else(Cache::default_directory)?;
    if !directory.is_dir() {
        return None;
    }
    let cache = Cache::open(&directory).ok()?;
    let kernel = cache.kernel().ok()?;
    let wanted = [&kernel, "busybox-static", "netcat-openbsd"];
    wanted
        .into_iter()
        .all(|package| cache.has(package))
        .then_some(directory)
}

fn e1000_stream(packages: &Path) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("small.trace.zst");
    let temporary = directory.path().join("temporary");
    fs::create_dir(&temporary)?;
    let recorded = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args([
            "trace",
            "record-guest",
            "--device",
            "e1000",
            "--workload",
            "stream",
            "--mib",
            "1",
        ])
        .args(["--json", "--timeout", "200", "--cache"])
        .arg(packages)
        .arg("-o")
        .arg(&file)
        .env("TMPDIR", &temporary)
        .output()?;
    let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
    if !recorded.status.success() {
        return Err(said.into());
    }
    let summary: Value = serde_json::from_slice(&recorded.stdout)?;
    let checks = summary["checks"].as_array().ok_or("no checks")?;
    if checks.len() < 10 {
        return Err(format!("{} checks are too few", checks.len()).into());
    }
    for check in checks {
        if check["found"] != check["wanted"] {
            return Err(format!("does not hold: {check}").into());
        }
    }
    // 1 MiB in frames of 1,514 bytes, each read from memory; each buffer mapped once
    let trace = Trace::open(&file)?;
    let info = trace.info();
    if !info.anomalies.is_empty() || info.devices.len() != 1 {
        return Err(format!("not the trace of one device in order: {info:?}").into());
    }
    let sent_pages = 1 << 20 >> 12;
    let mapped = |wanted: Kind| {
        let of = |event: &&Event| matches!(event, Event::Map { kind: Some(kind), .. } if *kind == wanted);
        trace.events().iter().filter(of).count()
    };
    let (rings, buffers) = (mapped(Kind::Alloc), mapped(Kind::Page));
    if rings < 2 || buffers < sent_pages {
        return Err(format!("{rings} consistent and {buffers} streaming maps are too few").into());
    }
    let at = fs::read_dir(&temporary)?.count();
    if at > 0 {
        return Err(format!("{at} files are left behind").into());
    }
    Ok(())
}

/// A machine with packages of nothing, and a QEMU that is a script.
struct Stage {
    directory: TempDir,
}

impl Stage {
    fn new(qemu: &str) -> Result<Self, Failed> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        for (package, file) in [
            ("linux-image-0-amd64", "boot/vmlinuz-none"),
            ("busybox-static", "bin/busybox"),
        ] {
            let unpacked = path("packages").join(format!("{package}_1_amd64.unpacked-4"));
            let file = unpacked.join("files").join(file);
            fs::create_dir_all(file.parent().ok_or("no parent")?)?;
            fs::write(file, "nothing")?;
            fs::write(unpacked.join("control"), format!("Package: {package}\n"))?;
        }
        fs::create_dir(path("bin"))?;
        fs::create_dir(path("temporary"))?;
        let script = path("bin").join("qemu-system-x86_64");
        let version = r#"[ "$1" = --version ] && { echo "a QEMU"; exit; }"#;
        fs::write(&script, format!("#!/bin/sh\n{version}\n{qemu}\n"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn record(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
        let path = env::var("PATH").unwrap_or_default();
        command
            .args([
                "trace",
                "record-guest",
                "--device",
                "e1000",
                "--workload",
                "rr",
            ])
            .arg("--cache")
            .arg(self.path("packages"))
            .arg("-o")
            .arg(self.path("out.trace.zst"))
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("TMPDIR", self.path("temporary"))
            .env("STAGE", self.directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// What the script's process left in `pid` is no process any more.
    fn qemu_is_gone(&self) -> Result<(), Failed> {
        let pid = fs::read_to_string(self.path("pid"))?;
        if Path::new("/proc").join(pid.trim()).exists() {
            return Err(format!("QEMU, process {}, lives", pid.trim()).into());
        }
        Ok(())
    }
}

/// Exit status 1, this on standard error, and no output file.
fn failed_with(stage: &Stage, output: &Output, words: &[&str]) -> Result<String, Failed> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() != Some(1) || !words.iter().all(|word| said.contains(word)) {
        return Err(format!("{}, want 1 and {words:?}: {said}", output.status).into());
    }
    if stage.path("out.trace.zst").exists() {
        return Err("a trace was written".into());
    }
    Ok(said)
}

fn refusals() -> Result<(), Failed> {
    for (arguments, words) in [
        (
            "--device lsi --workload stream",
            "lsi cannot do stream; e1000, 2xe1000,",
        ),
        (
            "--device e1000 --workload rr --queues 2 --cpus 2",
            "--queues: e1000 has one pair",
        ),
        (
            "--device nvme --workload fio --queues 2",
            "--queues: 2 is not from 1 to 1",
        ),
        (
            "--device virtio-net --workload rr --ring 300",
            "--ring: 300 is no power of two",
        ),
        (
            "--device e1000 --workload rr --ring 512",
            "--ring: e1000 has a ring of fixed size",
        ),
        (
            "--device nvme --workload fio --mib 0",
            "--mib: 0 MiB are no equal shares",
        ),
        (
            "--device nvme --workload fio --timeout 0",
            "--timeout: 0 s are no time",
        ),
        (
            "--device ide --workload dd --memory 64",
            "--memory: 64 is not from 128",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
            .args(["trace", "record-guest", "-o", "never.trace.zst"])
            .args(arguments.split(' '))
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(2) || !said.contains(words) {
            return Err(format!("{arguments}: {}: {said}", output.status).into());
        }
    }
    Ok(())
}

fn no_qemu() -> Result<(), Failed> {
    let stage = Stage::new("")?;
    let output = stage
        .record()
        .env("PATH", stage.path("temporary"))
        .output()?;
    let wanted = [
        "needs qemu-system-x86_64",
        "ci/install-record.sh",
        "qemu-system-x86",
    ];
    failed_with(&stage, &output, &wanted).map(|_| ())
}

fn hangs() -> Result<(), Failed> {
    let stage = Stage::new("echo $$ >$STAGE/pid; echo it is stuck here; exec sleep 1000")?;
    let output = stage.record().args(["--timeout", "15"]).output()?;
    let said = failed_with(
        &stage,
        &output,
        &["within 15 s and was killed", "its log: "],
    )?;
    stage.qemu_is_gone()?;
    let log = said.split("its log: ").nth(1).ok_or("no log")?.trim();
    let log = fs::read_to_string(log)?;
    if log != "it is stuck here\n" {
        return Err(format!("the log is not the guest's: {log}").into());
    }
    Ok(())
}

fn gives_up() -> Result<(), Failed> {
    let stage = Stage::new("echo 'qemu-system-x86_64: no such device' >&2; exit 1")?;
    let output = stage.record().output()?;
    failed_with(
        &stage,
        &output,
        &["failed at: boots: qemu-system-x86_64: no such device"],
    )?;
    let stage = Stage::new("echo 'ioatlas: failed: no disk'")?;
    let output = stage.record().output()?;
    failed_with(&stage, &output, &["failed at: boots: no disk; its log: "]).map(|_| ())
}

fn signalled() -> Result<(), Failed> {
    let stage = Stage::new("echo $$ >$STAGE/pid; exec sleep 1000")?;
    let recorder = stage.record().spawn()?;
    for _ in 0..600 {
        if fs::read_to_string(stage.path("pid")).is_ok_and(|pid| pid.ends_with('\n')) {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    kill_process(Pid::from_child(&recorder), Signal::TERM)?;
    let output = recorder.wait_with_output()?;
    failed_with(&stage, &output, &["interrupted; the guest is ended"])?;
    stage.qemu_is_gone()?;
    let left = fs::read_dir(stage.path("temporary"))?.count();
    if left > 0 {
        return Err(format!("{left} files are left behind").into());
    }
    Ok(())
}
