// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! WIOSCA'10's advice as options of a domain: descending lists, page colouring, hints; seen in the
//! very leaves.

use crate::BY;
use ioatlas_dma::{
    domain::*,
    invalidation::{Invalidate, InvalidateError, Scope},
    iova::{AllocatorError, BackingConfig, IdentityConfig, MagazineConfig},
    platform::{Authority, Ordering, PhysMemory},
    table::{Entry, Format, TableConfig, TableShape, fmt::VtdSecond48},
    translator::{AttachError, Paged, RemappingUnit, TransientHint, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::{collections::BTreeMap, sync::Arc};

/// A unit that caches nothing, and says what it makes of hints.
struct Unit(Uncached<Host>, TransientHint);

// SAFETY: there is no cache.
unsafe impl Invalidate for Unit {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        self.0.submit(domain, scope)
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

// SAFETY: the one inside does; nothing walks, so hints do no harm.
unsafe impl RemappingUnit<Host> for Unit {
    fn walks(&self, shape: TableShape) -> bool {
        self.0.walks(shape)
    }
    fn platform(&self) -> Option<&Arc<Host>> {
        None
    }
    fn attach(
        &self,
        by: Authority,
        p: &Host,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        self.0.attach(by, p, device, domain, root, levels)
    }
    fn detach(
        &self,
        by: Authority,
        p: &Host,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        self.0.detach(by, p, device, domain)
    }
    fn transient_hint(&self) -> TransientHint {
        self.1
    }
    fn domain_id(&self, p: &Host) -> Option<DomainId> {
        self.0.domain_id(p)
    }
    fn release_domain_id(&self, by: Authority, p: &Host, id: DomainId) {
        self.0.release_domain_id(by, p, id)
    }
}

type Dom = Domain<Host, Paged<Host, VtdSecond48, Unit>>;

fn host() -> Arc<Host> {
    let host = Host::new(HostConfig::default().frames(2048).slots(2));
    Arc::new(host.with_heap(ByteCount(1 << 20)).expect("room"))
}

fn tables(host: &Arc<Host>, hint: TransientHint) -> Paged<Host, VtdSecond48, Unit> {
    let unit = Unit(Uncached::new(), hint);
    Paged::new(host, unit, TableConfig::default()).expect("a root")
}

fn domain(config: DomainConfig) -> Dom {
    let host = host();
    let tables = tables(&host, TransientHint::Reserved);
    Domain::new(host, tables, config).expect("a domain")
}

fn strict(allocator: AllocatorConfig) -> DomainConfig {
    DomainConfig::new(allocator, PolicyConfig::Strict)
}

/// The leaf entry of `page`, as a walk of 4 levels finds it; 0 where there is none.
fn leaf(domain: &Dom, page: IovaPage) -> u64 {
    let mut table = domain.translator().table().root();
    for level in (1..=4).rev() {
        let index = VtdSecond48::index(page, level);
        let word = domain
            .platform()
            .word(BY, table, index)
            .expect("in the arena");
        let word = word.load(Ordering::Acquire);
        match VtdSecond48::decode(word, level) {
            Entry::Absent => return 0,
            Entry::Table(next) => table = next,
            Entry::Leaf(..) => return word,
        }
    }
    unreachable!("level 1 has no tables")
}

fn to(domain: &Dom, page: IovaPage) -> Option<u64> {
    let word = leaf(domain, page);
    (word != 0).then_some(word >> GRANULE_LG2 & ((1 << 40) - 1))
}

fn bytes(page: u64, from: u64, len: u64) -> PhysRange {
    PhysRange::new(PhysAddr(page * GRANULE + from), ByteCount(len))
}

#[test]
fn a_descending_list_has_its_first_segment_highest() {
    let lists = [
        // begins and ends inside granules
        vec![
            bytes(0x20, 0x800, 0x1800),
            bytes(0x30, 0, 3 * GRANULE),
            bytes(0x30, 0, GRANULE),
            bytes(0x60, 0, 0x10),
        ],
        vec![bytes(0x40, 0xff0, 0x10), bytes(0x41, 0, 1)],
        vec![bytes(0x50, 0x123, 2 * GRANULE)],
    ];
    for allocator in [
        AllocatorConfig::RBTREE,
        AllocatorConfig::Magazine(Default::default()),
    ] {
        let domain = domain(strict(allocator).order(ListOrder::Descending));
        for list in &lists {
            for door in ["token", "raw"] {
                let mapping = domain.map_list(list, Direction::Bidirectional).unwrap();
                let range = mapping.range();
                let segments: Vec<_> = mapping.segments(list).collect();
                assert_eq!(segments[0], mapping.iova());
                let mut end = range.end();
                for (at, segment) in segments.iter().zip(list) {
                    let pages = segment.pages().0;
                    assert_eq!(at.page().0, end.0 - pages, "right below the one before");
                    assert_eq!(at.offset(), segment.addr.offset());
                    for nth in 0..pages {
                        let page = IovaPage(at.page().0 + nth);
                        let expected = segment.addr.page().0 + nth;
                        assert_eq!(to(&domain, page), Some(expected), "ascends inside");
                    }
                    end = at.page();
                }
                assert_eq!(end, range.first);
                let runs: u64 = domain.in_iova_order(list).map(|run| run.pages.0).sum();
                assert_eq!(runs, range.pages.0);
                match door {
                    "token" => domain.unmap(mapping).unwrap(),
                    _ => {
                        let (iova, len) = domain.into_raw(mapping).unwrap();
                        assert_eq!(iova.page(), range.first);
                        domain.unmap_raw(iova, len).unwrap();
                    }
                }
                assert!(range.iter().all(|page| to(&domain, page).is_none()));
            }
        }
        // one buffer, and consistent memory, are as ever
        let single = domain.map(bytes(7, 5, 9000), Direction::ToDevice).unwrap();
        assert_eq!(to(&domain, single.iova().page()), Some(7));
        let memory = domain.alloc_consistent(ByteCount(3 * GRANULE)).unwrap();
        for (nth, frame) in memory.frames().iter().enumerate() {
            let page = IovaPage(memory.iova().page().0 + nth as u64);
            assert_eq!(to(&domain, page), Some(frame.page().0));
        }
        domain.free_consistent(memory).unwrap();
        domain.unmap(single).unwrap();
        domain.audit().unwrap();
    }
}

#[test]
fn where_addresses_are_kept_a_contiguous_list_ascends_all_the_same() {
    let domain = domain(
        strict(AllocatorConfig::Identity(IdentityConfig::default())).order(ListOrder::Descending),
    );
    let adjacent = [bytes(0x30, 0, GRANULE), bytes(0x31, 0, 2 * GRANULE)];
    let apart = [bytes(0x31, 0, GRANULE), bytes(0x30, 0, GRANULE)];
    for (list, ascends) in [(adjacent, true), (apart, false)] {
        let mapping = domain.map_list(&list, Direction::ToDevice).unwrap();
        let segments: Vec<_> = mapping.segments(&list).collect();
        assert_eq!(segments[0] < segments[1], ascends);
        for (at, segment) in segments.iter().zip(&list) {
            assert_eq!(to(&domain, at.page()), Some(segment.addr.page().0));
        }
        domain.unmap(mapping).unwrap();
    }
    domain.audit().unwrap();
}

#[test]
fn a_transient_mapping_is_marked_where_the_unit_has_a_mark() {
    for (hint, lifetime, marked) in [
        (TransientHint::Honoured, Lifetime::Transient, 1),
        (TransientHint::Honoured, Lifetime::Normal, 0),
        (TransientHint::Reserved, Lifetime::Transient, 0),
        (TransientHint::Reserved, Lifetime::Normal, 0),
    ] {
        for order in [ListOrder::Ascending, ListOrder::Descending] {
            let (host, config) = (host(), DomainConfig::default());
            let tables = tables(&host, hint);
            let domain = Domain::new(host, tables, config.order(order)).unwrap();
            let attrs = MapAttrs::default().lifetime(lifetime);
            let list = [bytes(5, 0, GRANULE), bytes(9, 0, GRANULE)];
            let all = [
                domain
                    .map_with(list[0], Direction::ToDevice, attrs)
                    .unwrap(),
                domain
                    .map_list_with(&list, Direction::ToDevice, attrs)
                    .unwrap(),
            ];
            for page in all.iter().flat_map(|mapping| mapping.range().iter()) {
                assert_eq!(
                    leaf(&domain, page) >> 62 & 1,
                    marked,
                    "{hint:?} {lifetime:?}"
                );
            }
            all.into_iter().for_each(|m| domain.unmap(m).unwrap());
            // nothing of it stays for the next
            let memory = domain.alloc_consistent(ByteCount(GRANULE)).unwrap();
            assert_eq!(leaf(&domain, memory.iova().page()) >> 62 & 1, 0);
            domain.free_consistent(memory).unwrap();
        }
    }
}

fn backings() -> [BackingConfig; 5] {
    [
        BackingConfig::Rbtree,
        BackingConfig::Eiovar(Default::default()),
        BackingConfig::Freebsd,
        BackingConfig::Vmem,
        BackingConfig::MacOs,
    ]
}

fn coloured(colours: &Arc<Colours<Host>>, config: DomainConfig) -> Result<Dom, DomainError> {
    let host = host();
    let tables = tables(&host, TransientHint::Reserved);
    Domain::coloured(host, tables, config, colours.clone())
}

/// Consistent memory, a page at a time, as rings of a driver.
fn rings(domain: &Dom, pages: u64) -> Vec<Consistent> {
    let ring = |_| domain.alloc_consistent(ByteCount(GRANULE)).expect("room");
    (0..pages).map(ring).collect()
}

/// Checks that the rings of several domains fall into different sets of an IOTLB.
fn never_share(sets: u64, domains: &[Vec<Consistent>], what: &str) {
    let mut owner = BTreeMap::new();
    for (nth, rings) in domains.iter().enumerate() {
        for ring in rings {
            let set = ring.iova().page().0 % sets;
            if let Some(other) = owner.insert(set, nth).filter(|other| *other != nth) {
                panic!("WIOSCA'10 4.2: {what}: domains {other} and {nth} share set {set}");
            }
        }
    }
}

#[test]
fn domains_never_share_a_colour_until_colours_run_out() {
    for backing in backings() {
        let magazines = MagazineConfig::default().backing(backing);
        for allocator in [
            AllocatorConfig::Plain(backing),
            AllocatorConfig::Magazine(magazines),
        ] {
            let what = format!("{} over {}", allocator.name(), backing.name());
            let (each, count) = (64, 8);
            let colours = Arc::new(Colours::new());
            let config = strict(allocator).offset(Offset::Fixed(PageCount(each)));
            let make = |_| coloured(&colours, config).expect("a domain");
            let domains: Vec<_> = (0..count).map(make).collect();
            // the buddy's smallest blocks; under magazines, runs of 8, 16 and 32
            let pages = if allocator.name() == "magazine" {
                56
            } else {
                63
            };
            let held: Vec<_> = domains.iter().map(|domain| rings(domain, pages)).collect();
            never_share(each * count, &held, &what);
        }
    }
}

#[test]
fn a_colour_is_free_again_when_its_domain_has_ended() {
    let colours = Arc::new(Colours::new());
    // four of them
    let config = strict(AllocatorConfig::RBTREE).offset(Offset::Fixed(PageCount(1 << 14)));
    let first = |domain: &Dom| rings(domain, 1)[0].iova().page().0;
    let make = || coloured(&colours, config).expect("a domain");
    let top = (1 << 36) - 1;
    let mut domains: Vec<_> = (0..4).map(|_| make()).collect();
    let begins: Vec<_> = domains.iter().map(first).collect();
    assert_eq!(
        begins,
        [0, 1, 2, 3].map(|k| top - (k << 14)),
        "WIOSCA'10 4.2: offsets"
    );
    drop(domains.remove(2));
    domains.push(make());
    assert_eq!(first(&domains[3]), top - (2 << 14));
    // all are taken: the first is shared, then the second
    let once = || first(&make());
    assert_eq!([once(), once()], [top, top]);
    let fifth = make();
    assert_eq!((first(&fifth), first(&make())), (top, top - (1 << 14)));
}

#[test]
fn coherent_offsets_follow_what_others_have_allocated() {
    for backing in backings() {
        let colours = Arc::new(Colours::new());
        let config = strict(AllocatorConfig::Plain(backing)).offset(Offset::Coherent);
        let make = || coloured(&colours, config).expect("a domain");
        let (mut domains, mut held) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let domain = make();
            // streaming mappings do not move the rings
            let streaming = domain.map(bytes(1, 0, 9000), Direction::ToDevice);
            domain.unmap(streaming.unwrap()).unwrap();
            let mut rings = rings(&domain, 64);
            rings.truncate(63); // the buddy's blocks are powers of two, and page 0 is in none
            held.push(rings);
            domains.push(domain);
        }
        never_share(192, &held, backing.name());
    }
}

#[test]
fn coherent_offsets_leave_room_for_what_alignment_leaves_out() {
    for backing in backings() {
        if backing == BackingConfig::MacOs {
            continue; // its blocks are where they are
        }
        for sizes in [[3, 3, 3, 3], [1, 4, 1, 4], [2, 7, 1, 5], [16, 1, 16, 1]] {
            let colours = Arc::new(Colours::new());
            let config = strict(AllocatorConfig::Plain(backing)).offset(Offset::Coherent);
            let mut owned: Vec<(u64, u64)> = Vec::new();
            let mut domains = Vec::new();
            for nth in 0..6 {
                let domain = coloured(&colours, config).expect("a domain");
                let before = owned.clone();
                for pages in sizes.iter().take(1 + nth % 4) {
                    let len = ByteCount(pages * GRANULE);
                    let ring = domain.alloc_consistent(len).expect("room");
                    let new = (ring.iova().page().0, ring.iova().page().0 + pages);
                    let apart = |old: &(u64, u64)| old.1 <= new.0 || new.1 <= old.0;
                    assert!(
                        before.iter().all(apart),
                        "WIOSCA'10 4.2: {}: {new:x?} among {before:x?}",
                        backing.name()
                    );
                    owned.push(new);
                }
                domains.push(domain);
            }
        }
    }
}

#[test]
fn an_offset_beyond_the_aperture_is_named() {
    let colours = Arc::new(Colours::new());
    for backing in backings() {
        let config = |pages| {
            strict(AllocatorConfig::Plain(backing))
                .aperture(IovaRange::new(IovaPage(0), PageCount(100)))
                .offset(Offset::Fixed(PageCount(pages)))
        };
        let _first = coloured(&colours, config(98)).expect("no offset");
        let second = coloured(&colours, config(98)).expect("page 1, or 99, is left");
        assert_eq!(rings(&second, 1).len(), 1);
        assert!(second.alloc_consistent(ByteCount(GRANULE)).is_err());
        for pages in [50, 1 << 14] {
            // the third begins two times as much further
            let error = coloured(&colours, config(pages)).map(drop).unwrap_err();
            let offset = PageCount(2 * pages);
            let aperture = IovaRange::new(IovaPage(0), PageCount(100));
            let expected = AllocatorError::Offset { offset, aperture };
            assert_eq!(error, DomainError::Allocator(expected));
            let words = format!("an offset of {offset} pages leaves nothing of 0x0+100");
            assert_eq!(error.to_string(), words);
        }
    }
}
