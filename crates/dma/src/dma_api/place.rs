// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Placement: where a list goes. This is the one place that decides.

use super::{DmaAttrs, DmaMapError, Placement, Streaming};
use crate::{bounce::Route, domain::BufferError, units::*};

/// What matters of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub len: ByteCount,
    pub granules: Granules,
    pub edges: Edges,
}

/// Whether a list is whole granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Granules {
    /// It is: mapped directly, it shows nothing else.
    Whole,
    /// Its first or last granules are not its own.
    Partly,
}

/// Whether a list can be one contiguous range of IOVAs without being copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edges {
    /// It lies in one granule.
    OneGranule,
    /// All inner edges lie at granules.
    Outer,
    /// Some inner edge lies inside a granule.
    Inner,
}

/// Where a list goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// It is mapped where it is.
    Direct,
    /// It is copied; and where there is no buffer?
    Bounce(Otherwise),
    /// Its edges are copied.
    Split,
    /// Each segment is mapped by itself, copied if it is not whole granules.
    Each,
}

/// What to do where there is no bounce buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Otherwise {
    Direct,
    Split,
    Fail,
}

impl Shape {
    /// The shape of `list`, if it has segments, each has bytes, and none ends past
    /// the physical address width.
    #[inline]
    pub fn of(list: &[PhysRange]) -> Result<Self, BufferError> {
        let mut len = 0u64;
        let mut inner = false;
        let mut partly = false;
        for (segment, buffer) in list.iter().enumerate() {
            if buffer.len.0 == 0 {
                return Err(BufferError::Empty { segment });
            }
            let overflow = BufferError::Overflow {
                segment,
                buffer: *buffer,
            };
            let end = buffer.end().ok_or(overflow)?;
            // a list may name memory repeatedly, so the sum needs its own bound
            let sum = len.checked_add(buffer.len.0);
            len = sum.filter(|sum| *sum <= 1 << PHYS_BITS).ok_or(overflow)?;
            let (begins, ends) = (buffer.addr.offset() != 0, end.offset() != 0);
            partly |= begins | ends;
            inner |= begins & (segment > 0) | ends & (segment + 1 < list.len());
        }
        let first = list.first().ok_or(BufferError::NoSegments)?;
        let edges = match inner {
            true => Edges::Inner,
            false if pages_touched(first.addr.offset(), ByteCount(len)).0 == 1 => Edges::OneGranule,
            false => Edges::Outer,
        };
        Ok(Shape {
            len: ByteCount(len),
            granules: if partly {
                Granules::Partly
            } else {
                Granules::Whole
            },
            edges,
        })
    }
}

/// What the placement says; for `Adaptive`, `route` is what it has learned.
#[inline]
pub(super) fn plan(
    placement: Placement,
    shape: &Shape,
    attrs: DmaAttrs,
    route: Route,
) -> Result<Plan, DmaMapError> {
    let whole = shape.granules == Granules::Whole;
    if attrs.streaming == Streaming::Persistent {
        // a driver that never synchronises cannot be bounced: without the optimisation, never
        // without the protection
        return match placement.protects() {
            true if !whole => Err(DmaMapError::Persistent { len: shape.len }),
            _ => Ok(Plan::Direct),
        };
    }
    let optimised = match shape.edges {
        Edges::Inner => Otherwise::Fail, // it cannot be mapped as it is
        _ => Otherwise::Direct,
    };
    Ok(match placement {
        Placement::Never => Plan::Direct,
        Placement::Always => Plan::Bounce(Otherwise::Fail),
        Placement::Below(most) if shape.len > most && optimised == Otherwise::Direct => {
            Plan::Direct
        }
        Placement::Below(_) => Plan::Bounce(optimised),
        Placement::Adaptive => match route {
            Route::Direct if optimised == Otherwise::Direct => Plan::Direct,
            _ => Plan::Bounce(optimised),
        },
        Placement::SingleUse => Plan::Each,
        Placement::Untrusted { .. } if whole => Plan::Direct,
        Placement::Untrusted { whole_up_to } => match shape.edges {
            Edges::Outer if shape.len > whole_up_to => Plan::Split,
            Edges::Outer => Plan::Bounce(Otherwise::Split),
            Edges::OneGranule | Edges::Inner => Plan::Bounce(Otherwise::Fail),
        },
    })
}

impl Placement {
    /// Whether it is there to protect what lies beside buffers.
    pub fn protects(self) -> bool {
        match self {
            Placement::Never | Placement::Below(_) | Placement::Adaptive => false,
            Placement::Always | Placement::Untrusted { .. } | Placement::SingleUse => true,
        }
    }
}
