// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What clients may ask for.

use super::OnDropError;
use crate::{
    bounce::{Clock, PoolConfig},
    domain::{Lifetime, MapAttrs},
    iova::Limits,
    units::{ByteCount, GRANULE},
};

/// What the clients of a domain share.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DmaConfig {
    /// The pool of each address limit.
    pub pool: PoolConfig,
    /// What [`Placement::Adaptive`] measures with, which cannot be had without; nothing else reads
    /// it, and that seldom.
    pub clock: Option<Clock>,
    /// What is told of unmaps that fail where a [`Mapped`](super::Mapped), a
    /// [`MappedSlice`](super::MappedSlice) or a [`Coherent`](super::Coherent) array is dropped.
    pub on_drop_error: Option<OnDropError>,
}

setters!(DmaConfig {
    pool: PoolConfig,
    ;
    clock?: Clock,
    on_drop_error?: OnDropError,
});

/// One device's way to map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Which mappings are direct and which are bounced.
    pub placement: Placement,
    /// Which IOVAs the device can reach. Pools are by `end`, the device's address mask.
    pub limits: Limits,
    /// Which bits of a buffer's address the device must see unchanged.
    pub low_bits: LowBits,
}

setters!(const ClientConfig {
    placement: Placement,
    limits: Limits,
    low_bits: LowBits,
});

/// When to bounce: the one policy point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Never: buffers are mapped where they are, and the rest of their first and
    /// last granules with them.
    #[default]
    Never,
    /// Always, as a whole. The device never reaches the buffer itself. What it reaches is a slot of
    /// the pool, which stays mapped after the unmap, for whatever buffer is next: a late write does
    /// not fault, and may change what the device is taken to have written for that one.
    Always,
    /// To protect what lies beside a buffer from a device that is not trusted: a list of whole
    /// granules is mapped where it is; another of up to so many bytes is bounced as a whole; of a
    /// larger one the whole granules are mapped where they are, and its head and tail are copied to
    /// frames of their own.
    Untrusted {
        /// The longest that is bounced as a whole.
        whole_up_to: ByteCount,
    },
    /// Up to so many bytes, where mapping costs more than copying; lists that cannot be mapped as
    /// they are, whatever their length.
    Below(ByteCount),
    /// Whichever has taken less time here, for operations of this size and direction: mapping and
    /// unmapping, or copying. It is measured while it is used
    /// (`Dma::learned`); what decides is known within 1,000 operations, and
    /// learned anew when it changes. Lists that cannot be mapped as they are are bounced. Without
    /// [`DmaConfig::clock`] no client is made ([`PoolError::NoClock`](super::PoolError::NoClock)).
    Adaptive,
    /// What Linux does for untrusted devices today, for comparison: each segment is mapped by
    /// itself; one that is not whole granules is copied to memory that is allocated, mapped and
    /// unmapped for this one use.
    SingleUse,
}

/// Which low bits of a buffer's address its IOVA must have, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LowBits {
    /// None: a bounced buffer begins where its slot does.
    #[default]
    Any,
    /// Those within the granule, as for NVMe's physical region pages. What precedes the buffer in
    /// its slot is zero.
    Kept,
}

/// Attributes of one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DmaAttrs {
    /// How long it is likely to live.
    pub lifetime: Lifetime,
    /// Whether the driver calls the sync functions.
    pub streaming: Streaming,
}

setters!(const DmaAttrs {
    lifetime: Lifetime,
    streaming: Streaming,
});

impl DmaAttrs {
    /// It lives shortly, or its driver synchronises it.
    pub const DEFAULT: Self = DmaAttrs {
        lifetime: Lifetime::Normal,
        streaming: Streaming::Synced,
    };
}

impl Default for DmaAttrs {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Whether a driver that holds a mapping for long synchronises it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Streaming {
    /// It calls [`Client::sync_for_cpu`](super::Client::sync_for_cpu) and its counterpart before
    /// and after each turn of the CPU.
    #[default]
    Synced,
    /// It does not (`DMA_ATTR_PERSISTENT_STREAMING` of BOUNCE'21): it cannot be bounced. The
    /// mapping is direct; where the placement protects what lies beside the buffer and something
    /// does, that is an error.
    Persistent,
}

impl ClientConfig {
    /// Mapped where it is, at any address.
    pub const DEFAULT: Self = ClientConfig {
        placement: Placement::Never,
        limits: Limits::NONE,
        low_bits: LowBits::Any,
    };
    /// Of a device that is not trusted: what shares a page with something else is bounced, up to a
    /// page's bytes as a whole.
    pub const UNTRUSTED: Self = Self::DEFAULT.placement(Placement::Untrusted {
        whole_up_to: ByteCount(GRANULE),
    });

    /// Of a direct mapping.
    pub(super) fn map_attrs(&self, attrs: DmaAttrs) -> MapAttrs {
        MapAttrs {
            limits: self.limits,
            lifetime: attrs.lifetime,
        }
    }
}
