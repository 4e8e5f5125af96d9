// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest's boot: what its image has, and how it is watched.

use crate::back_end;
use crate::error::Error;
use crate::machine::{self, Card};
use ioatlas_guest::{Console, GuestError, Ignored, Image, Keep, Tree, Watch};
use std::env;
use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory for a guest's run.
pub fn directory() -> Result<TempDir, Error> {
    let made = tempfile::Builder::new().prefix("ioatlas-guest-").tempdir();
    made.map_err(|why| Error::file(&env::temp_dir(), why))
}

/// Does something with such a directory, which is kept where that fails, unless a
/// signal asked to stop.
pub fn within<T>(
    of: &impl Display,
    work: impl FnOnce(&Path) -> Result<T, Error>,
) -> Result<T, Error> {
    let directory = directory()?;
    work(directory.path()).inspect_err(|error| {
        if !matches!(error, Error::Guest(GuestError::Interrupted)) {
            eprintln!("{of}: logs are in {}", directory.keep().display());
        }
    })
}

/// A guest to boot.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// What it is made of.
    pub tree: &'a Tree,
    /// Where its files are.
    pub directory: &'a Path,
    /// After so long it is killed.
    pub limit: Duration,
    /// What drives the card in it.
    pub card: Card,
}

impl<'a> Boot<'a> {
    /// An image with this program in it, that runs `script`.
    pub fn image(&self, script: &str) -> Result<Image<'a>, Error> {
        let mut image = Image::new(self.tree, script)?;
        let ours = env::current_exe().map_err(Error::io("the path of this program"))?;
        let program = fs::read(&ours).map_err(|why| Error::file(&ours, why))?;
        image.executable("vhost-guest", &program)?;
        Ok(image)
    }

    /// Boots it, and waits for its end. `name` is how progress calls it.
    pub fn run(
        &self,
        name: &str,
        image: Image<'_>,
        console: &mut impl Console,
    ) -> Result<(), Error> {
        let initrd = self.directory.join("guest.cpio");
        fs::write(&initrd, image.finish()).map_err(|why| Error::file(&initrd, why))?;
        let kernel = self.tree.only("vmlinuz-")?;
        let socket = back_end::socket(self.directory);
        let watch = Watch {
            arguments: machine::arguments(self.card, kernel, &initrd, &socket),
            directory: self.directory,
            limit: self.limit,
            keep_log: Keep::All,
        };
        let begun = Instant::now();
        let phase = |what: &str| {
            // progress that cannot be read is no failure
            let seconds = begun.elapsed().as_secs();
            let _ = writeln!(std::io::stderr(), "{seconds:4} s  {name}: the guest {what}");
        };
        let ended = watch.run::<_, GuestError>(console, Ignored, phase, || Ok(()));
        // it is much larger than the logs, which are kept where this fails
        let _ = fs::remove_file(&initrd);
        Ok(ended?)
    }
}
