// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Locks: which CPU waits, which is next, and what handing over costs.
//!
//! # Theory
//!
//! Every CPU that wants a lock writes the lock's line (test-and-set: reads it, if it is held). What
//! then differs is the way from one holder to the next:
//!
//! * **Test-and-set**: all that wait hold the line to read. The release takes it from them; they
//!   all get it back, one at a time, and the nearest one wins, of equals the one that came first.
//!   The others' attempts still occupy the line.
//! * **Ticket**: the same, but the order is that of arrival. The line is served in no particular
//!   order, so the next holder has it after half of those that wait, on average.
//! * **Queue**: each waits on a line of its own; handing over is one transfer, however many wait.
//!
//! The data under a lock moves with it: first lock and data, lines that the holder writes and that
//! come together; then, one after the other, a number of lines behind pointers
//! ([`Params::guarded_lines`](crate::timing::params::Params::guarded_lines)), from the last holder.

use crate::timing::{
    account::Category,
    lines::{LineId, Lines, Spread},
    params::LockModel,
    topology::Topology,
};
use core::panic::Location;
use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
};

pub(crate) struct LockState {
    /// The lock's own line, then those of its data.
    pub(crate) lines: Vec<LineId>,
    pub(crate) holder: Option<usize>,
    pub(crate) last_holder: Option<usize>,
    waiting: VecDeque<Waiting>,
    pub(crate) data: &'static str,
    pub(crate) first: &'static Location<'static>,
    pub(crate) category: Category,
    pub(crate) use_: LockUse,
}

struct Waiting {
    cpu: usize,
    since: u64,
}

/// What happened to a lock since the measurement began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LockUse {
    pub(crate) taken: u64,
    /// Of these, after a wait.
    pub(crate) contended: u64,
    pub(crate) waited: u64,
    /// The most that waited at once.
    pub(crate) longest_queue: usize,
}

/// A lock was handed over.
pub(crate) struct Handed {
    pub(crate) to: usize,
    /// When the new holder has it.
    pub(crate) at: u64,
    pub(crate) waited: u64,
}

impl LockState {
    /// CPU `cpu` begins to wait.
    pub(crate) fn wait(&mut self, cpu: usize, since: u64) {
        self.waiting.push_back(Waiting { cpu, since });
        let longest = self.use_.longest_queue.max(self.waiting.len());
        self.use_.longest_queue = longest;
    }
    pub(crate) fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The holder lets go at time `now`. Returns the next holder.
    pub(crate) fn hand_over(
        &mut self,
        model: LockModel,
        lines: &mut Lines,
        topology: Topology,
        now: u64,
    ) -> Option<Handed> {
        let from = self.holder.take()?;
        self.last_holder = Some(from);
        let near = |w: &Waiting| topology.socket(w.cpu) == topology.socket(from);
        let next = match model {
            LockModel::TestAndSet => self.waiting.iter().position(near).unwrap_or(0),
            LockModel::Ticket | LockModel::Queue => 0,
        };
        let next = self.waiting.remove(next)?;
        let one = lines.distance(from, next.cpu);
        let at = match model {
            LockModel::Queue => now + one,
            LockModel::TestAndSet | LockModel::Ticket => {
                let others = self.waiting.iter().map(|w| w.cpu);
                let spinning = others.chain([next.cpu]);
                let all = lines.all_read(self.lines[0], spinning, now) - now;
                let count = self.waiting.len() as u64 + 1;
                now + match model {
                    LockModel::Ticket => all * (count + 1) / (2 * count),
                    _ => one,
                }
            }
        };
        // a CPU that was still fetching the lock's line when it became free has it when
        // the line has come
        let at = at.max(next.since);
        self.holder = Some(next.cpu);
        let waited = at - next.since;
        self.use_.waited += waited;
        Some(Handed {
            to: next.cpu,
            at,
            waited,
        })
    }
}

/// All locks, by the order in which they were first taken.
pub(crate) struct Locks {
    by_address: HashMap<usize, usize, BuildHasherDefault<Spread>>,
    pub(crate) all: Vec<LockState>,
}

impl Locks {
    pub(crate) fn new() -> Self {
        Locks {
            by_address: HashMap::default(),
            all: Vec::new(),
        }
    }
    /// The number of the lock at `address`, made by `make` if it is new.
    pub(crate) fn at(&mut self, address: usize, make: impl FnOnce(usize) -> LockState) -> usize {
        let all = &mut self.all;
        *self.by_address.entry(address).or_insert_with(|| {
            all.push(make(all.len()));
            all.len() - 1
        })
    }
    pub(crate) fn forget_use(&mut self) {
        self.all
            .iter_mut()
            .for_each(|l| l.use_ = LockUse::default());
    }
}

impl LockState {
    pub(crate) fn new(
        lines: Vec<LineId>,
        data: &'static str,
        first: &'static Location<'static>,
        category: Category,
    ) -> Self {
        LockState {
            lines,
            holder: None,
            last_holder: None,
            waiting: VecDeque::new(),
            data,
            first,
            category,
            use_: LockUse::default(),
        }
    }
}
