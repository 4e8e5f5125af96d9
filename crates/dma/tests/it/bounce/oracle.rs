// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Against a model that is slow and simple: of every live mapping, which bytes the device sees, and
//! of memory, what it holds.

use crate::bounce::rig::{Rig, Tables};
use crate::lend;
use ioatlas_dma::{dma_api::*, units::*};
use ioatlas_host::Host;
use proptest::prelude::*;

const PAGES: u64 = 12;
const BYTES: usize = (PAGES * 4096) as usize;

#[derive(Clone, Debug)]
enum Op {
    /// Which client, where, how long, which way.
    Map(usize, u64, u64, u8),
    /// Which live mapping, and how much of it the device writes first.
    Unmap(prop::sample::Index, u64),
    /// The device writes all that it can reach around a mapping, up to its granules.
    Scribble(prop::sample::Index),
    Tick(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let length = prop_oneof![1..200u64, 1..9000u64, Just(4096), Just(8192), 1..40_000u64];
    let at = prop_oneof![0..PAGES * 4096, (0..PAGES).prop_map(|page| page * 4096)];
    let op = prop_oneof![
        6 => (0..5usize, at, length, 0..3u8).prop_map(|(c, a, l, d)| Op::Map(c, a, l, d)),
        5 => (any::<prop::sample::Index>(), 0..10_000u64).prop_map(|(i, n)| Op::Unmap(i, n)),
        1 => any::<prop::sample::Index>().prop_map(Op::Scribble),
        1 => (0..200_000_000u64).prop_map(Op::Tick),
    ];
    prop::collection::vec(op, 1..80)
}

struct Live {
    client: usize,
    mapping: DmaMapping,
}

fn clients(rig: &Rig) -> Vec<Client<Host, Tables>> {
    let placements = [
        Placement::Always,
        Placement::Untrusted {
            whole_up_to: ByteCount(5000),
        },
        Placement::SingleUse,
    ];
    let plain = placements.map(|placement| rig.client(placement));
    let kept = placements[..2].iter().map(|placement| {
        let config = ClientConfig::default()
            .placement(*placement)
            .low_bits(LowBits::Kept);
        rig.dma.client(config).unwrap()
    });
    plain.into_iter().chain(kept).collect()
}

/// Few slots, so that every step of the fallback chain is taken.
fn tight() -> DmaConfig {
    let class = |(pages_lg2, slots)| ClassConfig { pages_lg2, slots };
    DmaConfig::default().pool(
        PoolConfig::default()
            .classes([(0, 3), (1, 2), (3, 1)].map(class).into())
            .growth(Growth::OnDemand {
                chunks_max: 1,
                single_use: SingleUse::Allowed,
            })
            .idle_ns(100_000_000),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn no_placement_shows_a_device_more_or_brings_back_more(ops in ops()) {
        let rig = Rig::with(tight(), 1024, Default::default());
        let memory = rig.memory(PAGES);
        let mut model: Vec<u8> = (0..BYTES).map(|at| (at % 250) as u8 + 1).collect();
        rig.poke(memory, &model);
        let clients = clients(&rig);
        let mut live: Vec<Live> = Vec::new();
        let mut now = 0;
        for op in ops {
            match op {
                Op::Map(client, at, len, way) => {
                    let len = len.min(BYTES as u64 - at);
                    let (from, to) = (at, at + len);
                    // drivers do not map the bytes of a live mapping again, nor, mapped directly,
                    // its granules
                    let apart = |other: &Live| {
                        let list = other.mapping.list();
                        let begin = (list.addr.0 - memory.0) & !4095;
                        let end = (list.addr.0 - memory.0 + list.len.0).next_multiple_of(4096);
                        to <= begin || end <= from & !4095
                    };
                    if !live.iter().all(apart) {
                        continue;
                    }
                    let buffer = PhysRange::new(PhysAddr(memory.0 + at), ByteCount(len));
                    let direction = [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional][way as usize];
                    let mapping = clients[client].map_single(lend(buffer), direction).unwrap();
                    if client > 2 {
                        prop_assert_eq!(mapping.iova().offset(), buffer.addr.offset(), "low bits");
                    }
                    look(&rig, &mapping, &model, at)?;
                    live.push(Live { client, mapping });
                }
                Op::Unmap(_, _) | Op::Scribble(_) if live.is_empty() => {}
                Op::Unmap(which, wrote) => {
                    let Live { client, mapping } = live.swap_remove(which.index(live.len()));
                    let at = (mapping.list().addr.0 - memory.0) as usize;
                    let len = mapping.len().0 as usize;
                    let wrote = (wrote as usize).min(len);
                    let could = rig.device_write(mapping.iova(), &vec![0xfe; wrote]);
                    let direction = mapping.direction();
                    prop_assert_eq!(could, if direction == Direction::ToDevice { 0 } else { wrote });
                    clients[client].unmap(mapping).unwrap();
                    let back = rig.peek(memory, BYTES);
                    let written = at..at + could;
                    for (nth, (byte, old)) in back.iter().zip(&mut model).enumerate() {
                        let inside = (at..at + len).contains(&nth) && direction == Direction::FromDevice;
                        let fine = match nth {
                            _ if written.contains(&nth) => *byte == 0xfe,
                            _ if inside => *byte == *old || *byte == 0 || *byte == 0xfd,
                            _ => *byte == *old || (*byte == 0xfd && (at..at + len).contains(&nth)),
                        };
                        prop_assert!(fine, "P7: byte {} is {:#x}, was {:#x}", nth, byte, old);
                        *old = *byte;
                    }
                }
                Op::Scribble(which) => {
                    let mapping = &live[which.index(live.len())].mapping;
                    let from = mapping.iova().page().addr();
                    let to = (mapping.iova().0 + mapping.len().0).next_multiple_of(4096);
                    rig.device_write(from, &vec![0xfd; (to - from.0) as usize]);
                    // what is mapped directly is changed at once; nothing else is
                    let now = rig.peek(memory, BYTES);
                    let at = (mapping.list().addr.0 - memory.0) as usize;
                    for (nth, (byte, old)) in now.iter().zip(&mut model).enumerate() {
                        let inside = (at..at + mapping.len().0 as usize).contains(&nth);
                        prop_assert!(*byte == *old || (inside && *byte == 0xfd), "P7: byte {}", nth);
                        *old = *byte;
                    }
                }
                Op::Tick(after) => {
                    now += after;
                    rig.dma.tick(TimeNs(now));
                }
            }
        }
        let taken: u64 = rig.dma.audit().unwrap().iter().flat_map(|pool| &pool.classes).map(|(_, slots)| slots.taken).sum();
        prop_assert!(taken <= live.len() as u64);
        rig.domain.audit().unwrap();
        for Live { client, mapping } in live {
            clients[client].unmap(mapping).unwrap();
        }
        for pool in rig.dma.audit().unwrap() {
            prop_assert!(pool.classes.iter().all(|(_, slots)| slots.taken == 0), "P10");
            prop_assert_eq!(pool.chunks.taken.0, 0, "P10");
        }
        rig.domain.audit().unwrap();
    }
}

/// The device sees the data and, in the granules around them, zeroes.
fn look(rig: &Rig, mapping: &DmaMapping, model: &[u8], at: u64) -> Result<(), TestCaseError> {
    let from = mapping.iova().page().addr();
    let lead = mapping.iova().0 - from.0;
    let len = mapping.len().0;
    let whole = (lead + len).next_multiple_of(4096);
    for (nth, byte) in (0u64..).zip(rig.device_read(from, whole)) {
        let inside = (lead..lead + len).contains(&nth);
        let expected = match mapping.direction() {
            Direction::FromDevice => None,
            _ if inside => Some(model[(at + nth - lead) as usize]),
            _ => Some(0),
        };
        prop_assert_eq!(
            byte,
            expected,
            "P7: the device reads byte {} of {}",
            nth,
            len
        );
    }
    Ok(())
}
