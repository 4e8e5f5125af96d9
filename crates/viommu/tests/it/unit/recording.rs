// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The fault recording registers and the fault status, as software reads and clears them.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::config::*;

const OTHER: SourceId = SourceId(0x0311);

fn with(records: usize, change: impl FnOnce(&mut RegisterConfig)) -> Rig {
    let mut config = UnitConfig::new(TOY);
    config.fault_records = records;
    change(&mut config.registers);
    Rig::new(&config)
}
fn words(rig: &Rig, index: u16) -> [u64; 2] {
    let at = reg::FRCD + 16 * index;
    [rig.get64(at), rig.get64(at + 8)]
}
fn clear(rig: &Rig, index: u16) {
    rig.set32(reg::FRCD + 16 * index + 12, 1 << 31);
}
/// PFO, PPF and FRI.
fn status(rig: &Rig) -> (u32, u32, u32) {
    let status = rig.get32(reg::FSTS);
    (status & 1, status >> 1 & 1, status >> 8 & 0xff)
}

#[test]
fn a_record_says_which_device_where_what_and_why() {
    let rig = with(4, |_| {});
    assert_eq!(words(&rig, 0), [0, 0]);
    rig.read(0x15);
    rig.write(0x16);
    rig.unit.access(OTHER, IovaPage(0x17), AccessKind::Read);
    rig.read(1 << 40);
    let source = u64::from(DEVICE.0);
    assert_eq!(words(&rig, 0), [0x15000, 0xc000_0006_0000_0000 | source]);
    assert_eq!(words(&rig, 1), [0x16000, 0x8000_0005_0000_0000 | source]);
    assert_eq!(words(&rig, 2), [0x17000, 0xc000_0002_0000_0311]);
    assert_eq!(words(&rig, 3), [1 << 52, 0xc000_0004_0000_0000 | source]);
    let at = reg::FRCD + 4; // the high half of the address
    assert_eq!((rig.get32(at), rig.get32(at + 48)), (0, 1 << 20));
}

#[test]
fn a_record_is_cleared_by_writing_1_to_f_alone() {
    let rig = with(4, |_| {});
    rig.read(1);
    let before = words(&rig, 0);
    rig.set64(reg::FRCD, u64::MAX);
    rig.set32(reg::FRCD + 8, u32::MAX);
    rig.set32(reg::FRCD + 12, !(1 << 31));
    rig.set64(reg::FRCD + 8, u64::MAX >> 1);
    rig.set32(reg::FSTS, 0b10); // PPF is what F says, no bit of its own
    assert_eq!((words(&rig, 0), status(&rig)), (before, (0, 1, 0)));
    rig.set64(reg::FRCD + 8, 1 << 63);
    assert_eq!((words(&rig, 0)[1] >> 63, status(&rig)), (0, (0, 0, 0)));
}

#[test]
fn records_go_round_and_the_status_names_the_oldest() {
    let rig = with(3, |_| {});
    for page in 1..=2 {
        rig.read(page);
    }
    assert_eq!(status(&rig), (0, 1, 0));
    clear(&rig, 0);
    assert_eq!(status(&rig), (0, 1, 1));
    rig.read(3);
    rig.read(4); // into the first again
    assert_eq!(status(&rig), (0, 1, 1));
    let pages: Vec<_> = (0..3).map(|i| words(&rig, i)[0] >> 12).collect();
    assert_eq!(pages, [4, 2, 3]);
    clear(&rig, 1);
    assert_eq!(status(&rig), (0, 1, 2));
    clear(&rig, 2);
    assert_eq!(status(&rig), (0, 1, 0));
    let taken = rig.unit.take_faults();
    assert_eq!(taken.records[0].page, IovaPage(4));
    assert_eq!((taken.records.len(), status(&rig)), (1, (0, 0, 0)));
}

#[test]
fn taken_records_come_oldest_first() {
    let rig = with(3, |_| {});
    for page in 0..3 {
        rig.read(page);
    }
    clear(&rig, 0);
    rig.read(3);
    let pages: Vec<_> = rig
        .unit
        .take_faults()
        .records
        .iter()
        .map(|r| r.page.0)
        .collect();
    assert_eq!(pages, [1, 2, 3]);
}

#[test]
fn after_an_overflow_nothing_is_recorded_until_it_is_cleared() {
    let rig = with(1, |_| {});
    rig.read(1);
    rig.read(2);
    assert_eq!(status(&rig), (1, 1, 0));
    assert_eq!(words(&rig, 0)[0], 1 << 12, "the first is kept");
    clear(&rig, 0);
    assert_eq!(status(&rig), (1, 0, 0));
    rig.read(3);
    assert_eq!(words(&rig, 0), [0, 0], "there is room, and it is not used");
    rig.set32(reg::FSTS, 0);
    assert_eq!(status(&rig), (1, 0, 0));
    rig.set32(reg::FSTS, 1);
    rig.read(4);
    assert_eq!((status(&rig), words(&rig, 0)[0]), ((0, 1, 0), 4 << 12));
}

#[test]
fn faults_of_one_source_collapse_where_configured() {
    for (collapse, pages) in [
        (Collapse::SameSource, vec![1, 3, 0]),
        (Collapse::Never, vec![1, 2, 3]),
    ] {
        let rig = with(4, |r| r.collapse = collapse);
        rig.read(1);
        rig.read(2);
        rig.unit.access(OTHER, IovaPage(3), AccessKind::Read);
        let held: Vec<_> = (0..3).map(|i| words(&rig, i)[0] >> 12).collect();
        assert_eq!(held, pages, "{collapse:?}");
        assert_eq!(rig.unit.stats().faults, 3);
    }
}

#[test]
fn collapsed_faults_do_not_overflow_and_end_with_the_record() {
    let rig = with(1, |r| r.collapse = Collapse::SameSource);
    rig.read(1);
    rig.read(2);
    assert_eq!(status(&rig), (0, 1, 0));
    rig.unit.access(OTHER, IovaPage(3), AccessKind::Read);
    assert_eq!(status(&rig), (1, 1, 0));
    clear(&rig, 0);
    rig.set32(reg::FSTS, 1);
    rig.read(2);
    assert_eq!(words(&rig, 0)[0], 2 << 12);
}

#[test]
fn silenced_faults_leave_no_trace() {
    let rig = with(1, |_| {});
    let at = usize::from(DEVICE.0 & 0xff) * 2;
    let entry = rig.peek(rig.context_table, at);
    rig.poke(rig.context_table, at, entry | 2);
    rig.read(1);
    assert_eq!((rig.get32(reg::FSTS), words(&rig, 0)), (0, [0, 0]));
}

#[test]
fn as_many_records_as_there_can_be() {
    let rig = with(256, |_| {});
    assert_eq!(rig.get64(reg::CAP) >> 40 & 0xff, 255);
    for page in 0..257 {
        rig.read(page);
    }
    assert_eq!(status(&rig), (1, 1, 0));
    assert_eq!(words(&rig, 255)[0], 255 << 12);
    assert_eq!(rig.unit.register_bytes(), 0x1220);
}
