// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Virtio devices of bus 0, each in a domain of its own while a driver of the crate virtio-drivers
//! runs it: a disk, a network card, a console. They interrupt nobody; the drivers poll.

use crate::edu::{CONFIGURATION, configuration};
use crate::{Outcome, Remapping, machine::println};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::hint::spin_loop;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use ioatlas_dma::units::*;
use ioatlas_virtio_drivers::virtio_drivers::{device::*, transport::*};
use ioatlas_virtio_drivers::{Device, Translated, hal};
use pci::{PciTransport, bus::*, virtio_device_type};

/// The device whose driver runs. Here they run one after the other; a kernel has a `hal!` and a
/// static for each, and never ends them.
static RUNNING: AtomicPtr<Device> = AtomicPtr::new(null_mut());

hal!(Hal, || {
    // SAFETY: nothing, or what `run` leaves there until its driver is gone.
    unsafe { RUNNING.load(Ordering::Relaxed).as_ref() }.expect("a driver without its device")
});

/// How a driver reaches its device.
type Port = Translated<PciTransport>;

/// What disk and console are given.
const TEXT: &[u8] = b"written by a kernel whose devices reach what they are to reach\n";
/// Buffers of the network card.
const BUFFERS: usize = 16;

/// Runs a driver for each virtio device.
pub fn drive_all(units: &Remapping) -> Outcome<()> {
    // SAFETY: where firmware placed it, and the other driver has configured its device.
    let space = unsafe { MmioCam::new(CONFIGURATION as *mut u8, Cam::Ecam) };
    let mut root = PciRoot::new(space);
    for (at, info) in root.enumerate_bus(0).collect::<Vec<_>>() {
        let Some(kind) = virtio_device_type(&info) else {
            continue;
        };
        root.set_command(at, Command::MEMORY_SPACE);
        run(units, &mut root, at, kind)?;
    }
    Ok(())
}

/// Runs the driver of one device. At its end nothing is mapped.
fn run(
    units: &Remapping,
    root: &mut PciRoot<MmioCam<'_>>,
    at: DeviceFunction,
    kind: DeviceType,
) -> Outcome<()> {
    // in a domain of its own, strict; what is not whole pages is bounced
    let source = SourceId::pci(at.bus, at.device, at.function);
    let client = units.device(source, &configuration)?;
    let dma = client.dma().clone();
    // SAFETY: memory and registers are mapped one to one. Of a buffer the device is shown whole
    // granules only, and under the strict policy until it is unshared.
    let device = unsafe {
        Device::new(
            client,
            |buffer| PhysAddr(buffer.expose_provenance().get() as u64),
            |at, _| NonNull::new(at.0 as *mut u8).expect("registers"),
        )
    };

    let leaked = Box::into_raw(Box::new(device.clone()));
    RUNNING.store(leaked, Ordering::Relaxed);
    match device.transport(PciTransport::new::<Hal, _>(root, at)?) {
        Ok(port) => {
            root.set_command(at, Command::MEMORY_SPACE | Command::BUS_MASTER);
            match kind {
                DeviceType::Block => drive_disk(at, port)?,
                DeviceType::Network => drive_network(at, port)?,
                DeviceType::Console => drive_console(at, port)?,
                _ => println!("virtio {at}: {kind:?}, for which there is no driver"),
            }
            root.set_command(at, Command::MEMORY_SPACE);
        }
        Err(why) => println!("virtio {at}: refused, since {why}"),
    }
    RUNNING.store(null_mut(), Ordering::Relaxed);
    // SAFETY: it was leaked above, and its driver is gone.
    drop((device, unsafe { Box::from_raw(leaked) }));

    assert_eq!((dma.raw_mappings(), dma.drop_errors()), (0, 0));
    let io = dma.domain().clone();
    drop(Arc::into_inner(dma).ok_or("a client is in use")?); // with its bounce buffers
    assert_eq!(io.audit()?.census.pages, PageCount(0), "still mapped");
    Ok(Arc::into_inner(io).ok_or("a domain is in use")?.close()?)
}

/// A page, which is mapped where it is. What is smaller, as a request's header, is bounced.
#[repr(align(4096))]
struct Page([u8; GRANULE as usize]);

fn drive_disk(at: DeviceFunction, port: Port) -> Outcome<()> {
    let mut disk = blk::VirtIOBlk::<Hal, _>::new(port)?;
    let (mut written, mut read) = (Page([0; _]), Page([0; _]));
    written.0[..TEXT.len()].copy_from_slice(TEXT);
    disk.write_blocks(0, &written.0)?;
    disk.read_blocks(0, &mut read.0)?;
    assert!(read.0 == written.0, "other bytes came back");
    println!("virtio {at}: a page is on the disk, and came back");
    Ok(())
}

/// Asks who has the address of the machine's router, and leaves while the card has buffers still.
fn drive_network(at: DeviceFunction, port: Port) -> Outcome<()> {
    let mut card = net::VirtIONet::<Hal, _, BUFFERS>::new(port, 2048)?;
    let (us, router) = ([10, 0, 2, 15], [10, 0, 2, 2]);
    let mac = card.mac_address();
    // to all, ARP: Ethernet, IPv4, their lengths, and a request (2 is the reply)
    let mut ask = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    ask.extend([&mac[..], &us, &[0; 6], &router].concat());
    card.send(net::TxBuffer::from(&ask))?;
    while !card.can_recv() {
        spin_loop();
    }
    let reply = card.receive()?;
    let told = [
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
        &reply.packet()[22..28],
        &router,
    ]
    .concat();
    assert_eq!(reply.packet()[12..32], told, "no reply");
    println!(
        "virtio {at}: the router answered; {} buffers are the card's still",
        BUFFERS - 1
    );
    Ok(())
}

fn drive_console(at: DeviceFunction, port: Port) -> Outcome<()> {
    console::VirtIOConsole::<Hal, _>::new(port)?.send_bytes(TEXT)?;
    println!("virtio {at}: the console has {} bytes", TEXT.len());
    Ok(())
}
