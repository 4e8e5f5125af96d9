// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames in guest memory: the header before them (virtio 1.2, 5.1.6), and moving bytes between
//! lists of slices.
//!
//! Offloads are not offered, so a header says nothing on the way in, and only how many buffers a
//! frame took on the way out.

use vm_memory::VolatileSlice;

/// Bytes of a frame without its header, at most: the largest that any transport puts
/// into one virtio-net frame.
pub const MAX_FRAME: u32 = 65_550;
/// Bytes of two MAC addresses.
pub const MACS: usize = 12;

/// How long a header is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// Without the number of buffers: a driver of before virtio 1.0 without mergeable buffers.
    Legacy,
    /// With the number of buffers.
    Modern,
}

impl Header {
    /// Bytes that the header has.
    pub fn len(self) -> u32 {
        match self {
            Header::Legacy => 10,
            Header::Modern => 12,
        }
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        false
    }

    /// The header of a frame in `buffers` buffers.
    pub fn encode(self, buffers: u16) -> [u8; 12] {
        let mut raw = [0; 12];
        raw[10..].copy_from_slice(&buffers.to_le_bytes());
        raw
    }
}

/// A place in a list of slices.
pub struct Place<'b, I> {
    slices: I,
    now: Option<VolatileSlice<'b>>,
}

impl<'b, I: Iterator<Item = VolatileSlice<'b>>> Place<'b, I> {
    /// The start of `slices`.
    pub fn new(slices: I) -> Self {
        Place { slices, now: None }
    }

    /// The next bytes, at most `most`, which is not 0; none at the end.
    #[inline]
    fn next(&mut self, most: usize) -> Option<VolatileSlice<'b>> {
        let slice = match self.now.take() {
            Some(slice) => slice,
            None => self.slices.find(|slice| !slice.is_empty())?,
        };
        if slice.len() <= most {
            return Some(slice);
        }
        let (first, rest) = slice.split_at(most).expect("not beyond its end");
        self.now = Some(rest);
        Some(first)
    }

    /// Goes `bytes` further, or to the end.
    pub fn skip(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0
            && let Some(slice) = self.next(left)
        {
            left -= slice.len();
        }
    }

    /// Fills `to`; returns how many bytes there were.
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len()
            && let Some(slice) = self.next(to.len() - done)
        {
            done += slice.copy_to(&mut to[done..]);
        }
        done
    }

    /// Writes `from`; returns how many bytes found room.
    pub fn write(&mut self, from: &[u8]) -> usize {
        let mut done = 0;
        while done < from.len()
            && let Some(slice) = self.next(from.len() - done)
        {
            slice.copy_from(&from[done..]);
            done += slice.len();
        }
        done
    }

    /// Writes `bytes` bytes from another place; returns how many there were and found room.
    #[inline]
    pub fn copy<'c>(
        &mut self,
        from: &mut Place<'c, impl Iterator<Item = VolatileSlice<'c>>>,
        bytes: usize,
    ) -> usize {
        let mut done = 0;
        while done < bytes {
            let Some(source) = from.next(bytes - done) else {
                break;
            };
            let mut copied = 0;
            while copied < source.len() {
                let Some(target) = self.next(source.len() - copied) else {
                    return done + copied;
                };
                let part = source.offset(copied).expect("not beyond its end");
                part.copy_to_volatile_slice(target);
                copied += target.len();
            }
            done += copied;
        }
        done
    }
}

/// Exchanges destination and source of the frame that begins with `macs`.
pub fn swap_macs(macs: &mut [u8; MACS]) {
    let (to, from) = macs.split_at_mut(MACS / 2);
    to.swap_with_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order_across_slices_of_any_length() {
        let mut from: Vec<u8> = (0..=255).collect();
        let mut to = vec![0u8; 200];
        {
            let mut rest = from.as_mut_slice();
            let mut sources = Vec::new();
            for len in [1, 0, 7, 100, 148] {
                let (one, others) = rest.split_at_mut(len);
                sources.push(VolatileSlice::from(one));
                rest = others;
            }
            let mut rest = to.as_mut_slice();
            let mut targets = Vec::new();
            for len in [0, 50, 3, 147] {
                let (one, others) = rest.split_at_mut(len);
                targets.push(VolatileSlice::from(one));
                rest = others;
            }
            let mut source = Place::new(sources.into_iter());
            let mut target = Place::new(targets.into_iter());
            source.skip(5);
            assert_eq!(target.write(&[9, 9]), 2);
            assert_eq!(target.copy(&mut source, 1000), 198, "as much as finds room");
        }
        assert_eq!(to[..2], [9, 9]);
        let expected: Vec<u8> = (5..203).collect();
        assert_eq!(to[2..], expected);
    }

    #[test]
    fn macs_are_exchanged() {
        let mut macs = *b"ABCDEFabcdef";
        swap_macs(&mut macs);
        assert_eq!(&macs, b"abcdefABCDEF");
    }
}
