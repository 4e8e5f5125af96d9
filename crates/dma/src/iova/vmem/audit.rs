// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The audit of segments, lists and hash table.

use super::{Arena, list_of, segments::*};
use crate::iova::{locked::Ranges, slots::NIL};
use alloc::{format, string::String};

impl Arena {
    pub(super) fn check(&self) -> Result<(), String> {
        let (mut free, mut allocated, mut used) = (0, 0, 0);
        let (mut below, mut end, mut was_free) = (NIL, self.aperture.first, false);
        for at in self.segments.iter().take(self.segments.slots.len() + 1) {
            let Segment {
                range,
                state,
                below: neighbour,
                ..
            } = *self.segments.at(at);
            if range.first != end || range.pages.0 == 0 || neighbour != below {
                return Err(format!("{range} follows what ends at {end}"));
            }
            match state {
                State::Free if was_free => {
                    return Err(format!("{range} is free, and so is its neighbour below"));
                }
                State::Free => free += usize::from(list_of(range).is_some()),
                State::Allocated if self.holds(range) => {
                    allocated += 1;
                    used += range.pages.0;
                }
                State::Allocated => return Err(format!("{range} is not in the hash table")),
            }
            (below, end, was_free) = (at, range.end(), state == State::Free);
        }
        if end != self.aperture.end() {
            return Err(format!("the segments end at {end}, not {}", self.aperture));
        }
        if (allocated, used) != (self.allocated.len(), self.used) {
            return Err(format!(
                "{used} pages in {allocated} segments are allocated; {} in {} are counted",
                self.used,
                self.allocated.len()
            ));
        }
        let origin = |segment: &Segment| match segment.state {
            State::Free => list_of(segment.range),
            State::Allocated => None,
        };
        let listed = self.free.count(&self.segments.slots, origin)?;
        if listed != free {
            return Err(format!("{listed} of {free} free segments are listed"));
        }
        if !self.segments.slots.adds_up() {
            return Err("some slots are neither in use nor spare".into());
        }
        if self.strays > 0 {
            return Err(format!(
                "{} ranges were given back that were not allocated",
                self.strays
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        iova::{AllocKind, locked::Taking, slots::Link},
        platform::room::Room,
        units::*,
    };

    fn range(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(IovaPage(first), PageCount(pages))
    }

    /// Pages 1 to 4, 5 to 8 allocated, 9 to 16 free.
    fn build() -> (Arena, [Link; 3]) {
        let mut arena = Arena::new(range(1, 16));
        let mut room = arena.short(&Taking::Exactly(range(5, 4)));
        assert_eq!(room.allocate(), Ok(()));
        arena.enlarge(&mut room);
        arena.take_exactly(range(5, 4)).unwrap();
        arena.check().unwrap();
        let all: alloc::vec::Vec<_> = arena.segments.iter().collect();
        (arena, all.try_into().unwrap())
    }

    #[track_caller]
    fn assert_names(arena: &Arena, what: &str) {
        let found = arena.check().unwrap_err();
        assert!(found.contains(what), "{found}");
    }

    #[test]
    fn the_audit_names_what_is_broken() {
        let (mut arena, _) = build();
        arena.give(range(5, 3), AllocKind::Fixed);
        arena.give(range(1, 4), AllocKind::Dynamic);
        assert_names(&arena, "2 ranges were given back");
        let (mut arena, [_, allocated, _]) = build();
        arena.segments.set(allocated, State::Free);
        assert_names(&arena, "0x5+4 is free, and so is its neighbour");
        let (mut arena, [low, _, _]) = build();
        arena.segments.set(low, State::Allocated);
        assert_names(&arena, "0x1+4 is not in the hash table");
        let (mut arena, [low, ..]) = build();
        arena.unlist(low);
        assert_names(&arena, "1 of 2 free segments are listed");
        let (mut arena, [.., high]) = build();
        arena.segments.slots.at_mut(high).range = range(9, 7);
        assert_names(&arena, "end at 0x10");
        let (mut arena, [low, ..]) = build();
        arena.segments.slots.at_mut(low).range = range(1, 3);
        assert_names(&arena, "0x5+4 follows what ends at 0x4");
        let (mut arena, _) = build();
        arena.used += 1;
        assert_names(&arena, "5 in 1 are counted");
    }
}
