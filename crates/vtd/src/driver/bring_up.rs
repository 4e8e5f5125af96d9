// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Taking a unit into use, fresh or as firmware left it.
//!
//! # Order
//!
//! *Prepare*: check what the unit can do; if its queue is enabled, let it run empty and disable it
//! (VT-d 4.1 §6.5.2, IQA is written only while the queue is off); our queue, enabled. Nothing has
//! changed for any device yet: what firmware translates is still translated by firmware's tables.
//! The caller may attach devices now, into our tables, under domain ids that no context of
//! firmware's has ([`Unit::reserve_firmware_ids`]): the caches hold entries under those.
//!
//! *Activate*: our root table by SRTP, translation staying as it is; then, unless the unit does so
//! itself (ESRTPS), global context-cache and IOTLB invalidation (§11.4.5); then translation on, if
//! it was off. So a unit that translates is never without translation: a device that was attached
//! in between (firmware's RMRR devices) goes from the old table to the new one, any other is
//! blocked.

use super::{device_tlbs::DeviceTlbs, engine::Engine, ids::Stale, *};
use crate::authority::OURS;
use crate::{direct::Direct, queue::Queue};
use alloc::sync::Arc;
use check::check;
use commands::Commands;
use ioatlas_dma::platform::{Atomic64, FreshFrame, Lock, Ordering};

/// [`Unit::stage`]: nothing points to our root table.
pub(super) const PREPARED: u64 = 0;
/// [`Unit::stage`]: the unit may use our root table.
pub(super) const ACTIVE: u64 = 1;

impl<P: Platform, R: Registers> Unit<P, R> {
    /// Takes a unit into use: [`prepare`](Self::prepare) and [`activate`](Self::activate) in one.
    /// No device is attached, so all are blocked.
    ///
    /// # Errors
    /// What the unit cannot do or did not do.
    pub fn bring_up(platform: Arc<P>, registers: R, config: Config) -> Result<Self, BringUpError> {
        let unit = Self::prepare(platform, registers, config)?;
        unit.activate()?;
        Ok(unit)
    }

    /// Makes a unit ready: tables and queue. Whatever it translates, it goes on translating
    /// as before until [`activate`](Self::activate); devices that must not be interrupted
    /// are attached before that.
    ///
    /// The frames are lost where a step after the first register write fails: nothing proves that
    /// the unit let go of them.
    ///
    /// # Errors
    /// What the unit cannot do or did not do.
    pub fn prepare(platform: Arc<P>, registers: R, config: Config) -> Result<Self, BringUpError> {
        let capabilities = Capabilities::new(registers.read64(CAP), registers.read64(ECAP));
        let domain_ids = check(&capabilities)?;
        let status = registers.read32(GSTS);
        if status & (GCMD_TE | GCMD_QIE) != 0 && config.live == Live::Refuse {
            return Err(BringUpError::Live { status });
        }
        if status & GCMD_TE != 0 {
            let root = registers.read64(RTADDR);
            if root & RTADDR_MODE_MASK != 0 {
                return Err(BringUpError::TableMode { root });
            }
        }
        // a unit that does not translate is activated with its caches emptied, and a root pointer
        // that flushes leaves nothing behind
        let stale = match status & GCMD_TE != 0 && !capabilities.root_pointer_flushes() {
            true => Stale::Any,
            false => Stale::None,
        };
        let (p, limit) = (&*platform, config.limit);
        let commands = Commands::new();
        let (root, path) = match capabilities.queued_invalidation() {
            true => {
                let [root, ring, words] = frames(p).ok_or(BringUpError::NoFrame)?;
                let queue = Queue::new(p, ring.publish(), words.publish(), limit);
                (root, Path::Queue(queue))
            }
            false => {
                let [root] = frames(p).ok_or(BringUpError::NoFrame)?;
                (root, Path::Direct(Direct::new(&capabilities)))
            }
        };
        let root = root.publish();
        p.publish(p.entries(OURS, root.by_ref()));
        let engine = Engine {
            registers,
            capabilities,
            path,
            commands,
            limit,
            platform: platform.clone(),
        };
        // the ring is zeroed, and the unit must see that
        engine.flush_write_buffers()?;
        if let Path::Queue(queue) = &engine.path {
            if status & GCMD_QIE != 0 {
                quiesce(p, &engine.registers, limit);
                engine.command(Command::DisableQueue)?;
            }
            // an error that another driver left behind would look like ours
            engine.registers.write32(FSTS, FSTS_QUEUE);
            engine.registers.write64(IQT, 0);
            engine
                .registers
                .write64(IQA, queue.ring().0 | IQA_ONE_FRAME);
            engine.command(Command::EnableQueue)?;
        }
        // SAFETY: what is retired by it are frames of this unit's own, at the end of its use
        // (`shut_down.rs`): each needs everything, and is settled by what removes everything,
        // whatever the id, or by the queue's being off.
        #[allow(unsafe_code)]
        let sequence = unsafe { FlushSequence::new(p) };
        Ok(Unit {
            engine,
            root,
            contexts: P::Lock::new(Contexts::new()),
            ids: P::Lock::new(Ids::new(domain_ids, stale)),
            tlbs: DeviceTlbs::new(),
            sequence,
            costs: config.costs,
            faults: P::Lock::new(()),
            stage: P::A64::new(PREPARED),
        })
    }

    /// Lets the unit translate by our tables, and only by them. Once is enough; again does no harm.
    ///
    /// # Errors
    /// What the unit did not do. It may or may not use our tables then, and its frames stay lost.
    pub fn activate(&self) -> Result<(), BringUpError> {
        let engine = &self.engine;
        self.stage.store(ACTIVE, Ordering::Relaxed);
        engine.flush_write_buffers()?;
        // legacy mode: the mode bits of the address stay 0 (§11.4.5)
        engine.registers.write64(RTADDR, self.root.page().addr().0);
        engine.command(Command::SetRootTable)?;
        engine.follow(Change::RootTable)?;
        self.ids.with(Ids::none_is_stale);
        if engine.registers.read32(GSTS) & GCMD_TE == 0 {
            engine.command(Command::EnableTranslation)?;
        }
        Ok(())
    }
}

/// Lets the queue of another driver run empty, as far as it will: one that stopped with an error
/// never does, and is disabled as it is.
fn quiesce<P: Platform, R: Registers>(p: &P, registers: &R, limit: WaitLimit) {
    for _ in 0..limit.0 {
        let index = |register| registers.read64(register) >> IQ_INDEX_SHIFT & IQ_INDEX_MASK;
        let stopped = registers.read32(FSTS) & (FSTS_IQE | FSTS_ITE) != 0;
        if stopped || index(IQH) == index(IQT) {
            return;
        }
        p.relax();
    }
}

/// So many frames, or none.
fn frames<P: Platform, const N: usize>(p: &P) -> Option<[FreshFrame; N]> {
    let all: Vec<FreshFrame> = (0..N).map_while(|_| p.frame_alloc()).collect();
    <[FreshFrame; N]>::try_from(all)
        .map_err(|too_few| too_few.into_iter().for_each(|f| p.frame_free(OURS, f)))
        .ok()
}
