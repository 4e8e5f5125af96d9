// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What policies make of limits, of large unmaps and of requests that can never be served; on a
//! unit without caches.

use ioatlas_dma::{
    domain::*,
    iova::{BackingConfig, EiovarConfig, Limits, MagazineConfig},
    table::{TableConfig, fmt::VtdSecond39},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::sync::Arc;

type Dom = Domain<Host, Paged<Host, VtdSecond39, Uncached<Host>>>;

fn domain(allocator: AllocatorConfig, policy: PolicyConfig, aperture: Option<IovaRange>) -> Dom {
    let host = Arc::new(Host::new(HostConfig::default().frames(64).slots(2)));
    let tables = Paged::new(&host, Uncached::new(), TableConfig::default()).expect("a root");
    let config = DomainConfig::new(allocator, policy).aperture(aperture);
    Domain::new(host, tables, config).expect("it fits")
}

fn buffer(pages: u64) -> PhysRange {
    PhysRange::new(PhysAddr(0), ByteCount(pages << 12))
}

/// What is kept is no reason to break a preference that a fresh range would keep.
#[test]
fn solaris_prefers_what_the_device_prefers() {
    let domain = domain(AllocatorConfig::RBTREE, PolicyConfig::Solaris, None);
    let low = IovaPage(1 << 20);
    let high = domain.map(buffer(1), Direction::ToDevice).unwrap();
    let kept = high.range();
    assert!(kept.first > low, "from the top down");
    domain.unmap(high).unwrap();
    let attrs = |limits| MapAttrs::default().limits(limits);
    let prefer_end = attrs(Limits::NONE.prefer_end(low));
    let map = |attrs| domain.map_with(buffer(1), Direction::ToDevice, attrs);
    let preferred = map(prefer_end).unwrap();
    assert!(preferred.range().end() <= low, "{}", preferred.range());
    let anywhere = map(MapAttrs::default()).unwrap();
    assert_eq!(anywhere.range(), kept, "it is still kept for others");
    domain.unmap(preferred).unwrap();
    domain.unmap(anywhere).unwrap();
    domain.audit().unwrap();
}

/// Tables are completed in batches; that must not make each page's invalidation happen once a
/// batch.
#[test]
fn freebsd_invalidates_each_page_once_however_many_tables_go() {
    let domain = domain(AllocatorConfig::RBTREE, PolicyConfig::FreeBsd, None);
    let (tables, lot) = (32, 8);
    let mapping = domain.map(buffer(512 * tables), Direction::ToDevice);
    let mapping = mapping.unwrap();
    let before = domain.stats().invalidations;
    domain.unmap(mapping).unwrap();
    let made = domain.stats().invalidations - before;
    assert_eq!(made, 512 * tables + tables / lot);
    let audit = domain.audit().unwrap();
    assert_eq!(audit.usage.allocated, PageCount(0));
}

/// Or a caller with a broken length would flush everything, and empty every cache, each time.
#[test]
fn what_is_larger_than_the_aperture_costs_nothing() {
    let eiovar = BackingConfig::Eiovar(EiovarConfig::default());
    let magazine = |backing| AllocatorConfig::Magazine(MagazineConfig::DEFAULT.backing(backing));
    for allocator in [
        AllocatorConfig::RBTREE,
        AllocatorConfig::Plain(eiovar),
        magazine(BackingConfig::Rbtree),
        magazine(eiovar),
    ] {
        let aperture = IovaRange::new(IovaPage(1), PageCount(1000));
        let policy = PolicyConfig::DeferredGlobal(DeferredConfig::default());
        let domain = domain(allocator, policy, Some(aperture));
        // something is cached, and something retired
        for flushed in [true, false] {
            let mapping = domain.map(buffer(1), Direction::ToDevice).unwrap();
            domain.unmap(mapping).unwrap();
            if flushed {
                domain.flush().unwrap();
            }
        }
        let before = (domain.stats(), domain.usage());
        assert_eq!(before.0.retired.pages, PageCount(1));
        for pages in [1001, 1 << 20, 1 << 40] {
            let refused = domain.map(buffer(pages), Direction::ToDevice).unwrap_err();
            assert!(
                matches!(refused, MapError::NoIova(none) if none.is_final()),
                "{refused}"
            );
            let memory = domain.alloc_consistent(ByteCount(pages << 12));
            assert!(matches!(memory, Err(MapError::NoIova(_))));
        }
        assert_eq!((domain.stats(), domain.usage()), before);
        domain.flush().unwrap();
        domain.audit().unwrap();
    }
}
