// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel's text, compressed, beside the trace that is to be made of it.
//!
//! The file has no name and goes away with us. It is made of whole frames of whole lines: a frame
//! that cannot be written is taken back, so that what is there can be read whatever happened. As it
//! grows, so does a second file without a name: room for the trace, which is written while the text
//! is still there. So a disk that becomes full is noticed while what was recorded can still become
//! a trace.

use crate::error::Error;
use crate::output::{Target, give_to_caller};
use ioatlas_iotlb::compress_zstd;
use ioatlas_iotlb::import::Reopen;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

/// Bytes of text that are compressed at a time.
const FRAME: usize = 1 << 20;

/// What the text has is for its owner: addresses of memory, and tasks of all users.
const MODE: u32 = 0o600;

/// Texts that are kept of captures of one name.
const KEPT: u32 = 1000;

/// The text, and room for its trace.
pub(super) struct Text {
    file: File,
    /// Of the file.
    length: u64,
    /// Of the text that is in it.
    bytes: u64,
    /// `None` once it is not needed, or where the file system cannot set room aside.
    room: Option<File>,
    /// How much room the trace needs, by its name.
    trace: Size,
    /// Names of tasks that are not in the text, compressed. They are read before it.
    names: Vec<u8>,
}

/// How large a trace can become.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    /// As the text, compressed.
    Compressed,
    /// As the text.
    Plain,
}

impl Text {
    /// An empty one where the target is to be.
    pub fn beside(target: &Target) -> Result<Self, Error> {
        let path = target.path();
        let failed = |source| Error::Output {
            path: path.into(),
            source,
        };
        let name = path.to_string_lossy();
        Ok(Self {
            file: unnamed(target.directory()).map_err(failed)?,
            length: 0,
            bytes: 0,
            room: Some(unnamed(target.directory()).map_err(failed)?),
            trace: match name.ends_with(".zst") || name.ends_with(".gz") {
                true => Size::Compressed,
                false => Size::Plain,
            },
            names: Vec::new(),
        })
    }

    /// Bytes of text that were recorded, without what is said of loss.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes all pieces until there are no more, or until it cannot be written.
    pub fn fill(&mut self, pieces: &Receiver<Vec<u8>>) -> io::Result<()> {
        let mut lines = Vec::new();
        while let Ok(piece) = pieces.recv() {
            lines.extend_from_slice(&piece);
            if lines.len() >= FRAME {
                let newline = lines.iter().rposition(|byte| *byte == b'\n');
                let whole = newline.map_or(lines.len(), |at| at + 1);
                self.add(&lines[..whole])?;
                lines.drain(..whole);
            }
        }
        match lines.is_empty() {
            true => Ok(()),
            false => self.add(&lines),
        }
    }

    fn add(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut frame = Vec::new();
        compress_zstd(lines, &mut frame)?;
        let bytes = self.bytes + lines.len() as u64;
        let room = match self.trace {
            Size::Compressed => self.length + frame.len() as u64,
            Size::Plain => bytes,
        };
        self.append(&frame, room)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Writes a frame and sets so much room aside, or leaves the file as it was.
    fn append(&mut self, frame: &[u8], room: u64) -> io::Result<()> {
        let written = self.file.write_all(frame);
        let written = written.and_then(|()| self.set_room(room));
        if written.is_err() {
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
        } else {
            self.length += frame.len() as u64;
        }
        written
    }

    /// Sets so many bytes aside for the trace.
    fn set_room(&mut self, bytes: u64) -> io::Result<()> {
        let Some(room) = &self.room else {
            return Ok(());
        };
        match rustix::fs::fallocate(room, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            Err(full @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(full.into()),
            Err(_) => {
                self.room = None;
                Ok(())
            }
        }
    }

    /// Puts behind the text what each CPU lost, as the kernel does within it, and before it the
    /// names of tasks, as the kernel has them by now; and gives back the room that was set aside.
    pub fn finish(&mut self, lost: &[(u32, u64)], names: &str) -> io::Result<()> {
        self.room = None;
        let named = |line| format!("saved_cmdlines:{line}\n");
        let named: String = names.lines().map(named).collect();
        self.names.clear();
        if !named.is_empty() {
            compress_zstd(named.as_bytes(), &mut self.names)?;
        }
        let line = |(cpu, events): &(u32, u64)| format!("CPU:{cpu} [LOST {events} EVENTS]\n");
        let lines: String = lost.iter().map(line).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let mut frame = Vec::new();
        compress_zstd(lines.as_bytes(), &mut frame)?;
        self.append(&frame, 0)
    }

    /// Gives it this name, or the first of `a.2.txt.zst`, `a.3.txt.zst` that there is not; says
    /// which.
    pub fn keep(&self, path: &Path) -> io::Result<PathBuf> {
        for number in 1..=KEPT {
            let path = numbered(path, number);
            match self.name(&path).or_else(|error| match error.kind() {
                ErrorKind::AlreadyExists => Err(error),
                _ => self.copy(&path),
            }) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                kept => return kept.map(|()| path),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Gives the file itself a name, which needs no room; not every file system can.
    fn name(&self, path: &Path) -> io::Result<()> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(CWD, file, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
        self.file.sync_all()
    }

    fn copy(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(MODE).open(path)?;
        give_to_caller(&file);
        let copied = self
            .reopen()
            .and_then(|mut text| io::copy(&mut text, &mut file))
            .and_then(|_| file.sync_all());
        if copied.is_err() {
            // a part of it would be taken for all
            let _ = std::fs::remove_file(path);
        }
        copied
    }
}

/// A file without a name, which may get one.
fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(directory, flags, Mode::from_raw_mode(MODE)) {
        Ok(file) => file.into(),
        // some file systems have no such files
        Err(_) => tempfile::tempfile_in(directory)?,
    };
    give_to_caller(&file);
    Ok(file)
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
        Ok(Box::new(
            self.names.as_slice().chain(BufReader::new(&self.file)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::import::{self, Assume, Options};
    use ioatlas_iotlb::{Limits, Trace};
    use std::sync::mpsc::sync_channel;
    use std::thread;

    fn beside(directory: &Path, name: &str) -> Text {
        Text::beside(&Target::prepare(&directory.join(name)).unwrap()).unwrap()
    }

    /// Maps of pages at addresses that cannot be foreseen.
    fn lines(range: std::ops::Range<u64>) -> String {
        let line = |n: u64| {
            let (seconds, page) = (n + 1, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
            format!(
                "a-1 [000] ..... {seconds}.0: dma_map_page: d dir=TO_DEVICE dma_addr={page:x}000 \
                 size=4096 phys_addr=1000 attrs=\n"
            )
        };
        range.map(line).collect()
    }

    /// Fills it with text in pieces; says how that ended.
    fn fill(text: &mut Text, wanted: &str) -> io::Result<()> {
        let (sender, receiver) = sync_channel(1);
        thread::scope(|scope| {
            let filler = scope.spawn(move || text.fill(&receiver));
            for piece in wanted.as_bytes().chunks(1013) {
                if sender.send(piece.to_vec()).is_err() {
                    break;
                }
            }
            drop(sender);
            filler.join().unwrap()
        })
    }

    fn trace(name: &str, file: &dyn Reopen) -> Trace {
        let options = Options {
            assume: Assume::None,
            ..Options::default()
        };
        import::load(name, file, options, Limits::default()).unwrap()
    }

    #[test]
    fn the_text_is_all_of_the_pieces_and_the_loss() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = beside(dir.path(), "t.trace");
        // more than a frame
        let wanted = lines(0..20_000);
        assert!(wanted.len() > 2 * FRAME - FRAME / 2);
        fill(&mut text, &wanted).unwrap();
        assert_eq!(text.bytes(), wanted.len() as u64);
        text.finish(&[(1, 583), (3, 2)], "").unwrap();
        let kept = dir.path().join("kept.txt.zst");
        assert_eq!(text.keep(&kept).unwrap(), kept);
        let file = std::fs::read(&kept).unwrap();
        let of_file = trace("kept", &file.as_slice());
        assert_eq!(
            (of_file.events().len(), of_file.lost_events()),
            (20_000, 585)
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // one that is there stays as it is
        std::fs::remove_file(&kept).unwrap();
        std::fs::write(&kept, "other").unwrap();
        let second = dir.path().join("kept.2.txt.zst");
        text.copy(&second).unwrap();
        assert!(std::fs::read(&second).unwrap() == file);
        let third = dir.path().join("kept.3.txt.zst");
        text = beside(dir.path(), "t.trace");
        assert_eq!(text.keep(&kept).unwrap(), third);
        assert_eq!(std::fs::read(&kept).unwrap(), b"other");
    }

    #[test]
    fn there_is_room_for_the_trace_until_it_is_written() {
        for (name, plain) in [("t.trace.zst", false), ("t.trace", true)] {
            let dir = tempfile::tempdir().unwrap();
            let mut text = beside(dir.path(), name);
            let wanted = lines(0..30_000);
            fill(&mut text, &wanted).unwrap();
            let Some(room) = &text.room else {
                return; // this file system sets none aside
            };
            let room = room.metadata().unwrap().len();
            let needed = match plain {
                true => wanted.len() as u64,
                false => text.length,
            };
            assert_eq!(room, needed, "{name}");
            text.finish(&[], "").unwrap();
            assert!(text.room.is_none());
        }
    }
}
