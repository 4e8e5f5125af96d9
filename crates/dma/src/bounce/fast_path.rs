// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The fast path: one buffer through a slot that this CPU has cached.
//!
//! A slot's usual next user has as many bytes at the same place, in one granule: then nothing is to
//! be zeroed beside them (see `window`), and what is left is a pop of this CPU's magazine, one
//! count, and one copy; at the end one copy and one push. Nothing is called for it but the
//! platform's copy, nothing is allocated, and no line is written that another CPU writes: what is
//! known of the slot came with its number. All else goes the slow path, which does the same for
//! whatever there is.

use super::{
    class::{Kept, Slot},
    pieces::{Data, Move},
    pool::{Buffer, Need, Pool},
    stats::Step,
    window::Extent,
};
use crate::{domain::Domain, platform::*, translator::Translator, units::*};

impl<P: CopyMemory> Pool<P> {
    /// A slot that shows `data`, which are one buffer, and nothing of earlier users; and where they
    /// begin. Slots keep the pool's limits, and perhaps no others.
    #[inline(always)]
    pub fn bounce_fast<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        data: impl Data + Copy,
        need: &Need,
    ) -> Option<(Iova, Slot)> {
        let p = &**domain.platform();
        let perm = self.perm(need.direction);
        let lg2 = need.bytes().div_ceil(GRANULE).next_power_of_two();
        let nth = *self.smallest.get(lg2.trailing_zeros() as usize)?;
        let class = self.classes.get(usize::from(nth))?;
        let kept = p.try_pinned(|cpu| {
            let kept = class.take_fast(&cpu, perm)?;
            self.stats.count(&cpu, Step::Kept);
            Some(kept)
        });
        let kept = kept??;
        let index = kept.index();
        let iova = Iova(class.range(index).first.addr().0 + need.offset);
        let slot = |kept| Slot {
            class: nth,
            perm,
            kept,
        };
        let (from, to) = (need.offset, need.bytes());
        let taken = Extent {
            from: from as u32,
            to: to as u32,
        };
        let after = match (perm, kept.extent()) {
            _ if to > GRANULE => None,
            (Perm::Read, old) => (taken.from <= old.from && old.to <= taken.to).then_some(taken),
            (Perm::Write, old) => {
                (old.from <= taken.from && taken.to <= old.to).then_some(Extent::NONE)
            }
            // devices may have written anywhere
            (Perm::ReadWrite, _) => None,
        };
        let Some(after) = after else {
            return self.fill_slow(domain, slot(kept), data, need, iova);
        };
        if perm == Perm::Read {
            let there = PhysAddr(class.first_frame(p, index).addr().0 + from);
            if data.move_one(p, there, Move::In).is_err() {
                return self.fill_slow(domain, slot(kept), data, need, iova);
            }
        }
        Some((iova, slot(Kept::new(index, after))))
    }

    #[inline(never)]
    fn fill_slow<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        mut slot: Slot,
        data: impl Data,
        need: &Need,
        iova: Iova,
    ) -> Option<(Iova, Slot)> {
        match self.fill_slot(domain.platform(), &mut slot, need, data) {
            Ok(()) => Some((iova, slot)),
            Err(_) => {
                self.give_unused(domain, Buffer::Slot(slot));
                None
            }
        }
    }

    /// Brings back what the device wrote, once, and leaves the slot to its next user.
    #[inline(always)]
    pub fn give_fast<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        slot: Slot,
        need: &Need,
        data: impl Data,
    ) -> Result<(), NotMemoryError> {
        let p = &**domain.platform();
        let (from, to) = (need.offset, need.bytes());
        let (perm, index) = (slot.perm, slot.kept.index());
        let Some(class) = self.classes.get(usize::from(slot.class)) else {
            return self.give_slot(domain, slot, need, data);
        };
        if to > GRANULE || !data.is_one(need.len) || perm == Perm::ReadWrite {
            return self.give_slot(domain, slot, need, data);
        }
        let mut done = Ok(());
        let mut kept = slot.kept;
        if perm == Perm::Write {
            let there = PhysAddr(class.first_frame(p, index).addr().0 + from);
            done = data.move_one(p, there, Move::Take);
            let zeroed = match done {
                Ok(()) => Extent {
                    from: from as u32,
                    to: to as u32,
                },
                Err(_) => Extent::NONE,
            };
            kept = Kept::new(index, zeroed);
        }
        class.give(domain, kept, perm);
        done
    }
}
