// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Signals that end a capture early.
#![expect(
    clippy::disallowed_types,
    reason = "a signal handler sets it, no code of the core"
)]

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether to stop. The first signal asks for it; the second ends the program as if it were not
/// handled, whatever that leaves behind.
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Handles signals from now on, for as long as the process lives. Under nohup a hangup stays
    /// ignored. An interrupt is handled even where a shell started us in the background, and so had
    /// it ignored: `kill -INT` means it, and what is left behind otherwise goes on tracing.
    pub fn listen() -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let hangup = (!ignores(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            // in this order, or the first signal would be taken for the second
            flag::register_conditional_default(signal, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Self(stop))
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// There is nothing to be stopped any more: the next signal ends the program.
    pub fn let_go(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether this process was started with the signal ignored.
fn ignores(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored(&status) & (1 << (signal - 1)) != 0
}

/// The signals that a process ignores, from bit 0 for signal 1.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn the_set_of_ignored_signals_is_read() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!((ignored(status), ignored("")), (0x1001, 0));
    }
}
