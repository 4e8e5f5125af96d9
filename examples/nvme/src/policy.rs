// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Policies: how buffers are made reachable for a device, and taken away again.
//!
//! A driver does not choose among them in its code: it maps and unmaps, and the [`Client`] it was
//! given does what its configuration says. Two need a driver that knows. A *static* mapping is made
//! once and never ended, and so protects nothing: it is the limit that the others are held against.
//! With *bursts* a driver reaps several completions and ends their mappings by one call, before it
//! looks at the data of any of them.

use crate::memory::lend;
use ioatlas_dma::{dma_api::*, domain::Domain, translator::Translator, units::*};
use ioatlas_host::Host;
use std::{
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
    time::Instant,
};

/// How buffers become accessible to the device, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// All buffers are mapped once: no protection of anything that shares their
    /// memory or their time.
    Static,
    /// Mapped and unmapped for each command.
    MapUnmap,
    /// Mapped for each command at addresses next to each other, and unmapped by the burst.
    MapUnmapBursts,
    /// Always copied to memory that stays mapped.
    Always,
    /// Copied up to 16 KiB, mapped beyond.
    Below,
    /// Mapped where whole granules, else copied or split: nothing beside a buffer is ever shown.
    Untrusted,
    /// Whichever was cheaper, as measured meanwhile.
    Adaptive,
    /// Memory for one use where not whole granules: what Linux does for untrusted devices.
    SingleUse,
}

/// Up to this [`Policy::Below`] copies.
pub const BELOW: ByteCount = ByteCount(16 << 10);

/// At least so many bounce slots of each size: as many as there are reads under way, so that a
/// policy's pool need not grow while it is used.
const SLOTS: u32 = 64;

/// Completions that one unmap of [`Policy::MapUnmapBursts`] ends, at most.
pub const BURST: usize = 16;
/// Pages of a chunk of its addresses: four bursts of 4 KiB.
const CHUNK: PageCount = PageCount(64);

impl Policy {
    /// All, the unprotected first.
    pub const ALL: [Policy; 8] = [
        Policy::Static,
        Policy::MapUnmap,
        Policy::MapUnmapBursts,
        Policy::Always,
        Policy::Below,
        Policy::Untrusted,
        Policy::Adaptive,
        Policy::SingleUse,
    ];

    /// The name used on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Static => "static",
            Policy::MapUnmap => "map-unmap",
            Policy::MapUnmapBursts => "map-unmap-bursts",
            Policy::Always => "always",
            Policy::Below => "below-16k",
            Policy::Untrusted => "untrusted",
            Policy::Adaptive => "adaptive",
            Policy::SingleUse => "single-use",
        }
    }

    /// Where its buffers go.
    pub fn placement(self) -> Placement {
        match self {
            Policy::Static | Policy::MapUnmap | Policy::MapUnmapBursts => Placement::Never,
            Policy::Always => Placement::Always,
            Policy::Below => Placement::Below(BELOW),
            Policy::Untrusted => Placement::Untrusted { whole_up_to: BELOW },
            Policy::Adaptive => Placement::Adaptive,
            Policy::SingleUse => Placement::SingleUse,
        }
    }

    /// Where the mappings of a queue get their addresses from.
    pub fn stream<T: Translator<Host>>(self, client: &Client<Host, T>) -> Stream<Host, T> {
        client.stream(CHUNK)
    }

    /// Operations of one size, at one depth, after which it does what it does from then on.
    pub fn warm_up(self) -> u32 {
        match self {
            Policy::Adaptive => 2200,
            _ => 0,
        }
    }

    /// A client of `domain` that does so, with a pool that no other policy's traffic has warmed.
    pub fn client<T: Translator<Host>>(
        self,
        domain: &Arc<Domain<Host, T>>,
    ) -> Result<Client<Host, T>, PoolError> {
        let mut pool = PoolConfig::default();
        for class in &mut pool.classes {
            class.slots = class.slots.max(SLOTS);
        }
        let config = DmaConfig::default().pool(pool).clock(Clock(monotonic));
        let dma = Arc::new(Dma::new(domain.clone(), config));
        dma.client(ClientConfig::default().placement(self.placement()))
    }

    /// Makes `buffer` reachable for one command. Those of bursts get the next address of `stream`.
    ///
    /// # Errors
    /// [`DmaMapError`].
    pub fn map<T: Translator<Host>>(
        self,
        client: &Client<Host, T>,
        stream: &mut Stream<Host, T>,
        buffer: PhysRange,
    ) -> Result<DmaMapping, DmaMapError> {
        match self {
            Policy::MapUnmapBursts => client.map_in(stream, lend(buffer), Direction::FromDevice),
            _ => client.map_single(lend(buffer), Direction::FromDevice),
        }
    }
}

/// Nanoseconds since it was first asked.
pub fn monotonic() -> TimeNs {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let began = BEGAN.get_or_init(Instant::now);
    TimeNs(began.elapsed().as_nanos() as u64)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has that name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no policy is called `{0}`; there are static, map-unmap, map-unmap-bursts, always, below-16k, untrusted, adaptive, single-use"
)]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;
    fn from_str(name: &str) -> Result<Self, PolicyError> {
        let policy = Policy::ALL.into_iter().find(|p| p.name() == name);
        policy.ok_or_else(|| PolicyError(name.into()))
    }
}
