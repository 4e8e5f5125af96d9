// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine for tests of drivers, as such a test has it.

use ioatlas_dma::{design, dma_api::*, translator::AttachError, units::*};
use ioatlas_viommu::testing::*;

const DISK: SourceId = SourceId::pci(0, 4, 0);
const BLOCK: usize = 512;

/// A driver, on whatever there is: a ring of addresses, and one block at a time.
struct Disk {
    dma: AnyClient,
    ring: Coherent<[u64]>,
}

impl Disk {
    fn new(dma: AnyClient) -> Self {
        let ring = dma.alloc_coherent(64).expect("memory");
        Disk { dma, ring }
    }
    fn read(&mut self, block: &mut [u8], device: impl FnOnce(Iova)) {
        let mapped = self.dma.map_slice(block, Direction::FromDevice);
        let mapped = mapped.expect("room");
        self.ring.write(63, mapped.iova().0);
        device(self.ring.iova_of(63));
        mapped.finish().expect("unmapped");
    }
}

/// What the device does: it looks where the block goes, and writes it.
fn answer(device: &TestDevice, at: Iova, byte: u8) {
    let mut iova = [0; 8];
    device.dma_read(at, &mut iova).expect("P14: the ring");
    let iova = Iova(u64::from_ne_bytes(iova));
    let written = device.dma_write(iova, &[byte; BLOCK]);
    written.expect("P14: the block");
}

#[test]
fn a_driver_runs_under_every_design_and_placement() {
    let machine = TestMachine::new().expect("a machine");
    for preset in design::presets() {
        for placement in crate::suite::placements::PLACEMENTS {
            let client = ClientConfig::default().placement(placement);
            let config = crate::suite::placements::tight(Growth::Fixed);
            let device = machine.device_with(DISK, preset.design, config, client);
            let device = device.expect("it is free again");
            let mut disk = Disk::new(device.client().clone().into());
            let mut block = [0; BLOCK];
            for byte in 1..20 {
                disk.read(&mut block, |at| answer(&device, at, byte));
                assert_eq!(block, [byte; BLOCK], "P7: {}, {placement:?}", preset.name);
            }
            device.check().expect("P10");
        }
    }
}

#[test]
fn a_device_is_there_once_and_gone_with_the_last_that_needs_it() {
    let machine = TestMachine::new().expect("a machine");
    let device = machine.device(DISK).expect("it is free");
    let again = machine.device(DISK);
    assert!(matches!(
        again.err(),
        Some(TestDeviceError::Attach(AttachError::Attached {
            device: DISK,
            ..
        }))
    ));
    let other = machine.device(SourceId::pci(0, 5, 0)).expect("it is free");
    let disk = Disk::new(device.client().clone().into());
    let at = disk.ring.iova();
    assert!(
        other.dma_read(at, &mut [0]).is_err(),
        "P8: of another device"
    );
    let source = device.source();
    drop(device);
    let raw = |at| machine.machine().dma_read(source, at, &mut [0]);
    assert_eq!(raw(at), Ok(()), "P14: its driver has it");
    drop(disk);
    assert!(raw(at).is_err(), "P1: it is gone");
    machine.device(DISK).expect("it is free again");
}

#[test]
fn what_a_driver_has_ended_the_device_reaches_no_more() {
    let machine = TestMachine::new().expect("a machine");
    let device = machine.device(DISK).expect("it is free");
    let buffer = device.buffer::<FromDevice>(ByteCount(GRANULE));
    let given = device.give(buffer.expect("memory")).expect("room");
    let at = given.iova();
    device.dma_write(at, b"a block").expect("P14: mapped");
    let buffer = device.take_back(given).expect("unmapped");
    let refused = device.dma_write(at, b"too late").expect_err("P1: ended");
    assert_eq!((refused.at, refused.moved), (at, ByteCount(0)));
    let mut seen = [0; 8];
    buffer.read(ByteCount(0), &mut seen).expect("inside");
    assert_eq!(&seen, b"a block\0", "P1");
    device.check().expect("P10");
}
