// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The time of the capture: the kernel's text goes to a file.
//!
//! This thread reads; another compresses, so that reading waits for no compressor but one that is
//! [`QUEUE`] pieces behind. One that cannot write any more listens no longer, which ends the
//! recording.

use super::CaptureError;
use super::arguments::LiveCaptureArguments;
use super::stop::Stop;
use super::text::Text;
use super::tracefs::{Instance, Plan};
use crate::error::Error;
use crate::progress::{Bar, Progress};
use serde::Serialize;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long the kernel's buffers are left alone when they were found empty.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// How often a waiting person is told how far it is.
const REFRESH: Duration = Duration::from_millis(200);

/// Bytes of a piece of text. The kernel gives a page at a time.
const PIECE: usize = 64 << 10;

/// Pieces that wait to be compressed: 16 MiB.
const QUEUE: usize = 256;

/// What was recorded, but for the text.
pub(super) struct Recording {
    pub seconds: f64,
    pub ended: Ended,
    pub cpus: usize,
    /// KiB of the buffer of each CPU.
    pub kib: u64,
    /// CPUs that lost events without the text telling, and how many.
    pub lost: Vec<(u32, u64)>,
    /// Numbers and names of tasks, a line each: the text has no name for those that had not been
    /// switched from yet.
    pub tasks: String,
    /// Why the text could not be written any further.
    pub full: Option<io::Error>,
}

/// What ended a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ended {
    Time,
    Signal,
    /// There was no room for more text.
    DiskFull,
}

/// Records into `text` for the time that was asked for, or until a signal comes.
pub(super) fn record(
    instance: &Instance,
    plan: &Plan,
    arguments: &LiveCaptureArguments,
    stop: &Stop,
    text: &mut Text,
) -> Result<Recording, Error> {
    let cpus = instance.cpus()?;
    let recording = instance.recording(&cpus);
    let kib = arguments.kib(recording);
    instance.set("tracing_on", "0")?;
    instance.set("options/overwrite", "0")?;
    instance.set_clock()?;
    instance.set("buffer_size_kb", &kib.to_string())?;
    let pipe = instance.pipe()?;
    instance.enable(plan)?;
    let (pieces, waiting) = sync_channel(QUEUE);
    let (recorded, full) = thread::scope(|scope| {
        let compressor = scope.spawn(move || text.fill(&waiting).err());
        let mut reader = Reader {
            pipe,
            path: instance.pipe_path(),
            piece: Vec::with_capacity(PIECE),
            pieces,
            bytes: 0,
        };
        let recorded = run(instance, arguments, stop, &mut reader);
        drop(reader); // the compressor comes to its end
        let full = match compressor.join() {
            Ok(full) => full,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        (recorded, full)
    });
    let (seconds, ended) = recorded?;
    let mut lost = Vec::new();
    for &cpu in &cpus {
        lost.push((cpu, instance.lost(cpu)?));
    }
    lost.retain(|(_, events)| *events > 0);
    Ok(Recording {
        seconds,
        // the last text may have found no room when the time was over
        ended: full.as_ref().map_or(ended, |_| Ended::DiskFull),
        cpus: recording,
        kib,
        lost,
        tasks: instance.tasks(),
        full,
    })
}

/// Switches tracing on, reads, switches it off, reads what is left. Says how long it was on.
fn run(
    instance: &Instance,
    arguments: &LiveCaptureArguments,
    stop: &Stop,
    reader: &mut Reader,
) -> Result<(f64, Ended), CaptureError> {
    let bar = Bar::default();
    let total = arguments.seconds.as_secs_f64().ceil() as usize;
    let mut told = Instant::now();
    instance.set("tracing_on", "1")?;
    let begun = Instant::now();
    let ended = loop {
        let left = arguments.seconds.saturating_sub(begun.elapsed());
        if stop.is_asked() {
            break Ended::Signal;
        }
        if left.is_zero() {
            break Ended::Time;
        }
        let read = reader.read()?;
        if read == Had::NoListener {
            break Ended::DiskFull;
        }
        if told.elapsed() >= REFRESH {
            told = Instant::now();
            let mib = reader.bytes >> 20;
            let what = format!("s recorded, {mib} MiB of text");
            bar.at(&what, begun.elapsed().as_secs() as usize, total);
        }
        if read == Had::Nothing {
            thread::sleep(PAUSE.min(left));
        }
    };
    instance.set("tracing_on", "0")?;
    let seconds = begun.elapsed().as_secs_f64();
    if ended != Ended::DiskFull {
        while reader.read()? == Had::Text {}
        reader.pass_on();
    }
    Ok((seconds, ended))
}

/// Whether there was text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    Text,
    Nothing,
    /// There was, but what should keep it has ended.
    NoListener,
}

/// Reads the kernel's text in pieces.
struct Reader {
    pipe: File,
    path: PathBuf,
    piece: Vec<u8>,
    pieces: SyncSender<Vec<u8>>,
    /// Bytes read so far.
    bytes: u64,
}

impl Reader {
    /// Reads once.
    fn read(&mut self) -> Result<Had, CaptureError> {
        let filled = self.piece.len();
        self.piece.resize(PIECE, 0);
        let read = self.pipe.read(&mut self.piece[filled..]);
        self.piece.truncate(filled + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Ok(Had::Nothing),
            Ok(count) => {
                self.bytes += count as u64;
                match self.piece.len() {
                    PIECE => Ok(self.pass_on()),
                    _ => Ok(Had::Text),
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Ok(Had::Nothing),
                ErrorKind::Interrupted => Ok(Had::Text),
                _ => Err(CaptureError::of(&self.path, "read it", error)),
            },
        }
    }

    /// Passes on what was read.
    fn pass_on(&mut self) -> Had {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        match self.pieces.send(piece) {
            Ok(()) => Had::Text,
            Err(_) => Had::NoListener,
        }
    }
}
