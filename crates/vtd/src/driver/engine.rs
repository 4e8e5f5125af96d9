// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidations of one unit, by its queue or by its registers, and waiting for them.

use super::{Command, Stuck, commands::Commands};
use crate::{
    direct::Direct,
    layout::Capabilities,
    plan::{Change, Invalidation, Plan, WriteBuffers, plan},
    queue::{Queue, Ticket},
    registers::*,
};
use alloc::sync::Arc;
use ioatlas_dma::{
    invalidation::{Invalidate, InvalidateError, Scope, WaitLimit},
    platform::Platform,
    units::DomainId,
};

/// A unit as something that takes commands and invalidations.
pub(super) struct Engine<P: Platform, R> {
    pub(super) platform: Arc<P>,
    pub(super) registers: R,
    pub(super) capabilities: Capabilities,
    pub(super) path: Path<P>,
    pub(super) commands: Commands<P>,
    pub(super) limit: WaitLimit,
}

/// How invalidations reach the unit.
pub(super) enum Path<P: Platform> {
    /// By its queue (ECAP.QI = 1).
    Queue(Queue<P>),
    /// By its registers (ECAP.QI = 0).
    Direct(Direct<P>),
}

impl<P: Platform> Path<P> {
    /// Changes whenever the unit has done anything.
    fn progress(&self, p: &P) -> u64 {
        match self {
            Path::Queue(queue) => queue.progress(p),
            Path::Direct(direct) => direct.progress(),
        }
    }
}

impl<P: Platform, R: Registers> Engine<P, R> {
    /// Gives one global command and waits for it.
    pub(super) fn command(&self, command: Command) -> Result<(), Stuck> {
        self.commands
            .give(&*self.platform, &self.registers, command, self.limit)
    }

    /// Pushes what was written to memory out of the unit's write buffers, if it has any.
    pub(super) fn flush_write_buffers(&self) -> Result<(), InvalidateError> {
        if !self.capabilities.needs_write_buffer_flush() {
            return Ok(());
        }
        self.commands
            .flush_write_buffers(&*self.platform, &self.registers, self.limit)
    }

    /// Begins what `plan` says, up to and without waiting.
    pub(super) fn begin(&self, plan: Plan<'_>) -> Result<Ticket, InvalidateError> {
        if plan.write_buffers == WriteBuffers::Flush {
            self.flush_write_buffers()?;
        }
        self.submit_all(plan.invalidations())
    }

    /// Hands over invalidations, at most [`BATCH`](crate::queue::BATCH) of them.
    pub(super) fn submit_all(
        &self,
        all: impl Iterator<Item = Invalidation> + Clone,
    ) -> Result<Ticket, InvalidateError> {
        let (p, registers) = (&*self.platform, &self.registers);
        match &self.path {
            Path::Queue(queue) => {
                queue.submit(p, registers, all.map(Invalidation::encode), self.limit)
            }
            Path::Direct(direct) => direct.submit(p, registers, all, self.limit),
        }
    }

    /// Does what must follow `change`, and waits. No device TLBs.
    pub(super) fn follow(&self, change: Change) -> Result<(), InvalidateError> {
        self.finish(plan(&self.capabilities, change, &[]))
    }

    /// Begins what `plan` says and waits. Where there is nothing to invalidate there is
    /// nothing to wait for.
    pub(super) fn finish(&self, plan: Plan<'_>) -> Result<(), InvalidateError> {
        if plan.invalidations().next().is_none() {
            return match plan.write_buffers {
                WriteBuffers::Flush => self.flush_write_buffers(),
                WriteBuffers::Leave => Ok(()),
            };
        }
        self.wait(self.begin(plan)?)
    }

    /// Whether everything up to `ticket` is done.
    pub(super) fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        match &self.path {
            Path::Queue(queue) => queue.done(&*self.platform, &self.registers, ticket),
            Path::Direct(direct) => direct.done(&self.registers, ticket),
        }
    }

    /// Waits until `ticket` is done, with no lock held. A unit that has reported nothing since a
    /// wait ran out of time is looked at once.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<(), InvalidateError> {
        let p = &*self.platform;
        let mut progress = 0;
        for turns in 0..self.limit.0 {
            progress = self.path.progress(p);
            if self.done(ticket)? {
                return Ok(());
            }
            let now = self.path.progress(p);
            let stalled = match &self.path {
                Path::Queue(queue) => queue.is_stalled_at(now),
                Path::Direct(direct) => direct.is_stalled_at(now),
            };
            if stalled {
                return Err(InvalidateError::TimedOut { turns });
            }
            p.relax();
        }
        match &self.path {
            Path::Queue(queue) => queue.stalled_at(progress),
            Path::Direct(direct) => direct.stalled_at(progress),
        }
        Err(InvalidateError::TimedOut {
            turns: self.limit.0,
        })
    }
}

/// Proves that no cache of the unit holds a pointer to its root and context tables: all is
/// removed, whatever is asked.
pub(super) struct Everything<'u, P: Platform, R>(pub(super) &'u Engine<P, R>);

#[allow(unsafe_code)] // a promise
// SAFETY: it asks for everything, whatever is asked of it, and says "done" when the unit does.
unsafe impl<P: Platform, R: Registers> Invalidate for Everything<'_, P, R> {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = Ticket;
    fn submit(&self, _: DomainId, _: Scope) -> Result<Ticket, InvalidateError> {
        let everything = plan(&self.0.capabilities, Change::Everything, &[]);
        self.0.begin(everything)
    }
    fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        self.0.done(ticket)
    }
}

/// Proves that the unit no longer reads the queue: it has been disabled (VT-d 4.1 §11.4.4.2, QIES =
/// 0). The queue is empty.
pub(super) struct QueueOff<'u, P: Platform, R> {
    pub(super) platform: &'u P,
    pub(super) registers: &'u R,
    pub(super) commands: &'u Commands<P>,
    pub(super) limit: WaitLimit,
}

#[allow(unsafe_code)] // a promise
// SAFETY: a queue that is off is not read (VT-d 4.1 §6.5.2); it is for the queue's own frames
// alone.
unsafe impl<P: Platform, R: Registers> Invalidate for QueueOff<'_, P, R> {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> {
        let turns = self.limit.0;
        self.commands
            .give(
                self.platform,
                self.registers,
                Command::DisableQueue,
                self.limit,
            )
            .map_err(|_| InvalidateError::TimedOut { turns })
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(self.registers.read32(GSTS) & GCMD_QIE == 0)
    }
}
