// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel that the tests play, and the program under it.

use ioatlas_iotlb::{Event, Trace};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What takes longer hangs.
const SOON: Duration = Duration::from_secs(120);

pub const DMA: [&str; 3] = ["dma/dma_alloc", "dma/dma_map_page", "dma/dma_unmap_page"];
pub const IOMMU: [&str; 3] = ["iommu/io_page_fault", "iommu/map", "iommu/unmap"];

/// The kernel that is played.
pub struct Kernel {
    pub directory: TempDir,
    /// Events as `system/name`.
    events: Vec<&'static str>,
    /// What is to be read from `trace_pipe`.
    text: String,
    /// Events that the third CPU had no room for.
    pub dropped: u64,
    /// A file that instances do not have.
    pub missing: Option<&'static str>,
    /// What the program gets once all text is in the pipe.
    pub signal: Option<Signal>,
}

/// What the program said and did.
pub struct Ran {
    pub output: Output,
    /// What stood in the files of its instance when its events were switched off.
    pub settings: Option<BTreeMap<String, String>>,
}

impl Kernel {
    pub fn new(events: &[&'static str], text: &str) -> Self {
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

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A file of the machine, outside tracefs; it is looked for from here.
    pub fn put_of_machine(&self, file: &str, content: &str) {
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
    pub fn make_files(&self, instance: &Path) {
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

    pub fn command(&self) -> Command {
        self.under(&[])
    }

    /// The same, run by a command that takes the program's name and arguments after its own.
    pub fn under(&self, others: &[&str]) -> Command {
        let ours = [env!("CARGO_BIN_EXE_ioatlas"), "capture", "--tracefs"];
        let words = [others, &ours].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(self.path("tracing"));
        command.current_dir(self.directory.path());
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program, in the directory that holds ours.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.finish(self.command().args(arguments).spawn().unwrap())
    }

    /// Plays the kernel of a program that was started.
    pub fn finish(&self, mut child: Child) -> Ran {
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
        let off = instance.join("events/enable");
        let is_off = || fs::read_to_string(&off).unwrap() == "0";
        let all = until(child, || {
            pour(&mut writer, &mut left);
            left.is_empty() || is_off()
        });
        if let Some(signal) = self.signal.filter(|_| all) {
            kill_process(Pid::from_child(child), signal).unwrap();
        }
        let off = until(child, is_off);
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
    pub fn instances(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("tracing/instances")).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    /// The files beside the one that stands in for tracefs.
    pub fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.directory.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "tracing").collect();
        names.sort();
        names
    }
}

impl Ran {
    pub fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    pub fn err(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert!(self.output.status.success(), "{}", self.err());
        serde_json::from_slice(&self.output.stdout).unwrap()
    }

    /// Fails with status 1; returns what it says.
    #[track_caller]
    pub fn fails(&self) -> String {
        assert_eq!(self.output.status.code(), Some(1), "{}", self.err());
        self.err()
    }

    #[track_caller]
    pub fn setting(&self, file: &str) -> &str {
        let settings = self.settings.as_ref().expect("events were switched off");
        settings[file].trim()
    }
}

pub fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Waits for something, or for the end of the program; says whether it came.
pub fn until(child: &mut Child, mut what: impl FnMut() -> bool) -> bool {
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
pub fn contents(directory: &Path) -> BTreeMap<String, String> {
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
pub fn mappings(maps: u64, unmaps: u64) -> String {
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
pub fn counts(path: &Path) -> (u64, u64) {
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
