// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Telling a waiting person how far the work is.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Receives what is being done.
pub trait Progress {
    /// `what` is being done; `done` of `total` steps lie behind.
    fn at(&self, what: &str, done: usize, total: usize);
}

/// A [`Progress`] that says nothing.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn at(&self, _: &str, _: usize, _: usize) {}
}

/// A bar on standard error, shown after a second and only on a terminal.
#[derive(Debug)]
pub struct Bar {
    start: Instant,
    bar: RefCell<Option<ProgressBar>>,
    on_terminal: bool,
}

impl Default for Bar {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            bar: RefCell::new(None),
            on_terminal: std::io::stderr().is_terminal(),
        }
    }
}

impl Progress for Bar {
    fn at(&self, what: &str, done: usize, total: usize) {
        if !self.on_terminal || self.start.elapsed() < PATIENCE {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get_mut() {
            bar.finish_and_clear();
        }
    }
}

/// A line that says what is being done for as long as it lives, only on a terminal.
#[derive(Debug)]
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Begins to say so.
    pub fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(PATIENCE);
        Spinner(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
