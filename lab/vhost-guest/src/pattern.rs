// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bytes that tell where they belong: a byte that comes back elsewhere, or as another's, is seen.

/// The bytes of stream `seed` from `at` on.
pub fn fill(seed: u64, at: u64, bytes: &mut [u8]) {
    for (position, byte) in (at..).zip(bytes) {
        *byte = byte_at(seed, position);
    }
}

/// The first byte that is not that of the stream, if there is one.
pub fn differs(seed: u64, at: u64, bytes: &[u8]) -> Option<u64> {
    let mut positions = (at..).zip(bytes);
    positions
        .find(|(position, byte)| **byte != byte_at(seed, *position))
        .map(|(position, _)| position)
}

/// splitmix64's finaliser of the word that the byte is of.
fn byte_at(seed: u64, position: u64) -> u8 {
    let mut word = (seed << 40) ^ (position / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)).to_le_bytes()[(position % 8) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_out_of_place_is_found() {
        let mut bytes = [0; 4096];
        fill(7, 100, &mut bytes);
        assert_eq!(differs(7, 100, &bytes), None);
        assert!(differs(7, 101, &bytes).is_some());
        assert!(differs(8, 100, &bytes).is_some());
        bytes[4000] ^= 1;
        assert_eq!(differs(7, 100, &bytes), Some(4100));
        bytes[4000] ^= 1;
        // a page of zeros, as of memory never written
        bytes[1024..2048].fill(0);
        assert!(differs(7, 100, &bytes).is_some_and(|at| (1124..1140).contains(&at)));
    }
}
