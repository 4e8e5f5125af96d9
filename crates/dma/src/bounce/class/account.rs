// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the slots of a class are, what that takes, and whether each is in one place.

use super::*;
use alloc::{format, string::String, vec};

/// Where the slots of a class are: empty + kept + taken + lost = all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotUsage {
    /// Slots of the class, whatever their state.
    pub slots: u64,
    /// Slots that have no memory.
    pub empty: u64,
    /// With memory, mapped, unused.
    pub kept: u64,
    /// Slots that a mapping uses.
    pub taken: u64,
    /// Given up after a failed invalidation.
    pub lost: u64,
}

impl<P: CopyMemory> Class<P> {
    /// Where the slots are. Exact only while nothing else uses the pool.
    pub fn usage(&self) -> SlotUsage {
        let kept = self.kept.iter().map(Magazines::kept).sum::<usize>() as u64;
        let unmapped = |unmapped: &mut Unmapped| (unmapped.empty().len(), unmapped.lost);
        let (empty, lost) = self.unmapped.with(unmapped);
        let (empty, lost) = (empty as u64, lost as u64);
        let slots = u64::from(self.slots);
        SlotUsage {
            slots,
            empty,
            kept,
            lost,
            taken: slots.saturating_sub(empty + kept + lost),
        }
    }

    /// Bytes of metadata, magazines and their depots included.
    pub fn metadata(&self) -> u64 {
        let unmapped = self.unmapped.with(|unmapped| unmapped.slots.capacity());
        let kept = self.kept.iter().map(Magazines::footprint);
        size_of::<Self>() as u64
            + (unmapped * size_of::<u32>()) as u64
            + self.frames.bytes()
            + kept.map(|bytes| bytes.0).sum::<u64>()
    }

    /// Checks that each slot is in one place. Nothing else may use the pool meanwhile.
    pub fn audit(&self) -> Result<SlotUsage, String> {
        let mut seen = vec![false; self.slots as usize];
        let mut see = |place: &str, slots: &[u32]| {
            for &at in slots {
                match seen.get_mut(at as usize) {
                    Some(seen) if !*seen => *seen = true,
                    Some(_) => return Err(format!("slot {at} is {place} and somewhere else")),
                    None => return Err(format!("there is no slot {at}, and it is {place}")),
                }
            }
            Ok(())
        };
        for kept in &self.kept {
            kept.audit()?;
            let slots = kept.snapshot().into_iter().map(|word| Kept(word).index());
            see("kept", &slots.collect::<Vec<_>>())?;
        }
        let (slots, lost) = self.unmapped.with(|all| (all.slots.clone(), all.lost));
        see("lost", &slots[..lost])?;
        see("empty", &slots[lost..])?;
        Ok(self.usage())
    }
}
