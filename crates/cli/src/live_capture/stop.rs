// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Signals that end a capture early.
#![expect(
    clippy::disallowed_types,
    reason = "a signal handler sets it, no code of the core"
)]

use crate::output::go_with_signals;
use crate::signals::ignores;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::unregister;
use signal_hook::{SigId, flag};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether to stop. The first signal asks for it; the second ends the program as if it were not
/// handled, whatever that leaves behind.
pub(super) struct Stop {
    asked: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Stop {
    /// Handles signals from now on, until they are let go. Under nohup a hangup stays
    /// ignored. An interrupt is handled even where a shell started us in the background, and so had
    /// it ignored: `kill -INT` means it, and what is left behind otherwise goes on tracing.
    pub fn listen() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        let hangup = (!ignores(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            // in this order, or the first signal would be taken for the second
            handlers.push(flag::register_conditional_default(
                signal,
                Arc::clone(&asked),
            )?);
            handlers.push(flag::register(signal, Arc::clone(&asked))?);
        }
        Ok(Self { asked, handlers })
    }

    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// There is nothing to be stopped any more: the next signal ends the program, and takes with it
    /// what is being written.
    pub fn let_go(&self) {
        match go_with_signals() {
            Ok(()) => {
                for handler in &self.handlers {
                    unregister(*handler);
                }
            }
            Err(_) => self.asked.store(true, Ordering::SeqCst),
        }
    }
}
