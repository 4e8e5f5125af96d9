// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The whole of map, unmap and flush on a domain of four pages. Map and unmap with at most three
//! preemptions, the rest unbounded.

use crate::loom::{
    Counter, explore,
    platform::{Loom, Tiny, on_cpu_1},
    unit::{After, PAGES, Unit},
};
use ioatlas_dma::{
    domain::{
        AllocatorConfig, DeferredConfig, Domain, DomainConfig, MacOsConfig, Mapping, PolicyConfig,
    },
    iova::{BackingConfig, MagazineConfig},
    table::TableConfig,
    translator::Paged,
    units::*,
};
use std::sync::Arc;

pub type Tiniest = Domain<Loom, Paged<Loom, Tiny, Arc<Unit>>>;

const DEVICE: SourceId = SourceId(8);
/// One root, two leaf tables, and one for the loser of a race.
const FRAMES: u64 = 4;

pub fn domain(
    allocator: AllocatorConfig,
    policy: PolicyConfig,
    after: After,
) -> (Arc<Tiniest>, Arc<Unit>) {
    let p = Arc::new(Loom::new(FRAMES));
    let unit = Arc::new(Unit::new(p.clone(), after));
    let paged = Paged::new(&p, unit.clone(), TableConfig::default()).expect("a frame for the root");
    // each word of a chunk has a history here
    let config = DomainConfig::new(allocator, policy).chunks_per_cpu(0);
    let domain = Domain::new(p, paged, config).expect("within the aperture");
    domain.attach(DEVICE).expect("this unit takes any device");
    (Arc::new(domain), unit)
}

fn small_magazines() -> AllocatorConfig {
    AllocatorConfig::Magazine(
        MagazineConfig::DEFAULT
            .magazine_len(1)
            .classes(1)
            .run(1)
            .depot_full_max(1)
            .backing(BackingConfig::Rbtree),
    )
}

pub fn map(domain: &Tiniest, page: u64) -> Mapping {
    let buffer = PhysRange::page(PhysPage(page));
    let mapping = domain.map(buffer, Direction::ToDevice);
    mapping.expect("four pages are enough")
}

/// Each CPU maps; one unmaps again. A device reads everywhere meanwhile.
fn map_and_unmap(name: &str, allocator: AllocatorConfig) {
    let (before, between) = (Counter::default(), Counter::default());
    let counters = (before.clone(), between.clone());
    explore(name, Some(3), move || {
        let (domain, unit) = domain(allocator, PolicyConfig::Strict, After::Idle);
        let device = {
            let unit = unit.clone();
            loom::thread::spawn(move || unit.access(IovaPage(PAGES - 1)))
        };
        let other = {
            let (domain, unit) = (domain.clone(), unit.clone());
            on_cpu_1(move || {
                let kept = map(&domain, 101);
                let at = kept.iova().page();
                assert_eq!(unit.access(at), Some(PhysPage(101)), "mapped (P14)");
                kept
            })
        };
        let mapping = map(&domain, 100);
        let at = mapping.iova().page();
        domain.unmap(mapping).expect("this unit does not fail");
        assert_ne!(unit.access(at), Some(PhysPage(100)), "unmapped (P1)");
        match device.join().unwrap() {
            None => counters.0.add(),
            Some(PhysPage(100)) => counters.1.add(),
            seen => assert_eq!(seen, Some(PhysPage(101)), "what was mapped"),
        }
        let kept = other.join().unwrap();
        assert_eq!(unit.access(kept.iova().page()), Some(PhysPage(101)));
        let audit = domain.audit().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(audit.census.pages, PageCount(1));
        assert_eq!(
            audit.census.frames,
            domain.platform().frames_in_use() as u64
        );
    });
    println!(
        "the device saw nothing in {}, the mapping in {}",
        before.get(),
        between.get()
    );
    assert!(before.get() > 0 && between.get() > 0, "both must be seen");
}

#[test]
fn map_and_unmap_over_the_tree() {
    map_and_unmap("map, unmap (rbtree)", AllocatorConfig::RBTREE);
}

#[test]
fn map_and_unmap_over_magazines() {
    map_and_unmap("map, unmap (magazine)", small_magazines());
}

/// A deferred unmap against another CPU's flush, which an earlier unmap makes necessary, under a
/// unit that reads everything again as soon as it has invalidated. What has are freed must be in no
/// cache.
#[test]
fn unmap_against_a_flush_of_another_cpu() {
    let (origin, held) = (Counter::default(), Counter::default());
    let counters = (origin.clone(), held.clone());
    explore("unmap, flush (deferred)", None, move || {
        let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default().batch(4));
        let (domain, unit) = domain(AllocatorConfig::RBTREE, policy, After::Prefetch);
        let (earlier, mapping) = (map(&domain, 101), map(&domain, 100));
        let at = mapping.iova().page();
        assert_eq!(unit.access(at), Some(PhysPage(100)));
        domain.unmap(earlier).expect("nothing is flushed here");
        let flusher = {
            let domain = domain.clone();
            on_cpu_1(move || domain.flush().expect("this unit does not fail"))
        };
        domain.unmap(mapping).expect("nothing is flushed here");
        flusher.join().unwrap();
        match domain.stats().retired.pages {
            PageCount(0) => {
                counters.0.add();
                assert_eq!(unit.cached(at), None, "was freed over the old entry (P2)");
            }
            later => {
                counters.1.add();
                assert_eq!(later, PageCount(1), "the earlier one was freed");
            }
        }
        domain.audit().unwrap_or_else(|why| panic!("{why}"));
    });
    println!("was freed in {}, held in {}", origin.get(), held.get());
    assert!(origin.get() > 0 && held.get() > 0, "both must be seen");
}

/// Two CPUs end what shares a table, each waiting for its own invalidation.
#[test]
fn unmap_against_unmap() {
    explore("unmap, unmap (strict)", None, || {
        let (domain, unit) = domain(
            AllocatorConfig::RBTREE,
            PolicyConfig::Strict,
            After::Prefetch,
        );
        let [one, two] = [100, 101].map(|page| map(&domain, page));
        let pages = [&one, &two].map(|mapping| mapping.iova().page());
        let _ = pages.map(|at| unit.access(at)); // both are cached now
        let other = {
            let (domain, unit) = (domain.clone(), unit.clone());
            on_cpu_1(move || {
                domain.unmap(two).expect("this unit does not fail");
                assert_eq!(unit.access(pages[1]), None, "unmapped (P1)");
            })
        };
        domain.unmap(one).expect("this unit does not fail");
        assert_eq!(unit.access(pages[0]), None, "unmapped (P1)");
        other.join().unwrap();
        let audit = domain.audit().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(audit.census.pages, PageCount(0));
    });
}

/// A map that another CPU's unmap races with under the policy that flushes at map: what was kept is
/// flushed before it is used again, by whichever map takes it.
#[test]
fn maps_take_what_unmaps_keep() {
    let (reused, fresh) = (Counter::default(), Counter::default());
    let counters = (reused.clone(), fresh.clone());
    explore("map, unmap (solaris)", None, move || {
        let (domain, unit) = domain(
            AllocatorConfig::RBTREE,
            PolicyConfig::Solaris,
            After::Prefetch,
        );
        let mapping = map(&domain, 100);
        let at = mapping.iova().page();
        assert_eq!(unit.access(at), Some(PhysPage(100)));
        let other = {
            let (domain, unit) = (domain.clone(), unit.clone());
            on_cpu_1(move || {
                let next = map(&domain, 101);
                let here = next.iova().page();
                assert_eq!(unit.access(here), Some(PhysPage(101)), "mapped (P9, P14)");
                here
            })
        };
        domain.unmap(mapping).expect("this unit does not fail");
        match other.join().unwrap() == at {
            true => counters.0.add(),
            false => counters.1.add(),
        }
        domain.audit().unwrap_or_else(|why| panic!("{why}"));
    });
    println!("reused in {}, fresh in {}", reused.get(), fresh.get());
    assert!(reused.get() > 0 && fresh.get() > 0, "both must be seen");
}

/// Two CPUs start invalidations of their own and collect each other's, in a queue of one.
#[test]
fn unmaps_collect_each_others_completions() {
    explore("unmap, unmap (macos)", None, || {
        let policy = PolicyConfig::MacOs(MacOsConfig::default().depth(1));
        let (domain, unit) = domain(AllocatorConfig::RBTREE, policy, After::Prefetch);
        let [one, two] = [100, 101].map(|page| map(&domain, page));
        let pages = [&one, &two].map(|mapping| mapping.iova().page());
        let _ = pages.map(|at| unit.access(at)); // both are cached now
        let other = {
            let domain = domain.clone();
            on_cpu_1(move || domain.unmap(two).expect("this unit does not fail"))
        };
        domain.unmap(one).expect("this unit does not fail");
        other.join().unwrap();
        // this unit is done at once
        assert_eq!(pages.map(|at| unit.cached(at)), [None, None]);
        let held = domain.stats().retired.pages;
        assert_eq!(held, PageCount(1), "the later freed the earlier");
        domain.audit().unwrap_or_else(|why| panic!("{why}"));
    });
}
