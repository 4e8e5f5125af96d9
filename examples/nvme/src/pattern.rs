// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Data that say where they come from.
//!
//! Each 8 bytes of the disk hold a function of their own address, so that what a read brought
//! proves which block it came from, whatever the device reports. Memory that must not be written is
//! filled with a *canary*, which is a function of the place, too, and of what the test calls it.

use ioatlas_dma::{
    platform::{Authority, CopyMemory, NotMemoryError},
    units::*,
};

/// What lies at byte `at` of the disk, a multiple of 8.
pub fn on_disk(at: ByteCount) -> u64 {
    mixed(at.0 ^ 0x696f_6174_6c61_7321)
}

/// What lies at `at`, a multiple of 8, until it is written, where the test calls it `name`.
pub fn canary(name: u64, at: PhysAddr) -> u64 {
    mixed(at.0 ^ name << 48 ^ 0xca)
}

/// Every bit of the result depends on every bit of `x` (the finaliser of SplitMix64).
fn mixed(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The first `len` bytes of a disk.
pub fn disk(len: ByteCount) -> impl Iterator<Item = [u8; 8]> {
    let words = (0..len.0).step_by(8);
    words.map(|at| on_disk(ByteCount(at)).to_le_bytes())
}

/// What lies on a disk, as far as that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// The pattern, up to this byte.
    Pattern(ByteCount),
    /// What was read before, from the first byte on.
    Copy(Vec<u8>),
}

impl Expected {
    /// How far it is known.
    pub fn len(&self) -> ByteCount {
        match self {
            Expected::Pattern(len) => *len,
            Expected::Copy(bytes) => ByteCount(bytes.len() as u64),
        }
    }
    /// Whether nothing of it is known.
    pub fn is_empty(&self) -> bool {
        self.len().0 == 0
    }
    /// How many of `bytes`, read from byte `at` of the disk, are not what lies there.
    pub fn wrong_bytes(&self, bytes: &[u8], at: ByteCount) -> usize {
        match self {
            Expected::Pattern(_) => wrong_bytes(bytes, at),
            Expected::Copy(known) => {
                let known = known.get(at.0 as usize..).unwrap_or(&[]);
                let same = bytes.iter().zip(known).filter(|(got, want)| got == want);
                bytes.len() - same.count()
            }
        }
    }
}

/// How many of `bytes`, read from byte `at` of a disk with the pattern, are not what lies there.
pub fn wrong_bytes(bytes: &[u8], at: ByteCount) -> usize {
    let words = bytes.chunks_exact(8).enumerate();
    words
        .map(|(n, word)| {
            let want = on_disk(ByteCount(at.0 + 8 * n as u64)).to_le_bytes();
            word.iter()
                .zip(want)
                .filter(|(got, want)| **got != *want)
                .count()
        })
        .sum()
}

/// Fills `range`, of whole words, with a canary.
///
/// # Errors
/// It is not memory.
pub fn plant(
    by: Authority,
    p: &impl CopyMemory,
    name: u64,
    range: PhysRange,
) -> Result<(), NotMemoryError> {
    let mut words = vec![0; range.len.0 as usize];
    for (n, word) in words.chunks_exact_mut(8).enumerate() {
        let at = PhysAddr(range.addr.0 + 8 * n as u64);
        word.copy_from_slice(&canary(name, at).to_le_bytes());
    }
    p.write(by, &words, range.addr)
}

/// How many bytes of `range` are not the canary's any more.
///
/// # Errors
/// It is not memory.
pub fn changed(
    by: Authority,
    p: &impl CopyMemory,
    name: u64,
    range: PhysRange,
) -> Result<usize, NotMemoryError> {
    let mut words = vec![0; range.len.0 as usize];
    p.read(by, range.addr, &mut words)?;
    let words = words.chunks_exact(8).enumerate();
    Ok(words
        .map(|(n, word)| {
            let at = PhysAddr(range.addr.0 + 8 * n as u64);
            let want = canary(name, at).to_le_bytes();
            word.iter()
                .zip(want)
                .filter(|(got, want)| **got != *want)
                .count()
        })
        .sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::OWNER;
    use ioatlas_host::*;

    #[test]
    fn a_block_read_from_elsewhere_is_wrong_nearly_everywhere() {
        let disk: Vec<u8> = disk(ByteCount(8192)).flatten().collect();
        assert_eq!(wrong_bytes(&disk[512..1024], ByteCount(512)), 0);
        let wrong = wrong_bytes(&disk[512..1024], ByteCount(1024));
        assert!(wrong > 480, "{wrong} of 512 bytes");
        assert!(wrong_bytes(&[0; 512], ByteCount(0)) > 480);
    }

    #[test]
    fn a_canary_sings_of_every_byte() {
        let host = Host::new(HostConfig::default().frames(2).slots(1));
        let range = PhysRange::page(PhysPage(1));
        plant(OWNER, &host, 7, range).unwrap();
        assert_eq!(changed(OWNER, &host, 7, range), Ok(0));
        let mut byte = [0];
        host.read(OWNER, PhysAddr(0x1abc), &mut byte).unwrap();
        host.write(OWNER, &[!byte[0]], PhysAddr(0x1abc)).unwrap();
        assert_eq!(changed(OWNER, &host, 7, range), Ok(1));
        assert!(changed(OWNER, &host, 8, range).unwrap() > 4000);
    }
}
