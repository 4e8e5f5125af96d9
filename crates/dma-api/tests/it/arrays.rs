// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arrays and boxes, which CPU and device share.

use crate::platform::phys;
use crate::rig::*;
use dma_api::{CpuDmaBuffer, DmaDirection};
use ioatlas_dma::dma_api::Placement;
use std::num::NonZero;

#[test]
fn arrays_are_zeroed_and_both_sides_see_them() {
    for placement in PLACEMENTS {
        let rig = Rig::new(placement);
        let driver = rig.driver();
        for _ in 0..2 {
            let mut array = driver.coherent_array_zero::<u64>(1500).unwrap();
            let at = array.dma_addr().as_u64();
            assert_eq!(rig.read(at, 12_000).unwrap(), vec![0; 12_000], "P7");
            array.set_cpu(1499, 0x0102);
            assert_eq!(rig.read(at + 8 * 1499, 2).unwrap(), [2, 1]);
            rig.write(at + 8, &[5]).unwrap();
            assert_eq!(array.read_cpu(1), Some(5));
            rig.write(at, &[0xff; 12_000]).unwrap();
        }
        let direction = DmaDirection::FromDevice;
        let buffer = driver.contiguous_array_zero::<u8>(5000, direction).unwrap();
        rig.write(buffer.dma_addr().as_u64(), &[3; 5000]).unwrap();
        buffer.complete_for_cpu(0..5000);
        assert_eq!(buffer.as_slice_cpu(), vec![3; 5000]);
        let one = driver.coherent_box_zero::<[u16; 3]>().unwrap();
        rig.write(one.dma_addr().as_u64(), &[1, 0, 2, 0, 3, 0])
            .unwrap();
        assert_eq!(one.read_cpu(), [1, 2, 3]);
        drop((buffer, one));
        rig.end();
    }
}

/// Blocked once it is flushed, and nothing else's memory before.
#[test]
fn arrays_that_were_dropped_cannot_be_reached() {
    for domain in [strict(), deferred()] {
        let rig = Rig::of(domain, &[placed(Placement::Never)], phys);
        let before = rig.frames_in_use();
        let array = rig.driver().coherent_array_zero::<u8>(3 * PAGE).unwrap();
        let at = array.dma_addr().as_u64();
        let taken = rig.frames_in_use();
        assert!(taken >= before + 3);
        drop(array);
        if domain == deferred() {
            assert_eq!(rig.frames_in_use(), taken, "freed before the flush");
            rig.flush();
        }
        assert!(rig.frames_in_use() <= taken - 3, "P10: {domain:?}");
        for at in [at, at + 3 * PAGE as u64 - 1] {
            assert!(rig.is_blocked(at), "P1: {domain:?}");
        }
        rig.end();
    }
}

/// Frames of this platform need not be aligned to more than a page: what is asked to be, is or is
/// refused.
#[test]
fn arrays_are_aligned_as_they_are_asked_for() {
    let rig = Rig::new(Placement::Never);
    let driver = rig.driver();
    let mut held = Vec::new();
    for align in (0..=16).map(|lg2| 1 << lg2) {
        match driver.coherent_array_zero_with_align::<u8>(100, align) {
            Ok(array) => {
                assert_eq!(array.dma_addr().as_u64() % align as u64, 0);
                assert_eq!(array.as_ptr().addr().get() % align, 0);
                held.push(array);
            }
            Err(why) => assert!(align > PAGE, "{align}: {why}"),
        }
    }
    drop(held);
    rig.end();
}

#[test]
fn what_has_no_bytes_takes_no_memory() {
    let rig = Rig::new(Placement::Never);
    let driver = rig.driver();
    let before = rig.frames_in_use();
    let array = driver.coherent_array_zero::<u64>(0).unwrap();
    assert!(array.is_empty() && array.as_ptr().is_aligned());
    assert_eq!(rig.frames_in_use(), before);
    drop(array);
    rig.end();
}

/// Devices are told apart, so that a buffer is not given to one for whose domain its address is
/// not.
#[test]
fn a_buffer_says_whose_it_is() {
    let (ours, theirs) = (Rig::new(Placement::Never), Rig::new(Placement::Never));
    let len = NonZero::new(100).unwrap();
    let buffer = CpuDmaBuffer::new_zero(&ours.driver(), len, 1, DmaDirection::ToDevice).unwrap();
    assert_eq!(buffer.domain_id(), ours.driver().info().domain());
    assert_ne!(buffer.domain_id(), theirs.driver().info().domain());
    drop(buffer);
    ours.end();
    theirs.end();
}
