// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lines in the log that a peer causes, as often as it likes.
//!
//! A front end that reconnects, or a guest that resets its device, in a loop would fill a disk at
//! megabytes a second if each time made a line. So each place in the code that writes such a line
//! counts: within a minute the 1st, 2nd, 4th, 8th, .. line is written, with the count. A place
//! writes at most 25 lines a minute at ten million events, and the first event after a quiet minute
//! is always seen.
//!
//! Lines that the operator causes (signals, the socket's path) are not limited.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// After this time a place begins to count anew.
const PERIOD: Duration = Duration::from_secs(60);

/// A place in the code that writes lines. See the module, and [`peer_log`].
pub(crate) struct Site(Mutex<Counted>);

struct Counted {
    since: Option<Instant>,
    lines: u64,
}

/// How often something happened within a period; shown where it was more than once.
pub(crate) struct Times(u64);

impl Site {
    pub(crate) const fn new() -> Self {
        Site(Mutex::new(Counted {
            since: None,
            lines: 0,
        }))
    }

    /// Counts a line; says whether it is to be written.
    pub(crate) fn due(&self) -> Option<Times> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<Times> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *counted.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= PERIOD {
            (counted.since, counted.lines) = (Some(now), 0);
        }
        counted.lines += 1;
        let lines = counted.lines;
        lines.is_power_of_two().then_some(Times(lines))
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => Ok(()),
            times => write!(f, " ({times} times within a minute)"),
        }
    }
}

/// `log::log!` for a line that a peer causes: `peer_log!(Warn, "queue {index}: {why}")`.
macro_rules! peer_log {
    ($level:ident, $($said:tt)+) => {{
        static SITE: $crate::log_limit::Site = $crate::log_limit::Site::new();
        if let Some(times) = SITE.due() {
            log::log!(log::Level::$level, "{}{times}", format_args!($($said)+));
        }
    }};
}
pub(crate) use peer_log;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_thin_out_and_begin_anew_after_a_while() {
        let site = Site::new();
        let start = Instant::now();
        let written = |at: Instant, lines: u64| -> Vec<String> {
            let due = (0..lines).filter_map(|_| site.due_at(at));
            due.map(|times| times.to_string()).collect()
        };
        let first = written(start, 1000);
        assert_eq!(first.len(), 10, "{first:?}");
        assert_eq!(first[0], "");
        assert_eq!(first[9], " (512 times within a minute)");
        assert!(written(start + PERIOD / 2, 24).len() <= 1);
        assert_eq!(written(start + PERIOD, 3).len(), 2);
    }
}
