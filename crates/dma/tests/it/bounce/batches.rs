// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several mappings unmapped by one call of a client: bounced and direct ones mixed.

use crate::bounce::{patchy, rig::Rig};
use crate::lend;
use ioatlas_dma::{
    dma_api::*,
    domain::{PolicyConfig, UNMAP_ROUND},
    platform::*,
    units::*,
};
use std::sync::Arc;

/// Up to half a page is bounced.
const SMALL: Placement = Placement::Below(ByteCount(2049));

/// Buffers of a page each, of which every other one is small.
fn buffers(first: PhysAddr, count: u64) -> Vec<PhysRange> {
    let buffer = |nth: u64| {
        let len = if nth.is_multiple_of(2) { 2048 } else { GRANULE };
        PhysRange::new(PhysAddr(first.0 + nth * GRANULE), ByteCount(len))
    };
    (0..count).map(buffer).collect()
}

#[test]
fn bounced_ones_come_back_with_their_bytes_and_direct_ones_take_one_invalidation() {
    for count in [1, 2, 20, 64, 65, 130] {
        let rig = Rig::new(DmaConfig::default());
        let client = rig.client(SMALL);
        let all = buffers(rig.memory(count), count);
        let map = |buffer: &PhysRange| {
            client
                .map_single(lend(*buffer), Direction::FromDevice)
                .unwrap()
        };
        let mapped: Vec<_> = all.iter().map(map).collect();
        for (nth, mapping) in (0..count).zip(&mapped) {
            assert_eq!(mapping.is_bounced(), nth.is_multiple_of(2), "{nth}");
            let bytes = vec![nth as u8; 2048];
            assert_eq!(rig.device_write(mapping.iova(), &bytes), 2048);
        }
        let direct: Vec<_> = mapped
            .iter()
            .filter(|mapping| !mapping.is_bounced())
            .collect();
        let direct: Vec<_> = direct.into_iter().map(DmaMapping::iova).collect();
        let before = rig.domain.stats().invalidations;
        let mut back = Vec::new();
        let rounds = count.div_ceil(UNMAP_ROUND as u64);
        client
            .unmap_batch(&mut mapped.into_iter(), |list| {
                let made = rig.domain.stats().invalidations - before;
                // of a round of one small buffer alone there is nothing to invalidate
                let least = (back.len() as u64 + 1) / UNMAP_ROUND as u64;
                assert!(made >= least, "P1: the {}th list is back", back.len());
                back.push(list.into_inner());
            })
            .unwrap();
        assert_eq!(back, all, "in order");
        let made = rig.domain.stats().invalidations - before;
        assert!(made <= rounds, "{made} invalidations for {count}");
        assert_eq!(made > 0, count > 1);
        for (nth, buffer) in (0..count).zip(&all) {
            assert_eq!(rig.peek(buffer.addr, 2048), vec![nth as u8; 2048]);
        }
        for at in direct {
            assert_eq!(rig.translate(at, AccessKind::Write), None, "P1: {at}");
        }
        rig.dma.audit().unwrap();
        rig.domain.audit().unwrap();
    }
}

#[test]
fn the_mapping_of_another_pool_comes_back_and_the_rest_is_left() {
    let rig = Rig::new(DmaConfig::default());
    let (client, other) = (rig.client(SMALL), rig.client(Placement::Never));
    let all = buffers(rig.memory(8), 8);
    let map = |buffer: &PhysRange| {
        client
            .map_single(lend(*buffer), Direction::FromDevice)
            .unwrap()
    };
    let mut mapped: Vec<_> = all.iter().map(map).collect();
    let theirs = other.map_single(lend(all[0]), Direction::ToDevice).unwrap();
    let at = theirs.iova();
    mapped.insert(5, theirs);
    let mut mapped = mapped.into_iter();
    let mut back = Vec::new();
    let error = client.unmap_batch(&mut mapped, |list| back.push(list.into_inner()));
    let error = error.unwrap_err();
    assert_eq!((error.ended, error.lost), (5, None));
    let text = error.to_string();
    assert!(text.starts_with("5 mappings ended"), "{text}");
    let Some(DmaUnmapError::Foreign(theirs)) = error.stopped else {
        panic!("{text}")
    };
    assert_eq!(theirs.iova(), at);
    other.unmap(*theirs).unwrap();
    assert_eq!((back.len(), mapped.len()), (5, 3));
    client
        .unmap_batch(&mut mapped, |list| back.push(list.into_inner()))
        .unwrap();
    assert_eq!(back, all);
}

/// What owns a list, as long as there is more than one.
fn owned(list: PhysRange) -> (Arc<[PhysRange]>, Arc<[PhysRange]>) {
    let list: Arc<[PhysRange]> = Arc::new([list]);
    (list.clone(), list)
}

#[test]
fn lists_that_a_device_may_reach_still_are_never_dropped() {
    let rig = patchy::Rig::new(PolicyConfig::Strict);
    let client = rig.client(SMALL);
    let page = || rig.p.frame_alloc().unwrap().page().addr();
    let all: Vec<_> = (0..10)
        .map(|nth| {
            let len = if nth % 2 == 0 { 2048 } else { GRANULE };
            owned(PhysRange::new(page(), ByteCount(len)))
        })
        .collect();
    let (lists, alive): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let map = |list| client.map_sg(lend(list), Direction::FromDevice).unwrap();
    let mut mapped: Vec<_> = lists.into_iter().map(map).collect();
    let last = mapped.split_off(6);
    rig.fail_after(0);
    let mut back = 0;
    let error = client.unmap_batch(&mut mapped.into_iter(), |_| back += 1);
    let error = error.unwrap_err();
    // what was bounced is flushed by none
    assert_eq!((error.ended, back), (3, 3), "P1: not what was direct");
    assert_eq!(error.lost.map(|lost| lost.mappings), Some(3));
    assert_eq!(error.stopped, None);
    for (nth, owner) in alive.iter().enumerate().take(6) {
        let owners = Arc::strong_count(owner);
        assert_eq!(owners, 1 + nth % 2, "P1: {nth} is memory, and is reached");
    }
    let quarantined = rig.dma.domain().stats().quarantined.pages;
    assert_eq!(quarantined, PageCount(3), "P10");
    rig.fail(false);
    client
        .unmap_batch(&mut last.into_iter(), |_| back += 1)
        .unwrap();
    assert_eq!(back, 7);
    rig.dma.domain().audit().unwrap();
}

/// A list whose edges are bounced has an invalidation of its own.
#[test]
fn what_ends_by_itself_and_was_not_flushed_is_lost_with_the_others() {
    for direct in [0, 3] {
        let rig = patchy::Rig::new(PolicyConfig::Strict);
        let whole_up_to = ByteCount(GRANULE);
        let client = rig.client(Placement::Untrusted { whole_up_to });
        let page = || PhysRange::page(rig.p.frame_alloc().unwrap().page());
        let second_half = |page: PhysRange| {
            PhysRange::new(PhysAddr(page.addr.0 + GRANULE / 2), ByteCount(GRANULE / 2))
        };
        let mut lists: Vec<Arc<[PhysRange]>> = Vec::new();
        lists.extend((0..direct).map(|_| [page()].into()));
        lists.push([second_half(page()), page(), page()].into());
        lists.push([page()].into());
        let map = |list: &Arc<[PhysRange]>| {
            let mapped = client.map_sg(lend(list.clone()), Direction::FromDevice);
            mapped.unwrap()
        };
        let mut mapped: Vec<_> = lists.iter().map(map).collect();
        let left = mapped.pop().unwrap();
        rig.fail(true);
        let error = client.unmap_batch(&mut mapped.into_iter(), |_| {
            panic!("P1: it was not flushed")
        });
        let error = error.unwrap_err();
        let lost = error.lost.map(|lost| lost.mappings);
        assert_eq!((error.ended, lost), (0, Some(direct + 1)));
        assert_eq!(error.stopped, None);
        for list in &lists {
            assert_eq!(Arc::strong_count(list), 2, "P1: a device may reach it");
        }
        rig.fail(false);
        client.unmap(left).unwrap();
        rig.dma.domain().audit().unwrap();
    }
}

/// A list that is mapped segment by segment is one batch, too.
#[test]
fn the_direct_segments_of_a_list_take_one_invalidation() {
    let rig = Rig::new(DmaConfig::default());
    let client = rig.client(Placement::SingleUse);
    let memory = rig.memory(24);
    let list: Vec<_> = (0..8)
        .map(|nth| {
            let at = PhysAddr(memory.0 + 3 * nth * GRANULE);
            PhysRange::new(at, ByteCount(GRANULE))
        })
        .chain([PhysRange::new(
            PhysAddr(memory.0 + 100 + GRANULE),
            ByteCount(50),
        )])
        .chain([PhysRange::new(
            PhysAddr(memory.0 + 4 * GRANULE),
            ByteCount(GRANULE),
        )])
        .collect();
    let mapping = client
        .map_sg(lend(list.clone()), Direction::FromDevice)
        .unwrap();
    let before = rig.domain.stats().invalidations;
    assert_eq!(*client.unmap(mapping).unwrap(), list);
    let made = rig.domain.stats().invalidations - before;
    // that with an edge ends by itself
    assert_eq!(made, 2, "nine segments are mapped as they are");
    rig.domain.audit().unwrap();
}
