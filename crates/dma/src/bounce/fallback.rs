// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How a pool comes to a buffer.
//!
//! The fallback chain of [`Pool::take`]: each step tried when those before have nothing, and
//! counted by itself ([`Step`]):
//!
//! 1. a slot of the smallest class that fits: kept for this CPU, or by the depot; empty, given
//!    memory; kept for another CPU; kept with another permission, which costs an invalidation. To
//!    look at all CPUs costs more the more there are, so where that was in vain the next few go on
//!    to what would serve them;
//! 2. the same of the next larger classes;
//! 3. for a share of a fixed budget: a slot of what all shares have in common;
//! 4. pages of a chunk;
//! 5. a buffer mapped for one use.
//!
//! The first step's first part is also to be had by itself, in `fast_path`.
//!
//! So where the pool's limits are is where operations begin to cost what they would cost without
//! it, and no more.

use super::{
    class::{Class, Kept, NoSlot, Slot},
    config::{Growth, SingleUse},
    pool::{Buffer, Need, Pool},
    single_use::map_own,
    split::{Split, map_split},
    stats::{BounceError, Lack, Step},
};
use crate::{
    domain::{Domain, MapAttrs},
    iova::Limits,
    platform::{
        room::{Boxed, boxed},
        *,
    },
    translator::Translator,
    units::*,
};

/// Whether to look into the magazines of all other CPUs, which takes the longer the more there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Not where a look was in vain lately: what comes next costs less.
    WhereItHelps,
    /// What comes next costs more.
    Everywhere,
}

impl<P: CopyMemory> Pool<P> {
    /// A buffer. What is in it is open: [`fill`](Self::fill) it before the device is told.
    pub fn take<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        need: &Need,
        attrs: &MapAttrs,
    ) -> Result<Buffer, BounceError> {
        match self.descend(domain, need, attrs) {
            Err(none) if none.lacks_memory() && self.trim(domain) > 0 => {
                // what was kept for others is free now
                self.descend(domain, need, attrs)
            }
            taken => taken,
        }
    }

    /// Down the fallback chain.
    fn descend<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        need: &Need,
        attrs: &MapAttrs,
    ) -> Result<Buffer, BounceError> {
        let p = &**domain.platform();
        let (bytes, perm, limits) = (need.bytes(), self.perm(need.direction), &attrs.limits);
        let count = |step| p.pinned(|cpu| self.stats.count(&cpu, step));
        let in_chunks = match limits.align_lg2 > 0 || limits.boundary_lg2.is_some() {
            true => Err(Lack::Off), // runs lie anywhere in their chunks
            false => self.chunks.may_have(bytes),
        };
        let look = match in_chunks {
            Ok(()) => Look::WhereItHelps,
            Err(_) => Look::Everywhere,
        };
        let mut slots = match self.take_slot(domain, bytes, perm, limits, look) {
            Ok((slot, step)) => {
                count(step);
                return Ok(Buffer::Slot(slot));
            }
            Err(lack) => lack,
        };
        if let Some(rest) = &self.rest {
            match rest.take_slot(domain, bytes, perm, limits, Look::Everywhere) {
                Ok((slot, _)) => {
                    count(Step::Borrowed);
                    let class = slot.class + self.classes.len() as u8;
                    return Ok(Buffer::Slot(Slot { class, ..slot }));
                }
                Err(lack) if slots == Lack::TooLarge => slots = lack,
                Err(_) => {}
            }
        }
        let in_chunks = in_chunks.and_then(|()| {
            self.chunks
                .take(domain, self.limits, bytes, perm)
                .inspect(|_| count(Step::Chunk))
        });
        let chunks = match in_chunks {
            Ok(run) => return Ok(Buffer::Run(run)),
            Err(lack) => lack,
        };
        if look == Look::WhereItHelps
            && let Ok((slot, step)) = self.take_slot(domain, bytes, perm, limits, Look::Everywhere)
        {
            count(step);
            return Ok(Buffer::Slot(slot));
        }
        let single_use = match self.growth {
            Growth::OnDemand {
                single_use: SingleUse::Allowed,
                ..
            } => match boxed(|| map_own(domain, need.offset, need.len, need.direction, *attrs)) {
                Ok(own) => {
                    count(Step::SingleUse);
                    return Ok(Buffer::Own(own));
                }
                Err(lack) => lack,
            },
            _ => Lack::Off,
        };
        Err(BounceError {
            len: ByteCount(bytes),
            slots,
            chunks,
            single_use,
        })
    }

    /// A slot, of the smallest class that has one.
    fn take_slot<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        bytes: u64,
        perm: Perm,
        limits: &Limits,
        look: Look,
    ) -> Result<(Slot, Step), Lack> {
        let p = &**domain.platform();
        let mut lack = Lack::TooLarge;
        let mut best = true;
        for (nth, class) in self.classes.iter().enumerate() {
            if bytes > class.bytes() || !class.keeps(limits) {
                continue;
            }
            let found = match p.pinned(|cpu| class.take_kept(&cpu, perm)) {
                Some(kept) => Ok((kept, Step::Kept)),
                None => self.take_slow(domain, class, perm, look),
            };
            match found {
                Ok((kept, step)) => {
                    let step = if best { step } else { Step::Larger };
                    let class = nth as u8; // a pool has at most nine classes
                    return Ok((Slot { class, perm, kept }, step));
                }
                Err(NoSlot::Full) => lack = Lack::Full,
                Err(NoSlot::NoFrame) => lack = Lack::NoFrame,
                Err(NoSlot::Map(why)) => lack = why.into(),
            }
            best = false;
        }
        Err(lack)
    }

    fn take_slow<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        class: &Class<P>,
        perm: Perm,
        look: Look,
    ) -> Result<(Kept, Step), NoSlot> {
        let populated = match self.growth {
            Growth::OnDemand { .. } => class.populate(domain, perm),
            Growth::Fixed => Err(NoSlot::Full),
        };
        let why = match populated {
            Ok(kept) => return Ok((kept, Step::Populated)),
            Err(why) => why,
        };
        if look == Look::WhereItHelps && class.was_bare_lately() {
            return Err(why);
        }
        if let Some(kept) = class.take_anyones(domain.platform(), perm) {
            return Ok((kept, Step::Elsewhere));
        }
        match (self.growth, class.take_other(domain, perm)) {
            (Growth::OnDemand { .. }, Ok(kept)) => Ok((kept, Step::Converted)),
            (_, Err(NoSlot::Full)) | (Growth::Fixed, _) => {
                class.found_bare();
                Err(why)
            }
            (_, Err(why)) => Err(why),
        }
    }

    /// `list` with its edges in frames of their own.
    pub fn split<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        list: &[PhysRange],
        direction: Direction,
        attrs: MapAttrs,
    ) -> Result<Boxed<Split>, Lack> {
        let split = || boxed(|| map_split(domain, &self.zeroed, list, direction, attrs));
        match split() {
            Err(Lack::NoFrame | Lack::NoMemory) if self.trim(domain) > 0 => split(),
            split => split,
        }
    }
}
