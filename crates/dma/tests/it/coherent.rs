// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arrays that CPU and device share: where they are, what is refused, and what is left afterwards.

use crate::{
    allocators::counting::{Failing, failing},
    warm_path::{Dom, domain},
};
use ioatlas_dma::{
    design::{allocators, policies},
    dma_api::*,
    domain::*,
    iova::{AllocErrorCause, Limits},
    platform::*,
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::Host;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::Arc,
};

type Its = Client<Host, Paged<Host, VtdSecond48, Uncached<Host>>>;

fn client(limits: Limits) -> Its {
    let domain = domain(AllocatorConfig::RBTREE, PolicyConfig::Strict);
    client_of(Arc::new(domain), limits)
}

fn client_of(domain: Arc<Dom>, limits: Limits) -> Its {
    let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
    let config = ClientConfig::default().limits(limits);
    dma.client(config).expect("no pool")
}

fn frames_in_use(client: &Its) -> usize {
    client.dma().domain().platform().frames_in_use()
}

#[test]
fn each_element_is_where_the_table_leads() {
    let client = client(Limits::NONE);
    let mut array = client.alloc_coherent::<[u32; 5]>(1000).expect("memory");
    assert_eq!((array.len(), array.frames().pages), (1000, PageCount(5)));
    let domain = client.dma().domain();
    for nth in [0, 1, 204, 205, 999] {
        let value = [1, 2, 3, 4, 5].map(|n| n << 24 | nth as u32);
        assert_eq!(array.read(nth), [0; 5]);
        array.write(nth, value);
        assert_eq!(array.read(nth), value);
        assert_eq!(array.read_field::<u32>(nth, 8), value[2]);
        // by the table, a word at a time, as it may cross a page
        for (word, value) in (0..).zip(value) {
            let at = Iova(array.iova_of(nth).0 + 4 * word);
            let (page, _) = domain
                .translator()
                .table()
                .walk(&**domain.platform(), at.page())
                .expect("mapped");
            let mut bytes = [0; 4];
            let from = PhysAddr(page.addr().0 + at.offset());
            domain
                .platform()
                .read(crate::BY, from, &mut bytes)
                .expect("memory");
            assert_eq!(u32::from_le_bytes(bytes), value, "word {word} of {nth}");
        }
    }
    // SAFETY: inside, and nothing else writes there.
    let seen = unsafe { array.as_ptr().cast::<[u32; 5]>().add(999).read_volatile() };
    assert_eq!(seen, array.read(999));
}

#[test]
fn elements_of_every_alignment_are_moved_whole() {
    fn round<E: zerocopy::FromBytes + zerocopy::IntoBytes + Copy + PartialEq + std::fmt::Debug>(
        client: &Its,
        value: E,
    ) {
        let mut array = client.alloc_coherent::<E>(3).expect("memory");
        for nth in 0..3 {
            array.write(nth, value);
            assert_eq!(array.read(nth), value);
        }
        assert!(
            array
                .as_ptr()
                .cast::<u8>()
                .addr()
                .get()
                .is_multiple_of(4096)
        );
    }
    let client = client(Limits::NONE);
    round(&client, [1u8, 2, 3]);
    round(&client, [0x102u16, 0x304, 0x506]);
    round(&client, [0x1020304u32; 7]);
    round(&client, [0x102030405060708u64, 9, 10]);
    round(&client, 0x102030405060708090a0b0c0d0e0fu128);
}

#[test]
fn they_keep_the_limits_of_their_client() {
    let below = IovaPage(1 << 8);
    let limits = Limits::NONE.end(below);
    let client = client(limits);
    let mut held = Vec::new();
    let error = loop {
        match client.alloc_coherent::<u64>(8 * 512) {
            Ok(array) => held.push(array),
            Err(error) => break error,
        }
        let last = held.last().expect("one");
        assert!(last.iova().page().0 + 8 <= below.0);
    };
    let MapError::NoIova(none) = error else {
        panic!("{error}")
    };
    assert!(
        matches!(none.cause, AllocErrorCause::FullWithin(_)),
        "{none}"
    );
    assert!(held.len() >= 31, "{}", held.len());
}

#[test]
fn what_there_is_not_is_refused_with_nothing_lost() {
    let client = client(Limits::NONE);
    drop(client.alloc_coherent::<u64>(1).expect("memory")); // tables
    let before = frames_in_use(&client);
    // none, more frames than there are, more than there are addresses, more than can be counted
    let error = client.alloc_coherent::<u64>(0).unwrap_err();
    assert_eq!(error, MapError::Buffer(BufferError::Empty { segment: 0 }));
    let error = client.alloc_coherent::<u64>(8192 * 512).unwrap_err();
    let wanted = PageCount(8192);
    assert_eq!(error, MapError::NoFrameRun { wanted });
    assert!(error.to_string().contains("8192"), "{error}");
    for count in [1 << 50, usize::MAX] {
        let error = client.alloc_coherent::<u64>(count).unwrap_err();
        assert!(matches!(error, MapError::NoIova(_)), "{error}");
    }
    assert_eq!(frames_in_use(&client), before);
    let audit = client
        .dma()
        .domain()
        .audit()
        .expect("P10: all is accounted for");
    assert_eq!(audit.stats.live, PageCount(0));
}

/// Frames that are free and do not adjoin are no array; those that wait for a flush are.
#[test]
fn frames_that_adjoin_are_looked_for_behind_the_flush_too() {
    let policy = PolicyConfig::DeferredGlobal(DeferredConfig::default());
    let domain = Arc::new(domain(AllocatorConfig::RBTREE, policy));
    let client = client_of(domain.clone(), Limits::NONE);
    let p = domain.platform();
    drop(client.alloc_coherent::<u8>(1).expect("memory")); // tables
    domain.flush().expect("flushed");
    let array = client.alloc_coherent::<u64>(64 * 512).expect("memory");
    let all: Vec<_> = std::iter::from_fn(|| p.frame_alloc()).collect();
    let none = client.alloc_coherent::<u64>(512).unwrap_err();
    let wanted = PageCount(1);
    assert_eq!(none, MapError::NoFrameRun { wanted });
    array.free().expect("unmapped");
    assert_eq!(domain.stats().retired.frames, 64, "they wait for a flush");
    let again = client.alloc_coherent::<u64>(64 * 512).expect("behind it");
    again.free().expect("unmapped");
    domain.flush().expect("flushed");
    // every second frame, so that no two adjoin
    let (even, odd): (Vec<_>, Vec<_>) =
        std::iter::from_fn(|| p.frame_alloc()).partition(|frame| frame.page().0 % 2 == 0);
    even.into_iter()
        .for_each(|frame| p.frame_free(crate::BY, frame));
    let none = client.alloc_coherent::<u64>(1024).unwrap_err();
    let wanted = PageCount(2);
    assert_eq!(none, MapError::NoFrameRun { wanted });
    client
        .alloc_coherent::<u64>(512)
        .expect("one")
        .free()
        .expect("unmapped");
    odd.into_iter()
        .chain(all)
        .for_each(|frame| p.frame_free(crate::BY, frame));
}

#[test]
fn what_is_outside_is_refused_before_it_is_touched() {
    let client = client(Limits::NONE);
    let mut array = client.alloc_coherent::<[u32; 4]>(10).expect("memory");
    type Array = Coherent<[[u32; 4]]>;
    let mut panics = |what: &dyn Fn(&mut Array)| {
        let caught = catch_unwind(AssertUnwindSafe(|| what(&mut array)));
        assert!(caught.is_err());
    };
    panics(&|array| {
        let _ = array.read(10);
    });
    panics(&|array| array.write(usize::MAX, [0; 4]));
    panics(&|array| {
        let _ = array.iova_of(10);
    });
    panics(&|array| {
        // across the end
        let _ = array.read_field::<u32>(0, 13);
    });
    panics(&|array| {
        // not aligned
        let _ = array.read_field::<u32>(0, 2);
    });
    panics(&|array| array.write_field(9, 16, 0u8)); // behind it
    panics(&|array| {
        let _ = array.read_field::<u64>(0, usize::MAX);
    });
    assert_eq!(array.read_field::<u64>(9, 8), 0);
}

#[test]
fn without_heap_memory_nothing_is_lost() {
    for allocator in allocators().map(|allocator| allocator.config) {
        for policy in policies().map(|policy| policy.config) {
            let mut nth = 0;
            loop {
                let client = client_of(Arc::new(domain(allocator, policy)), Limits::NONE);
                let (made, failed) =
                    failing(Failing::Nth(nth), || client.alloc_coherent::<u64>(3 * 512));
                match made {
                    Ok(array) => array.free().expect("unmapped"),
                    Err(MapError::NoMemory) if failed => {}
                    Err(MapError::NoIova(none)) if failed => {
                        assert_eq!(none.cause, AllocErrorCause::NoMemory);
                    }
                    Err(error) => panic!("{error}"),
                }
                let domain = client.dma().domain();
                domain.flush().expect("flushed");
                let stats = domain.audit().expect("P10: all is accounted for").stats;
                assert_eq!((stats.live, stats.retired.frames), (PageCount(0), 0));
                let again = client.alloc_coherent::<u64>(3 * 512);
                again.expect("memory again").free().expect("unmapped");
                let platform = domain.platform().clone();
                drop(client);
                assert_eq!(platform.frames_in_use(), 0, "P10: a frame is lost");
                if !failed {
                    break;
                }
                nth += 1;
            }
            assert!(nth > 0, "{} {}", allocator.name(), policy.name());
        }
    }
}

/// An array may be read by several threads, and ends on any.
#[test]
fn it_ends_on_another_thread_and_keeps_its_domain() {
    let client = client(Limits::NONE);
    let platform = client.dma().domain().platform().clone();
    let array = client.alloc_coherent::<u64>(512).expect("memory");
    drop(client); // and the last other owner of the domain
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(array.read(511), 0));
        scope.spawn(|| assert_eq!(array.read(511), 0));
    });
    std::thread::spawn(move || drop(array))
        .join()
        .expect("dropped");
    assert_eq!(platform.frames_in_use(), 0, "its domain has ended, too");
}

fn free_raw(
    client: &Its,
    iova: Iova,
    at: NonNull<u8>,
    pages: PageCount,
) -> Result<(), RawDmaError> {
    // SAFETY: nothing looks at it after that.
    unsafe { client.free_raw(iova, at, pages) }
}

#[test]
fn by_addresses_only_what_was_allocated_is_freed() {
    let client = client(Limits::NONE);
    let any = AnyClient::from(client.clone());
    drop(client.alloc_coherent::<u64>(1).expect("memory")); // tables
    let before = frames_in_use(&client);
    let three = PageCount(3);
    let (iova, at) = client.alloc_raw(three).expect("memory");
    let (other_iova, other_at) = any.alloc_raw(three).expect("memory");
    assert_eq!(frames_in_use(&client), before + 6);
    // SAFETY: so many bytes are ours until they are freed.
    let bytes = |at: NonNull<u8>| unsafe { at.cast::<[u8; 3 * 4096]>().read_volatile() };
    assert!(
        bytes(at)
            .iter()
            .chain(&bytes(other_at))
            .all(|byte| *byte == 0)
    );
    let wrong = [
        (iova, at, PageCount(2)),
        (iova, at, PageCount(4)),
        (Iova(iova.0 + GRANULE), at, three),
        (iova, other_at, three),
        (other_iova, at, three),
    ];
    for (iova, at, pages) in wrong {
        let error = free_raw(&client, iova, at, pages).err();
        assert_eq!(error, Some(RawDmaError::NotMapped(iova)), "P10: {pages}");
    }
    assert_eq!(frames_in_use(&client), before + 6, "nothing has changed");
    free_raw(&client, other_iova, other_at, three).expect("either ends it");
    assert_eq!(frames_in_use(&client), before + 3);
    // SAFETY: nothing looks at it after that.
    unsafe { any.free_raw(iova, at, three) }.expect("either ends it");
    let again = free_raw(&client, iova, at, three).err();
    assert_eq!(again, Some(RawDmaError::NotMapped(iova)), "P10: twice");
    assert_eq!(frames_in_use(&client), before);
    for pages in [0, 1 << 40, u64::MAX] {
        let error = client.alloc_raw(PageCount(pages)).expect_err("too many");
        assert_eq!(any.alloc_raw(PageCount(pages)), Err(error), "{pages}");
    }
}

#[test]
fn what_was_never_freed_ends_with_its_domain() {
    let client = client(Limits::NONE);
    let platform = client.dma().domain().platform().clone();
    for _ in 0..20 {
        client.alloc_raw(PageCount(2)).expect("memory");
    }
    drop(client);
    assert_eq!(platform.frames_in_use(), 0, "P10: a frame is lost");
}

#[test]
fn by_addresses_nothing_is_lost_without_heap_memory() {
    without_heap_memory_by_addresses(Failing::Nth);
    // one that fails once has the little that is asked for then
    let refused = without_heap_memory_by_addresses(Failing::From);
    assert!(refused >= 4, "its list grows so often: {refused}");
}

/// How often an array was refused.
fn without_heap_memory_by_addresses(failing_at: fn(u64) -> Failing) -> u64 {
    let (mut nth, mut refused) = (0, 0);
    loop {
        let client = client(Limits::NONE);
        let one = PageCount(1);
        let mut had = Vec::with_capacity(40);
        let (error, failed) = failing(failing_at(nth), || {
            for _ in 0..40 {
                match client.alloc_raw(one) {
                    Ok(array) => had.push(array),
                    Err(error) => return Some(error),
                }
            }
            None
        });
        if let Some(error) = error {
            assert!(failed, "{error}");
            refused += 1;
        }
        let live = client.dma().domain().stats().live;
        assert_eq!(
            live,
            PageCount(had.len() as u64),
            "P10: one that no caller has"
        );
        for (iova, at) in had {
            free_raw(&client, iova, at, one).expect("unmapped");
        }
        let domain = client.dma().domain();
        let stats = domain.audit().expect("P10: all is accounted for").stats;
        assert_eq!((stats.live, stats.retired.frames), (PageCount(0), 0));
        if !failed {
            break;
        }
        nth += 1;
    }
    refused
}
