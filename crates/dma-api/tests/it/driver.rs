// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A whole driver on dma-api, of a device that copies memory: a ring of descriptors in an array,
//! buffers mapped for each request, and the device works in the driver's calls.

use crate::platform::phys;
use crate::rig::*;
use crate::window::Window;
use dma_api::{CoherentArray, DeviceDma, DmaDirection, DmaError};

/// What the device is to copy.
#[derive(Clone, Copy)]
#[repr(C)]
struct Descriptor {
    from: u64,
    to: u64,
    len: u64,
    /// The device writes it: how many bytes it has copied, and one more.
    done: u64,
}

const RING: usize = 8;
const DESCRIPTOR: u64 = size_of::<Descriptor>() as u64;

struct CopyDriver {
    dma: DeviceDma,
    ring: CoherentArray<Descriptor>,
    next: usize,
}

impl CopyDriver {
    fn new(dma: DeviceDma) -> Result<Self, DmaError> {
        let ring = dma.coherent_array_zero(RING)?;
        let next = 0;
        Ok(CopyDriver { dma, ring, next })
    }

    /// Has the device copy, which `doorbell` starts at a descriptor's address.
    fn copy(
        &mut self,
        from: &mut [u8],
        to: &mut [u8],
        doorbell: impl FnOnce(u64),
    ) -> Result<u64, DmaError> {
        let len = from.len() as u64;
        let (there, back) = (DmaDirection::ToDevice, DmaDirection::FromDevice);
        let from = self.dma.map_streaming_slice_for_device(from, 1, there)?;
        let to = self.dma.map_streaming_slice(to, 1, back)?;
        to.prepare_for_device(0..to.bytes_len());
        let descriptor = Descriptor {
            from: from.dma_addr().as_u64(),
            to: to.dma_addr().as_u64(),
            len,
            done: 0,
        };
        self.ring.set_cpu(self.next, descriptor);
        doorbell(self.ring.dma_addr().as_u64() + self.next as u64 * DESCRIPTOR);
        let done = self.ring.read_cpu(self.next).expect("within the ring").done;
        to.complete_for_cpu(0..to.bytes_len());
        self.next = (self.next + 1) % RING;
        Ok(done)
    }
}

/// The device: it has nothing but addresses.
fn serve(rig: &Rig, descriptor: u64) {
    let field = |nth: u64| {
        let bytes = rig
            .read(descriptor + 8 * nth, 8)
            .expect("the ring is mapped");
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    let [from, to, len] = [0, 1, 2].map(field);
    let data = rig.read(from, len as usize).expect("it may read");
    rig.write(to, &data).expect("it may write");
    rig.write(descriptor + 24, &(len + 1).to_le_bytes())
        .expect("the ring is mapped both ways");
}

#[test]
fn what_is_copied_arrives_under_each_placement_and_policy() {
    for (domain, placement) in [strict(), deferred()]
        .into_iter()
        .flat_map(|domain| PLACEMENTS.map(|of| (domain, of)))
    {
        let rig = Rig::of(domain, &[placed(placement)], phys);
        let mut driver = CopyDriver::new(rig.driver()).unwrap();
        let mut memory: Vec<u8> = (0..40 * PAGE).map(|nth| (nth * 7 % 251) as u8).collect();
        for (at, len) in [
            (0, 1),
            (1, 63),
            (100, 512),
            (4000, 200),
            (17, 3 * PAGE),
            (5, 12 * PAGE),
        ] {
            for _ in 0..RING {
                let (source, target) = memory.split_at_mut(20 * PAGE);
                target.fill(0);
                let (source, target) = (&mut source[at..at + len], &mut target[at..at + len]);
                let done = driver.copy(source, target, |at| serve(&rig, at)).unwrap();
                assert_eq!(done, len as u64 + 1);
                assert!(source == target, "P7: {placement:?}, {len} bytes at {at}");
                let outside = [20 * PAGE + at + len, 20 * PAGE + at.saturating_sub(1)];
                let beside = memory[outside[0]] | if at > 0 { memory[outside[1]] } else { 0 };
                assert_eq!(beside, 0, "P7: {placement:?}, beside {len} bytes at {at}");
            }
        }
        assert_eq!(rig.faults(), 0, "P14");
        drop(driver);
        rig.end();
    }
}

/// As it is of a kernel's `vmalloc`.
#[test]
fn buffers_need_not_be_contiguous_in_physical_memory() {
    for placement in PLACEMENTS {
        let mut window = Window::new(&[3, 1, 0, 2]);
        let rig = Rig::of(strict(), &[placed(placement)], window.phys(phys));
        let mut driver = CopyDriver::new(rig.driver()).unwrap();
        let mut target = vec![0; 3 * PAGE];
        for (nth, byte) in window.bytes().iter_mut().enumerate() {
            *byte = (nth / 16) as u8;
        }
        let source = &mut window.bytes()[50..50 + 3 * PAGE];
        driver
            .copy(source, &mut target, |at| serve(&rig, at))
            .unwrap();
        assert!(
            window.bytes()[50..50 + 3 * PAGE] == target,
            "P7: {placement:?}"
        );
        drop(driver);
        rig.end();
    }
}
