// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One virtqueue, as the front end sets it up.
//!
//! A ring is *live* while it has a kick, addresses, is enabled and has not failed. Everything a
//! device needs to walk it is here; `queue` does so for split rings, and code for packed ones
//! starts from [`Ring::addresses`] and [`Ring::base`]. A ring that goes live gets a new
//! [`Ring::start`] number, so that such code knows when to begin anew.

use super::{Stop, event_fd::Raiser};
use crate::{log_limit::peer_log, protocol::message::FrontAddr};
use ioatlas_dma::units::*;
use std::{
    cell::Cell,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

/// `VIRTIO_F_RING_PACKED`: rings are packed (virtio 1.2, 2.8).
pub const RING_PACKED: u64 = 1 << 34;
/// `VIRTIO_RING_F_EVENT_IDX`: `used_event` and `avail_event` are in use.
pub const EVENT_IDX: u64 = 1 << 29;

/// Where the three parts of a ring are: IOVAs, or guest-physical addresses where
/// no IOMMU was negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingParts {
    /// Descriptor table, or descriptor ring.
    pub descriptors: Iova,
    /// What the driver writes: available ring, or driver event suppression.
    pub driver: Iova,
    /// What the device writes: used ring, or device event suppression.
    pub device: Iova,
}

/// The same as `SET_VRING_ADDR` names them, whatever that means: it may change with the features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RawParts {
    pub descriptors: FrontAddr,
    pub driver: FrontAddr,
    pub device: FrontAddr,
}

/// How the driver's notifications arrive.
#[derive(Debug)]
pub(super) enum Kick {
    /// None was set: the ring is stopped.
    Unset,
    /// By none: the device polls.
    Polling,
    /// By this file descriptor, which is in the thread's epoll set.
    Event(OwnedFd),
}

/// A virtqueue. See the module.
#[derive(Debug)]
pub struct Ring {
    index: u16,
    /// For split rings. Valid while the ring is live.
    pub queue: Queue,
    pub(super) size: u16,
    pub(super) features: u64,
    pub(super) raw: Option<RawParts>,
    pub(super) parts: Option<RingParts>,
    pub(super) base: u32,
    pub(super) kick: Kick,
    pub(super) call: Option<OwnedFd>,
    /// The call's file descriptor failed: left alone until there is another.
    pub(super) mute: Cell<bool>,
    pub(super) err: Option<OwnedFd>,
    pub(super) enabled: bool,
    pub(super) failed: bool,
    pub(super) live: bool,
    /// The used index is still to be read from the ring.
    pub(super) fresh: bool,
    start: u64,
    raiser: Arc<Raiser>,
}

impl Ring {
    pub(super) fn new(
        index: u16,
        max_size: u16,
        raiser: Arc<Raiser>,
    ) -> Result<Self, virtio_queue::Error> {
        Ok(Ring {
            index,
            queue: Queue::new(max_size)?,
            size: max_size,
            features: 0,
            raw: None,
            parts: None,
            base: 0,
            kick: Kick::Unset,
            call: None,
            mute: Cell::new(false),
            err: None,
            enabled: false,
            failed: false,
            live: false,
            fresh: false,
            start: 0,
            raiser,
        })
    }

    /// Back to the beginning, but for the count of starts.
    pub(super) fn renew(&mut self, new: Ring) {
        *self = Ring {
            start: self.start,
            ..new
        };
    }

    /// One like it as it was in the beginning.
    pub(super) fn anew(&self) -> Result<Self, virtio_queue::Error> {
        Ring::new(self.index, self.queue.max_size(), self.raiser.clone())
    }

    /// Its number among the device's queues.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// How many entries it has.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The features that were negotiated.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Whether it is packed.
    pub fn is_packed(&self) -> bool {
        self.features & RING_PACKED != 0
    }

    /// Whether it is to be processed.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Whether the driver does not kick, so that the ring must be polled.
    pub fn is_polled(&self) -> bool {
        matches!(self.kick, Kick::Polling)
    }

    /// Where its parts are, while it is live.
    pub fn addresses(&self) -> Option<RingParts> {
        self.parts
    }

    /// Counts how often it went live.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// What `SET_VRING_BASE` said. Of a split ring the next available index; of a packed one, next
    /// available index and wrap counter in the lower half, next used ones in the upper.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// What `GET_VRING_BASE` shall answer for a packed ring. (A split ring's is `queue`'s.)
    pub fn set_base(&mut self, base: u32) {
        self.base = base;
    }

    /// Tells the driver that buffers were used.
    ///
    /// # Errors
    /// The call's file descriptor is no eventfd. That is said once: then it is left alone, until
    /// the front end sets another.
    pub fn notify(&self) -> io::Result<()> {
        match &self.call {
            Some(call) if !self.mute.get() => {
                let raised = self.raiser.raise(call.as_fd());
                self.mute.set(raised.is_err());
                raised
            }
            _ => Ok(()),
        }
    }

    /// Sets what tells the driver.
    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        self.mute.set(false);
    }

    /// Bytes of its three parts (virtio 1.2, 2.7 and 2.8).
    pub(super) fn extents(&self, parts: &RingParts) -> [(Iova, ByteCount, Perm); 3] {
        let size = u64::from(self.size);
        let (driver, device) = match self.is_packed() {
            true => (4, 4),
            false => (6 + 2 * size, 6 + 8 * size),
        };
        // The device marks descriptors of a packed ring as used in place.
        let descriptors = match self.is_packed() {
            true => Perm::ReadWrite,
            false => Perm::Read,
        };
        [
            (parts.descriptors, ByteCount(16 * size), descriptors),
            (parts.driver, ByteCount(driver), Perm::Read),
            (parts.device, ByteCount(device), Perm::ReadWrite),
        ]
    }

    /// Makes it live, with its parts where `parts` says.
    pub(super) fn go_live(&mut self, parts: RingParts) -> Result<(), virtio_queue::Error> {
        self.parts = Some(parts);
        if !self.is_packed() {
            let queue = &mut self.queue;
            queue.try_set_size(self.size)?;
            queue.try_set_desc_table_address(GuestAddress(parts.descriptors.0))?;
            queue.try_set_avail_ring_address(GuestAddress(parts.driver.0))?;
            queue.try_set_used_ring_address(GuestAddress(parts.device.0))?;
            queue.set_event_idx(self.features & EVENT_IDX != 0);
            queue.set_next_avail(self.base as u16);
            queue.set_ready(true);
            self.fresh = true;
        }
        self.live = true;
        self.start += 1;
        Ok(())
    }

    /// Takes it out of service; what `GET_VRING_BASE` answers stays.
    pub(super) fn stop(&mut self) {
        if self.live && !self.is_packed() {
            self.base = u32::from(self.queue.next_avail());
            self.queue.set_ready(false);
        }
        self.live = false;
    }

    /// Takes it out of service because of an error, and tells the front end by
    /// the error's file descriptor.
    pub(super) fn fail(&mut self, why: &Stop) {
        peer_log!(Error, "queue {} stops: {why}", self.index);
        self.stop();
        self.failed = true;
        if let Some(err) = &self.err
            && let Err(e) = self.raiser.raise(err.as_fd())
        {
            peer_log!(Warn, "queue {}: cannot report the error: {e}", self.index);
        }
    }
}

/// A file descriptor for events, made not to block: the front end has the other end, and may have
/// filled it. No program that we start inherits it; `vhost` receives it as if one should.
pub(super) fn unblocked(file: File) -> io::Result<OwnedFd> {
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::{super::event_fd, *};

    #[test]
    fn a_call_that_fails_is_told_of_once() {
        let mut ring = Ring::new(0, 16, Arc::new(Raiser::new().unwrap())).unwrap();
        for _ in 0..2 {
            // not open for writing
            ring.set_call(Some(File::open("/dev/null").unwrap().into()));
            assert!(ring.notify().is_err());
            assert!(ring.notify().is_ok(), "left alone");
        }
        ring.set_call(Some(event_fd::new().unwrap()));
        assert!(ring.notify().is_ok());
        let mut count = [0; 8];
        rustix::io::read(ring.call.as_ref().unwrap(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}
