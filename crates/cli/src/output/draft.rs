// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A file in the making, in the folder where it is to be.
//!
//! Where the file system can do that, it has no name until it is whole (`O_TMPFILE`), so that
//! nothing is left of it whatever ends the program. It has a temporary name elsewhere, and while it
//! gets its own: a link replaces no file, only a rename does. A signal takes such a name with it.

use super::leftovers::Leftover;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// As for any new file; the umask takes from it.
const MODE: u32 = 0o666;

/// A file that goes with this value, unless it is persisted.
pub(super) enum Draft {
    Unnamed(File),
    Named(NamedTempFile<(File, Leftover)>),
}

impl Draft {
    pub fn new(folder: &Path) -> io::Result<Self> {
        match unnamed(folder) {
            Some(file) => Ok(Self::Unnamed(file)),
            // of two errors this one is to be told
            None => Self::named(folder),
        }
    }

    fn named(folder: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        temporary(folder, |path| options.open(path)).map(Self::Named)
    }

    pub fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Named(named) => &named.as_file().0,
        }
    }

    /// Gives it its name, in place of a file that has it. The name is in `folder`.
    pub fn persist(self, folder: &Path, path: &Path) -> io::Result<()> {
        match self {
            Self::Named(named) => rename(named, path),
            Self::Unnamed(file) => {
                let own = own_path(&file);
                let link = |name: &Path| {
                    linkat(CWD, &own, CWD, name, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
                };
                rename(temporary(folder, link)?, path)
            }
        }
    }
}

/// A file without a name that can get one later, where there are such.
fn unnamed(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(open(folder, flags, Mode::from_raw_mode(MODE)).ok()?);
    fs::metadata(own_path(&file)).is_ok().then_some(file)
}

/// What a file without a name can be linked from.
fn own_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// What `make` makes at a temporary name.
fn temporary<T>(
    folder: &Path,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<NamedTempFile<(T, Leftover)>> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".ioatlas-").suffix(".tmp");
    builder.make_in(folder, |path| Leftover::made(path, || make(path)))
}

fn rename<T>(file: NamedTempFile<T>, path: &Path) -> io::Result<()> {
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::leftovers;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn with_or_without_a_name_it_replaces_a_file_when_it_is_whole() {
        for draft in [Draft::new, Draft::named] {
            let dir = tempfile::tempdir().unwrap();
            let (folder, path) = (dir.path(), dir.path().join("page"));
            for (old, new) in [(None, "first"), (Some("first"), "second")] {
                let draft = draft(folder).unwrap();
                draft.file().write_all(new.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(&path).ok().as_deref(), old);
                draft.persist(folder, &path).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), new);
                assert_eq!(names(folder), [path.as_path()]);
            }
            drop(draft(folder).unwrap());
            assert_eq!(names(folder), [path.as_path()]);
        }
    }

    #[test]
    fn a_signal_takes_the_temporary_name_with_it_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let done = folder.join("done");
        Draft::named(folder)
            .unwrap()
            .persist(folder, &done)
            .unwrap();
        let draft = Draft::named(folder).unwrap();
        assert_eq!(names(folder).len(), 2);
        leftovers::remove_in(folder);
        assert_eq!(names(folder), [done.as_path()]);
        drop(draft);
    }

    #[test]
    fn an_error_names_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        for draft in [Draft::new, Draft::named] {
            let error = draft(&missing).map(drop).unwrap_err().to_string();
            assert!(
                error.starts_with("No such file") && !error.contains(".tmp"),
                "{error}"
            );
        }
    }
}
