// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Commands and invalidations of one unit, and waiting for them.

use super::{Command, Stuck};
use crate::{
    layout::{Capabilities, ContextInvalidate, Words},
    plan::{everything, plan},
    queue::{Queue, Ticket},
    registers::*,
};
use alloc::sync::Arc;
use ioatlas_dma::{
    grace::{Invalidate, InvalidateError, Scope, WaitLimit},
    platform::Platform,
    units::DomainId,
};

/// A unit as something that takes commands and invalidations.
pub(super) struct Engine<P: Platform, R> {
    pub(super) platform: Arc<P>,
    pub(super) registers: R,
    pub(super) capabilities: Capabilities,
    pub(super) queue: Queue<P>,
    pub(super) limit: WaitLimit,
}

/// Changes one bit of the global command, all others staying as they are, and waits for the unit to say so
/// (VT-d 4.1 §11.4.4.1: one bit at a time, the next only after its status).
pub(super) fn command<P: Platform, R: Registers>(
    p: &P,
    registers: &R,
    command: Command,
    limit: WaitLimit,
) -> Result<(), Stuck> {
    let (bit, want) = match command {
        Command::SetRootTable => (GCMD_SRTP, GCMD_SRTP),
        Command::EnableQueue => (GCMD_QIE, GCMD_QIE),
        Command::EnableTranslation => (GCMD_TE, GCMD_TE),
        Command::DisableTranslation => (GCMD_TE, 0),
    };
    // interrupt remapping and whatever else is enabled survives
    let enabled = registers.read32(GSTS) & GSTS_ENABLES;
    registers.write32(GCMD, enabled & !bit | want);
    let mut status = 0;
    for _ in 0..limit.0 {
        status = registers.read32(GSTS);
        if status & bit == want {
            return Ok(());
        }
        p.relax();
    }
    Err(Stuck {
        command,
        status,
        limit,
    })
}

impl<P: Platform, R: Registers> Engine<P, R> {
    /// Queues `batch`.
    pub(super) fn queue(&self, batch: &[Words]) -> Result<Ticket, InvalidateError> {
        self.queue
            .submit(&*self.platform, &self.registers, batch, self.limit)
    }

    /// Queues the removal of everything that the unit has cached.
    pub(super) fn queue_everything(&self) -> Result<Ticket, InvalidateError> {
        self.queue(&[
            ContextInvalidate::Global.encode(),
            everything(&self.capabilities).encode(),
        ])
    }

    /// Removes one device's cached context entry, then what was translated by it, and waits.
    pub(super) fn flush_context(
        &self,
        context: ContextInvalidate,
        domain: DomainId,
    ) -> Result<(), InvalidateError> {
        let iotlb = plan(&self.capabilities, domain, Scope::DOMAIN);
        let ticket = self.queue(&[context.encode(), iotlb.encode()])?;
        self.wait(ticket)
    }

    /// Waits until `ticket` is done, with no lock held.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<(), InvalidateError> {
        for _ in 0..self.limit.0 {
            if self.done(ticket)? {
                return Ok(());
            }
            self.platform.relax();
        }
        Err(InvalidateError::TimedOut {
            turns: self.limit.0,
        })
    }
}

impl<P: Platform, R: Registers> Invalidate for Engine<P, R> {
    type Token = Ticket;
    #[inline]
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Ticket, InvalidateError> {
        self.queue(&[plan(&self.capabilities, domain, scope).encode()])
    }
    #[inline]
    fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        self.queue.done(&*self.platform, &self.registers, ticket)
    }
}

/// Proves that no cache of the unit holds a pointer to its root and context tables: all is removed, whatever is asked.
pub(super) struct Everything<'u, P: Platform, R>(pub(super) &'u Engine<P, R>);

impl<P: Platform, R: Registers> Invalidate for Everything<'_, P, R> {
    type Token = Ticket;
    fn submit(&self, _: DomainId, _: Scope) -> Result<Ticket, InvalidateError> {
        self.0.queue_everything()
    }
    fn done(&self, ticket: Ticket) -> Result<bool, InvalidateError> {
        self.0.done(ticket)
    }
}

/// Proves that the unit no longer reads the queue: it has been disabled (VT-d 4.1 §11.4.4.2, QIES = 0). The queue is empty.
pub(super) struct QueueOff<R>(pub(super) R);

impl<R: Registers> Invalidate for QueueOff<R> {
    type Token = ();
    fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> {
        let enabled = self.0.read32(GSTS) & GSTS_ENABLES;
        self.0.write32(GCMD, enabled & !GCMD_QIE);
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(self.0.read32(GSTS) & GCMD_QIE == 0)
    }
}
