// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What map returns.

use crate::{invalidation::DomainKey, iova::IovaAlloc, table::LeafTable, units::*};

/// One live mapping. Unmapping consumes it.
///
/// It may be sent to another thread and unmapped there. Dropping it leaks the mapping
/// until the domain ends.
#[must_use = "a dropped mapping stays mapped until its domain ends"]
#[derive(PartialEq, Eq, Debug)]
pub struct Mapping {
    pub(super) alloc: IovaAlloc,
    pub(super) iova: Iova,
    pub(super) len: ByteCount,
    pub(super) key: DomainKey,
    /// Where the leaves are, if that is one table.
    pub(super) table: Option<LeafTable>,
}

impl Mapping {
    /// The address to give to the device: that of the buffer's first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }
    /// Bytes of the buffer or list.
    pub fn len(&self) -> ByteCount {
        self.len
    }
    /// Never: an empty buffer is not mapped.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// The pages that translate.
    #[inline]
    pub fn range(&self) -> IovaRange {
        // as `install` had it: its lengths are bounded
        let pages = PageCount((self.iova.offset() + self.len.0 + GRANULE - 1) >> GRANULE_LG2);
        IovaRange::new(self.alloc.range().first, pages)
    }
    /// For a mapped list: the address of each segment, in order. `list` is the one that was mapped.
    pub fn segments<'l>(&self, list: &'l [PhysRange]) -> impl Iterator<Item = Iova> + 'l {
        let descends = self.descends();
        let mut at = self.iova.0;
        list.iter().enumerate().map(move |(nth, segment)| {
            if descends && nth > 0 {
                at = at.saturating_sub(segment.pages().0 * GRANULE);
            }
            let here = Iova(at);
            at = match descends {
                // segments below begin at granules
                true => here.page().addr().0,
                false => at.saturating_add(segment.len.0),
            };
            here
        })
    }

    /// Whether it is a list whose first segment
    /// lies highest: see [`ListOrder::Descending`](super::ListOrder::Descending).
    pub(super) fn descends(&self) -> bool {
        self.iova.page() != self.alloc.range().first
    }
}
