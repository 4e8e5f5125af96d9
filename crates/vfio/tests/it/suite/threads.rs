// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Threads over one domain: an unmap that another thread's call carries out has not returned before
//! that call has.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, units::*};
use ioatlas_host::register;

/// Under `strict`, each thread finds its own page gone as soon as its unmap is back.
fn crowd(kind: Kind, allocator: AllocatorConfig) {
    let rig = Rig::new(kind, DomainConfig::new(allocator, PolicyConfig::Strict));
    let shared = rig.domain.shared();
    let buffer = rig.buffer(16);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (rig, buffer) = (&rig, &buffer);
            scope.spawn(move || {
                register();
                for turn in 0..500u64 {
                    // under identity threads share pages; else no other thread maps these
                    let page = match shared {
                        Some(_) => (thread * 3 + turn % 4) << 12,
                        None => (thread * 4 + turn % 3) << 12,
                    };
                    let part = buffer.part(ByteCount(page), ByteCount(2 << 12));
                    let part = part.expect("inside");
                    let mapping = rig.domain.map(part, Direction::ToDevice).expect("room");
                    let at = mapping.iova();
                    assert_eq!(rig.reads(at), Some(part.addr.0));
                    rig.domain.unmap(mapping).expect("ours");
                    if shared.is_none() {
                        assert_ne!(rig.reads(at), Some(part.addr.0), "after its unmap");
                    }
                }
            });
        }
    });
    rig.domain.audit().unwrap();
    assert_eq!((rig.calls().held, rig.kernel.mappings().len()), (0, 0));
}

#[test]
fn no_unmap_returns_before_the_kernel_has_ended_it() {
    for kind in KINDS {
        crowd(kind, rbtree(PolicyConfig::Strict).allocator);
        crowd(kind, DomainConfig::default().allocator);
    }
}

#[test]
fn shared_pages_are_counted_by_all_threads() {
    for kind in KINDS {
        crowd(kind, identity());
    }
}
