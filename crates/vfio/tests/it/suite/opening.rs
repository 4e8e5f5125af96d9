// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A device that is opened by one call, and what it has then.

use crate::{BY, suite::rig::nvme};
use ioatlas_dma::{design::Design, dma_api::*, domain::*, platform::CopyMemory, units::*};
use ioatlas_vfio::{kernel::*, simulated::*, *};
use std::sync::Arc;

const ADDRESS: &str = "0000:00:04.0";

/// Not much, since it is a test's.
fn options() -> OpenOptions {
    OpenOptions::default().memory(ByteCount(8 << 20))
}

fn open(kernel: &Simulated, options: OpenOptions) -> DmaDevice<Simulated> {
    let device = options.open_by(Arc::new(kernel.clone()), ADDRESS);
    device.expect("it opens")
}

#[test]
fn it_reads_slices_and_shares_arrays_and_reaches_nothing_else() {
    let kernel = Simulated::new(Machine::usual());
    let disk = open(&kernel, options());
    assert_eq!(disk.dma().domain().exposure(), Exposure::None);
    let reach = |iova, kind| kernel.reach(nvme(), iova, kind).map(|at| PhysAddr(at.0));

    let mut ring = disk.alloc_coherent::<u64>(1024).expect("memory");
    ring.write(1023, 7);
    let at = reach(ring.iova_of(1023), AccessKind::Read).expect("P14: mapped");
    let mut seen = [0; 8];
    disk.memory().read(BY, at, &mut seen).expect("memory");
    assert_eq!(u64::from_ne_bytes(seen), 7);

    let mut block = [1; 512];
    let place = block.as_ptr() as u64;
    let mapped = disk
        .map_slice(&mut block, Direction::FromDevice)
        .expect("room");
    let at = reach(mapped.iova(), AccessKind::Write).expect("P14: mapped");
    assert_ne!(at.0, place, "P7: the slice itself is reached");
    disk.memory().write(BY, &[0xd0; 100], at).expect("memory");
    mapped.finish().expect("unmapped");
    assert_eq!(
        (&block[..100], &block[100..]),
        (&[0xd0; 100][..], &[0; 412][..])
    );

    // a buffer that shares a page is bounced, and one that does not goes where it is
    for (len, bounced) in [(512, true), (GRANULE, false)] {
        let buffer = disk.memory().buffer(ByteCount(len)).expect("memory");
        let mapping = disk.map_sg(buffer, Direction::FromDevice).expect("room");
        assert_eq!(mapping.is_bounced(), bounced, "P7: {len} bytes");
        let iova = mapping.iova();
        drop(disk.unmap(mapping).expect("unmapped"));
        assert_eq!(reach(iova, AccessKind::Write).is_some(), bounced, "P1");
    }
}

#[test]
fn it_is_closed_with_the_last_that_needs_it() {
    let kernel = Simulated::new(Machine::usual());
    let disk = open(&kernel, options());
    let ring = disk.alloc_coherent::<u64>(8).expect("memory");
    let of_a_queue = AnyClient::from(disk.clone());
    drop(disk);
    assert!(
        kernel
            .reach(nvme(), ring.iova(), AccessKind::Read)
            .is_some()
    );
    drop(of_a_queue);
    drop(ring);
    assert_eq!((kernel.open_files(), kernel.pinned()), (0, ByteCount(0)));
}

#[test]
fn it_is_opened_as_said() {
    let kernel = Simulated::new(Machine::usual());
    let deferred = Design::parse("magazine,deferred-percpu").expect("a design");
    let said = options()
        .domain(deferred.domain)
        .placement(Placement::Never);
    let disk = open(&kernel, said);
    assert_ne!(disk.dma().domain().exposure(), Exposure::None);
    assert_eq!(disk.config().placement, Placement::Never);
    assert_eq!(disk.memory().arena().pages, PageCount(2048));
}

#[test]
fn what_cannot_be_opened_says_why_and_leaves_nothing_open() {
    let kernel = Simulated::new(Machine::usual());
    let open = |options: OpenOptions, address: &str| {
        let opened = options.open_by(Arc::new(kernel.clone()), address);
        assert_eq!((kernel.open_files(), kernel.pinned()), (0, ByteCount(0)));
        opened.err().expect("it cannot be")
    };
    let error = open(options(), "00:04");
    assert!(matches!(error, OpenDeviceError::Address(_)), "{error}");
    let error = open(options(), "0000:00:05.0");
    assert!(matches!(error, OpenDeviceError::Space(_)), "{error}");
    let error = open(options().placement(Placement::Adaptive), ADDRESS);
    assert!(
        matches!(error, OpenDeviceError::Pool(PoolError::NoClock)),
        "{error}"
    );
    let beyond = DomainConfig::default().aperture(IovaRange::new(IovaPage(1 << 40), PageCount(1)));
    let error = open(options().domain(beyond), ADDRESS);
    assert!(matches!(error, OpenDeviceError::Domain(_)), "{error}");
    // each call of the kernel fails in turn
    for after in 0.. {
        kernel.fail(Some(Failure {
            after,
            errno: Errno::NODEV,
        }));
        let opened = options().open_by(Arc::new(kernel.clone()), ADDRESS);
        let all = kernel.calls() <= after;
        let opened = opened.map(drop).is_ok();
        kernel.fail(None);
        assert_eq!((kernel.open_files(), kernel.pinned()), (0, ByteCount(0)));
        if all {
            assert!(opened && after > 5, "{after} calls");
            break;
        }
    }
}
