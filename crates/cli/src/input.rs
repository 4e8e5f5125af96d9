// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files that commands read: regular ones, pipes, and standard input as `-`.
//!
//! Some captures are read twice, the first time for what the second must know. Of what yields its
//! content once only, what was read is kept until it is known that no second reading comes; beyond
//! [`IN_MEMORY`] in a temporary file without a name, compressed if it came so. How far a reading is
//! is told in bytes of the file.

use crate::error::Error;
use crate::progress::Progress;
use ioatlas_iotlb::TraceError;
use ioatlas_iotlb::import::Reopen;
use ioatlas_present::printable;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::SpooledTempFile;

/// Bytes that are kept in memory; what tells the format of a capture is less.
const IN_MEMORY: usize = 2 << 20;

/// Whether standard input is meant.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// What a file is called in messages and results.
pub(crate) fn name(path: &Path) -> String {
    match is_standard(path) {
        true => "standard input".into(),
        false => path.display().to_string(),
    }
}

/// A file's name without those of these endings that it has, taken away in this order.
pub(crate) fn without_endings<'a>(name: &'a str, endings: &[&str]) -> &'a str {
    let without = |name: &'a str, ending: &&str| name.strip_suffix(ending).unwrap_or(name);
    endings.iter().fold(name, without)
}

/// A file that can be read more than once.
pub(crate) struct Input<'a> {
    path: PathBuf,
    once: Option<RefCell<Once>>,
    meter: Meter<'a>,
}

impl<'a> Input<'a> {
    /// Opens what cannot be opened again; of a regular file, sees that it is there.
    pub fn open(path: &Path, progress: &'a dyn Progress) -> Result<Self, Error> {
        let source = source(path).map_err(|source| TraceError::Open {
            file: name(path),
            source,
        })?;
        let (once, length) = match source {
            Source::Regular(length) => (None, Some(length)),
            Source::Once(source) => (Some(RefCell::new(Once::new(source))), None),
        };
        Ok(Self {
            path: path.into(),
            once,
            meter: Meter::new(&name(path), length, progress),
        })
    }
}

/// What a file yields its content from.
enum Source {
    /// A regular file of so many bytes.
    Regular(u64),
    /// What can be read once only.
    Once(Box<dyn Read>),
}

fn source(path: &Path) -> io::Result<Source> {
    if is_standard(path) {
        return Ok(Source::Once(Box::new(io::stdin())));
    }
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        let reason = "it is a directory; name the files in it";
        return Err(io::Error::new(io::ErrorKind::IsADirectory, reason));
    }
    match metadata.is_file() {
        true => Ok(Source::Regular(metadata.len())),
        false => Ok(Source::Once(Box::new(File::open(path)?))),
    }
}

impl Reopen for Input<'_> {
    fn reopen(&self) -> io::Result<Box<dyn BufRead + '_>> {
        let source: Box<dyn Read + '_> = match &self.once {
            None => Box::new(File::open(&self.path)?),
            Some(once) => Box::new(Reading { once, at: 0 }),
        };
        let metered = Metered {
            source,
            read: 0,
            meter: &self.meter,
        };
        Ok(Box::new(BufReader::new(metered)))
    }

    fn is_last(&self) {
        self.meter.is_last();
        if let Some(once) = &self.once {
            once.borrow_mut().keeps = false;
        }
    }
}

/// A source, and what it has yielded.
struct Once {
    source: Box<dyn Read>,
    kept: SpooledTempFile,
    /// Bytes of it.
    length: u64,
    /// Whether what comes is kept as well.
    keeps: bool,
}

impl Once {
    fn new(source: Box<dyn Read>) -> Self {
        Self {
            source,
            kept: tempfile::spooled_tempfile(IN_MEMORY),
            length: 0,
            keeps: true,
        }
    }

    /// Reads from a place on, at most up to the end of what was kept if that is ahead.
    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        if at < self.length {
            self.kept.seek(SeekFrom::Start(at))?;
            let most = usize::try_from(self.length - at).unwrap_or(usize::MAX);
            let most = most.min(buf.len());
            return self.kept.read(&mut buf[..most]);
        }
        let count = self.source.read(buf)?;
        if self.keeps {
            self.kept.seek(SeekFrom::Start(self.length))?;
            self.kept.write_all(&buf[..count])?;
            self.length += count as u64;
        }
        Ok(count)
    }
}

/// One reading from the beginning.
struct Reading<'a> {
    once: &'a RefCell<Once>,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.once.borrow_mut().read(self.at, buf)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Tells how far the readings of a file are. What is read before the last one counts for half.
struct Meter<'a> {
    progress: &'a dyn Progress,
    what: String,
    /// Bytes of the file, where known.
    length: Option<u64>,
    is_last: Cell<bool>,
    /// Thousandths of all that is to be read.
    done: Cell<u64>,
    /// The same when the last reading began.
    begun: Cell<u64>,
}

/// Thousandths of a whole.
const WHOLE: u64 = 1000;

impl<'a> Meter<'a> {
    fn new(name: &str, length: Option<u64>, progress: &'a dyn Progress) -> Self {
        Self {
            progress,
            what: format!("reads {}", printable(name, 40)),
            length,
            is_last: Cell::new(false),
            done: Cell::new(0),
            begun: Cell::new(0),
        }
    }

    fn is_last(&self) {
        self.is_last.set(true);
        self.begun.set(self.done.get());
    }

    /// A reading has got so far.
    fn at(&self, bytes: u64) {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let Some(length) = self.length else {
            let what = format!("{}: {:.1} MB", self.what, megabytes(bytes));
            return self.progress.at(&what, 0, 0);
        };
        let (from, to) = match self.is_last.get() {
            true => (self.begun.get(), WHOLE),
            false => (0, WHOLE / 2),
        };
        let share = bytes.min(length) as f64 / length.max(1) as f64;
        let here = from + ((to - from) as f64 * share) as u64;
        self.done.set(self.done.get().max(here));
        let (bytes, length) = (megabytes(bytes), megabytes(length));
        let what = format!("{}: {bytes:.1} of {length:.1} MB", self.what);
        self.progress
            .at(&what, self.done.get() as usize, WHOLE as usize);
    }
}

/// A reading whose bytes are told.
struct Metered<'a> {
    source: Box<dyn Read + 'a>,
    read: u64,
    meter: &'a Meter<'a>,
}

impl Read for Metered<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buf)?;
        self.read += count as u64;
        self.meter.at(self.read);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use std::sync::Mutex;

    /// A source of `length` bytes, a few at a time.
    fn input(length: usize) -> (Input<'static>, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let source = Box::new(Slow(io::Cursor::new(bytes.clone())));
        let input = Input {
            path: "-".into(),
            once: Some(RefCell::new(Once::new(source))),
            meter: Meter::new("-", None, &Silent),
        };
        (input, bytes)
    }

    struct Slow(io::Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let most = buf.len().min(5000);
            self.0.read(&mut buf[..most])
        }
    }

    #[test]
    fn readings_of_a_pipe_go_on_side_by_side() {
        for length in [0, 1, 20_000, IN_MEMORY + 20_000] {
            let (input, bytes) = input(length);
            let mut first = input.reopen().unwrap();
            let mut begin = vec![0; length / 3];
            first.read_exact(&mut begin).unwrap();
            let mut all = Vec::new();
            input.reopen().unwrap().read_to_end(&mut all).unwrap();
            assert!(all == bytes, "{length}");
            input.is_last();
            first.read_to_end(&mut begin).unwrap();
            assert!(begin == bytes, "{length}");
        }
    }

    /// What was told: the words, steps done, and steps.
    #[derive(Default)]
    struct Told(Mutex<Vec<(String, usize, usize)>>);

    impl Progress for Told {
        fn at(&self, what: &str, done: usize, total: usize) {
            self.0.lock().unwrap().push((what.into(), done, total));
        }
    }

    #[test]
    fn readings_tell_how_far_they_are_and_never_go_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, vec![0; 3_000_000]).unwrap();
        let told = Told::default();
        let input = Input::open(&path, &told).unwrap();
        let mut first = input.reopen().unwrap();
        first.read_exact(&mut [0; 100]).unwrap();
        let all = |reading: &mut dyn Read| io::copy(reading, &mut io::sink()).unwrap();
        all(&mut input.reopen().unwrap());
        assert_eq!(told.0.lock().unwrap().last().unwrap().1, 500);
        input.is_last();
        all(&mut first);
        let told = told.0.lock().unwrap();
        let steps: Vec<usize> = told.iter().map(|(_, done, _)| *done).collect();
        assert!(steps.is_sorted() && steps.len() > 100, "{steps:?}");
        let (what, done, total) = told.last().unwrap();
        assert_eq!((*done, *total), (1000, 1000));
        assert!(what.ends_with("t: 3.0 of 3.0 MB"), "{what}");
    }

    #[test]
    fn what_is_read_once_only_is_not_kept() {
        let (input, bytes) = input(200_000);
        let mut reading = input.reopen().unwrap();
        let mut begin = vec![0; 100];
        reading.read_exact(&mut begin).unwrap();
        input.is_last();
        reading.read_to_end(&mut begin).unwrap();
        assert!(begin == bytes);
        let once = input.once.as_ref().unwrap().borrow();
        assert!((100..=8192).contains(&once.length), "{}", once.length);
    }
}
