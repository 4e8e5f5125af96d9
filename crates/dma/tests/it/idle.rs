// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a domain takes of the heap before it maps anything, and what it keeps when it is idle.

use crate::allocators::counting::live_bytes;
use ioatlas_dma::{
    design::{policies, presets},
    domain::*,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::sync::Arc;

type Dom = Domain<Host, Paged<Host, VtdSecond48, Uncached<Host>>>;

/// A domain of a host with so many CPUs, and the bytes that it takes.
fn domain(cpus: usize, allocator: AllocatorConfig, policy: PolicyConfig) -> (Dom, i64) {
    let host = Host::new(HostConfig::default().frames(256).slots(cpus));
    let host = Arc::new(host.with_heap(ByteCount(1 << 20)).expect("room"));
    let tables = Paged::new(&host, Uncached::new(), TableConfig::default()).expect("a root");
    let before = live_bytes();
    let domain = Domain::new(host, tables, DomainConfig::new(allocator, policy));
    (domain.expect("it fits"), live_bytes() - before)
}

#[test]
fn a_domain_that_has_mapped_nothing_takes_a_kib_a_cpu() {
    for cpus in [1, 4, 64, 256] {
        let most = (16 + cpus as i64) << 10;
        for preset in presets() {
            let design = preset.design.domain;
            let (_domain, taken) = domain(cpus, design.allocator, design.policy);
            let name = preset.name;
            assert!(taken <= most, "{name}: {taken} bytes on {cpus} CPUs");
        }
    }
}

const MAPS: u64 = 700;

/// Maps and unmaps.
fn use_it(domain: &Dom) {
    let page = |n| PhysRange::page(PhysPage(0x1000 + n));
    let map = |n| domain.map(page(n), Direction::FromDevice).expect("room");
    for mapping in (0..MAPS).map(map).collect::<Vec<_>>() {
        domain.unmap(mapping).expect("a live mapping");
    }
}

/// Bytes that a domain has more than before its first map: after use, and after a shrink.
fn grown(policy: PolicyConfig) -> (i64, i64) {
    let (domain, _) = domain(2, AllocatorConfig::RBTREE, policy);
    let before = live_bytes();
    use_it(&domain);
    let used = live_bytes() - before;
    domain.flush().expect("a unit that answers");
    domain.shrink();
    let kept = live_bytes() - before;
    let audit = domain.audit().expect("P10: nothing is lost");
    assert_eq!(audit.stats.live, PageCount(0));
    use_it(&domain);
    domain.flush().expect("a unit that answers");
    domain.audit().expect("P10: nothing is lost after a shrink");
    (used, kept)
}

#[test]
fn queues_grow_by_use_and_shrink_where_they_are_empty() {
    // what the allocator keeps
    let (_, strict) = grown(PolicyConfig::Strict);
    for policy in policies().map(|policy| policy.config) {
        let (used, kept) = grown(policy);
        let name = policy.name();
        // the unit of `macos` is done at once, so little waits there
        if ["deferred-percpu", "deferred-global", "solaris"].contains(&name) {
            assert!(
                used > strict + 1024,
                "{name}: its queues take memory: {used}"
            );
        }
        assert!(kept <= strict + 1024, "{name}: {kept} bytes are kept");
    }
}
