// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The end of a unit's use: translation off, caches empty, queue off, every frame back.

use super::{
    bring_up::ACTIVE,
    engine::{Engine, Everything, QueueOff},
    *,
};
use crate::authority::OURS;
use alloc::boxed::Box;
use ioatlas_dma::platform::{Atomic64, Ordering};

impl<P: Platform, R: Registers> Unit<P, R> {
    /// Ends translation, flushes everything, disables the queue and gives all frames back.
    ///
    /// Without translation the unit lets every device reach all of memory, so none may be attached.
    /// A unit that was only prepared goes on translating as it did before; its queue is off.
    ///
    /// # Errors
    /// The first step that failed; the unit itself comes back where nothing was done yet.
    ///
    /// # Safety
    /// Devices behind this unit reach physical memory from then on, by whatever addresses they have
    /// been told: none of them accesses memory by its own initiative any more (they are reset, or
    /// do not master their bus), or only what keeps the promise of
    /// [`Lent::new`](ioatlas_dma::domain::Lent::new).
    #[allow(clippy::type_complexity)]
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn shut_down(self) -> Result<(), (ShutDownError, Option<Box<Self>>)> {
        let devices = self.contexts.with(|contexts| contexts.devices());
        if devices != 0 {
            let error = ShutDownError::Attached { devices };
            return Err((error, Some(Box::new(self))));
        }
        self.dismantle().map_err(|error| (error, None))
    }

    fn dismantle(self) -> Result<(), ShutDownError> {
        let Unit {
            engine,
            root,
            contexts,
            sequence,
            stage,
            ..
        } = self;
        let platform = engine.platform.clone();
        let p = &*platform;
        let mut tables: Vec<TableFrame> = contexts.with(|all| all.take_tables().collect());
        tables.push(root);
        let of_queue = match &engine.path {
            Path::Queue(_) => 2,
            Path::Direct(_) => 0,
        };
        let lost = tables.len() + of_queue;
        if stage.load(Ordering::Relaxed) == ACTIVE {
            engine
                .command(Command::DisableTranslation)
                .map_err(|cause| ShutDownError::Stuck { cause, lost })?;
        }
        let failed = |cause| ShutDownError::Invalidate { cause, lost };
        release(p, &sequence, &Everything(&engine), engine.limit, tables).map_err(failed)?;
        let Engine {
            registers,
            path,
            commands,
            limit,
            ..
        } = engine;
        let Path::Queue(queue) = path else {
            return Ok(());
        };
        let off = QueueOff {
            platform: p,
            registers: &registers,
            commands: &commands,
            limit,
        };
        let failed = |cause| ShutDownError::Invalidate { cause, lost: 2 };
        release(p, &sequence, &off, limit, queue.into_frames()).map_err(failed)
    }
}

/// Gives `frames` back to the platform, against proof by `unit` that it holds no pointer to them.
/// Where there is no proof they are lost.
fn release<P: Platform>(
    p: &P,
    sequence: &FlushSequence<P>,
    unit: &impl Invalidate,
    limit: WaitLimit,
    frames: impl IntoIterator<Item = TableFrame>,
) -> Result<(), InvalidateError> {
    let retired: Vec<_> = frames
        .into_iter()
        .map(|frame| sequence.retire(p, frame, Scope::DOMAIN))
        .collect();
    let done = sequence
        .flush(p, unit, DomainId(0), Scope::DOMAIN, limit)
        .map_err(|failed| failed.cause)?;
    for frame in retired {
        // retired just before the flush began, which was of everything: it always settles
        if let Ok(flushed) = frame.complete(&done) {
            p.frame_free(OURS, flushed.into_fresh());
        }
    }
    Ok(())
}
