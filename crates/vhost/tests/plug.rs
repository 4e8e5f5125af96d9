// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The plug without a socket: what keeps a burst from being left.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    DeviceIotlb, Entry, HostAddr, Limits, RadixIotlb, Updated,
    plug::{Fault, IovaMemory, Patience},
    protocol::misses::MissChannel,
};
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, Permissions};

const PAGE: u64 = 4096;

/// What was looked up may be used for as long as it is there, whether it has been asked for its slices or not.
#[test]
fn an_access_that_misses_does_not_leave_the_burst_of_one_before() {
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
    let misses = Arc::new(MissChannel::default()); // with nobody to ask
    // SAFETY: `memory` outlives what is made of it, and is accessed through that alone.
    let mut ours = unsafe { IovaMemory::new(cache.reader().unwrap(), misses, Patience::default()) };
    let burst = ours.burst();
    let mut slices = burst
        .get_slices(GuestAddress(PAGE), 8, Permissions::Read)
        .unwrap();
    let gone = cache.start_invalidate(Iova(PAGE), ByteCount(PAGE));
    let miss = || {
        burst.clear_fault();
        let missed = burst.get_slices(GuestAddress(9 * PAGE), 8, Permissions::Read);
        assert!(missed.is_err());
        assert_eq!(burst.fault(), Some(Fault::Unmapped(Iova(9 * PAGE))));
    };
    miss();
    assert!(!cache.is_done(gone), "P12: its slices are still to come");
    let slice = slices.next().unwrap().unwrap();
    drop(slices);
    miss();
    assert!(!cache.is_done(gone), "P12: a slice is there");
    drop(slice);
    miss();
    assert!(cache.is_done(gone), "a miss with nothing held leaves it");
}
