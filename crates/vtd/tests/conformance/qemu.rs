// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One QEMU whose CPU never runs, driven by its test socket: one line a command, one line an
//! answer.
//!
//! Guest memory is a file that we map too, so tables are written by plain stores, as on a real
//! machine. QEMU ends with its [`Qemu`], and with this process: it is started under
//! `setpriv --pdeathsig`. Whatever goes wrong with the socket is an error with QEMU's last words.
//!

use ioatlas_dma::units::SourceId;
use std::{
    env,
    ffi::OsStr,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// What installs it.
pub const INSTALL: &str = "needs QEMU: ci/install-qemu.sh";
const PROGRAM: &str = "qemu-system-x86_64";
/// A machine starts within a tenth of a second; a loaded one may need longer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// One answer takes microseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Where QEMU is, if it is installed.
pub fn program() -> Option<PathBuf> {
    program_in(&env::var_os("PATH")?)
}
/// Where it is, of these directories.
pub fn program_in(directories: impl AsRef<OsStr>) -> Option<PathBuf> {
    env::split_paths(&directories)
        .map(|dir| dir.join(PROGRAM))
        .find(|path| path.is_file())
}

/// QEMU said no, or nothing.
#[derive(Debug)]
pub struct Gone {
    command: String,
    why: String,
}

impl Gone {
    /// What went wrong with `command`, where it is not QEMU itself.
    pub fn because(command: &str, why: &str) -> Self {
        Gone {
            command: command.into(),
            why: why.into(),
        }
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QEMU after `{}`: {}", self.command, self.why)
    }
}

impl std::error::Error for Gone {}

/// A running QEMU.
pub struct Qemu {
    child: Mutex<Child>,
    line: Mutex<Line>,
    memory: File,
    scratch: Scratch,
}

struct Line {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

/// Files of one QEMU, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        static MADE: Mutex<u32> = Mutex::new(0);
        let number = {
            let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            *made += 1;
            *made
        };
        let name = format!("ioatlas-qemu-{}-{number}", process::id());
        // in memory, where there is such a place: this is a machine's RAM
        let shared = Path::new("/dev/shm");
        let place = match shared.is_dir() {
            true => shared.to_path_buf(),
            false => env::temp_dir(),
        };
        let path = place.join(name);
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Firmware that halts the CPU, for when the machine's clock runs.
fn halt() -> Vec<u8> {
    let mut image = vec![0xff; 64 << 10];
    // cli; hlt; and back to hlt
    image[0xfff0..0xfff4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    image
}

impl Qemu {
    /// Starts a machine with `bytes` of memory and `devices`, in the words of QEMU's `-device`.
    ///
    /// # Errors
    /// It did not start.
    #[allow(
        dead_code,
        reason = "of the tests that include this file, one each calls it"
    )]
    pub fn start(bytes: u64, devices: &[&str]) -> io::Result<Self> {
        Self::start_with(bytes, devices, &[])
    }

    /// The same, with other arguments of QEMU's.
    ///
    /// # Errors
    /// It did not start.
    pub fn start_with(bytes: u64, devices: &[&str], others: &[&str]) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let (socket, ram, words) = (
            scratch.file("socket"),
            scratch.file("ram"),
            scratch.file("stderr"),
        );
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&ram)?;
        memory.set_len(bytes)?;
        fs::write(scratch.file("bios"), halt())?;
        let child = Self::command(&scratch, bytes, devices)
            .args(others)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&words)?)
            .spawn()?;
        let mut child = Reaped(Some(child));
        let to = connect(&socket, &mut child, &words)?;
        to.set_read_timeout(Some(ANSWER_LIMIT))?;
        let from = BufReader::new(to.try_clone()?);
        let line = Line { to, from };
        let qemu = Qemu {
            child: Mutex::new(child.0.take().expect("taken once")),
            line: Mutex::new(line),
            memory,
            scratch,
        };
        // it listens before it looks at its devices
        qemu.ask("inl 0xcf8").map_err(io::Error::other)?;
        // both of us hold it: if we are killed, no 2 GiB are left
        fs::remove_file(&ram)?;
        Ok(qemu)
    }

    fn command(scratch: &Scratch, bytes: u64, devices: &[&str]) -> Command {
        let place = |name| scratch.file(name).display().to_string();
        let (ram, socket, monitor) = (place("ram"), place("socket"), place("monitor"));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", PROGRAM]);
        command.args(["-machine", "q35,memory-backend=mem"]);
        command.args(["-accel", "tcg", "-S"]);
        command.args(["-m", &format!("{}M", bytes >> 20)]);
        let memory = format!("memory-backend-file,id=mem,size={bytes},share=on,mem-path={ram}");
        command.args(["-object", &memory, "-bios", &place("bios")]);
        command.args(["-display", "none", "-nodefaults", "-no-user-config"]);
        command.args(["-qtest-log", "none"]);
        command.args(["-qtest", &format!("unix:{socket},server=on,wait=off")]);
        command.args(["-qmp", &format!("unix:{monitor},server=on,wait=off")]);
        for device in devices {
            command.args(["-device", device]);
        }
        command
    }

    /// The machine's memory, to be mapped.
    pub fn memory(&self) -> &File {
        &self.memory
    }
    /// Its process.
    pub fn id(&self) -> u32 {
        self.child().id()
    }
    /// The directory of its files.
    pub fn files(&self) -> &Path {
        &self.scratch.0
    }
    /// Ends it, as if it had died.
    pub fn kill(&self) {
        let _ = self.child().kill();
    }
    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One command; its answer without the `OK`.
    ///
    /// # Errors
    /// QEMU refused it, or is gone.
    pub fn ask(&self, command: &str) -> Result<String, Gone> {
        let mut line = self.lock();
        self.say(&mut line, &format!("{command}\n"))?;
        self.hear(&mut line, command)
    }

    /// One command of the monitor without arguments: `cont` lets the machine's clock run, `stop`
    /// stops it.
    ///
    /// # Errors
    /// QEMU refused it, or is gone.
    pub fn monitor(&self, command: &str) -> Result<(), Gone> {
        let gone = |error: io::Error| self.gone(command, error.to_string());
        let mut to = UnixStream::connect(self.scratch.file("monitor")).map_err(gone)?;
        to.set_read_timeout(Some(ANSWER_LIMIT)).map_err(gone)?;
        let mut from = BufReader::new(to.try_clone().map_err(gone)?);
        for command in ["qmp_capabilities", command] {
            let said = writeln!(to, "{{\"execute\": \"{command}\"}}");
            said.map_err(gone)?;
            // a greeting and events come in between
            let mut answer = String::new();
            while !answer.contains("\"return\"") {
                answer.clear();
                let bytes = from.read_line(&mut answer).map_err(gone)?;
                if bytes == 0 || answer.contains("\"error\"") {
                    return Err(self.gone(command, answer.trim_end().into()));
                }
            }
        }
        Ok(())
    }

    /// Several commands, one after the other, in one go; their answers are dropped.
    ///
    /// # Errors
    /// QEMU refused one, or is gone.
    pub fn ask_all(&self, commands: &[String]) -> Result<(), Gone> {
        let mut line = self.lock();
        self.say(&mut line, &(commands.join("\n") + "\n"))?;
        for command in commands {
            self.hear(&mut line, command)?;
        }
        Ok(())
    }

    fn say(&self, line: &mut Line, text: &str) -> Result<(), Gone> {
        let said = line.to.write_all(text.as_bytes());
        said.map_err(|e| self.gone(text.trim_end(), e.to_string()))
    }

    fn hear(&self, line: &mut Line, command: &str) -> Result<String, Gone> {
        let mut answer = String::new();
        loop {
            answer.clear();
            match line.from.read_line(&mut answer) {
                Ok(0) => return Err(self.gone(command, "end of file".into())),
                // of interrupt pins, which were not asked for
                Ok(_) if answer.starts_with("IRQ") => {}
                Ok(_) => break,
                Err(e) => return Err(self.gone(command, e.to_string())),
            }
        }
        match answer.trim_end().strip_prefix("OK") {
            Some(rest) => Ok(rest.trim_start().to_string()),
            None => Err(self.gone(command, answer.trim_end().to_string())),
        }
    }

    fn gone(&self, command: &str, why: String) -> Gone {
        let words = self.last_words();
        let last = if words.is_empty() { "none" } else { &words };
        Gone {
            command: command.into(),
            why: format!("{why}; its last words: {last}"),
        }
    }

    fn last_words(&self) -> String {
        let mut words = String::new();
        let _ = File::open(self.scratch.file("stderr"))
            .and_then(|f| f.take(4096).read_to_string(&mut words));
        words.trim_end().to_string()
    }

    fn number(&self, command: &str) -> Result<u64, Gone> {
        let answer = self.ask(command)?;
        let digits = answer.strip_prefix("0x").unwrap_or(&answer);
        u64::from_str_radix(digits, 16).map_err(|e| Gone {
            command: command.into(),
            why: format!("`{answer}`: {e}"),
        })
    }

    /// Reads 4 bytes of the physical address space, registers included.
    pub fn read32(&self, at: u64) -> Result<u32, Gone> {
        Ok(self.number(&format!("readl {at:#x}"))? as u32)
    }
    /// Reads 8 bytes.
    pub fn read64(&self, at: u64) -> Result<u64, Gone> {
        self.number(&format!("readq {at:#x}"))
    }
    /// Writes 4 bytes.
    pub fn write32(&self, at: u64, value: u32) -> Result<(), Gone> {
        self.ask(&format!("writel {at:#x} {value:#x}")).map(drop)
    }
    /// Writes 8 bytes.
    pub fn write64(&self, at: u64, value: u64) -> Result<(), Gone> {
        self.ask(&format!("writeq {at:#x} {value:#x}")).map(drop)
    }
    /// Writes 4 bytes of a device's configuration space.
    pub fn configure(&self, device: SourceId, offset: u8, value: u32) -> Result<(), Gone> {
        let address = 1u32 << 31 | u32::from(device.0) << 8 | u32::from(offset);
        self.ask(&format!("outl 0xcf8 {address:#x}"))?;
        self.ask(&format!("outl 0xcfc {value:#x}")).map(drop)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A child that does not outlive a failed start.
struct Reaped(Option<Child>);

impl Drop for Reaped {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn connect(socket: &Path, child: &mut Reaped, words: &Path) -> io::Result<UnixStream> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > START_LIMIT => return Err(error),
            Err(_) => {}
        }
        let ended = child.0.as_mut().map_or(Ok(None), Child::try_wait)?;
        if let Some(status) = ended {
            let words = fs::read_to_string(words).unwrap_or_default();
            let text = format!("QEMU ended at once ({status}): {}", words.trim_end());
            return Err(io::Error::other(text));
        }
        thread::sleep(Duration::from_micros(300));
    }
}
