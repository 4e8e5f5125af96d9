// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The table of the address API: against a map of what was given up, with a heap that fails, and
//! that is not called once warm.

use crate::{
    allocators::counting::{Failing, calls, failing},
    bounce::rig::*,
    lend,
};
use ioatlas_dma::{dma_api::*, units::*};
use ioatlas_host::Host;
use std::{collections::BTreeMap, sync::Arc};

type Its = Client<Host, Tables>;

/// Of other lengths each time.
fn buffer(nth: u64) -> PhysRange {
    PhysRange::new(
        PhysAddr(0x1000_0000 + nth * 0x2010),
        ByteCount(1 + nth % 5000),
    )
}

fn give_up(client: &Its, nth: u64) -> (Iova, ByteCount) {
    let mapping = client.map_single(lend(buffer(nth)), Direction::FromDevice);
    client.into_raw(mapping.expect("room")).expect("memory")
}

/// Thousands come and go in an order of chance; each is found, once, and no other for it.
#[test]
fn what_was_given_up_is_found_among_many() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::Never);
    let mut held: BTreeMap<Iova, ByteCount> = BTreeMap::new();
    let mut rng = fastrand::Rng::with_seed(1);
    for nth in 0..30_000 {
        if rng.u32(..5000) >= held.len() as u32 {
            let (iova, len) = give_up(&client, nth);
            assert_eq!(held.insert(iova, len), None);
            continue;
        }
        let from = Iova(rng.u64(..1 << 48));
        let next = held.range(from..).next().or_else(|| held.iter().next());
        let (&iova, &len) = next.expect("some are held");
        let beside = Iova(iova.0 + 1);
        let error = client.unmap_raw(beside, len, None).unwrap_err();
        if !held.contains_key(&beside) {
            assert_eq!(error, RawDmaError::NotMapped(beside));
        }
        let given = ByteCount(len.0 + 1);
        let mapped = len;
        let wrong = RawDmaError::WrongLength {
            iova,
            mapped,
            given,
        };
        assert_eq!(client.unmap_raw(iova, given, None), Err(wrong));
        assert_eq!(client.unmap_raw(iova, len, None), Ok(()));
        let again = client.unmap_raw(iova, len, None);
        assert_eq!(again, Err(RawDmaError::NotMapped(iova)));
        held.remove(&iova);
        assert_eq!(rig.dma.raw_mappings(), held.len());
    }
    assert!(held.len() > 1000, "{}", held.len());
    for (iova, len) in held {
        client
            .unmap_raw(iova, len, Direction::FromDevice)
            .expect("live");
    }
    assert_eq!(rig.dma.raw_mappings(), 0);
    let audit = rig.domain.audit().expect("all is accounted for");
    assert_eq!(audit.stats.live, PageCount(0));
}

/// A client of another pool ends nothing, and takes nothing out of the table.
#[test]
fn what_another_client_gave_up_stays() {
    let rig = Rig::new(DmaConfig::default());
    let [ours, theirs] = [Placement::Never, Placement::Always].map(|of| rig.client(of));
    let (iova, len) = give_up(&ours, 1);
    let foreign = || Err(RawDmaError::Sync(SyncError::Foreign { iova }));
    assert_eq!(theirs.unmap_raw(iova, len, None), foreign());
    let span = Span::new(ByteCount(0), len);
    assert_eq!(theirs.sync_raw(iova, span, None, SyncFor::Cpu), foreign());
    assert_eq!(ours.unmap_raw(iova, len, None), Ok(()));
}

/// Each allocation fails in turn: a token that there is no memory to note comes back.
#[test]
fn without_heap_memory_the_mapping_comes_back() {
    const MOST: usize = 300;
    // where one allocation fails, a smaller one may do; where the heap stays empty, none does
    let mut came_back = 0;
    let mut which = Failing::Nth(0);
    loop {
        let rig = Rig::new(DmaConfig::default());
        let client = rig.client(Placement::Never);
        let mapped = |nth| {
            let mapping = client.map_single(lend(buffer(nth)), Direction::FromDevice);
            mapping.expect("room")
        };
        let mappings: Vec<_> = (0..MOST as u64).map(mapped).collect();
        let (mut given, mut back) = (Vec::with_capacity(MOST), Vec::with_capacity(MOST));
        let ((), failed) = failing(which, || {
            for mapping in mappings {
                match client.into_raw(mapping) {
                    Ok(raw) => given.push(raw),
                    Err(IntoRawError(mapping)) => back.push(mapping),
                }
            }
        });
        let most = match which {
            Failing::Nth(_) => usize::from(failed),
            Failing::From(_) => MOST,
        };
        assert!(back.len() <= most, "P10: {which:?}: {}", back.len());
        assert_eq!(rig.dma.raw_mappings(), given.len(), "P10: one is lost");
        came_back += back.len();
        for mapping in back {
            given.push(client.into_raw(mapping).expect("memory again"));
        }
        for (iova, len) in given {
            client.unmap_raw(iova, len, None).expect("P10: it is there");
        }
        let audit = rig.domain.audit().expect("P10: all is accounted for");
        assert_eq!(audit.stats.live, PageCount(0));
        which = match which {
            Failing::Nth(nth) if failed => Failing::Nth(nth + 1),
            Failing::Nth(nth) => {
                assert!(nth > 16, "each part grows: {nth}");
                Failing::From(0)
            }
            Failing::From(nth) if failed => Failing::From(nth + 1),
            Failing::From(_) => break,
        };
    }
    assert!(came_back > MOST, "P10: {came_back}");
}

#[test]
fn once_warm_it_calls_no_heap() {
    let rig = Rig::new(DmaConfig::default());
    for placement in [Placement::Never, Placement::Always] {
        let client = rig.client(placement);
        let memory = PhysRange::new(rig.memory(1), ByteCount(100));
        let mut held = std::collections::VecDeque::with_capacity(128);
        let mut turn = |turns: usize| {
            for _ in 0..turns {
                if held.len() == 100 {
                    let (iova, len) = held.pop_front().expect("100");
                    client.unmap_raw(iova, len, None).expect("live");
                }
                let mapping = client.map_single(lend(memory), Direction::ToDevice);
                held.push_back(client.into_raw(mapping.expect("room")).expect("memory"));
            }
        };
        turn(2000);
        let before = calls();
        turn(2000);
        assert_eq!(calls() - before, 0, "{placement:?}");
        for (iova, len) in held {
            client.unmap_raw(iova, len, None).expect("live");
        }
    }
}

/// Several segments are one mapping.
#[test]
fn a_list_is_given_up_as_one() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::Never);
    let list: Arc<[PhysRange]> = (1..4).map(|n| PhysRange::page(PhysPage(7 * n))).collect();
    let mapping = client
        .map_sg(lend(list), Direction::ToDevice)
        .expect("room");
    let (iova, len) = client.into_raw(mapping).expect("memory");
    assert_eq!(len, ByteCount(3 * GRANULE));
    assert_eq!(client.unmap_raw(iova, len, None), Ok(()));
}
