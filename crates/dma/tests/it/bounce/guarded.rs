// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Mappings that end where they are dropped, and what becomes of an error then.

#![allow(clippy::disallowed_types)] // a test counts what it is told

use crate::bounce::{patchy, rig::*};
use crate::lend;
use core::fmt;
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

const PLACEMENTS: [Placement; 4] = [
    Placement::Never,
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(64),
    },
    Placement::SingleUse,
];

fn lists(p: &impl Platform, frames: &mut Vec<FreshFrame>) -> Vec<Arc<[PhysRange]>> {
    let lens = [40, 3000, GRANULE];
    let list = |len| -> Arc<[PhysRange]> {
        let frame = p.frame_alloc().expect("memory");
        let range = PhysRange::new(frame.page().addr(), ByteCount(len));
        frames.push(frame);
        Arc::new([range])
    };
    lens.map(list).into()
}

#[test]
fn what_is_left_by_an_error_is_unmapped() {
    let policies = [
        PolicyConfig::Strict,
        PolicyConfig::DeferredPerCpu(DeferredConfig::default()),
    ];
    for (policy, placement) in policies
        .into_iter()
        .flat_map(|p| PLACEMENTS.map(|q| (p, q)))
    {
        let context = format!("{policy:?}, {placement:?}");
        let config = DomainConfig::new(AllocatorConfig::RBTREE, policy);
        let rig = Rig::with(DmaConfig::default(), 4096, config);
        let config = ClientConfig::default().placement(placement);
        let client = rig.dma.client(config).unwrap();
        let mut frames = Vec::new();
        let lists = lists(&*rig.p, &mut frames);
        let request = || -> Result<(), &str> {
            let all = lists.iter().map(|list| {
                let guard = client.map_guarded(lend(list.clone()), Direction::Bidirectional);
                guard.expect("room")
            });
            let all: Vec<_> = all.collect();
            let reached =
                |guard: &Mapped<'_, _>| rig.translate(guard.iova(), AccessKind::Write).is_some();
            assert!(all.iter().all(reached), "P14: {context}");
            Err("the device says no")
        };
        let left = || {
            request().expect_err("always");
            rig.domain.flush().expect("this unit answers");
            rig.domain.audit().expect("P10");
            (rig.domain.stats().live, rig.p.frames_in_use())
        };
        let before = left(); // with the pool's slots
        for _ in 0..300 {
            assert_eq!(left(), before, "P10: {context}");
        }
        let back = lists.iter().all(|list| Arc::strong_count(list) == 1);
        assert!(back, "P10: lists are held, {context}");
        assert_eq!(rig.dma.drop_errors(), 0);
        frames
            .into_iter()
            .for_each(|frame| rig.p.frame_free(crate::BY, frame));
    }
}

#[test]
fn a_guard_gives_back_what_it_was_given() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.dma.client(ClientConfig::default()).unwrap();
    let buffer = PhysRange::page(PhysPage(7));
    let map = || {
        client
            .map_guarded(lend(buffer), Direction::FromDevice)
            .unwrap()
    };
    assert_eq!(map().unmap(), Ok(lend(buffer)));
    let mapping = map().into_mapping();
    let reached = rig.translate(mapping.iova(), AccessKind::Write);
    assert_eq!(reached, Some(buffer.addr), "P14: it lives");
    assert_eq!(client.unmap(mapping), Ok(lend(buffer)));
}

static TOLD: AtomicU64 = AtomicU64::new(0);

fn told(error: &dyn fmt::Display) {
    assert!(!error.to_string().is_empty());
    TOLD.fetch_add(1, Relaxed);
}

#[test]
fn an_unmap_that_fails_in_a_drop_is_counted_and_told_and_its_list_is_kept() {
    let rig = patchy::Rig::new(PolicyConfig::Strict);
    let config = DmaConfig::default().on_drop_error(OnDropError(told));
    let dma = Arc::new(Dma::new(rig.dma.domain().clone(), config));
    let client = dma.client(ClientConfig::default()).unwrap();
    let list: Arc<[PhysRange]> = Arc::new([PhysRange::page(PhysPage(7))]);
    let guard = client.map_guarded(lend(list.clone()), Direction::FromDevice);
    let guard = guard.unwrap();
    rig.fail(true);
    drop(guard);
    assert_eq!((dma.drop_errors(), TOLD.load(Relaxed)), (1, 1));
    let kept = Arc::strong_count(&list) == 2;
    assert!(kept, "P1: a device may reach it, and its owner has it back");
}
