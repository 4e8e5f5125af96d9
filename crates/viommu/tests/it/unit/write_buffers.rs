// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Write buffers: what is written to tables is not seen before it is flushed.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{config::*, fault::FaultReason, observe::From, queue::Progress};
use ioatlas_vtd::registers::{self as offset, Reg64, Registers};

const ON: u32 = 1 << 31 | 1 << 26;
const WBF: u32 = 1 << 27;

fn config(write_buffers: WriteBuffers) -> UnitConfig {
    let mut config = UnitConfig::new(TOY);
    config.features.write_buffers = write_buffers;
    config
}

const BOTH: [WriteBuffers; 2] = [
    WriteBuffers::FlushedByCommand,
    WriteBuffers::FlushedByInvalidations,
];

fn flush(rig: &Rig) {
    rig.unit.write32(offset::GCMD, ON | WBF);
}

fn flushing(rig: &Rig) -> bool {
    rig.unit.read32(offset::GSTS) & WBF != 0
}

#[test]
fn the_capability_register_says_so() {
    for buffers in [BOTH[0], BOTH[1], WriteBuffers::None] {
        let rig = Rig::new(&config(buffers));
        let rwbf = rig.unit.read64(offset::CAP) >> 4 & 1 == 1;
        assert_eq!(rwbf, buffers != WriteBuffers::None);
    }
    let rig = Rig::toy();
    flush(&rig);
    assert_eq!(rig.unit.stats().write_buffer_flushes, 0, "nothing to do");
}

#[test]
fn a_map_is_seen_after_the_flush_whether_its_tables_are_new_or_not() {
    for buffers in BOTH {
        let rig = Rig::new(&config(buffers));
        for page in [9, 10, 40] {
            rig.map_here(page, 100 + page);
            assert_eq!(rig.get(page).0, None, "page {page} is not flushed yet");
            flush(&rig);
            assert!(!flushing(&rig));
            assert_eq!(rig.get(page).0, Some(100 + page));
        }
        rig.check();
    }
}

#[test]
fn without_write_buffers_it_is_seen_at_once() {
    let rig = Rig::new(&config(WriteBuffers::None));
    rig.map_here(9, 100);
    assert_eq!(rig.get(9).0, Some(100));
}

/// Page 9 is mapped and cached, then unmapped.
fn unmapped(buffers: WriteBuffers) -> Rig {
    let rig = Rig::new(&config(buffers));
    let (table, index) = rig.map_here(9, 100);
    flush(&rig);
    rig.read(9);
    rig.poke(table, index, 0);
    rig
}

#[test]
fn an_unmap_that_was_invalidated_but_not_flushed_is_undone_by_the_next_walk() {
    let rig = unmapped(WriteBuffers::FlushedByCommand);
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(
        rig.get(9),
        (Some(100), From::Walk),
        "the driver's bug shows"
    );
    flush(&rig);
    assert_eq!(rig.get(9), (Some(100), From::Iotlb), "the order matters");
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.get(9).0, None);
}

#[test]
fn invalidations_flush_where_the_unit_is_as_specified() {
    let rig = unmapped(WriteBuffers::FlushedByInvalidations);
    rig.send(&[flush_pages(DOMAIN, 9, 0, 1)]);
    assert_eq!(rig.get(9).0, None);
    // any invalidation of tables, but no wait
    for (descriptor, seen) in [
        (wait(rig.status << 12, 7), false),
        (flush_context(DOMAIN + 7, DEVICE), true),
        (flush_pages(DOMAIN + 7, 0, 0, 0), true),
    ] {
        rig.map_here(9, 100);
        rig.send(&[descriptor]);
        assert_eq!(rig.get(9).0.is_some(), seen, "{descriptor:x?}");
        rig.map(rig.root, 9, 0, 0);
        rig.send(&[flush_domain(DOMAIN)]);
    }
}

#[test]
fn invalidations_by_register_flush_too() {
    for (buffers, seen) in BOTH.into_iter().zip([false, true]) {
        for (register, value) in [
            (Reg64(0x28), 1 << 63 | 1 << 61),
            (Reg64(0xf8), 1 << 63 | 1 << 60),
        ] {
            let rig = Rig::new(&config(buffers));
            rig.unit.write32(offset::GCMD, 1 << 31);
            rig.map_here(9, 100);
            rig.unit.write64(register, value);
            assert_eq!(rig.unit.read64(register) >> 63, 0, "done");
            assert_eq!(rig.get(9).0.is_some(), seen);
        }
    }
}

#[test]
fn an_attach_and_a_detach_take_a_flush() {
    let rig = Rig::new(&config(WriteBuffers::FlushedByCommand));
    let late = SourceId(0x0318);
    let read = || rig.unit.access(late, IovaPage(9), AccessKind::Read);
    rig.map_here(9, 100);
    flush(&rig);
    assert_eq!(fault(&read()), FaultReason::ContextNotPresent);
    rig.attach(late, DOMAIN, rig.root);
    assert_eq!(
        fault(&read()),
        FaultReason::ContextNotPresent,
        "not flushed yet"
    );
    flush(&rig);
    assert_eq!(target(&read()), Some(100));
    rig.poke(rig.context_table, usize::from(late.0 & 0xff) * 2, 0);
    let gone = [flush_context(DOMAIN, late), flush_domain(DOMAIN)];
    rig.send(&gone);
    assert_eq!(target(&read()), Some(100), "the driver's bug shows");
    flush(&rig);
    rig.send(&gone);
    assert_eq!(fault(&read()), FaultReason::ContextNotPresent);
}

#[test]
fn setting_the_root_table_pointer_shows_what_it_leads_to() {
    let rig = Rig::new(&config(WriteBuffers::FlushedByCommand));
    let (root, contexts) = (rig.frame(), rig.context_table);
    rig.map_here(9, 100);
    rig.poke(root, 3 * 2, contexts << 12 | 1);
    rig.unit.write64(offset::RTADDR, root << 12);
    rig.unit.write32(offset::GCMD, ON | 1 << 30);
    assert_eq!(rig.get(9).0, Some(100));
    rig.poke(root, 3 * 2, 0);
    rig.send(&[[0x11, 0], [0xd2, 0]]);
    assert_eq!(rig.get(9).0, Some(100), "a copy of it");
    flush(&rig);
    rig.send(&[[0x11, 0], [0xd2, 0]]);
    assert_eq!(fault(&rig.read(9)), FaultReason::RootNotPresent);
}

#[test]
fn a_freed_table_is_walked_until_the_flush() {
    let rig = Rig::new(&config(WriteBuffers::FlushedByCommand));
    let (table, index) = rig.map_here(9, 100);
    flush(&rig);
    let (above, at) = rig.entry(rig.root, 9, 2);
    rig.poke(above, at, 0);
    rig.poke(table, index, 200 << 12 | RW); // another owner's now
    rig.send(&[flush_domain(DOMAIN)]);
    assert_eq!(rig.get(9).0, Some(100), "what the table said then");
    assert!(rig.unit.holds_pointer_to(PhysPage(table)), "P4 sees it");
}

#[test]
fn large_leaves_and_tables_that_are_no_memory_are_flushed_like_others() {
    let mut config = config(WriteBuffers::FlushedByCommand);
    config.features.largest_leaf = 2;
    let rig = Rig::new(&config);
    rig.map_large(4, 2, 100, RW);
    let absent = 1 << 30; // an entry that leads to where no memory is
    let (table, index) = rig.entry(rig.root, 8, 2);
    rig.poke(table, index, absent << 12 | RW);
    flush(&rig);
    assert_eq!(rig.get(6).0, Some(102));
    assert_eq!(
        fault(&rig.read(8)),
        FaultReason::TableUnreachable { level: 1 }
    );
}

#[test]
fn tables_that_lead_to_themselves_are_copied_once() {
    let rig = Rig::new(&config(WriteBuffers::FlushedByCommand));
    for index in 0..4 {
        rig.poke(rig.root, index, rig.root << 12 | RW);
    }
    flush(&rig);
    assert_eq!(rig.get(27).0, Some(rig.root));
}

#[test]
fn asynchronous_processing_flushes_in_its_turn_and_a_stuck_unit_never() {
    let mut config = config(WriteBuffers::FlushedByCommand);
    config.processing = Processing::Asynchronous;
    let rig = Rig::new(&config);
    let until_idle = || while rig.unit.service() == Progress::Did {};
    until_idle();
    rig.map_here(9, 100);
    flush(&rig);
    assert!(flushing(&rig));
    assert_eq!(rig.get(9).0, None);
    rig.map_here(9, 200); // the flush takes what is there when it is done
    until_idle();
    assert!(!flushing(&rig));
    assert_eq!(rig.get(9).0, Some(200));

    rig.unit.set_processing(Processing::Stuck);
    flush(&rig);
    until_idle();
    assert!(
        flushing(&rig),
        "a driver that waits without bound hangs here"
    );
}
