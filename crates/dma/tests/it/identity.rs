// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domains under identity mapping: what a device can reach through shared leaves, and what is left
//! when they are full.

use fastrand::Rng;
use ioatlas_dma::{
    domain::*,
    iova::{AllocatorError, IdentityConfig, Limits},
    table::{
        Format, RawError, TableConfig,
        fmt::{VtdSecond39, VtdSecond48},
    },
    translator::{Paged, Translator, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig, register};
use std::sync::Arc;

type Dom<F = VtdSecond48> = Domain<Host, Paged<Host, F, Uncached<Host>>>;

/// As many mappings can share a page (ATC'15 §4.1: ten bits).
const FULL: usize = 1023;
const REGION: u64 = 1 << 34;

fn identity(phys_bits: u32) -> AllocatorConfig {
    AllocatorConfig::Identity(IdentityConfig::default().phys_bits(phys_bits))
}

fn deferred() -> PolicyConfig {
    PolicyConfig::DeferredPerCpu(DeferredConfig::default())
}

fn try_domain<F: Format>(
    allocator: AllocatorConfig,
    policy: PolicyConfig,
) -> Result<Dom<F>, DomainError> {
    let host = Arc::new(Host::new(HostConfig::default().frames(1024).slots(8)));
    let tables = Paged::new(&host, Uncached::new(), TableConfig::default()).expect("a root");
    Domain::new(host, tables, DomainConfig::new(allocator, policy))
}

fn domain(policy: PolicyConfig) -> Dom {
    try_domain(identity(46), policy).expect("two bits are left")
}

fn reaches(domain: &Dom, page: IovaPage) -> Option<(PhysPage, Perm)> {
    domain.translator().table().walk(domain.platform(), page)
}

fn page(n: u64) -> PhysRange {
    PhysRange::page(PhysPage(n))
}

/// Nothing is mapped, nothing allocated, shared allocations included.
fn assert_empty(domain: &Dom) {
    domain.flush().expect("a flush");
    let audit = domain.audit().unwrap_or_else(|what| panic!("P10: {what}"));
    let (live, usage) = (audit.stats.live, audit.usage);
    let left = (
        live.0,
        audit.census.pages.0,
        usage.allocated.0,
        usage.shared.0,
    );
    assert_eq!(
        left,
        (0, 0, 0, 0),
        "P10: mapped, translated, allocated, shared"
    );
}

#[test]
fn a_page_for_reading_and_for_writing_has_two_addresses() {
    for policy in [PolicyConfig::Strict, deferred()] {
        let domain = domain(policy);
        let map = |direction| {
            let mapped = domain.map(page(0x77), direction);
            mapped.unwrap_or_else(|error| panic!("P6: {direction:?} as well: {error}"))
        };
        let read = map(Direction::ToDevice);
        let write = map(Direction::FromDevice);
        let both = map(Direction::Bidirectional);
        let at = [&read, &write, &both].map(|mapping| mapping.range().first);
        let own = [1, 2, 3].map(|region| IovaPage(region * REGION + 0x77));
        let to = PhysPage(0x77);
        let perms = [Perm::Read, Perm::Write, Perm::ReadWrite];
        for (at, perm) in at.into_iter().zip(perms) {
            assert_eq!(reaches(&domain, at), Some((to, perm)), "P6: page {at}");
        }
        assert_eq!(at, own);
        domain.audit().unwrap();
        domain.unmap(write).unwrap();
        domain.flush().unwrap();
        assert_eq!(reaches(&domain, at[0]), Some((to, Perm::Read)));
        assert_eq!(reaches(&domain, at[1]), None, "P1: nothing may write");
        assert_eq!(reaches(&domain, at[2]), Some((to, Perm::ReadWrite)));
        domain.unmap(read).unwrap();
        domain.unmap(both).unwrap();
        assert_empty(&domain);
    }
}

#[test]
fn buffers_on_one_page_share_it_until_the_last_is_unmapped() {
    let domain = domain(PolicyConfig::Strict);
    let first = PhysRange::new(PhysAddr(0x5_0100), ByteCount(0x200));
    let second = PhysRange::new(PhysAddr(0x5_0800), ByteCount(0x1000));
    let a = domain.map(first, Direction::ToDevice).unwrap();
    let b = domain.map(second, Direction::ToDevice).unwrap();
    assert_eq!(a.iova(), Iova(REGION << 12 | 0x5_0100));
    assert_eq!(b.iova(), Iova(REGION << 12 | 0x5_0800));
    let (one, two) = (a.range().first, IovaPage(REGION | 0x51));
    let before = domain.stats().invalidations;
    domain.unmap(a).unwrap();
    // nothing has gone, so there was nothing to invalidate
    assert_eq!(domain.stats().invalidations, before);
    assert!(reaches(&domain, one).is_some() && reaches(&domain, two).is_some());
    domain.audit().unwrap();
    domain.unmap(b).unwrap();
    assert_eq!(domain.stats().invalidations, before + 1);
    assert!(reaches(&domain, one).is_none() && reaches(&domain, two).is_none());
    assert_empty(&domain);
}

/// 1,023 mappings of a page fit; one more, of a buffer whose other pages are free, is taken back
/// and made elsewhere.
#[test]
fn a_page_that_is_full_sends_the_next_mapping_to_the_fallback() {
    for policy in [PolicyConfig::Strict, deferred()] {
        let domain = domain(policy);
        let full = page(0x203);
        let mut held: Vec<_> = (0..FULL)
            .map(|_| domain.map(full, Direction::FromDevice).unwrap())
            .collect();
        let at = IovaPage(REGION << 1 | 0x203);
        assert!(held.iter().all(|mapping| mapping.range().first == at));
        assert_eq!(domain.usage().diverted, 0);
        domain.audit().unwrap();
        // pages 0x201 and 0x202 are counted before the full one is met
        let buffer = PhysRange::new(PhysPage(0x201).addr(), ByteCount(4 * GRANULE));
        let beside = domain.map(buffer, Direction::FromDevice).unwrap();
        let single = domain.map(full, Direction::FromDevice).unwrap();
        let list = domain
            .map_list(&[page(0x202), full], Direction::FromDevice)
            .unwrap();
        for (mapping, first) in [(&beside, 0x201), (&single, 0x203), (&list, 0x202)] {
            assert!(mapping.range().end().0 <= REGION, "in the fallback region");
            for (nth, page) in mapping.range().iter().enumerate() {
                let to = PhysPage(first + nth as u64);
                assert_eq!(reaches(&domain, page), Some((to, Perm::Write)));
            }
        }
        assert_eq!(domain.usage().diverted, 3);
        for counted in [0x201, 0x202, 0x204] {
            let own = IovaPage(REGION << 1 | counted);
            assert_eq!(
                reaches(&domain, own),
                None,
                "P10: page {own} was taken back"
            );
        }
        domain.audit().unwrap_or_else(|what| panic!("P10: {what}"));
        held.extend([beside, single, list]);
        // one that leaves makes room
        domain.unmap(held.swap_remove(0)).unwrap();
        held.push(domain.map(full, Direction::FromDevice).unwrap());
        assert_eq!(domain.usage().diverted, 3);
        for mapping in held {
            domain.unmap(mapping).unwrap();
        }
        assert_empty(&domain);
    }
}

#[test]
fn lists_have_their_own_address_where_they_are_contiguous() {
    let domain = domain(PolicyConfig::Strict);
    let direction = Direction::ToDevice;
    let single = domain.map_list(&[page(9)], direction).unwrap();
    let adjacent = [
        PhysRange::new(PhysAddr(0x20_0f00), ByteCount(0x100)),
        page(0x201),
        PhysRange::new(PhysAddr(0x20_2000), ByteCount(0x80)),
    ];
    let whole = domain.map_list(&adjacent, direction).unwrap();
    assert_eq!(single.range().first, IovaPage(REGION | 9));
    assert_eq!(whole.iova(), Iova(REGION << 12 | 0x20_0f00));
    let at: Vec<_> = whole.segments(&adjacent).collect();
    assert_eq!(at[2], Iova(REGION << 12 | 0x20_2000));
    assert_eq!(domain.usage().diverted, 0);
    let scattered = domain.map_list(&[page(4), page(6)], direction).unwrap();
    let backwards = domain.map_list(&[page(4), page(3)], direction).unwrap();
    let twice = domain.map_list(&[page(4), page(4)], direction).unwrap();
    let memory = domain.alloc_consistent(ByteCount(2 * GRANULE)).unwrap();
    assert_eq!(domain.usage().diverted, 4);
    assert!(memory.iova().page().0 < REGION);
    for mapping in [&scattered, &backwards, &twice] {
        assert!(mapping.range().end().0 <= REGION);
    }
    domain.audit().unwrap();
    for mapping in [single, whole, scattered, backwards, twice] {
        domain.unmap(mapping).unwrap();
    }
    domain.free_consistent(memory).unwrap();
    assert_empty(&domain);
}

#[test]
fn limits_and_far_buffers_go_to_the_fallback() {
    let domain = domain(PolicyConfig::Strict);
    let attrs = MapAttrs::default().limits(Limits::default().end(IovaPage(1 << 20)));
    let narrow = domain
        .map_with(page(0x1_0000_0000), Direction::ToDevice, attrs)
        .unwrap();
    assert!(narrow.range().end().0 <= 1 << 20);
    let far = domain.map(page(1 << 34), Direction::ToDevice).unwrap();
    let across = PhysRange::new(PhysPage((1 << 34) - 1).addr(), ByteCount(2 * GRANULE));
    let across = domain.map(across, Direction::ToDevice).unwrap();
    assert_eq!(domain.usage().diverted, 3);
    for mapping in [narrow, far, across] {
        domain.unmap(mapping).unwrap();
    }
    assert_empty(&domain);
}

#[test]
fn the_address_api_and_chosen_addresses_stay_out_of_the_shared_regions() {
    let domain = domain(PolicyConfig::Strict);
    let mapping = domain.map(page(5), Direction::ToDevice).unwrap();
    let (iova, len) = (mapping.iova(), mapping.len());
    let Err(UnmapError::SharedLeaves(mapping)) = domain.into_raw(mapping) else {
        panic!("a shared mapping was given up");
    };
    let Err(UnmapError::NotAMapping { cause, .. }) = domain.unmap_raw(iova, len) else {
        panic!("a shared mapping was ended by its address");
    };
    assert_eq!(cause, RawError::Shared(mapping.range()));
    // across the edge, too
    let edge = IovaPage(REGION - 1).addr();
    let across = domain.unmap_raw(edge, ByteCount(2 * GRANULE)).unwrap_err();
    assert!(matches!(
        across,
        UnmapError::NotAMapping {
            cause: RawError::Shared(_),
            ..
        }
    ));
    for first in [REGION, REGION << 1 | 5, REGION - 1] {
        let buffer = PhysRange::new(PhysPage(0x30).addr(), ByteCount(2 * GRANULE));
        let at = IovaPage(first).addr();
        let error = domain.map_at(at, buffer, Direction::ToDevice).unwrap_err();
        assert!(matches!(error, MapError::SharedRegion { .. }), "{error}");
    }
    // the interrupt window is ordinary
    let window = IovaPage(0xfee00).addr();
    let fixed = domain.map_at(window, page(7), Direction::ToDevice).unwrap();
    let (iova, len) = domain.into_raw(fixed).unwrap();
    domain.unmap_raw(iova, len).unwrap();
    domain.unmap(mapping).unwrap();
    assert_empty(&domain);
}

#[test]
fn thirty_nine_bits_serve_thirty_seven() {
    let refused = |phys_bits| match try_domain::<VtdSecond39>(identity(phys_bits), deferred()) {
        Err(DomainError::Allocator(why)) => why,
        Err(why) => panic!("{why}"),
        Ok(_) => panic!("{phys_bits} bits in 39"),
    };
    let (iova_bits, phys_bits) = (39, 46);
    let width = |phys_bits| AllocatorError::IdentityWidth {
        iova_bits,
        phys_bits,
    };
    assert_eq!(refused(phys_bits), width(46));
    assert_eq!(refused(38), width(38));
    let domain = try_domain::<VtdSecond39>(identity(37), deferred()).unwrap();
    let mapping = domain
        .map(page((1 << 25) - 1), Direction::Bidirectional)
        .unwrap();
    assert_eq!(mapping.range().first, IovaPage((1 << 27) - 1));
    domain.unmap(mapping).unwrap();
    domain.audit().unwrap();
}

#[test]
fn a_part_of_the_space_does_not_do() {
    let host = Arc::new(Host::new(HostConfig::default()));
    let tables = Paged::<_, VtdSecond48, _>::new(&host, Uncached::new(), TableConfig::default());
    let tables = tables.expect("a root");
    let aperture = IovaRange::new(IovaPage(16), PageCount(tables.aperture().pages.0 - 16));
    let config = DomainConfig::new(identity(30), PolicyConfig::Strict).aperture(aperture);
    let refused = Domain::new(host.clone(), tables, config)
        .map(drop)
        .unwrap_err();
    assert_eq!(
        refused,
        DomainError::Allocator(AllocatorError::IdentityAperture { aperture })
    );
    assert_eq!(host.frames_in_use(), 0, "the root was freed");
}

#[test]
fn threads_map_the_same_pages_at_once() {
    for policy in [PolicyConfig::Strict, deferred()] {
        let domain = domain(policy);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let domain = &domain;
                scope.spawn(move || {
                    register();
                    let mut held: Vec<(Mapping, PhysPage, Perm)> = Vec::new();
                    let mut random = Rng::with_seed(thread);
                    for _ in 0..3000 {
                        if random.bool() && held.len() < 40 || held.is_empty() {
                            // few pages, across the edge of a table, one to three at a time
                            let first = PhysPage(random.u64(0x1fe..0x202));
                            let len = ByteCount(GRANULE * random.u64(1..=3));
                            let direction = [
                                Direction::ToDevice,
                                Direction::FromDevice,
                                Direction::Bidirectional,
                            ][random.usize(..3)];
                            let buffer = PhysRange::new(first.addr(), len);
                            let mapping = domain.map(buffer, direction).unwrap();
                            held.push((mapping, first, direction.perm()));
                        } else {
                            let nth = random.usize(..held.len());
                            let (mapping, first, perm) = held.swap_remove(nth);
                            // P14: whatever else is unmapped, what is mapped is reached
                            for (nth, page) in mapping.range().iter().enumerate() {
                                let to = PhysPage(first.0 + nth as u64);
                                assert_eq!(reaches(domain, page), Some((to, perm)), "P14: {page}");
                            }
                            domain.unmap(mapping).unwrap();
                        }
                    }
                    for (mapping, ..) in held {
                        domain.unmap(mapping).unwrap();
                    }
                });
            }
        });
        assert_eq!(domain.usage().diverted, 0);
        assert_empty(&domain);
    }
}

#[test]
fn a_map_that_finds_no_frame_takes_back_what_it_counted() {
    // a root, and tables for one leaf table: the second page of the buffer needs another
    let host = Arc::new(Host::new(HostConfig::default().frames(4).slots(1)));
    let tables = Paged::<_, VtdSecond48, _>::new(&host, Uncached::new(), TableConfig::default());
    let config = DomainConfig::new(identity(46), PolicyConfig::Strict);
    let domain = Domain::new(host, tables.expect("a root"), config).expect("two bits are left");
    let edge = PhysRange::new(PhysPage(0x1ff).addr(), ByteCount(2 * GRANULE));
    let error = domain.map(edge, Direction::ToDevice).unwrap_err();
    assert!(matches!(error, MapError::Install(_)), "{error}");
    assert_empty(&domain);
    let near = domain.map(page(0x1ff), Direction::ToDevice).unwrap();
    domain.unmap(near).unwrap();
    assert_empty(&domain);
}

#[test]
fn shared_allocs_are_counted_apart() {
    let domain = domain(PolicyConfig::Strict);
    let mapping = domain.map(page(1), Direction::ToDevice).unwrap();
    assert_eq!(domain.usage().shared, PageCount(1));
    assert_eq!(domain.stats().allocated, PageCount(0), "no mapping owns it");
    domain.unmap(mapping).unwrap();
    assert_empty(&domain);
}
