// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas capture`, the program itself, on a directory that stands in for tracefs: here the test
//! is the kernel. It fills the instance that the program makes, with a FIFO as `trace_pipe`, writes
//! the text of events, and empties the instance once its events were switched off.

use ioatlas_iotlb::{Event, Trace};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What takes longer hangs.
const SOON: Duration = Duration::from_secs(120);

const DMA: [&str; 3] = ["dma/dma_alloc", "dma/dma_map_page", "dma/dma_unmap_page"];
const IOMMU: [&str; 3] = ["iommu/io_page_fault", "iommu/map", "iommu/unmap"];

/// A number that no process has: Linux gives none above 2^22.
const UNUSED_PID: u32 = (1 << 22) + 1;

/// The kernel that is played.
struct Kernel {
    directory: TempDir,
    /// Events as `system/name`.
    events: Vec<&'static str>,
    /// What is to be read from `trace_pipe`.
    text: String,
    /// Events that the third CPU had no room for.
    dropped: u64,
    /// A file that instances do not have.
    missing: Option<&'static str>,
    /// What the program gets once all text is in the pipe.
    signal: Option<Signal>,
}

/// What the program said and did.
struct Ran {
    output: Output,
    /// What stood in the files of its instance when its events were switched off.
    settings: Option<BTreeMap<String, String>>,
}

impl Kernel {
    fn new(events: &[&'static str], text: &str) -> Self {
        let kernel = Kernel {
            directory: tempfile::tempdir().unwrap(),
            events: events.into(),
            text: text.into(),
            dropped: 0,
            missing: None,
            signal: None,
        };
        fs::create_dir_all(kernel.path("tracing/instances")).unwrap();
        // the second and the fourth CPU could be there
        kernel.put_of_machine("sys/devices/system/cpu/online", "0,2\n");
        kernel.put_of_machine("proc/sys/kernel/osrelease", "6.12.8-amd64\n");
        kernel.make_events(&kernel.path("tracing"));
        kernel
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A file of the machine, outside tracefs; it is looked for from here.
    fn put_of_machine(&self, file: &str, content: &str) {
        put(&self.path("tracing").join(file), content);
    }

    fn make_events(&self, root: &Path) {
        put(&root.join("events/enable"), "as it was");
        for event in &self.events {
            let (system, _) = event.split_once('/').unwrap();
            let directory = root.join("events").join(event);
            let field = match system {
                "dma" => "__data_loc char[] device",
                _ => "u64 iova",
            };
            let format = format!(
                "name: x\nformat:\n\tfield:int common_pid;\toffset:4;\n\n\tfield:{field};\toffset:8;\n"
            );
            put(&root.join("events").join(system).join("enable"), "0");
            put(&directory.join("enable"), "0");
            put(&directory.join("filter"), "none");
            put(&directory.join("format"), &format);
        }
    }

    /// Makes the files of an instance but for its pipe.
    fn make_files(&self, instance: &Path) {
        for (file, content) in [
            ("tracing_on", "1"),
            ("buffer_size_kb", "7 (expanded: 1408)"),
            ("trace_clock", "[local] global counter mono mono_raw"),
            ("options/overwrite", "1"),
        ] {
            put(&instance.join(file), content);
        }
        for (cpu, dropped) in [(0, 0), (1, 0), (2, self.dropped), (3, 0)] {
            let stats = format!(
                "entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 0\ndropped events: {dropped}\n\
                 read events: 20\n"
            );
            put(&instance.join(format!("per_cpu/cpu{cpu}/stats")), &stats);
        }
        self.make_events(instance);
        if let Some(missing) = self.missing {
            fs::remove_file(instance.join(missing)).unwrap();
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
        command.arg("capture").arg("--tracefs");
        command.arg(self.path("tracing"));
        command.current_dir(self.directory.path());
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program, in the directory that holds ours.
    fn run(&self, arguments: &[&str]) -> Ran {
        let mut child = self.command().args(arguments).spawn().unwrap();
        let settings = self.play(&mut child);
        let output = child.wait_with_output().unwrap();
        Ran { output, settings }
    }

    /// Plays the kernel until the program has ended.
    fn play(&self, child: &mut Child) -> Option<BTreeMap<String, String>> {
        let instance = self.path(&format!("tracing/instances/ioatlas-{}", child.id()));
        if !until(child, || instance.exists()) {
            return None;
        }
        self.make_files(&instance);
        let (new, pipe) = (instance.join("new"), instance.join("trace_pipe"));
        rustix::fs::mknodat(CWD, &new, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let mut writer: File = rustix::fs::open(&new, flags, Mode::empty()).unwrap().into();
        // what fits is there before the program sees the pipe, and with it all files
        let mut left = self.text.as_bytes();
        pour(&mut writer, &mut left);
        fs::rename(&new, &pipe).unwrap();
        let all = until(child, || {
            pour(&mut writer, &mut left);
            left.is_empty()
        });
        if let Some(signal) = self.signal.filter(|_| all) {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
        let off = instance.join("events/enable");
        let off = until(child, || fs::read_to_string(&off).unwrap() == "0");
        let settings = off.then(|| contents(&instance));
        // all paths first: once the last is gone the program removes the directory
        let entries = fs::read_dir(&instance).unwrap();
        let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        for path in paths {
            match path.is_dir() {
                true => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
        assert!(!until(child, || false)); // it ends
        settings
    }

    /// The instances that there are.
    fn instances(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("tracing/instances")).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    /// The files beside the one that stands in for tracefs.
    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.directory.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "tracing").collect();
        names.sort();
        names
    }
}

impl Ran {
    fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    fn err(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    #[track_caller]
    fn json(&self) -> Value {
        assert!(self.output.status.success(), "{}", self.err());
        serde_json::from_slice(&self.output.stdout).unwrap()
    }

    /// Fails with status 1; returns what it says.
    #[track_caller]
    fn fails(&self) -> String {
        assert_eq!(self.output.status.code(), Some(1), "{}", self.err());
        self.err()
    }

    #[track_caller]
    fn setting(&self, file: &str) -> &str {
        let settings = self.settings.as_ref().expect("events were switched off");
        settings[file].trim()
    }
}

fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Waits for something, or for the end of the program; says whether it came.
fn until(child: &mut Child, mut what: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if what() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if begun.elapsed() > SOON {
            let _ = child.kill();
            panic!("the program waits for nothing, or for ever");
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Writes what a pipe has room for.
fn pour(pipe: &mut File, left: &mut &[u8]) {
    while !left.is_empty() {
        match pipe.write(left) {
            Ok(count) => *left = &left[count..],
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return;
            }
        }
    }
}

/// What stands in all files of a directory, by their paths in it.
fn contents(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.metadata().unwrap();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(directory).unwrap().to_str().unwrap();
                found.insert(name.into(), fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// So many maps of pages of their own, one a millisecond, and unmaps of the first of them.
fn mappings(maps: u64, unmaps: u64) -> String {
    let mut text = String::new();
    for n in 0..maps + unmaps {
        let (event, page) = match n < maps {
            true => ("map", n),
            false => ("unmap", n - maps),
        };
        let phys = match event {
            "map" => format!(" phys_addr={:x}", 0x1234_5000 + page * 0x1000),
            _ => String::new(),
        };
        text += &format!(
            "     x [0]: y-17      [00{}] d.h2. {:5}.{:03}000: dma_{event}_page: 0000:01:00.0 \
             dir=FROM_DEVICE dma_addr={:x} size=4096{phys} attrs=\n",
            n % 2,
            9 + n / 1000,
            n % 1000,
            0xff00_0000_u64 + page * 0x1000,
        );
    }
    text
}

/// Maps and unmaps of a trace.
fn counts(path: &Path) -> (u64, u64) {
    let trace = Trace::open(path).unwrap();
    let mut found = (0, 0);
    for event in trace.events() {
        match event {
            Event::Map { .. } => found.0 += 1,
            Event::Unmap { .. } => found.1 += 1,
            Event::Access { .. } => {}
        }
    }
    found
}

#[test]
fn what_is_mapped_is_in_the_trace() {
    let text = mappings(12, 9);
    let kernel = Kernel::new(&DMA, &text);
    let arguments = ["--seconds", "0.1", "-o", "t.trace", "--size", "640"];
    let ran = kernel.run(&[&arguments[..], &["--json"]].concat());
    let said = ran.json();
    assert_eq!(ran.err(), "");
    for (field, wanted) in [
        ("events", 21.into()),
        ("lost", 0.into()),
        ("cpus", 2.into()),
        ("buffer_kib", 640.into()),
        ("ended", "time".into()),
        ("recorded", "dma:*".into()),
        ("file", "t.trace".into()),
        ("devices", Value::Array(Vec::new())),
    ] as [(&str, Value); 8]
    {
        assert_eq!(said[field], wanted, "{said}");
    }
    assert!(said["seconds"].as_f64().unwrap() >= 0.1, "{said}");
    let trace = kernel.path("t.trace");
    assert_eq!(said["bytes"], trace.metadata().unwrap().len());
    assert_eq!(counts(&trace), (12, 9));
    // as if the text had been converted
    fs::write(kernel.path("text"), &text).unwrap();
    let converted = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args([
            "trace",
            "convert",
            "text",
            "--assume=none",
            "-o",
            "converted",
        ])
        .current_dir(kernel.directory.path())
        .output();
    assert!(converted.unwrap().status.success());
    let [ours, theirs] =
        ["t.trace", "converted"].map(|name| fs::read_to_string(kernel.path(name)).unwrap());
    // but for the time that only the recording knows
    let (time, ours): (Vec<&str>, Vec<&str>) = ours
        .lines()
        .partition(|line| line.starts_with("# note recorded-ns "));
    assert_eq!(ours, theirs.lines().collect::<Vec<_>>());
    let [time] = time.as_slice() else {
        panic!("{time:?}");
    };
    let ns: u64 = time.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(ns >= 100_000_000, "{time}");

    for (file, wanted) in [
        ("tracing_on", "0"),
        ("buffer_size_kb", "640"),
        ("trace_clock", "mono"),
        ("options/overwrite", "0"),
        ("events/dma/enable", "1"),
        ("events/dma/dma_map_page/enable", "0"), // by its own switch it was not
        ("events/dma/dma_map_page/filter", "none"),
        ("events/enable", "0"),
    ] {
        assert_eq!(ran.setting(file), wanted, "{file}");
    }
    assert!(kernel.instances().is_empty());
    assert_eq!(kernel.files(), ["converted", "t.trace", "text"]);

    let plain = kernel.run(&arguments).out();
    let (head, tail) = (
        "t.trace: 21 events (dma:*) in ",
        " s on 2 CPUs, none lost; ",
    );
    assert!(plain.starts_with(head) && plain.contains(tail), "{plain}");
    assert!(plain.ends_with("Next: ioatlas report t.trace\n"), "{plain}");
}

#[test]
fn a_signal_ends_it_early_and_keeps_what_there_is() {
    // more than a pipe holds: it is read while it is written
    let text = mappings(4000, 3000);
    let signals = [Signal::INT, Signal::TERM, Signal::HUP];
    // where the tests themselves run under nohup, a hangup ends nothing
    let asked = signals
        .into_iter()
        .filter(|signal| *signal != Signal::HUP || !ignores_hangup());
    for signal in asked {
        let mut kernel = Kernel::new(&DMA, &text);
        kernel.signal = Some(signal);
        let ran = kernel.run(&["--seconds", "3600", "--json"]);
        let said = ran.json();
        assert_eq!(said["ended"], "signal", "{said}");
        assert!(said["seconds"].as_f64().unwrap() < 3600.0, "{said}");
        assert_eq!(counts(&kernel.path("capture.trace.zst")), (4000, 3000));
        assert_eq!(
            (kernel.instances(), ran.setting("tracing_on")),
            (vec![], "0")
        );
        assert_eq!(kernel.files(), ["capture.trace.zst"]);
    }
}

/// Whether a program that is started here ignores SIGHUP, signal 1.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(set.unwrap().trim(), 16).unwrap() & 1 != 0
}

#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    let mut kernel = Kernel::new(&DMA, &mappings(12, 9));
    kernel.signal = Some(Signal::HUP);
    let program = kernel.command();
    let mut command = Command::new("nohup");
    command.arg(program.get_program()).args(program.get_args());
    command.args(["--seconds", "1", "--json"]);
    command.current_dir(kernel.directory.path());
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let settings = kernel.play(&mut child);
    let output = child.wait_with_output().unwrap();
    let ran = Ran { output, settings };
    assert_eq!(ran.json()["ended"], "time");
    assert_eq!(counts(&kernel.path("capture.trace.zst")), (12, 9));
}

#[test]
fn what_events_leave_out_is_said() {
    let kernel = Kernel::new(&["dma/dma_map_page", "dma/dma_map_sg"], &mappings(1, 1));
    let format = kernel.path("tracing/events/dma/dma_map_sg/format");
    let declared = fs::read_to_string(&format).unwrap();
    let said = |release: &str, format_of_lists: &str| {
        kernel.put_of_machine("proc/sys/kernel/osrelease", release);
        fs::write(&format, format_of_lists).unwrap();
        let ran = kernel.run(&["--seconds", "0.1", "--json"]);
        ran.json();
        ran.err()
    };
    let long = said("6.12.8", &declared);
    assert!(
        long.contains("full_nents") && long.lines().count() == 1,
        "{long}"
    );
    let bounded = format!("{declared}\tfield:int full_nents;\toffset:12;\n");
    assert_eq!(said("6.15.0", &bounded), "");
    let linked = said("6.16.0-rc1", &bounded);
    assert!(linked.contains("dma_iova_link"), "{linked}");
    assert_eq!(linked.lines().count(), 1, "{linked}");
}

#[test]
fn what_was_lost_is_said_and_stays_in_the_trace() {
    let mut kernel = Kernel::new(&DMA, &mappings(12, 9));
    kernel.dropped = 7;
    let arguments = ["--seconds", "0.1", "-o", "t.trace.gz"];
    let ran = kernel.run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(ran.json()["lost"], 7);
    let trace = Trace::open(&kernel.path("t.trace.gz")).unwrap();
    assert_eq!(trace.lost_events(), 7);
    let plain = kernel.run(&arguments).out();
    assert!(
        plain.contains("7 MORE lost") && plain.contains("--size"),
        "{plain}"
    );
    assert!(kernel.instances().is_empty());
}

#[test]
fn only_the_devices_asked_for_are_recorded() {
    let kernel = Kernel::new(&DMA, &mappings(1, 1));
    // an event that names no device
    let nameless = kernel.path("tracing/events/dma/dma_new/format");
    put(&nameless, "format:\n\tfield:u64 device_id;\toffset:8;\n");
    let devices = ["--device", "5e:00.0", "--device", "fe300000.mmc"];
    let ran = kernel.run(&[&["--seconds", "0.1", "--json"], &devices[..]].concat());
    assert_eq!(
        ran.json()["devices"],
        serde_json::json!(["0000:5e:00.0", "fe300000.mmc"])
    );
    assert_eq!(ran.err(), "left out: dma:dma_new, which names no device\n");
    for event in DMA {
        let filter = ran.setting(&format!("events/{event}/filter"));
        assert_eq!(
            filter,
            r#"device=="0000:5e:00.0" || device=="fe300000.mmc""#
        );
        assert_eq!(ran.setting(&format!("events/{event}/enable")), "1");
    }
    // the switch of all would record the nameless as well
    assert_eq!(ran.setting("events/dma/enable"), "0");
    let bad = kernel.run(&["--device", "5e:00.0\" || 1"]);
    assert_eq!(bad.output.status.code(), Some(2), "{}", bad.err());
    assert!(kernel.instances().is_empty());
}

#[test]
fn a_kernel_without_dma_events_has_others() {
    let mut text = String::new();
    for n in 0..5_u64 {
        let (first, end) = (0xfff0_0000 + n * 0x1000, 0xfff0_1000 + n * 0x1000);
        let head = format!("  x-1  [000] ..... {}.000000:", n + 1);
        text += &format!(
            "{head} map: IOMMU: iova=0x{first:016x} - 0x{end:016x} paddr=0x00005000 size=4096\n"
        );
        if n < 3 {
            text += &format!(
                "{head} unmap: IOMMU: iova=0x{first:016x} - 0x{end:016x} size=4096 unmapped_size=4096\n"
            );
        }
    }
    let kernel = Kernel::new(&IOMMU, &text);
    let ran = kernel.run(&["--seconds", "0.1", "-o", "t.trace", "--json"]);
    assert_eq!(ran.json()["recorded"], "iommu:map and iommu:unmap");
    assert!(
        ran.err().contains("do not say of which device"),
        "{}",
        ran.err()
    );
    assert_eq!(counts(&kernel.path("t.trace")), (5, 3));
    let enabled = IOMMU.map(|event| ran.setting(&format!("events/{event}/enable")));
    assert_eq!(enabled, ["0", "1", "1"]);
    assert_eq!(ran.setting("events/iommu/enable"), "0");
    let said = kernel.run(&["--device", "5e:00.0"]).fails();
    assert!(said.contains("have no field `device`"), "{said}");
    assert!(kernel.instances().is_empty());
}

#[test]
fn a_kernel_without_any_events_is_told() {
    let kernel = Kernel::new(&["sched/sched_switch"], "");
    let said = kernel.run(&[]).fails();
    let wanted = "this is Linux 6.12.8-amd64; dma:* came with 6.12";
    assert!(said.contains(wanted), "{said}");
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}

#[test]
fn where_there_is_no_tracefs_it_says_how_to_mount_it() {
    let kernel = Kernel::new(&DMA, "");
    let elsewhere = kernel.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["capture", "-o"])
        .arg(kernel.path("t.trace"))
        .arg("--tracefs")
        .arg(&elsewhere)
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("mount -t tracefs nodev"), "{said}");
}

#[test]
fn without_permission_it_says_to_be_root() {
    let kernel = Kernel::new(&DMA, "");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    // a user without rights can come here, and write the trace, but not make an instance
    mode(kernel.directory.path(), 0o777).unwrap();
    mode(&kernel.path("tracing/instances"), 0o500).unwrap();
    let program = kernel.path("program");
    let from = env!("CARGO_BIN_EXE_ioatlas");
    if fs::hard_link(from, &program).is_err() {
        fs::copy(from, &program).unwrap();
    }
    let mut command = Command::new(&program);
    command
        .args(["capture", "--tracefs"])
        .arg(kernel.path("tracing"));
    command.current_dir(kernel.directory.path());
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let ran = command.output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(
        said.contains("ermission denied") && said.contains("run as root"),
        "{said}"
    );
    assert_eq!(kernel.files(), ["program"]);
    assert!(kernel.instances().is_empty());
}

#[test]
fn what_a_killed_capture_left_is_removed() {
    let kernel = Kernel::new(&DMA, &mappings(2, 1));
    let living = format!("ioatlas-{}", std::process::id());
    let dead = format!("ioatlas-{UNUSED_PID}");
    let full = format!("ioatlas-{}", UNUSED_PID + 1);
    for name in [&living, &dead, "ioatlas-x", "others"] {
        fs::create_dir(kernel.path("tracing/instances").join(name)).unwrap();
    }
    // one that cannot be removed, as if a program had a file of it open
    put(
        &kernel.path("tracing/instances").join(&full).join("file"),
        "",
    );
    let ran = kernel.run(&["--seconds", "0.1", "--json"]);
    assert_eq!(ran.json()["events"], 3);
    let said = ran.err();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains(&full) && lines[0].contains("stays: "),
        "{said}"
    );
    assert!(
        lines[1].starts_with("removed ") && lines[1].contains(&dead),
        "{said}"
    );
    let mut left = vec![living, full, "ioatlas-x".into(), "others".into()];
    left.sort();
    assert_eq!(kernel.instances(), left);
}

#[test]
fn an_output_that_cannot_be_written_is_told_before_anything_is_made() {
    let kernel = Kernel::new(&DMA, &mappings(2, 1));
    for (output, why) in [
        ("no/such/t.trace", "cannot write"),
        ("tracing", "not a regular file"),
    ] {
        // where an instance was made, there would be settings
        let ran = kernel.run(&["-o", output]);
        let said = ran.fails();
        assert!(said.contains(why) && said.contains(output), "{said}");
        assert!(ran.settings.is_none());
    }
    assert_eq!(kernel.run(&["-o", "-"]).output.status.code(), Some(2));
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}

#[test]
fn nothing_recorded_is_a_failure() {
    let kernel = Kernel::new(&DMA, "");
    let ran = kernel.run(&["--seconds", "0.1", "--device", "5e:00.0"]);
    let said = ran.fails();
    assert!(
        said.contains("no driver mapped or unmapped anything (dma:* of 0000:5e:00.0;"),
        "{said}"
    );
    assert_eq!(ran.out(), "");
    assert_eq!(ran.setting("tracing_on"), "0");
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}

#[test]
fn a_setting_that_fails_leaves_nothing() {
    for missing in [
        "buffer_size_kb",
        "options/overwrite",
        "events/dma/enable",
        "per_cpu/cpu2/stats",
    ] {
        let mut kernel = Kernel::new(&DMA, &mappings(2, 1));
        kernel.missing = Some(missing);
        let ran = kernel.run(&["--seconds", "0.1"]);
        let said = ran.fails();
        assert!(said.contains(missing), "{said}");
        assert!(ran.settings.is_some(), "{missing}: events stay on");
        assert!(
            kernel.instances().is_empty() && kernel.files().is_empty(),
            "{missing}"
        );
    }
}

#[test]
fn text_that_is_not_understood_is_kept() {
    let broken = mappings(2, 1).replace(
        "dma_unmap_page: 0000:01:00.0 dir=FROM_DEVICE dma_addr",
        "dma_unmap_page: 0000:01:00.0 dir=FROM_DEVICE x",
    );
    let mut kernel = Kernel::new(&DMA, &broken);
    kernel.dropped = 2;
    let said = kernel
        .run(&["--seconds", "0.1", "-o", "t.trace.zst"])
        .fails();
    // the first line says what was lost
    let why = "t.txt.zst:4:";
    assert!(
        said.contains(why) && said.contains("missing field: dma_addr"),
        "{said}"
    );
    assert!(said.contains("is kept: t.txt.zst"), "{said}");
    assert_eq!(kernel.files(), ["t.txt.zst"]);
    // the next one is kept beside it
    let first = fs::read(kernel.path("t.txt.zst")).unwrap();
    let said = kernel
        .run(&["--seconds", "0.1", "-o", "t.trace.zst"])
        .fails();
    let both = said.contains("t.2.txt.zst:4:") && said.contains("is kept: t.2.txt.zst");
    assert!(both, "{said}");
    assert_eq!(kernel.files(), ["t.2.txt.zst", "t.txt.zst"]);
    assert_eq!(fs::read(kernel.path("t.txt.zst")).unwrap(), first);
    let again = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["trace", "convert", "t.txt.zst"])
        .current_dir(kernel.directory.path())
        .output()
        .unwrap();
    let again = String::from_utf8(again.stderr).unwrap();
    assert!(again.contains(why), "{again}");
    assert!(kernel.instances().is_empty());
}

#[test]
fn text_of_a_trace_that_cannot_be_written_is_kept() {
    let kernel = Kernel::new(&DMA, &mappings(2, 1));
    let mut command = kernel.command();
    command.args(["--seconds", "0.1", "-o", "t.trace.zst"]);
    let mut child = command.spawn().unwrap();
    let instance = kernel.path(&format!("tracing/instances/ioatlas-{}", child.id()));
    assert!(until(&mut child, || instance.exists()));
    // what could be written at first cannot any more
    fs::create_dir(kernel.path("t.trace.zst")).unwrap();
    let settings = kernel.play(&mut child);
    let output = child.wait_with_output().unwrap();
    let said = Ran { output, settings }.fails();
    assert!(said.contains("is kept: t.txt.zst"), "{said}");
    assert!(said.contains("t.trace.zst: cannot write"), "{said}");
    assert_eq!(kernel.files(), ["t.trace.zst", "t.txt.zst"]);
    let text = fs::read(kernel.path("t.txt.zst")).unwrap();
    assert!(!text.is_empty());
}

/// A program of the shell's that is ours: the kernel's part of it, or one that takes no time.
fn stub(directory: &Path, name: &str, script: &str) {
    let path = directory.join(name);
    put(
        &path,
        &format!("#!/bin/sh -e\nPATH=/usr/bin:/bin\n{script}\n"),
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_printed_commands_do_the_same() {
    let text = mappings(12, 9);
    let mut kernel = Kernel::new(&DMA, &text);
    kernel.dropped = 7;
    let print = [
        "--print",
        "--device",
        "01:00.0",
        "--seconds",
        "0.5",
        "--size",
        "640",
    ];
    let printed = kernel.run(&[&print[..], &["-o", "it's a.trace"]].concat());
    assert_eq!(
        (printed.output.status.code(), printed.err()),
        (Some(0), String::new())
    );
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
    let script = printed.out();
    assert!(
        script.lines().count() <= 16 && script.starts_with("set -e"),
        "{script}"
    );

    // the kernel, as programs
    let (template, bin) = (kernel.path("template"), kernel.path("bin"));
    fs::create_dir(&template).unwrap();
    kernel.make_files(&template);
    // some of it is there only when tracing is off
    let late = text.len() - text.lines().last().unwrap().len() - 1;
    put(&template.join("trace_pipe"), &text[..late]);
    put(&kernel.path("late"), &text[late..]);
    let stats = template.join("per_cpu/cpu0/stats");
    let overrun = fs::read_to_string(&stats).unwrap();
    put(
        &stats,
        &overrun.replace("commit overrun: 0", "commit overrun: 4"),
    );
    stub(&bin, "mkdir", "mkdir \"$1\"; cp -r template/. \"$1\"");
    stub(&bin, "rmdir", "mv \"$1\" settings");
    // what was read is gone, and nothing more is an error
    stub(
        &bin,
        "dd",
        "pipe=${1#if=}; cat \"$pipe\"; : >\"$pipe\"
         if [ \"$(cat \"${pipe%/*}/tracing_on\")\" = 0 ]; then cat late; : >late; fi
         echo \"dd: error reading '$pipe': Resource temporarily unavailable\" >&2; exit 1",
    );
    let program = Path::new(env!("CARGO_BIN_EXE_ioatlas"));
    let path = [&bin, program.parent().unwrap()].map(|path| path.to_str().unwrap());
    let run = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        shell.current_dir(kernel.directory.path());
        shell.env("PATH", format!("{}:/usr/bin:/bin", path.join(":")));
        shell.output().unwrap()
    };
    let ran = run();
    assert!(ran.status.success(), "{script}\n{ran:?}");
    assert!(ran.stderr.is_empty(), "{ran:?}");
    assert_eq!(counts(&kernel.path("it's a.trace")), (12, 9));
    let trace = Trace::open(&kernel.path("it's a.trace")).unwrap();
    assert_eq!(trace.lost_events(), 7 + 4);
    // as in a capture, nothing is assumed
    let accesses = |event: &Event| matches!(event, Event::Access { .. });
    assert!(!trace.events().iter().any(accesses));
    assert!(kernel.instances().is_empty());
    // text that is there is not written over
    let kept = fs::read(kernel.path("it's a.txt")).unwrap();
    assert!(!run().status.success());
    assert_eq!(fs::read(kernel.path("it's a.txt")).unwrap(), kept);
    assert!(kernel.instances().is_empty());
    let settings = contents(&kernel.path("settings"));
    for (file, wanted) in [
        ("tracing_on", "0"),
        ("buffer_size_kb", "640"),
        ("trace_clock", "mono"),
        ("options/overwrite", "0"),
        ("events/dma/enable", "1"),
        ("events/dma/dma_alloc/filter", r#"device=="0000:01:00.0""#),
        ("events/enable", "0"),
    ] {
        assert_eq!(settings[file].trim(), wanted, "{file}");
    }
}
