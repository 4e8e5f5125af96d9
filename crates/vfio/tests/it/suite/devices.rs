// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices: when they are bus masters, their registers, their interrupts, and in which order things
//! end.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, units::*};
use ioatlas_vfio::{device::*, kernel::*, simulated::*};
use std::time::Duration;

fn is_master(rig: &Rig) -> bool {
    rig.device.config::<u16>(4).unwrap() & 4 != 0
}

#[test]
fn a_device_is_quiet_before_its_mappings_go_however_things_are_dropped() {
    for kind in KINDS {
        for order in ["device first", "domain first", "closed", "mapping alive"] {
            let Rig {
                kernel,
                device,
                memory,
                domain,
            } = Rig::strict(kind);
            let domain = std::sync::Arc::into_inner(domain).unwrap();
            let buffer = memory.buffer(ByteCount(GRANULE)).unwrap();
            let mapping = domain.map(buffer.range(), Direction::Bidirectional);
            let mapping = mapping.unwrap();
            match order {
                "device first" => {
                    drop(device);
                    drop(domain);
                }
                "domain first" => {
                    drop(domain);
                    drop(device);
                }
                "closed" => {
                    drop(device);
                    domain.close().unwrap();
                }
                _ => drop((domain, device)),
            }
            drop(mapping);
            let events = kernel.events();
            let at = |wanted: fn(&Event) -> bool| events.iter().rposition(wanted);
            let stopped = at(|e| matches!(e, Event::Stopped(_)));
            let reset = at(|e| matches!(e, Event::Reset(_)));
            let unmapped = at(|e| matches!(e, Event::Unmapped(_)));
            assert!(
                stopped.is_some() && stopped < reset,
                "P8: {kind:?}, {order}: {events:?}"
            );
            assert!(reset < unmapped, "P8: {kind:?}, {order}: {events:?}");
            assert_eq!(kernel.open_files(), 0, "{kind:?}, {order}");
            assert_eq!(kernel.pinned(), ByteCount(0));
        }
    }
}

#[test]
fn only_an_attached_device_is_a_bus_master() {
    for kind in KINDS {
        let kernel = Simulated::new(Machine::usual());
        let space = kind.open(&kernel, &[nvme()]).unwrap();
        let command = |space: &ioatlas_vfio::space::AnySpace<Simulated>| {
            space.devices()[0].config::<u16>(4).unwrap()
        };
        assert_eq!(
            command(&space),
            0b011,
            "{kind:?}: firmware had left it going"
        );
        drop(space);
        let rig = Rig::strict(kind);
        assert!(is_master(&rig));
        // a driver that writes the register changes the rest of it only
        rig.device.config_write(4, &0x402u16.to_le_bytes()).unwrap();
        assert_eq!(rig.device.config::<u16>(4).unwrap(), 0x406);
        rig.device.reset().unwrap();
        assert!(is_master(&rig));
        rig.domain.detach(nvme().source()).unwrap();
        assert!(!is_master(&rig));
        rig.device.config_write(0, &[0; 8]).unwrap();
        rig.device
            .config_write(4, &0xffffu16.to_le_bytes())
            .unwrap();
        assert_eq!(rig.device.config::<u16>(4).unwrap(), 0xfffb);
        let buffer = rig.buffer(1);
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        rig.device.config_write(4, &0x2u16.to_le_bytes()).unwrap();
        assert_eq!(rig.reads(mapping.iova()), None);
        rig.domain.attach(nvme().source()).unwrap();
        assert!(rig.reads(mapping.iova()).is_some());
        rig.domain.unmap(mapping).unwrap();
    }
}

#[test]
fn a_device_without_a_reset_is_quiet_all_the_same() {
    let mut machine = Machine::usual();
    machine.devices[0].reset = Reset::Unsupported;
    let rig = Rig::on(machine, Kind::Type1, DomainConfig::default());
    let refused = rig.device.reset().unwrap_err();
    assert!(matches!(refused, DeviceError::NoReset { .. }), "{refused}");
    rig.domain.detach(nvme().source()).unwrap();
    assert!(!is_master(&rig));
}

/// The kernel tries for the device's lock, and does not wait for it.
#[test]
fn a_device_whose_reset_is_held_up_is_quiet_all_the_same() {
    for kind in KINDS {
        for errno in [Errno::AGAIN, Errno::BUSY] {
            let rig = Rig::strict(kind);
            // the command register is read and written, then comes the reset
            rig.kernel.fail(Some(Failure { after: 2, errno }));
            rig.domain.detach(nvme().source()).unwrap();
            rig.kernel.fail(None);
            assert!(!is_master(&rig), "{kind:?}");
        }
    }
}

#[test]
fn a_removed_device_says_so_and_everything_returns() {
    for kind in KINDS {
        let rig = Rig::strict(kind);
        let (buffer, bar) = (rig.buffer(2), rig.device.bar(BarIndex(0)).unwrap());
        let mapping = rig.domain.map(buffer.range(), Direction::ToDevice).unwrap();
        rig.kernel.remove(nvme());
        let refused = rig.device.id().unwrap_err();
        assert!(matches!(refused, DeviceError::Removed { .. }), "{kind:?}");
        assert!(
            refused.to_string().contains("was removed: drop it"),
            "{refused}"
        );
        let slow = bar.read::<u32>(0x3000).unwrap_err();
        assert!(matches!(slow, DeviceError::Removed { .. }));
        rig.domain.unmap(mapping).unwrap();
        rig.domain.detach(nvme().source()).unwrap();
        let Rig {
            kernel,
            device,
            domain,
            ..
        } = rig;
        drop((bar, buffer, device, domain));
        assert_eq!(kernel.pinned(), ByteCount(0));
        assert_eq!(kernel.open_files(), 0);
    }
}

#[test]
fn registers_are_read_and_written_inside_the_bar_only() {
    let rig = Rig::strict(Kind::Type1);
    let bar = rig.device.bar(BarIndex(0)).unwrap();
    assert_eq!(bar.len(), ByteCount(0x4000));
    bar.write(0x1000, 0x1234_5678u32).unwrap();
    assert_eq!(bar.read::<u32>(0x1000).unwrap(), 0x1234_5678);
    assert_eq!(bar.read::<u8>(0x1001).unwrap(), 0x56);
    bar.write(0x2ff8, u64::MAX).unwrap();
    assert_eq!(bar.read::<u64>(0x2ff8).unwrap(), u64::MAX);
    // not mapped: by the file
    assert_eq!(bar.read::<u64>(0x3ff8).unwrap(), 0);
    for at in [0x4000, 0x3ffe, 0x1001, u64::MAX] {
        let refused = bar.read::<u32>(at).unwrap_err();
        assert!(
            matches!(refused, DeviceError::NoRegister { .. }),
            "{at:#x}: {refused}"
        );
        assert!(bar.write(at, 0u32).is_err());
    }
    for none in [1, 5, 6, 200] {
        let refused = rig.device.bar(BarIndex(none)).map(drop).unwrap_err();
        assert!(matches!(refused, DeviceError::NoBar { .. }), "{refused}");
    }
}

#[test]
fn capabilities_are_found_and_loops_of_them_end() {
    let rig = Rig::strict(Kind::Type1);
    assert_eq!(rig.device.capability(0x11).unwrap(), Some(0x50));
    assert_eq!(rig.device.capability(0x10).unwrap(), None);
    rig.device.config_write(0x51, &[0x40]).unwrap();
    assert_eq!(rig.device.capability(0x10).unwrap(), None);
    let refused = rig.device.config::<u32>(254).unwrap_err();
    assert!(
        matches!(refused, DeviceError::NoConfig { at: 254, .. }),
        "{refused}"
    );
}

#[test]
fn interrupts_are_counted_and_no_more_than_there_are() {
    let rig = Rig::strict(Kind::Type1);
    assert_eq!(rig.device.vectors(IrqKind::Msix).unwrap(), 8);
    let one = Interrupt::new().unwrap();
    assert_eq!(one.wait(Some(Duration::ZERO)).unwrap(), 0);
    rig.device.enable(IrqKind::Msix, &[&one; 8]).unwrap();
    one.raise().unwrap();
    one.raise().unwrap();
    assert_eq!(one.wait(None).unwrap(), 2);
    assert_eq!(one.take().unwrap(), 0);
    for wanted in [0, 9] {
        let refused = rig
            .device
            .enable(IrqKind::Msix, &vec![&one; wanted])
            .unwrap_err();
        assert!(
            matches!(refused, DeviceError::NoVectors { has: 8, .. }),
            "{refused}"
        );
    }
    rig.device.disable(IrqKind::Msix).unwrap();
}

/// The kernel takes the mapping away: the next read would be SIGBUS, which no error tells of.
#[test]
fn a_mapped_bar_can_be_accessed_whatever_is_written_to_configuration_space() {
    const COMMAND: u64 = 4;
    /// Of the capability at 0x40.
    const POWER_CONTROL: u64 = 0x44;
    let rig = Rig::strict(Kind::Type1);
    let device = &rig.device;
    let write = |at, bytes: &[u8]| device.config_write(at, bytes);
    let answers = || {
        let command = device.config::<u8>(COMMAND).unwrap();
        let power = device.config::<u8>(POWER_CONTROL).unwrap();
        command & 2 != 0 && power & 3 != 3
    };
    let (first, second) = (device.bar(BarIndex(0)), device.bar(BarIndex(0)));
    let (first, second) = (first.unwrap(), second.unwrap());
    let ends: [(u64, &[u8]); 6] = [
        (COMMAND, &[0]),
        (COMMAND, &[0x05, 0x04]),
        (2, &[0; 4]),
        (POWER_CONTROL, &[3]),
        (POWER_CONTROL, &[3, 0]),
        (0x40, &[1, 0x50, 0, 0, 0x0b]),
    ];
    let refused = |bytes| {
        for (at, bytes) in bytes {
            let refused = write(at, bytes).unwrap_err();
            assert!(
                matches!(refused, DeviceError::Mapped { .. }),
                "{at:#x}: {refused}"
            );
            assert!(answers(), "{at:#x}: {bytes:?}");
        }
    };
    refused(ends);
    drop(first);
    refused(ends);
    // what leaves it there, or is elsewhere
    write(COMMAND, &[0x02]).unwrap();
    write(COMMAND + 1, &[0x00]).unwrap();
    write(POWER_CONTROL, &[2]).unwrap();
    assert_eq!(second.read::<u32>(0).unwrap(), 0);
    drop(second);
    for (at, bytes) in ends {
        write(COMMAND, &[0x02]).unwrap();
        write(POWER_CONTROL, &[0]).unwrap();
        write(at, bytes).unwrap();
        assert!(!answers(), "{at:#x}: nothing is mapped");
        let bar = device.bar(BarIndex(0)).unwrap();
        assert!(answers(), "{at:#x}: {bytes:?}");
        drop(bar);
    }
    assert!(is_master(&rig), "that is its domain's to say");
}
