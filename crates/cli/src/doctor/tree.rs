// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files below a root, `/` or a recorded copy of it, read so that no content of theirs can harm.
//!
//! A name never leads out of the root: links are followed here, one component at a time, as the
//! kernel does after `chroot`. Only regular files are opened, so a pipe cannot make a reading wait,
//! and of a file or a folder no more than a bound is read. What is not there is `None`; what is
//! there and cannot be read is `None` as well, and kept in a list.

use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// Bytes of a file that are read, where nothing else is said.
pub(super) const FILE_BYTES: u64 = 64 << 10;
/// Entries of a folder that are read.
const ENTRIES: usize = 65_536;
/// Entries of all folders that are read. A server of 1,000 devices has some 100,000.
const ALL_ENTRIES: usize = 1 << 20;
/// Links that a name may lead through.
const LINKS: usize = 16;
/// Troubles that are kept; the rest is counted.
const TROUBLES: usize = 64;

/// A file that is there and could not be read, or not wholly.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Trouble {
    /// Below the root.
    pub path: String,
    pub reason: String,
}

/// What could not be read: the first of it, and how much there is.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Troubles {
    pub first: Vec<Trouble>,
    pub count: u64,
}

/// The root.
pub(super) struct Tree {
    root: PathBuf,
    troubles: RefCell<Troubles>,
    /// Entries of folders that may still be read.
    entries: Cell<usize>,
}

/// A folder of a tree, by its real path below the root.
pub(super) struct Folder<'t> {
    tree: &'t Tree,
    path: PathBuf,
}

/// Whether a folder can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Absent,
    Denied,
    Listed,
}

impl Tree {
    /// The tree in `root`, which has to be a folder.
    pub fn new(root: &Path) -> io::Result<Self> {
        fs::read_dir(root)?;
        Ok(Tree {
            root: root.into(),
            troubles: RefCell::default(),
            entries: Cell::new(ALL_ENTRIES),
        })
    }

    /// The folder at `path` below the root.
    pub fn folder(&self, path: &str) -> Option<Folder<'_>> {
        let top = Folder {
            tree: self,
            path: PathBuf::new(),
        };
        top.folder(path)
    }

    /// The text of the file at `path` below the root.
    pub fn text(&self, path: &str) -> Option<String> {
        self.text_of(path, FILE_BYTES)
    }

    /// The text of the file at `path`, if it has at most `most` bytes.
    pub fn text_of(&self, path: &str, most: u64) -> Option<String> {
        let (folder, name) = path.rsplit_once('/')?;
        self.folder(folder)?.text_of(name, most)
    }

    /// What could not be read so far.
    pub fn troubles(&self) -> Troubles {
        self.troubles.borrow().clone()
    }

    /// Keeps that `path` could not be read.
    pub fn trouble(&self, path: &Path, reason: impl ToString) {
        let mut troubles = self.troubles.borrow_mut();
        troubles.count += 1;
        if troubles.first.len() < TROUBLES {
            troubles.first.push(Trouble {
                path: path.display().to_string(),
                reason: reason.to_string(),
            });
        }
    }

    /// Keeps `error` of `path`, unless it says that nothing is there.
    fn failed<T>(&self, path: &Path, error: &io::Error) -> Option<T> {
        use io::ErrorKind::{NotADirectory, NotFound};
        if !matches!(error.kind(), NotFound | NotADirectory) {
            self.trouble(path, reason(error));
        }
        None
    }

    /// The path without links that `path` leads to from `base`, whose path has none.
    fn resolve(&self, base: &Path, path: &Path) -> Option<PathBuf> {
        let mut real = base.to_owned();
        let mut links = 0;
        let mut todo = VecDeque::new();
        lead(&mut todo, path);
        while let Some(name) = todo.pop_front() {
            if name == "/" {
                real = PathBuf::new();
                continue;
            }
            if name == ".." {
                // Above the root is the root.
                real.pop();
                continue;
            }
            let next = real.join(&name);
            let full = self.root.join(&next);
            let found = fs::symlink_metadata(&full).and_then(|metadata| {
                let link = metadata.is_symlink();
                link.then(|| fs::read_link(&full)).transpose()
            });
            match found {
                Err(error) => return self.failed(&next, &error),
                Ok(None) => real = next,
                Ok(Some(_)) if links == LINKS => {
                    self.trouble(&next, "too many links");
                    return None;
                }
                Ok(Some(target)) => {
                    links += 1;
                    lead(&mut todo, &target);
                }
            }
        }
        Some(real)
    }
}

/// Puts the components of `path` in front of those that are left.
fn lead(todo: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::RootDir => todo.push_front("/".into()),
            Component::ParentDir => todo.push_front("..".into()),
            Component::Normal(name) => todo.push_front(name.into()),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// The system's words without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_lowercase()
}

impl<'t> Folder<'t> {
    /// The folder at `path` from here.
    pub fn folder(&self, path: &str) -> Option<Folder<'t>> {
        let path = self.tree.resolve(&self.path, Path::new(path))?;
        Some(Folder {
            tree: self.tree,
            path,
        })
    }

    /// The names in the folder, sorted; none if it is no folder.
    pub fn names(&self) -> Vec<String> {
        let entries = match fs::read_dir(self.tree.root.join(&self.path)) {
            Ok(entries) => entries,
            Err(error) => {
                return self.tree.failed(&self.path, &error).unwrap_or_default();
            }
        };
        let mut names = Vec::new();
        for entry in entries {
            let left = self.tree.entries.get();
            if left == 0 {
                self.tree
                    .trouble(&self.path, "too many entries in all folders");
                break;
            }
            self.tree.entries.set(left - 1);
            match entry.map(|entry| entry.file_name().into_string()) {
                _ if names.len() == ENTRIES => {
                    self.tree.trouble(&self.path, "too many entries");
                    break;
                }
                Ok(Ok(name)) => names.push(name),
                Ok(Err(name)) => self
                    .tree
                    .trouble(&self.path.join(name), "its name is not UTF-8"),
                Err(error) => {
                    self.tree.trouble(&self.path, reason(&error));
                    break;
                }
            }
        }
        names.sort();
        names
    }

    /// Whether the folder can be listed. That it cannot is no trouble.
    pub fn access(&self) -> Access {
        match fs::read_dir(self.tree.root.join(&self.path)) {
            Ok(_) => Access::Listed,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Access::Denied,
            Err(_) => Access::Absent,
        }
    }

    /// The text of a file, without spaces and line feeds around it.
    pub fn text(&self, name: &str) -> Option<String> {
        self.text_of(name, FILE_BYTES)
    }

    /// The text of a file of at most `most` bytes.
    pub fn text_of(&self, name: &str, most: u64) -> Option<String> {
        let (path, bytes) = self.bytes(name, most)?;
        if bytes.len() as u64 > most {
            self.tree
                .trouble(&path, format!("larger than {} KiB", most >> 10));
            return None;
        }
        match String::from_utf8(bytes) {
            Ok(text) => Some(text.trim().into()),
            Err(_) => {
                self.tree.trouble(&path, "not UTF-8");
                None
            }
        }
    }

    /// The begin of a file, up to the bound, whatever its bytes are.
    pub fn begin(&self, name: &str) -> Option<String> {
        let (_, bytes) = self.bytes(name, FILE_BYTES)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file's bytes, of which one more than `most` may be there, and its real path.
    pub fn bytes(&self, name: &str, most: u64) -> Option<(PathBuf, Vec<u8>)> {
        let path = self.tree.resolve(&self.path, Path::new(name))?;
        let full = self.tree.root.join(&path);
        let is_file = fs::symlink_metadata(&full).is_ok_and(|metadata| metadata.is_file());
        if !is_file {
            self.tree.trouble(&path, "not a regular file");
            return None;
        }
        let mut bytes = Vec::new();
        let read = File::open(&full).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => Some((path, bytes)),
            Err(error) => self.tree.failed(&path, &error),
        }
    }

    /// The last component of what a link leads to, which is not looked at.
    pub fn link(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.tree.root.join(&self.path).join(name)).ok()?;
        match target.file_name()?.to_str() {
            Some(last) => Some(last.into()),
            None => {
                self.tree
                    .trouble(&self.path.join(name), "leads to a name that is not UTF-8");
                None
            }
        }
    }
}
