// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The two back ends as processes: started on their CPUs, and ended whatever happens.
//!
//! They are started under `setpriv --pdeathsig`, so that the kernel ends them if we are killed.
//! testpmd places its own threads (`-l`); those of `vhost-net` are placed here in the same way:
//! what forwards has one CPU, everything else the generator's.

use super::VhostCompareError;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Translations that ours holds, at most: 100,000 scattered pages in each direction. (By default,
/// it holds up to 65,536.)
const RUNS: &str = "262144";
/// How long a back end may take until it listens.
const START: Duration = Duration::from_secs(120);
/// How long it may take to end, before it is killed.
const END: Duration = Duration::from_secs(5);
/// Time between two looks at it.
const PAUSE: Duration = Duration::from_millis(10);

/// Which of the two back ends compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Whose {
    Testpmd,
    Ours,
}

impl Whose {
    pub fn name(self) -> &'static str {
        match self {
            Whose::Testpmd => "testpmd",
            Whose::Ours => "vhost-net",
        }
    }
}

/// One CPU for the generator and whatever only controls, one for the thread that forwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpus {
    pub generator: usize,
    pub forwarder: usize,
    before: CpuSet,
}

impl Cpus {
    /// The first two that we may use.
    pub fn find() -> Result<Self, VhostCompareError> {
        let before = sched_getaffinity(None).map_err(|e| failed("CPUs", e.into()))?;
        let mut ours = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu));
        match (ours.next(), ours.next()) {
            (Some(generator), Some(forwarder)) => Ok(Cpus {
                generator,
                forwarder,
                before,
            }),
            _ => Err(VhostCompareError::Cpus),
        }
    }

    /// Keeps this thread on the generator's, as long as what is returned lives.
    pub fn stay(&self) -> Result<Stay, VhostCompareError> {
        place(None, self.generator).map_err(|e| failed("the generator's CPU", e))?;
        Ok(Stay(self.before))
    }
}

pub(super) struct Stay(CpuSet);

impl Drop for Stay {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

fn place(thread: Option<Pid>, cpu: usize) -> io::Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu);
    Ok(sched_setaffinity(thread, &one)?)
}

fn failed(what: &'static str, source: io::Error) -> VhostCompareError {
    VhostCompareError::System { what, source }
}

/// A back end that listens.
pub(super) struct BackEnd {
    child: Child,
    pub socket: PathBuf,
    log: PathBuf,
    forwarder: Option<PathBuf>,
}

impl BackEnd {
    /// Starts one in `directory`, with or without what an IOMMU needs; its output goes to `log`.
    pub fn start(
        whose: Whose,
        testpmd: &Path,
        iommu: bool,
        cpus: &Cpus,
        directory: &Path,
        log: &Path,
    ) -> Result<Self, VhostCompareError> {
        let socket = directory.join("socket");
        let _ = fs::remove_file(&socket);
        let output = File::create(log).map_err(|e| failed("a log", e))?;
        let errors = output.try_clone().map_err(|e| failed("a log", e))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        match whose {
            Whose::Testpmd => {
                // it makes a directory at each start, and removes none
                command.env("RUNTIME_DIRECTORY", directory);
                command
                    .arg(testpmd)
                    .args(testpmd_options(&socket, iommu, cpus));
            }
            Whose::Ours => {
                let ours = std::env::current_exe().map_err(|e| failed("this program", e))?;
                command
                    .arg(ours)
                    .args(["ioatlas", "vhost-net", "--mode", "macswap"]);
                command
                    .args(["--wakeup", "poll", "--iotlb-runs", RUNS, "--socket-path"])
                    .arg(&socket);
            }
        }
        // Its end is the end of testpmd's input.
        command.stdin(Stdio::piped()).stdout(output).stderr(errors);
        let child = command
            .spawn()
            .map_err(|e| failed("setpriv (of util-linux)", e))?;
        let mut back_end = BackEnd {
            child,
            socket,
            log: log.into(),
            forwarder: None,
        };
        back_end.await_socket(whose)?;
        back_end
            .place(whose, cpus)
            .map_err(|e| failed("a back end's CPUs", e))?;
        Ok(back_end)
    }

    fn await_socket(&mut self, whose: Whose) -> Result<(), VhostCompareError> {
        let start = Instant::now();
        let died = |status: String, log: &Path| VhostCompareError::Died {
            whose: whose.name(),
            status,
            log: log.into(),
            said: last_line(log),
        };
        while !self.socket.exists() {
            match self.child.try_wait() {
                Ok(Some(status)) => return Err(died(status.to_string(), &self.log)),
                Ok(None) if start.elapsed() < START => sleep(PAUSE),
                Ok(None) => return Err(died(format!("no socket after {START:?}"), &self.log)),
                Err(e) => return Err(failed("waiting for a back end", e)),
            }
        }
        Ok(())
    }

    /// Finds the thread that forwards, and places ours.
    fn place(&mut self, whose: Whose, cpus: &Cpus) -> io::Result<()> {
        let tasks = format!("/proc/{}/task", self.child.id());
        for task in fs::read_dir(tasks)? {
            let task = task?;
            let forwards = match fs::read_to_string(task.path().join("comm"))?.trim_end() {
                name if name.starts_with("vhost-queues") => true,
                name => name.contains("worker"),
            };
            if forwards {
                self.forwarder = Some(task.path().join("schedstat"));
            }
            if whose == Whose::Ours {
                let number = task.file_name().to_string_lossy().parse().ok();
                let thread = number.and_then(Pid::from_raw);
                let cpu = if forwards {
                    cpus.forwarder
                } else {
                    cpus.generator
                };
                place(thread, cpu)?;
            }
        }
        Ok(())
    }

    /// CPU time that the forwarding thread has had, where the kernel tells.
    pub fn forwarded(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.forwarder.as_ref()?).ok()?;
        let ns = text.split(' ').next()?.parse().ok()?;
        Some(Duration::from_nanos(ns))
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let start = Instant::now();
        while start.elapsed() < END {
            match self.child.try_wait() {
                Ok(None) => sleep(PAUSE),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No hugepages, no devices, one virtual one; MAC swap as ours.
fn testpmd_options(socket: &Path, iommu: bool, cpus: &Cpus) -> Vec<String> {
    let (main, worker) = (cpus.generator, cpus.forwarder);
    let socket = socket.display();
    let (support, us) = (u8::from(iommu), std::process::id());
    let options = format!(
        "--no-huge --no-shconf -m 256 --lcores 0@{main},1@{worker} --no-pci --no-telemetry --file-prefix ioatlas-{us} \
         --vdev net_vhost0,iface={socket},iommu-support={support},queues=1 -- --forward-mode=macswap --port-topology=loop \
         --no-flush-rx --total-num-mbufs=8192 --nb-cores=1"
    );
    options.split_whitespace().map(str::to_string).collect()
}

/// The last line that says something, for a message.
fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    ioatlas_present::printable(last.unwrap_or("it said nothing"), 200)
}

/// Whether there is such a program.
pub(super) fn is_program(name: &Path) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}
