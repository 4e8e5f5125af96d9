// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A virtio entropy device (virtio 1.2, 5.4) behind a vhost-user socket, with IOMMU support.
//!
//! `cargo run --example entropy -- SOCKET`, then start QEMU with
//! `-chardev socket,id=c,path=SOCKET -device vhost-user-rng-pci,chardev=c,iommu_platform=on,ats=on`
//! and a virtual IOMMU. The guest's buffers are IOVAs; nothing in `process` knows.

use ioatlas_vhost::{
    IotlbReader, Limits, RadixIotlb,
    runner::{Config, Device, Event, Failure, Next, QueueWorker, Runner, Stop},
};
use std::{fs::File, os::unix::net::UnixListener};
use vm_memory::Bytes;

/// Fills every buffer that it is given from a file.
pub struct Entropy(pub File);

impl Device for Entropy {
    fn queues(&self) -> u16 {
        1
    }

    fn features(&self) -> u64 {
        0
    }

    fn process<R: IotlbReader>(
        &self,
        event: Event,
        worker: &mut QueueWorker<R>,
    ) -> Result<Next, Failure> {
        let Event::Queue(queue) = event else {
            return Ok(Next::Wait);
        };
        worker.each_chain(queue, |memory, chain| {
            let mut written = 0;
            for buffer in chain.writable() {
                let len = buffer.len() as usize;
                memory
                    .read_exact_volatile_from(buffer.addr(), &mut &self.0, len)
                    .map_err(|e| Stop::Device(e.into()))?;
                written += buffer.len();
            }
            Ok(written)
        })
    }
}

#[allow(missing_docs)] // see above
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).ok_or("usage: entropy SOCKET")?;
    let limits = Limits::default().runs(4096).readers(1).pins(64);
    let device = Entropy(File::open("/dev/urandom")?);
    let mut runner = Runner::new(device, RadixIotlb::new(limits), Config::default())?;
    Ok(runner.serve(&UnixListener::bind(&socket)?)?)
}
