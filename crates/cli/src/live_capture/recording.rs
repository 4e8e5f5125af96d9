// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The time of the capture: the kernel's text goes to a file.
//!
//! This thread reads; another compresses, so that reading waits for no compressor but one that is
//! [`QUEUE`] pieces behind.

use super::CaptureError;
use super::arguments::LiveCaptureArguments;
use super::stop::Stop;
use super::tracefs::{Instance, Plan};
use crate::error::Error;
use crate::output::Target;
use crate::progress::{Bar, Progress};
use ioatlas_iotlb::compress_zstd;
use ioatlas_iotlb::import::Reopen;
use serde::Serialize;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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

/// Texts that are kept of captures of one name.
const KEPT: u32 = 1000;

/// What was recorded, but for the text.
pub(super) struct Recording {
    pub seconds: f64,
    pub ended: Ended,
    pub cpus: usize,
    /// KiB of the buffer of each CPU.
    pub kib: u64,
    /// CPUs that lost events without the text telling, and how many.
    pub lost: Vec<(u32, u64)>,
}

/// What ended a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ended {
    Time,
    Signal,
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
    let file = &text.file;
    let (recorded, compressed) = thread::scope(|scope| {
        let compressor = scope.spawn(move || compress(waiting, file));
        let mut reader = Reader {
            pipe,
            path: instance.pipe_path(),
            piece: Vec::with_capacity(PIECE),
            pieces,
            bytes: 0,
        };
        let recorded = run(instance, arguments, stop, &mut reader);
        let bytes = reader.bytes;
        drop(reader); // the compressor comes to its end
        let compressed = match compressor.join() {
            Ok(compressed) => compressed,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        (recorded.map(|recorded| (recorded, bytes)), compressed)
    });
    // where there is no room, the reader could only say that nothing listens
    compressed.map_err(|source| CaptureError::NoRoom {
        path: text.target.clone(),
        source,
    })?;
    let ((seconds, ended), bytes) = recorded?;
    text.bytes = bytes;
    let mut lost = Vec::new();
    for &cpu in &cpus {
        lost.push((cpu, instance.lost(cpu)?));
    }
    lost.retain(|(_, events)| *events > 0);
    Ok(Recording {
        seconds,
        ended,
        cpus: recording,
        kib,
        lost,
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
    while reader.read()? == Had::Text {}
    reader.pass_on()?;
    Ok((seconds, ended))
}

/// Whether there was text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    Text,
    Nothing,
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
                if self.piece.len() == PIECE {
                    self.pass_on()?;
                }
                Ok(Had::Text)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Ok(Had::Nothing),
                ErrorKind::Interrupted => Ok(Had::Text),
                _ => Err(CaptureError::of(&self.path, "read it", error)),
            },
        }
    }

    /// Passes on what was read.
    fn pass_on(&mut self) -> Result<(), CaptureError> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        // its error is told, not this one
        let gone = |_| CaptureError::of(&self.path, "keep the text", ErrorKind::BrokenPipe.into());
        self.pieces.send(piece).map_err(gone)
    }
}

/// Compresses pieces to a file until there are no more, or the file cannot be written.
fn compress(pieces: Receiver<Vec<u8>>, file: &File) -> io::Result<()> {
    let failed = Cell::new(false);
    let source = Pieces {
        pieces: Some(pieces),
        piece: Cursor::default(),
        failed: &failed,
    };
    let target = Watched {
        file,
        failed: &failed,
    };
    compress_zstd(source, target)
}

/// Pieces of text as one; it ends where it is no use to go on.
struct Pieces<'a> {
    pieces: Option<Receiver<Vec<u8>>>,
    piece: Cursor<Vec<u8>>,
    failed: &'a Cell<bool>,
}

impl Read for Pieces<'_> {
    /// Fills the buffer but at the end, as the compressor makes a block of what it gets.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            if self.failed.get() {
                self.pieces = None; // what reads the kernel's text stops
                return Ok(0);
            }
            match self.piece.read(&mut buf[done..])? {
                0 => match self.pieces.as_ref().and_then(|pieces| pieces.recv().ok()) {
                    Some(piece) => self.piece = Cursor::new(piece),
                    None => break,
                },
                count => done += count,
            }
        }
        Ok(done)
    }
}

/// A file that tells whether it could not be written.
struct Watched<'a> {
    file: &'a File,
    failed: &'a Cell<bool>,
}

impl Write for Watched<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf);
        let fails = |error: &io::Error| error.kind() != ErrorKind::Interrupted;
        if written.as_ref().is_err_and(fails) {
            self.failed.set(true);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The kernel's text, compressed, in a file that has no name and goes away with us.
pub(super) struct Text {
    file: File,
    bytes: u64,
    /// What was lost, in the kernel's words, compressed.
    lost: Vec<u8>,
    /// What the user will see written, for messages.
    target: PathBuf,
}

impl Text {
    /// An empty one where the target is to be.
    pub fn beside(target: &Target) -> Result<Self, Error> {
        let path = target.path().to_path_buf();
        match tempfile::tempfile_in(target.directory()) {
            Ok(file) => Ok(Self {
                file,
                bytes: 0,
                lost: Vec::new(),
                target: path,
            }),
            Err(source) => Err(Error::Output { path, source }),
        }
    }

    /// Bytes of text that were recorded, without what is said of loss.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts before the text what each CPU lost, as the kernel does within it.
    pub fn finish(&mut self, lost: &[(u32, u64)]) -> io::Result<()> {
        let line = |(cpu, events): &(u32, u64)| format!("CPU:{cpu} [LOST {events} EVENTS]\n");
        let lines: String = lost.iter().map(line).collect();
        if !lines.is_empty() {
            compress_zstd(lines.as_bytes(), &mut self.lost)?;
        }
        Ok(())
    }

    /// Writes it to a new file of this name, or of the first of `a.2.txt.zst`, `a.3.txt.zst` that
    /// there is not; says which.
    pub fn keep(&self, path: &Path) -> io::Result<PathBuf> {
        for number in 1..=KEPT {
            let path = numbered(path, number);
            let mut file = match File::create_new(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            };
            let copied = self
                .reopen()
                .and_then(|mut text| io::copy(&mut text, &mut file))
                .and_then(|_| file.sync_all());
            if let Err(error) = copied {
                // a part of it would be taken for all
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
            return Ok(path);
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

/// `a.txt.zst` as `a.2.txt.zst`; the first has no number.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".txt.zst").unwrap_or(&name);
    match number {
        1 => path.into(),
        _ => path.with_file_name(format!("{stem}.{number}.txt.zst")),
    }
}

/// One reading ends before the next begins: they share a place in the file.
impl Reopen for Text {
    fn reopen(&self) -> io::Result<Box<dyn BufRead + '_>> {
        (&self.file).rewind()?;
        let lost = Cursor::new(self.lost.as_slice());
        Ok(Box::new(lost.chain(BufReader::new(&self.file))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::Limits;
    use ioatlas_iotlb::import::{self, Assume, Options};

    #[test]
    fn a_full_disk_ends_the_reading() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (sender, receiver) = sync_channel(1);
        thread::scope(|scope| {
            let compressor = scope.spawn(|| compress(receiver, &full));
            // bytes that cannot be made fewer, so that they are written before the end
            let mut state = 1u32;
            let mut noise = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            // this ends, or the disk does not count
            while sender.send((0..PIECE).map(|_| noise()).collect()).is_ok() {}
            let error = compressor.join().unwrap().expect_err("the disk is full");
            assert_eq!(error.kind(), ErrorKind::StorageFull);
        });
    }

    #[test]
    fn the_text_is_all_of_the_pieces_behind_the_loss() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::prepare(&dir.path().join("t.trace")).unwrap();
        let mut text = Text::beside(&target).unwrap();
        let (sender, receiver) = sync_channel(1);
        let line = |n: u32| {
            let (seconds, page) = (n + 1, n + 0x100);
            format!(
                "a-1 [000] ..... {seconds}.0: dma_map_page: d dir=TO_DEVICE dma_addr={page:x}000 \
                 size=4096 phys_addr=1000 attrs=\n"
            )
        };
        let wanted: String = (0..5000).map(line).collect();
        thread::scope(|scope| {
            let compressor = scope.spawn(|| compress(receiver, &text.file));
            for piece in wanted.as_bytes().chunks(1013) {
                sender.send(piece.to_vec()).unwrap();
            }
            drop(sender);
            compressor.join().unwrap().unwrap();
        });
        text.finish(&[(1, 583), (3, 2)]).unwrap();
        let kept = dir.path().join("kept.txt.zst");
        assert_eq!(text.keep(&kept).unwrap(), kept);
        let file = std::fs::read(&kept).unwrap();
        let options = Options {
            assume: Assume::None,
            ..Options::default()
        };
        let trace = import::load("kept", &file.as_slice(), options, Limits::default()).unwrap();
        assert_eq!((trace.events().len(), trace.lost_events()), (5000, 585));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // one that is there stays as it is
        std::fs::write(&kept, "other").unwrap();
        let second = dir.path().join("kept.2.txt.zst");
        assert_eq!(text.keep(&kept).unwrap(), second);
        assert_eq!(std::fs::read(&second).unwrap(), file);
        assert_eq!(std::fs::read(&kept).unwrap(), b"other");
    }
}
