// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a disk that misbehaves can do, and cannot.

use crate::disk::{Disk, SECTOR};
use crate::platform::phys;
use crate::port::Virtio;
use crate::setup::{MODERN, Protection, Setup, UNTRUSTED};
use crate::window::Window;
use ioatlas_dma::{dma_api::Placement, units::*};
use ioatlas_viommu::machine::{TransferError, TransferErrorReason};
use std::ptr::NonNull;
use virtio_drivers::{BufferDirection, Error};

fn is_blocked(moved: Result<(), TransferError>) -> bool {
    moved.is_err_and(|why| matches!(why.reason, TransferErrorReason::Fault(_)))
}

/// Neither way.
fn cannot_reach(disk: &Virtio<Disk>, at: Iova) -> bool {
    is_blocked(disk.read(at, &mut [0])) && is_blocked(disk.write(at, &[0xee]))
}

#[test]
fn what_was_unshared_cannot_be_reached() {
    let setup = Setup::new(Protection::strict(Placement::Never));
    let mut driver = setup.driver();
    setup.port.device().sectors.fill(0x33);
    let mut buffer = vec![0; 9 * SECTOR];
    driver.read_blocks(3, &mut buffer).unwrap();
    {
        let disk = setup.port.device();
        assert_eq!(disk.last.len(), 3); // header, data, status
        assert!(disk.last[1].write && disk.last[1].len == buffer.len());
        assert_eq!(setup.faults(), 0);
        for part in &disk.last {
            let last = Iova(part.iova.0 + part.len as u64 - 1);
            assert!(cannot_reach(&disk, part.iova) && cannot_reach(&disk, last));
        }
        assert_ne!(setup.faults(), 0);
    }
    assert!(buffer.iter().all(|byte| *byte == 0x33));
    drop(driver);
    setup.end();
}

/// So it is of whole pages, which are not bounced.
#[test]
fn whole_pages_cannot_be_reached_later_where_edges_are_bounced() {
    let mut window = Window::new(&[1, 0]);
    let (protection, translate) = (Protection::strict(UNTRUSTED), window.phys(phys));
    let setup = Setup::of(protection, MODERN, translate);
    let mut driver = setup.driver();
    setup.port.device().sectors.fill(0x33);
    driver.read_blocks(0, window.bytes()).unwrap();
    {
        let disk = setup.port.device();
        let first = disk.last[1].iova;
        assert!(cannot_reach(&disk, first) && cannot_reach(&disk, Iova(first.0 + GRANULE)));
    }
    assert!(window.bytes().iter().all(|byte| *byte == 0x33));
    drop(driver);
    setup.end();
}

/// The slot stays mapped; the buffer was never.
#[test]
fn what_was_bounced_cannot_be_changed_later() {
    for protection in [
        Protection::strict(Placement::Always),
        Protection::deferred(Placement::Always),
        Protection::strict(UNTRUSTED),
    ] {
        let setup = Setup::new(protection);
        let mut driver = setup.driver();
        setup.port.device().sectors.fill(0x33);
        let mut memory = vec![0; 4 * SECTOR + 1];
        let buffer = &mut memory[1..]; // not whole granules
        driver.read_blocks(0, buffer).unwrap();
        {
            let disk = setup.port.device();
            let data = disk.last[1];
            disk.write(data.iova, &[0xee; 4 * SECTOR]).unwrap();
        }
        assert!(buffer.iter().all(|byte| *byte == 0x33), "{protection:?}");
        // nor is what was written there taken for what the disk writes next
        driver.read_blocks(8, buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0x33), "{protection:?}");
        drop(driver);
        setup.end();
    }
}

/// Rings are blocked once they are flushed, and are nothing else's memory before.
#[test]
fn rings_that_were_freed_cannot_be_reached() {
    let strict = Protection::strict(Placement::Never);
    let deferred = Protection::deferred(Placement::Never);
    for protection in [strict, deferred] {
        let setup = Setup::new(protection);
        let driver = setup.driver();
        let queue = setup.port.device().queues[0].unwrap();
        let rings = [queue.desc, queue.avail, queue.used];
        for at in rings {
            setup.port.device().read(at, &mut [0]).unwrap();
        }
        let taken = setup.frames_in_use();
        drop(driver);
        if protection.domain == deferred.domain {
            assert_eq!(setup.frames_in_use(), taken, "freed before the flush");
            setup.domain().flush().unwrap();
        }
        assert!(setup.frames_in_use() <= taken - 2, "{protection:?}");
        for at in rings {
            assert!(cannot_reach(&setup.port.device(), at), "{protection:?}");
        }
        setup.end();
    }
}

/// It tries the address at which a secret lies in memory.
#[test]
fn an_address_that_was_not_given_leads_nowhere() {
    for placement in [Placement::Never, Placement::Always, UNTRUSTED] {
        let setup = Setup::new(Protection::strict(placement));
        let mut driver = setup.driver();
        let mut secret = vec![0x77_u8; 2 * GRANULE as usize];
        let astray = Iova(phys(NonNull::from(&mut secret[..]).cast()).0);
        setup.port.device().sectors.fill(0x33);
        setup.port.device().astray = Some(astray);

        let mut buffer = [0; SECTOR];
        assert_eq!(driver.read_blocks(0, &mut buffer), Err(Error::IoError));
        let refused = setup.port.device().refused.take().unwrap();
        assert_eq!((refused.at, refused.moved), (astray, ByteCount(0)));
        assert!(is_blocked(Err(refused)));
        assert_eq!(driver.write_blocks(0, &buffer), Err(Error::IoError));
        let refused = setup.port.device().refused.take().unwrap();
        assert_eq!((refused.at, refused.moved), (astray, ByteCount(0)));

        assert!(secret.iter().all(|byte| *byte == 0x77));
        assert!(setup.port.device().sectors.iter().all(|byte| *byte == 0x33));
        setup.port.device().astray = None; // and the driver goes on
        driver.read_blocks(0, &mut buffer).unwrap();
        assert_eq!(buffer, [0x33; SECTOR]);
        drop(driver);
        setup.end();
    }
}

/// Direct mapping works in granules; bounced, a buffer is alone in its own.
#[test]
fn what_lies_beside_a_buffer_is_seen_where_it_is_mapped_directly() {
    for (placement, seen) in [
        (Placement::Never, 0x77),
        (Placement::Always, 0),
        (UNTRUSTED, 0),
    ] {
        let setup = Setup::new(Protection::strict(placement));
        let mut memory = vec![0x77_u8; 2 * GRANULE as usize];
        let whole = NonNull::from(&mut memory[..]);
        // from the second byte of a granule on
        let rest = (whole.cast::<u8>().addr().get() as u64).wrapping_neg() % GRANULE;
        let at = whole
            .cast::<u8>()
            .map_addr(|at| at.saturating_add(rest as usize + 1));
        let buffer = NonNull::slice_from_raw_parts(at, SECTOR);
        let direction = BufferDirection::DriverToDevice;
        // SAFETY: nothing else uses it meanwhile.
        let iova = unsafe { setup.device.share(buffer, direction) };
        let behind = Iova(iova + SECTOR as u64);
        let mut byte = [0];
        setup.port.device().read(behind, &mut byte).unwrap();
        assert_eq!(byte, [seen], "{placement:?}");
        // it was shared to be read: also a slot has that permission alone
        let written = setup.port.device().write(Iova(iova), &[0xee]);
        assert!(is_blocked(written), "{placement:?}");
        // SAFETY: as it was shared.
        unsafe { setup.device.unshare(iova, buffer, direction) };
        assert!(memory.iter().all(|byte| *byte == 0x77));
        setup.end();
    }
}

#[test]
fn a_disk_cannot_reach_what_another_one_has() {
    let (first, second) = Setup::pair();
    let mut memory = vec![0; SECTOR];
    let buffer = NonNull::from(&mut memory[..]);
    let direction = BufferDirection::Both;
    // SAFETY: nothing else uses it meanwhile.
    let iova = Iova(unsafe { second.device.share(buffer, direction) });
    assert!(cannot_reach(&first.port.device(), iova));
    second.port.device().write(iova, &[2; SECTOR]).unwrap();
    // SAFETY: as it was shared.
    unsafe { second.device.unshare(iova.0, buffer, direction) };
    assert_eq!(memory, [2; SECTOR]);
    Setup::end_pair(first, second);
}
