// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A domain of a deferred policy that is made strict while it runs, and deferred again: what it
//! promises when.
//!
//! It is *strict* from the return of a switch to that, if none to deferred was in its call since
//! that was called, until the next call of a switch to deferred. What returned from its unmap
//! before the end of such a time is flushed, and is judged as under a strict policy for good; all
//! else by the policy's bounds. An access is judged by what was so when it moved its data.

use super::{DomainSerial, Event, Ledger};

#[derive(Clone, Copy, Default)]
pub(super) struct Modes {
    /// Switches to deferred in their call, and when the last of them returned.
    deferring: u32,
    deferred: Event,
    /// While it is strict.
    now: bool,
    strict: Strictness,
}

/// What a domain that was deferred has promised as strict.
#[derive(Clone, Copy, Default)]
pub(super) struct Strictness {
    /// The last time of being strict, from which on what returned before is flushed.
    since: Event,
    /// What returned before that is flushed.
    until: Event,
}

impl Strictness {
    /// Whether what returned at `returned` was to be flushed; if so, since when no access reaches
    /// it.
    pub fn flushed(&self, returned: Event) -> Option<Event> {
        (returned < self.until).then_some(returned.max(self.since))
    }
}

impl Modes {
    /// Whether it is strict now.
    pub fn is_strict(&self) -> bool {
        self.now
    }
    /// As an access sees it that moves its data now.
    pub fn strictness(&self) -> Strictness {
        match self.now {
            true => Strictness {
                until: Event::MAX,
                ..self.strict
            },
            false => self.strict,
        }
    }
}

impl Ledger {
    /// A switch to deferred is called.
    pub fn defer_called(&mut self, domain: DomainSerial) {
        let now = self.now();
        let modes = &mut self.spaces[domain.0].modes;
        modes.deferring += 1;
        if core::mem::take(&mut modes.now) {
            modes.strict.until = now;
        }
    }

    pub fn defer_returned(&mut self, domain: DomainSerial) {
        let now = self.now();
        let modes = &mut self.spaces[domain.0].modes;
        modes.deferring -= 1;
        modes.deferred = now;
    }

    /// A switch to strict that was `called` has succeeded.
    pub fn made_strict(&mut self, domain: DomainSerial, called: Event) {
        let now = self.now();
        let space = &mut self.spaces[domain.0];
        if space.modes.deferring > 0 || space.modes.deferred > called {
            return; // the other one may have been the last
        }
        if !space.modes.now {
            (space.modes.now, space.modes.strict.since) = (true, now);
        }
        for (page, stale) in space.stale.clone() {
            self.check_strict(
                domain,
                page,
                &stale,
                "was unmapped before the switch to strict",
            );
        }
    }
}
