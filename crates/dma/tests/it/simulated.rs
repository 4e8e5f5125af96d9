// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The core on two virtual CPUs, and an unmap that interrupts a map at each of its points in turn.

use ioatlas_dma::{
    domain::{
        AllocatorConfig, DeferredConfig, Domain, DomainConfig, MacOsConfig, MapError, Mapping,
        PolicyConfig,
    },
    iova::{BackingConfig, MagazineConfig},
    table::{TableConfig, fmt::Toy},
    translator::{Paged, Translator, Uncached},
    units::*,
};
use ioatlas_sim::platform::{
    DeliveryPoint, Interrupt, Schedule, Sim, SimConfig, World, YieldPoint, inspect,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

fn sticky(seed: u64) -> Schedule {
    Schedule::Sticky {
        seed,
        switch_one_in: 4,
    }
}

fn bounded(seed: u64) -> Schedule {
    Schedule::Bounded {
        seed,
        preemptions: 2,
    }
}

/// Four entries, three levels: 64 pages, tables of four leaves.
type Small = Domain<Sim, Paged<Sim, Toy<2, 3>, Uncached<Sim>>>;

fn domain(allocator: AllocatorConfig, policy: PolicyConfig) -> Small {
    let p = Arc::new(Sim::new(SimConfig::default()));
    let translator =
        Paged::new(&p, Uncached::new(), TableConfig::default()).expect("a frame for the root");
    Domain::new(p, translator, DomainConfig::new(allocator, policy)).expect("within the aperture")
}

fn designs() -> impl Iterator<Item = (AllocatorConfig, PolicyConfig)> {
    let magazine = AllocatorConfig::Magazine(
        MagazineConfig::DEFAULT
            .magazine_len(2)
            .classes(4)
            .run(2)
            .depot_full_max(2)
            .backing(BackingConfig::Rbtree),
    );
    let deferred = DeferredConfig::default().batch(3);
    let policies = [
        PolicyConfig::Strict,
        PolicyConfig::FreeBsd,
        PolicyConfig::DeferredPerCpu(deferred),
        PolicyConfig::DeferredGlobal(deferred),
        PolicyConfig::MacOs(MacOsConfig::default().depth(2)),
        PolicyConfig::Solaris,
    ];
    [AllocatorConfig::RBTREE, magazine]
        .into_iter()
        .flat_map(move |a| policies.map(|policy| (a, policy)))
}

fn map(domain: &Small, first: u64, pages: u64) -> Result<Mapping, MapError> {
    let len = ByteCount(pages * GRANULE);
    let buffer = PhysRange::new(PhysPage(first).addr(), len);
    domain.map(buffer, Direction::Bidirectional)
}

/// Every page of the mapping translates to its own.
fn check(domain: &Small, mapping: &Mapping, first: u64) {
    inspect(|| {
        let at = mapping.iova().page().0;
        for i in 0..mapping.len().0 / GRANULE {
            let to = domain
                .translator()
                .table()
                .walk(domain.platform(), IovaPage(at + i));
            assert_eq!(to, Some((PhysPage(first + i), Perm::ReadWrite)));
        }
    });
}

fn nothing_is_lost(domain: Small) {
    let p = domain.platform().clone();
    domain.flush().expect("this unit does not fail");
    let audit = domain.audit().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(audit.census.pages, PageCount(0));
    assert_eq!(audit.usage.allocated, PageCount(0));
    assert_eq!(audit.census.frames, p.frames_in_use() as u64);
    domain.close().expect("this unit does not fail");
    assert_eq!(p.frames_in_use(), 0);
}

#[test]
fn two_cpus_map_and_unmap_under_many_schedules() {
    for (allocator, policy) in designs() {
        let mut traces = HashSet::new();
        for schedule in (0..60).flat_map(|seed| [sticky(seed), bounded(seed)]) {
            let domain = domain(allocator, policy);
            let body = |cpu: u64| {
                for round in 0..4 {
                    let first = 1000 * (cpu + 1) + 10 * round;
                    let [one, two] = [(first, 3), (first + 5, 4)]
                        .map(|(first, pages)| (first, map(&domain, first, pages).expect("room")));
                    for (first, mapping) in [one, two] {
                        check(&domain, &mapping, first);
                        domain.unmap(mapping).expect("this unit does not fail");
                    }
                }
            };
            let outcome = World::new(schedule).cpu(|| body(0)).cpu(|| body(1)).run();
            traces.insert(outcome.trace);
            nothing_is_lost(domain);
        }
        let (a, p) = (allocator.name(), policy.name());
        println!("{a}, {p}: {} distinct interleavings of 120", traces.len());
        assert!(traces.len() > 60);
    }
}

/// What the interrupted map maps: more than one leaf table holds.
const PAGES: u64 = 6;
/// Which frame allocation is that for its second leaf table: after one middle and one leaf table.
const SECOND_LEAF_TABLE: u64 = 3;

/// Maps [`PAGES`] pages, for which the frames may run out, interrupted at every point in turn by an
/// unmap.
///
/// Returns where the interrupts were delivered, with how many of the pages had a translation there.
fn interrupted_map(
    allocator: AllocatorConfig,
    policy: PolicyConfig,
    fail_frame_at: Option<u64>,
) -> Vec<(DeliveryPoint, u64)> {
    let mut delivered = Vec::new();
    for at_access in 1.. {
        let domain = domain(allocator, policy);
        let p = domain.platform().clone();
        // at the other end of the aperture, so that unmapping it early does not change where the
        // map goes
        let buffer = PhysRange::page(PhysPage(500));
        let victim = domain.map_at(Iova(0), buffer, Direction::ToDevice);
        let victim = RefCell::new(Some(victim.expect("room")));
        if let Some(nth) = fail_frame_at {
            p.fail_frame_alloc_at(nth);
        }
        let installed = RefCell::new(None);
        let handler = || {
            let of_the_map = |at: &u64| {
                let page = domain.translator().table().walk(&p, IovaPage(*at));
                page.is_some_and(|(to, _)| (700..700 + PAGES).contains(&to.0))
            };
            let pages = domain.translator().aperture().pages.0;
            let count = inspect(|| (0..pages).filter(of_the_map).count());
            *installed.borrow_mut() = Some(count as u64);
            let victim = victim.take().expect("one interrupt");
            domain.unmap(victim).expect("this unit does not fail");
        };
        let outcome = World::new(bounded(0))
            .cpu(|| match (map(&domain, 700, PAGES), fail_frame_at) {
                (Ok(mapping), None) => {
                    check(&domain, &mapping, 700);
                    domain.unmap(mapping).expect("this unit does not fail");
                }
                (Err(MapError::Install(error)), Some(_)) => {
                    assert_eq!(error.done, PageCount(4), "one leaf table was filled");
                }
                other => panic!("{other:?}"),
            })
            .interrupt(Interrupt {
                cpu: CpuIndex(0),
                at_access,
                handler: Box::new(handler),
            })
            .run();
        let end = victim.take().map(|mapping| domain.unmap(mapping));
        assert!(end.is_none_or(|unmapped| unmapped.is_ok()));
        nothing_is_lost(domain);
        let Some(at) = outcome.delivered_at() else {
            return delivered;
        };
        delivered.push((at, installed.take().expect("the handler ran")));
    }
    unreachable!()
}

/// Distinct places, by the file of the core in which they are.
fn places(
    delivered: &[(DeliveryPoint, u64)],
) -> BTreeMap<&'static str, HashSet<(u32, YieldPoint)>> {
    let mut places: BTreeMap<_, HashSet<_>> = BTreeMap::new();
    for (at, _) in delivered {
        let (_, file) = at
            .location
            .file()
            .rsplit_once("src/")
            .expect("a file of the core");
        places
            .entry(file)
            .or_default()
            .insert((at.location.line(), at.point));
    }
    places
}

#[test]
fn an_unmap_may_interrupt_a_map_anywhere() {
    for (allocator, policy) in designs() {
        let whole = interrupted_map(allocator, policy, None);
        let places_of_map = places(&whole);
        let distinct: usize = places_of_map.values().map(HashSet::len).sum();
        let (a, p) = (allocator.name(), policy.name());
        println!(
            "{a}, {p}: {} deliveries, {distinct} distinct points",
            whole.len()
        );
        for (file, points) in &places_of_map {
            println!("  {file}: {}", points.len());
        }
        assert!(distinct >= 15, "{places_of_map:?}");
        assert!(
            places_of_map["table/install.rs"].len() >= 3,
            "between allocate and install"
        );
        let counts: HashSet<u64> = whole.iter().map(|(_, pages)| *pages).collect();
        assert_eq!(counts, (0..=PAGES).collect(), "between any two leaves");
    }
}

#[test]
fn an_unmap_may_interrupt_the_undoing_of_a_map() {
    for (allocator, policy) in designs() {
        let undone = interrupted_map(allocator, policy, Some(SECOND_LEAF_TABLE));
        let places = places(&undone);
        let (a, p) = (allocator.name(), policy.name());
        let distinct: usize = places.values().map(HashSet::len).sum();
        println!(
            "{a}, {p}: {} deliveries, {distinct} distinct points",
            undone.len()
        );
        for (file, points) in &places {
            println!("  {file}: {}", points.len());
        }
        let counts_in = |file: &str| -> HashSet<u64> {
            let there = undone
                .iter()
                .filter(|(at, _)| at.location.file().ends_with(file));
            there.map(|(_, pages)| *pages).collect()
        };
        assert!(
            counts_in("table/clear.rs").contains(&4),
            "before what was written is cleared"
        );
        // a deferred policy retires under the lock of its queue, where nothing interrupts; so
        // before and after
        let retires = match policy {
            PolicyConfig::DeferredPerCpu(_) | PolicyConfig::DeferredGlobal(_) => {
                "policy/deferred.rs"
            }
            _ => "invalidation/mod.rs",
        };
        assert_eq!(counts_in(retires), [0].into(), "retired once it is cleared");
        assert!(places[retires].len() >= 2, "{places:?}");
    }
}

#[test]
fn no_frame_is_freed_under_a_lock() {
    const FRAMES: u64 = 3;
    // two buffers: their frames, and an allocation each
    let deferred = DeferredConfig::default().batch(2 * (FRAMES as u32 + 1));
    let magazine = AllocatorConfig::Magazine(MagazineConfig::default());
    let mut freed = Vec::new();
    for at_access in 1.. {
        let domain = domain(magazine, PolicyConfig::DeferredPerCpu(deferred));
        let alloc = || domain.alloc_consistent(ByteCount(FRAMES * GRANULE));
        let both = [alloc(), alloc()];
        let outcome = World::new(bounded(0))
            .cpu(|| {
                for memory in both {
                    let freed = domain.free_consistent(memory.expect("room"));
                    freed.expect("this unit does not fail");
                }
            })
            .interrupt(Interrupt {
                cpu: CpuIndex(0),
                at_access,
                handler: Box::new(|| ()),
            })
            .run();
        nothing_is_lost(domain);
        let Some(at) = outcome.delivered_at() else {
            break;
        };
        freed.extend((at.point == YieldPoint::FrameFree).then_some(at.cpu_access));
    }
    // an interrupt comes in at each of them: none has it masked, as all locks do
    freed.dedup();
    assert_eq!(freed.len() as u64, 2 * FRAMES);
}
