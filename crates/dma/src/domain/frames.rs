// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Zeroed frames of our own, several at once.

use super::MapError;
use crate::{
    platform::{
        room::{NoMemory, vec_of},
        *,
    },
    units::*,
};
use alloc::vec::Vec;

/// As many frames, all of them zeroed, or none. In the order of their addresses, for what adjoins
/// is mapped and copied in one go, and allocators mostly give first what they got last.
pub(crate) fn zeroed_frames<P: Platform>(
    p: &P,
    wanted: PageCount,
) -> Result<Vec<FreshFrame>, MapError> {
    // grows: a length from outside must not allocate before there are frames
    let mut fresh = Vec::new();
    for done in (0..wanted.0).map(PageCount) {
        let frame = match fresh.try_reserve(1) {
            Ok(()) => p.frame_alloc().ok_or(MapError::NoFrame { done, wanted }),
            Err(_) => Err(MapError::NoMemory),
        };
        match frame {
            Ok(frame) => fresh.push(frame),
            Err(why) => {
                free(p, fresh);
                return Err(why);
            }
        }
    }
    fresh.sort_unstable_by_key(FreshFrame::page);
    Ok(fresh)
}

/// The same, and of each what `part` makes of it.
pub(crate) fn zeroed_list<P: Platform>(
    p: &P,
    wanted: PageCount,
    part: impl FnMut(PhysPage) -> PhysRange,
) -> Result<(Vec<FreshFrame>, Vec<PhysRange>), MapError> {
    let fresh = zeroed_frames(p, wanted)?;
    match vec_of(fresh.len()) {
        Ok(mut list) => {
            list.extend(fresh.iter().map(FreshFrame::page).map(part));
            Ok((fresh, list))
        }
        Err(NoMemory) => {
            free(p, fresh);
            Err(MapError::NoMemory)
        }
    }
}

/// Frees frames that no device has seen.
pub(crate) fn free<P: Platform>(p: &P, fresh: Vec<FreshFrame>) {
    fresh
        .into_iter()
        .for_each(|frame| p.frame_free(OURS, frame));
}
