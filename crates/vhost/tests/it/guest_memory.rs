// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guest-memory adapter without a socket: what keeps a guard from being left.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    DeviceIotlb, Entry, HostAddr, Limits, RadixIotlb, Updated,
    guest_memory::{Fault, IovaMemory, Patience},
    protocol::misses::MissChannel,
};
use std::sync::Arc;
use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, Permissions,
    guest_memory::GuestMemorySliceIterator,
};

const PAGE: u64 = 4096;

/// A slice may be used for as long as it is there. What was looked up for one that is still to come
/// is looked up again.
#[test]
fn an_access_that_misses_drops_the_guard_unless_a_slice_is_there() {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), PAGE as usize)]).unwrap();
    let host = memory.get_host_address(GuestAddress(0)).unwrap();
    let cache = RadixIotlb::new(Limits::default());
    let entry = Entry {
        iova: Iova(PAGE),
        len: ByteCount(PAGE),
        host: HostAddr(host as usize as u64),
        perm: Perm::Read,
    };
    assert_eq!(cache.update(entry), Ok(Updated::Done));
    let misses = Arc::new(MissChannel::default()); // without a front end to ask
    // SAFETY: `memory` outlives what is made of it, and is accessed through that alone.
    let mut ours = unsafe { IovaMemory::new(cache.reader().unwrap(), misses, Patience::default()) };
    let guard = ours.pin();
    let slices = || guard.get_slices(GuestAddress(PAGE), 8, Permissions::Read);
    let invalidate = || cache.start_invalidate(Iova(PAGE), ByteCount(PAGE));
    let miss = || {
        guard.clear_fault();
        let missed = guard.get_slices(GuestAddress(9 * PAGE), 8, Permissions::Read);
        assert!(missed.is_err());
        assert_eq!(guard.fault(), Some(Fault::Unmapped(Iova(9 * PAGE))));
    };

    let mut to_come = slices().unwrap();
    let in_time = slices().unwrap().stop_on_error().unwrap();
    let too_late = slices().unwrap().stop_on_error().unwrap();
    let gone = invalidate();
    assert!(!cache.is_done(gone), "the guard began before it");
    assert_eq!(in_time.count(), 1);
    miss();
    assert!(cache.is_done(gone), "a miss with no slice there leaves it");
    guard.clear_fault();
    assert!(
        matches!(to_come.next(), Some(Err(_))),
        "P12: looked up again"
    );
    assert_eq!(guard.fault(), Some(Fault::Unmapped(Iova(PAGE))));
    assert!(to_come.next().is_none());
    assert_eq!(too_late.count(), 0, "P12: looked up again");

    assert_eq!(cache.update(entry), Ok(Updated::Done));
    let slice = slices().unwrap().next().unwrap().unwrap();
    let gone = invalidate();
    miss();
    assert!(!cache.is_done(gone), "P12: a slice is there");
    drop(slice);
    miss();
    assert!(cache.is_done(gone), "a miss with nothing held leaves it");
}
