// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The global command register: one command at a time, each waited for (VT-d 4.1 §11.4.4.1).
//!
//! # Theory
//!
//! A write to GCMD repeats every enable that GSTS shows, so that interrupt remapping, its
//! compatibility format and whatever else is on stays on, and none of the one-shot bits. Between
//! two writes the unit must have carried out the first. Reading GSTS and writing GCMD is one step
//! under the lock; waiting is not: the command under way is noted, and each caller that comes looks
//! whether it is done.
//!
//! **Write-buffer flushes** come from many CPUs at once. One that *begins* after a caller's writes
//! serves it, whichever CPU began it; one that was under way does not. So each caller takes the
//! number of the next flush to begin, and waits until that many are done.
//!
//! A host that commands interrupt remapping by its own writes to GCMD does so before bring-up
//! or after shut-down only, or holds off this driver: two writers that read GSTS and write
//! GCMD undo each other.

use super::{Command, Stuck};
use crate::registers::*;
use ioatlas_dma::{
    invalidation::{InvalidateError, WaitLimit},
    platform::{Lock, Platform},
};

/// Serializes reading GSTS and writing GCMD.
pub(super) struct Commands<P: Platform>(P::Lock<State>);

struct State {
    under_way: Option<Command>,
    /// Write-buffer flushes that have begun, and that are done.
    begun: u64,
    done: u64,
    /// Commands of any kind that were carried out.
    ended: u64,
    /// How many they were when a wait last ran out of time.
    stalled: Option<u64>,
}

impl<P: Platform> Commands<P> {
    pub(super) fn new() -> Self {
        Commands(P::Lock::new(State {
            under_way: None,
            begun: 0,
            done: 0,
            ended: 0,
            stalled: None,
        }))
    }

    /// Gives `command` and waits until the unit has carried it out.
    pub(super) fn give<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        command: Command,
        limit: WaitLimit,
    ) -> Result<(), Stuck> {
        let mut given = false;
        self.poll(p, registers, command, limit, |state, status| {
            if given {
                return state.under_way != Some(command);
            }
            given = state.begin(registers, command, status);
            false
        })
    }

    /// Flushes the unit's write buffers: what was written before the call is visible to the unit
    /// after it (VT-d 4.1 §6.8).
    pub(super) fn flush_write_buffers<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        limit: WaitLimit,
    ) -> Result<(), InvalidateError> {
        let command = Command::FlushWriteBuffers;
        let mut mine = None;
        let done = self.poll(p, registers, command, limit, |state, status| {
            let mine = *mine.get_or_insert(state.begun + 1);
            if state.done >= mine {
                return true;
            }
            state.begin(registers, command, status);
            false
        });
        done.map_err(|stuck| InvalidateError::TimedOut {
            turns: stuck.limit.0,
        })
    }

    /// Asks `turn` until it is content, each time with what the status register says, and a command
    /// that is done put away. A unit that has carried out no command since a wait ran out of time
    /// is asked once; the error says how often it was.
    fn poll<R: Registers>(
        &self,
        p: &P,
        registers: &R,
        command: Command,
        limit: WaitLimit,
        mut turn: impl FnMut(&mut State, u32) -> bool,
    ) -> Result<(), Stuck> {
        let (mut status, mut ended) = (0, 0);
        let stuck = |status, turns| Stuck {
            command,
            status,
            limit: WaitLimit(turns),
        };
        for turns in 0..limit.0 {
            let (content, stalled) = self.0.with(|state| {
                status = registers.read32(GSTS);
                state.settle(status);
                ended = state.ended;
                (turn(state, status), state.stalled == Some(ended))
            });
            if content {
                return Ok(());
            }
            if stalled {
                return Err(stuck(status, turns));
            }
            p.relax();
        }
        // as at the last look, when a command was under way
        self.0.with(|state| state.stalled = Some(ended));
        Err(stuck(status, limit.0))
    }
}

impl State {
    /// Puts away the command under way if it is done.
    fn settle(&mut self, status: u32) {
        if self
            .under_way
            .is_some_and(|command| command.is_done(status))
        {
            self.under_way = None;
            self.ended += 1;
            self.done = self.begun;
        }
    }

    /// Writes `command` unless another is under way; whether it did.
    fn begin<R: Registers>(&mut self, registers: &R, command: Command, status: u32) -> bool {
        if self.under_way.is_some() {
            return false;
        }
        let (bit, set) = command.bit();
        let value = if set { bit } else { 0 };
        registers.write32(GCMD, status & GSTS_ENABLES & !bit | value);
        self.under_way = Some(command);
        self.begun += u64::from(command == Command::FlushWriteBuffers);
        true
    }
}
