// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files of captured frames (pcap): what DPDK's `net_pcap` sends and what it was given, as a card
//! that remembers.
//!
//! A file begins with 24 bytes: a magic number (either of two: by microseconds or nanoseconds),
//! version 2.4, zone and accuracy (0), bytes of a frame at most, and 1 for Ethernet. A frame is 16
//! bytes (seconds, and parts of one; bytes here, bytes on the wire) and its bytes. Numbers are
//! those of the machine that wrote it, little-endian here.

use std::io::{self, Read, Write};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const LONGEST: u32 = 1 << 16;

/// Writes frames as a capture, without times.
pub fn write(to: &mut impl Write, frames: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    for word in [MICROSECONDS, 4 << 16 | 2, 0, 0, LONGEST, 1] {
        to.write_all(&word.to_le_bytes())?;
    }
    for frame in frames {
        let len = (frame.len() as u32).to_le_bytes();
        to.write_all(&[[0; 4], [0; 4], len, len].concat())?;
        to.write_all(&frame)?;
    }
    to.flush()
}

/// Gives each frame to `take`.
pub fn read(from: &mut impl Read, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut header = [0; 24];
    from.read_exact(&mut header)?;
    if ![MICROSECONDS, NANOSECONDS].contains(&word(&header, 0)) {
        return Err(bad("no captured frames"));
    }
    let mut frame = Vec::new();
    let mut head = [0; 16];
    loop {
        // only between frames may it end
        match from.read(&mut head[..1])? {
            0 => return Ok(()),
            _ => from.read_exact(&mut head[1..])?,
        }
        let len = word(&head, 8);
        if len > LONGEST || len != word(&head, 12) {
            return Err(bad("a captured frame that is too long or cut off"));
        }
        frame.resize(len as usize, 0);
        from.read_exact(&mut frame)?;
        take(&frame)?;
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..].first_chunk().copied().unwrap_or_default();
    u32::from_le_bytes(word)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::{read, write};

    #[test]
    fn frames_come_back_as_they_were_and_not_if_some_are_cut_off() {
        let frames: Vec<Vec<u8>> = (0..5).map(|n| vec![n as u8; 60 + n * 300]).collect();
        let mut file = Vec::new();
        write(&mut file, frames.iter().cloned()).unwrap();
        let all = |mut bytes: &[u8]| {
            let mut found = Vec::new();
            let result = read(&mut bytes, |frame| {
                found.push(frame.to_vec());
                Ok(())
            });
            (found, result.is_ok())
        };
        assert_eq!(all(&file), (frames.clone(), true));
        assert_eq!(all(&file[..file.len() - 1]), (frames[..4].to_vec(), false));
        let header = 24 + 16 + 60 + 7;
        assert_eq!(all(&file[..header]), (frames[..1].to_vec(), false));
        assert!(!all(&file[1..]).1);
    }
}
