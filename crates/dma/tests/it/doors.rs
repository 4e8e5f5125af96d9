// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every public interface, tried from safe code. What compiles here is refused, or harms none but
//! its caller: no table of a domain changes, and no frame is freed unflushed. What must not compile
//! stands in the documents of the items: words that outlive their memory (`Domain::words`,
//! `Platform::entries`), frames, CPUs, sequences and authority out of nothing (`FreshFrame::new`,
//! `Cpu::new`, `FlushSequence::new`, `Authority`), a table changed from outside (`Paged::table`,
//! `Table`), a frame shown by a platform or freed (`Platform::frame_free`), units that are none
//! (`Invalidate`), memory by its physical address (`CopyMemory`, `PhysMemory`).
#![forbid(unsafe_code)]

use ioatlas_dma::{
    dma_api::*,
    domain::*,
    invalidation::{Invalidate, Scope},
    iova::{IovaAllocator, Rbtree, Request},
    platform::*,
    table::{RawError, TableConfig, fmt::VtdSecond39},
    translator::{Paged, PagedError, RemappingUnit, Translator, Uncached},
    units::*,
};
use ioatlas_host::*;
use ioatlas_sim::platform::{Sim, SimConfig};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

type Unit = Arc<Uncached<Host>>;
type Dom = Domain<Host, Paged<Host, VtdSecond39, Unit>>;

const NIC: SourceId = SourceId(8);

fn host() -> Arc<Host> {
    Arc::new(Host::new(HostConfig::default().frames(64).slots(2)))
}

fn domain(host: &Arc<Host>, unit: &Unit) -> Dom {
    let tables = Paged::new(host, unit.clone(), TableConfig::default()).expect("a root");
    let config = DomainConfig::new(AllocatorConfig::RBTREE, PolicyConfig::Strict);
    Domain::new(host.clone(), tables, config).expect("it fits")
}

/// All that the device reaches, of the first pages that there are.
fn reached(domain: &Dom) -> Vec<(IovaPage, PhysPage)> {
    let table = domain.translator().table();
    let walk = |page| Some((page, table.walk(domain.platform(), page)?.0));
    let aperture = domain.translator().aperture();
    let last = IovaRange::new(IovaPage(aperture.end().0 - 64), PageCount(64));
    last.iter().filter_map(walk).collect()
}

#[test]
fn what_a_domain_shows_of_itself_is_only_seen() {
    let (host, unit) = (host(), Unit::default());
    let domain = domain(&host, &unit);
    domain.attach(NIC).unwrap();
    let mapping = domain.map(PhysRange::page(PhysPage(40)), Direction::FromDevice);
    let mapping = mapping.unwrap();
    let before = reached(&domain);
    assert_eq!(before, [(mapping.range().first, PhysPage(40))]);

    let table = domain.translator().table();
    assert_eq!(unit.root_of(NIC), Some(table.root()));
    assert!(table.show(&host).to_string().contains("0x28"), "page 40");
    assert_eq!(table.audit(&host, None).unwrap().pages, PageCount(1));
    // more invalidations than are needed, of any domain, and whatever was never asked for
    for id in [domain.id(), DomainId(77)] {
        domain.unit().submit(id, Scope::DOMAIN).unwrap();
        assert_eq!(domain.unit().done(()), Ok(true));
    }
    // an id that is taken and never given back is one that nothing else gets
    let taken = domain.unit().domain_id(&*host).unwrap();
    assert_ne!(taken, domain.id());

    assert_eq!(reached(&domain), before);
    domain.unmap(mapping).unwrap();
    assert_eq!(reached(&domain), []);
    domain.close().unwrap();
    assert_eq!(host.frames_in_use(), 0);
}

#[test]
fn what_is_another_domains_comes_back() {
    let (host, unit) = (host(), Unit::default());
    let (ours, theirs) = (domain(&host, &unit), domain(&host, &unit));
    let page = PhysRange::page(PhysPage(40));
    let mapping = theirs.map(page, Direction::FromDevice).unwrap();
    let same = ours.map(page, Direction::FromDevice).unwrap();
    assert_eq!(
        mapping.range(),
        same.range(),
        "or it would be refused anyway"
    );
    let memory = theirs.alloc_consistent(ByteCount(GRANULE)).unwrap();
    let before = (reached(&ours), reached(&theirs), host.frames_in_use());

    let Err(UnmapError::Foreign(mapping)) = ours.unmap(mapping) else {
        panic!("it was unmapped")
    };
    let shown = catch_unwind(AssertUnwindSafe(|| ours.words(&memory, 0).len()));
    assert!(shown.is_err(), "another domain's memory");
    let Err(UnmapError::ForeignMemory(memory)) = ours.free_consistent(memory) else {
        panic!("it was freed")
    };
    let after = (reached(&ours), reached(&theirs), host.frames_in_use());
    assert_eq!(after, before);

    theirs.unmap(mapping).unwrap();
    theirs.free_consistent(memory).unwrap();
    ours.unmap(same).unwrap();
    ours.close().unwrap();
    theirs.close().unwrap();
    assert_eq!(host.frames_in_use(), 0);
}

/// One domain is of the process's memory, the other of a simulated machine's: what tells them apart
/// is one number.
#[test]
fn platforms_of_one_process_give_no_number_twice() {
    let (host, sim) = (host(), Sim::new(SimConfig::default()));
    let mut given: Vec<_> = (0..1000)
        .flat_map(|_| [host.unique(), sim.unique()])
        .collect();
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), 2000);
}

/// Where a page of one process's memory is a frame of another's tables.
#[test]
fn a_buffer_of_another_platform_is_not_mapped() {
    for placement in [Placement::Never, Placement::Always] {
        let client = || {
            let host = host();
            let dma = Dma::new(
                Arc::new(domain(&host, &Unit::default())),
                DmaConfig::default(),
            );
            let config = ClientConfig::default().placement(placement);
            (host, Arc::new(dma).client(config).unwrap())
        };
        let ((theirs, owner), (ours, other)) = (client(), client());
        let mapped = |client: &Client<_, _, _>| client.dma().domain().stats().maps;
        let (before, maps) = (
            (theirs.frames_in_use(), ours.frames_in_use()),
            mapped(&other),
        );
        let buffer: CpuBuffer<_, BothWays> = owner.buffer(ByteCount(GRANULE)).unwrap();
        let refused = other.give(buffer).map(drop);
        assert_eq!(refused, Err(DmaMapError::OtherPlatform), "P8: mapped");
        assert_eq!(mapped(&other), maps, "P8: mapped");
        let after = (theirs.frames_in_use(), ours.frames_in_use());
        assert_eq!(after, before, "P10: it was freed where it came from");
    }
}

#[test]
fn an_address_ends_only_what_was_given_up() {
    let (host, unit) = (host(), Unit::default());
    let domain = domain(&host, &unit);
    let mapping = domain.map(PhysRange::page(PhysPage(40)), Direction::FromDevice);
    let mapping = mapping.unwrap();
    let ring = domain.alloc_consistent(ByteCount(GRANULE)).unwrap();
    let before = reached(&domain);
    for at in [mapping.iova(), ring.iova()] {
        let refused = domain.unmap_raw(at, ByteCount(GRANULE));
        let Err(UnmapError::NotAMapping { cause, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(cause, RawError::NotGivenUp(at.page()));
    }
    assert_eq!(reached(&domain), before);
    domain.unmap(mapping).unwrap();
    domain.free_consistent(ring).unwrap();
}

/// Allocations and frames of one's own lead no device anywhere, and a frame that was published once
/// never comes back.
#[test]
fn what_one_makes_oneself_reaches_no_device() {
    let (host, unit) = (host(), Unit::default());
    let domain = domain(&host, &unit);
    domain.attach(NIC).unwrap();
    let root = unit.root_of(NIC);

    let aperture = domain.translator().aperture();
    let end = IovaRange::new(IovaPage(aperture.end().0 - 64), PageCount(64));
    let allocator = Rbtree::<Host>::new(end);
    let alloc = allocator.alloc(&*host, &Request::pages(PageCount(1)));
    assert!(end.contains(&alloc.unwrap().range()));
    assert_eq!((unit.root_of(NIC), reached(&domain)), (root, vec![]));

    let frame = host.frame_alloc().unwrap().publish();
    let page = frame.page();
    drop(frame);
    let all: Vec<_> = std::iter::from_fn(|| host.frame_alloc()).collect();
    assert!(all.iter().all(|frame| frame.page() != page), "it is lost");
    let none = Paged::<Host, VtdSecond39, _>::new(&host, unit.clone(), TableConfig::default());
    assert!(matches!(none, Err(PagedError::NoFrame)));
    assert_eq!((unit.root_of(NIC), reached(&domain)), (root, vec![]));
}
