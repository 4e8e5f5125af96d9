// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One connection's state, and how it changes: memory, features, rings.
//!
//! Requests (`requests`) and IOTLB messages (`iotlb`) come one at a time, on the control thread.
//! What they change in workers they change with the workers' locks. A session that ends leaves
//! nothing: rings stopped, cache empty, memory unmapped, back channel closed.

use super::{
    ControlStats, Device, Runner,
    queue_worker::QueueWorker,
    requests::system,
    ring::{Kick, RawParts, Ring, RingParts},
    worker::Shared,
};
use crate::{
    cache::*,
    log_limit::peer_log,
    protocol::{
        ACCESS_PLATFORM, VERSION_1,
        memory::{GuestPhys, MemoryTable},
        message::FrontAddr,
        misses::MissChannel,
    },
};
use ioatlas_dma::units::*;
use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use vhost::vhost_user::{Error, Result, message::VhostUserProtocolFeatures};

/// `VHOST_USER_F_PROTOCOL_FEATURES`: not a feature of virtio, but of the protocol.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;

pub(super) struct Session<D: Device, T: DeviceIotlb> {
    pub(super) device: Arc<D>,
    pub(super) cache: Arc<T>,
    pub(super) misses: Arc<MissChannel>,
    pub(super) workers: Arc<[Shared<T::Reader>]>,
    pub(super) config: super::Config,
    pub(super) stats: Arc<Mutex<ControlStats>>,
    pub(super) table: MemoryTable,
    pub(super) owned: bool,
    pub(super) features: u64,
    /// Whether `features` were set. Until then no ring is live and no memory is known: a front end
    /// that never sets them has not agreed to do without an IOMMU.
    pub(super) negotiated: bool,
    pub(super) protocol: u64,
    /// The socket that came with the request that is being handled.
    pub(super) back: Option<OwnedFd>,
    /// The back channel, once `vhost` has found it good.
    pub(super) channel: Option<OwnedFd>,
    /// Ranges that are pinned for rings, by queue; those of the memory table have none.
    pub(super) pins: Vec<(Option<u16>, Iova, ByteCount)>,
}

impl<D: Device, T: DeviceIotlb> Session<D, T> {
    pub fn new(runner: &Runner<D, T>) -> Self {
        let session = Session {
            device: runner.device.clone(),
            cache: runner.cache.clone(),
            misses: runner.misses.clone(),
            workers: runner.workers.clone(),
            config: runner.config,
            stats: runner.control.clone(),
            table: MemoryTable::default(),
            owned: false,
            features: 0,
            negotiated: false,
            protocol: 0,
            back: None,
            channel: None,
            pins: Vec::new(),
        };
        session.stats().connections += 1;
        session
    }

    pub(super) fn stats(&self) -> MutexGuard<'_, ControlStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn offered(&self) -> u64 {
        self.device.features() | VERSION_1 | ACCESS_PLATFORM | PROTOCOL_FEATURES
    }

    pub(super) fn has_iommu(&self) -> bool {
        self.features & ACCESS_PLATFORM != 0
    }

    /// Whether a queue can be enabled though no features are set yet. The protocol asks for
    /// `VHOST_USER_F_PROTOCOL_FEATURES` to be negotiated; QEMU takes it as soon as both sides have
    /// shown it, and `vhost` not before `SET_FEATURES`.
    pub(super) fn enables_early(&self) -> bool {
        self.features == 0 && self.protocol != 0
    }

    /// Handles message 18, which enables or disables a ring.
    pub(super) fn enable(&mut self, index: u32, enable: u32) -> Result<()> {
        let enable = match enable {
            0 => false,
            1 => true,
            _ => return Err(Error::InvalidParam),
        };
        self.change_ring(index, |_, ring, _| {
            ring.enabled = enable;
            Ok(())
        })
    }

    /// Whether the front end may ask for answers.
    pub(super) fn replies(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    /// Forgets every translation once no ring is live: from then on a front end need not say which
    /// are no more. QEMU does not, for its notifiers go with the device; and a guest that boots
    /// again maps other pages at the same IOVAs. Nor are questions answered that are under way.
    pub(super) fn forget_if_idle(&mut self) {
        let idle = |shared: &Shared<T::Reader>| shared.take().rings.iter().all(|ring| !ring.live);
        if self.has_iommu() && self.workers.iter().all(idle) {
            self.change_all(|session| session.connect_misses());
        }
    }

    /// Where misses go: without an IOMMU, nowhere.
    pub(super) fn connect_misses(&self) {
        let channel = self.channel.as_ref().filter(|_| self.has_iommu());
        let channel = channel.map(OwnedFd::try_clone).transpose();
        let channel = channel.unwrap_or_else(|e| {
            peer_log!(Error, "misses cannot be sent: {e}");
            None
        });
        self.misses.connect(channel);
    }

    /// Changes what all workers work with: no device runs meanwhile.
    pub(super) fn change_all(&mut self, change: impl FnOnce(&mut Self)) {
        let shared = self.workers.clone();
        let mut workers: Vec<_> = shared.iter().map(Shared::take).collect();
        change(self);
        // No guard is held: clearing does not wait.
        self.cache.clear();
        for (_, iova, len) in self.pins.drain(..) {
            self.cache.unpin(iova, len);
        }
        if self.negotiated && !self.has_iommu() {
            self.fill();
        }
        for worker in workers.iter_mut() {
            // The old table goes here, and with it what nothing names any more.
            worker.table = self.table.clone();
            for ring in 0..worker.rings.len() {
                worker.rings[ring].features = self.features;
                self.halt(&mut worker.rings[ring]);
                self.settle(&mut worker.rings[ring]);
            }
        }
        drop(workers);
        shared.iter().for_each(Shared::wake);
    }

    /// Without an IOMMU, what guest-physical addresses mean.
    fn fill(&mut self) {
        for region in self.table.regions() {
            let info = region.info();
            let iova = Iova(info.guest.0);
            let entry = Entry {
                iova,
                len: info.len,
                host: HostAddr(region.host() as usize as u64),
                perm: Perm::ReadWrite,
            };
            let filled = self.cache.update(entry).map_err(|e| e.to_string());
            if let Err(why) = filled {
                peer_log!(
                    Error,
                    "guest memory at {:#x} is out of reach: {why}",
                    iova.0
                );
                continue;
            }
            match self.cache.pin(iova, info.len) {
                Ok(()) => self.pins.push((None, iova, info.len)),
                Err(e) => peer_log!(Warn, "guest memory at {:#x} may be evicted: {e}", iova.0),
            }
        }
    }

    /// Changes one ring, and sees whether it is live then. Its thread does nothing meanwhile.
    pub(super) fn change_ring<O>(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut Self, &mut Ring, &Shared<T::Reader>) -> Result<O>,
    ) -> Result<O> {
        let shared = self.workers.clone();
        for shared in shared.iter() {
            let mut worker: MutexGuard<'_, QueueWorker<T::Reader>> = shared.take();
            let ring = worker
                .rings
                .iter_mut()
                .find(|r| u32::from(r.index()) == index);
            let Some(ring) = ring else { continue };
            let changed = change(self, ring, shared);
            if changed.is_ok() {
                self.settle(ring);
            }
            drop(worker);
            shared.wake();
            return changed;
        }
        peer_log!(
            Error,
            "the front end names queue {index}, which the device has not"
        );
        Err(Error::InvalidParam)
    }

    /// Takes a ring out of service, to be settled anew.
    pub(super) fn halt(&mut self, ring: &mut Ring) {
        ring.stop();
        ring.parts = None;
        let cache = &self.cache;
        let index = ring.index();
        self.pins.retain(|(queue, iova, len)| {
            let others = *queue != Some(index);
            if !others {
                cache.unpin(*iova, *len);
            }
            others
        });
    }

    /// Makes a ring live if it can be and is not; stops it if it can not.
    fn settle(&mut self, ring: &mut Ring) {
        let index = ring.index();
        let ready = !matches!(ring.kick, Kick::Unset) && ring.enabled && !ring.failed;
        let ready = ready && self.negotiated;
        let Some(raw) = ring.raw.filter(|_| ready) else {
            if ring.live {
                self.halt(ring);
            }
            return;
        };
        if ring.live {
            return;
        }
        let Some(parts) = self.parts_of(&raw) else {
            return peer_log!(
                Warn,
                "the rings of queue {index} are not in guest memory (yet)"
            );
        };
        if let Err(why) = ring.go_live(parts) {
            return ring.fail(&why.into());
        }
        for (iova, len, _) in ring.extents(&parts) {
            match self.cache.pin(iova, len) {
                Ok(()) => self.pins.push((Some(index), iova, len)),
                Err(e) => peer_log!(Warn, "the rings of queue {index} may be evicted: {e}"),
            }
        }
    }

    /// What `SET_VRING_ADDR` means: IOVAs with an IOMMU, front-end addresses without.
    fn parts_of(&self, raw: &RawParts) -> Option<RingParts> {
        let to_iova = |front: FrontAddr| match self.has_iommu() {
            true => Some(Iova(front.0)),
            false => {
                let GuestPhys(guest) = self.table.guest_of(front).ok()?;
                Some(Iova(guest))
            }
        };
        Some(RingParts {
            descriptors: to_iova(raw.descriptors)?,
            driver: to_iova(raw.driver)?,
            device: to_iova(raw.device)?,
        })
    }

    pub(super) fn set_kick(
        &mut self,
        ring: &mut Ring,
        shared: &Shared<T::Reader>,
        kick: Kick,
    ) -> Result<()> {
        if let Kick::Event(old) = &ring.kick {
            shared.unwatch(old);
        }
        ring.kick = Kick::Unset;
        if let Kick::Event(new) = &kick {
            shared.watch(ring.index(), new).map_err(system)?;
        }
        ring.kick = kick;
        // A kick is what starts a ring, also one that had failed.
        ring.failed = false;
        Ok(())
    }

    /// Stops all rings until they are enabled anew.
    pub(super) fn disable_rings(&mut self) {
        let shared = self.workers.clone();
        let workers: Vec<_> = shared.iter().map(Shared::take).collect();
        for mut worker in workers {
            for ring in &mut worker.rings {
                ring.enabled = false;
                ring.failed = false;
                self.halt(ring);
            }
        }
    }

    /// Back to what a connection begins with.
    fn forget(&mut self) {
        self.features = 0;
        self.negotiated = false;
        self.protocol = 0;
        (self.back, self.channel) = (None, None);
        let shared = self.workers.clone();
        for shared in shared.iter() {
            let mut worker = shared.take();
            for ring in &mut worker.rings {
                self.halt(ring);
                if let Kick::Event(kick) = &ring.kick {
                    shared.unwatch(kick);
                }
                match ring.anew() {
                    Ok(new) => ring.renew(new),
                    Err(e) => peer_log!(Error, "queue {}: {e}", ring.index()),
                }
            }
        }
        self.misses.connect(None);
        self.change_all(|session| session.table = MemoryTable::default());
    }
}

impl<D: Device, T: DeviceIotlb> Drop for Session<D, T> {
    fn drop(&mut self) {
        self.forget();
    }
}
