// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A heap that has nothing: calls fail with an error or do without, nothing is lost, and the domain
//! works on when there is memory again.

use crate::{
    allocators::counting::{Failing, failing},
    warm_path::{Dom, domain},
};
use ioatlas_dma::{
    design::{allocators, policies},
    domain::*,
    iova::{AllocErrorCause, FixedRangeError},
    translator::AttachError,
    units::*,
};

const DEVICE: SourceId = SourceId(8);
const MOST: u64 = 300;

/// Maps lists of one to three pages; those that fail are left out. Every third is unmapped at once.
fn use_it(domain: &Dom, held: &mut Vec<Mapping>) -> u64 {
    let page = |n: u64| PhysRange::page(PhysPage(0x1000 + n));
    let mut refused = 0;
    for n in 0..MOST {
        let pages = [page(n), page(n + 7), page(n + 3)];
        let list = &pages[..1 + n as usize % 3];
        match domain.map_list(list, Direction::FromDevice) {
            Ok(mapping) if n % 3 == 2 => domain.unmap(mapping).expect("a live mapping"),
            Ok(mapping) => held.push(mapping),
            Err(MapError::NoIova(error)) => {
                assert_eq!(error.cause, AllocErrorCause::NoMemory);
                assert!(!error.is_final());
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// What came of it.
struct Survived {
    /// The heap was asked for what fails.
    failed: bool,
    /// Maps that were refused.
    refused: u64,
}

/// All calls of a driver, with a heap that fails as said.
fn survives(domain: &Dom, which: Failing) -> Survived {
    let mut held = Vec::with_capacity(MOST as usize);
    let ((attached, refused), failed) = failing(which, || {
        let attached = domain.attach(DEVICE);
        let mut refused = use_it(domain, &mut held);
        for mapping in held.drain(held.len() / 2..) {
            domain.unmap(mapping).expect("a live mapping");
        }
        domain.flush().expect("a flush");
        domain.tick(TimeNs(1_000_000_000)).expect("a flush");
        domain.shrink();
        refused += use_it(domain, &mut held);
        (attached, refused)
    });
    // what was refused was refused for want of memory, and can be had now
    match attached {
        Ok(()) => {}
        Err(AttachError::NoMemory { device }) if failed => {
            assert_eq!(device, DEVICE);
            domain.attach(DEVICE).expect("memory again");
        }
        Err(error) => panic!("{error}"),
    }
    let most = match which {
        Failing::Nth(_) => u64::from(failed),
        Failing::From(_) if failed => u64::MAX,
        Failing::From(_) => 0,
    };
    assert!(refused <= most, "P10: {which:?}: {refused} refused");
    for mapping in held.drain(..) {
        domain.unmap(mapping).expect("a live mapping");
    }
    assert_eq!(use_it(domain, &mut held), 0, "P10: memory again");
    for mapping in held {
        domain.unmap(mapping).expect("a live mapping");
    }
    domain.flush().expect("a flush");
    let audit = domain.audit().expect("P10: nothing is lost");
    assert_eq!(audit.stats.live, PageCount(0));
    assert_eq!(
        audit.stats.quarantined,
        ioatlas_dma::policy::Held::default()
    );
    Survived { failed, refused }
}

#[test]
fn each_allocation_that_fails_fails_one_call_at_most() {
    for allocator in allocators().map(|allocator| allocator.config) {
        for policy in policies().map(|policy| policy.config) {
            let mut nth = 0;
            while survives(&domain(allocator, policy), Failing::Nth(nth)).failed {
                nth += 1;
            }
            assert!(nth > 2, "{} {}: {nth}", allocator.name(), policy.name());
        }
    }
}

/// Reserves a range and has consistent memory, without the `nth` allocation; returns whether there
/// would have been one.
fn keeps(domain: &Dom, nth: u64) -> bool {
    const LEN: ByteCount = ByteCount(3 << 12);
    let range = IovaRange::new(IovaPage(0xfee00), PageCount(1)); // as that of interrupts
    let ((reserved, memory), failed) = failing(Failing::Nth(nth), || {
        (domain.reserve(range), domain.alloc_consistent(LEN))
    });
    match reserved {
        Ok(()) => {}
        Err(ReserveError::NoReserve(FixedRangeError::NoMemory { wanted })) if failed => {
            assert_eq!(wanted, range);
            domain.reserve(range).expect("memory again");
        }
        Err(error) => panic!("{error}"),
    }
    let no_memory = |error: &MapError| match error {
        MapError::NoIova(none) => none.cause == AllocErrorCause::NoMemory,
        error => *error == MapError::NoMemory,
    };
    let memory = match memory {
        Ok(memory) => memory,
        Err(error) if failed && no_memory(&error) => {
            domain.alloc_consistent(LEN).expect("memory again")
        }
        Err(error) => panic!("{error}"),
    };
    domain.free_consistent(memory).expect("a live mapping");
    domain.flush().expect("a flush");
    let audit = domain.audit().expect("P10: nothing is lost");
    assert_eq!(audit.stats.reserved, PageCount(1), "P10: one is reserved");
    failed
}

#[test]
fn a_range_or_memory_that_cannot_be_noted_is_refused() {
    for allocator in allocators().map(|allocator| allocator.config) {
        for policy in policies().map(|policy| policy.config) {
            let mut nth = 0;
            while keeps(&domain(allocator, policy), nth) {
                nth += 1;
            }
            assert!(nth > 2, "{} {}: {nth}", allocator.name(), policy.name());
        }
    }
}

#[test]
fn a_heap_that_stays_empty_fails_calls_until_it_is_not() {
    for allocator in allocators().map(|allocator| allocator.config) {
        for policy in policies().map(|policy| policy.config) {
            let nothing = survives(&domain(allocator, policy), Failing::From(0));
            // a heap of its own is what kmalloc has
            let asks = allocator.name() != "kmalloc";
            assert_eq!(nothing.refused > 0, asks, "{}", allocator.name());
            let mut first = 1;
            while survives(&domain(allocator, policy), Failing::From(first)).failed {
                first += 1;
            }
        }
    }
}
