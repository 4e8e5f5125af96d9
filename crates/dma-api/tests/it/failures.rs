// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What cannot be had is refused: by an error where dma-api has one, else by a panic that says what
//! failed. Nothing stays mapped then.

use crate::platform::phys;
use crate::rig::*;
use dma_api::*;
use ioatlas_dma::{dma_api::Placement, domain::ListOrder, units::*};
use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{num::NonZero, ptr::NonNull};

/// The sentence that `f` panics with.
fn panics<R>(f: impl FnOnce() -> R) -> String {
    let panicked = catch_unwind(AssertUnwindSafe(f)).err().expect("no panic");
    match panicked.downcast::<String>() {
        Ok(sentence) => *sentence,
        Err(other) => other.downcast::<&str>().expect("a sentence").to_string(),
    }
}

const ANY: DmaConstraints = DmaConstraints::new(u64::MAX);

/// Maps 200 bytes by the trait, whose handles can be held wrongly.
fn map(rig: &Rig, bytes: &mut [u8; 200]) -> DmaMapHandle {
    let (at, len) = (NonNull::from(bytes).cast(), NonZero::new(200).unwrap());
    // SAFETY: nothing else uses it until it is unmapped.
    unsafe {
        rig.device()
            .map_streaming(ANY, at, len, DmaDirection::FromDevice)
    }
    .unwrap()
}

/// The same of other bytes.
fn beside(handle: &DmaMapHandle, by: u64, len: usize) -> DmaMapHandle {
    let at = DmaAddr::from(handle.dma_addr().as_u64() + by);
    let layout = Layout::from_size_align(len, 1).unwrap();
    // SAFETY: the CPU's address is not used, and the device's is not given to it.
    unsafe { DmaMapHandle::new(handle.as_ptr(), at, layout, None) }
}

#[test]
fn what_is_unmapped_otherwise_than_it_was_mapped_panics() {
    for placement in PLACEMENTS {
        let rig = Rig::of(strict(), &[placement, Placement::Always].map(placed), phys);
        let mut bytes = [7; 200];
        let handle = map(&rig, &mut bytes);
        // SAFETY: what is unmapped wrongly stays mapped.
        let unmap = |handle| unsafe { rig.device().unmap_streaming(handle) };
        for wrong in [beside(&handle, 0, 199), beside(&handle, PAGE as u64, 200)] {
            let said = panics(|| unmap(wrong));
            assert!(said.contains("is still mapped: "), "P8: {said}");
        }
        rig.write(handle.dma_addr().as_u64(), &[1; 200]).unwrap();
        unmap(handle);
        let said = panics(|| unmap(handle));
        assert!(said.contains("no mapping"), "P8: twice: {said}");
        rig.end();
    }
}

#[test]
fn what_is_synchronised_otherwise_than_it_is_mapped_panics() {
    let rig = Rig::new(Placement::Always);
    let mut bytes = [7; 200];
    let handle = map(&rig, &mut bytes);
    rig.write(handle.dma_addr().as_u64(), &[1; 200]).unwrap();
    let (ok, back) = (DmaCoherency::Coherent, DmaDirection::FromDevice);
    let sync = |handle, offset, size, direction, coherency| {
        panics(|| {
            rig.device()
                .sync_map_for_cpu(handle, offset, size, direction, coherency)
        })
    };
    let elsewhere = beside(&handle, PAGE as u64, 200);
    for said in [
        sync(&handle, 100, 101, back, ok),
        sync(&handle, usize::MAX, 2, back, ok),
        sync(&handle, 0, 10, DmaDirection::Bidirectional, ok),
        sync(&elsewhere, 0, 10, back, ok),
        sync(&handle, 0, 10, back, DmaCoherency::NonCoherent),
    ] {
        let says_why = said.contains("were not synchronised: ") || said.contains("not coherent");
        assert!(says_why, "P8: {said}");
    }
    assert_eq!(bytes, [7; 200]);
    // SAFETY: it was mapped, and nothing uses it.
    unsafe { rig.device().unmap_streaming(handle) };
    rig.end();
}

#[test]
fn what_was_not_allocated_here_panics_where_it_is_freed() {
    let (ours, theirs) = (Rig::new(Placement::Never), Rig::new(Placement::Never));
    let layout = Layout::from_size_align(3 * PAGE, 8).unwrap();
    // SAFETY: it is freed by its owner below; before it is refused.
    unsafe {
        let handle = ours.device().alloc_contiguous(ANY, layout).unwrap();
        let said = panics(|| theirs.device().dealloc_contiguous(handle));
        assert!(said.contains("were not freed: "), "P8: {said}");
        ours.device().dealloc_contiguous(handle);
        let said = panics(|| ours.device().dealloc_contiguous(handle));
        assert!(said.contains("were not freed: "), "P8: twice: {said}");
    }
    ours.end();
    theirs.end();
}

#[test]
fn nothing_is_allocated_for_devices_that_are_not_coherent() {
    let rig = Rig::new(Placement::Never);
    let info = rig.driver().info();
    let info = DmaDeviceInfo::new(info.domain(), DmaCoherency::NonCoherent, info.constraints());
    let driver = DeviceDma::new(info, rig.device());
    let refused = driver.coherent_array_zero::<u64>(10).err();
    assert_eq!(refused, Some(DmaError::NoMemory));
    let direction = DmaDirection::ToDevice;
    let array = driver.contiguous_array_zero::<u8>(10, direction).unwrap();
    let said = panics(|| array.prepare_for_device(0..10));
    assert!(said.contains("not coherent"), "{said}");
    drop(array);
    rig.end();
}

#[test]
fn where_there_is_no_room_maps_and_arrays_are_refused() {
    let mut narrow = strict();
    narrow.aperture = Some(IovaRange::new(IovaPage(0), PageCount(8)));
    let rig = Rig::of(narrow, &[placed(Placement::Never)], phys);
    let driver = rig.driver();
    let mut bytes = vec![7_u8; 16 * PAGE];
    let direction = DmaDirection::Bidirectional;
    let refused = driver.map_streaming_slice(&mut bytes, 1, direction).err();
    assert_eq!(refused, Some(DmaError::NoMemory));
    let refused = driver.coherent_array_zero::<u8>(16 * PAGE).err();
    assert_eq!(refused, Some(DmaError::NoMemory));
    let refused = driver
        .coherent_array_zero::<u8>(isize::MAX as usize - PAGE)
        .err();
    assert_eq!(refused, Some(DmaError::NoMemory));
    rig.end();
}

/// A device has one address for a buffer, so what follows must be at what follows.
#[test]
fn pieces_that_the_domain_does_not_map_in_a_row_are_refused() {
    let mut descending = strict();
    descending.order = ListOrder::Descending;
    let mut window = crate::window::Window::new(&[1, 0]);
    let clients = [placed(Placement::Never)];
    let rig = Rig::of(descending, &clients, window.phys(phys));
    let driver = rig.driver();
    let direction = DmaDirection::ToDevice;
    let refused = driver
        .map_streaming_slice(window.bytes(), 1, direction)
        .err();
    assert_eq!(refused, Some(DmaError::NoMemory));
    rig.end();
}
