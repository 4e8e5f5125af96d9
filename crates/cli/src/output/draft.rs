// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A file in the making, in the folder where it is to be.
//!
//! Where the file system can do that, it has no name until it is whole (`O_TMPFILE`), so that
//! nothing is left of it whatever ends the program. It has a temporary name elsewhere, and while it
//! gets its own: a link replaces no file, only a rename does. A signal that can be handled takes
//! such a name with it; SIGKILL does not. What cannot be linked is copied to a file with such a
//! name.

use super::leftovers::Leftover;
use super::rights::Rights;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// Whom a file lets read it while it is written; the umask takes from it.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Readers {
    /// As any new file.
    All = 0o666,
    /// It takes the place of one that may be less open, or is confidential.
    Owner = 0o600,
}

/// A file that goes with this value, unless it is persisted.
pub(super) enum Draft {
    Unnamed(File),
    Named(NamedTempFile<(File, Leftover)>),
}

impl Draft {
    pub fn new(folder: &Path, readers: Readers) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match open(folder, flags, Mode::from_raw_mode(readers as u32)) {
            Ok(file) => Ok(Self::Unnamed(file.into())),
            // of two errors this one is to be told
            Err(_) => Self::named(folder, readers),
        }
    }

    fn named(folder: &Path, readers: Readers) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(readers as u32);
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
                let own = format!("/proc/self/fd/{}", file.as_raw_fd());
                let link = |name: &Path| {
                    linkat(CWD, own.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW)
                        .map_err(io::Error::from)
                };
                match temporary(folder, link) {
                    Ok(linked) => rename(linked, path),
                    // without /proc, or where the file system links no such file
                    Err(_) => Self::copied(file, folder)?.persist(folder, path),
                }
            }
        }
    }

    /// The same with a name.
    fn copied(mut file: File, folder: &Path) -> io::Result<Self> {
        let copy = Self::named(folder, Readers::Owner)?;
        file.rewind()?;
        io::copy(&mut file, &mut copy.file())?;
        Rights::of_mode(&file.metadata()?).give(copy.file())?;
        copy.file().sync_all()?;
        Ok(copy)
    }
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
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    type Make = fn(&Path, Readers) -> io::Result<Draft>;

    /// One that cannot be linked into a folder: it is of another file system.
    fn unlinked(_: &Path, readers: Readers) -> io::Result<Draft> {
        let file = File::from(memfd_create("draft", MemfdFlags::CLOEXEC)?);
        file.set_permissions(fs::Permissions::from_mode(readers as u32))?;
        Ok(Draft::Unnamed(file))
    }

    const KINDS: [Make; 3] = [Draft::new, Draft::named, unlinked];

    fn mode(metadata: io::Result<fs::Metadata>) -> u32 {
        metadata.unwrap().permissions().mode() & 0o777
    }

    fn names(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn with_or_without_a_name_it_replaces_a_file_when_it_is_whole() {
        for draft in KINDS {
            let dir = tempfile::tempdir().unwrap();
            let (folder, path) = (dir.path(), dir.path().join("page"));
            for (old, new) in [(None, "first"), (Some("first"), "second")] {
                let draft = draft(folder, Readers::All).unwrap();
                draft.file().write_all(new.as_bytes()).unwrap();
                assert_eq!(fs::read_to_string(&path).ok().as_deref(), old);
                draft.persist(folder, &path).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), new);
                assert_eq!(names(folder), [path.as_path()]);
            }
            drop(draft(folder, Readers::All).unwrap());
            assert_eq!(names(folder), [path.as_path()]);
        }
    }

    #[test]
    fn what_replaces_a_file_is_never_more_open_than_it() {
        for draft in KINDS {
            let dir = tempfile::tempdir().unwrap();
            let (folder, path) = (dir.path(), dir.path().join("page"));
            let draft = draft(folder, Readers::Owner).unwrap();
            assert_eq!(mode(draft.file().metadata()), 0o600);
            let old = fs::Permissions::from_mode(0o640);
            draft.file().set_permissions(old).unwrap();
            draft.persist(folder, &path).unwrap();
            assert_eq!(mode(fs::metadata(&path)), 0o640);
        }
    }

    #[test]
    fn a_signal_takes_the_temporary_name_with_it_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let done = folder.join("done");
        let named = || Draft::named(folder, Readers::All).unwrap();
        named().persist(folder, &done).unwrap();
        let draft = named();
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
            let error = draft(&missing, Readers::All).map(drop);
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with("No such file") && !error.contains(".tmp"),
                "{error}"
            );
        }
    }
}
