// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a pool has, and what it did.

use super::{chunks::ChunkUsage, class::SlotUsage, pool::Pool, stats::StepCounts};
use crate::{iova::Limits, platform::*, units::*};
use alloc::{string::String, vec::Vec};

/// What a pool has, and what it did. Exact only while nothing else uses the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolUsage {
    /// Which addresses its buffers have.
    pub limits: Limits,
    /// How operations were served.
    pub steps: StepCounts,
    /// Each class: the size of its slots, and where they are.
    pub classes: Vec<(ByteCount, SlotUsage)>,
    /// Where the pages of the second tier are.
    pub chunks: ChunkUsage,
    /// Memory of slots and chunks, in use and kept, and of frames that are kept for edges.
    pub memory: ByteCount,
    /// Memory of its bookkeeping.
    pub metadata: ByteCount,
}

impl<P: CopyMemory> Pool<P> {
    pub fn usage(&self) -> PoolUsage {
        let mut usage = PoolUsage {
            limits: self.limits,
            steps: self.stats.sum(),
            classes: Vec::with_capacity(self.classes.len()),
            chunks: self.chunks.usage(),
            memory: ByteCount(0),
            metadata: ByteCount(
                size_of::<Self>() as u64
                    + self.chunks.metadata()
                    + self.zeroed.metadata()
                    + self.stats.bytes()
                    + self.model.bytes(),
            ),
        };
        for class in &self.classes {
            let slots = class.usage();
            usage.memory.0 += (slots.kept + slots.taken) * class.bytes();
            usage.metadata.0 += class.metadata();
            usage.classes.push((ByteCount(class.bytes()), slots));
        }
        let pages = usage.chunks.taken.0 + usage.chunks.kept.0 + self.zeroed.kept().0;
        usage.memory.0 += pages << GRANULE_LG2;
        usage
    }

    pub fn audit(&self) -> Result<PoolUsage, String> {
        for class in &self.classes {
            class.audit()?;
        }
        Ok(self.usage())
    }
}
