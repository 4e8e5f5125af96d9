// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An IOTLB and its walk caches, for programs that know what happens and have no trace of it.
//!
//! A trace says what was unmapped, and that each unmap is flushed at once. What flushes later, or
//! more than what was unmapped, tells the caches so itself, event by event.

use crate::cache::{Any, Cache, Found, Span, Tag};
use crate::event::DeviceId;
use crate::geometry::Geometry;
use crate::plan::View;
use crate::setup::{InvalidationHint, Walks};
use crate::units::{IovaPage, PageRange};
use crate::walk::WalkCaches;

/// The caches of one unit, least recently used first out. Every device is its own domain, and no
/// page is looked up that is not mapped: that is the caller's to see to.
///
/// ```
/// # use ioatlas_iotlb::{DeviceId, Geometry, Iotlb, IovaPage, Walks};
/// let walks = Walks::default().with_cache(2, 16)?;
/// let mut iotlb = Iotlb::new(Geometry::default(), &walks);
/// let (nic, page) = (DeviceId(0), IovaPage::new(0x1234).unwrap());
/// assert_eq!(iotlb.access(nic, page), 4, "a walk of four levels");
/// assert_eq!(iotlb.access(nic, page), 0, "a hit");
/// iotlb.invalidate_device(nic);
/// assert_eq!(iotlb.access(nic, page), 4, "all again");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Iotlb {
    entries: Any,
    walks: WalkCaches,
    accesses: u64,
}

impl Iotlb {
    /// Empty caches. Of `walks` levels and caches count: each invalidation has a hint of its own.
    #[must_use]
    pub fn new(geometry: Geometry, walks: &Walks) -> Self {
        let view = View {
            superpages: false,
            mirrored: false,
        };
        Self {
            entries: Any::with_shape(geometry),
            walks: WalkCaches::new(walks, view),
            accesses: 0,
        }
    }

    /// A device accesses a page. Returns the page-table entries that were read for it: none if the
    /// IOTLB has it.
    pub fn access(&mut self, device: DeviceId, page: IovaPage) -> u64 {
        self.accesses += 1;
        let tag = Tag {
            device: device.0,
            page: page.number(),
        };
        match self.entries.access(tag, tag.page, self.accesses, 0) {
            Found::Hit => 0,
            Found::Filled { .. } => {
                let before = self.walks.reads();
                self.walks.walk(tag);
                self.walks.reads() - before
            }
        }
    }

    /// A page-selective invalidation. Returns how many entries it removed from the IOTLB.
    pub fn invalidate_pages(
        &mut self,
        device: DeviceId,
        pages: PageRange,
        hint: InvalidationHint,
    ) -> u64 {
        if hint == InvalidationHint::WalkCachesToo {
            self.walks.clear(device.0);
        }
        let span = Span {
            device: device.0,
            first: pages.first().number(),
            last: pages.last().number(),
        };
        self.entries.remove(span, 0)
    }

    /// A domain-selective invalidation: the walk caches forget the device, too. Returns how many
    /// entries it removed from the IOTLB.
    pub fn invalidate_device(&mut self, device: DeviceId) -> u64 {
        self.walks.clear(device.0);
        self.entries.remove(Span::all(device.0), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageCount;

    const NIC: DeviceId = DeviceId(3);
    const DISK: DeviceId = DeviceId(4);

    fn page(number: u64) -> IovaPage {
        IovaPage::new(number).unwrap()
    }

    fn full() -> Iotlb {
        let walks = Walks::default().with_cache(2, 8).unwrap();
        let mut iotlb = Iotlb::new(Geometry::new(64, 2).unwrap(), &walks);
        for device in [NIC, DISK] {
            (0..4).for_each(|number| assert!(iotlb.access(device, page(number)) > 0));
        }
        iotlb
    }

    #[test]
    fn pages_go_alone_where_only_leaves_changed() {
        let mut iotlb = full();
        let two = PageRange::new(page(1), PageCount(2)).unwrap();
        assert_eq!(
            iotlb.invalidate_pages(NIC, two, InvalidationHint::LeavesOnly),
            2
        );
        let reads = [0, 1, 2, 3].map(|number| iotlb.access(NIC, page(number)));
        assert_eq!(reads, [0, 1, 1, 0]);
        let hint = InvalidationHint::WalkCachesToo;
        assert_eq!(iotlb.invalidate_pages(NIC, two, hint), 2);
        let reads = [0, 1, 2, 3].map(|number| iotlb.access(NIC, page(number)));
        assert_eq!(reads, [0, 4, 1, 0]);
    }

    #[test]
    fn a_device_is_forgotten_whole_and_alone() {
        let mut iotlb = full();
        assert_eq!(iotlb.invalidate_device(NIC), 4);
        assert_eq!(iotlb.invalidate_device(NIC), 0);
        let reads = [NIC, DISK].map(|device| iotlb.access(device, page(0)));
        assert_eq!(reads, [4, 0]);
        assert_eq!(iotlb.access(DISK, page(9)), 1, "its leaf table is known");
    }
}
