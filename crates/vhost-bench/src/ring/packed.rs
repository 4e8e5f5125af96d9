// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Packed rings (virtio 1.2, 2.8).

use super::*;
use ioatlas_dma::platform::Ordering;
use ioatlas_host::full_fence;

/// Bits of a descriptor's flags (2.8.1).
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// `RING_EVENT_FLAGS_DISABLE` (2.8.10): no event is wanted.
const DISABLE: u16 = 1;
/// `RING_EVENT_FLAGS_DESC`: at a descriptor.
const AT_DESCRIPTOR: u16 = 2;
/// The wrap counter in the descriptor that an event names (2.8.10).
const AT_WRAP: u16 = 1 << 15;
/// Event suppression areas have lines of their own.
const LINE: usize = 64;

pub(crate) struct PackedRing {
    ram: Arc<Ram>,
    size: u16,
    descriptors: usize,
    driver: usize,
    device: usize,
    ids: Ids,
    next_avail: u16,
    avail_wrap: bool,
    /// Descriptors since the last publish.
    added: u16,
    next_used: u16,
    used_wrap: bool,
    /// Where the first descriptor is that was added and not published, and its flags. It goes last,
    /// so that a burst is available at once.
    held: Option<(usize, u16)>,
}

impl PackedRing {
    fn flags_available(&self) -> u16 {
        match self.avail_wrap {
            true => AVAIL,
            false => USED,
        }
    }
}

impl DriverRing for PackedRing {
    fn new(ram: Arc<Ram>, at: usize, size: u16, _: Suppression) -> Self {
        let driver = (at + 16 * usize::from(size)).next_multiple_of(LINE);
        let device = driver + LINE;
        ram.store(driver + 2, DISABLE.to_le(), Ordering::Relaxed);
        PackedRing {
            ram,
            size,
            descriptors: at,
            driver,
            device,
            ids: Ids::new(size),
            next_avail: 0,
            avail_wrap: true,
            added: 0,
            next_used: 0,
            used_wrap: true,
            held: None,
        }
    }

    fn parts(&self, addr: &dyn Fn(usize) -> u64) -> RingAddresses {
        RingAddresses {
            descriptors: addr(self.descriptors),
            driver: addr(self.driver),
            device: addr(self.device),
        }
    }

    /// Both wrap counters are 1; the front end sends the half that is the available one's, and the
    /// used one's is the same.
    fn base(&self) -> u16 {
        1 << 15
    }

    #[inline]
    fn add(&mut self, token: Token, iova: Iova, bytes: u32, access: AccessKind) -> bool {
        let Some(id) = self.ids.take(token) else {
            return false;
        };
        let flags = self.flags_available()
            | match access {
                AccessKind::Read => 0,
                AccessKind::Write => WRITE,
            };
        let at = self.descriptors + 16 * usize::from(self.next_avail);
        self.ram.store(at, iova.0.to_le(), Ordering::Relaxed);
        self.ram.store(at + 8, bytes.to_le(), Ordering::Relaxed);
        self.ram.store(at + 12, id.to_le(), Ordering::Relaxed);
        match self.held {
            None => self.held = Some((at + 14, flags)),
            Some(_) => self.ram.store(at + 14, flags.to_le(), Ordering::Release),
        }
        self.next_avail += 1;
        self.added += 1;
        if self.next_avail == self.size {
            self.next_avail = 0;
            self.avail_wrap = !self.avail_wrap;
        }
        true
    }

    #[inline]
    fn publish(&mut self) -> Kick {
        let Some((at, flags)) = self.held.take() else {
            return Kick::Unwanted;
        };
        self.ram.store(at, flags.to_le(), Ordering::Release);
        full_fence();
        let flags: u16 = self.ram.load(self.device + 2, Ordering::Relaxed);
        let (new, added) = (self.next_avail, std::mem::take(&mut self.added));
        match u16::from_le(flags) {
            DISABLE => Kick::Unwanted,
            // Only where the event index was negotiated.
            AT_DESCRIPTOR => {
                let event: u16 = self.ram.load(self.device, Ordering::Relaxed);
                let event = u16::from_le(event);
                let (at, wrap) = (event & (AT_WRAP - 1), event & AT_WRAP != 0);
                // Of the round before: behind this one's start by the ring's length.
                let at = match wrap == self.avail_wrap {
                    true => at,
                    false => at.wrapping_sub(self.size),
                };
                match need_event(at, new, new.wrapping_sub(added)) {
                    true => Kick::Wanted,
                    false => Kick::Unwanted,
                }
            }
            _ => Kick::Wanted,
        }
    }

    #[inline]
    fn take(&mut self) -> Result<Option<Used>, RingFault> {
        let at = self.descriptors + 16 * usize::from(self.next_used);
        let flags: u16 = self.ram.load(at + 14, Ordering::Acquire);
        let flags = u16::from_le(flags);
        let used = flags & USED != 0;
        if (flags & AVAIL != 0) != used || used != self.used_wrap || self.ids.in_use() == 0 {
            return Ok(None);
        }
        let id: u16 = self.ram.load(at + 12, Ordering::Relaxed);
        let written: u32 = self.ram.load(at + 8, Ordering::Relaxed);
        let token = self.ids.give_back(u16::from_le(id).into())?;
        self.next_used += 1;
        if self.next_used == self.size {
            self.next_used = 0;
            self.used_wrap = !self.used_wrap;
        }
        Ok(Some(Used {
            token,
            written: u32::from_le(written),
        }))
    }

    fn in_ring(&self) -> usize {
        self.ids.in_use()
    }
}
