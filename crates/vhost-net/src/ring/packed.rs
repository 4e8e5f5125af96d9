// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Packed virtqueues (virtio 1.2, 2.8).
//!
//! One array of descriptors serves both directions. A descriptor is available if its available bit
//! is the wrap counter and its used bit is not; used, if both are. Chains are given back in one
//! descriptor, at the place of the first one not given back, which is then as many entries further
//! as the chain has.
//!
//! What is given back shows when the flags of its first descriptor are written; so those are kept
//! until `publish`, and the driver, which reads in order, sees all or nothing of a frame that takes
//! several chains.

use super::{
    Call, Cursor, DESCRIPTOR_BYTES, Kicks, MAX_CHAIN, Peeked, RingError, RingView, Segment,
};
use super::{add_segment, flags, full_fence, table_of};
use ioatlas_dma::platform::Ordering;

/// `RING_EVENT_FLAGS_ENABLE`, `_DISABLE` and `_DESC` (2.8.10).
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;
/// The wrap counter in an event's offset and in `SET_VRING_BASE`.
const WRAP: u16 = 1 << 15;

/// The device's side of a packed ring.
#[derive(Debug)]
pub struct PackedRing {
    size: u16,
    event_idx: bool,
    /// The next descriptor to be peeked.
    peek: Cursor,
    /// Descriptors from `avail` to `peek`.
    ahead: u16,
    /// The first descriptor of the first chain that was not given back.
    avail: Cursor,
    /// Where the next used descriptor goes.
    used: Cursor,
    /// The flags that `publish` will write, and where.
    held: Option<(usize, u16)>,
    /// Entries used since the driver was last asked whether it wants a call. `None`
    /// before the first time.
    since: Option<u32>,
}

impl Cursor {
    /// `slots` descriptors further in a ring of `size`, at most once around.
    fn forward(self, slots: u16, size: u16) -> Cursor {
        let index = u32::from(self.index) + u32::from(slots);
        match index >= u32::from(size) {
            true => Cursor {
                index: (index - u32::from(size)) as u16,
                wrap: !self.wrap,
            },
            false => Cursor {
                index: index as u16,
                ..self
            },
        }
    }

    fn encode(self) -> u16 {
        match self.wrap {
            true => self.index | WRAP,
            false => self.index,
        }
    }

    fn decode(raw: u16, size: u16) -> Result<Cursor, RingError> {
        let index = raw & !WRAP;
        match index < size {
            true => Ok(Cursor {
                index,
                wrap: raw & WRAP != 0,
            }),
            false => Err(RingError::Layout { size }),
        }
    }
}

impl PackedRing {
    pub(super) fn new(size: u16, base: u32, event_idx: bool) -> Result<Self, RingError> {
        if size == 0 || size > 1 << 15 {
            return Err(RingError::Layout { size });
        }
        let avail = Cursor::decode(base as u16, size)?;
        // Front ends that know 16 bits of a base leave the upper half 0. Nothing is in flight when
        // a queue starts.
        let used = match (base >> 16) as u16 {
            0 => avail,
            used => Cursor::decode(used, size)?,
        };
        Ok(PackedRing {
            size,
            event_idx,
            peek: avail,
            ahead: 0,
            avail,
            used,
            held: None,
            since: None,
        })
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }
    pub(super) fn cursor(&self) -> Cursor {
        self.peek
    }
    pub(super) fn rewind(&mut self, to: Cursor) {
        let lap = match self.avail.wrap == to.wrap {
            true => 0,
            false => self.size,
        };
        self.ahead = (to.index + lap).wrapping_sub(self.avail.index);
        self.peek = to;
    }
    pub(super) fn base(&self) -> u32 {
        u32::from(self.used.encode()) << 16 | u32::from(self.avail.encode())
    }

    #[inline]
    pub(super) fn peek(
        &mut self,
        view: &RingView<'_>,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Peeked>, RingError> {
        if self.ahead == self.size {
            return Ok(None); // all there are, are ahead
        }
        let at = usize::from(self.peek.index) * DESCRIPTOR_BYTES as usize;
        let first = u16::from_le(view.descriptors.load(at + 14, Ordering::Acquire)?);
        let (avail, used) = (first & flags::AVAIL != 0, first & flags::USED != 0);
        if avail != self.peek.wrap || used == self.peek.wrap {
            return Ok(None);
        }
        let most = usize::from(self.size - self.ahead).min(MAX_CHAIN);
        let (mut slots, mut total, mut table) = (0u16, 0, None);
        let mut index = self.peek.index;
        let id = loop {
            if usize::from(slots) == most {
                let id = self.peek.index;
                return Err(RingError::Endless { id, most });
            }
            let (addr, len, id, flags) = view.descriptors.descriptor(index)?;
            slots += 1;
            if flags & flags::INDIRECT != 0 {
                table = Some(table_of(id, addr, len, flags)?);
                break id;
            }
            add_segment(id, (addr, len, flags), &mut total, segments)?;
            if flags & flags::NEXT == 0 {
                break id;
            }
            index = if index + 1 == self.size { 0 } else { index + 1 };
        };
        self.peek = self.peek.forward(slots, self.size);
        self.ahead += slots;
        Ok(Some(Peeked { id, slots, table }))
    }

    #[inline]
    pub(super) fn give_back(
        &mut self,
        view: &RingView<'_>,
        chain: &Peeked,
        written: u32,
    ) -> Result<(), RingError> {
        let at = usize::from(self.used.index) * DESCRIPTOR_BYTES as usize;
        view.descriptors
            .store(written.to_le(), at + 8, Ordering::Relaxed)?;
        view.descriptors
            .store(chain.id.to_le(), at + 12, Ordering::Relaxed)?;
        let mut now = match self.used.wrap {
            true => flags::AVAIL | flags::USED,
            false => 0,
        };
        if written > 0 {
            now |= flags::WRITE;
        }
        match self.held {
            None => self.held = Some((at, now)),
            Some(_) => view
                .descriptors
                .store(now.to_le(), at + 14, Ordering::Relaxed)?,
        }
        self.used = self.used.forward(chain.slots, self.size);
        self.avail = self.avail.forward(chain.slots, self.size);
        self.ahead = self.ahead.saturating_sub(chain.slots);
        if let Some(since) = &mut self.since {
            *since = since.saturating_add(chain.slots.into());
        }
        Ok(())
    }

    pub(super) fn publish(&mut self, view: &RingView<'_>) -> Result<Call, RingError> {
        let Some((at, first)) = self.held.take() else {
            return Ok(Call::No);
        };
        view.descriptors
            .store(first.to_le(), at + 14, Ordering::Release)?;
        full_fence();
        let since = self.since.replace(0);
        let wants = u32::from_le(view.driver.load(0, Ordering::Relaxed)?);
        let (event, wants) = (wants as u16, (wants >> 16) as u16 & 3);
        let due = match (wants, since) {
            (DISABLE, _) => false,
            (DESC, Some(since)) if self.event_idx => self.passed(event, since),
            _ => true,
        };
        Ok(match due {
            true => Call::Due,
            false => Call::No,
        })
    }

    /// Whether `event` is among the last `since` entries used.
    fn passed(&self, event: u16, since: u32) -> bool {
        let (size, used) = (i64::from(self.size), i64::from(self.used.index));
        // On a line on which the used position of this lap is its index, and the lap before is
        // below 0.
        let lap = match (event & WRAP != 0) == self.used.wrap {
            true => 0,
            false => -size,
        };
        let event = i64::from(event & !WRAP) + lap;
        used - i64::from(since) <= event && event < used
    }

    pub(super) fn want(&mut self, view: &RingView<'_>, kicks: Kicks) -> Result<(), RingError> {
        let (event, flags) = match (kicks, self.event_idx) {
            (Kicks::Unwanted, _) => (0, DISABLE),
            (Kicks::Wanted, true) => (self.peek.encode(), DESC),
            (Kicks::Wanted, false) => (0, ENABLE),
        };
        let both = u32::from(flags) << 16 | u32::from(event);
        view.device.store(both.to_le(), 0, Ordering::Relaxed)
    }
}
