// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A slow device IOTLB that is easy to believe: the history of what was said, read from its end.

use ioatlas_dma::units::*;
use ioatlas_vhost::cache::{HostAddr, Span, covers};

/// What is true of a page: host address minus IOVA, and permission.
pub type Said = (u64, Perm);

/// Every update and removal so far, in order. The last one that names a page says what
/// is true of it.
#[derive(Clone, Default, Debug)]
pub struct Oracle {
    history: Vec<(Span, Option<Said>)>,
}

impl Oracle {
    /// Notes an update of all pages of `span`.
    pub fn put(&mut self, span: Span, host: HostAddr, perm: Perm) {
        let said = (host.0.wrapping_sub(span.iova().0), perm);
        self.history.push((span, Some(said)));
    }
    /// A removal, for whatever reason.
    pub fn remove(&mut self, span: Span) {
        self.history.push((span, None));
    }
    /// How much was said.
    pub fn moment(&self) -> usize {
        self.history.len()
    }
    /// What was true of `page` when `moment` things had been said.
    pub fn at(&self, page: u64, moment: usize) -> Option<Said> {
        let naming = self.history[..moment].iter().rev();
        let mut naming = naming.filter(|(span, _)| span.has(page));
        naming.next().and_then(|(_, said)| *said)
    }
    /// What is true of `page`.
    pub fn now(&self, page: u64) -> Option<Said> {
        self.at(page, self.moment())
    }

    /// The piece that a lookup must give now: where it is, and how many bytes are contiguous; or
    /// `None` for a miss.
    pub fn piece(&self, iova: Iova, len: ByteCount, need: Perm) -> Option<(HostAddr, ByteCount)> {
        let first = iova.0 >> GRANULE_LG2;
        let said = self.now(first)?;
        if !covers(said.1, need) {
            return None;
        }
        let last = (iova.0 + (len.0 - 1)) >> GRANULE_LG2;
        // what is true changes only where something said begins or ends
        let mut ends: Vec<u64> = self
            .history
            .iter()
            .flat_map(|(span, _)| [span.first, span.end])
            .collect();
        ends.retain(|end| first < *end && *end <= last);
        ends.sort();
        let end = ends.into_iter().find(|end| self.now(*end) != Some(said));
        let here = end.map_or(len.0, |end| (end << GRANULE_LG2) - iova.0);
        Some((
            HostAddr(iova.0.wrapping_add(said.0)),
            ByteCount(here.min(len.0)),
        ))
    }
}
