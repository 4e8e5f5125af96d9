// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Telling a waiting person how far the work is.
//!
//! A command has one [`Bar`], whatever it does one after the other: what takes part in it gets a
//! [`Part`] of it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the time left is told anew while nothing else is.
const REFRESH: Duration = Duration::from_millis(500);

/// Steps of a whole that is divided.
const WHOLE: usize = 1_000_000;

/// Receives what is being done.
pub trait Progress {
    /// `what` is being done; `done` of `total` steps lie behind. Where it is not known how many
    /// there are, `total` is 0.
    fn at(&self, what: &str, done: usize, total: usize);
}

/// A [`Progress`] that says nothing.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn at(&self, _: &str, _: usize, _: usize) {}
}

/// A part of some work, which is a whole to those who do it.
pub struct Part<'a> {
    whole: &'a (dyn Progress + Sync),
    from: usize,
    to: usize,
}

impl std::fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({}..{} of {WHOLE})", self.from, self.to)
    }
}

impl<'a> Part<'a> {
    /// Parts of a whole that come one after the other and take about as long as `weights` say.
    #[must_use]
    pub fn divide<const N: usize>(
        whole: &'a (dyn Progress + Sync),
        weights: [usize; N],
    ) -> [Self; N] {
        let sum: usize = weights.iter().sum();
        let mut behind = 0;
        let scaled = |weight: usize| (weight as u128 * WHOLE as u128 / sum.max(1) as u128) as usize;
        weights.map(|weight| {
            let from = scaled(behind);
            behind += weight;
            let to = scaled(behind);
            Part { whole, from, to }
        })
    }

    /// The `n`-th of as many equal parts.
    #[must_use]
    pub fn of(whole: &'a (dyn Progress + Sync), n: usize, many: usize) -> Self {
        let [_, part, _] = Self::divide(whole, [n, 1, many.saturating_sub(n + 1)]);
        part
    }
}

impl Progress for Part<'_> {
    fn at(&self, what: &str, done: usize, total: usize) {
        if total == 0 {
            return self.whole.at(what, done, 0);
        }
        let width = (self.to - self.from) as u128;
        let here = width * done.min(total) as u128 / total as u128;
        self.whole.at(what, self.from + here as usize, WHOLE);
    }
}

/// A bar on standard error, shown after a second and only on a terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    /// Whether it is known how much there is to do.
    is_bounded: Mutex<bool>,
    /// Ends the waiting for the moment to show it.
    _waits: Option<Sender<()>>,
}

impl Default for Bar {
    fn default() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style(false));
        let waits = std::io::stderr().is_terminal().then(|| show_soon(&bar));
        Self {
            bar,
            is_bounded: Mutex::new(false),
            _waits: waits,
        }
    }
}

/// Shows a bar unless what is returned is dropped before.
fn show_soon(bar: &ProgressBar) -> Sender<()> {
    let (waits, done) = channel();
    let bar = bar.clone();
    // the work is the same without
    let _ = thread::Builder::new().spawn(move || {
        if done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(REFRESH);
        }
    });
    waits
}

/// With a bar and the time left, or where how much there is to do is not known, without.
fn style(is_bounded: bool) -> ProgressStyle {
    let template = match is_bounded {
        true => "{bar:20} {percent:>3} %, {left}: {msg}",
        false => "{spinner} {elapsed}: {msg}",
    };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key(
        "left",
        |state: &indicatif::ProgressState, text: &mut dyn Write| {
            // without a step nothing is known of the rate
            let _ = match state.pos() {
                0 => text.write_str("begins"),
                _ => write!(text, "{:#} left", indicatif::HumanDuration(state.eta())),
            };
        },
    )
}

impl Progress for Bar {
    fn at(&self, what: &str, done: usize, total: usize) {
        let is_bounded = total > 0;
        let mut was = self
            .is_bounded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *was, is_bounded) != is_bounded {
            self.bar.set_style(style(is_bounded));
        }
        if is_bounded {
            self.bar.set_length(total as u64);
            self.bar.set_position(done as u64);
        }
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The last that was told.
    #[derive(Default)]
    struct Told(Mutex<(String, usize, usize)>);

    impl Progress for Told {
        fn at(&self, what: &str, done: usize, total: usize) {
            *self.0.lock().unwrap() = (what.into(), done, total);
        }
    }

    #[test]
    fn parts_of_parts_are_where_they_are_in_the_whole() {
        let told = Told::default();
        let says = || {
            let (what, done, total) = told.0.lock().unwrap().clone();
            (what, 100 * done / total)
        };
        let second = Part::of(&told, 1, 2);
        let [reading, working] = Part::divide(&second, [1, 4]);
        reading.at("a", 0, 7);
        assert_eq!(says(), ("a".into(), 50));
        reading.at("b", 7, 7);
        assert_eq!(says(), ("b".into(), 60));
        working.at("c", 1, 2);
        assert_eq!(says(), ("c".into(), 80));
        working.at("d", 9, 2);
        assert_eq!(says(), ("d".into(), 100));
        working.at("e", 0, 0);
        assert_eq!(
            told.0.lock().unwrap().2,
            0,
            "how much there is to do is not known"
        );
    }

    #[test]
    fn parts_without_weight_are_nowhere() {
        let told = Told::default();
        let [none, all] = Part::divide(&told, [0, 0]);
        none.at("a", 1, 2);
        all.at("b", 1, 2);
        assert_eq!(told.0.lock().unwrap().1, 0);
    }
}
