// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A running guest, watched.
//!
//! QEMU's standard output is the guest's console, its standard error the log. One thread reads
//! each, so that neither pipe fills; a third waits for signals (which end the guest, not the
//! program); all speak to the one that waits, with a time limit. The log is never a file: a full
//! pipe makes QEMU wait.
//!
//! QEMU does not outlive us: it is killed when what watches it is dropped, and by the kernel
//! (`setpriv --pdeathsig`) if we are killed.

use crate::GuestError;
use crate::console::{Console, Heard, State};
use crate::qemu::QEMU;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a line that are looked at; the rest is another line.
const LINE_MOST: u64 = 1 << 16;
/// Lines of the log that are kept for a failure's report.
const TAIL_LINES: usize = 2000;

/// A QEMU that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether a signal came since the last call; the first listens. Once signals are listened to they
/// end no program any more: one that comes between two guests is to end the second.
fn was_interrupted() -> Result<bool, GuestError> {
    static HEARD: Mutex<Option<Signals>> = Mutex::new(None);
    let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *heard {
        Some(signals) => Ok(signals.pending().next().is_some()),
        none => {
            *none = Some(listen()?);
            Ok(false)
        }
    }
}

fn listen() -> Result<Signals, GuestError> {
    Signals::new(ENDING).map_err(|source| GuestError::file(Path::new("signals"), source))
}

/// What the threads tell: `T` is left of a log, `E` ends it.
enum News<T, E> {
    Console(String),
    ConsoleEnded,
    LogEnded(Result<T, E>),
    Signal,
}

/// Where and how long a guest runs.
#[derive(Debug)]
pub struct Watch<'a> {
    /// QEMU's arguments, its name not among them.
    pub arguments: Vec<OsString>,
    /// For the console's log, and the end of QEMU's.
    pub directory: &'a Path,
    /// After so long the guest is killed.
    pub limit: Duration,
    /// Whether all of QEMU's log is to be kept.
    pub keep_log: Keep,
}

/// What of QEMU's log is to be kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The end of it, if the guest fails.
    Tail,
    /// All of it, however the guest ends.
    All,
}

/// Takes QEMU's log, a line at a time; `E` is how it refuses one.
pub trait Log<E>: Send + 'static {
    /// What is left in the end.
    type Result: Send;

    /// The next line, with its end if it has one.
    ///
    /// # Errors
    ///
    /// No more lines are given then, and the guest is ended.
    fn line(&mut self, line: &[u8]) -> Result<(), E>;

    /// There are no more lines; an error fails the run.
    fn finish(self) -> Result<Self::Result, E>;
}

/// A log that says nothing of interest.
#[derive(Debug)]
pub struct Ignored;

impl<E> Log<E> for Ignored {
    type Result = ();

    fn line(&mut self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }

    fn finish(self) -> Result<(), E> {
        Ok(())
    }
}

impl Watch<'_> {
    /// Path of the console's log.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    /// Boots the guest and waits for its end. `console` hears what it says, `phase` what it does;
    /// `beside` runs once QEMU does.
    ///
    /// # Errors
    ///
    /// [`GuestError`]: QEMU cannot be run, the guest hangs or fails, or a signal comes; the log's,
    /// if it is refused; that of `beside`.
    pub fn run<L: Log<E>, E: From<GuestError> + Send + 'static>(
        self,
        console: &mut impl Console,
        log: L,
        mut phase: impl FnMut(&str),
        beside: impl FnOnce() -> Result<(), E>,
    ) -> Result<L::Result, E> {
        let begun = Instant::now();
        if was_interrupted()? {
            return Err(GuestError::Interrupted.into());
        }
        // before QEMU is there: no signal may come between
        let mut signals = listen()?;
        let mut running = self.start()?;
        let (news, told) = mpsc::channel();
        let path = self.console();
        let file = File::create(&path).map_err(|source| GuestError::file(&path, source))?;
        let mut readers = Vec::new();
        if let Some(stdout) = running.0.stdout.take() {
            let news = news.clone();
            readers.push(thread::spawn(move || read_console(stdout, file, &news)));
        }
        if let Some(stderr) = running.0.stderr.take() {
            let news = news.clone();
            let (path, keep) = (self.directory.join("qemu.log"), self.keep_log);
            readers.push(thread::spawn(move || {
                // a receiver that no longer listens has an error of its own
                let _ = news.send(News::LogEnded(read_log(stderr, log, &path, keep)));
            }));
        }
        let handle = signals.handle();
        thread::spawn(move || {
            for _ in signals.forever() {
                let _ = news.send(News::Signal);
            }
        });
        let result = beside().and_then(|()| {
            let mut state = State::default();
            let mut at = "boots".to_owned();
            phase(&at);
            let failed = |at: &str, said: &str| GuestError::Failed {
                phase: at.into(),
                said: said.into(),
                log: path.clone(),
            };
            let (mut console_open, mut log_result) = (true, None);
            while console_open || log_result.is_none() {
                let left = self.limit.saturating_sub(begun.elapsed());
                match told.recv_timeout(left) {
                    Ok(News::Console(line)) => match state.line(&line, console) {
                        Heard::Nothing => {}
                        Heard::Phase(next) => {
                            phase(&next);
                            at = next.into_owned();
                        }
                        Heard::Fail(why) => return Err(failed(&at, &why).into()),
                    },
                    Ok(News::ConsoleEnded) => console_open = false,
                    Ok(News::LogEnded(result)) => log_result = Some(result?),
                    Ok(News::Signal) => return Err(GuestError::Interrupted.into()),
                    Err(RecvTimeoutError::Timeout) => {
                        return Err(E::from(GuestError::Hangs {
                            limit: self.limit,
                            phase: at,
                            log: path.clone(),
                        }));
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            match (state.why(), log_result) {
                (None, Some(result)) if state.done => Ok(result),
                (Some(why), _) => Err(failed(&at, why).into()),
                _ => Err(failed(&at, &self.qemu_said()).into()),
            }
        });
        handle.close();
        drop(running);
        // the pipes are closed now; logs on disk are complete after this
        for reader in readers {
            let _ = reader.join();
        }
        result
    }

    fn start(&self) -> Result<Running, GuestError> {
        let started = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", QEMU])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(child) => Ok(Running(child)),
            Err(source) => Err(GuestError::tool("setpriv", source)),
        }
    }

    /// QEMU's own complaint, if it made one.
    fn qemu_said(&self) -> String {
        let log = std::fs::read_to_string(self.directory.join("qemu.log")).unwrap_or_default();
        let own = log
            .lines()
            .rfind(|line| line.starts_with("qemu-system") || line.starts_with("setpriv"));
        own.unwrap_or("QEMU ended before the guest had done its work")
            .into()
    }
}

fn read_console<T, E>(stdout: ChildStdout, mut file: File, news: &Sender<News<T, E>>) {
    let mut lines = BufReader::new(stdout);
    let mut line = Vec::new();
    while let Ok(true) = next_line(&mut lines, &mut line) {
        // the log on disk is for people; without it the run goes on
        let _ = file.write_all(&line);
        // the receiver is gone once the run has failed; the log is to be whole even so
        let _ = news.send(News::Console(String::from_utf8_lossy(&line).into_owned()));
    }
    let _ = news.send(News::ConsoleEnded);
}

fn read_log<L: Log<E>, E: From<GuestError>>(
    stderr: ChildStderr,
    mut log: L,
    path: &Path,
    keep: Keep,
) -> Result<L::Result, E> {
    let failed = |source| GuestError::file(path, source);
    let mut lines = BufReader::with_capacity(1 << 16, stderr);
    let mut tail = VecDeque::new();
    let mut whole = match keep {
        Keep::All => Some(io::BufWriter::new(File::create(path).map_err(failed)?)),
        Keep::Tail => None,
    };
    let mut line = Vec::new();
    let mut result = Ok(());
    while result.is_ok() && next_line(&mut lines, &mut line).map_err(failed)? {
        result = log.line(&line);
        match &mut whole {
            Some(file) => file.write_all(&line).map_err(failed)?,
            None => {
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line.clone());
            }
        }
    }
    match whole {
        Some(mut file) => file.flush().map_err(failed)?,
        None => std::fs::write(path, tail.make_contiguous().concat()).map_err(failed)?,
    }
    result?;
    log.finish()
}

/// Reads a line of bounded length, its end included; false at the end of the stream.
fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    io::Read::take(source, LINE_MOST).read_until(b'\n', line)?;
    Ok(!line.is_empty())
}
