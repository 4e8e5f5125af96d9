// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What drivers ask of addresses is kept, or told that it is not; and nothing stays mapped then.

use crate::platform::phys;
use crate::rig::*;
use dma_api::{DmaConstraints, DmaDirection, DmaError};
use ioatlas_dma::{dma_api::*, iova::Limits, units::*};

const TO: DmaDirection = DmaDirection::ToDevice;
const FOUR_GIB: u64 = u32::MAX as u64;

/// A client of 32-bit addresses.
fn narrow(placement: Placement) -> ClientConfig {
    let end = Some(IovaPage((FOUR_GIB + 1) / GRANULE));
    ClientConfig::default()
        .placement(placement)
        .limits(Limits::NONE.end(end))
}

#[test]
fn a_device_says_what_its_first_client_keeps() {
    let limits = narrow(Placement::Never).limits.boundary_lg2(4);
    let config = ClientConfig::default().limits(limits);
    for (clients, mask, boundary) in [
        ([placed(Placement::Never), config], u64::MAX, None),
        ([config, placed(Placement::Never)], FOUR_GIB, Some(1 << 16)),
    ] {
        let rig = Rig::of(strict(), &clients, phys);
        let said = rig.driver().info().constraints();
        assert_eq!((said.addr_mask, said.boundary), (mask, boundary));
        rig.end();
    }
}

#[test]
fn a_client_of_one_device_keeps_its_mask() {
    for placement in PLACEMENTS {
        let rig = Rig::of(strict(), &[narrow(placement)], phys);
        let driver = rig.driver();
        let mut bytes = [7_u8; 100];
        let map = driver.map_streaming_slice(&mut bytes, 1, TO).unwrap();
        let array = driver.coherent_array_zero::<u64>(10).unwrap();
        for at in [map.dma_addr(), array.dma_addr()] {
            assert!(at.as_u64() + 100 <= FOUR_GIB, "P14: within reach: {at}");
        }
        drop((map, array));
        rig.end();
    }
}

/// Without such a client the driver has an error.
#[test]
fn the_client_that_keeps_a_mask_serves() {
    for placement in PLACEMENTS {
        let rig = Rig::of(strict(), &[placed(placement), narrow(placement)], phys);
        let far = rig.driver();
        let near = far.with_constraints(DmaConstraints::new(FOUR_GIB));
        let (mut one, mut other) = ([7_u8; 100], [8_u8; 100]);
        let one = far.map_streaming_slice(&mut one, 1, TO).unwrap();
        let other = near
            .map_streaming_slice(&mut other, 1, TO)
            .expect("P14: a client serves");
        assert!(one.dma_addr().as_u64() > FOUR_GIB, "from the top down");
        assert!(other.dma_addr().as_u64() < FOUR_GIB, "P14: within reach");
        assert_eq!(rig.read(one.dma_addr().as_u64(), 1).unwrap(), [7]);
        other.prepare_for_device(0..100);
        assert_eq!(rig.read(other.dma_addr().as_u64(), 1).unwrap(), [8]);
        let array = near.coherent_array_zero::<u64>(10).unwrap();
        assert!(array.dma_addr().as_u64() < FOUR_GIB, "P14: within reach");
        drop((one, other, array));
        rig.end();

        let rig = Rig::new(placement);
        let near = rig.driver();
        let near = near.with_constraints(DmaConstraints::new(FOUR_GIB));
        let mut bytes = [7_u8; 100];
        let refused = near.map_streaming_slice(&mut bytes, 1, TO).err();
        assert!(matches!(
            refused,
            Some(DmaError::DmaMaskNotMatch { mask: FOUR_GIB, .. })
        ));
        let refused = near.coherent_array_zero::<u64>(10).err();
        assert_eq!(refused, Some(DmaError::NoMemory));
        rig.end();
    }
}

/// It is where its driver put it, so that only a copy can lie elsewhere.
#[test]
fn a_buffer_that_is_not_aligned_is_bounced_where_a_client_bounces() {
    let mut memory = vec![7_u8; PAGE];
    let bytes = &mut memory[1..101];
    let bytes = match bytes.as_ptr().addr() % 64 {
        0 => &mut bytes[1..],
        _ => bytes,
    };
    let clients = [Placement::Never, Placement::Always].map(placed);
    let rig = Rig::of(strict(), &clients, phys);
    let driver = rig.driver();
    let map = driver
        .map_streaming_slice_for_device(bytes, 64, TO)
        .unwrap();
    assert_eq!(map.dma_addr().as_u64() % 64, 0);
    assert_eq!(rig.read(map.dma_addr().as_u64(), 99).unwrap(), [7; 99]);
    drop(map);
    rig.end();

    let rig = Rig::new(Placement::Never);
    let driver = rig.driver();
    let refused = driver.map_streaming_slice(bytes, 64, TO).err();
    assert!(matches!(
        refused,
        Some(DmaError::AlignMismatch { required: 64, .. })
    ));
    rig.end();
}

#[test]
fn segments_and_boundaries_are_minded() {
    let rig = Rig::new(Placement::Always);
    let any = rig.driver();
    let mut bytes = vec![7_u8; 2 * PAGE];
    let short = DmaConstraints::new(u64::MAX).with_max_segment_size(PAGE);
    let short = any.with_constraints(short);
    let refused = short.map_streaming_slice(&mut bytes, 1, TO).err();
    let (size, max) = (2 * PAGE, PAGE);
    assert_eq!(refused, Some(DmaError::SegmentTooLarge { size, max }));
    assert!(short.map_streaming_slice(&mut bytes[..PAGE], 1, TO).is_ok());
    let bound = DmaConstraints::new(u64::MAX).with_boundary(PAGE);
    let bound = any.with_constraints(bound);
    let refused = bound.map_streaming_slice(&mut bytes, 1, TO).err();
    assert!(matches!(refused, Some(DmaError::BoundaryCross { .. })));
    assert!(bound.map_streaming_slice(&mut bytes[..PAGE], 1, TO).is_ok());
    rig.end();
}
