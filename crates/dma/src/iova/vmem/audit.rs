// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The audit of segments, lists and hash table.

use super::{Arena, list_of, segments::*};
use crate::iova::slots::NIL;
use alloc::{format, string::String};

impl Arena {
    pub(super) fn check(&self) -> Result<(), String> {
        let (mut free, mut leased, mut used) = (0, 0, 0);
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
                State::Leased if self.leased.holds(&self.segments, range) => {
                    leased += 1;
                    used += range.pages.0;
                }
                State::Leased => return Err(format!("{range} is not in the hash table")),
            }
            (below, end, was_free) = (at, range.end(), state == State::Free);
        }
        if end != self.aperture.end() {
            return Err(format!("the segments end at {end}, not {}", self.aperture));
        }
        if (leased, used) != (self.leased.len(), self.used) {
            return Err(format!(
                "{used} pages in {leased} segments are leased; {} in {} are counted",
                self.used,
                self.leased.len()
            ));
        }
        let home = |segment: &Segment| match segment.state {
            State::Free => list_of(segment.range),
            State::Leased => None,
        };
        let listed = self.free.count(&self.segments.slots, home)?;
        if listed != free {
            return Err(format!("{listed} of {free} free segments are listed"));
        }
        if !self.segments.slots.adds_up() {
            return Err("some slots are neither in use nor spare".into());
        }
        if self.strays > 0 {
            return Err(format!(
                "{} ranges were given back that were not leased",
                self.strays
            ));
        }
        Ok(())
    }
}
