// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domains whose page numbers come from a heap that others use.

use ioatlas_dma::{
    domain::*,
    iova::{AllocatorError, Limits},
    platform::{Heap, HeapBlock, Platform},
    table::{
        Format, TableConfig,
        fmt::{VtdSecond39, VtdSecond48},
    },
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig, register};
use std::sync::Arc;

type Dom<F = VtdSecond48> = Domain<Host, Paged<Host, F, Uncached<Host>>>;

fn deferred() -> PolicyConfig {
    PolicyConfig::DeferredPerCpu(DeferredConfig::default())
}

fn try_domain<F: Format>(heap: Option<u64>, policy: PolicyConfig) -> Result<Dom<F>, DomainError> {
    let host = Host::new(HostConfig::default().frames(4096).slots(8));
    let host = match heap {
        Some(arena) => host.with_heap(ByteCount(arena)).expect("room"),
        None => host,
    };
    let host = Arc::new(host);
    let tables = Paged::new(&host, Uncached::new(), TableConfig::default()).expect("a root");
    Domain::new(host, tables, DomainConfig::new(kmalloc(), policy))
}

fn kmalloc() -> AllocatorConfig {
    AllocatorConfig::Kmalloc(Default::default())
}

fn domain(heap: u64, policy: PolicyConfig) -> Dom {
    try_domain(Some(heap), policy).expect("it fits")
}

fn heap(domain: &Dom) -> &dyn Heap {
    domain.platform().heap().expect("as configured")
}

fn page(n: u64) -> PhysRange {
    PhysRange::page(PhysPage(n))
}

fn assert_empty(domain: &Dom, others: u64) {
    domain.flush().expect("a flush");
    let audit = domain.audit().unwrap_or_else(|what| panic!("P10: {what}"));
    let usage = audit.usage;
    assert_eq!((usage.allocated.0, usage.others.0), (0, others));
    assert_eq!(heap(domain).in_use(), ByteCount(others));
}

#[test]
fn mappings_are_blocks_of_the_heap() {
    for policy in [PolicyConfig::Strict, deferred()] {
        let domain = domain(1 << 20, policy);
        let theirs = heap(&domain).alloc(ByteCount(100)).unwrap();
        let mut held = Vec::new();
        for nth in 0..100u64 {
            let mapping = match nth % 3 {
                0 => domain.map(page(nth), Direction::ToDevice),
                1 => domain.map_list(&[page(7), page(3), page(nth)], Direction::FromDevice),
                _ => {
                    let buffer = PhysRange::new(PhysAddr(nth << 12 | 0xff0), ByteCount(20 << 12));
                    domain.map(buffer, Direction::Bidirectional)
                }
            };
            held.push(mapping.unwrap());
        }
        let audit = domain.audit().unwrap();
        assert_eq!(audit.usage.others, PageCount(128));
        assert!(
            audit.usage.allocated > audit.stats.live,
            "rounded up to a block"
        );
        for (nth, mapping) in held.into_iter().enumerate() {
            if nth % 2 == 0 {
                domain.unmap(mapping).unwrap();
            } else {
                let (iova, len) = domain.into_raw(mapping).unwrap();
                domain.unmap_raw(iova, len).unwrap();
            }
        }
        assert_empty(&domain, 128);
        heap(&domain).free(theirs).unwrap();
        assert_empty(&domain, 0);
    }
}

/// While an unmapped range waits for its flush its block is not free, whatever asks for it.
#[test]
fn a_block_is_not_given_before_its_flush() {
    let domain = domain(1024, deferred());
    let mapping = domain.map(page(1), Direction::ToDevice).unwrap();
    let at = mapping.range();
    domain.unmap(mapping).unwrap();
    let theirs: Vec<_> = std::iter::from_fn(|| heap(&domain).alloc(ByteCount(8))).collect();
    let taken = |block: &HeapBlock| block.offset.0 == at.first.0;
    assert!(!theirs.iter().any(taken), "P3: {at}");
    domain.flush().unwrap();
    assert_eq!(
        heap(&domain).alloc(ByteCount(8)).map(|b| b.offset.0),
        Some(at.first.0)
    );
}

#[test]
fn a_requester_that_finds_no_block_drains_what_is_retired() {
    let domain = domain(64 << 3, deferred());
    for _ in 0..3 {
        // offset 0 is never allocated
        let held: Vec<_> = (0..63)
            .map(|nth| domain.map(page(nth), Direction::ToDevice).unwrap())
            .collect();
        held.into_iter()
            .for_each(|mapping| domain.unmap(mapping).unwrap());
    }
    assert!(domain.stats().retired.pages.0 > 0);
    assert_empty(&domain, 0);
    let all = heap(&domain).alloc(ByteCount(256)).unwrap();
    let rest = heap(&domain).alloc(ByteCount(128)).unwrap();
    let held: Vec<_> =
        std::iter::from_fn(|| domain.map(page(1), Direction::ToDevice).ok()).collect();
    assert_eq!(held.len(), 15);
    let error = domain.map(page(1), Direction::ToDevice).unwrap_err();
    let MapError::NoIova(numbers) = error else {
        panic!("{error}")
    };
    assert_eq!(
        (numbers.wanted, numbers.aperture),
        (PageCount(8), PageCount(1 << 36))
    );
    [all, rest]
        .into_iter()
        .for_each(|block| heap(&domain).free(block).unwrap());
    held.into_iter()
        .for_each(|mapping| domain.unmap(mapping).unwrap());
    assert_empty(&domain, 0);
}

#[test]
fn chosen_addresses_and_limits_lie_beyond_the_arena() {
    let domain = domain(4096, PolicyConfig::Strict);
    let window = IovaPage(0xfee00).addr();
    let fixed = domain.map_at(window, page(7), Direction::ToDevice).unwrap();
    let inside = domain
        .map_at(IovaPage(100).addr(), page(7), Direction::ToDevice)
        .unwrap();
    let attrs = MapAttrs::default().limits(Limits::NONE.align_lg2(12));
    let aligned = domain
        .map_with(page(3), Direction::ToDevice, attrs)
        .unwrap();
    assert!(aligned.range().first.0 >= 4096 && aligned.range().first.0.is_multiple_of(4096));
    assert_eq!(domain.usage().diverted, 2);
    // the arena has an allocation now: of what, nothing tells
    let block = domain.map(page(9), Direction::ToDevice).unwrap();
    let error = domain.map_at(IovaPage(1000).addr(), page(7), Direction::ToDevice);
    assert!(matches!(error, Err(MapError::NoReserve(_))));
    domain.audit().unwrap();
    for mapping in [fixed, inside, aligned, block] {
        let (iova, len) = domain.into_raw(mapping).unwrap();
        domain.unmap_raw(iova, len).unwrap();
    }
    assert_empty(&domain, 0);
}

/// The heap is shared, so it outlives the domain.
#[test]
fn what_is_mapped_still_goes_back_to_the_heap_when_its_domain_ends() {
    for policy in [PolicyConfig::Strict, PolicyConfig::Solaris, deferred()] {
        let domain = domain(1 << 16, policy);
        let host = domain.platform().clone();
        let theirs = Heap::alloc(&*host, ByteCount(24)).unwrap();
        for nth in 0..40 {
            let len = ByteCount((1 + nth % 20) << 12);
            let buffer = PhysRange::new(PhysAddr(nth << 12), len);
            let mapping = domain.map(buffer, Direction::ToDevice).unwrap();
            match nth % 4 {
                0 => domain.unmap(mapping).unwrap(),
                1 => drop(domain.into_raw(mapping).unwrap()),
                _ => drop(mapping),
            }
        }
        // beyond the arena: the domain's own
        let fixed = domain.map_at(Iova(1 << 30), page(3), Direction::ToDevice);
        drop(fixed.unwrap());
        assert!(host.in_use() > theirs.len);
        domain.close().unwrap();
        assert_eq!(host.in_use(), theirs.len, "{policy:?}");
    }
}

#[test]
fn an_arena_is_at_most_a_byte_for_each_page() {
    let refused = |domain: Result<Dom<VtdSecond39>, DomainError>| match domain {
        Err(DomainError::Allocator(why)) => why,
        Err(why) => panic!("{why}"),
        Ok(_) => panic!("it was made"),
    };
    let limit = ByteCount(128 << 20);
    let arena = ByteCount(256 << 20);
    let strict = PolicyConfig::Strict;
    let error = refused(try_domain(Some(arena.0), strict));
    assert_eq!(error, AllocatorError::KmallocArena { arena, limit });
    assert_eq!(refused(try_domain(None, strict)), AllocatorError::NoHeap);
    // all of the aperture: the fallback has nothing
    let domain = try_domain::<VtdSecond39>(Some(limit.0), strict).unwrap();
    let mapping = domain.map(page(1), Direction::ToDevice).unwrap();
    let end = IovaPage((1 << 27) - 1).addr();
    let error = domain
        .map_at(end, page(1), Direction::ToDevice)
        .unwrap_err();
    assert!(matches!(error, MapError::NoReserve(_)), "{error}");
    domain.unmap(mapping).unwrap();
    domain.audit().unwrap();
}

#[test]
fn threads_map_while_others_allocate() {
    for policy in [PolicyConfig::Strict, deferred()] {
        let domain = domain(1 << 16, policy);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let domain = &domain;
                scope.spawn(move || {
                    register();
                    let mut held = Vec::new();
                    for step in 0..3000 {
                        let buffer =
                            PhysRange::new(PhysPage(step).addr(), ByteCount((step % 40 + 1) << 12));
                        held.push(domain.map(buffer, Direction::ToDevice).unwrap());
                        if held.len() > 20 {
                            domain
                                .unmap(held.swap_remove((step * 7 + thread) as usize % 20))
                                .unwrap();
                        }
                    }
                    held.into_iter()
                        .for_each(|mapping| domain.unmap(mapping).unwrap());
                });
            }
            let domain = &domain;
            scope.spawn(move || {
                let mut held = Vec::new();
                for step in 0..6000u64 {
                    held.extend(heap(domain).alloc(ByteCount(8 << (step % 6))));
                    if held.len() > 30 {
                        let block = held.swap_remove((step * 5) as usize % 30);
                        heap(domain).free(block).unwrap();
                    }
                }
                held.into_iter()
                    .for_each(|block| heap(domain).free(block).unwrap());
            });
        });
        assert_empty(&domain, 0);
    }
}
