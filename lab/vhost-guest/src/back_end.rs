// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The process that serves the guest's network card.

use crate::error::Error;
use crate::machine::Card;
use ioatlas_guest::GuestError;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The program that is DPDK's back end.
const TESTPMD: &str = "dpdk-testpmd";
/// How long it may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A back end that ends with this value.
#[derive(Debug)]
pub struct BackEnd {
    child: Child,
    program: String,
    output: PathBuf,
    log: PathBuf,
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ioatlas`: the program that is named, else the one beside this.
pub fn ioatlas(named: Option<&Path>) -> Result<PathBuf, Error> {
    let beside = || Some(env::current_exe().ok()?.with_file_name("ioatlas"));
    let path = named.map(PathBuf::from).or_else(beside).unwrap_or_default();
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::BackEnd {
        program: path.display().to_string(),
        detail: "there is none; build it (cargo build -p ioatlas-cli), or name it with --ioatlas"
            .into(),
    })
}

impl BackEnd {
    /// Starts `ioatlas vhost-net`; what it says is kept in `directory`, as `name.log`.
    pub fn ours(
        ioatlas: &Path,
        directory: &Path,
        name: &str,
        options: &[&str],
    ) -> Result<Self, Error> {
        // no back end outlives us, however we end
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(ioatlas);
        command.args(["vhost-net", "--json", "--replace", "--socket-path"]);
        command.arg(socket(directory)).args(options);
        let program = ioatlas.display().to_string();
        Self::start(&mut command, program, directory, name)
    }

    /// Starts DPDK's testpmd, which polls as long as it lives, on all CPUs that we may use.
    pub fn testpmd(directory: &Path, card: Card, forward: &str) -> Result<Self, Error> {
        let socket = socket(directory);
        let _ = std::fs::remove_file(&socket);
        let cpus = cpus().map_err(Error::io("CPUs that may be used"))?;
        let support = u8::from(card.unit().is_some());
        let (socket, us) = (socket.display(), std::process::id());
        let options = format!(
            "--no-huge --no-shconf -m 256 --lcores 0@({cpus}),1@({cpus}) --no-pci --no-telemetry --file-prefix ioatlas-{us} \
             --vdev net_vhost0,iface={socket},iommu-support={support},queues=1 -- --forward-mode={forward} --port-topology=loop \
             --no-flush-rx --total-num-mbufs=8192 --nb-cores=1"
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", TESTPMD]);
        command.args(options.split_whitespace());
        // it makes a directory at each start, and removes none
        command.env("RUNTIME_DIRECTORY", directory);
        let program = format!("{TESTPMD} (ci/install-dpdk.sh installs it)");
        Self::start(&mut command, program, directory, "back-end")
    }

    fn start(
        command: &mut Command,
        program: String,
        directory: &Path,
        name: &str,
    ) -> Result<Self, Error> {
        let log = directory.join(format!("{name}.log"));
        let create = |path: &Path| File::create(path).map_err(|why| Error::file(path, why));
        let output = directory.join(format!("{name}.out"));
        let child = command
            // its end is the end of testpmd
            .stdin(Stdio::piped())
            .stdout(create(&output)?)
            .stderr(create(&log)?);
        let tool = |source| GuestError::tool("setpriv", source);
        let child = child.spawn().map_err(tool)?;
        let mut started = Self {
            child,
            program,
            output,
            log,
        };
        started.wait_for(&socket(directory))?;
        Ok(started)
    }

    fn wait_for(&mut self, socket: &Path) -> Result<(), Error> {
        let begun = Instant::now();
        while !socket.exists() {
            let ended = self.child.try_wait().is_ok_and(|ended| ended.is_some());
            if ended || begun.elapsed() > PATIENCE {
                return Err(self.failed("it does not listen"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn failed(&self, detail: &str) -> Error {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = said.trim_end().lines().last().unwrap_or_default();
        Error::BackEnd {
            program: self.program.clone(),
            detail: format!("{detail}: {last}"),
        }
    }

    /// Ends it by a signal, and waits.
    fn end(&mut self) -> Result<(), Error> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).map_err(|why| Error::io(&self.program)(why.into()))?;
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.failed(&status.to_string())),
                Ok(None) => return Err(self.failed("it does not end")),
                Err(why) => return Err(Error::io(&self.program)(why)),
            }
        }
    }

    /// Ends it; returns what it has counted.
    pub fn statistics(mut self) -> Result<Value, Error> {
        self.end()?;
        let said = std::fs::read_to_string(&self.output);
        let said = said.map_err(|why| Error::file(&self.output, why))?;
        serde_json::from_str(&said).map_err(|error| self.failed(&format!("no statistics: {error}")))
    }
}

/// The CPUs that we may use, as the kernel writes them: "0-1".
fn cpus() -> io::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let none = || io::Error::other("the kernel does not say");
    Ok(line.ok_or_else(none)?.trim().to_owned())
}

/// Where the front end connects.
pub fn socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}
