// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Synchronising what stays mapped.

use super::{
    mapping::{Held, Part},
    unmap::need_of,
    *,
};
use crate::{bounce::Move, units::*};

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Before the CPU looks at what the device wrote in `span`, while the mapping lives. Moves
    /// those bytes, no others.
    ///
    /// # Errors
    /// [`SyncError`]; no byte was moved then, except perhaps with [`SyncError::NotMemory`].
    pub fn sync_for_cpu<L: DmaBuffer>(
        &self,
        mapping: &DmaMapping<L>,
        span: Span,
    ) -> Result<(), SyncError> {
        self.check_span(mapping, span)?;
        self.dma.watch.synced(mapping.iova, span, SyncFor::Cpu);
        match mapping.direction {
            Direction::ToDevice => Ok(()),
            _ => self.sync(mapping, span, Move::Out),
        }
    }

    /// Before the device looks at what the CPU wrote in `span`, or writes there again, while the
    /// mapping lives. Moves those bytes, no others; none where the device only writes.
    ///
    /// # Errors
    /// [`SyncError`]; no byte was moved then, except perhaps with [`SyncError::NotMemory`].
    pub fn sync_for_device<L: DmaBuffer>(
        &self,
        mapping: &DmaMapping<L>,
        span: Span,
    ) -> Result<(), SyncError> {
        self.check_span(mapping, span)?;
        self.dma.watch.synced(mapping.iova, span, SyncFor::Device);
        match mapping.direction {
            Direction::FromDevice => Ok(()),
            _ => self.sync(mapping, span, Move::In),
        }
    }

    fn check_span<L>(&self, mapping: &DmaMapping<L>, span: Span) -> Result<(), SyncError> {
        if mapping.key != self.key {
            let iova = mapping.iova;
            return Err(SyncError::Foreign { iova });
        }
        let len = mapping.len;
        match span.end() {
            Some(end) if end <= len => Ok(()),
            _ => {
                if self.dma.watch.is_on() {
                    let event = self.event(mapping.iova, len, mapping.direction);
                    self.dma.watch.found(&event, Mistake::Outside(span));
                }
                Err(SyncError::Outside { span, len })
            }
        }
    }

    fn sync<L: DmaBuffer>(
        &self,
        mapping: &DmaMapping<L>,
        span: Span,
        way: Move,
    ) -> Result<(), SyncError> {
        let p = self.platform();
        let list = mapping.list.segments();
        let need = need_of(mapping);
        match (&mapping.held, &self.pool) {
            (Held::Bounced(buffer), Some(pool)) => {
                Ok(pool.sync(p, buffer, &need, list, span, way)?)
            }
            (Held::Split(split), _) => Ok(split.sync(p, list, span, way)?),
            (Held::Each(parts), _) => {
                let mut before = 0;
                for (part, segment) in parts.iter().zip(list) {
                    let from = span.at.0.clamp(before, before + segment.len.0) - before;
                    let to = span.at.0 + span.len.0;
                    let to = to.clamp(before, before + segment.len.0) - before;
                    before += segment.len.0;
                    if let Part::Own(own) = part {
                        let here = Span::new(ByteCount(from), ByteCount(to - from));
                        own.sync(p, core::slice::from_ref(segment), here, way)?;
                    }
                }
                Ok(())
            }
            (Held::Direct(_) | Held::Bounced(_), _) => Ok(()),
        }
    }
}
