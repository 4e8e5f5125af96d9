// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One device's way to map; what it does is in `map`, `unmap` and `sync`.

use super::*;
use crate::units::*;

/// One device's way to map. See the [module](super).
pub struct Client<P: CopyMemory, T: Translator<P>, D = Off> {
    number: u64,
    config: ClientConfig,
    pub(super) short: ShortWay,
    /// Tells the mappings that it can end.
    pub(super) key: u64,
    pub(super) pool: Option<Arc<Pool<P>>>,
    /// The last field: dropping it may end the pools, and by then `pool` is dropped.
    pub(super) dma: Arc<Dma<P, T, D>>,
}

impl<P: CopyMemory, T: Translator<P>, D> Clone for Client<P, T, D> {
    /// The same client for another owner: it has the same number, and each ends the other's
    /// mappings.
    fn clone(&self) -> Self {
        Client {
            number: self.number,
            config: self.config,
            short: self.short,
            key: self.key,
            pool: self.pool.clone(),
            dma: self.dma.clone(),
        }
    }
}

/// Which single buffers may take the fast path, that of a kept slot: those of up to `max` bytes, if
/// `granules` says so too.
#[derive(Clone, Copy)]
pub(super) struct ShortWay {
    pub max: u64,
    pub granules: Takes,
    pub choice: Choice,
}

/// Whether buffers always go one way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Fixed,
    /// They go the one that is cheaper, as far as is known.
    Learned,
}

/// Which buffers are bounced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    All,
    /// Those that are not whole granules.
    Partly,
}

impl ShortWay {
    fn of(config: &ClientConfig) -> Self {
        let (max, granules) = match config.placement {
            _ if config.limits.align_lg2 > 0 || config.limits.boundary_lg2.is_some() => {
                (0, Takes::All) // not every class has such slots
            }
            Placement::Always => (u64::MAX, Takes::All),
            Placement::Below(most) => (most.0, Takes::All),
            Placement::Untrusted { whole_up_to } => (whole_up_to.0, Takes::Partly),
            // asks first what was learned (`choice`), or does not use slots
            Placement::Adaptive | Placement::Never | Placement::SingleUse => (0, Takes::All),
        };
        let choice = match config.placement {
            Placement::Adaptive => Choice::Learned,
            _ => Choice::Fixed,
        };
        ShortWay {
            max,
            granules,
            choice,
        }
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    pub(super) fn new(
        dma: Arc<Dma<P, T, D>>,
        config: ClientConfig,
        pool: Option<Arc<Pool<P>>>,
    ) -> Self {
        Client {
            number: dma.clients.fetch_add(1, Ordering::Relaxed),
            config,
            short: ShortWay::of(&config),
            key: pool.as_ref().map_or(dma.key, |pool| pool.key),
            pool,
            dma,
        }
    }

    /// What it shares with the other clients of its domain.
    pub fn dma(&self) -> &Arc<Dma<P, T, D>> {
        &self.dma
    }
    /// Its number in the order in which clients were made: what a [`Recorder`] knows it by.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn number(&self) -> u64 {
        self.number
    }
    /// An operation here and now, as the watch is told of it.
    #[cold]
    pub(super) fn event(&self, iova: Iova, len: ByteCount, direction: Direction) -> Event {
        let at = self.dma.config.clock.map_or(TimeNs(0), |clock| (clock.0)());
        Event {
            iova,
            len,
            direction,
            cpu: self.platform().pinned(|cpu| cpu.index()),
            at,
            client: self.number,
        }
    }
    /// As it was made.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }
    #[inline]
    pub(super) fn platform(&self) -> &P {
        self.dma.domain.platform()
    }
}
