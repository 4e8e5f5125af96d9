// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The platform: where memory lies, what devices may have of it, how it is copied.

use crate::BY;
use crate::suite::rig::memory;
use ioatlas_dma::{platform::*, units::*};
use ioatlas_vfio::{kernel::VirtAddr, platform::*};
use std::sync::Arc;

#[test]
fn a_frame_is_a_page_of_this_process() {
    let memory = memory(16);
    let frame = memory.frame_alloc().unwrap();
    let at = frame.page().addr();
    let table = frame.publish();
    memory
        .write(BY, &7u64.to_le_bytes(), PhysAddr(at.0 + 8))
        .unwrap();
    let words = memory.entries(BY, table.by_ref());
    assert_eq!(words.as_ptr() as u64, at.0);
    assert_eq!(words[1].load(Ordering::Relaxed), 7);
    let run = PhysRun::new(at.page(), PageCount(1));
    assert_eq!(memory.address(run), Some(VirtAddr(at.0)));
}

#[test]
fn a_low_arena_is_low_and_several_of_them_are_apart() {
    let config = |bits| {
        UserSpaceConfig::default()
            .pages(PageCount(1024))
            .place(ArenaPlace::Below(bits))
    };
    let several: Vec<_> = (0..4)
        .map(|_| UserSpace::new(config(37)).unwrap())
        .collect();
    let mut firsts: Vec<_> = several.iter().map(|m| m.arena().first.0).collect();
    firsts.sort();
    firsts.dedup();
    assert_eq!(firsts.len(), 4);
    assert!(firsts.iter().all(|first| first + 1024 <= 1 << 25));
    let error = UserSpace::new(config(20)).map(drop).unwrap_err();
    assert!(
        matches!(error, ArenaError::NoLowPlace { bits: 20, .. }),
        "{error}"
    );
    let huge = UserSpaceConfig::default().pages(PageCount(u64::MAX));
    let error = UserSpace::new(huge).map(drop).unwrap_err();
    assert!(matches!(error, ArenaError::Length { .. }), "{error}");
}

#[test]
fn frames_come_back_zeroed_and_buffers_adjoin() {
    let memory = memory(8);
    let buffer = memory.buffer(ByteCount(3 * GRANULE + 1)).unwrap();
    assert_eq!(memory.frames_in_use(), PageCount(4));
    let end = ByteCount(3 * GRANULE - 2);
    buffer.write(end, b"abc").unwrap();
    let mut read = [0; 3];
    buffer.read(end, &mut read).unwrap();
    assert_eq!(&read, b"abc");
    assert!(buffer.write(ByteCount(3 * GRANULE - 1), b"abc").is_err());
    assert!(buffer.read(ByteCount(u64::MAX), &mut read).is_err());
    assert!(
        buffer
            .part(ByteCount(1), ByteCount(3 * GRANULE + 1))
            .is_none()
    );
    let range = buffer.range();
    drop(buffer);
    let again = memory.buffer(ByteCount(8 * GRANULE)).unwrap();
    assert_eq!(again.range().addr, range.addr);
    let mut all = vec![1; 8 * GRANULE as usize];
    again.read(ByteCount(0), &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0));
    assert!(memory.frame_alloc().is_none() && memory.buffer(ByteCount(1)).is_none());
    assert!(memory.buffer(ByteCount(0)).is_none());
}

#[test]
fn what_is_not_memory_is_refused_before_a_byte_moves() {
    let memory = memory(4);
    let arena = memory.arena();
    let end = PhysAddr((arena.first.0 + 4) << GRANULE_LG2);
    let across = PhysRange::new(PhysAddr(end.0 - 8), ByteCount(16));
    assert!(!memory.is_memory(across));
    assert!(memory.is_memory(PhysRange::new(across.addr, ByteCount(8))));
    assert!(memory.copy(BY, across, arena.first.addr()).is_err());
    assert!(
        memory
            .zero(BY, PhysRange::new(PhysAddr(u64::MAX), ByteCount(2)))
            .is_err()
    );
    assert!(memory.write(BY, &[0; 16], across.addr).is_err());
    assert!(memory.read(BY, PhysAddr(8), &mut [0; 8]).is_err());
}

#[test]
fn no_part_lies_beyond_its_buffer_wherever_it_is_said_to_begin() {
    let memory = memory(4);
    let buffer = memory.buffer(ByteCount(100)).unwrap();
    assert!(buffer.part(ByteCount(100), ByteCount(0)).is_some());
    for (at, len) in [(u64::MAX, 0), (u64::MAX - 1, 1), (101, 0), (1, u64::MAX)] {
        let (at, len) = (ByteCount(at), ByteCount(len));
        assert_eq!(buffer.part(at, len), None);
        assert!(buffer.read(at, &mut []).is_err() || at.0 <= 100);
    }
}

#[test]
fn what_was_lent_is_memory_from_then_on() {
    let other = Arc::new(UserSpace::new(UserSpaceConfig::default().pages(PageCount(4))).unwrap());
    let memory = memory(4);
    let range = other.buffer(ByteCount(2 * GRANULE)).unwrap().range();
    let run = range.run();
    assert_eq!(memory.address(run), None);
    let at = VirtAddr(range.addr.0);
    // SAFETY: it lives longer than `memory`, and is words of an arena.
    unsafe { memory.lend(at, range.len) }.unwrap();
    assert_eq!(memory.address(run), Some(at));
    let longer = PhysRun::new(run.first, PageCount(3));
    assert_eq!(memory.address(longer), None);
    memory.write(BY, b"lent", range.addr).unwrap();
    let mut read = [0; 4];
    other.read(BY, range.addr, &mut read).unwrap();
    assert_eq!(&read, b"lent");
    for (at, len) in [
        (at.0 + 1, GRANULE),
        (at.0, 100),
        (at.0, 0),
        (u64::MAX - 4095, GRANULE),
    ] {
        // SAFETY: it is refused.
        let refused = unsafe { memory.lend(VirtAddr(at), ByteCount(len)) };
        assert!(refused.unwrap_err().to_string().contains("whole pages"));
    }
    drop(memory);
}
