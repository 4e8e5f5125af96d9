// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Splitting: the whole granules of a list mapped where they are, its first and its last bytes in
//! frames of their own.
//!
//! The frames take the place of the granules in the mapping's own range of IOVAs, so the device
//! sees one contiguous range, whose address keeps the buffer's offset. They come zeroed from a
//! cache ([`Zeroed`]), so that nothing lies beside the bytes. Each segment but the first begins,
//! and each but the last ends, at a granule, and the list touches two granules or more: what lies
//! in one is bounced whole.

use super::{
    pieces::{Frames, Move, Span, move_bytes},
    stats::Lack,
    zeroed::Zeroed,
};
use crate::{
    domain::{Domain, MapAttrs, Mapping, UnmapError},
    platform::{room::vec_of, *},
    translator::Translator,
    units::*,
};
use alloc::vec::Vec;

/// A mapping whose edges are copies in frames of their own, and whose inner
/// granules are the buffer's.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped buffer stays mapped"]
pub(crate) struct Split {
    pub mapping: Mapping,
    frames: Vec<TableFrame>,
    edges: Edges,
}

/// The bytes before the first granule's end, and behind the last one's beginning, where
/// those are not whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Edges {
    head: u64,
    tail: u64,
}

impl Edges {
    fn of(list: &[PhysRange]) -> Self {
        let offset = list.first().map_or(0, |first| first.addr.offset());
        let end = list.last().and_then(PhysRange::end);
        Edges {
            head: (GRANULE - offset) % GRANULE,
            tail: end.map_or(0, |end| end.offset()),
        }
    }
}

/// Where the edges are: only these pages are asked for.
struct EdgeFrames {
    head: PhysPage,
    tail: PhysPage,
}

impl Frames for EdgeFrames {
    fn frame(&self, nth: usize) -> PhysPage {
        match nth {
            0 => self.head,
            _ => self.tail,
        }
    }
}

impl EdgeFrames {
    fn of(mut pages: impl Iterator<Item = PhysPage>, edges: Edges) -> Self {
        let mut next = |needed: u64| match needed {
            0 => PhysPage(0), // never asked for
            _ => pages.next().unwrap_or(PhysPage(0)),
        };
        EdgeFrames {
            head: next(edges.head),
            tail: next(edges.tail),
        }
    }
}

/// Maps `list`, its edges in frames from `zeroed`.
pub(crate) fn map_split<P: CopyMemory, T: Translator<P>>(
    domain: &Domain<P, T>,
    zeroed: &Zeroed<P>,
    list: &[PhysRange],
    direction: Direction,
    attrs: MapAttrs,
) -> Result<Split, Lack> {
    let p = &**domain.platform();
    let edges = Edges::of(list);
    let len = ByteCount(list.iter().map(|segment| segment.len.0).sum());
    let wanted = u64::from(edges.head > 0) + u64::from(edges.tail > 0);
    let room = vec_of(list.len() + 2)?;
    let frames = zeroed.take(p, wanted)?;
    let at = EdgeFrames::of(frames.iter().map(FreshFrame::page), edges);
    if direction != Direction::FromDevice {
        let whole = Span::new(ByteCount(0), len);
        // the CPU could reach them a moment ago
        let _ = move_edges(p, list, len, edges, &at, whole, Move::In);
    }
    let parts = parts(list, edges, &at, room);
    let mapped = domain.map_with_frames(&parts, direction, attrs, frames);
    let (mapping, frames) = mapped?;
    Ok(Split {
        mapping,
        frames,
        edges,
    })
}

/// What is mapped in place of `list`, put into `parts`, which has room for two more.
fn parts(
    list: &[PhysRange],
    edges: Edges,
    at: &EdgeFrames,
    mut parts: Vec<PhysRange>,
) -> Vec<PhysRange> {
    let last = list.len() - 1;
    for (nth, segment) in list.iter().enumerate() {
        let (mut addr, mut len) = (segment.addr.0, segment.len.0);
        if nth == 0 && edges.head > 0 {
            let here = PhysAddr(at.head.addr().0 + segment.addr.offset());
            parts.push(PhysRange::new(here, ByteCount(edges.head)));
            (addr, len) = (addr + edges.head, len - edges.head);
        }
        let tail = if nth == last { edges.tail } else { 0 };
        len -= tail;
        if len > 0 {
            parts.push(PhysRange::new(PhysAddr(addr), ByteCount(len)));
        }
        if tail > 0 {
            parts.push(PhysRange::new(at.tail.addr(), ByteCount(tail)));
        }
    }
    parts
}

impl Edges {
    /// What of `span`, of `len` bytes in all, lies in the head and in the tail.
    fn within(self, len: ByteCount, span: Span) -> [Span; 2] {
        let (from, to) = (span.at.0, span.at.0 + span.len.0);
        let part =
            |from: u64, to: u64| Span::new(ByteCount(from), ByteCount(to.saturating_sub(from)));
        [
            part(from, to.min(self.head)),
            part(from.max(len.0 - self.tail), to),
        ]
    }
}

/// Moves what of `span` lies in the edges.
fn move_edges<P: CopyMemory>(
    p: &P,
    list: &[PhysRange],
    len: ByteCount,
    edges: Edges,
    at: &EdgeFrames,
    span: Span,
    way: Move,
) -> Result<(), NotMemoryError> {
    let offset = list.first().map_or(0, |first| first.addr.offset());
    for part in edges.within(len, span) {
        if part.len.0 > 0 {
            move_bytes(p, list, part, offset, at, way)?;
        }
    }
    Ok(())
}

impl Split {
    /// Moves what of `span` is not where the CPU has it.
    pub fn sync<P: CopyMemory>(
        &self,
        p: &P,
        list: &[PhysRange],
        span: Span,
        way: Move,
    ) -> Result<(), NotMemoryError> {
        let at = EdgeFrames::of(self.frames.iter().map(TableFrame::page), self.edges);
        move_edges(p, list, self.mapping.len(), self.edges, &at, span, way)
    }

    /// Brings the edges back, and ends the mapping.
    pub fn end<P: CopyMemory, T: Translator<P>>(
        self,
        domain: &Domain<P, T>,
        list: &[PhysRange],
        direction: Direction,
    ) -> (Result<(), NotMemoryError>, Result<(), UnmapError>) {
        let copied = match direction {
            Direction::ToDevice => Ok(()),
            _ => {
                let whole = Span::new(ByteCount(0), self.mapping.len());
                self.sync(&**domain.platform(), list, whole, Move::Out)
            }
        };
        let ended = domain.unmap_with_frames(self.mapping, self.frames);
        (copied, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where an edge's frame is, and what is no frame of an edge.
    const HEAD: u64 = 0x100;
    const TAIL: u64 = 0x200;
    const BUFFER: u64 = 0x1000;

    #[test]
    fn every_offset_and_length_up_to_three_pages_is_taken_apart_without_a_gap() {
        for offset in 0..GRANULE {
            for len in 1..=3 * GRANULE {
                if offset + len > GRANULE {
                    apart(offset, len);
                }
            }
        }
    }

    fn apart(offset: u64, len: u64) {
        let first = PhysPage(BUFFER).addr().0 + offset;
        let list = [PhysRange::new(PhysAddr(first), ByteCount(len))];
        let edges = Edges::of(&list);
        let frames = [(edges.head, HEAD), (edges.tail, TAIL)];
        let frames = frames.into_iter().filter(|(needed, _)| *needed > 0);
        let at = EdgeFrames::of(frames.map(|(_, page)| PhysPage(page)), edges);
        let what = || format!("{len} bytes at offset {offset}");
        let whole = Span::new(ByteCount(0), ByteCount(len));
        let [head, tail] = edges.within(ByteCount(len), whole);
        let mut done = 0;
        for part in parts(&list, edges, &at, Vec::new()) {
            let (from, to) = (done, done + part.len.0);
            let granule_is_its_own =
                (first + from).is_multiple_of(GRANULE) && (first + to).is_multiple_of(GRANULE);
            match part.addr.page() {
                PhysPage(HEAD) => assert_eq!((from, to), (head.at.0, head.len.0), "{}", what()),
                PhysPage(TAIL) => {
                    assert_eq!((from, to - from), (tail.at.0, tail.len.0), "{}", what());
                }
                _ => {
                    let whole = granule_is_its_own && part.addr.0 == first + from;
                    assert!(whole, "P7: {}: {part}", what());
                }
            }
            // the device's address keeps the buffer's offset, and goes on
            assert_eq!(part.addr.offset(), (offset + from) % GRANULE, "{}", what());
            done = to;
        }
        assert_eq!(done, len, "{}", what());
        assert_eq!(head.len.0, edges.head, "{}", what());
        assert_eq!(tail.len.0, edges.tail, "{}", what());
    }

    #[test]
    fn a_part_is_moved_where_it_lies_in_an_edge() {
        let edges = Edges { head: 10, tail: 20 };
        let within = |at, len| {
            let span = Span::new(ByteCount(at), ByteCount(len));
            let parts = edges.within(ByteCount(4096 + 30), span);
            parts.map(|part| {
                if part.len.0 > 0 {
                    Some((part.at.0, part.len.0))
                } else {
                    None
                }
            })
        };
        assert_eq!(within(0, 4126), [Some((0, 10)), Some((4106, 20))]);
        assert_eq!(within(3, 4), [Some((3, 4)), None]);
        assert_eq!(within(9, 4098), [Some((9, 1)), Some((4106, 1))]);
        assert_eq!(within(10, 4096), [None, None]);
        assert_eq!(within(4120, 6), [None, Some((4120, 6))]);
    }
}
