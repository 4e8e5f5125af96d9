// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Drives DPDK's testpmd in the guest, by its console.
//!
//! It has two ports: the card, and files of frames (`net_pcap`). First it forwards between them:
//! frames of all lengths, each of which tells which it is, from a file to the card, and what the
//! back end sends back into another file, which is compared. Then it makes frames of its own for
//! the card, as fast as they are taken (`flowgen`), for as long as the rate is taken; after that it
//! only receives what is under way.
//!
//! Its buffers are used in turn (no cache for each core): when [`BUFFERS`] frames came, all its
//! memory has been used.

use crate::arguments::{Drive, Pages};
use crate::capture;
use crate::pattern;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Frames that are compared.
const FRAMES: u64 = 5_000;
/// Shortest and longest of them.
const LENGTHS: (u64, u64) = (60, 1514);
/// Buffers that testpmd has in all.
const BUFFERS: u64 = 2048;
/// MiB of its memory: the buffers take 4.5, the rest is its own.
const MEMORY_MIB: u32 = 64;
/// Lines of what it said that are told if it fails.
const TOLD: usize = 40;
/// Microseconds between two tries to send.
const RETRY_US: u64 = 100;
/// Between two looks at its counts.
const PAUSE: Duration = Duration::from_millis(100);

/// Frames that the card's port has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    received: u64,
    sent: u64,
}

/// Does it all; tells what came of it in lines for the program that watches.
pub fn run(drive: &Drive) -> io::Result<()> {
    let path = |name: &str| std::env::temp_dir().join(name);
    let (out, back) = (path("out.pcap"), path("back.pcap"));
    capture::write(
        &mut BufWriter::new(File::create(&out)?),
        (0..FRAMES).map(frame),
    )?;
    let patience = Duration::from_secs(drive.patience.into());
    let mut testpmd = Testpmd::start(drive, &out, &back)?;
    let tries = patience.as_micros() as u64 / RETRY_US;
    testpmd.tell(&format!("set burst tx delay {RETRY_US} retry {tries}"))?;
    testpmd.tell("set fwd io retry")?;
    testpmd.tell("start")?;
    testpmd.until(|now| now.received >= FRAMES)?;
    testpmd.tell("stop")?;

    testpmd.tell("set portlist 0")?;
    testpmd.tell("set fwd flowgen")?;
    testpmd.tell("start")?;
    let before = testpmd.counts()?;
    // both directions take from the same buffers
    testpmd.until(|now| now.received >= before.received + BUFFERS)?;
    let (before, begun) = (testpmd.counts()?, Instant::now());
    thread::sleep(Duration::from_secs(drive.seconds.into()));
    let (after, took) = (testpmd.counts()?, begun.elapsed());
    testpmd.tell("stop")?;
    let (sent, received) = (after.sent - before.sent, after.received - before.received);
    let rate = |frames: u64| (frames as f64 / took.as_secs_f64()) as u64;
    println!("ioatlas: rate {} {}", rate(sent), rate(received));
    println!("ioatlas: settled {}", sent + received);

    testpmd.tell("set fwd rxonly")?;
    testpmd.tell("start")?;
    let all = testpmd.until(|now| now.received >= now.sent)?;
    testpmd.tell("stop")?;
    testpmd.end()?;
    let came = compare(&back)?;
    println!("ioatlas: compared {FRAMES} {came}");
    println!("ioatlas: frames {} {}", all.sent, all.received);
    Ok(())
}

/// Frame `number`: to an address that no card has, of a protocol for experiments, its number, and
/// bytes that tell where they belong.
fn frame(number: u64) -> Vec<u8> {
    let (shortest, longest) = LENGTHS;
    // 911 visits all lengths
    let len = shortest + (number * 911) % (longest - shortest + 1);
    let mut frame = vec![0; len as usize];
    let head = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
    frame[..12].copy_from_slice(&head);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..22].copy_from_slice(&number.to_le_bytes());
    pattern::fill(number, 0, &mut frame[22..]);
    frame
}

/// Compares what came back; returns how many frames did. They are in order, each once; some
/// may not have come.
fn compare(back: &Path) -> io::Result<u64> {
    let (mut next, mut came) = (0, 0);
    capture::read(&mut BufReader::new(File::open(back)?), |got| {
        let number = got.get(14..22).and_then(|bytes| bytes.first_chunk());
        let number = number.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        if !(next..FRAMES).contains(&number) {
            let what = format!("frame {number} came back where {next} or a later one was to");
            return Err(io::Error::other(what));
        }
        if got != frame(number) {
            let what = format!("frame {number} came back as another: {} bytes", got.len());
            return Err(io::Error::other(what));
        }
        (next, came) = (number + 1, came + 1);
        Ok(())
    })?;
    Ok(came)
}

/// A testpmd that ends with this value.
struct Testpmd {
    child: Child,
    console: ChildStdin,
    lines: Receiver<String>,
    last: VecDeque<String>,
    patience: Duration,
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Testpmd {
    fn start(drive: &Drive, out: &Path, back: &Path) -> io::Result<Self> {
        let mut command = Command::new("dpdk-testpmd");
        command.args(options(drive, out, back));
        let (said, its) = terminal()?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(its)
            .spawn()
            .map_err(|why| io::Error::new(why.kind(), format!("dpdk-testpmd: {why}")))?;
        let console = child.stdin.take();
        let console = console.ok_or_else(|| io::Error::other("no console"))?;
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut said = BufReader::new(said);
            let mut line = Vec::new();
            while said.read_until(b'\n', &mut line).is_ok_and(|got| got > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                // the receiver is gone after a failure
                let _ = send.send(text);
                line.clear();
            }
        });
        Ok(Self {
            child,
            console,
            lines,
            last: VecDeque::new(),
            patience: Duration::from_secs(drive.patience.into()),
        })
    }

    /// Types a line at testpmd's prompt.
    fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.console, "{line}")
    }

    /// The next line that it says.
    fn line(&mut self) -> io::Result<String> {
        let Ok(line) = self.lines.recv_timeout(self.patience) else {
            self.last.iter().for_each(|line| println!("{line}"));
            return Err(io::Error::other(
                "testpmd says nothing; its last words are above",
            ));
        };
        if self.last.len() == TOLD {
            self.last.pop_front();
        }
        self.last.push_back(line.clone());
        Ok(line)
    }

    /// What the card's port has counted.
    fn counts(&mut self) -> io::Result<Counts> {
        self.tell("show port stats 0")?;
        while !self.line()?.contains("NIC statistics for port 0") {}
        let mut counts = Counts::default();
        loop {
            let line = self.line()?;
            let line = line.trim_start();
            if let Some(number) = count(line, "RX-packets:") {
                counts.received = number;
            }
            if let Some(number) = count(line, "TX-packets:") {
                counts.sent = number;
                return Ok(counts);
            }
        }
    }

    /// Waits until its counts are so, or nothing has moved for as long as patience is.
    fn until(&mut self, done: impl Fn(Counts) -> bool) -> io::Result<Counts> {
        let (mut before, mut since) = (self.counts()?, Instant::now());
        loop {
            let now = self.counts()?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
            if done(now) || since.elapsed() > self.patience {
                return Ok(now);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Ends it. Its files are whole then.
    fn end(mut self) -> io::Result<()> {
        self.tell("quit")?;
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("testpmd: {status}"))),
        }
    }
}

/// A terminal: our end of it, and the other. Into a pipe testpmd would write once it has
/// 4 KiB to say.
fn terminal() -> io::Result<(File, File)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let its = OpenOptions::new()
        .write(true)
        .open(OsStr::from_bytes(name.as_bytes()))?;
    Ok((File::from(ours), its))
}

/// The number after a word that begins the line.
fn count(line: &str, word: &str) -> Option<u64> {
    let rest = line.strip_prefix(word)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// One core that forwards, on the guest's only CPU; no buffer is taken before it is to be.
fn options(drive: &Drive, out: &Path, back: &Path) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| options.extend(words.iter().map(|word| word.to_string()));
    add(&["--no-telemetry", "-m", &MEMORY_MIB.to_string()]);
    add(&["--lcores", "0@0,1@0"]);
    match drive.pages {
        Pages::Large => add(&["--in-memory"]),
        Pages::Small => add(&["--no-shconf", "--no-huge", "--iova-mode=va"]),
    }
    for driver in &drive.driver {
        add(&["-d", driver]);
    }
    let (out, back) = (out.display(), back.display());
    add(&["-a", &drive.card]);
    add(&["--vdev", &format!("net_pcap0,rx_pcap={out},tx_pcap={back}")]);
    add(&["--", "-i", "--no-flush-rx", "--nb-cores=1", "--mbcache=0"]);
    add(&[&format!("--total-num-mbufs={BUFFERS}")]);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(frames: &[Vec<u8>]) -> io::Result<u64> {
        let file = tempfile::NamedTempFile::new()?;
        capture::write(&mut file.as_file(), frames.iter().cloned())?;
        compare(file.path())
    }

    #[test]
    fn frames_that_came_back_are_told_from_others() {
        let frames: Vec<Vec<u8>> = (0..20).map(frame).collect();
        assert_eq!(back(&frames).unwrap(), 20);
        assert_eq!(back(&frames[3..10]).unwrap(), 7);
        let mut spoiled = frames.clone();
        *spoiled[7].last_mut().unwrap() ^= 1;
        assert!(back(&spoiled).is_err());
        spoiled = frames.clone();
        spoiled[7].pop();
        assert!(back(&spoiled).is_err());
        spoiled = frames.clone();
        spoiled.swap(3, 4);
        assert!(back(&spoiled).is_err());
        spoiled[4] = spoiled[3].clone();
        assert!(back(&spoiled).is_err(), "twice");
    }

    #[test]
    fn a_count_is_the_number_after_its_word() {
        let line = "RX-packets: 680700     RX-missed: 0          RX-bytes:  40842000";
        assert_eq!(count(line, "RX-packets:"), Some(680_700));
        assert_eq!(count(line, "TX-packets:"), None);
    }
}
