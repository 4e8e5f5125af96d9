// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why there is no range, with the numbers.

use super::Limits;
use crate::units::*;
use core::fmt;

/// No free range is large enough, where the request allows it to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no free run of {wanted} IOVA pages{cause} ({free} pages free, {cached} cached, of {aperture})"
)]
pub struct AllocError {
    /// Pages wanted, as granted.
    pub wanted: PageCount,
    /// Pages free at that moment, in pieces that do not serve.
    pub free: PageCount,
    /// Pages kept for reuse at that moment, in pieces that do not serve.
    pub cached: PageCount,
    /// Pages of the whole aperture.
    pub aperture: PageCount,
    /// What stood in the way.
    pub cause: AllocErrorCause,
}

impl AllocError {
    /// Whether the same request fails for as long as the aperture is what it is,
    /// whatever is given back.
    pub fn is_final(&self) -> bool {
        self.cause.is_final() || self.wanted > self.aperture
    }
}

/// What stood in the way of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum AllocErrorCause {
    /// Other ranges, or the size of the aperture.
    Full,
    /// Other ranges; what lies outside the limits was not considered.
    FullWithin(Limits),
    /// The device's address mask: the aperture has no such run below it.
    Mask {
        /// The first page that the device does not reach.
        end: IovaPage,
        aperture: IovaRange,
    },
    /// The alignment: no such page of the aperture below the mask has room above it.
    Alignment {
        /// What was asked for, as log2 of pages.
        align_lg2: u32,
        /// The part of the aperture below the mask.
        aperture: IovaRange,
    },
    /// The segment boundary: any such run crosses it.
    Boundary {
        /// What was asked for, as log2 of pages.
        boundary_lg2: u32,
    },
    /// The heap: it has no memory to note one more range.
    NoMemory,
}

impl AllocErrorCause {
    /// Whether nothing that is given back helps against it.
    /// [`AllocError::is_final`] knows sizes too.
    pub fn is_final(&self) -> bool {
        match self {
            AllocErrorCause::Full | AllocErrorCause::FullWithin(_) | AllocErrorCause::NoMemory => {
                false
            }
            AllocErrorCause::Mask { .. }
            | AllocErrorCause::Alignment { .. }
            | AllocErrorCause::Boundary { .. } => true,
        }
    }
}

/// What follows "no free run of n IOVA pages".
impl fmt::Display for AllocErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocErrorCause::Full => Ok(()),
            AllocErrorCause::FullWithin(limits) => write!(f, " {limits}"),
            AllocErrorCause::NoMemory => write!(f, ": no memory to note one more range"),
            AllocErrorCause::Mask { end, aperture } => write!(
                f,
                ": the device reaches pages below {end} only, the aperture is {aperture}"
            ),
            AllocErrorCause::Alignment {
                align_lg2,
                aperture,
            } => write!(f, " in {aperture} at any multiple of 2^{align_lg2} pages"),
            AllocErrorCause::Boundary { boundary_lg2 } => write!(
                f,
                ": each crosses the device's boundary of 2^{boundary_lg2} pages"
            ),
        }
    }
}
