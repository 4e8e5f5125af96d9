// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel's tracing, by its files: which events there are, and an instance to record them in.
//!
//! An instance is a directory: `mkdir` makes it with its files, its buffers and all events off;
//! `rmdir` takes all of that away. A program that has one of its files open keeps it (EBUSY).
//!
//! In tests an ordinary directory stands in for tracefs, with a thread that makes and removes the
//! files of an instance as the kernel would. All that this asks of the code is [`patiently`].

use super::CaptureError;
use super::arguments::Device;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process, thread};

/// Where tracefs is: since Linux 4.1, and before.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// How the names of our instances begin; the number of the process follows.
const PREFIX: &str = "ioatlas-";

/// How long [`patiently`] tries.
const PATIENCE: Duration = Duration::from_secs(30);

/// A tracefs that is mounted.
pub(super) struct Tracefs {
    root: PathBuf,
}

/// Which events to record, and how.
pub(super) struct Plan {
    /// Their names, for people.
    pub events: &'static str,
    /// Files below `events` that switch them on.
    switches: Vec<String>,
    /// The filter, and the files below `events` that take it.
    filters: Option<(String, Vec<String>)>,
    /// What a person should know of the choice.
    pub remarks: Vec<String>,
}

/// An instance of a capture that no longer runs.
pub(super) enum Left {
    Removed(PathBuf),
    Stays(PathBuf, io::Error),
}

impl Tracefs {
    /// The one at this place, or else where it usually is.
    pub fn find(asked: Option<&Path>) -> Result<Self, CaptureError> {
        let places: Vec<PathBuf> = match asked {
            Some(place) => vec![place.into()],
            None => PLACES.map(PathBuf::from).into(),
        };
        for root in &places {
            match fs::metadata(root.join("instances")) {
                Ok(found) if found.is_dir() => return Ok(Self { root: root.clone() }),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(CaptureError::of(root, "look into it", error));
                }
                _ => {}
            }
        }
        let shown: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        Err(CaptureError::NotMounted {
            places: shown.join(" or "),
        })
    }

    /// Which events tell of mappings of these devices, or of all if there are none.
    pub fn plan(&self, devices: &[Device]) -> Result<Plan, CaptureError> {
        let events = self.root.join("events");
        let has = |file: &str| events.join(file).exists();
        if has("dma/enable") {
            let mut plan = match devices {
                [] => Plan {
                    events: "dma:*",
                    switches: vec!["dma/enable".into()],
                    filters: None,
                    remarks: Vec::new(),
                },
                devices => self.filtered(devices)?,
            };
            plan.remarks.extend(self.gaps());
            return Ok(plan);
        }
        let switches = ["iommu/map/enable", "iommu/unmap/enable"];
        let names = "iommu:map and iommu:unmap";
        if !switches.iter().all(|file| has(file)) {
            return Err(CaptureError::NoEvents {
                path: events,
                kernel: self.kernel(),
            });
        }
        if !devices.is_empty() {
            return Err(CaptureError::NoDeviceField { events: names });
        }
        Ok(Plan {
            events: names,
            switches: switches.map(String::from).into(),
            filters: None,
            remarks: vec![format!(
                "no events dma:* (Linux 6.12 and later): recording {names}, which do not say of \
                 which device"
            )],
        })
    }

    /// What `dma:*` events leave out without a count.
    fn gaps(&self) -> Vec<String> {
        let mut gaps = Vec::new();
        // it came with the bound on what an event has of a list
        let format = fs::read_to_string(self.root.join("events/dma/dma_map_sg/format"));
        if format.is_ok_and(|format| !has_field(&format, "full_nents")) {
            gaps.push(
                "this kernel drops, uncounted, what is mapped as a list of more than some 200 \
                 pieces: dma_map_sg has no field `full_nents`"
                    .into(),
            );
        }
        if version(&self.kernel()) >= Some((6, 16)) {
            gaps.push(
                "since Linux 6.16 nvme and some others tell dma:* nothing of requests of several \
                 pieces where an IOMMU translates (dma_iova_link); iommu:map has them"
                    .into(),
            );
        }
        gaps
    }

    /// The kernel's release.
    fn kernel(&self) -> String {
        let release = of_machine(&self.root, "proc/sys/kernel/osrelease");
        release.unwrap_or_default().trim().into()
    }

    /// The `dma:*` events that name a device, these only.
    fn filtered(&self, devices: &[Device]) -> Result<Plan, CaptureError> {
        let directory = self.root.join("events/dma");
        let failed = |source| CaptureError::of(&directory, "list it", source);
        let (mut named, mut nameless) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // files of the whole system stand beside the events
            if let Ok(format) = fs::read_to_string(entry.path().join("format")) {
                match has_field(&format, "device") {
                    true => named.push(name),
                    false => nameless.push(name),
                }
            }
        }
        if named.is_empty() {
            return Err(CaptureError::NoDeviceField { events: "dma:*" });
        }
        named.sort();
        nameless.sort();
        let file = |kind: &str| named.iter().map(|n| format!("dma/{n}/{kind}")).collect();
        let left_out = |name: String| format!("left out: dma:{name}, which names no device");
        Ok(Plan {
            events: "dma:*",
            switches: file("enable"),
            filters: Some((Device::filter(devices), file("filter"))),
            remarks: nameless.into_iter().map(left_out).collect(),
        })
    }

    /// Removes the instances of captures that were killed.
    pub fn clear_up(&self) -> Vec<Left> {
        let Ok(entries) = fs::read_dir(self.root.join("instances")) else {
            return Vec::new();
        };
        let dead = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
            // one of our number is not ours: we have none yet
            number.is_some_and(|number| {
                number == process::id() || !Path::new(&format!("/proc/{number}")).exists()
            })
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let remove = |path: PathBuf| match fs::remove_dir(&path) {
            Ok(()) => Left::Removed(path),
            // it runs in another container, or another program looks into it
            Err(error) => Left::Stays(path, error),
        };
        paths.filter(dead).map(remove).collect()
    }

    /// An instance of our own.
    pub fn instance(&self) -> Result<Instance, CaptureError> {
        let name = format!("{PREFIX}{}", process::id());
        let path = self.root.join("instances").join(name);
        fs::create_dir(&path).map_err(|source| CaptureError::of(&path, "make it", source))?;
        let instance = Instance {
            path,
            online: online(&self.root),
            removed: false,
        };
        let pipe = instance.pipe_path();
        patiently(&[ErrorKind::NotFound], || fs::metadata(&pipe))
            .map_err(|source| CaptureError::of(&pipe, "find it", source))?;
        Ok(instance)
    }
}

/// A file of the machine whose tracefs is at `root`. A directory that stands in for tracefs in
/// tests has it in itself or beside itself.
fn of_machine(root: &Path, file: &str) -> Option<String> {
    let near = root.ancestors().map(|folder| folder.join(file));
    let mut places = near.chain([Path::new("/").join(file)]);
    places.find_map(|place| fs::read_to_string(place).ok())
}

/// The numbers of the CPUs that run, if they are known.
pub(super) fn online(root: &Path) -> Option<Vec<u32>> {
    list(&of_machine(root, "sys/devices/system/cpu/online")?)
}

/// The numbers of `0-2,5`.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // Linux knows of none beyond
        if first > last || last >= 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The first two numbers of `6.12.8-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether the `format` of an event has the field.
fn has_field(format: &str, name: &str) -> bool {
    let field = |line: &str| {
        let declared = line.trim().strip_prefix("field:")?.split(';').next()?;
        declared.rsplit(' ').next().map(|declared| declared == name)
    };
    format.lines().any(|line| field(line) == Some(true))
}

/// Tries again what fails in one of these ways, for a while.
///
/// Of a real tracefs, the files of an instance are there when `mkdir` returns, and `rmdir` fails
/// only while a program has one of them open. What stands in for it in tests needs a moment.
fn patiently<T>(passing: &[ErrorKind], mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match act() {
            Err(error) if passing.contains(&error.kind()) && begun.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// An instance that is ours. Dropped, it is removed, whatever happened.
pub(super) struct Instance {
    path: PathBuf,
    /// The CPUs that run, if they are known.
    online: Option<Vec<u32>>,
    removed: bool,
}

impl Instance {
    /// Writes a setting.
    pub fn set(&self, file: &str, value: &str) -> Result<(), CaptureError> {
        let path = self.path.join(file);
        // not made where it is missing
        let open = OpenOptions::new().write(true).truncate(true).open(&path);
        open.and_then(|mut file| file.write_all(value.as_bytes()))
            .map_err(|source| CaptureError::of(&path, format!("write `{value}`"), source))
    }

    /// Takes the clock that all CPUs, and other logs, share, if the kernel has it.
    pub fn set_clock(&self) -> Result<(), CaptureError> {
        let path = self.path.join("trace_clock");
        let clocks = fs::read_to_string(&path)
            .map_err(|source| CaptureError::of(&path, "read it", source))?;
        let mut names = clocks.split_whitespace();
        match names.any(|name| name.trim_matches(['[', ']']) == "mono") {
            true => self.set("trace_clock", "mono"),
            false => Ok(()),
        }
    }

    /// Switches the events on.
    pub fn enable(&self, plan: &Plan) -> Result<(), CaptureError> {
        if let Some((filter, files)) = &plan.filters {
            for file in files {
                self.set(&format!("events/{file}"), filter)?;
            }
        }
        for switch in &plan.switches {
            self.set(&format!("events/{switch}"), "1")?;
        }
        Ok(())
    }

    /// The text of events, of which each is read once; reads do not wait.
    pub fn pipe(&self) -> Result<File, CaptureError> {
        let path = self.pipe_path();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(pipe) => Ok(pipe.into()),
            Err(error) => Err(CaptureError::of(&path, "open it", error.into())),
        }
    }

    pub fn pipe_path(&self) -> PathBuf {
        self.path.join("trace_pipe")
    }

    /// How many CPUs record. Others of the machine, or that it could have, have a directory as
    /// well, and no buffer.
    pub fn recording(&self, cpus: &[u32]) -> usize {
        let Some(online) = &self.online else {
            return cpus.len();
        };
        let running = cpus.iter().filter(|cpu| online.contains(cpu)).count();
        match running {
            0 => cpus.len(),
            running => running,
        }
    }

    /// The numbers of the CPUs that there are or could be.
    pub fn cpus(&self) -> Result<Vec<u32>, CaptureError> {
        let path = self.path.join("per_cpu");
        let failed = |source| CaptureError::of(&path, "list it", source);
        let mut cpus = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            cpus.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Events of this CPU that were never in the text: there was no room for them, or they came
    /// while another was being written.
    pub fn lost(&self, cpu: u32) -> Result<u64, CaptureError> {
        let path = self.path.join(format!("per_cpu/cpu{cpu}/stats"));
        let text = fs::read_to_string(&path)
            .map_err(|source| CaptureError::of(&path, "read it", source))?;
        Ok(lost(&text))
    }

    /// Numbers and names of tasks that the kernel saved, of all instances; nothing where it does
    /// not tell.
    pub fn tasks(&self) -> String {
        let root = self.path.parent().and_then(Path::parent);
        let saved = root.map(|root| fs::read(root.join("saved_cmdlines")));
        let saved = saved.and_then(Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&saved).into_owned()
    }

    /// Removes it.
    pub fn remove(mut self) -> Result<(), CaptureError> {
        self.removed = true; // or tried to, which is enough
        self.take_away().map_err(|source| CaptureError::StillThere {
            path: self.path.clone(),
            source,
        })
    }

    fn take_away(&self) -> io::Result<()> {
        // `rmdir` would do it, too; this holds even where it fails
        let _ = self.set("events/enable", "0");
        let passing = [ErrorKind::ResourceBusy, ErrorKind::DirectoryNotEmpty];
        match patiently(&passing, || fs::remove_dir(&self.path)) {
            // another process was faster
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        if let Err(source) = self.take_away() {
            let path = self.path.clone();
            super::say(&CaptureError::StillThere { path, source }.to_string());
        }
    }
}

/// What the statistics of a CPU's buffer say of loss. `overrun` is not in the sum: of what is
/// overwritten the text tells itself.
fn lost(stats: &str) -> u64 {
    let count = |line: &str| {
        let (name, count) = line.split_once(':')?;
        let lost = ["dropped events", "commit overrun"].contains(&name);
        lost.then(|| count.trim().parse::<u64>().ok()).flatten()
    };
    stats.lines().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let common = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n";
        let device = "\tfield:__data_loc char[] device;\toffset:8;\tsize:4;\tsigned:0;\n";
        let has_device = |format: &str| has_field(format, "device");
        assert!(has_device(&format!("name: x\nformat:\n{common}\n{device}")));
        let others = ["device_name", "phys_addr", "*device"].map(|n| device.replace("device", n));
        let print = "print fmt: \"%s device\", __get_str(device)\n";
        assert!(!has_device(&format!("{common}{}{print}", others.concat())));
    }

    #[test]
    fn running_cpus_are_a_list_of_ranges() {
        assert_eq!(list("0-2,5,8-9\n"), Some(vec![0, 1, 2, 5, 8, 9]));
        for bad in ["", "x", "3-1", "0-", "0-4294967295"] {
            assert_eq!(list(bad), None, "{bad}");
        }
    }

    #[test]
    fn loss_is_what_the_text_does_not_tell() {
        let stats = "entries: 9\noverrun: 5\ncommit overrun: 2\nbytes: 60\noldest event ts: 3.1\n\
                     now ts: 4.5\ndropped events: 40\nread events: 7\n";
        assert_eq!((lost(stats), lost("")), (42, 0));
    }
}
