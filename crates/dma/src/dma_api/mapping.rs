// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What map returns.

use super::{DmaBuffer, Lent};
use crate::{
    bounce::{Buffer, CellIndex, Route, SingleUseBuffer, Split},
    domain::Mapping,
    platform::room::Boxed,
    units::*,
};
use alloc::vec::Vec;
use core::mem::ManuallyDrop;

/// A list that a device can reach. Unmapping consumes it and gives the list back.
///
/// It may be sent to another thread and unmapped there. Dropping it leaves the list mapped until
/// the domain ends, and what owns the list is never dropped then: the device reaches that memory.
/// [`Client::map_guarded`](super::Client::map_guarded) is the way to one that ends where it is
/// dropped.
#[must_use = "a dropped mapping stays mapped until its domain ends"]
#[derive(PartialEq, Eq, Debug)]
pub struct DmaMapping<L = Lent<PhysRange>> {
    /// Dropped only where the device does not reach it any more.
    pub(super) list: ManuallyDrop<L>,
    pub(super) iova: Iova,
    pub(super) len: ByteCount,
    pub(super) direction: Direction,
    pub(super) key: u64,
    pub(super) held: Held,
    pub(super) timed: Option<Timed>,
}

/// What a mapping has taken so far, if its time is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Timed {
    pub cell: CellIndex,
    pub route: Route,
    /// At most what fits: whatever takes seconds is not counted.
    pub map_ns: u32,
}

/// By what a mapping lives.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// The buffers themselves are mapped.
    Direct(Mapping),
    /// A copy of them is mapped.
    Bounced(Buffer),
    /// Copies of the edges are, and the rest itself.
    Split(Boxed<Split>),
    /// Each segment is by itself.
    Each(Vec<Part>),
}

/// A segment that is mapped by itself.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Part {
    Direct(Mapping),
    Own(SingleUseBuffer),
}

impl Part {
    pub fn iova(&self) -> Iova {
        match self {
            Part::Direct(mapping) => mapping.iova(),
            Part::Own(own) => own.mapping.iova(),
        }
    }
}

/// What a sync looks at.
pub(super) struct Seen<'m> {
    pub iova: Iova,
    pub len: ByteCount,
    pub direction: Direction,
    pub key: u64,
    pub held: &'m Held,
}

impl<L> DmaMapping<L> {
    pub(super) fn seen(&self) -> Seen<'_> {
        Seen {
            iova: self.iova,
            len: self.len,
            direction: self.direction,
            key: self.key,
            held: &self.held,
        }
    }
    /// The same mapping with its list in another form.
    pub(super) fn map_list<M>(self, f: impl FnOnce(L) -> M) -> DmaMapping<M> {
        let (list, bare) = self.bare();
        bare.of(ManuallyDrop::new(f(ManuallyDrop::into_inner(list))))
    }
    /// It without its list, and that.
    #[inline]
    pub(super) fn bare(self) -> (ManuallyDrop<L>, DmaMapping<()>) {
        self.exchange(ManuallyDrop::new(()))
    }
    /// Its list, and the same with another one.
    #[inline]
    fn exchange<M>(self, list: ManuallyDrop<M>) -> (ManuallyDrop<L>, DmaMapping<M>) {
        let exchanged = DmaMapping {
            list,
            iova: self.iova,
            len: self.len,
            direction: self.direction,
            key: self.key,
            held: self.held,
            timed: self.timed,
        };
        (self.list, exchanged)
    }
    /// The address to give to the device: that of the first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }
    /// How many bytes it is, in all segments.
    pub fn len(&self) -> ByteCount {
        self.len
    }
    /// Never: an empty list is not mapped.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Which way the data flow.
    pub fn direction(&self) -> Direction {
        self.direction
    }
    /// The list that was mapped.
    pub fn list(&self) -> &L {
        &self.list
    }
    /// Whether the device reaches a copy, at least of some of it.
    pub fn is_bounced(&self) -> bool {
        match &self.held {
            Held::Direct(_) => false,
            Held::Bounced(_) | Held::Split(_) => true,
            Held::Each(parts) => parts.iter().any(|part| matches!(part, Part::Own(_))),
        }
    }
}

impl DmaMapping<()> {
    /// It with its list, or another.
    #[inline]
    pub(super) fn of<M>(self, list: ManuallyDrop<M>) -> DmaMapping<M> {
        self.exchange(list).1
    }
}

impl<L: DmaBuffer> DmaMapping<L> {
    /// The address of each segment of the list, in order.
    pub fn segments(&self) -> impl Iterator<Item = Iova> + '_ {
        let list = self.list.segments();
        let (mut direct, mut each) = (None, None);
        match &self.held {
            Held::Direct(mapping) => direct = Some(mapping.segments(list)),
            Held::Each(parts) => each = Some(parts.iter().map(Part::iova)),
            Held::Bounced(_) | Held::Split(_) => {}
        }
        let mut at = self.iova.0;
        let contiguous = (direct.is_none() && each.is_none()).then(|| {
            list.iter().map(move |segment| {
                let here = Iova(at);
                at += segment.len.0;
                here
            })
        });
        let direct = direct.into_iter().flatten();
        let each = each.into_iter().flatten();
        direct.chain(each).chain(contiguous.into_iter().flatten())
    }
}
