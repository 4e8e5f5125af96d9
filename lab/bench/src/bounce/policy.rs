// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is compared: when to bounce.

use ioatlas_dma::{dma_api::Placement, units::ByteCount};
use std::{fmt, str::FromStr};

/// A placement under a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Direct: what all others are compared with.
    Never,
    /// Through a slot up to [`BELOW`], directly above: BOUNCE'21's option.
    Below,
    /// Always through a slot.
    Always,
    /// Whichever it finds to be cheaper.
    Adaptive,
    /// As far as protection needs it: the measured operations are whole pages, so directly.
    Untrusted,
    /// What Linux has for devices that are not trusted: each segment by itself, in buffers for one
    /// use where it is not whole pages.
    SingleUse,
}

/// The largest operation that [`Policy::Below`] bounces.
pub const BELOW: ByteCount = ByteCount(16 << 10);

impl Policy {
    /// Every one; the first is what the others are compared with.
    pub const ALL: [Self; 6] = [
        Policy::Never,
        Policy::Below,
        Policy::Always,
        Policy::Adaptive,
        Policy::Untrusted,
        Policy::SingleUse,
    ];

    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Never => "never",
            Policy::Below => "below",
            Policy::Always => "always",
            Policy::Adaptive => "adaptive",
            Policy::Untrusted => "untrusted",
            Policy::SingleUse => "single-use",
        }
    }

    /// Whether it may map directly where there is no slot, so that it should never be
    /// slower than direct mapping.
    pub fn has_direct_way_out(&self) -> bool {
        match self {
            Policy::Below | Policy::Adaptive => true,
            Policy::Never | Policy::Always | Policy::Untrusted | Policy::SingleUse => false,
        }
    }

    /// Whether it decides by what it has seen.
    pub fn learns(&self) -> bool {
        *self == Policy::Adaptive
    }

    /// As the DMA API has it.
    pub fn placement(&self) -> Placement {
        match self {
            Policy::Never => Placement::Never,
            Policy::Below => Placement::Below(BELOW),
            Policy::Always => Placement::Always,
            Policy::Adaptive => Placement::Adaptive,
            Policy::Untrusted => Placement::Untrusted { whole_up_to: BELOW },
            Policy::SingleUse => Placement::SingleUse,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{word}` is no placement ({})", Policy::ALL.map(|policy| policy.name()).join(", "))]
pub struct PolicyError {
    word: String,
}

impl FromStr for Policy {
    type Err = PolicyError;
    fn from_str(word: &str) -> Result<Self, PolicyError> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == word);
        named.ok_or_else(|| PolicyError { word: word.into() })
    }
}
