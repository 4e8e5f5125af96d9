// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files that appear whole or not at all.
//!
//! Text goes to a file in the directory of the target, is forced to disk and renamed. Whatever
//! fails, is killed or interrupted before the rename, a file that was there stays as it was.
//! Nothing else is left, but where SIGKILL or a loss of power comes while the new file has a
//! temporary name, `.ioatlas-*.tmp`: only for the moment of the rename where the file system has
//! files without names, as most of Linux's have; elsewhere, as on NFS, for as long as it is
//! written.
//!
//! What takes the place of a file has its owner, group and mode; where it cannot have the owner and
//! the group, it is for its owner alone. Nothing else is kept: of a file with an access control
//! list the group gets no rights, as the list is gone and said what they are; extended attributes
//! and capabilities are gone, too, and other hard links keep the old file.

mod draft;
mod leftovers;
mod rights;

pub(crate) use leftovers::go_with_signals;
pub(crate) use rights::give_to_caller;

use crate::error::Error;
use draft::{Draft, Readers};
use rights::Rights;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A place that was found writable.
#[derive(Debug)]
pub struct Target {
    /// As given by the user, for messages.
    shown: PathBuf,
    /// With symbolic links resolved, so that the file they point to is replaced.
    resolved: PathBuf,
    /// Of the file that is there.
    old: Option<Rights>,
    /// Whom the file is for if it is new.
    new: Readers,
}

impl Target {
    /// Checks, before any long work, that `path` can be written.
    ///
    /// # Errors
    ///
    /// [`Error::Output`] or [`Error::NotAFile`].
    pub fn prepare(path: &Path) -> Result<Self, Error> {
        if path == Path::new("-") {
            return Err(Error::StandardOutput);
        }
        let mut old = None;
        let resolved = match fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(Error::NotAFile { path: path.into() });
            }
            Ok(metadata) if metadata.permissions().readonly() => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it is read-only",
            )),
            Ok(metadata) => {
                old = Some(Rights::of(path, &metadata));
                fs::canonicalize(path)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.into()),
            Err(error) => Err(error),
        };
        let target = resolved
            .map(|resolved| Self {
                shown: path.into(),
                resolved,
                old,
                new: Readers::All,
            })
            .map_err(|source| Error::Output {
                path: path.into(),
                source,
            })?;
        if target.resolved.file_name().is_none() {
            return Err(Error::NotAFile { path: path.into() });
        }
        if let Some(old) = &target.old {
            let folder = fs::metadata(target.directory()).map_err(|error| target.failed(error))?;
            if !old.may_replace(&folder, rustix::process::geteuid()) {
                return Err(target.failed(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "it is another user's, and only they may replace it there: choose another \
                     with -o FILE",
                )));
            }
        }
        // dropped at once, which removes it
        Draft::new(target.directory(), target.readers()).map_err(|source| target.failed(source))?;
        Ok(target)
    }

    /// The same for what others are not to see: where it is new, only its owner reads it, who is
    /// the user that called sudo if one did.
    #[must_use]
    pub(crate) fn confidential(self) -> Self {
        Self {
            new: Readers::Owner,
            ..self
        }
    }

    /// Checks that the target is none of the files that are to be read, under whatever name.
    pub fn is_none_of(&self, inputs: &[PathBuf]) -> Result<(), Error> {
        let Ok(target) = fs::metadata(&self.resolved) else {
            return Ok(()); // new, so it is none that can be read
        };
        let same = |input: &PathBuf| {
            fs::metadata(input).is_ok_and(|input| same_file(&target, &input))
                || fs::canonicalize(input).is_ok_and(|input| input == self.resolved)
        };
        if inputs.iter().any(same) {
            return Err(Error::IsInput {
                path: self.shown.clone(),
            });
        }
        Ok(())
    }

    /// Checks that it is another file than `other` is.
    pub fn is_not(&self, other: &Target) -> Result<(), Error> {
        let same = match (fs::metadata(&self.resolved), fs::metadata(&other.resolved)) {
            (Ok(one), Ok(two)) => same_file(&one, &two) || self.place() == other.place(),
            // one that is there and one that is not are two
            (one, two) => one.is_err() && two.is_err() && self.place() == other.place(),
        };
        match same {
            false => Ok(()),
            true => Err(Error::SameOutput {
                path: self.shown.clone(),
            }),
        }
    }

    /// The directory by its only name, and the name in it.
    fn place(&self) -> (Option<PathBuf>, Option<&OsStr>) {
        let directory = fs::canonicalize(self.directory());
        (directory.ok(), self.resolved.file_name())
    }

    /// Replaces the file by what `write` writes.
    ///
    /// # Errors
    ///
    /// [`Error::Output`]; the target is as it was then.
    pub fn replace(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        let replace = || {
            go_with_signals()?;
            let draft = Draft::new(self.directory(), self.readers())?;
            write(&mut draft.file())?;
            match (&self.old, self.new) {
                (Some(old), _) => old.give(draft.file())?,
                (None, Readers::Owner) => give_to_caller(draft.file()),
                (None, Readers::All) => {}
            }
            draft.file().sync_all()?;
            draft.persist(self.directory(), &self.resolved)?;
            // Makes the rename last; a directory that cannot be opened is no reason
            // to call a written file unwritten.
            if let Ok(directory) = File::open(self.directory()) {
                let _ = directory.sync_all();
            }
            Ok(())
        };
        replace().map_err(|source| self.failed(source))
    }

    /// The path as the user gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shown
    }

    /// The same as text.
    #[must_use]
    pub fn shown(&self) -> String {
        self.shown.to_string_lossy().into_owned()
    }

    /// Where the file is, or is to be.
    pub(crate) fn directory(&self) -> &Path {
        match self.resolved.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Whom the file lets read it while it is written.
    fn readers(&self) -> Readers {
        match self.old {
            Some(_) => Readers::Owner,
            None => self.new,
        }
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Output {
            path: self.shown.clone(),
            source,
        }
    }
}

/// Whether both are one file, hard links included.
#[cfg(unix)]
fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| name(entry).unwrap())
            .collect()
    }

    #[test]
    fn the_target_is_untouched_until_the_rename() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        fs::write(&path, "old").unwrap();
        let target = Target::prepare(&path).unwrap();
        assert_eq!(names(dir.path()), ["page.html"]);
        target
            .replace(|file| {
                file.write_all(b"new")?;
                // what a kill at this point would leave behind
                assert_eq!(fs::read(&path)?, b"old");
                Ok(())
            })
            .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["page.html"]);
    }

    #[test]
    fn a_failing_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        fs::write(&path, "old").unwrap();
        let target = Target::prepare(&path).unwrap();
        let error = target
            .replace(|file| {
                file.write_all(b"half")?;
                Err(io::ErrorKind::StorageFull.into())
            })
            .expect_err("write fails");
        assert!(
            error.to_string().contains("page.html: cannot write"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["page.html"]);
    }

    #[test]
    fn places_that_cannot_be_written_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/page.html");
        let error = Target::prepare(&missing).expect_err("no directory");
        assert!(
            matches!(&error, Error::Output { path, .. } if *path == missing),
            "{error}"
        );
        let error = Target::prepare(dir.path()).expect_err("a directory");
        assert!(matches!(error, Error::NotAFile { .. }), "{error}");
        assert!(Target::prepare(Path::new("")).is_err());
        assert!(matches!(
            Target::prepare(Path::new("/dev/null")),
            Err(Error::NotAFile { .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn the_mode_is_kept_and_read_only_files_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        fs::write(&path, "old").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let target = Target::prepare(&path).unwrap();
        assert!(matches!(target.readers(), Readers::Owner));
        target.replace(|out| out.write_all(b"new")).unwrap();
        let now = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(now & 0o7777, 0o640);
        mode(0o444);
        let error = Target::prepare(&path).expect_err("read-only");
        assert!(error.to_string().ends_with("read-only"), "{error}");
        assert!(matches!(
            Target::prepare(Path::new("-")),
            Err(Error::StandardOutput)
        ));
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Target::prepare(&link)
            .unwrap()
            .replace(|out| out.write_all(b"new"))
            .unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }
}
