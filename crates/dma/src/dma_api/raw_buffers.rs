// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Buffers of the address API that are contiguous to the CPU: mapped so that they are to the
//! device.
//!
//! Interfaces that were made for physical addresses name a buffer by the CPU's pointer, and have
//! one address for it. In physical memory it may lie in pieces.

use super::*;
use crate::{domain::MapError, platform::room::NoMemory, units::*};
use core::{mem::replace, ptr::NonNull};

/// The physical segments of `buffer`, in order, for which nothing is allocated where they are one;
/// `phys` is asked once for each granule that it touches, and neighbours that adjoin are one.
fn segments(
    buffer: NonNull<[u8]>,
    phys: impl Fn(NonNull<u8>) -> PhysAddr,
) -> Result<RawList, NoMemory> {
    let (first, len) = (buffer.cast::<u8>(), buffer.len() as u64);
    let mut before = Vec::new();
    let mut last: Option<PhysRange> = None;
    let mut done = 0;
    while done < len {
        let at = first.map_addr(|start| start.saturating_add(done as usize));
        let rest_of_granule = GRANULE - at.addr().get() as u64 % GRANULE;
        let piece = PhysRange::new(phys(at), ByteCount(rest_of_granule.min(len - done)));
        match &mut last {
            Some(last) if last.end() == Some(piece.addr) => last.len.0 += piece.len.0,
            Some(last) => {
                before.try_reserve(2).map_err(|_| NoMemory)?;
                before.push(replace(last, piece));
            }
            None => last = Some(piece),
        }
        done += piece.len.0;
    }
    match last {
        Some(last) if before.is_empty() => Ok(RawList::One(last)),
        last => {
            before.extend(last);
            Ok(RawList::Many(before))
        }
    }
}

/// Whether the device has one segment right behind the other.
fn is_in_a_row(mapping: &DmaMapping<Lent<RawList>>) -> bool {
    let list = match &**mapping.list() {
        RawList::One(_) => return true,
        list => list.as_ref(),
    };
    let mut next = mapping.iova().0;
    let in_a_row = list.iter().map(|segment| {
        let here = Iova(next);
        next += segment.len.0;
        here
    });
    mapping.segments().eq(in_a_row)
}

impl AnyClient {
    /// Maps the bytes at `buffer`, which are contiguous to the CPU, so that they are to the device,
    /// and gives the mapping up: [`unmap_raw`](Self::unmap_raw) ends it by the address that this
    /// returns and the buffer's length.
    ///
    /// `phys` gives the physical address of a byte that the CPU sees at a pointer; it is asked once
    /// for each granule (4 KiB) of the buffer.
    ///
    /// # Errors
    /// [`RawDmaError::Map`], with [`MapError::NoMemory`] where the heap has no memory to note the
    /// mapping, and [`RawDmaError::NotInARow`]: nothing is mapped then, and the buffer is as it
    /// was. [`RawDmaError::Unmap`], where what was made of it could not be ended: as after a
    /// [`DmaMapError`] that [may leave it](DmaMapError::is_reached_still) to the device, the buffer
    /// must not be used again.
    ///
    /// # Safety
    /// * What `phys` says is true until the mapping has ended: the bytes of a granule lie there one
    ///   after the other, and nowhere else.
    /// * Until then nothing but the device uses the buffer, or what uses it puts up with what the
    ///   device writes there, as [`DmaBuffer`] says; so also until the flush that follows the
    ///   unmap, where it is mapped directly and the domain defers invalidations.
    /// * Where it is mapped directly, the device may be trusted with the rest of its first and last
    ///   granules.
    #[allow(unsafe_code)] // it lends what it is promised
    pub unsafe fn map_raw(
        &self,
        buffer: NonNull<[u8]>,
        direction: Direction,
        phys: impl Fn(NonNull<u8>) -> PhysAddr,
    ) -> Result<Iova, RawDmaError> {
        let no_memory = DmaMapError::Direct(MapError::NoMemory);
        let list = segments(buffer, phys).map_err(|NoMemory| no_memory)?;
        // SAFETY: the segments are the buffer, of which the caller promises the rest.
        let mapping = self.map_sg(unsafe { Lent::new(list) }, direction)?;
        let (mapping, why) = match is_in_a_row(&mapping) {
            false => (mapping, RawDmaError::NotInARow),
            true => match self.into_raw(mapping) {
                Ok((iova, _)) => return Ok(iova),
                Err(IntoRawError(mapping)) => (mapping, no_memory.into()),
            },
        };
        // as if it had never been there: the device may have found it all the same
        match self.undo(mapping) {
            Ok(()) => Err(why),
            Err(error) => Err(DmaUnmapError::Direct(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::{cell::Cell, num::NonZero};

    fn buffer(at: usize, len: usize) -> NonNull<[u8]> {
        let first = NonNull::without_provenance(NonZero::new(at).unwrap());
        NonNull::slice_from_raw_parts(first, len)
    }

    #[test]
    fn pieces_are_asked_for_by_granule_and_merged_where_they_adjoin() {
        // granules 4 to 8 lie in pages 14, 15, 9, 10 and 3
        let pages = [14, 15, 9, 10, 3];
        let asked = Cell::new(0);
        let phys = |at: NonNull<u8>| {
            asked.set(asked.get() + 1);
            let at = at.addr().get() as u64;
            PhysAddr(pages[(at / GRANULE - 4) as usize] * GRANULE + at % GRANULE)
        };
        let ranges = |list: &[(u64, u64)]| -> Vec<PhysRange> {
            let range = |(at, len): &(u64, u64)| PhysRange::new(PhysAddr(*at), ByteCount(*len));
            list.iter().map(range).collect()
        };
        let cases = [
            (0x4ff0, 0x10, vec![(0xeff0, 0x10)]),
            (0x4ff0, 0x11, vec![(0xeff0, 0x11)]),
            (0x5001, 0x1000, vec![(0xf001, 0xfff), (0x9000, 1)]),
            (
                0x4ff0,
                0x3020,
                vec![(0xeff0, 0x1010), (0x9000, 0x2000), (0x3000, 0x10)],
            ),
        ];
        for (at, len, expected) in cases {
            let found = segments(buffer(at, len), phys).unwrap();
            let expected = ranges(&expected);
            assert_eq!(*found.as_ref(), expected, "{len:#x} bytes at {at:#x}");
            let granules = (at + len - 1) / GRANULE as usize - at / GRANULE as usize + 1;
            assert_eq!(asked.take(), granules, "{len:#x} bytes at {at:#x}");
        }
        let nothing = segments(buffer(0x4000, 0), phys).unwrap();
        assert!(nothing.as_ref().is_empty() && asked.get() == 0);
    }
}
