// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Synchronising what stays mapped.

use super::{
    mapping::{Held, Part, Seen},
    *,
};
use crate::{
    bounce::{Move, Need},
    units::*,
};

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
        self.sync_list(&mapping.seen(), mapping.list.segments(), span, SyncFor::Cpu)
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
        self.sync_list(
            &mapping.seen(),
            mapping.list.segments(),
            span,
            SyncFor::Device,
        )
    }

    /// The same of a mapping without its list.
    pub(super) fn sync_list(
        &self,
        mapping: &Seen<'_>,
        list: &[PhysRange],
        span: Span,
        to: SyncFor,
    ) -> Result<(), SyncError> {
        self.check_span(mapping, span)?;
        self.dma.watch.synced(mapping.iova, span, to);
        match (mapping.direction, to) {
            (Direction::ToDevice, SyncFor::Cpu) | (Direction::FromDevice, SyncFor::Device) => {
                Ok(())
            }
            (_, SyncFor::Cpu) => self.sync(mapping, list, span, Move::Out),
            (_, SyncFor::Device) => self.sync(mapping, list, span, Move::In),
        }
    }

    fn check_span(&self, mapping: &Seen<'_>, span: Span) -> Result<(), SyncError> {
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

    fn sync(
        &self,
        mapping: &Seen<'_>,
        list: &[PhysRange],
        span: Span,
        way: Move,
    ) -> Result<(), SyncError> {
        let p = self.platform();
        let need = Need {
            offset: mapping.iova.offset(),
            len: mapping.len,
            direction: mapping.direction,
        };
        match (mapping.held, &self.pool) {
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
