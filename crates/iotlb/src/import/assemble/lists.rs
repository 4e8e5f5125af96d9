// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Scatter-gather lists: they are mapped by their segments, and unmapped by the memory of their
//! entries.

use super::*;
use crate::units::PAGE_BYTES;

/// A live list, in the terms of its device.
pub(super) enum List {
    /// On a device with bus addresses of its own.
    Segments(Vec<Segment>),
    /// On a device whose mappings get pages here ([`Iovas`]).
    Given(PageRange),
}

impl Assembler {
    pub(super) fn map_list(
        &mut self,
        device: DeviceId,
        segments: Vec<Segment>,
        phys: &[u64],
        permission: Permission,
        entries: usize,
        stamp: Option<Stamp>,
    ) -> Result<(), Fault> {
        let ranges: Option<Vec<PageRange>> = segments.iter().map(|s| pages(*s)).collect();
        let (Some(ranges), Some(&first)) = (ranges, phys.first()) else {
            self.counts.add(Topic::Failed, 1);
            return Ok(());
        };
        let kind = Some(Kind::ScatterGather);
        let key = (first, entries);
        if self.states[device.index()].assigned {
            return self.give_list(device, &segments, &ranges, permission, key);
        }
        let total: u64 = ranges
            .iter()
            .map(|r| r.pages().0)
            .fold(0, u64::saturating_add);
        // Entries that were merged into one segment begin at page boundaries, so if there are as
        // many entries as pages, each has one. Else it is not recorded where one ends.
        let one_each = phys.len() == entries && total == phys.len() as u64;
        let mut entry = phys.iter().copied();
        for range in &ranges {
            self.make_room(device, *range, stamp);
        }
        for (range, segment) in ranges.into_iter().zip(&segments) {
            let map = |at: &mut Self, range, phys: Option<u64>, extent| {
                at.emit(Event::Map {
                    device,
                    range,
                    permission,
                    phys: phys.and_then(phys_page),
                    kind,
                    extent,
                });
            };
            // a list that names pages twice is none of the kernel's
            if self.states[device.index()].live.overlaps(range) {
                self.counts.add(Topic::Failed, 1);
                continue;
            }
            self.begin(1)?;
            self.states[device.index()].live.insert(range);
            if segments.len() == phys.len() {
                let extent = self.extent(range, *segment);
                map(self, range, entry.next(), extent);
            } else if one_each {
                for page in range.first().number()..=range.last().number() {
                    if let Some(one) = page_range(page, page) {
                        map(self, one, entry.next(), extent_in(range, *segment, page));
                    }
                }
            } else {
                self.counts.add(Topic::PhysUnknown, 1);
                let extent = self.extent(range, *segment);
                map(self, range, None, extent);
            }
        }
        let lists = self.states[device.index()].lists.entry(key).or_default();
        self.live += segments.len();
        lists.push(List::Segments(segments));
        self.begin(0)
    }

    /// A list with pages of ours, one segment after the other.
    fn give_list(
        &mut self,
        device: DeviceId,
        segments: &[Segment],
        ranges: &[PageRange],
        permission: Permission,
        key: (u64, usize),
    ) -> Result<(), Fault> {
        let total = ranges
            .iter()
            .map(|r| r.pages().0)
            .fold(0, u64::saturating_add);
        let state = &mut self.states[device.index()];
        let Some(whole) = state.iovas.take(PageCount(total)) else {
            self.counts.add(Topic::Failed, 1);
            return Ok(());
        };
        state.lists.entry(key).or_default().push(List::Given(whole));
        self.begin(1)?;
        let mut next = whole.first().number();
        for (segment, range) in segments.iter().zip(ranges) {
            let pages = range.pages().0;
            self.counts.add(Topic::IovasAssigned, 1);
            if let Some(range) = page_range(next, next + pages - 1) {
                self.emit(Event::Map {
                    device,
                    range,
                    permission,
                    phys: phys_page(segment.address),
                    kind: Some(Kind::ScatterGather),
                    extent: self.extent(range, *segment),
                });
            }
            next += pages;
        }
        Ok(())
    }

    pub(super) fn unmap_list(&mut self, device: DeviceId, phys: &[u64], stamp: Option<Stamp>) {
        let state = &mut self.states[device.index()];
        let key = phys.first().map(|first| (*first, phys.len()));
        let found = key.and_then(|key| {
            let lists = state.lists.get_mut(&key)?;
            let list = lists.pop();
            if lists.is_empty() {
                state.lists.remove(&key);
            }
            list
        });
        match found {
            None => self.counts.add(Topic::MappedBefore, 1),
            Some(List::Given(range)) => {
                state.iovas.give(range);
                self.live -= 1;
                self.emit(Event::Unmap { device, range });
            }
            Some(List::Segments(segments)) => {
                self.live = self.live.saturating_sub(segments.len());
                let mut joined = Joined::default();
                for range in segments.into_iter().filter_map(pages) {
                    joined.push(range.first().number(), range.last().number());
                }
                for range in joined.ranges() {
                    self.unmap_pages(device, range, Via::Dma, stamp);
                }
            }
        }
    }
}

/// Which bytes of one page of a segment are the segment's; its pages begin with those of `range`.
fn extent_in(range: PageRange, segment: Segment, page: u64) -> Option<Extent> {
    let begins = page == range.first().number();
    let ends = page == range.last().number();
    let offset = if begins { segment.address & 0xfff } else { 0 };
    let end = match ends {
        true => (segment.address & 0xfff) + segment.bytes - (range.pages().0 - 1) * PAGE_BYTES,
        false => PAGE_BYTES,
    };
    Extent::new(PageCount(1), offset, end.checked_sub(offset)?)
}
