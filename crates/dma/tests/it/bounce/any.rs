// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A client whose types do not show does what the client does that it is made of.

use crate::bounce::{patchy, rig::Rig};
use crate::lend;
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};
use std::{num::NonZero, ptr::NonNull, sync::Arc};

const PLACEMENTS: [Placement; 5] = [
    Placement::Never,
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(100),
    },
    Placement::Below(ByteCount(8192)),
    Placement::SingleUse,
];

const DIRECTIONS: [Direction; 3] = [
    Direction::ToDevice,
    Direction::FromDevice,
    Direction::Bidirectional,
];

/// What became of a list: where the device found each segment, whether in a copy, and the bytes in
/// the end; a byte in the middle was synchronised.
type Story = (Vec<Iova>, bool, Vec<u8>);

const PAGES: u64 = 8;
const DEVICE: u8 = 0xd0;

fn lists(memory: PhysAddr) -> Vec<Vec<PhysRange>> {
    let part = |offset: u64, len: u64| PhysRange::new(PhysAddr(memory.0 + offset), ByteCount(len));
    vec![
        vec![part(100, 50)],
        vec![part(0, 2 * GRANULE)],
        vec![part(100, 2 * GRANULE)],
        vec![part(100, GRANULE - 100), part(3 * GRANULE, GRANULE)],
    ]
}

/// Maps, has the device write, synchronises, and unmaps, by the calls that it is given.
fn story(
    rig: &Rig,
    list: &[PhysRange],
    memory: PhysAddr,
    calls: impl FnOnce(Lent<Vec<PhysRange>>, &dyn Fn(&DmaMapping<Lent<Vec<PhysRange>>>)) -> bool,
) -> Story {
    rig.poke(memory, &vec![7; (PAGES * GRANULE) as usize]);
    let seen = std::cell::RefCell::new((Vec::new(), false));
    let while_mapped = |mapping: &DmaMapping<Lent<Vec<PhysRange>>>| {
        let at: Vec<_> = mapping.segments().collect();
        rig.device_writes(at[0], 20, DEVICE);
        *seen.borrow_mut() = (at, mapping.is_bounced());
    };
    assert!(calls(lend(list.to_vec()), &while_mapped), "P14: it is done");
    let (at, bounced) = seen.into_inner();
    (at, bounced, rig.peek(memory, (PAGES * GRANULE) as usize))
}

const HEAD: Span = Span {
    at: ByteCount(0),
    len: ByteCount(10),
};

#[test]
fn lists_go_the_same_way() {
    for (placement, direction) in PLACEMENTS
        .into_iter()
        .flat_map(|placement| DIRECTIONS.map(|direction| (placement, direction)))
    {
        let (one, other) = (
            Rig::new(DmaConfig::default()),
            Rig::new(DmaConfig::default()),
        );
        let memory = one.memory(PAGES);
        assert_eq!(other.memory(PAGES), memory, "they are alike");
        let (client, any) = (one.client(placement), other.client(placement));
        let any = AnyClient::from(any);
        assert_eq!(client.config(), any.config());
        for list in lists(memory) {
            let by_client = story(&one, &list, memory, |list, look| {
                let mapping = client.map_sg(list, direction).expect("room");
                look(&mapping);
                client.sync_for_cpu(&mapping, HEAD).expect("inside");
                client.sync_for_device(&mapping, HEAD).expect("inside");
                client.unmap(mapping).is_ok()
            });
            let by_any = story(&other, &list, memory, |list, look| {
                let mapping = any.map_sg(list, direction).expect("room");
                look(&mapping);
                any.sync_for_cpu(&mapping, HEAD).expect("inside");
                any.sync_for_device(&mapping, HEAD).expect("inside");
                any.unmap(mapping).is_ok()
            });
            let what = format!("{placement:?}, {direction:?}, {list:?}");
            assert_eq!(by_client.0, by_any.0, "{what}");
            assert_eq!(by_client.1, by_any.1, "P7: {what}");
            assert!(by_client.2 == by_any.2, "P7: {what}: other bytes");
            // and by a guard, which ends by either
            drop(
                any.map_guarded(lend(list.clone()), direction)
                    .expect("room"),
            );
            drop(client.map_guarded(lend(list), direction).expect("room"));
        }
        let one = one.domain.stats();
        let other = other.domain.stats();
        assert_eq!((one.live, one.unmaps), (other.live, other.unmaps));
    }
}

#[test]
fn slices_and_arrays_go_the_same_way() {
    for placement in PLACEMENTS {
        let rig = Rig::new(DmaConfig::default());
        let any = AnyClient::from(rig.client(placement));
        let mut block = [7; 100];
        let mapped = any.map_slice(&mut block, Direction::FromDevice);
        let mapped = mapped.expect("room");
        rig.device_writes(mapped.iova(), 20, DEVICE);
        mapped.finish().expect("unmapped");
        assert_eq!(
            (&block[..20], &block[20..]),
            (&[DEVICE; 20][..], &[0; 80][..])
        );
        let sent = any.map_copy(&block).expect("room");
        let seen = rig.device_read(sent.iova(), 100);
        assert!(
            seen.iter()
                .zip(block)
                .all(|(seen, byte)| *seen == Some(byte))
        );
        sent.finish().expect("unmapped");
        let mut ring = any.alloc_coherent::<u64>(600).expect("memory");
        ring.write(599, 7);
        let seen = rig.device_read(ring.iova_of(599), 1);
        assert_eq!(seen, [Some(7)], "P14");
        ring.free().expect("unmapped");
    }
}

#[test]
fn addresses_go_the_same_way() {
    for placement in PLACEMENTS {
        let rig = Rig::new(DmaConfig::default());
        let memory = rig.memory(1);
        let any = AnyClient::from(rig.client(placement));
        let both = Direction::Bidirectional;
        let len = ByteCount(100);
        let mapping = any.map_single(lend(PhysRange::new(memory, len)), both);
        let (iova, mapped) = any.into_raw(mapping.expect("room")).expect("memory");
        assert_eq!(mapped, len);
        rig.device_writes(iova, 20, DEVICE);
        any.sync_raw(iova, HEAD, both, SyncFor::Cpu)
            .expect("inside");
        assert_eq!(rig.peek(memory, 10), [DEVICE; 10], "P7: {placement:?}");
        let other = any.unmap_raw(iova, ByteCount(99), both);
        assert!(matches!(other, Err(RawDmaError::WrongLength { .. })), "P8");
        any.unmap_raw(iova, len, None).expect("unmapped");
        assert_eq!(rig.peek(memory, 20), [DEVICE; 20], "P7: {placement:?}");
        let again = any.unmap_raw(iova, len, None);
        assert_eq!(again, Err(RawDmaError::NotMapped(iova)), "P8");
    }
}

/// A buffer that lies in pieces, in no order, has one address for the device.
#[test]
fn what_is_mapped_by_its_pointer_is_in_a_row_to_the_device() {
    const WHERE: [u64; 3] = [2, 0, 1]; // of its granules
    let buffer = |offset: usize, len: usize| {
        let first = NonNull::without_provenance(NonZero::new(0x7000 + offset).unwrap());
        NonNull::slice_from_raw_parts(first, len)
    };
    for (placement, direction) in PLACEMENTS
        .into_iter()
        .flat_map(|of| DIRECTIONS.map(|to| (of, to)))
    {
        let rig = Rig::new(DmaConfig::default());
        let memory = rig.memory(3);
        let phys = |at: NonNull<u8>| {
            let at = at.addr().get() as u64 - 0x7000;
            PhysAddr(memory.0 + WHERE[(at / GRANULE) as usize] * GRANULE + at % GRANULE)
        };
        let any = AnyClient::from(rig.client(placement));
        for (offset, len) in [(100, 50), (4000, 200), (96, 8292), (0, 3 * 4096)] {
            let what = format!("{placement:?}, {direction:?}, {len} bytes at {offset}");
            rig.poke(memory, &[7; 3 * GRANULE as usize]);
            // SAFETY: the buffer is the rig's memory, which only the test reaches, as a device,
            // too.
            let mapped = unsafe { any.map_raw(buffer(offset, len), direction, phys) };
            let pieces = offset as u64 / GRANULE != (offset + len - 1) as u64 / GRANULE;
            if placement == Placement::SingleUse && pieces {
                assert_eq!(mapped, Err(RawDmaError::NotInARow), "{what}");
                let untouched = rig.peek(memory, 3 * GRANULE as usize);
                assert!(untouched.iter().all(|byte| *byte == 7), "P7: {what}");
                continue;
            }
            let iova = mapped.expect(&what);
            let bytes: Vec<u8> = (0..len).map(|nth| nth as u8 | 0x80).collect();
            let seen = rig.device_read(iova, len as u64);
            let written = rig.device_write(iova, &bytes);
            any.unmap_raw(iova, ByteCount(len as u64), direction)
                .expect("unmapped");
            let byte = |nth: usize| {
                let at = buffer(offset + nth, 1).cast();
                rig.peek(phys(at), 1)[0]
            };
            match direction {
                Direction::ToDevice => assert_eq!(written, 0, "P14: {what}"),
                _ => assert!((0..len).all(|nth| byte(nth) == bytes[nth]), "P7: {what}"),
            }
            if direction != Direction::FromDevice {
                assert_eq!(seen, vec![Some(7); len], "P7: {what}");
            }
            let beside = [offset.checked_sub(1), Some(offset + len)];
            for at in beside.into_iter().flatten().filter(|at| *at < 3 * 4096) {
                let beside = rig.peek(phys(buffer(at, 1).cast()), 1);
                assert_eq!(beside, [7], "P7: beside {what}");
            }
        }
        // SAFETY: nothing is there.
        let none = unsafe { any.map_raw(buffer(0, 0), direction, phys) };
        assert!(matches!(none, Err(RawDmaError::Map(_))), "{none:?}");
        assert_eq!(rig.dma.raw_mappings(), 0);
        drop(any);
        rig.dma.audit().expect("P10: nothing is lost");
        let live = rig.domain.audit().expect("P10").stats.live;
        if [Placement::Never, Placement::SingleUse].contains(&placement) {
            assert_eq!(live, PageCount(0), "P10: {placement:?} has no pool");
        }
    }
}

/// Drivers that synchronise what they want to see may have changed the buffer since.
#[test]
fn an_unmap_without_a_sync_leaves_the_buffer_as_it_is() {
    const LEN: usize = 70 * GRANULE as usize;
    for (placement, direction) in PLACEMENTS
        .into_iter()
        .flat_map(|of| DIRECTIONS.map(|to| (of, to)))
    {
        let rig = Rig::new(DmaConfig::default());
        let memory = rig.memory(70);
        let any = AnyClient::from(rig.client(placement));
        for (offset, len) in [(100, 50), (100, 5 * GRANULE), (100, 60 * GRANULE)] {
            let what = format!("{placement:?}, {direction:?}, {len} bytes");
            let buffer = PhysRange::new(PhysAddr(memory.0 + offset), ByteCount(len));
            let map = || {
                let mapping = any.map_single(lend(buffer), direction).expect("room");
                let where_it_is = !mapping.is_bounced();
                (any.into_raw(mapping).expect("memory"), where_it_is)
            };
            rig.poke(memory, &[7; LEN]);
            let ((iova, mapped), where_it_is) = map();
            rig.device_write(iova, &[DEVICE; 20]);
            any.sync_raw(iova, HEAD, direction, SyncFor::Cpu)
                .expect("inside");
            let seen = rig.peek(buffer.addr, 10);
            let written = direction != Direction::ToDevice;
            let synced = if written { DEVICE } else { 7 };
            assert_eq!(seen, [synced; 10], "P7: {what}");
            rig.poke(buffer.addr, &[9; 10]);
            any.unmap_raw_unsynced(iova, mapped, direction)
                .expect("unmapped");
            assert_eq!(rig.peek(buffer.addr, 10), [9; 10], "P7: {what}");
            // of a split buffer all but its edges is where it is
            let rest = rig.peek(PhysAddr(buffer.addr.0 + 10), 10);
            let rest_is = if written && where_it_is { DEVICE } else { 7 };
            assert_eq!(rest, [rest_is; 10], "P7: {what}");
            let again = any.unmap_raw_unsynced(iova, mapped, direction);
            assert_eq!(again, Err(RawDmaError::NotMapped(iova)), "P8: {what}");
            if direction == Direction::FromDevice && !where_it_is {
                let ((iova, mapped), _) = map();
                any.unmap_raw(iova, mapped, None).expect("unmapped");
                assert_eq!(rig.peek(buffer.addr, 20), [0; 20], "P7: zeroed: {what}");
            }
        }
        rig.dma.audit().expect("P10: nothing is lost");
    }
}

/// A driver that goes leaves what it gave up; nothing of another device ends with it.
#[test]
fn what_a_client_left_ends_at_once() {
    for placement in PLACEMENTS {
        let rig = Rig::new(DmaConfig::default());
        let memory = rig.memory(4);
        rig.poke(memory, &vec![7; 4 * GRANULE as usize]);
        let one = rig.client(placement);
        let (clone, theirs) = (one.clone(), rig.client(placement));
        let [ours, clones, theirs] = [one, clone, theirs].map(AnyClient::from);
        let buffer = |nth: u64| PhysRange::new(PhysAddr(memory.0 + nth * 100), ByteCount(50));
        let give_up = |client: &AnyClient, nth| {
            let mapping = client.map_single(lend(buffer(nth)), Direction::FromDevice);
            client.into_raw(mapping.expect("room")).expect("memory")
        };
        let many: Vec<_> = (0..100).map(|nth| give_up(&ours, nth)).collect();
        let more: Vec<_> = (100..120).map(|nth| give_up(&clones, nth)).collect();
        let (other, len) = give_up(&theirs, 120);
        for (iova, _) in many.iter().chain(&more) {
            rig.device_write(*iova, &[DEVICE; 50]);
        }
        let (gone, its) = many[40];
        ours.unmap_raw_unsynced(gone, its, None).expect("unmapped");
        ours.unmap_raw_all().expect("unmapped");
        assert_eq!(rig.dma.raw_mappings(), 1, "P10: {placement:?}");
        for (iova, len) in many.into_iter().chain(more) {
            let again = ours.unmap_raw(iova, len, None);
            assert_eq!(
                again,
                Err(RawDmaError::NotMapped(iova)),
                "P8: {placement:?}"
            );
        }
        // nothing was copied, to memory that may be another's by now
        let seen = rig.peek(memory, 50);
        if placement != Placement::Never {
            assert_eq!(seen, [7; 50], "P7: {placement:?}");
        }
        rig.device_write(other, &[DEVICE; 50]);
        theirs.unmap_raw(other, len, None).expect("theirs lives");
        assert_eq!(rig.peek(buffer(120).addr, 50), [DEVICE; 50], "P14");
        ours.unmap_raw_all().expect("nothing is left");
        rig.dma.audit().expect("P10: nothing is lost");
    }
}

#[test]
fn what_is_anothers_comes_back_and_its_owner_lives() {
    let rig = Rig::new(DmaConfig::default());
    let memory = rig.memory(1);
    let (one, other) = (rig.client(Placement::Always), rig.client(Placement::Never));
    let (one, other) = (AnyClient::from(one), AnyClient::from(other));
    let alive: Arc<[PhysRange]> = Arc::new([PhysRange::new(memory, ByteCount(100))]);
    let mapping = one.map_sg(lend(alive.clone()), Direction::FromDevice);
    let mapping = mapping.expect("room");
    let iova = mapping.iova();
    let sync = other.sync_for_cpu(&mapping, HEAD);
    assert_eq!(sync, Err(SyncError::Foreign { iova }), "P8");
    let Err(DmaUnmapError::Foreign(mapping)) = other.unmap(mapping) else {
        panic!("P8: it was ended elsewhere");
    };
    assert_eq!(mapping.iova(), iova);
    assert_eq!(Arc::strong_count(&alive), 2, "it is mapped still");
    drop(one.clone().unmap(*mapping).expect("its own"));
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// A unit that fails, as in `owners`.
#[test]
fn an_owner_outlives_an_unmap_that_was_not_flushed() {
    let rig = patchy::Rig::new(PolicyConfig::Strict);
    let page = rig.p.frame_alloc().expect("memory").page();
    let any = AnyClient::from(rig.client(Placement::Never));
    for fails in [true, false] {
        let alive: Arc<[PhysRange]> = Arc::new([PhysRange::page(page)]);
        let mapping = any.map_sg(lend(alive.clone()), Direction::FromDevice);
        let mapping = mapping.expect("room");
        rig.fail(fails);
        let ended = any.unmap(mapping).map(drop);
        rig.fail(false);
        assert_eq!(ended.is_err(), fails);
        let owners = Arc::strong_count(&alive);
        assert_eq!(owners, 1 + usize::from(fails), "P1: it may be reached");
    }
    // nor one of a map that was undone; one that was refused is dropped
    for fails in [true, false] {
        let rig = patchy::Rig::new(PolicyConfig::Strict);
        let page = rig.p.frame_alloc().expect("memory").page();
        let any = AnyClient::from(rig.client(Placement::Never));
        rig.frames_left(3); // the tables of 512 pages
        let alive: Arc<[PhysRange]> = Arc::new([PhysRange::page(page); 1024]);
        rig.fail(fails);
        let refused = any.map_sg(lend(alive.clone()), Direction::FromDevice);
        rig.fail(false);
        assert!(refused.is_err());
        drop(refused);
        let owners = Arc::strong_count(&alive);
        assert_eq!(owners, 1 + usize::from(fails), "P1: it may be reached");
    }
    let error = any.alloc_coherent::<u64>(1).err();
    assert!(
        matches!(error, Some(MapError::NoFrameRun { .. })),
        "{error:?}"
    );
}

/// The buffer was not mapped, and may be reached all the same.
#[test]
fn a_map_by_its_pointer_that_is_not_undone_says_so() {
    for fails in [true, false] {
        let rig = patchy::Rig::new(PolicyConfig::Strict);
        let pages = [0; 2].map(|_| rig.p.frame_alloc().expect("memory").page());
        let any = AnyClient::from(rig.client(Placement::SingleUse));
        let phys = |at: NonNull<u8>| match at.addr().get() as u64 {
            at if at < 2 * GRANULE => PhysAddr(pages[1].addr().0 + at - GRANULE),
            at => PhysAddr(pages[0].addr().0 + at - 2 * GRANULE),
        };
        let first = NonNull::without_provenance(NonZero::new(0x1000).unwrap());
        let buffer = NonNull::slice_from_raw_parts(first, 0x2000);
        rig.fail(fails);
        // SAFETY: no device runs.
        let refused = unsafe { any.map_raw(buffer, Direction::FromDevice, phys) };
        rig.fail(false);
        let says_so = matches!(refused, Err(RawDmaError::Unmap(DmaUnmapError::Direct(_))));
        let is_undone = refused == Err(RawDmaError::NotInARow);
        assert_eq!((says_so, is_undone), (fails, !fails), "P1: {refused:?}");
    }
}

/// A guard's error is counted where the client is.
#[test]
fn errors_of_drops_are_counted() {
    let rig = patchy::Rig::new(PolicyConfig::Strict);
    let page = rig.p.frame_alloc().expect("memory").page();
    let any = AnyClient::from(rig.client(Placement::Never));
    let guard = any.map_guarded(lend(PhysRange::page(page)), Direction::FromDevice);
    let copy = any.map_slice([7; 8], Direction::FromDevice);
    rig.fail(true);
    drop((guard, copy));
    rig.fail(false);
    assert_eq!(rig.dma.drop_errors(), 2);
}
