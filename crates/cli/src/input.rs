// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files that commands read: regular ones, pipes, and standard input as `-`.
//!
//! Some captures are read twice, the first time for what the second must know. Of what yields its
//! content once only, what was read is kept until it is known that no second reading comes; beyond
//! [`IN_MEMORY`] in a temporary file without a name, compressed if it came so.

use crate::error::Error;
use ioatlas_iotlb::TraceError;
use ioatlas_iotlb::import::Reopen;
use std::cell::RefCell;
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
pub(crate) struct Input {
    path: PathBuf,
    once: Option<RefCell<Once>>,
}

impl Input {
    /// Opens what cannot be opened again; of a regular file, sees that it is there.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let once = once(path).map_err(|source| TraceError::Open {
            file: name(path),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            once: once.map(|source| RefCell::new(Once::new(source))),
        })
    }
}

/// What yields its content once only; `None` of a regular file.
fn once(path: &Path) -> io::Result<Option<Box<dyn Read>>> {
    if is_standard(path) {
        return Ok(Some(Box::new(io::stdin())));
    }
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        let reason = "it is a directory; name the files in it";
        return Err(io::Error::new(io::ErrorKind::IsADirectory, reason));
    }
    match metadata.is_file() {
        true => Ok(None),
        false => Ok(Some(Box::new(File::open(path)?))),
    }
}

impl Reopen for Input {
    fn reopen(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(match &self.once {
            None => Box::new(BufReader::new(File::open(&self.path)?)),
            Some(once) => Box::new(BufReader::new(Reading { once, at: 0 })),
        })
    }

    fn is_last(&self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A source of `length` bytes, a few at a time.
    fn input(length: usize) -> (Input, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let source = Box::new(Slow(io::Cursor::new(bytes.clone())));
        let input = Input {
            path: "-".into(),
            once: Some(RefCell::new(Once::new(source))),
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
