// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From firmware's tables to a client of the DMA API for each device, and back.

use super::*;
use crate::acpi_find::{announcing, without_units};
use ioatlas_dma::{dma_api::*, platform::Platform, translator::AttachError};
use ioatlas_vtd::acpi::find::{self, FindError};

fn begin(machine: &Machine) -> All {
    let memory = announcing(machine.table.clone());
    let root = find::root_pointer(&memory).unwrap();
    Units::from_acpi(&machine.host, &memory, root, |at, n| machine.map(at, n)).unwrap()
}

/// The first so many bytes of a frame that nothing else uses.
fn lent(machine: &Machine, bytes: u64) -> (PhysPage, Lent) {
    let page = machine.host.frame_alloc().unwrap().page();
    // SAFETY: the frame is never given back, and nothing else knows of it.
    let lent = unsafe { Lent::new(PhysRange::new(page.addr(), ByteCount(bytes))) };
    (page, lent)
}

#[test]
fn each_device_reaches_what_its_client_maps() {
    let machine = Machine::new(|_, _| {});
    let units = begin(&machine);
    let nic = units.device(NIC, &pci).unwrap();
    let disk = units.device(DISK, &pci).unwrap();

    let (page, whole) = lent(&machine, GRANULE);
    let mapping = nic.map_single(whole, Direction::FromDevice).unwrap();
    let at = mapping.iova().page();
    assert_eq!(page_of(machine.reach(0, NIC, at)), Some(page));
    let others = [machine.reach(1, DISK, at), machine.reach(1, NIC, at)];
    assert_eq!(others.map(page_of), [None; 2], "P8: another's, by any unit");
    nic.unmap(mapping).unwrap();
    assert_eq!(page_of(machine.reach(0, NIC, at)), None, "P1: strict");

    // what shares its page with something else is bounced
    let (page, part) = lent(&machine, 100);
    let mapping = disk.map_single(part, Direction::FromDevice).unwrap();
    let reached = page_of(machine.reach(1, DISK, mapping.iova().page()));
    assert!(reached.is_some_and(|it| it != page), "P7: {reached:?}");
    disk.unmap(mapping).unwrap();

    drop((nic, disk));
    machine.end(units);
}

#[test]
fn a_driver_need_not_know_its_platform() {
    let machine = Machine::new(|_, _| {});
    let units = begin(&machine);
    let nic = AnyClient::from(units.device(NIC, &pci).unwrap());
    let mut packet = [0; 100];
    let mapped = nic.map_slice(&mut packet, Direction::FromDevice).unwrap();
    let reached = page_of(machine.reach(0, NIC, mapped.iova().page()));
    assert!(reached.is_some());
    mapped.finish().unwrap();
    drop(nic);
    machine.end(units);
}

#[test]
fn what_firmware_reserves_is_reached_until_the_last_client_is_gone() {
    let machine = Machine::new(|_, _| {});
    let units = begin(&machine);
    // units have a table for a bus from its first device on
    for requester in [NIC, DISK] {
        drop(units.device(requester, &pci).unwrap());
    }
    let frames = machine.host.frames_in_use();
    let reach = |page| page_of(machine.reach(1, DISK, IovaPage(page)));
    assert_eq!(reach(0x500), None, "blocked until it is attached");

    let disk = units.device(DISK, &pci).unwrap();
    for page in 0x500..0x505 {
        assert_eq!(reach(page), Some(PhysPage(page)), "P14: at its own address");
    }
    assert_eq!([reach(0x4ff), reach(0x505)], [None; 2], "P8: no more");
    let nic = units.device(NIC, &pci).unwrap();
    let others = page_of(machine.reach(0, NIC, IovaPage(0x500)));
    assert_eq!(others, None, "P8: not the other device");
    drop(nic);
    let clone = disk.clone();
    drop(disk);
    assert_eq!(reach(0x500), Some(PhysPage(0x500)));
    drop(clone);
    assert_eq!(reach(0x500), None, "P8: blocked again");
    assert_eq!(machine.host.frames_in_use(), frames, "P10: all are back");
    machine.end(units);
}

#[test]
fn a_device_that_cannot_be_had_is_blocked_and_the_error_says_why() {
    let machine = Machine::new(|_, _| {});
    let units = begin(&machine);
    let error = units.device(ELSEWHERE, &pci).err().unwrap();
    assert!(matches!(error, ClientError::Route(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "no remapping unit covers 0001:01:00.0: it reaches all of memory"
    );

    let nic = units.device(NIC.device, &pci).unwrap(); // of segment 0
    let frames = machine.host.frames_in_use();
    let error = units.device(NIC, &pci).err().unwrap();
    assert!(
        matches!(error, ClientError::Attach(AttachError::Attached { .. })),
        "{error}"
    );
    assert_eq!(machine.host.frames_in_use(), frames, "P10: all are back");

    // without a clock nothing can be measured
    let config = ClientConfig::default().placement(Placement::Adaptive);
    let (design, dma) = (DomainConfig::default(), DmaConfig::default());
    let error = units.device_with(DISK, &pci, design, dma, config);
    let error = error.err().unwrap();
    assert!(matches!(error, ClientError::Pool(_)), "{error}");
    assert_eq!(page_of(machine.reach(1, DISK, IovaPage(0x500))), None, "P8");
    drop(nic);
    machine.end(units);
}

#[test]
fn firmware_without_units_is_an_error() {
    let machine = Machine::new(|_, _| {});
    let memory = without_units();
    let root = find::root_pointer(&memory).unwrap();
    let units = Units::from_acpi(&machine.host, &memory, root, |at, n| machine.map(at, n));
    let none = AcpiError::Find(FindError::NoDmar { tables: 2 });
    assert_eq!(units.err(), Some(none));
    let memory = announcing(machine.table[..48].to_vec());
    let units = Units::from_acpi(&machine.host, &memory, root, |at, n| machine.map(at, n));
    assert!(units.is_err(), "a table that is cut short");
}
