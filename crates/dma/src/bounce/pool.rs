// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The pool of one address limit: its parts, what moves in its buffers, and its end.
//!
//! How it comes to a buffer is in `fallback`, the usual case of that by itself in `fast_path`; what
//! it has is in `usage`.

use super::{
    chunks::{Chunks, Run},
    class::{Class, KINDS, Kept, NoSlot, Slot, WordRack},
    config::{Growth, PoolConfig, PoolConfigError, SLOT_PAGES_LG2_MAX},
    cost_model::{Advice, CostModel, Route},
    pieces::{Data, Move, Span},
    single_use::SingleUseBuffer,
    stats::{ReturnError, Step, StepStats},
    window::{Extent, Window},
    zeroed::Zeroed,
};
use crate::{
    domain::{Domain, MapError},
    iova::Limits,
    platform::{room::Boxed, *},
    translator::Translator,
    units::*,
};
use alloc::{sync::Arc, vec::Vec};

/// Size classes whose IOVAs keep the same limits, and what lies beyond.
pub(crate) struct Pool<P: Platform> {
    pub limits: Limits,
    /// Tells its buffers from those of other pools.
    pub key: u64,
    pub(super) classes: Vec<Class<P>>,
    /// By the log2 of the pages that are needed: the smallest class that has them.
    pub(super) smallest: [u8; SLOT_PAGES_LG2_MAX as usize + 1],
    /// Has slots for when there are no more here; their classes count on from ours.
    pub(super) rest: Option<Arc<Pool<P>>>,
    pub(super) chunks: Chunks<P>,
    /// Zeroed frames, for the edges of split mappings.
    pub(super) zeroed: Zeroed<P>,
    pub(super) growth: Growth,
    pub(super) stats: StepStats<P>,
    pub model: CostModel<P>,
    idle_ns: u64,
    idle: P::Lock<Idle>,
}

/// What the last tick saw.
struct Idle {
    served: u64,
    since: TimeNs,
}

/// Memory that a device reaches in place of a driver's buffer.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Buffer {
    Slot(Slot),
    Run(Run),
    /// In a box, as it is rare and large.
    Own(Boxed<SingleUseBuffer>),
}

/// What a mapping asks of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    /// Bytes that precede the data in their granule.
    pub offset: u64,
    pub len: ByteCount,
    pub direction: Direction,
}

impl Need {
    /// Bytes of a slot that the mapping takes, those before the data included.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.offset + self.len.0
    }
}

impl<P: CopyMemory> Pool<P> {
    pub fn new<T: Translator<P>>(
        domain: &Domain<P, T>,
        config: &PoolConfig,
        limits: Limits,
        rest: Option<Arc<Pool<P>>>,
    ) -> Result<Self, PoolError> {
        config.check()?;
        let chunks_max = match config.growth {
            Growth::OnDemand { chunks_max, .. } => chunks_max,
            Growth::Fixed => 0,
        };
        let p = &**domain.platform();
        // of the classes, and of frames for edges
        let kinds = KINDS * config.classes.len();
        let rack = WordRack::new(p, kinds + 1);
        let mut pool = Pool {
            limits,
            key: domain.platform().unique(),
            classes: Vec::with_capacity(config.classes.len()),
            smallest: smallest(config),
            rest,
            chunks: Chunks::new(chunks_max),
            zeroed: Zeroed::new(rack.shelf(kinds)),
            growth: config.growth,
            stats: StepStats::new(p),
            model: CostModel::new(p),
            idle_ns: config.idle_ns,
            idle: P::Lock::new(Idle {
                served: 0,
                since: TimeNs(0),
            }),
        };
        for (nth, class) in config.classes.iter().enumerate() {
            let shelves = core::array::from_fn(|kind| rack.shelf(nth * KINDS + kind));
            match Class::new(domain, *class, limits, shelves) {
                Ok(class) => pool.classes.push(class),
                Err(why) => {
                    pool.close(domain);
                    return Err(why.into());
                }
            }
        }
        if config.growth == Growth::Fixed
            && let Err(why) = pool.populate_all(domain)
        {
            pool.close(domain);
            return Err(why);
        }
        Ok(pool)
    }

    /// Gives every slot memory, mapped both ways.
    fn populate_all<T: Translator<P>>(&self, domain: &Domain<P, T>) -> Result<(), PoolError> {
        for class in &self.classes {
            loop {
                match class.populate(domain, Perm::ReadWrite) {
                    Ok(kept) if class.give(domain, kept, Perm::ReadWrite) => {}
                    Ok(_) => return Err(PoolError::NoMemory),
                    Err(NoSlot::Full) => break,
                    Err(NoSlot::NoFrame) => return Err(PoolError::NoFrame),
                    Err(NoSlot::Map(why)) => return Err(why.into()),
                }
            }
        }
        Ok(())
    }

    /// With which permission buffers for `direction` are mapped.
    #[inline]
    pub(super) fn perm(&self, direction: Direction) -> Perm {
        match self.growth {
            Growth::OnDemand { .. } => direction.perm(),
            Growth::Fixed => Perm::ReadWrite,
        }
    }

    /// Notes a step that the caller took.
    #[inline]
    pub fn count(&self, p: &P, step: Step) {
        p.pinned(|cpu| self.stats.count(&cpu, step));
    }

    /// Which route an operation is to take. One that goes directly, and whose time is not taken, is
    /// counted as that: if it fails, [take it back](Self::did_not).
    #[inline]
    pub fn advise(&self, p: &P, len: ByteCount, direction: Direction) -> Option<Advice> {
        p.pinned(|cpu| {
            let advice = self.model.advise_on(&cpu, len, direction)?;
            if advice.timed.is_none() && advice.route == Route::Direct {
                self.stats.count(&cpu, Step::Direct);
            }
            Some(advice)
        })
    }
    /// A step that was counted was not taken.
    #[cold]
    pub fn did_not(&self, p: &P, step: Step) {
        p.pinned(|cpu| self.stats.take_back(&cpu, step));
    }

    /// Where the first byte of the data is.
    pub fn iova(&self, buffer: &Buffer, need: &Need) -> Iova {
        match buffer {
            Buffer::Slot(slot) => {
                let range = self.class(slot).range(slot.kept.index());
                Iova(range.first.addr().0 + need.offset)
            }
            Buffer::Run(run) => Iova(run.range().first.addr().0 + need.offset),
            Buffer::Own(own) => own.mapping.iova(),
        }
    }

    #[inline(always)]
    pub(super) fn class(&self, slot: &Slot) -> &Class<P> {
        match self.classes.get(usize::from(slot.class)) {
            Some(class) => class,
            None => self.class_of_rest(slot),
        }
    }
    #[cold]
    #[inline(never)]
    fn class_of_rest(&self, slot: &Slot) -> &Class<P> {
        let rest = self
            .rest
            .as_ref()
            .map_or(&self.classes, |rest| &rest.classes);
        &rest[usize::from(slot.class) - self.classes.len()]
    }

    /// Makes a buffer show `data`, and nothing of earlier users.
    pub fn fill(
        &self,
        p: &P,
        buffer: &mut Buffer,
        need: &Need,
        data: impl Data,
    ) -> Result<(), NotMemoryError> {
        match buffer {
            Buffer::Slot(slot) => self.fill_slot(p, slot, need, data)?,
            Buffer::Run(run) => {
                let window = window(self.chunks.frames(p, run), run.perm, run.bytes(), need);
                run.extent = window.fill(p, data, run.extent)?;
            }
            Buffer::Own(own) => own.fill(p, data, need.direction)?,
        }
        Ok(())
    }
    /// The same of a slot.
    pub(super) fn fill_slot(
        &self,
        p: &P,
        slot: &mut Slot,
        need: &Need,
        data: impl Data,
    ) -> Result<(), NotMemoryError> {
        let (class, index) = (self.class(slot), slot.kept.index());
        let window = window(class.frames(p, index), slot.perm, class.bytes(), need);
        slot.kept = Kept::new(index, window.fill(p, data, slot.kept.extent())?);
        Ok(())
    }

    /// Moves a part of the data.
    pub fn sync(
        &self,
        p: &P,
        buffer: &Buffer,
        need: &Need,
        list: &[PhysRange],
        span: Span,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        match buffer {
            Buffer::Slot(slot) => {
                let class = self.class(slot);
                let frames = class.frames(p, slot.kept.index());
                let window = window(frames, slot.perm, class.bytes(), need);
                window.sync(p, list, span, way)
            }
            Buffer::Run(run) => {
                let window = window(self.chunks.frames(p, run), run.perm, run.bytes(), need);
                window.sync(p, list, span, way)
            }
            Buffer::Own(own) => own.sync(p, list, span, way),
        }
    }

    /// Brings back what the device wrote, once, and leaves the buffer to the next user.
    pub fn give<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        buffer: Buffer,
        need: &Need,
        data: impl Data,
    ) -> Result<(), ReturnError> {
        let p = &**domain.platform();
        match buffer {
            Buffer::Slot(slot) => Ok(self.give_slot(domain, slot, need, data)?),
            Buffer::Run(run) => {
                let window = window(self.chunks.frames(p, &run), run.perm, run.bytes(), need);
                let (copied, extent) = window.empty(p, data, run.extent);
                self.chunks.give(run, extent);
                Ok(copied?)
            }
            Buffer::Own(own) => own.into_inner().end(domain, data, need.direction),
        }
    }
    /// The same of a slot.
    #[inline(never)]
    pub(super) fn give_slot<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        slot: Slot,
        need: &Need,
        data: impl Data,
    ) -> Result<(), NotMemoryError> {
        let p = &**domain.platform();
        let (class, index) = (self.class(&slot), slot.kept.index());
        let window = window(class.frames(p, index), slot.perm, class.bytes(), need);
        let (copied, extent) = window.empty(p, data, slot.kept.extent());
        class.give(domain, Kept::new(index, extent), slot.perm);
        copied
    }

    /// Gives back a buffer whose address no caller was given.
    pub fn give_unused<T: Translator<P>>(&self, domain: &Domain<P, T>, buffer: Buffer) {
        match buffer {
            Buffer::Slot(slot) => {
                let class = self.class(&slot);
                let unknown = Extent::unknown(slot.perm, class.bytes());
                let kept = Kept::new(slot.kept.index(), unknown);
                class.give(domain, kept, slot.perm);
            }
            Buffer::Run(run) => self.chunks.give(run, Extent::NONE),
            Buffer::Own(own) => {
                let SingleUseBuffer { mapping, frames } = own.into_inner();
                let _ = domain.unmap_with_frames(mapping, frames); // quarantined if that fails
            }
        }
    }

    /// Takes memory away from what no request asked for in the idle time, a bounded part of it;
    /// while there are requests, sees to edges. (What has memory for good keeps it.)
    pub fn tick<T: Translator<P>>(&self, domain: &Domain<P, T>, now: TimeNs) {
        let served = self.stats.sum().served();
        let is_idle = self.idle.with(|idle| {
            if idle.served != served {
                *idle = Idle { served, since: now };
            }
            now.0.saturating_sub(idle.since.0) >= self.idle_ns
        });
        match is_idle {
            true => {
                self.trim(domain);
                self.chunks.trim(domain);
            }
            false => self.zeroed.refill(&**domain.platform()),
        }
    }

    /// Takes the memory of some kept slots of each class away, and of edges; returns of how many.
    pub fn trim<T: Translator<P>>(&self, domain: &Domain<P, T>) -> usize {
        let mut slots = 0;
        if self.growth != Growth::Fixed {
            let classes = self.classes.iter();
            slots = classes.map(|class| class.trim(domain)).sum();
        }
        slots + self.zeroed.trim(domain.platform())
    }

    pub fn close<T: Translator<P>>(self, domain: &Domain<P, T>) {
        let classes = self.classes.into_iter();
        classes.for_each(|class| class.close(domain));
        self.chunks.close(domain);
        self.zeroed.trim(domain.platform());
    }
}

/// For each log2 of pages the first class whose slots have as many; beyond all
/// classes where none has.
fn smallest(config: &PoolConfig) -> [u8; SLOT_PAGES_LG2_MAX as usize + 1] {
    core::array::from_fn(|lg2| {
        let mut classes = config.classes.iter();
        let fits = classes.position(|class| class.pages_lg2 as usize >= lg2);
        fits.map_or(u8::MAX, |nth| nth as u8)
    })
}

fn window<F>(frames: F, perm: Perm, bytes: u64, need: &Need) -> Window<F> {
    Window {
        frames,
        perm,
        bytes,
        offset: need.offset,
        len: need.len,
        direction: need.direction,
    }
}

/// Why there is no pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// It was asked for what cannot be.
    #[error(transparent)]
    Config(#[from] PoolConfigError),
    /// Its IOVAs cannot be had, or its memory cannot be mapped.
    #[error("no bounce pool: {0}")]
    Map(#[from] MapError),
    /// The placement chooses by time, and there is no clock.
    #[error("an adaptive placement needs a clock")]
    NoClock,
    /// What is shared has not so much left.
    #[error("a share of {wanted} bytes, of a budget with {left} left")]
    Budget {
        /// Of its slots together.
        wanted: ByteCount,
        /// What is not given out yet.
        left: ByteCount,
    },
    /// The device does not reach what it would share, or others would not reach its part.
    #[error("a share with other address limits than its budget")]
    Limits,
    /// There is not the memory that it is to have from the beginning.
    #[error("no memory for a bounce pool")]
    NoFrame,
    /// The heap has no memory to keep track of it.
    #[error("no heap memory for a bounce pool")]
    NoMemory,
}
