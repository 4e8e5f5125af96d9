// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device is, to the runner.

use super::QueueWorker;
use crate::{cache::IotlbReader, guest_memory::Fault};
use std::{error::Error, io, os::fd::OwnedFd};
use vhost::vhost_user::{Backend, message::VhostUserProtocolFeatures};

/// A virtio device behind a vhost-user socket.
///
/// The runner offers `VIRTIO_F_VERSION_1`, `VIRTIO_F_ACCESS_PLATFORM` and what the protocol needs
/// by itself; with or without an IOMMU, memory is what [`QueueWorker`] gives, and the addresses in
/// descriptors are its addresses.
pub trait Device: Send + Sync + 'static {
    /// How many queues it has, at most 64.
    fn queues(&self) -> u16;

    /// What `VHOST_USER_GET_QUEUE_NUM` answers. A network device counts pairs there, as QEMU, which
    /// compares the number with its `queues`, and DPDK do. With 1 the protocol feature `MQ` is not
    /// offered, and front ends do not ask.
    fn queue_num(&self) -> u16 {
        self.queues()
    }

    /// The most entries a queue may have, a power of two.
    fn max_queue_size(&self) -> u16 {
        256
    }

    /// The virtio features that it offers, beyond the runner's.
    fn features(&self) -> u64;

    /// The protocol features that it needs, beyond the runner's (`CONFIG`, for one).
    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::empty()
    }

    /// Called with the features that were negotiated.
    fn negotiated(&self, _features: u64) {}

    /// For each thread, the queues that it serves, as a mask. Each queue must be in just one.
    fn queues_per_thread(&self) -> Vec<u64> {
        vec![u64::MAX]
    }

    /// Events of its own (a TAP device becomes readable): file descriptors of a thread,
    /// each with a token.
    fn events(&self, _thread: usize) -> Vec<(OwnedFd, u64)> {
        Vec::new()
    }

    /// Bytes of the device's configuration space; a wrong number of them is an error
    /// to the front end.
    fn read_config(&self, _offset: u32, _len: u32) -> Vec<u8> {
        Vec::new()
    }

    /// Writes to the configuration space.
    ///
    /// # Errors
    /// It cannot be written; the front end is told.
    fn write_config(&self, _offset: u32, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Back to the initial state; no queue is being processed.
    fn reset(&self) {}

    /// `vhost`'s end of the back channel, for requests other than IOTLB messages.
    fn back_channel(&self, _backend: Backend) {}

    /// Does what there is to do. Runs on a thread of the runner, which does nothing else meanwhile;
    /// control requests for its queues wait.
    ///
    /// # Errors
    /// The named queue stops. [`Stop::Fault`] with [`Fault::Interrupted`] only asks to be called
    /// again, with the same event.
    fn process<R: IotlbReader>(
        &self,
        event: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure>;

    /// A queue has stopped because of an error. It stays so until the front end starts it anew.
    fn stopped(&self, _queue: u16, _why: &Stop) {}
}

/// Why a device is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A queue was kicked, or has just started.
    Queue(u16),
    /// One of the device's own file descriptors has something.
    Own(u64),
}

/// What a device wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing, until the next event.
    Wait,
    /// To be called again with this event, after control requests (polling, or more work than
    /// one call should do).
    Again,
}

/// Which queue stops, and why.
#[derive(Debug, thiserror::Error)]
#[error("queue {queue}: {why}")]
#[allow(missing_docs)] // its fields say it
pub struct Failure {
    pub queue: u16,
    #[source]
    pub why: Stop,
}

/// Why a queue stops.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Guest memory could not be accessed.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The available index is further ahead than the queue is long, the ring is
    /// nowhere, and the like.
    #[error("{0}")]
    Queue(#[from] virtio_queue::Error),
    /// A descriptor chain has no end, or is far too long: a loop, a link to nowhere, or an indirect
    /// table that is none.
    #[error("the descriptor chain at {head} is broken, a loop, or too long")]
    Chain {
        /// The index of its first descriptor.
        head: u16,
    },
    /// The kick's file descriptor is of no use.
    #[error("kick: {0}")]
    Kick(#[source] io::Error),
    /// The file behind guest memory was truncated, or has no page left for it.
    #[error("guest memory is gone: its file was truncated, or has no page left")]
    MemoryGone,
    /// The device's own reason.
    #[error("{0}")]
    Device(#[source] Box<dyn Error + Send + Sync>),
}

impl Stop {
    /// Whether to try again instead.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Stop::Fault(Fault::Interrupted(_)))
    }
}
