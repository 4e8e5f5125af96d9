// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How often the kernel is asked, and what happens when it is full.

use crate::suite::rig::*;
use crate::{BY, lend};
use ioatlas_dma::{
    dma_api::*, domain::*, invalidation::InvalidateError, platform::*, table::InstallCause,
    units::*,
};
use ioatlas_vfio::{kernel::Errno, simulated::*, translator::*};
use std::sync::Arc;

fn deferred() -> PolicyConfig {
    let named = ioatlas_dma::design::policies();
    let deferred = named.into_iter().find(|p| p.name == "deferred-percpu");
    deferred.expect("it is in the registry").config
}

#[test]
fn a_list_is_one_call_for_each_run_of_memory_that_adjoins() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let (a, gap, b) = (rig.buffer(4), rig.buffer(1), rig.buffer(3));
        drop(gap);
        let part = |buffer: &ioatlas_vfio::platform::Buffer, page: u64| {
            let at = ByteCount(page << GRANULE_LG2);
            buffer.part(at, ByteCount(GRANULE)).expect("inside")
        };
        // 4 pages that adjoin, then 3 that do, then one that goes back
        let list: Vec<_> = (0..4)
            .map(|n| part(&a, n))
            .chain((0..3).map(|n| part(&b, n)))
            .chain([part(&a, 0)])
            .collect();
        let before = rig.calls();
        let mapping = rig.domain.map_list(&list, Direction::ToDevice).unwrap();
        assert_eq!(rig.calls().maps - before.maps, 3, "{kind:?}");
        let first = mapping.iova().0;
        for (nth, part) in (0..).zip(&list) {
            let at = Iova(first + nth * GRANULE + 5);
            assert_eq!(rig.reads(at), Some(part.addr.0 + 5));
        }
        rig.domain.unmap(mapping).unwrap();
        assert_eq!(rig.calls().unmaps - before.unmaps, 1, "all of it by one");
        assert_eq!(rig.calls().held, 0);
        assert_eq!(rig.reads(Iova(first)), None);
    }
}

#[test]
fn a_batch_ends_neighbours_together() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(deferred()));
        let buffer = rig.buffer(64);
        let page = |nth: u64| {
            buffer
                .part(ByteCount(nth << 12), ByteCount(GRANULE))
                .unwrap()
        };
        let map = |nth| rig.domain.map(page(nth), Direction::ToDevice).unwrap();
        let mappings: Vec<_> = (0..64).map(map).collect();
        let addresses: Vec<_> = mappings.iter().map(|m| m.iova()).collect();
        let before = rig.calls();
        for mapping in mappings {
            rig.domain.unmap(mapping).unwrap();
        }
        assert_eq!(rig.calls().unmaps, before.unmaps, "{kind:?}: not yet");
        assert!(addresses.iter().all(|at| rig.reads(*at).is_some()));
        rig.domain.flush().unwrap();
        let calls = rig.calls().unmaps - before.unmaps;
        assert_eq!(calls, 1, "the tree gave neighbours");
        assert!(addresses.iter().all(|at| rig.reads(*at).is_none()));
        rig.domain.audit().unwrap();
    }
}

/// In whichever order its commands complete.
#[test]
fn a_burst_of_a_stream_is_ended_by_one_call() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let dma = Arc::new(Dma::new(rig.domain.clone(), DmaConfig::default()));
        let config = ClientConfig::default().placement(Placement::Never);
        let client = dma.client(config).unwrap();
        let buffer = rig.buffer(16);
        let mut stream = client.stream(PageCount(64));
        let mut map = |nth: u64| {
            let page = buffer.part(ByteCount(nth << GRANULE_LG2), ByteCount(GRANULE));
            let page = page.expect("inside");
            let mapped = client.map_in(&mut stream, lend(page), Direction::FromDevice);
            mapped.unwrap()
        };
        let mut burst: Vec<_> = (0..16).map(&mut map).collect();
        burst.rotate_left(5);
        burst.reverse();
        let addresses: Vec<_> = burst.iter().map(|mapping| mapping.iova()).collect();
        let before = rig.calls();
        client.unmap_batch(&mut burst.drain(..), drop).unwrap();
        let reached = addresses.iter().any(|at| rig.reads(*at).is_some());
        assert!(!reached, "P1: {kind:?}: a page is mapped after its unmap");
        assert_eq!(rig.calls().unmaps - before.unmaps, 1, "{kind:?}");
    }
}

/// One call ends neighbours, and nothing that is between others.
#[test]
fn what_lies_between_two_that_end_stays_mapped() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(deferred()));
        let buffer = rig.buffer(3);
        let page = |nth: u64| {
            buffer
                .part(ByteCount(nth << 12), ByteCount(GRANULE))
                .unwrap()
        };
        let map = |nth| rig.domain.map(page(nth), Direction::ToDevice).unwrap();
        let mut mappings = [map(0), map(1), map(2)];
        mappings.sort_by_key(|mapping| mapping.iova().0);
        let [below, between, above] = mappings;
        let (first, at) = (below.iova(), between.iova());
        assert_eq!(above.iova().0 - first.0, 2 * GRANULE, "they adjoin");
        rig.domain.unmap(above).unwrap();
        rig.domain.unmap(below).unwrap();
        let before = rig.calls();
        let flushed = rig.domain.flush();
        assert!(rig.reads(at).is_some(), "P14: {kind:?}: it is mapped");
        assert!(rig.reads(first).is_none(), "P1: {kind:?}: flushed");
        flushed.unwrap();
        assert_eq!(rig.calls().unmaps - before.unmaps, 2, "{kind:?}");
        rig.domain.unmap(between).unwrap();
        rig.domain.flush().unwrap();
        assert_eq!((rig.calls().held, rig.kernel.mappings().len()), (0, 0));
    }
}

/// A stretch is refused whole; what of it the kernel does end goes all the same.
#[test]
fn what_is_refused_does_not_keep_its_neighbours() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(deferred()));
        let buffer = rig.buffer(2);
        let page = |nth: u64| {
            buffer
                .part(ByteCount(nth << 12), ByteCount(GRANULE))
                .unwrap()
        };
        let map = |nth| rig.domain.map(page(nth), Direction::ToDevice).unwrap();
        let mappings = [map(0), map(1)];
        for mapping in mappings {
            rig.domain.unmap(mapping).unwrap();
        }
        let before = rig.calls();
        let errno = Errno::BUSY;
        rig.kernel.fail(Some(Failure { after: 0, errno }));
        rig.domain.flush().unwrap();
        rig.kernel.fail(None);
        let now = rig.calls();
        let refused = now.unmaps_refused - before.unmaps_refused;
        assert_eq!((now.unmaps - before.unmaps, refused), (3, 1), "{kind:?}");
        assert_eq!((now.held, rig.kernel.mappings().len()), (0, 0));
        rig.domain.audit().unwrap();
    }
}

#[test]
fn strict_ends_each_before_unmap_returns() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let buffer = rig.buffer(2);
        for _ in 0..8 {
            let before = rig.calls();
            let mapping = rig.domain.map(buffer.range(), Direction::Bidirectional);
            let mapping = mapping.unwrap();
            let at = mapping.iova();
            assert_eq!(rig.reads(at), Some(buffer.range().addr.0));
            rig.domain.unmap(mapping).unwrap();
            assert_eq!(rig.reads(at), None);
            let now = rig.calls();
            let made = (now.maps - before.maps, now.unmaps - before.unmaps);
            assert_eq!(made, (1, 1), "{kind:?}");
        }
    }
}

#[test]
fn permissions_are_the_kernels() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let buffer = rig.buffer(1);
        for (direction, reads, writes) in [
            (Direction::ToDevice, true, false),
            (Direction::FromDevice, false, true),
            (Direction::Bidirectional, true, true),
        ] {
            let mapping = rig.domain.map(buffer.range(), direction).unwrap();
            let can = |access| rig.reach(mapping.iova(), access).is_some();
            assert_eq!(can(AccessKind::Read), reads, "{kind:?} {direction:?}");
            assert_eq!(can(AccessKind::Write), writes);
            rig.domain.unmap(mapping).unwrap();
        }
    }
}

/// Type 1 only: iommufd counts memory.
#[test]
fn a_full_kernel_first_ends_what_is_pending_then_says_so_and_what_to_do() {
    let machine = Machine {
        mappings: 16,
        ..Machine::usual()
    };
    let rig = Rig::on(machine, Kind::Type1, rbtree(deferred()));
    let buffer = rig.buffer(64);
    let page = |nth: u64| {
        buffer
            .part(ByteCount(nth << 12), ByteCount(GRANULE))
            .unwrap()
    };
    let map = |nth| rig.domain.map(page(nth), Direction::ToDevice);
    let mut live = Vec::new();
    for nth in 0..16 {
        live.push(map(nth).unwrap());
    }
    for mapping in live.drain(8..) {
        rig.domain.unmap(mapping).unwrap();
    }
    // eight are retired, and in the kernel still
    assert_eq!(rig.calls().held, 16);
    for nth in 16..24 {
        let mapping = map(nth).expect("P11: what fills the kernel is only to be ended");
        live.push(mapping);
    }
    assert_eq!(rig.calls().held, 16);
    let error = map(24).unwrap_err();
    let refused = rig.domain.translator().explain(&error);
    let expected = Refused::Mappings {
        limit: 16,
        held: 16,
    };
    assert_eq!(refused, Some(expected), "{error}");
    let text = expected.to_string();
    assert!(
        text.contains("16") && text.contains("dma_entry_limit"),
        "{text}"
    );
    // what is contiguous is one mapping, however long
    rig.domain.unmap(live.pop().unwrap()).unwrap();
    live.push(rig.domain.map(buffer.range(), Direction::ToDevice).unwrap());
    rig.domain.audit().unwrap();
    for mapping in live {
        rig.domain.unmap(mapping).unwrap();
    }
    rig.domain.flush().unwrap();
    assert_eq!((rig.calls().held, rig.kernel.mappings().len()), (0, 0));
}

/// Another thread may have ended all that was pending: then nothing is left to end, but there is
/// room.
#[test]
fn a_full_kernel_is_asked_again_though_nothing_is_pending() {
    for errno in [Errno::NOSPC, Errno::NOMEM] {
        let rig = Rig::strict(Kind::Type1);
        let buffer = rig.buffer(1);
        rig.kernel.fail(Some(Failure { after: 0, errno }));
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        rig.kernel.fail(None);
        assert_eq!(rig.calls().maps_refused, 1);
        rig.domain.unmap(mapping).unwrap();
    }
}

/// A list that has more runs than the kernel takes is undone, run by run.
#[test]
fn a_list_that_does_not_fit_leaves_nothing() {
    let machine = Machine {
        mappings: 5,
        ..Machine::usual()
    };
    let rig = Rig::on(machine, Kind::Type1, DomainConfig::default());
    let buffer = rig.buffer(32);
    let page = |nth: u64| {
        buffer
            .part(ByteCount(nth << 12), ByteCount(GRANULE))
            .unwrap()
    };
    let list: Vec<_> = (0..8).map(|nth| page(2 * nth)).collect();
    let error = rig.domain.map_list(&list, Direction::ToDevice).unwrap_err();
    match error {
        MapError::Install(error) => {
            assert_eq!((error.done, error.wanted), (PageCount(5), PageCount(8)));
            assert_eq!(error.cause, InstallCause::Host(28));
        }
        other => panic!("{other}"),
    }
    let left = rig.kernel.mappings();
    assert!(left.is_empty(), "P10: {} mappings stay", left.len());
    rig.domain.audit().unwrap();
}

#[test]
fn memory_that_cannot_be_pinned_is_an_error_that_names_the_limit() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        rig.kernel.set_pin_limit(Some(ByteCount(4 << 12)));
        let (small, large) = (rig.buffer(4), rig.buffer(5));
        let error = rig.domain.map(large.range(), Direction::ToDevice);
        let refused = rig.domain.translator().explain(&error.unwrap_err());
        let refused = refused.expect("the kernel's");
        assert!(
            matches!(refused, Refused::Pin { limit: Some(_) }),
            "{kind:?}"
        );
        assert!(
            refused.to_string().contains("16 KiB: raise RLIMIT_MEMLOCK"),
            "{refused}"
        );
        let mapping = rig.domain.map(small.range(), Direction::ToDevice);
        rig.domain.unmap(mapping.unwrap()).unwrap();
    }
}

#[test]
fn memory_of_no_process_is_refused_before_the_kernel_is_asked() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let own = [0u8; 64];
        let at = PhysAddr(own.as_ptr() as u64);
        let asked = rig.calls().maps;
        let error = rig
            .domain
            .map(PhysRange::new(at, ByteCount(64)), Direction::FromDevice);
        let refused = rig.domain.translator().explain(&error.unwrap_err());
        assert!(matches!(refused, Some(Refused::NoMemory { page: Some(_) })));
        assert_eq!(rig.calls().maps, asked, "{kind:?}");
        // and what was there once, but is not any more
        let buffer = rig.buffer(1);
        let gone = ioatlas_vfio::kernel::VirtAddr(buffer.range().addr.0);
        rig.kernel.forget_memory(gone, ByteCount(GRANULE));
        let error = rig.domain.map(buffer.range(), Direction::FromDevice);
        let refused = rig.domain.translator().explain(&error.unwrap_err());
        assert_eq!(refused, Some(Refused::NoMemory { page: None }));
    }
}

#[test]
fn a_hole_under_a_mapping_is_told_and_its_address_never_used_again() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(PolicyConfig::Strict));
        let buffer = rig.buffer(1);
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        let at = mapping.iova();
        rig.kernel.steal(at);
        match rig.domain.unmap(mapping).unwrap_err() {
            UnmapError::Invalidate {
                cause: InvalidateError::Missing { range, found },
                ..
            } => assert_eq!((range.first, found), (at.page(), PageCount(0)), "{kind:?}"),
            other => panic!("{kind:?}: {other}"),
        }
        // told once, of that range only
        for _ in 0..4 {
            let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
            assert_ne!(mapping.iova(), at);
            rig.domain.unmap(mapping).unwrap();
        }
        rig.domain.audit().unwrap();
        assert_eq!(rig.domain.stats().quarantined.pages, PageCount(1));
    }
}

#[test]
fn bounced_buffers_ask_the_kernel_for_nothing_once_warm() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let dma = Arc::new(Dma::new(rig.domain.clone(), DmaConfig::default()));
        let client = dma.client(ClientConfig::default().placement(Placement::Always));
        let client = client.unwrap();
        let mut buffer = rig.buffer(4);
        let mut warm = rig.calls();
        for turn in 0..64u64 {
            buffer.write(ByteCount(0), &turn.to_le_bytes()).unwrap();
            let mapping = client.map_sg(buffer, Direction::ToDevice).unwrap();
            let at = rig.reads(mapping.iova()).expect("mapped");
            let mut seen = [0; 8];
            rig.memory.read(BY, PhysAddr(at), &mut seen).unwrap();
            assert_eq!(u64::from_le_bytes(seen), turn, "{kind:?}");
            buffer = client.unmap(mapping).unwrap();
            if turn == 0 {
                warm = rig.calls();
            }
        }
        assert_eq!(rig.calls(), warm);
        drop((client, dma));
        assert_eq!(rig.calls().held, 0, "the pool went with its last user");
    }
}
