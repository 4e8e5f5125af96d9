// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What comes when the classes are full, and how memory is freed.

use crate::bounce::rig::{Rig, Tables};
use crate::lend;
use ioatlas_dma::{bounce::CHUNKS_MAX, dma_api::*, domain::DomainConfig, units::*};
use ioatlas_host::Host;

/// Two slots of one page, two of two.
fn small(growth: Growth) -> DmaConfig {
    let class = |pages_lg2| ClassConfig {
        pages_lg2,
        slots: 2,
    };
    DmaConfig::default().pool(
        PoolConfig::default()
            .classes(vec![class(0), class(1)])
            .growth(growth),
    )
}

fn on_demand(chunks_max: u32, single_use: SingleUse) -> Growth {
    Growth::OnDemand {
        chunks_max,
        single_use,
    }
}

fn unmap_all<L>(client: &Client<Host, Tables>, mappings: Vec<DmaMapping<L>>)
where
    L: DmaBuffer + std::fmt::Debug,
{
    for mapping in mappings {
        client.unmap(mapping).unwrap();
    }
}

#[test]
fn each_step_serves_when_those_before_are_full() {
    let rig = Rig::new(small(on_demand(1, SingleUse::Allowed)));
    let client = rig.client(Placement::Always);
    let memory = rig.memory(1);
    let buffer = PhysRange::new(memory, ByteCount(4096));
    rig.poke(memory, &[9; 4096]);
    let many = 2 + 2 + 64 + 3;
    let mut live = Vec::new();
    let mut sync = Vec::new();
    for nth in 0..many {
        let mapping = client
            .map_single(lend(buffer), Direction::ToDevice)
            .unwrap();
        let seen = rig.device_read(mapping.iova(), 4096);
        assert!(seen.iter().all(|byte| *byte == Some(9)), "operation {nth}");
        sync.push(mapping.iova());
        live.push(mapping);
    }
    sync.sort();
    sync.dedup();
    assert_eq!(sync.len(), many, "P10: a buffer was given out twice");
    let steps = rig.dma.usage()[0].steps;
    let counts = [Step::Populated, Step::Larger, Step::Chunk, Step::SingleUse].map(|s| steps.of(s));
    assert_eq!(counts, [2, 2, 64, 3], "{steps}");
    for mapping in live {
        client.unmap(mapping).unwrap();
    }
    let usage = &rig.dma.audit().unwrap()[0];
    assert!(usage.classes.iter().all(|(_, slots)| slots.taken == 0));
    assert_eq!(
        (usage.chunks.taken, usage.chunks.kept),
        (PageCount(0), PageCount(64))
    );
    rig.domain.audit().unwrap();
}

#[test]
fn a_pool_of_more_chunks_than_there_can_be_is_refused() {
    let rig = Rig::new(small(on_demand(CHUNKS_MAX + 1, SingleUse::Never)));
    let config = ClientConfig::default().placement(Placement::Always);
    let refused = rig.dma.client(config).map(drop);
    let chunks_max = CHUNKS_MAX + 1;
    let why = PoolConfigError::Chunks { chunks_max };
    assert_eq!(refused, Err(PoolError::Config(why)));
}

/// What a device wrote beside its buffer, in a page of which only the buffer was zeroed.
#[test]
fn a_chunks_page_that_is_zero_in_part_shows_nothing_to_its_next_user() {
    let rig = Rig::new(small(on_demand(1, SingleUse::Never)));
    let config = ClientConfig::default()
        .placement(Placement::Always)
        .low_bits(LowBits::Kept);
    let client = rig.dma.client(config).unwrap();
    let memory = rig.memory(1);
    rig.poke(memory, &[7; 4096]);
    let map = |offset, len| {
        let buffer = PhysRange::new(PhysAddr(memory.0 + offset), ByteCount(len));
        client
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap()
    };
    let held: Vec<_> = (0..4).map(|_| map(0, 4096)).collect();
    for (offset, len) in [(0, 100), (0, 4095), (1, 4095), (300, 700)] {
        let part = map(offset, len);
        let page = part.iova().page();
        assert_eq!(rig.device_write(page.addr(), &[0xfd; 4096]), 4096);
        client.unmap(part).unwrap();
        let whole = map(0, 4096);
        assert_eq!(whole.iova().page(), page);
        client.unmap(whole).unwrap();
        let back = rig.peek(memory, 4096);
        assert!(back.iter().all(|byte| *byte == 0), "P7: {len} at {offset}");
    }
    assert_eq!(rig.dma.usage()[0].steps.of(Step::Chunk), 8);
    for mapping in held {
        client.unmap(mapping).unwrap();
    }
}

#[test]
fn what_is_exhausted_is_named() {
    let rig = Rig::new(small(on_demand(0, SingleUse::Never)));
    let client = rig.client(Placement::Always);
    let memory = rig.memory(3);
    let buffer = PhysRange::new(memory, ByteCount(5000));
    let live: Vec<_> = (0..2)
        .map(|_| {
            client
                .map_single(lend(buffer), Direction::ToDevice)
                .unwrap()
        })
        .collect();
    let none = |slots| BounceError {
        len: ByteCount(5000),
        slots,
        chunks: Lack::Off,
        single_use: Lack::Off,
    };
    let refused = client.map_single(lend(buffer), Direction::FromDevice);
    assert_eq!(refused.unwrap_err(), DmaMapError::NoSpace(none(Lack::Full)));
    let large = PhysRange::new(memory, ByteCount(3 * 4096));
    let refused = client
        .map_single(lend(large), Direction::FromDevice)
        .unwrap_err();
    let too_large = BounceError {
        len: ByteCount(3 * 4096),
        ..none(Lack::TooLarge)
    };
    assert_eq!(refused, DmaMapError::NoSpace(too_large));
    // an optimisation goes without
    let other = rig.client(Placement::Below(ByteCount(1 << 20)));
    let mapping = other.map_single(lend(buffer), Direction::ToDevice).unwrap();
    assert!(!mapping.is_bounced());
    other.unmap(mapping).unwrap();
    let steps = rig.dma.usage()[0].steps;
    assert_eq!(
        (steps.of(Step::NoSpace), steps.of(Step::DirectAtLast)),
        (2, 1)
    );
    unmap_all(&client, live);
}

#[test]
fn a_slot_changes_its_permission_by_an_unmap() {
    let rig = Rig::new(small(on_demand(0, SingleUse::Never)));
    let client = rig.client(Placement::Always);
    let memory = rig.memory(1);
    rig.poke(memory, &[5; 4096]);
    let buffer = PhysRange::new(memory, ByteCount(4096));
    let map = |direction| client.map_single(lend(buffer), direction).unwrap();
    let all = |direction| -> Vec<_> { (0..4).map(|_| map(direction)).collect() };
    unmap_all(&client, all(Direction::ToDevice));
    let started = rig.domain.stats().invalidations;
    let received = all(Direction::FromDevice);
    assert!(
        rig.domain.stats().invalidations >= started + 4,
        "P1: revoked without a flush"
    );
    assert_eq!(rig.dma.usage()[0].steps.of(Step::Converted), 2);
    for mapping in &received {
        assert!(
            rig.device_read(mapping.iova(), 4096)
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(rig.device_write(mapping.iova(), &[1; 4096]), 4096, "P6");
    }
    unmap_all(&client, received);
    // and the lists stay apart
    let sent = map(Direction::ToDevice);
    assert_eq!(
        rig.device_write(sent.iova(), &[1]),
        0,
        "P6: a permission list was taken wrong"
    );
    client.unmap(sent).unwrap();
    rig.dma.audit().unwrap();
    rig.domain.audit().unwrap();
}

#[test]
fn idle_pools_give_their_memory_back() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::Always);
    let memory = rig.memory(16);
    // a mapping of the domain's own, so that the upper tables are there
    let other = rig.client(Placement::Never);
    let page = PhysRange::new(memory, ByteCount(4096));
    let kept = other.map_single(lend(page), Direction::ToDevice).unwrap();
    let before = rig.p.frames_in_use();
    for (pages, many) in [(1, 600), (2, 200), (5, 100), (16, 40)] {
        let buffer = PhysRange::new(memory, ByteCount(pages * 4096));
        let live: Vec<_> = (0..many)
            .map(|_| {
                client
                    .map_single(lend(buffer), Direction::FromDevice)
                    .unwrap()
            })
            .collect();
        unmap_all(&client, live);
    }
    let peak = rig.dma.usage()[0].memory;
    assert!(peak.0 > 1 << 20, "{peak}");
    rig.dma.tick(TimeNs(1));
    assert_eq!(
        rig.dma.usage()[0].memory,
        peak,
        "it was in use a moment ago"
    );
    for tick in 2..20 {
        rig.dma.tick(TimeNs(tick * 100_000_000));
    }
    let usage = &rig.dma.audit().unwrap()[0];
    assert_eq!(usage.memory, ByteCount(0));
    // all that there is now and was not before the pool: tables, numbers of frames, bookkeeping
    let frames = (rig.p.frames_in_use() - before) as u64;
    let left = (frames << 12) + usage.metadata.0;
    assert!(
        left < 64 << 10,
        "{frames} frames, and {} of bookkeeping",
        usage.metadata
    );
    // and it grows again
    let buffer = PhysRange::new(memory, ByteCount(4096));
    let mapping = client
        .map_single(lend(buffer), Direction::FromDevice)
        .unwrap();
    assert_eq!(rig.device_write(mapping.iova(), &[7; 4096]), 4096);
    client.unmap(mapping).unwrap();
    assert_eq!(rig.peek(memory, 4096), [7; 4096]);
    other.unmap(kept).unwrap();
    rig.domain.audit().unwrap();
}

#[test]
fn memory_that_a_pool_keeps_serves_where_there_is_no_other() {
    let rig = Rig::with(DmaConfig::default(), 80, DomainConfig::default());
    let client = rig.client(Placement::Always);
    let memory = rig.memory(1);
    let small = PhysRange::new(memory, ByteCount(4096));
    let mut live = Vec::new();
    while let Ok(mapping) = client.map_single(lend(small), Direction::ToDevice) {
        live.push(mapping);
    }
    assert!(live.len() > 40);
    unmap_all(&client, live);
    assert_eq!(rig.p.frames_in_use(), 80, "all of it is kept");
    let list = vec![small; 16];
    let mapping = client.map_sg(lend(list), Direction::ToDevice).unwrap();
    client.unmap(mapping).unwrap();
    rig.dma.audit().unwrap();
    rig.domain.audit().unwrap();
}

#[test]
fn a_pool_that_ends_gives_everything_back() {
    let rig = Rig::new(small(Growth::default()));
    let before = (rig.domain.stats().reserved, rig.domain.stats().live);
    let memory = rig.memory(8);
    let client = rig.client(Placement::Always);
    let mut alive = Vec::new();
    for len in [100, 5000, 20000, 4096, 4096, 4096] {
        let buffer = PhysRange::new(memory, ByteCount(len));
        let mapping = client
            .map_single(lend(buffer), Direction::Bidirectional)
            .unwrap();
        if len == 100 {
            alive.push(mapping);
        } else {
            client.unmap(mapping).unwrap();
        }
    }
    let at = alive[0].iova();
    assert!(rig.device_read(at, 1)[0].is_some());
    drop(client);
    let Rig { p, domain, dma } = rig;
    drop(std::sync::Arc::into_inner(dma).expect("the last"));
    assert_eq!((domain.stats().reserved, domain.stats().live), before);
    assert!(domain.translator().table().walk(&*p, at.page()).is_none());
    domain.audit().unwrap();
}

#[test]
fn whichever_allocation_fails_nothing_is_lost() {
    let lists: [&[u64]; 4] = [&[100], &[5000], &[9000, 70000], &[300_000]];
    for spare in 0..90 {
        let rig = Rig::with(small(Growth::default()), 140, DomainConfig::default());
        let memory = rig.memory(1);
        let client = rig.client(Placement::Always);
        let untrusted = rig.client(Placement::Untrusted {
            whole_up_to: ByteCount(0),
        });
        let mut hoard = Vec::new();
        while rig.p.frames() - rig.p.frames_in_use() > spare {
            use ioatlas_dma::platform::Platform;
            hoard.push(rig.p.frame_alloc().unwrap());
        }
        let mut live = Vec::new();
        for lens in lists {
            // lists name the same page repeatedly
            let list: Vec<_> = lens
                .iter()
                .flat_map(|len| {
                    vec![PhysRange::new(memory, ByteCount(4096)); *len as usize / 4096 + 1]
                })
                .collect();
            if let Ok(mapping) = client.map_sg(lend(list), Direction::Bidirectional) {
                live.push(mapping);
            }
        }
        let odd = PhysRange::new(PhysAddr(memory.0 + 5), ByteCount(4000));
        if let Ok(mapping) = untrusted.map_sg(lend(vec![odd]), Direction::ToDevice) {
            live.push(mapping);
        }
        rig.dma.audit().unwrap();
        rig.domain.audit().unwrap();
        let taken = live.len();
        unmap_all(&client, live);
        let usage = &rig.dma.audit().unwrap()[0];
        let left = usage
            .classes
            .iter()
            .map(|(_, slots)| slots.taken)
            .sum::<u64>();
        assert_eq!(
            (left, usage.chunks.taken.0),
            (0, 0),
            "P10 with {spare} frames, {taken} mapped"
        );
        rig.domain.audit().unwrap();
        let (p, domain) = (rig.p.clone(), rig.domain.clone());
        drop((client, untrusted, rig));
        assert_eq!(domain.stats().reserved.0, 0);
        drop(domain); // tables return too
        assert_eq!(
            p.frames_in_use(),
            hoard.len() + 1,
            "P10: frames, with {spare} spare"
        );
    }
}

#[test]
fn a_fixed_pool_neither_maps_nor_starves_another() {
    let rig = Rig::new(DmaConfig::default());
    let pool = PoolConfig::of(ClassConfig {
        pages_lg2: 0,
        slots: 4,
    })
    .growth(Growth::Fixed);
    let config = ClientConfig::default().placement(Placement::Always);
    let busy = rig.dma.client_with_pool(config, &pool).unwrap();
    let quiet = rig.dma.client_with_pool(config, &pool).unwrap();
    let memory = rig.memory(1);
    rig.poke(memory, &[3; 4096]);
    let buffer = PhysRange::new(memory, ByteCount(4000));
    let started = rig.domain.stats();
    let mut taken = Vec::new();
    while let Ok(mapping) = busy.map_single(lend(buffer), Direction::ToDevice) {
        taken.push(mapping);
    }
    assert_eq!(taken.len(), 4);
    for direction in [
        Direction::FromDevice,
        Direction::ToDevice,
        Direction::Bidirectional,
    ] {
        let mapping = quiet.map_single(lend(buffer), direction).unwrap();
        let seen = rig.device_read(mapping.iova(), 4096);
        let own = if direction == Direction::FromDevice {
            0
        } else {
            3
        };
        assert!(seen[..4000].iter().all(|byte| *byte == Some(own)), "P7");
        assert!(
            seen[4000..].iter().all(|byte| *byte == Some(0)),
            "P7: padding"
        );
        rig.device_write(mapping.iova(), &[8; 4096]);
        // another's token is not taken
        let back = busy.unmap(mapping);
        let Err(DmaUnmapError::Foreign(mapping)) = back else {
            panic!("{back:?}");
        };
        quiet.unmap(*mapping).unwrap();
        let back = rig.peek(memory, 4000);
        let expected = if direction == Direction::ToDevice {
            3
        } else {
            8
        };
        let first = if own == 0 { 8 } else { expected };
        assert!(back.iter().all(|byte| *byte == first));
        rig.poke(memory, &[3; 4096]);
    }
    assert_eq!(
        rig.domain.stats(),
        started,
        "no map, no unmap, no invalidation"
    );
    unmap_all(&busy, taken);
    rig.dma.audit().unwrap();
}

#[test]
fn shares_of_one_budget_have_their_minimum_and_borrow_the_rest() {
    let rig = Rig::new(DmaConfig::default());
    let slots = |slots| {
        vec![ClassConfig {
            pages_lg2: 0,
            slots,
        }]
    };
    let config = ClientConfig::default().placement(Placement::Always);
    let budget = SharesConfig::new(ByteCount(10 << 12), slots(4));
    let shares = rig.dma.shares(budget).unwrap();
    let before = rig.domain.stats();
    let busy = shares.client(config, slots(3)).unwrap();
    let quiet = shares.client(config, slots(3)).unwrap();
    let refused = shares.client(config, slots(1)).err().unwrap();
    let none = PoolError::Budget {
        wanted: ByteCount(4096),
        left: ByteCount(0),
    };
    assert_eq!(refused, none);
    assert_eq!(rig.domain.stats().live.0 - before.live.0, 6);
    let memory = rig.memory(1);
    rig.poke(memory, &[3; 4096]);
    let buffer = PhysRange::new(memory, ByteCount(4096));
    let all = |client: &Client<_, _>| {
        let map = || client.map_single(lend(buffer), Direction::Bidirectional);
        std::iter::from_fn(|| map().ok()).collect::<Vec<_>>()
    };
    let mut taken = all(&busy);
    assert_eq!(taken.len(), 3 + 4, "its own, and the rest");
    let mut own = all(&quiet);
    assert_eq!(own.len(), 3, "a busy device starves another");
    for mapping in taken.iter().chain(&own) {
        assert_eq!(rig.device_write(mapping.iova(), &[8; 4096]), 4096);
    }
    let steps: Vec<u64> = rig
        .dma
        .usage()
        .iter()
        .map(|pool| pool.steps.of(Step::Borrowed))
        .collect();
    assert_eq!(steps, [0, 4, 0]);
    // what is given back can be borrowed by the other
    busy.unmap(taken.pop().unwrap()).unwrap();
    assert_eq!(rig.peek(memory, 4096), [8; 4096]);
    own.extend(all(&quiet));
    assert_eq!(own.len(), 4);
    assert!(
        own.iter()
            .all(|one| taken.iter().all(|two| one.iova() != two.iova()))
    );
    unmap_all(&busy, taken);
    unmap_all(&quiet, own);
    assert_eq!(
        rig.domain.stats().maps,
        before.maps + 6,
        "no map on the way"
    );
    let taken = |usage: &PoolUsage| {
        usage
            .classes
            .iter()
            .map(|(_, slots)| slots.taken)
            .sum::<u64>()
    };
    assert_eq!(rig.dma.audit().unwrap().iter().map(taken).sum::<u64>(), 0);
    // in whatever order they end
    let (p, domain) = (rig.p.clone(), rig.domain.clone());
    drop((rig, busy, shares, quiet));
    assert_eq!(domain.stats().reserved, PageCount(0));
    drop(domain);
    assert_eq!(p.frames_in_use(), 1);
}
