// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames: how they look, and whether they still do when they come back.
//!
//! A frame is two addresses, an EtherType, its number, and bytes that follow from the number. The
//! back end may exchange the addresses (MAC swap) or leave them alone (loopback); nothing else. Of
//! the virtio header it must clear flags and GSO type, since no offload was negotiated.

use crate::config::{Config, HEADER, MAX_FRAME};

const MACS: usize = 12;
/// Two addresses, EtherType, number.
pub(crate) const HEAD: usize = MACS + 2 + 8;
/// An address that is locally administered, for each end.
const TO: [u8; 6] = [0x52, 0x54, 0, 0x10, 0xa7, 0x01];
const FROM: [u8; 6] = [0x52, 0x54, 0, 0x10, 0xa7, 0x02];
/// For local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Bytes of the pattern of which a payload is a window; that of the next frame begins elsewhere.
const PATTERN: usize = 1 << 14;
/// How much further. Odd, so that every start has its turn.
const STRIDE: u64 = 4051;

/// What is wrong with a frame that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum Damage {
    /// It is longer or shorter than what was sent.
    #[error("{got} bytes came back, header included, not {want}")]
    Length {
        /// What the back end said it wrote.
        got: u32,
        /// What it should have.
        want: u32,
    },
    /// The virtio header asks for what was not negotiated.
    #[error("its virtio header has flags {flags:#x} and GSO type {gso}")]
    Header {
        /// The first byte of the header.
        flags: u8,
        /// The second byte of the header.
        gso: u8,
    },
    /// The virtio header says that it goes on in other buffers, though it is all here.
    #[error("its virtio header says {0} buffers, and it is in one")]
    Buffers(u16),
    /// Its addresses or its type are not what was sent.
    #[error("its addresses or EtherType are not those of a frame of ours")]
    Addresses,
    /// Its number is of no frame that was sent.
    #[error("its number, {0}, is of no frame that is out")]
    Number(u64),
    /// It came back before.
    #[error("frame {0} came back again")]
    Again(u64),
    /// A byte of it changed.
    #[error("byte {at} of frame {number} is {got:#04x}, not {want:#04x}")]
    Payload {
        number: u64,
        /// From the start of the frame.
        at: usize,
        /// What came back there.
        got: u8,
        /// What was sent there.
        want: u8,
    },
}

/// Makes frames of one length.
pub(crate) struct Frames {
    pattern: Vec<u8>,
    len: usize,
    /// Headers say in how many buffers a frame is.
    counted: bool,
}

impl Frames {
    /// `counted`: mergeable buffers were negotiated.
    pub(crate) fn new(config: &Config, counted: bool) -> Self {
        let mut pattern = vec![0; PATTERN + usize::from(MAX_FRAME)];
        fastrand::Rng::with_seed(1).fill(&mut pattern);
        Frames {
            pattern,
            len: config.frame_bytes.into(),
            counted,
        }
    }

    /// Virtio header and the head of frame `number`.
    #[inline]
    pub(crate) fn head(&self, number: u64) -> [u8; HEADER + HEAD] {
        let mut head = [0; HEADER + HEAD];
        head[HEADER..HEADER + 6].copy_from_slice(&TO);
        head[HEADER + 6..HEADER + 12].copy_from_slice(&FROM);
        head[HEADER + 12..HEADER + 14].copy_from_slice(&ETHERTYPE);
        head[HEADER + 14..].copy_from_slice(&number.to_le_bytes());
        head
    }

    /// What follows its head.
    #[inline]
    pub(crate) fn payload(&self, number: u64) -> &[u8] {
        let start = (number.wrapping_mul(STRIDE) % PATTERN as u64) as usize;
        &self.pattern[start..start + self.len - HEAD]
    }

    /// The number in a buffer that came back, if its head is one of ours; whether it was
    /// sent, the ledger says.
    #[inline]
    pub(crate) fn number(&self, buffer: &[u8], written: u32) -> Result<u64, Damage> {
        let want = (HEADER + self.len) as u32;
        if written != want {
            return Err(Damage::Length { got: written, want });
        }
        let (flags, gso) = (buffer[0], buffer[1]);
        if flags != 0 || gso != 0 {
            return Err(Damage::Header { flags, gso });
        }
        let buffers = u16::from_le_bytes([buffer[10], buffer[11]]);
        if self.counted && buffers != 1 {
            return Err(Damage::Buffers(buffers));
        }
        let frame = &buffer[HEADER..];
        let (first, second) = (&frame[..6], &frame[6..MACS]);
        let kept = first == TO && second == FROM;
        let swapped = first == FROM && second == TO;
        if !(kept || swapped) || frame[MACS..MACS + 2] != ETHERTYPE {
            return Err(Damage::Addresses);
        }
        let number = frame[MACS + 2..HEAD].try_into().expect("eight bytes");
        Ok(u64::from_le_bytes(number))
    }

    /// Whether the rest of a buffer is that of frame `number`.
    #[inline]
    pub(crate) fn check(&self, buffer: &[u8], number: u64) -> Result<(), Damage> {
        let (got, want) = (&buffer[HEADER + HEAD..], self.payload(number));
        if got == want {
            return Ok(());
        }
        let at = got.iter().zip(want).position(|(g, w)| g != w);
        let at = at.expect("they are of one length, and differ");
        Err(Damage::Payload {
            number,
            at: HEAD + at,
            got: got[at],
            want: want[at],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(frames: &Frames, number: u64) -> Vec<u8> {
        [&frames.head(number)[..], frames.payload(number)].concat()
    }

    #[test]
    fn every_changed_byte_is_seen() {
        let frames = Frames::new(&Config::default(), false);
        let good = frame(&frames, 77);
        let check = |bytes: &[u8]| {
            let number = frames.number(bytes, bytes.len() as u32)?;
            frames.check(bytes, number)
        };
        assert_eq!(check(&good), Ok(()));
        // Bytes 2 to 11 are the header's offload fields, which mean nothing without flags.
        for at in (0..2).chain(HEADER..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            // One in the number may make another frame of it, which is not out; that is the
            // ledger's to say.
            let other = frames.number(&bad, bad.len() as u32).is_ok_and(|n| n != 77);
            assert!(other || check(&bad).is_err(), "byte {at}");
        }
        let mut swapped = good.clone();
        swapped[HEADER..HEADER + 12].rotate_left(6);
        assert_eq!(check(&swapped), Ok(()));
        let (got, want) = (75, 76);
        assert_eq!(check(&good[..75]), Err(Damage::Length { got, want }));
    }

    #[test]
    fn a_mergeable_frame_says_that_it_is_in_one_buffer() {
        let frames = Frames::new(&Config::default(), true);
        let mut bytes = frame(&frames, 3);
        let number = |bytes: &[u8]| frames.number(bytes, bytes.len() as u32);
        for (buffers, found) in [
            (0, Err(Damage::Buffers(0))),
            (1, Ok(3)),
            (2, Err(Damage::Buffers(2))),
        ] {
            bytes[10] = buffers;
            assert_eq!(number(&bytes), found);
        }
    }

    #[test]
    fn neighbours_differ() {
        let frames = Frames::new(&Config::default(), false);
        for number in 0..1000 {
            assert_ne!(frames.payload(number), frames.payload(number + 1));
        }
    }
}
