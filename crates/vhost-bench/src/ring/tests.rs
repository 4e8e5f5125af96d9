// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device could say that cannot be.

use super::*;
use ioatlas_dma::platform::Ordering;

fn ring<R: DriverRing>() -> (Arc<Ram>, R) {
    let (ram, _) = Ram::new(ByteCount(1 << 16)).unwrap();
    let ram = Arc::new(ram);
    let mut ring = R::new(ram.clone(), 0, 4, Suppression::Flags);
    for token in 0..3 {
        assert!(ring.add(token + 40, Iova(0x1000), 64, AccessKind::Write));
    }
    assert_eq!(ring.publish(), Kick::Wanted);
    assert_eq!(ring.take(), Ok(None));
    assert_eq!(ring.in_ring(), 3);
    (ram, ring)
}

#[test]
fn split_used_entries_are_checked() {
    let (ram, mut ring) = ring::<SplitRing>();
    let used = ring.parts(&|at| at as u64).device as usize;
    let used = |slot: usize, id: u32, index: u16| {
        ram.store(used + 4 + 8 * slot, id, Ordering::Relaxed);
        ram.store(used + 8 + 8 * slot, 9u32, Ordering::Relaxed);
        ram.store(used + 2, index, Ordering::Release);
    };
    used(0, 1, 1);
    let (token, written) = (41, 9);
    assert_eq!(ring.take(), Ok(Some(Used { token, written })));
    used(1, 1, 2);
    assert_eq!(ring.take(), Err(RingFault::NotInRing { id: 1 }), "again");
    used(1, 4, 2);
    assert_eq!(ring.take(), Err(RingFault::NotInRing { id: 4 }));
    used(1, 0, 2);
    assert_eq!(ring.take().unwrap().unwrap().token, 40);
    used(2, 0, 9);
    let (used, in_ring) = (7, 1);
    assert_eq!(ring.take(), Err(RingFault::TooMany { used, in_ring }));
}

#[test]
fn packed_used_descriptors_are_checked() {
    let (ram, mut ring) = ring::<PackedRing>();
    let used = |place: usize, id: u16| {
        ram.store(16 * place + 12, id, Ordering::Relaxed);
        ram.store(16 * place + 14, 0x8080u16, Ordering::Release);
    };
    used(0, 2);
    assert_eq!(ring.take().unwrap().unwrap().token, 42);
    used(1, 2);
    assert_eq!(ring.take(), Err(RingFault::NotInRing { id: 2 }), "again");
    used(1, 1);
    assert_eq!(ring.take().unwrap().unwrap().token, 41);
}

fn a_full_ring_takes_no_more<R: DriverRing>() {
    let (_, mut ring) = ring::<R>();
    assert!(ring.add(43, Iova(0x1000), 64, AccessKind::Read));
    assert!(!ring.add(44, Iova(0x1000), 64, AccessKind::Read));
}

#[test]
fn a_full_split_ring_takes_no_more() {
    a_full_ring_takes_no_more::<SplitRing>();
}

#[test]
fn a_full_packed_ring_takes_no_more() {
    a_full_ring_takes_no_more::<PackedRing>();
}

/// Adds and publishes one buffer, and has it used; says whether a kick was wanted.
fn one<R: DriverRing>(ring: &mut R, use_it: &dyn Fn()) -> Kick {
    assert!(ring.add(7, Iova(0x1000), 64, AccessKind::Write));
    let kick = ring.publish();
    use_it();
    assert!(ring.take().unwrap().is_some());
    kick
}

#[test]
fn a_split_ring_kicks_at_the_entry_that_the_device_names_and_wants_no_call() {
    let (ram, _) = Ram::new(ByteCount(1 << 16)).unwrap();
    let ram = Arc::new(ram);
    let mut ring = SplitRing::new(ram.clone(), 0, 4, Suppression::EventIndex);
    let parts = ring.parts(&|at| at as u64);
    let (driver, device) = (parts.driver as usize, parts.device as usize);
    let event = |index: u16| ram.store(device + 4 + 8 * 4, index, Ordering::Relaxed);
    // Round and round, past the end of the ring and of 16 bits.
    for index in (0..70_000u32).map(|index| index as u16) {
        let id = 0u32;
        let use_it = || {
            let slot = usize::from(index & 3);
            ram.store(device + 4 + 8 * slot, id, Ordering::Relaxed);
            ram.store(device + 2, index.wrapping_add(1), Ordering::Release);
        };
        let (named, expected) = match index % 3 {
            0 => (index, Kick::Wanted),
            1 => (index.wrapping_add(1), Kick::Unwanted),
            _ => (index.wrapping_sub(1), Kick::Unwanted),
        };
        event(named);
        assert_eq!(one(&mut ring, &use_it), expected, "entry {index}");
        // The device calls for an entry from its last one on: this one is before.
        let call: u16 = ram.load(driver + 4 + 2 * 4, Ordering::Relaxed);
        assert_eq!(call, index);
    }
}

#[test]
fn a_packed_ring_kicks_at_the_descriptor_that_the_device_names() {
    let (ram, _) = Ram::new(ByteCount(1 << 16)).unwrap();
    let ram = Arc::new(ram);
    let mut ring = PackedRing::new(ram.clone(), 0, 4, Suppression::EventIndex);
    let device = ring.parts(&|at| at as u64).device as usize;
    ram.store(device + 2, 2u16, Ordering::Relaxed);
    for index in 0..40u16 {
        let (slot, wrap) = (index % 4, (index / 4).is_multiple_of(2));
        let use_it = || {
            let flags = if wrap { 0x8080u16 } else { 0 };
            ram.store(16 * usize::from(slot) + 14, flags, Ordering::Release);
        };
        let name = |index: u16| {
            let wrap = if (index / 4).is_multiple_of(2) {
                1 << 15
            } else {
                0
            };
            (index % 4) | wrap
        };
        let (named, expected) = match index % 3 {
            0 => (index, Kick::Wanted),
            1 if slot < 3 => (index + 1, Kick::Unwanted),
            _ if index > 0 => (index - 1, Kick::Unwanted),
            _ => continue,
        };
        ram.store(device, name(named), Ordering::Relaxed);
        assert_eq!(one(&mut ring, &use_it), expected, "descriptor {index}");
    }
}
