// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every call fails once: nothing leaks, nothing is reachable that should not be, no address is
//! handed out again that the kernel still has.

use crate::lend;
use crate::suite::rig::*;
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};
use ioatlas_vfio::{kernel::*, simulated::*, translator::*};
use std::sync::Arc;

/// Maps, unmaps, bounces; what fails may fail. What is live is reachable, what was unmapped without
/// an error is not.
fn drive(kind: Kind, kernel: &Simulated, config: DomainConfig) -> bool {
    let mut clean = true;
    let Ok(space) = kind.open(kernel, &[nvme()]) else {
        return false;
    };
    let memory = memory(256);
    let Ok(domain) = Vfio::domain(memory.clone(), space, config) else {
        return false;
    };
    let domain = Arc::new(domain);
    clean &= domain.attach(nvme().source()).is_ok();
    let going = clean;
    let buffer = memory.buffer(ByteCount(8 << 12)).expect("memory");
    let page = |nth: u64| {
        buffer
            .part(ByteCount(nth << 12), ByteCount(GRANULE))
            .expect("inside")
    };
    let reads = |iova| kernel.reach(nvme(), iova, AccessKind::Read);
    let strict = config.policy == PolicyConfig::Strict;
    let shares = domain.shared().is_some();
    for turn in 0..3 {
        let list = [page(0), page(2), page(turn)];
        let mapped = domain.map_list(&list, Direction::ToDevice);
        let single = domain.map(page(4), Direction::ToDevice);
        let raw = domain.map(page(6), Direction::ToDevice);
        clean &= mapped.is_ok() && single.is_ok() && raw.is_ok();
        for mapping in [mapped, single].into_iter().flatten() {
            let at = mapping.iova();
            assert!(!going || reads(at).is_some(), "a live mapping");
            let ended = domain.unmap(mapping);
            assert!(!strict || ended.is_err() || reads(at).is_none() || shares);
            clean &= ended.is_ok();
        }
        if let Ok(mapping) = raw {
            match domain.into_raw(mapping) {
                Ok((iova, len)) => clean &= domain.unmap_raw(iova, len).is_ok(),
                Err(UnmapError::SharedLeaves(mapping)) => clean &= domain.unmap(mapping).is_ok(),
                Err(other) => panic!("{other}"),
            }
        }
        clean &= domain.flush().is_ok();
    }
    domain.audit().expect("all pages add up");
    let dma = Arc::new(Dma::new(domain.clone(), DmaConfig::default()));
    let client = dma.client(ClientConfig::default().placement(Placement::Always));
    if let Ok(client) = client {
        for _ in 0..2 {
            match client.map_single(lend(page(1)), Direction::Bidirectional) {
                Ok(mapping) => clean &= client.unmap(mapping).is_ok(),
                Err(_) => clean = false,
            }
        }
    }
    drop(dma);
    domain.audit().expect("all pages add up");
    let consistent = domain.alloc_consistent(ByteCount(3 << 12));
    match consistent {
        Ok(memory) => clean &= domain.free_consistent(memory).is_ok(),
        Err(_) => clean = false,
    }
    domain.audit().expect("all pages add up");
    let lost = domain.stats().quarantined;
    let domain = Arc::into_inner(domain).expect("the last");
    let closed = domain.close().is_ok();
    clean &= closed;
    drop(buffer);
    if closed {
        // what may be cached is not freed: counted, not forgotten
        let used = memory.frames_in_use();
        assert!(used.0 <= lost.frames, "{used} frames, {} lost", lost.frames);
    }
    clean
}

fn every_call(kind: Kind, name: &str, config: DomainConfig, errno: Errno) {
    let kernel = Simulated::new(Machine::usual());
    assert!(
        drive(kind, &kernel, config),
        "{kind:?}, {name}: nothing failed"
    );
    let calls = kernel.calls();
    assert_eq!((kernel.open_files(), kernel.pinned()), (0, ByteCount(0)));
    for after in 0..calls {
        kernel.fail(Some(Failure { after, errno }));
        drive(kind, &kernel, config);
        kernel.fail(None);
        assert_eq!(kernel.open_files(), 0, "{kind:?}, {name}, call {after}");
        assert_eq!(
            kernel.pinned(),
            ByteCount(0),
            "{kind:?}, {name}, call {after}"
        );
    }
}

#[test]
fn of_every_design_whatever_call_fails_nothing_leaks() {
    for (name, config) in designs() {
        for kind in KINDS {
            every_call(kind, &name, config, Errno::INVAL);
        }
    }
}

/// Error numbers by which something is decided.
#[test]
fn whatever_the_error_is_nothing_leaks() {
    for errno in [
        Errno::NOSPC,
        Errno::NOMEM,
        Errno::NOENT,
        Errno::EXIST,
        Errno::NODEV,
        Errno::BUSY,
        Errno::AGAIN,
        Errno::PERM,
    ] {
        for kind in KINDS {
            every_call(kind, "default", DomainConfig::default(), errno);
            let shared = DomainConfig::new(identity(), PolicyConfig::Strict);
            every_call(kind, "identity", shared, errno);
        }
    }
}

/// What the kernel does not end stays pending, and is ended by the next that succeeds; its address
/// is never used again.
#[test]
fn what_could_not_be_ended_is_tried_again() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(PolicyConfig::Strict));
        let buffer = rig.buffer(1);
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        let at = mapping.iova();
        rig.kernel.fail(Some(Failure {
            after: 0,
            errno: Errno::BUSY,
        }));
        let ended = rig.domain.unmap(mapping);
        rig.kernel.fail(None);
        assert!(rig.reads(at).is_some(), "{kind:?}: the kernel has it still");
        let error = ended.expect_err("P1: the device reaches what was unmapped");
        assert!(error.to_string().contains("error number 16"), "{error}");
        let other = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        assert_ne!(other.iova(), at, "P3");
        rig.domain.unmap(other).unwrap();
        assert_eq!(rig.reads(at), None, "it went with the next");
        assert_eq!(rig.calls().held, 0);
        assert_eq!(rig.domain.stats().quarantined.pages, PageCount(1));
        rig.domain.audit().unwrap();
    }
}

#[test]
fn frames_that_run_out_leave_nothing_mapped() {
    let rig = Rig::strict(Kind::Type1);
    let taken: Vec<_> = std::iter::from_fn(|| rig.memory.frame_alloc()).collect();
    let error = rig.domain.alloc_consistent(ByteCount(GRANULE)).unwrap_err();
    assert!(matches!(error, MapError::NoFrame { .. }), "{error}");
    taken
        .into_iter()
        .for_each(|frame| rig.memory.frame_free(crate::BY, frame));
    assert_eq!(rig.memory.frames_in_use(), PageCount(0));
    assert!(rig.kernel.mappings().is_empty());
}
