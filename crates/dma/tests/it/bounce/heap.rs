// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A heap that has nothing.

use crate::{
    allocators::counting::{Failing, failing},
    bounce::rig::{Rig, Tables},
    lend,
};
use ioatlas_dma::{
    dma_api::*, domain::*, iova::AllocErrorCause, platform::*, policy, translator::*, units::*,
};
use ioatlas_host::Host;
use std::ptr::NonNull;

pub const PLACEMENTS: [Placement; 4] = [
    Placement::Never,
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(100),
    },
    Placement::SingleUse,
];

/// Few slots, one chunk for each permission, and single use.
pub fn small() -> DmaConfig {
    let class = |pages_lg2| ClassConfig {
        pages_lg2,
        slots: 2,
    };
    DmaConfig::default().pool(
        PoolConfig::default()
            .classes(vec![class(0), class(2)])
            .growth(Growth::OnDemand {
                chunks_max: 1,
                single_use: SingleUse::Allowed,
            }),
    )
}

/// Lists of all shapes: parts of granules, whole ones, edges, several segments, and more than a
/// chunk has.
pub fn lists(memory: PhysAddr) -> Vec<Vec<PhysRange>> {
    let part = |offset: u64, len: u64| PhysRange::new(PhysAddr(memory.0 + offset), ByteCount(len));
    vec![
        vec![part(100, 50)],
        vec![part(0, 3 * 4096)],
        vec![part(100, 3 * 4096)],
        vec![
            part(100, 4096 - 100),
            part(3 * 4096, 4096),
            part(5 * 4096, 50),
        ],
        vec![part(0, 40 * 4096 - 50)],
        vec![part(0, 70 * 4096 - 50)],
    ]
}

/// What a driver calls, and what came of it.
#[derive(Default)]
pub struct Driven {
    /// Maps that were refused for want of memory.
    pub refused: u64,
    /// A call that failed for another reason.
    wrong: Option<DmaMapError>,
}

/// Maps all lists both ways, several times, and unmaps them: some of them early. `held` has room
/// for all.
pub fn drive<'l, P: CopyMemory, T: Translator<P>>(
    client: &Client<P, T>,
    lists: &'l [Vec<PhysRange>],
    held: &mut Vec<DmaMapping<Lent<&'l [PhysRange]>>>,
) -> Driven {
    let mut driven = Driven::default();
    let end = |mapping| assert!(client.unmap(mapping).is_ok(), "a live mapping");
    for turn in 0..3 {
        for list in lists {
            for direction in [Direction::ToDevice, Direction::FromDevice] {
                match client.map_sg(lend(&list[..]), direction) {
                    Ok(mapping) => held.push(mapping),
                    Err(error) if lacks_memory(&error) => driven.refused += 1,
                    Err(error) => driven.wrong = Some(error),
                }
            }
        }
        held.drain(held.len() / 2..).for_each(end);
        client.dma().tick(TimeNs(turn << 40));
        client.dma().tick(TimeNs((turn + 1) << 40)); // nothing was asked for since
    }
    held.drain(..).for_each(end);
    driven
}

fn lacks_memory(error: &DmaMapError) -> bool {
    match error {
        DmaMapError::NoSpace(none) => {
            [none.slots, none.chunks, none.single_use].contains(&Lack::NoMemory)
        }
        DmaMapError::Direct(MapError::NoMemory) => true,
        DmaMapError::Direct(MapError::NoIova(none)) => none.cause == AllocErrorCause::NoMemory,
        _ => false,
    }
}

/// What came of a heap that failed.
struct Survived {
    /// It was asked for what fails.
    failed: bool,
    /// Maps that were refused.
    refused: u64,
    /// How many maps chunks served when there was memory again.
    in_chunks: u64,
}

/// The calls of [`drive`] with a heap that fails as said, and then with one that does not.
fn survives(placement: Placement, which: Failing) -> Survived {
    let rig = Rig::new(small());
    let lists = lists(rig.memory(70));
    let client = rig.client(placement);
    for nth in 0..6 {
        // so that the list of regions is full
        let range = IovaRange::new(IovaPage(0xfee00 + nth), PageCount(1));
        rig.domain.reserve(range).expect("it is free");
    }
    let mut held = Vec::with_capacity(100);
    let (driven, failed) = failing(which, || drive(&client, &lists, &mut held));
    let what = format!("{placement:?}, {which:?}");
    assert_eq!(driven.wrong, None, "{what}");
    let served = |step| -> u64 {
        let pools = rig.dma.usage();
        pools.iter().map(|pool| pool.steps.of(step)).sum()
    };
    let in_chunks = served(Step::Chunk);
    let again = drive(&client, &lists, &mut held);
    let in_chunks = served(Step::Chunk) - in_chunks;
    assert_eq!(
        (again.refused, again.wrong),
        (0, None),
        "{what}: memory again"
    );
    for pool in rig.dma.audit().expect("P10: nothing is lost") {
        let taken: u64 = pool.classes.iter().map(|(_, slots)| slots.taken).sum();
        assert_eq!((taken, pool.chunks.taken), (0, PageCount(0)), "P10: {what}");
    }
    rig.domain.flush().expect("a flush");
    let audit = rig.domain.audit().expect("P10: nothing is lost");
    assert_eq!(
        audit.stats.quarantined,
        policy::Held::default(),
        "P10: {what}"
    );
    Survived {
        failed,
        refused: driven.refused,
        in_chunks,
    }
}

/// The same for each of some failures, until one does not happen; returns how many did, and the
/// most maps that one had refused.
fn all_survive(placement: Placement, failing: fn(u64) -> Failing) -> (u64, u64) {
    let usual = survives(placement, Failing::From(u64::MAX)).in_chunks;
    assert!(usual > 0 || placement != Placement::Always);
    let mut most = 0;
    for nth in 0.. {
        let survived = survives(placement, failing(nth));
        assert_eq!(
            survived.in_chunks, usual,
            "P10: {placement:?} without {nth}"
        );
        most = most.max(survived.refused);
        if !survived.failed {
            return (nth, most);
        }
    }
    unreachable!("it asks for ever")
}

#[test]
fn each_allocation_that_fails_refuses_one_map_at_most() {
    for placement in PLACEMENTS {
        let (failures, most) = all_survive(placement, Failing::Nth);
        assert!(
            failures > 2 && most <= 1,
            "{placement:?}: {failures}, {most}"
        );
    }
}

#[test]
fn a_heap_that_stays_empty_refuses_maps_until_it_is_not() {
    for placement in PLACEMENTS {
        let (_, most) = all_survive(placement, Failing::From);
        assert!(most > 2, "{placement:?}: {most}");
    }
}

/// Of a slot, of pages of a chunk, and of more than one has; twice, so that there is memory.
#[test]
fn a_slice_is_mapped_or_refused() {
    let all = |client: &Client<Host, Tables>, bytes: &mut [u8]| {
        let mut refused = 0;
        for len in [50, 5 * 4096, 70 * 4096, 50, 5 * 4096, 70 * 4096] {
            match client.map_slice(&mut bytes[..len], Direction::Bidirectional) {
                Ok(mapped) => drop(mapped.finish().expect("a live mapping")),
                Err(error) if lacks_memory(&error) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        refused
    };
    for placement in PLACEMENTS {
        for nth in 0.. {
            let rig = Rig::new(small());
            let client = rig.client(placement);
            let mut bytes = vec![7; 70 * 4096];
            let (refused, failed) = failing(Failing::Nth(nth), || all(&client, &mut bytes));
            assert!(refused <= 1, "{placement:?} without {nth}: {refused}");
            assert_eq!(all(&client, &mut bytes), 0, "P10: memory again");
            assert!(bytes.iter().all(|byte| *byte == 7), "P7: {placement:?}");
            rig.dma.audit().expect("P10: nothing is lost");
            rig.domain.flush().expect("a flush");
            let audit = rig.domain.audit().expect("P10: nothing is lost");
            assert_eq!(audit.stats.quarantined, policy::Held::default(), "P10");
            if !failed {
                assert!(nth > 2, "{placement:?}: {nth}");
                break;
            }
        }
    }
}

/// In three pieces, so that their list takes memory, too, and in one.
#[test]
fn a_buffer_in_pieces_is_mapped_or_refused() {
    let bytes = |len| NonNull::slice_from_raw_parts(NonNull::<u8>::dangling(), len);
    let in_a_row = PLACEMENTS
        .into_iter()
        .filter(|of| *of != Placement::SingleUse);
    for (placement, failing_by) in in_a_row
        .flat_map(|of| [Failing::Nth as fn(u64) -> Failing, Failing::From].map(|by| (of, by)))
    {
        for nth in 0.. {
            let rig = Rig::new(small());
            let memory = rig.memory(6);
            let any = AnyClient::from(rig.client(placement));
            let phys = |at: NonNull<u8>| {
                let at = at.addr().get() as u64;
                PhysAddr(memory.0 + at / GRANULE * 2 * GRANULE + at % GRANULE)
            };
            let all = || {
                let mut refused = 0;
                for len in [100, 3 * 4096 - 100] {
                    let to = Direction::Bidirectional;
                    // SAFETY: the bytes are the rig's, which only the test reaches.
                    match unsafe { any.map_raw(bytes(len), to, phys) } {
                        Ok(iova) => any
                            .unmap_raw(iova, ByteCount(len as u64), to)
                            .expect("a live mapping"),
                        Err(RawDmaError::Map(error)) if lacks_memory(&error) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                refused
            };
            let (refused, failed) = failing(failing_by(nth), all);
            assert!(refused <= 2, "{placement:?} without {nth}: {refused}");
            assert_eq!(all(), 0, "P10: memory again");
            assert_eq!(rig.dma.raw_mappings(), 0, "P10");
            rig.dma.audit().expect("P10: nothing is lost");
            if !failed {
                assert!(nth > 2, "{placement:?}: {nth}");
                break;
            }
        }
    }
}

/// Slots that CPUs keep in magazines; those that find no place give their memory back.
#[test]
fn unmap_does_without_magazines() {
    for direction in [Direction::ToDevice, Direction::FromDevice] {
        for nth in 0..3 {
            let rig = Rig::new(DmaConfig::default());
            let client = rig.client(Placement::Always);
            let buffer = PhysRange::new(PhysAddr(rig.memory(1).0 + 100), ByteCount(50));
            let map = |_| client.map_single(lend(buffer), direction).expect("room");
            let held: Vec<_> = (0..40).map(map).collect();
            let (unmapped, failed) = failing(Failing::From(nth), || {
                held.into_iter().all(|held| client.unmap(held).is_ok())
            });
            assert!(unmapped && failed, "without {nth}");
            for pool in rig.dma.audit().expect("P10: nothing is lost") {
                let taken: u64 = pool.classes.iter().map(|(_, slots)| slots.taken).sum();
                assert_eq!(taken, 0, "P10: without {nth}");
            }
        }
    }
}

/// What magazines there are has room for all slots of a fixed pool, whichever CPU gives them back.
#[test]
fn a_fixed_pool_needs_no_memory_and_unmaps_nothing() {
    const SLOTS: u32 = 16;
    let rig = Rig::new(DmaConfig::default());
    let pool = PoolConfig::of(ClassConfig {
        pages_lg2: 0,
        slots: SLOTS,
    })
    .growth(Growth::Fixed);
    let config = ClientConfig::default().placement(Placement::Always);
    let client = rig.dma.client_with_pool(config, &pool).unwrap();
    let buffer = PhysRange::new(rig.memory(1), ByteCount(50));
    let before = rig.domain.stats().invalidations;
    for _ in 0..3 {
        let map = |_| {
            client
                .map_single(lend(buffer), Direction::ToDevice)
                .expect("room")
        };
        let held: Vec<_> = (0..SLOTS).map(map).collect();
        let unmapped = std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                let unmap = || held.into_iter().all(|held| client.unmap(held).is_ok());
                failing(Failing::From(0), unmap).0
            });
            elsewhere.join().expect("no panic")
        });
        assert!(unmapped);
        rig.dma.audit().expect("P10: nothing is lost");
    }
    let after = rig.domain.stats().invalidations;
    assert_eq!(after, before, "a fixed pool maps and unmaps nothing");
}
