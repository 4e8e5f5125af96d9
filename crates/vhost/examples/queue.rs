// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `virtio_queue::Queue` over a device IOTLB: rings and buffers by IOVA, on pages that are not
//! where they seem to be.
//!
//! No socket and no front end: the example fills the cache itself. `cargo run --example queue`.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    DeviceIotlb, Entry, HostAddr, Limits, RadixIotlb,
    guest_memory::{IovaMemory, MissChannel, Patience},
};
use std::sync::Arc;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const PAGE: u64 = 4096;
/// Where the device sees four pages in a row.
const IOVA: u64 = 0x7fff_0000_0000;
/// Where they are in guest memory: ring, used ring, and a buffer that crosses from
/// one page to another.
const PLACES: [u64; 4] = [5, 2, 7, 0];

#[allow(missing_docs)] // see above
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guest = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 8 * PAGE as usize)])?;
    let limits = Limits::default().runs(16).readers(1).pins(4);
    let cache = RadixIotlb::new(limits);
    for (n, place) in (0u64..).zip(PLACES) {
        let host = guest.get_host_address(GuestAddress(place * PAGE))?;
        let entry = Entry {
            iova: Iova(IOVA + n * PAGE),
            len: ByteCount(PAGE),
            host: HostAddr(host as usize as u64),
            perm: Perm::ReadWrite,
        };
        let _ = cache.update(entry)?;
    }

    // What a driver would do: one descriptor, offered, for 16 bytes that begin 8 before the end of
    // a page.
    let text = b"two pages of one";
    let at = |n: usize, offset: u64| GuestAddress(PLACES[n] * PAGE + offset);
    guest.write_slice(&text[..8], at(2, PAGE - 8))?;
    guest.write_slice(&text[8..], at(3, 0))?;
    guest.write_obj((IOVA + 3 * PAGE - 8).to_le(), at(0, 0))?;
    guest.write_obj(16u32.to_le(), at(0, 8))?;
    guest.write_obj(1u16.to_le(), at(0, 0x802))?;

    let misses = Arc::new(MissChannel::default()); // with no reader at its end
    // SAFETY: the entries name memory that `guest` keeps mapped until the end of this function.
    let mut memory = unsafe { IovaMemory::new(cache.reader()?, misses, Patience::default()) };
    let guard = memory.pin();
    let mut queue = Queue::new(16)?;
    queue.try_set_desc_table_address(GuestAddress(IOVA))?;
    queue.try_set_avail_ring_address(GuestAddress(IOVA + 0x800))?;
    queue.try_set_used_ring_address(GuestAddress(IOVA + PAGE))?;
    queue.set_ready(true);
    if !queue.is_valid(&guard) {
        return Err("the rings are not translated".into());
    }

    let chain = queue.iter(&guard)?.next().ok_or("nothing is available")?;
    let head = chain.head_index();
    for buffer in chain {
        let mut bytes = vec![0; buffer.len() as usize];
        guard.read_slice(&mut bytes, buffer.addr())?;
        println!(
            "{:#x}: {}",
            buffer.addr().0,
            String::from_utf8_lossy(&bytes)
        );
        if bytes != text {
            return Err("the buffer is not what the driver wrote".into());
        }
    }
    queue.add_used(&guard, head, 0)?;
    println!(
        "used index in guest memory: {}",
        guest.read_obj::<u16>(at(1, 2))?
    );

    // Outside of what is mapped there is nothing, and no front end to ask.
    let outside = guard.read_obj::<u8>(GuestAddress(IOVA + 4 * PAGE));
    println!(
        "beyond: {}",
        outside.err().ok_or("read beyond the mapping")?
    );
    Ok(())
}
