// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Signals that end a capture early.
#![expect(
    clippy::disallowed_types,
    reason = "a signal handler sets it, no code of the core"
)]

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether to stop. The first signal asks for it; the second ends the program as if it were not
/// handled, whatever that leaves behind.
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Handles signals from now on, for as long as the process lives.
    pub fn listen() -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
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
