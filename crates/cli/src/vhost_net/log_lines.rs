// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The library's log on standard error, above the line that says how things stand.

use indicatif::{ProgressBar, ProgressDrawTarget};
use ioatlas_present::printable;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::io::{IsTerminal as _, Write as _};
use std::sync::OnceLock;

/// Columns of a line; what a front end makes us say is not longer.
const WIDTH: usize = 400;

struct Lines {
    bar: Option<ProgressBar>,
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warning",
            _ => "note",
        };
        let line = printable(&format!("{level}: {}", record.args()), WIDTH);
        // Nowhere is left to report a failing standard error.
        let print = || {
            let _ = writeln!(std::io::stderr(), "{line}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn flush(&self) {}
}

/// Begins to print; returns the line that it makes room for, where standard error is a terminal.
pub(super) fn begin() -> Option<ProgressBar> {
    static LINES: OnceLock<Lines> = OnceLock::new();
    let lines = LINES.get_or_init(|| Lines {
        bar: std::io::stderr()
            .is_terminal()
            .then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())),
    });
    // A program that has a logger keeps it.
    if log::set_logger(lines).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    lines.bar.clone()
}
