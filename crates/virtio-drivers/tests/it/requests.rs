// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Hundreds of requests are right, wherever buffers go, and however they lie.

use crate::disk::{FLUSH, SECTOR, SECTORS};
use crate::platform::phys;
use crate::port::{EVENT_IDX, INDIRECT};
use crate::setup::{MODERN, Protection, Setup, UNTRUSTED};
use crate::window::Window;
use fastrand::Rng;
use ioatlas_dma::{bounce::Step, dma_api::Placement, units::*};

const REQUESTS: u64 = 400;
/// Bytes beside a buffer that is read into, which stay as they are.
const GUARD: u8 = 0xa5;

/// Reads and writes at random, with buffers in `memory`, beside a model of the disk.
fn traffic(setup: &Setup, memory: &mut [u8]) {
    let mut driver = setup.driver();
    assert_eq!(driver.capacity(), SECTORS as u64);
    let mut id = [0; 20];
    assert_eq!(driver.device_id(&mut id), Ok(15));
    assert_eq!(&id[..15], b"an ioatlas disk");

    let mut random = Rng::with_seed(7);
    let mut model = vec![0; SECTORS * SECTOR];
    for request in 0..REQUESTS {
        let len = random.usize(1..=64) * SECTOR;
        let at = random.usize(..=memory.len() - len);
        let first = random.usize(..=SECTORS - len / SECTOR);
        let on_disk = &mut model[first * SECTOR..][..len];
        if random.bool() {
            let buffer = &mut memory[at..][..len];
            random.fill(buffer);
            on_disk.copy_from_slice(buffer);
            driver.write_blocks(first, buffer).unwrap();
            assert!(memory[at..][..len] == *on_disk, "{request}: a write wrote");
        } else {
            memory.fill(GUARD);
            driver.read_blocks(first, &mut memory[at..][..len]).unwrap();
            assert!(memory[at..][..len] == *on_disk, "{request}: {len} bytes");
            let is_guard = |byte: &u8| *byte == GUARD;
            let beside = memory[..at].iter().chain(&memory[at + len..]);
            assert!(beside.copied().all(|byte| is_guard(&byte)), "{request}");
        }
        assert!(setup.port.device().sectors == model, "{request}: the disk");
    }
    driver.flush().unwrap();
    drop(driver);
    assert!(setup.port.device().requests > REQUESTS);
    assert_eq!(setup.faults(), 0);
}

fn run(protection: Protection, features: u64) {
    let setup = Setup::of(protection, features, phys);
    traffic(&setup, &mut vec![0; 40 * GRANULE as usize]);
    let pools = setup.dma.usage();
    let went = |step| pools.iter().map(|pool| pool.steps.of(step)).sum::<u64>();
    match protection.placement {
        Placement::Never => assert!(pools.is_empty()),
        Placement::Always => assert_eq!((went(Step::Direct), went(Step::Split)), (0, 0)),
        _ => assert!(went(Step::Split) > 50, "{pools:?}"),
    }
    setup.end();
}

#[test]
fn mapped_where_they_are() {
    run(Protection::strict(Placement::Never), MODERN);
    run(Protection::deferred(Placement::Never), MODERN | FLUSH);
}

#[test]
fn bounced() {
    run(Protection::strict(Placement::Always), MODERN);
    run(Protection::deferred(Placement::Always), MODERN | FLUSH);
}

#[test]
fn with_edges_bounced() {
    run(Protection::strict(UNTRUSTED), MODERN);
    run(Protection::deferred(UNTRUSTED), MODERN | FLUSH);
}

/// The driver keeps lists of descriptors on the heap, and shares them, too.
#[test]
fn with_lists_of_descriptors_and_indices_of_events() {
    for placement in [Placement::Never, Placement::Always, UNTRUSTED] {
        run(Protection::strict(placement), MODERN | INDIRECT | EVENT_IDX);
    }
}

/// Neighbours of the CPU are not those of the device: some pages adjoin, most do not.
#[test]
fn in_pages_that_are_scattered() {
    let order: Vec<usize> = (0..40).map(|page| page ^ 6).collect();
    for placement in [Placement::Never, Placement::Always, UNTRUSTED] {
        let mut window = Window::new(&order);
        let protection = Protection::strict(placement);
        let translate = window.phys(phys);
        let setup = Setup::of(protection, MODERN, translate);
        traffic(&setup, window.bytes());
        setup.end();
    }
}

/// Each `Hal` leads to its own device, in its own domain.
#[test]
fn two_disks_side_by_side() {
    let (first, second) = Setup::pair();
    let (mut one, mut other) = (first.driver(), second.second_driver());
    for sector in 0..8 {
        one.write_blocks(sector, &[1; SECTOR]).unwrap();
        other.write_blocks(sector, &[2; SECTOR]).unwrap();
    }
    assert_eq!(first.port.device().sectors[..8 * SECTOR], [1; 8 * SECTOR]);
    assert_eq!(second.port.device().sectors[..8 * SECTOR], [2; 8 * SECTOR]);
    drop((one, other));
    Setup::end_pair(first, second);
}
