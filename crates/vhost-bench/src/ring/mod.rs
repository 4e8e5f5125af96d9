// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver's half of a virtqueue, for chains of one descriptor.
//!
//! Vocabulary: an *id* names a buffer while it is in the ring; a *token* is what the driver knows
//! it by. Buffers are *added*, then *published* together, and *taken* back when the device has used
//! them.
//!
//! # Ordering
//! What the device must see before a buffer is available is stored before the release of the
//! available index (split) or of the descriptor's flags (packed). What it wrote is read after an
//! acquire of the used index or flags. Whether it wants a kick is read after a full fence, which
//! pairs with the one between its asking for kicks and its last look.
//!
//! Never interrupted: the driver polls, and says so; with the event index by naming an entry that
//! is in the past.

mod packed;
mod split;

pub(crate) use packed::PackedRing;
pub(crate) use split::SplitRing;

use crate::{error::RingFault, ram::Ram};
use ioatlas_dma::units::*;
use ioatlas_vhost::server::RingAddresses;
use std::sync::Arc;

/// `VIRTQ_DESC_F_WRITE` (2.7.5, 2.8.21): the device writes to the buffer.
const WRITE: u16 = 2;

/// What a driver knows a buffer by.
pub(crate) type Token = u32;

/// A buffer that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Used {
    pub token: Token,
    /// Bytes that the device says it wrote.
    pub written: u32,
}

/// Whether the device asked to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kick {
    Wanted,
    Unwanted,
}

/// How the two sides say whether they want to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Suppression {
    /// By a flag, yes or no.
    Flags,
    /// When they get to an entry (`VIRTIO_RING_F_EVENT_IDX`).
    EventIndex,
}

/// Whether `event` is among the positions from `old` up to, and without, `new` (2.7.10).
fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A virtqueue, from the driver's side.
pub(crate) trait DriverRing {
    /// A ring of `size` entries whose parts begin at `at` in memory, where it takes less
    /// than [`crate::space::RINGS_BYTES`] / 4.
    fn new(ram: Arc<Ram>, at: usize, size: u16, suppression: Suppression) -> Self;
    /// Where the parts are, as `addr` translates offsets from `at`.
    fn parts(&self, addr: &dyn Fn(usize) -> u64) -> RingAddresses;
    /// What `SET_VRING_BASE` says at the start.
    fn base(&self) -> u16;
    /// Adds a buffer. False if there is no room.
    fn add(&mut self, token: Token, iova: Iova, bytes: u32, access: AccessKind) -> bool;
    /// Makes what was added available.
    fn publish(&mut self) -> Kick;
    /// Takes the next buffer back, if one was used.
    ///
    /// # Errors
    /// What the device says cannot be.
    fn take(&mut self) -> Result<Option<Used>, RingFault>;
    /// Buffers in the ring.
    fn in_ring(&self) -> usize;
}

/// Ids, and whose they are.
#[derive(Debug)]
struct Ids {
    /// By id; `None` is free.
    tokens: Vec<Option<Token>>,
    free: Vec<u16>,
}

impl Ids {
    fn new(size: u16) -> Self {
        Ids {
            tokens: vec![None; size.into()],
            free: (0..size).rev().collect(),
        }
    }

    fn take(&mut self, token: Token) -> Option<u16> {
        let id = self.free.pop()?;
        self.tokens[usize::from(id)] = Some(token);
        Some(id)
    }

    /// Gives an id back that the device used.
    fn give_back(&mut self, id: u32) -> Result<Token, RingFault> {
        let token = self.tokens.get_mut(id as usize).and_then(Option::take);
        let token = token.ok_or(RingFault::NotInRing { id })?;
        self.free.push(id as u16);
        Ok(token)
    }

    fn in_use(&self) -> usize {
        self.tokens.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests;
