// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Temporary names, which a signal that ends the program takes with it.

use crate::signals::ignores;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io, thread};

static NAMES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn names() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary name that is taken; removing it is not this value's business.
#[derive(Debug)]
pub(super) struct Leftover(PathBuf);

impl Leftover {
    /// What `make` makes at a name, and the name. No signal comes between.
    pub fn made<T>(name: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<(T, Self)> {
        let mut names = names();
        let made = make()?;
        names.insert(name.into());
        Ok((made, Self(name.into())))
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        names().remove(&self.0);
    }
}

/// From now on a signal that ends the program removes what has a temporary name before. What the
/// program was started with as ignored stays so.
pub(crate) fn go_with_signals() -> io::Result<()> {
    static LISTENING: Mutex<bool> = Mutex::new(false);
    let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    if *listening {
        return Ok(());
    }
    let ending = [SIGINT, SIGTERM, SIGHUP];
    let mut signals = Signals::new(ending.into_iter().filter(|signal| !ignores(*signal)))?;
    let end = move || {
        for signal in signals.forever() {
            // held until the end: nothing is made any more
            let mut names = names();
            remove(&mut names, |_| true);
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().spawn(end)?;
    *listening = true;
    Ok(())
}

fn remove(names: &mut BTreeSet<PathBuf>, which: impl Fn(&Path) -> bool) {
    names.retain(|name| {
        let goes = which(name);
        if goes {
            // what is gone already need not go
            let _ = fs::remove_file(name);
        }
        !goes
    });
}

/// What a signal does, to the names in one folder.
#[cfg(test)]
pub(super) fn remove_in(folder: &Path) {
    remove(&mut names(), |name| name.starts_with(folder));
}
