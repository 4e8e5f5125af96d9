// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What cannot be had is refused: by an answer where `Hal` has one, else by a panic that says what
//! failed. Nothing stays mapped then.

use crate::disk::SECTOR;
use crate::platform::phys;
use crate::port::{ACCESS_PLATFORM, VERSION_1};
use crate::setup::{FirstHal, MODERN, Protection, Setup};
use crate::soft::machine;
use crate::window::Window;
use ioatlas_dma::{dma_api::Placement, domain::ListOrder, units::*};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use virtio_drivers::device::blk::VirtIOBlk;
use virtio_drivers::transport::{DeviceStatus, Transport};
use virtio_drivers::{BufferDirection, Error};

const SOURCE: SourceId = SourceId(0x20);

/// The sentence that `f` panics with.
fn panics<R>(f: impl FnOnce() -> R) -> String {
    let panicked = catch_unwind(AssertUnwindSafe(f)).err().expect("no panic");
    *panicked.downcast::<String>().expect("a sentence")
}

/// A domain with so few pages.
fn narrow(pages: u64) -> Protection {
    let mut protection = Protection::strict(Placement::Never);
    protection.domain.aperture = Some(IovaRange::new(IovaPage(0), PageCount(pages)));
    protection
}

#[test]
fn only_what_was_allocated_is_deallocated() {
    let setup = Setup::new(Protection::strict(Placement::Never));
    let device = setup.device;
    // SAFETY: nothing uses the pages.
    let dealloc = |iova, at, pages| unsafe { device.dma_dealloc(iova, at, pages) };
    let (iova, at) = device.dma_alloc(3);
    let (other_iova, other_at) = device.dma_alloc(3);
    assert_ne!(iova, 0);
    let taken = setup.frames_in_use();
    assert_eq!(dealloc(0x1234_5000, at, 3), -1);
    assert_eq!(dealloc(iova + GRANULE, at, 3), -1);
    assert_eq!(dealloc(iova, at, 2), -1);
    assert_eq!(dealloc(iova, other_at, 3), -1);
    assert_eq!(setup.frames_in_use(), taken);
    setup
        .port
        .device()
        .write(Iova(iova), &[1; 3 * GRANULE as usize])
        .unwrap();
    assert_eq!(dealloc(iova, at, 3), 0);
    assert_eq!(dealloc(iova, at, 3), -1);
    assert_eq!(dealloc(other_iova, other_at, 3), 0);
    assert!(setup.frames_in_use() <= taken - 6);
    setup.end();
}

#[test]
fn pages_are_zeroed_aligned_and_in_a_row() {
    let setup = Setup::new(Protection::strict(Placement::Never));
    let len = 5 * GRANULE as usize;
    for _ in 0..2 {
        let (iova, at) = setup.device.dma_alloc(5);
        assert_eq!((iova % GRANULE, at.addr().get() as u64 % GRANULE), (0, 0));
        let mut seen = vec![1; len];
        setup.port.device().read(Iova(iova), &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 0));
        // SAFETY: so many bytes are ours until they are deallocated.
        unsafe { at.write_bytes(0x5a, len) };
        setup.port.device().read(Iova(iova), &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 0x5a));
        // SAFETY: nothing uses them any more.
        assert_eq!(unsafe { setup.device.dma_dealloc(iova, at, 5) }, 0);
    }
    setup.end();
}

#[test]
fn where_there_are_no_frames_the_address_is_zero() {
    let machine = machine(64);
    let protection = Protection::strict(Placement::Never);
    let setup = Setup::with(machine, protection, SOURCE, MODERN, phys);
    let all = || setup.device.dma_alloc(1);
    for pages in [0, 65, usize::MAX] {
        assert_eq!(setup.device.dma_alloc(pages).0, 0, "{pages} pages");
    }
    let had: Vec<_> = std::iter::from_fn(|| Some(all()).filter(|(iova, _)| *iova != 0)).collect();
    assert!(had.len() > 20, "{}", had.len());
    setup.use_first();
    let transport = setup.device.transport(setup.port.clone()).unwrap();
    let driver = VirtIOBlk::<FirstHal, _>::new(transport);
    assert_eq!(driver.err(), Some(Error::DmaError));
    for (iova, at) in had {
        // SAFETY: nothing uses it.
        assert_eq!(unsafe { setup.device.dma_dealloc(iova, at, 1) }, 0);
    }
    drop(setup.driver());
    setup.end();
}

/// To virtio-drivers that address is a failure.
#[test]
fn page_zero_is_no_address() {
    let setup = Setup::of(narrow(8), MODERN, phys);
    let some = || Some(setup.device.dma_alloc(1)).filter(|(iova, _)| *iova != 0);
    let had: Vec<_> = std::iter::from_fn(some).collect();
    let mut pages: Vec<u64> = had.iter().map(|(iova, _)| iova / GRANULE).collect();
    pages.sort();
    assert_eq!(pages, [1, 2, 3, 4, 5, 6, 7]);
    for (iova, at) in had {
        // SAFETY: nothing uses it.
        assert_eq!(unsafe { setup.device.dma_dealloc(iova, at, 1) }, 0);
    }
    setup.end();
}

#[test]
fn a_buffer_that_cannot_be_shared_panics() {
    let setup = Setup::of(narrow(8), MODERN, phys);
    let mut memory = vec![0; 16 * GRANULE as usize];
    let buffer = NonNull::from(&mut memory[..]);
    let direction = BufferDirection::Both;
    // SAFETY: nothing else uses it meanwhile.
    let said = panics(|| unsafe { setup.device.share(buffer, direction) });
    assert!(
        said.starts_with("a virtio buffer of 65536 bytes: "),
        "{said}"
    );
    let empty = NonNull::slice_from_raw_parts(buffer.cast(), 0);
    // SAFETY: as above.
    let said = panics(|| unsafe { setup.device.share(empty, direction) });
    assert!(said.starts_with("a virtio buffer of 0 bytes: "), "{said}");
    setup.end();
}

#[test]
fn what_is_unshared_otherwise_than_it_was_shared_panics() {
    let setup = Setup::new(Protection::strict(Placement::Never));
    let mut memory = vec![0; SECTOR];
    let buffer = NonNull::from(&mut memory[..]);
    let shorter = NonNull::slice_from_raw_parts(buffer.cast(), SECTOR - 1);
    let (read, written) = (
        BufferDirection::DriverToDevice,
        BufferDirection::DeviceToDriver,
    );
    let device = setup.device;
    // SAFETY: nothing else uses it meanwhile; what is unshared wrongly stays shared.
    unsafe {
        let iova = device.share(buffer, read);
        let said = panics(|| device.unshare(iova, shorter, read));
        assert!(said.starts_with("a virtio buffer of 511 bytes"), "{said}");
        panics(|| device.unshare(iova, buffer, written));
        panics(|| device.unshare(iova + GRANULE, buffer, read));
        setup
            .port
            .device()
            .read(Iova(iova), &mut [0; SECTOR])
            .unwrap();
        device.unshare(iova, buffer, read);
        panics(|| device.unshare(iova, buffer, read));
    }
    setup.end();
}

/// A device has one address for a buffer, so what follows must be at what follows.
#[test]
fn segments_that_the_domain_does_not_map_in_a_row_panic() {
    let mut descending = Protection::strict(Placement::Never);
    descending.domain.order = ListOrder::Descending;
    for protection in [descending, Protection::strict(Placement::SingleUse)] {
        let mut window = Window::new(&[1, 0]);
        let translate = window.phys(phys);
        let setup = Setup::of(protection, MODERN, translate);
        let buffer = NonNull::from(window.bytes());
        let direction = BufferDirection::Both;
        // SAFETY: nothing else uses it meanwhile.
        let said = panics(|| unsafe { setup.device.share(buffer, direction) });
        assert!(said.contains("in a row"), "{said}");
        setup.end();
    }
}

/// To a disk that bypasses the unit an IOVA would be a physical address.
#[test]
fn a_device_that_is_not_translated_is_refused() {
    let protection = Protection::strict(Placement::Never);
    let setup = Setup::of(protection, VERSION_1, phys);
    let refused = setup.device.transport(setup.port.clone()).err().unwrap();
    let said = refused.to_string();
    assert!(said.contains("ACCESS_PLATFORM"), "{said}");
    drop(refused);
    setup.end();
}

/// virtio-drivers knows nothing of the feature, and does not look whether its own were accepted.
#[test]
fn a_driver_alone_does_not_accept_that_its_device_is_translated() {
    let setup = Setup::new(Protection::strict(Placement::Never));
    let is_served = || setup.port.get_status().contains(DeviceStatus::DRIVER_OK);
    assert_eq!(
        setup.port.device().features & ACCESS_PLATFORM,
        ACCESS_PLATFORM
    );
    setup.use_first();
    drop(VirtIOBlk::<FirstHal, _>::new(setup.port.clone()).unwrap());
    assert!(!is_served());
    let driver = setup.driver();
    assert!(is_served());
    drop(driver);
    setup.end();
}
