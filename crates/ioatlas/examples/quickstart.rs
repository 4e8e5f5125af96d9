// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Sends a packet by a device that has no hardware, and tries what it must not do. README shows the
//! same.

use ioatlas::{ByteCount, SourceId, dma::dma_api::ToDevice, testing::TestMachine};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = TestMachine::new()?; // memory, and a software VT-d unit
    let nic = machine.device(SourceId::pci(0, 4, 0))?; // an address space of its own, strict

    let packet = nic.buffer::<ToDevice>(ByteCount(4096)).ok_or("no memory")?;
    packet.write(ByteCount(0), b"a packet")?;
    let sent = nic.give(packet)?; // mapped; the driver cannot write it meanwhile
    let iova = sent.iova();
    let mut seen = [0; 8];
    nic.dma_read(iova, &mut seen)?; // as the device does
    println!("read at {iova}: {}", seen.escape_ascii());
    println!("write: {}", nic.dma_write(iova, b"A PACKET").unwrap_err()); // mapped to be read
    nic.take_back(sent)?; // unmapped, and flushed
    println!(
        "after the unmap: {}",
        nic.dma_read(iova, &mut seen).unwrap_err()
    );
    Ok(())
}
