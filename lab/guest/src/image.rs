// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guest's first and only file system.
//!
//! `/init` is a prelude that all guests share, then the caller's script. The prelude puts busybox's
//! programs into `/bin`, mounts `/proc`, `/sys`, `/dev` and `/tmp`, reads the variables of
//! `/config`, and gives the script `say`, `fail`, `end` (powers off) and `load` (all modules).
//! Programs are in `/programs`, which is in the path, their libraries in `/lib`.

use crate::GuestError;
use crate::cpio::Archive;
use crate::elf;
use crate::packages::Tree;
use std::collections::BTreeSet;

/// What begins in each guest.
const PRELUDE: &str = include_str!("prelude.sh");

/// A file system that grows. What it is asked for and has already is not added again.
#[derive(Debug)]
pub struct Image<'a> {
    tree: &'a Tree,
    archive: Archive,
    config: String,
    directories: BTreeSet<String>,
    libraries: BTreeSet<String>,
    modules: Vec<String>,
}

impl<'a> Image<'a> {
    /// A file system with busybox, whose guest runs `script` (of a POSIX shell). Programs,
    /// libraries and modules come from `tree`.
    ///
    /// # Errors
    ///
    /// [`GuestError::NoFile`]: the tree has no `busybox` (package `busybox-static`).
    pub fn new(tree: &'a Tree, script: &str) -> Result<Self, GuestError> {
        let mut archive = Archive::default();
        for directory in [
            "bin", "dev", "etc", "lib", "lib64", "mnt", "modules", "proc", "programs", "sys", "tmp",
        ] {
            archive.directory(directory);
        }
        archive.program("init", format!("{PRELUDE}{script}").as_bytes());
        archive.program("bin/busybox", &tree.read("busybox")?);
        archive.link("bin/sh", "busybox");
        // some programs look up their user's name
        archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n");
        archive.file("etc/group", b"root:x:0:\n");
        Ok(Self {
            tree,
            archive,
            config: String::new(),
            directories: BTreeSet::new(),
            libraries: BTreeSet::new(),
            modules: Vec::new(),
        })
    }

    /// A variable of the script. `PARAMETERS_name` are the parameters of the module `name`.
    pub fn variable(&mut self, name: &str, value: &str) {
        let value = value.replace('\'', r"'\''");
        self.config += &format!("{name}='{value}'\n");
    }

    /// A file, with the directories above it: `etc/hosts`.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.directories_above(path);
        self.archive.file(path, content);
    }

    /// A program of our own, as `/programs/NAME`. A static one runs in any guest; of another
    /// the libraries are the tree's (`libc6`, `libgcc-s1`), which must not be older than those
    /// it was linked with.
    pub fn executable(&mut self, name: &str, content: &[u8]) -> Result<(), GuestError> {
        self.archive.program(&format!("programs/{name}"), content);
        self.needed_by(name, content)
    }

    /// A program of a package, by its name as a file, with the libraries and the
    /// loader that it needs.
    pub fn program(&mut self, name: &str) -> Result<(), GuestError> {
        let bytes = self.tree.read(name)?;
        self.executable(name, &bytes)
    }

    /// A library by its name as a file, with those that it needs: for what a program
    /// loads while it runs.
    pub fn library(&mut self, name: &str) -> Result<(), GuestError> {
        if !self.libraries.insert(name.to_owned()) {
            return Ok(());
        }
        let bytes = self.tree.read(name)?;
        self.archive.file(&format!("lib/{name}"), &bytes);
        self.needed_by(name, &bytes)
    }

    fn needed_by(&mut self, name: &str, bytes: &[u8]) -> Result<(), GuestError> {
        let needs = elf::needs(bytes).map_err(|detail| bad(name, detail))?;
        let loader = needs.loader.as_deref();
        if let Some(loader) = loader.and_then(|path| path.rsplit('/').next())
            && self.libraries.insert(loader.to_owned())
        {
            let bytes = self.tree.read(loader)?;
            self.archive.program(&format!("lib64/{loader}"), &bytes);
        }
        for library in needs.libraries {
            self.library(&library)?;
        }
        Ok(())
    }

    /// A module of the kernel, after those that it needs; `load` of the script loads all, in this
    /// order. Either of `-` and `_` will do.
    ///
    /// # Errors
    ///
    /// [`GuestError::NoFile`]: built in, or of no package; [`GuestError::BadFile`].
    pub fn module(&mut self, name: &str) -> Result<(), GuestError> {
        self.module_below(name, 0)
    }

    fn module_below(&mut self, name: &str, depth: usize) -> Result<(), GuestError> {
        // longer than any honest chain
        if depth > 64 {
            return Err(bad(name, "it needs itself".into()));
        }
        let file = format!("{}.ko", name.replace('-', "_"));
        if self.modules.contains(&file) {
            return Ok(());
        }
        let bytes = self.tree.module(name)?;
        for need in elf::module_needs(&bytes).map_err(|detail| bad(name, detail))? {
            self.module_below(&need, depth + 1)?;
        }
        self.archive.file(&format!("modules/{file}"), &bytes);
        self.modules.push(file);
        Ok(())
    }

    fn directories_above(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let above = &path[..at];
            if self.directories.insert(above.to_owned()) {
                self.archive.directory(above);
            }
        }
    }

    /// The archive for the kernel to unpack.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.archive.file("config", self.config.as_bytes());
        let order: String = self
            .modules
            .iter()
            .map(|name| format!("{name}\n"))
            .collect();
        self.archive.file("modules/order", order.as_bytes());
        self.archive.finish()
    }
}

fn bad(name: &str, detail: String) -> GuestError {
    GuestError::BadFile {
        name: name.into(),
        detail,
    }
}
