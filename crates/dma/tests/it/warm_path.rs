// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A warm map and unmap calls no allocator, in any design.

use crate::allocators::counting::calls;
use ioatlas_dma::{
    design::policies,
    domain::*,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::{collections::VecDeque, sync::Arc};

pub type Dom = Domain<Host, Paged<Host, VtdSecond48, Uncached<Host>>>;

/// On a host with a heap for `kmalloc`.
pub fn domain(allocator: AllocatorConfig, policy: PolicyConfig) -> Dom {
    let host = Host::new(HostConfig::default().frames(4096).slots(2));
    let host = Arc::new(host.with_heap(ByteCount(1 << 20)).expect("room"));
    let tables = Paged::new(&host, Uncached::new(), TableConfig::default()).expect("a root");
    Domain::new(host, tables, DomainConfig::new(allocator, policy)).expect("within the aperture")
}

/// Maps and unmaps `pairs` times with a ring outstanding: single pages and lists of three, through
/// both interfaces, and now and then many at once.
fn traffic(domain: &Dom, ring: &mut VecDeque<Mapping>, pairs: u64) {
    for i in 0..pairs {
        if i % 500 == 0 {
            let many = ring.len().min(100);
            let ended = domain.unmap_batch(&mut ring.drain(..many));
            ended.expect("live mappings");
        }
        if ring.len() == 200 {
            let oldest = ring.pop_front().expect("200 of them");
            if i % 2 == 0 {
                domain.unmap(oldest).expect("a live mapping");
            } else {
                let ended = match domain.into_raw(oldest) {
                    Ok((iova, len)) => domain.unmap_raw(iova, len),
                    Err(UnmapError::SharedLeaves(token)) => domain.unmap(token),
                    Err(error) => panic!("{error}"),
                };
                ended.expect("a live mapping");
            }
        }
        let page = |n: u64| PhysRange::page(PhysPage(0x1000 + n));
        let mapping = if i % 5 == 0 {
            domain.map_list(&[page(i), page(i + 7), page(i)], Direction::ToDevice)
        } else {
            domain.map(page(i), Direction::FromDevice)
        };
        ring.push_back(mapping.expect("room"));
    }
}

#[test]
fn warm_traffic_does_not_allocate() {
    for allocator in [
        AllocatorConfig::RBTREE,
        AllocatorConfig::Magazine(Default::default()),
        AllocatorConfig::Identity(Default::default()),
        AllocatorConfig::Kmalloc(Default::default()),
    ] {
        for policy in policies().map(|policy| policy.config) {
            let domain = domain(allocator, policy);
            let mut ring = VecDeque::with_capacity(200);
            traffic(&domain, &mut ring, 20_000);
            let before = calls();
            traffic(&domain, &mut ring, 20_000);
            for tick in 1..10 {
                domain.tick(TimeNs(tick * 20_000_000)).expect("a flush");
            }
            let during = calls() - before;
            let (allocator, policy) = (allocator.name(), policy.name());
            assert_eq!(during, 0, "{allocator} {policy} called the allocator");
            for mapping in ring {
                domain.unmap(mapping).expect("a live mapping");
            }
            domain.audit().expect("a sound domain");
        }
    }
}

#[test]
fn the_count_counts() {
    let before = calls();
    drop(std::hint::black_box(Box::new(1)));
    assert!(calls() > before);
}
