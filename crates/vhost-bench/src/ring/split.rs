// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Split rings (virtio 1.2, 2.7).

use super::*;
use ioatlas_dma::platform::Ordering;
use ioatlas_host::full_fence;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY` (2.7.7, 2.7.10).
const QUIET: u16 = 1;
/// The used ring begins at a cache line of its own, and not on the page's of the available ring
/// where that can be avoided.
const APART: usize = 4096;

pub(crate) struct SplitRing {
    ram: Arc<Ram>,
    size: u16,
    suppression: Suppression,
    descriptors: usize,
    avail: usize,
    used: usize,
    ids: Ids,
    next_avail: u16,
    published: u16,
    next_used: u16,
    /// The used index as it was last read.
    known_used: u16,
}

impl DriverRing for SplitRing {
    fn new(ram: Arc<Ram>, at: usize, size: u16, suppression: Suppression) -> Self {
        let n = usize::from(size);
        let avail = (at + 16 * n).next_multiple_of(APART);
        let used = (avail + 6 + 2 * n).next_multiple_of(APART);
        ram.store(avail, QUIET.to_le(), Ordering::Relaxed);
        let past = u16::MAX;
        ram.store(avail + 4 + 2 * n, past.to_le(), Ordering::Relaxed);
        SplitRing {
            ram,
            size,
            suppression,
            descriptors: at,
            avail,
            used,
            ids: Ids::new(size),
            next_avail: 0,
            published: 0,
            next_used: 0,
            known_used: 0,
        }
    }

    fn parts(&self, addr: &dyn Fn(usize) -> u64) -> RingAddresses {
        RingAddresses {
            descriptors: addr(self.descriptors),
            driver: addr(self.avail),
            device: addr(self.used),
        }
    }

    fn base(&self) -> u16 {
        0
    }

    #[inline]
    fn add(&mut self, token: Token, iova: Iova, bytes: u32, access: AccessKind) -> bool {
        let Some(id) = self.ids.take(token) else {
            return false;
        };
        let flags = match access {
            AccessKind::Read => 0,
            AccessKind::Write => WRITE,
        };
        let at = self.descriptors + 16 * usize::from(id);
        let rest = u64::from(bytes) | u64::from(flags) << 32;
        self.ram.store(at, iova.0.to_le(), Ordering::Relaxed);
        self.ram.store(at + 8, rest.to_le(), Ordering::Relaxed);
        let slot = usize::from(self.next_avail & (self.size - 1));
        let at = self.avail + 4 + 2 * slot;
        self.ram.store(at, id.to_le(), Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
        true
    }

    #[inline]
    fn publish(&mut self) -> Kick {
        if self.published == self.next_avail {
            return Kick::Unwanted;
        }
        let old = std::mem::replace(&mut self.published, self.next_avail);
        let index = self.published.to_le();
        self.ram.store(self.avail + 2, index, Ordering::Release);
        full_fence();
        let wanted = match self.suppression {
            Suppression::Flags => {
                let flags: u16 = self.ram.load(self.used, Ordering::Relaxed);
                u16::from_le(flags) & QUIET == 0
            }
            Suppression::EventIndex => {
                let at = self.used + 4 + 8 * usize::from(self.size);
                let event: u16 = self.ram.load(at, Ordering::Relaxed);
                need_event(u16::from_le(event), self.published, old)
            }
        };
        match wanted {
            true => Kick::Wanted,
            false => Kick::Unwanted,
        }
    }

    #[inline]
    fn take(&mut self) -> Result<Option<Used>, RingFault> {
        if self.next_used == self.known_used {
            let used: u16 = self.ram.load(self.used + 2, Ordering::Acquire);
            let used = u16::from_le(used);
            let count = used.wrapping_sub(self.next_used);
            if usize::from(count) > self.ids.in_use() {
                return Err(RingFault::TooMany {
                    used: count,
                    in_ring: self.ids.in_use(),
                });
            }
            self.known_used = used;
            if self.suppression == Suppression::EventIndex {
                let at = self.avail + 4 + 2 * usize::from(self.size);
                let past = used.wrapping_sub(1);
                self.ram.store(at, past.to_le(), Ordering::Relaxed);
            }
            if count == 0 {
                return Ok(None);
            }
        }
        let slot = usize::from(self.next_used & (self.size - 1));
        let at = self.used + 4 + 8 * slot;
        let id: u32 = self.ram.load(at, Ordering::Relaxed);
        let written: u32 = self.ram.load(at + 4, Ordering::Relaxed);
        let token = self.ids.give_back(u32::from_le(id))?;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(Some(Used {
            token,
            written: u32::from_le(written),
        }))
    }

    fn in_ring(&self) -> usize {
        self.ids.in_use()
    }
}
