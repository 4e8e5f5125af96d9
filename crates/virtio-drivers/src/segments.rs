// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where a buffer lies in physical memory: a piece in each granule, neighbours that adjoin as one.

use alloc::vec::Vec;
use core::{mem::replace, ptr::NonNull};
use ioatlas_dma::{dma_api::RawList, units::*};

/// The physical segments of `buffer`, in order, for which nothing is allocated where they are one;
/// `phys` is asked once for each granule that it touches.
pub(crate) fn segments(buffer: NonNull<[u8]>, phys: impl Fn(NonNull<u8>) -> PhysAddr) -> RawList {
    let (first, len) = (buffer.cast::<u8>(), buffer.len() as u64);
    let mut before: Vec<PhysRange> = Vec::new();
    let mut last = PhysRange::new(phys(first), ByteCount(0));
    let mut done = 0;
    while done < len {
        let at = first.map_addr(|start| start.saturating_add(done as usize));
        let rest_of_granule = GRANULE - at.addr().get() as u64 % GRANULE;
        let piece = PhysRange::new(phys(at), ByteCount(rest_of_granule.min(len - done)));
        if last.end() == Some(piece.addr) {
            last.len.0 += piece.len.0;
        } else {
            before.push(replace(&mut last, piece));
        }
        done += piece.len.0;
    }
    if before.is_empty() {
        return RawList::One(last);
    }
    before.push(last);
    RawList::Many(before.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::num::NonZero;

    fn buffer(at: usize, len: usize) -> NonNull<[u8]> {
        let first = NonNull::without_provenance(NonZero::new(at).unwrap());
        NonNull::slice_from_raw_parts(first, len)
    }

    #[test]
    fn pieces_are_asked_for_by_granule_and_merged_where_they_adjoin() {
        // granules 4 to 8 lie in pages 14, 15, 9, 10 and 3
        let pages = [14, 15, 9, 10, 3];
        let phys = |at: NonNull<u8>| {
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
            let found = segments(buffer(at, len), phys);
            let expected = ranges(&expected);
            assert_eq!(*found.as_ref(), expected, "{len:#x} bytes at {at:#x}");
        }
    }
}
