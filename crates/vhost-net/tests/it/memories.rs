// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Two memories whose caches happen to be in the same generation: what was looked up in one is
//! nothing to the other.

use ioatlas_dma::units::*;
use ioatlas_vhost::guest_memory::{IovaMemory, Patience};
use ioatlas_vhost::protocol::misses::MissChannel;
use ioatlas_vhost::{DeviceIotlb, Entry, HostAddr, Limits, RadixIotlb, Updated};
use ioatlas_vhost_net::{guest::GuestGuard, ring::RingPart};
use std::{panic::*, sync::Arc};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

#[test]
fn what_one_memory_has_another_does_not_give() {
    let guest = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 4096)]).unwrap();
    let host = guest.get_host_address(GuestAddress(0)).unwrap() as usize as u64;
    let caches = [(); 2].map(|()| RadixIotlb::new(Limits::default()));
    let entry = Entry {
        iova: Iova(GRANULE),
        len: ByteCount(GRANULE),
        host: HostAddr(host),
        perm: Perm::ReadWrite,
    };
    assert_eq!(caches[0].update(entry), Ok(Updated::Done));
    let [mut first, mut second] = caches.map(|cache| {
        let misses = Arc::new(MissChannel::default());
        // SAFETY: `guest`, which alone is named, outlives all bursts.
        unsafe { IovaMemory::new(cache.reader().unwrap(), misses, Patience::default()) }
    });
    let (first, second) = (
        GuestGuard::begin(&mut first),
        GuestGuard::begin(&mut second),
    );
    let mut part = RingPart::new(Iova(GRANULE), ByteCount(64), Perm::Read);
    assert_eq!(part.translate(&first), Ok(()));
    part.view(&first);
    let foreign = catch_unwind(AssertUnwindSafe(|| {
        part.view(&second);
    }));
    assert!(
        foreign.is_err(),
        "P12: a view without the guard of its memory"
    );
    assert!(part.translate(&second).is_err(), "P8: it has no such page");
}
