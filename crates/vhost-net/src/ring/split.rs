// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Split virtqueues (virtio 1.2, 2.7).
//!
//! All indices are free running and 16 bits wide; entry `i` is in slot `i % size`. From the
//! driver's side to ours:
//! `used (published) <= used (given back) <= peeked <= available <= used + size`.

use super::{Call, Cursor, Kicks, Peeked, RingError, RingView, Segment, add_segment, flags};
use super::{MAX_CHAIN, full_fence, need_event, table_of};
use ioatlas_dma::platform::Ordering;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`: bit 0 of the flags.
const QUIET: u16 = 1;

/// The device's side of a split ring.
#[derive(Debug)]
pub struct SplitRing {
    size: u16,
    event_idx: bool,
    /// The next entry to be peeked.
    peek: u16,
    /// The available index as it was read last.
    available: u16,
    /// The next entry to be given back, in the order of the available ring.
    avail: u16,
    /// The next entry of the used ring.
    used: u16,
    /// What of it the driver was shown.
    published: u16,
    /// The used index when the driver was last asked whether it wants a call. `None` if never:
    /// then it is called.
    asked: Option<u16>,
}

impl SplitRing {
    pub(super) fn new(size: u16, base: u16, event_idx: bool) -> Result<Self, RingError> {
        if !size.is_power_of_two() {
            return Err(RingError::Layout { size });
        }
        Ok(SplitRing {
            size,
            event_idx,
            peek: base,
            available: base,
            avail: base,
            used: base,
            published: base,
            asked: None,
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }
    pub(super) fn cursor(&self) -> Cursor {
        Cursor {
            index: self.peek,
            wrap: true,
        }
    }
    pub(super) fn rewind(&mut self, to: Cursor) {
        self.peek = to.index;
    }
    pub(super) fn base(&self) -> u32 {
        self.avail.into()
    }

    /// Goes on in the used ring where an earlier back end was.
    pub(super) fn resume(&mut self, view: &RingView<'_>) -> Result<(), RingError> {
        let used = u16::from_le(view.device.load(2, Ordering::Relaxed)?);
        (self.used, self.published) = (used, used);
        Ok(())
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    #[inline]
    pub(super) fn peek(
        &mut self,
        view: &RingView<'_>,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Peeked>, RingError> {
        if self.peek == self.available {
            self.available = u16::from_le(view.driver.load(2, Ordering::Acquire)?);
            let (ahead, size) = (self.available.wrapping_sub(self.avail), self.size);
            if ahead > size || self.available.wrapping_sub(self.peek) > size {
                return Err(RingError::Ahead { ahead, size });
            }
            if self.peek == self.available {
                return Ok(None);
            }
        }
        let entry = 4 + 2 * self.slot(self.peek);
        let id = u16::from_le(view.driver.load(entry, Ordering::Relaxed)?);
        let table = self.walk(view, id, segments)?;
        self.peek = self.peek.wrapping_add(1);
        Ok(Some(Peeked {
            id,
            slots: 1,
            table,
        }))
    }

    /// Reads the chain that begins at descriptor `id`.
    #[inline]
    fn walk(
        &self,
        view: &RingView<'_>,
        id: u16,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<super::Table>, RingError> {
        let most = usize::from(self.size).min(MAX_CHAIN);
        let (mut index, mut total) = (id, 0);
        for _ in 0..most {
            if index >= self.size {
                return Err(RingError::Link { index, id });
            }
            let (addr, len, flags, next) = view.descriptors.descriptor(index)?;
            if flags & flags::INDIRECT != 0 {
                return table_of(id, addr, len, flags).map(Some);
            }
            add_segment(id, (addr, len, flags), &mut total, segments)?;
            if flags & flags::NEXT == 0 {
                return Ok(None);
            }
            index = next;
        }
        Err(RingError::Endless { id, most })
    }

    #[inline]
    pub(super) fn give_back(
        &mut self,
        view: &RingView<'_>,
        chain: &Peeked,
        written: u32,
    ) -> Result<(), RingError> {
        let at = 4 + 8 * self.slot(self.used);
        let id = u32::from(chain.id).to_le();
        view.device.store(id, at, Ordering::Relaxed)?;
        view.device
            .store(written.to_le(), at + 4, Ordering::Relaxed)?;
        self.used = self.used.wrapping_add(1);
        self.avail = self.avail.wrapping_add(1);
        Ok(())
    }

    pub(super) fn publish(&mut self, view: &RingView<'_>) -> Result<Call, RingError> {
        if self.used == self.published {
            return Ok(Call::No);
        }
        view.device.store(self.used.to_le(), 2, Ordering::Release)?;
        self.published = self.used;
        full_fence();
        let due = match (self.event_idx, self.asked) {
            (true, Some(asked)) => {
                let at = 4 + 2 * usize::from(self.size);
                let event = u16::from_le(view.driver.load(at, Ordering::Relaxed)?);
                need_event(event, self.used, asked)
            }
            (true, None) => true,
            (false, _) => {
                let flags = u16::from_le(view.driver.load(0, Ordering::Relaxed)?);
                flags & QUIET == 0
            }
        };
        self.asked = Some(self.used);
        Ok(match due {
            true => Call::Due,
            false => Call::No,
        })
    }

    pub(super) fn want(&mut self, view: &RingView<'_>, kicks: Kicks) -> Result<(), RingError> {
        if self.event_idx {
            // The kick for entry e comes when the driver goes past e. The one before the next is in
            // the past, and comes again after 65,536 entries at the earliest.
            let event = match kicks {
                Kicks::Wanted => self.peek,
                Kicks::Unwanted => self.peek.wrapping_sub(1),
            };
            let at = 4 + 8 * usize::from(self.size);
            return view.device.store(event.to_le(), at, Ordering::Relaxed);
        }
        let flags = match kicks {
            Kicks::Wanted => 0,
            Kicks::Unwanted => QUIET,
        };
        view.device.store(flags.to_le(), 0, Ordering::Relaxed)
    }
}
