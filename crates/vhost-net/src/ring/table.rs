// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Indirect tables (virtio 1.2, 2.7.5.3 and 2.8.7): a chain's descriptors, in memory of their own.

use super::{MAX_CHAIN, Peeked, Ring, RingError, Segment, add_segment, flags};

/// Reads a chain's table, of which `bytes` is a copy, and puts its segments behind the chain's own,
/// which are all that is in `segments`.
///
/// # Errors
/// What it says cannot be.
pub fn read_table(
    ring: &Ring,
    chain: &Peeked,
    bytes: &[u8],
    segments: &mut Vec<Segment>,
) -> Result<(), RingError> {
    let id = chain.id;
    // 2.7.5.3.1: no chain is longer than the queue, by whatever way.
    let most = usize::from(ring.size()).min(MAX_CHAIN);
    let mut total = segments.iter().map(|s| s.len).sum();
    let mut add = |raw: &[u8; 16], segments: &mut Vec<Segment>| {
        let (addr, len, third, fourth) = fields(raw);
        let (flags, next) = match ring {
            Ring::Split(_) => (third, fourth),
            Ring::Packed(_) => (fourth, 0), // the id before them says nothing
        };
        if flags & flags::INDIRECT != 0 {
            return Err(RingError::Table { id });
        }
        add_segment(id, (addr, len, flags), &mut total, segments)?;
        Ok((flags & flags::NEXT != 0).then_some(next))
    };
    let (entries, _) = bytes.as_chunks::<16>();
    match ring {
        Ring::Packed(_) => {
            // 2.8.7: all of them, in order.
            if entries.len() > most {
                return Err(RingError::Endless { id, most });
            }
            for raw in entries {
                add(raw, segments)?;
            }
        }
        Ring::Split(_) => {
            let mut index = 0;
            for _ in 0..most {
                let raw = entries.get(usize::from(index));
                let raw = raw.ok_or(RingError::Link { index, id })?;
                match add(raw, segments)? {
                    Some(next) => index = next,
                    None => return Ok(()),
                }
            }
            return Err(RingError::Endless { id, most });
        }
    }
    Ok(())
}

fn fields(raw: &[u8; 16]) -> (u64, u32, u16, u16) {
    let (addr, rest) = raw.split_at(8);
    let rest = u64::from_le_bytes(rest.try_into().expect("eight bytes"));
    (
        u64::from_le_bytes(addr.try_into().expect("eight bytes")),
        rest as u32,
        (rest >> 32) as u16,
        (rest >> 48) as u16,
    )
}
