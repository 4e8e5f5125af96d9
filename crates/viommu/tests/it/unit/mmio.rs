// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The register block as bytes: sizes, alignments, and the driver on it.

use crate::unit::{driven::whole_life_by, rig::*};
use ioatlas_dma::table::fmt::VtdSecond48;
use ioatlas_host::Host;
use ioatlas_viommu::{config::*, mmio::MmioWindow};

fn window() -> (Rig, MmioWindow<Host, Host>) {
    let rig = Rig::toy();
    let window = MmioWindow::new(rig.unit.clone());
    (rig, window)
}

#[test]
fn words_and_quads_are_little_endian() {
    let (rig, window) = window();
    window.write(reg::RTADDR.into(), &[0, 0x10, 0x32, 0x54, 0x76, 0x98, 0, 0]);
    assert_eq!(rig.get64(reg::RTADDR), 0x9876_5432_1000);
    let mut quad = [0; 8];
    window.read(reg::RTADDR.into(), &mut quad);
    assert_eq!(quad, [0, 0x10, 0x32, 0x54, 0x76, 0x98, 0, 0]);
    let mut word = [0; 4];
    window.read(u64::from(reg::RTADDR) + 4, &mut word);
    assert_eq!(word, [0x76, 0x98, 0, 0]);
    window.write(u64::from(reg::RTADDR) + 4, &[1, 0, 0, 0]);
    assert_eq!(rig.get64(reg::RTADDR), 0x1_5432_1000);
}

#[test]
fn other_accesses_do_nothing_and_read_as_all_ones() {
    let (rig, window) = window();
    let before = rig.get64(reg::RTADDR);
    let root = u64::from(reg::RTADDR);
    let end = window.len();
    let wrong = [
        (root, 0),
        (root, 1),
        (root, 2),
        (root, 3),
        (root, 16),
        (root + 1, 4),
        (root + 2, 4),
        (root + 4, 8),
        (root - 4, 8),
        (end, 4),
        (end - 4, 8),
        (0x1_0000 + root, 8),
        (u64::MAX - 7, 8),
        (1 << 63, 8),
    ];
    for (offset, len) in wrong {
        let mut data = vec![0; len];
        window.write(offset, &data);
        window.read(offset, &mut data);
        assert!(data.iter().all(|&b| b == 0xff), "{offset:#x}, {len}");
    }
    assert_eq!(rig.get64(reg::RTADDR), before);
    let mut last = [1; 8];
    window.read(end - 8, &mut last);
    assert_eq!(last, [0; 8], "in the window, and no register");
}

#[test]
fn the_window_is_whole_pages_around_all_records() {
    assert_eq!(window().1.len(), 0x1000);
    let mut config = UnitConfig::new(TOY);
    config.fault_records = 256;
    let rig = Rig::new(&config);
    for page in 0..256 {
        rig.read(page);
    }
    let window = MmioWindow::new(rig.unit.clone());
    assert_eq!(window.len(), 0x2000);
    let mut data = [0; 8];
    window.read(0x1210, &mut data);
    assert_eq!(u64::from_le_bytes(data), 255 << 12);
}

#[test]
fn the_driver_runs_on_it_unchanged() {
    let run = |change: fn(&mut UnitConfig)| {
        whole_life_by::<VtdSecond48, _>(change, MmioWindow::new);
    };
    run(|_| {});
    run(|c| c.features.page_selective = None);
    run(|c| c.registers.root_pointer = RootPointer::LatchesAndFlushes);
    run(|c| c.registers.interrupts = InterruptRemapping::Extended);
    run(|c| c.registers.restart = Restart::TailWritten);
}

#[test]
fn the_driver_runs_by_registers_where_there_is_no_queue() {
    let run = |change: fn(&mut UnitConfig)| {
        let registers = |c: &mut UnitConfig| {
            c.registers.interface = InvalidationInterface::Registers;
            c.registers.iotlb_offset = 0x110;
            change(c);
        };
        whole_life_by::<VtdSecond48, _>(registers, MmioWindow::new);
    };
    run(|_| {});
    run(|c| c.features.page_selective = None);
    run(|c| (c.features.drain_reads, c.features.drain_writes) = (false, false));
    run(|c| c.registers.root_pointer = RootPointer::LatchesAndFlushes);
}
