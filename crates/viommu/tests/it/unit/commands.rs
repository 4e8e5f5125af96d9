// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Global command and status: enables, one-shot commands, the root pointer, interrupt-remapping
//! state.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{config::*, registers::InterruptTable};

const TE: u32 = 1 << 31;
const SRTP: u32 = 1 << 30;
const WBF: u32 = 1 << 27;
const QIE: u32 = 1 << 26;
const IRE: u32 = 1 << 25;
const SIRTP: u32 = 1 << 24;
const CFI: u32 = 1 << 23;

fn configured(change: impl FnOnce(&mut RegisterConfig)) -> Rig {
    let mut config = UnitConfig::new(TOY);
    change(&mut config.registers);
    Rig::new(&config)
}

#[test]
fn enables_follow_the_value_and_one_shots_do_not() {
    let rig = configured(|r| r.interrupts = InterruptRemapping::Extended);
    let command = |value| {
        rig.set32(reg::GCMD, value);
        rig.get32(reg::GSTS)
    };
    assert_eq!(command(TE | QIE | SIRTP), TE | SRTP | QIE | SIRTP);
    assert_eq!(
        command(TE | QIE | IRE | CFI),
        TE | SRTP | QIE | IRE | SIRTP | CFI
    );
    assert_eq!(
        command(IRE),
        SRTP | IRE | SIRTP,
        "what is not repeated is switched off"
    );
    assert_eq!(command(0), SRTP | SIRTP);
    assert_eq!(command(WBF), SRTP | SIRTP, "nothing to flush");
    let others = !(TE | SRTP | WBF | QIE | IRE | SIRTP | CFI);
    assert_eq!(command(others), SRTP | SIRTP, "SFL, EAFL and reserved bits");
}

#[test]
fn without_interrupt_remapping_its_bits_are_reserved() {
    let rig = Rig::toy();
    let before = rig.get32(reg::GSTS);
    rig.set32(reg::GCMD, TE | QIE | IRE | SIRTP | CFI);
    rig.set64(reg::IRTA, u64::MAX);
    assert_eq!((rig.get32(reg::GSTS), rig.get64(reg::IRTA)), (before, 0));
    assert_eq!(rig.unit.interrupt_table(), None);
}

#[test]
fn the_interrupt_table_is_latched_by_its_command() {
    for (mode, extended) in [
        (InterruptRemapping::Compatible, false),
        (InterruptRemapping::Extended, true),
    ] {
        let rig = configured(|r| r.interrupts = mode);
        rig.set64(reg::IRTA, 0x7_3000 | 1 << 11 | 9);
        assert_eq!(rig.unit.interrupt_table(), None);
        rig.set32(reg::GCMD, TE | QIE | SIRTP);
        let table = InterruptTable {
            table: PhysPage(0x73),
            entries_lg2: 10,
            extended,
        };
        assert_eq!(rig.unit.interrupt_table(), Some(table));
        rig.set64(reg::IRTA, 0);
        rig.set32(reg::GCMD, TE | QIE | IRE);
        assert_eq!(rig.unit.interrupt_table(), Some(table), "until the next");
    }
}

#[test]
fn interrupt_entry_invalidations_are_counted_where_there_is_remapping() {
    let rig = configured(|r| r.interrupts = InterruptRemapping::Compatible);
    let index_selective = 0x14 | 3 << 27 | 0x1234 << 32;
    rig.send(&[[0x4, 0], [index_selective, 0], wait(rig.status << 12, 1)]);
    assert_eq!((rig.queue_error(), rig.peek(rig.status, 0)), (false, 1));
    assert_eq!(rig.unit.stats().interrupt_invalidations, 2);

    let rig = Rig::toy();
    rig.send(&[[0x4, 0]]);
    assert_eq!((rig.queue_error(), rig.head()), (true, 0));
    assert_eq!(rig.unit.stats().interrupt_invalidations, 0);
}

/// Another root table, by which `DEVICE` reaches 200 instead of 100 at page 0.
fn change_root(rig: &Rig) {
    let (root_table, contexts, root) = (rig.frame(), rig.frame(), rig.frame());
    rig.poke(root_table, 3 * 2, contexts << 12 | 1);
    let at = usize::from(DEVICE.0 & 0xff) * 2;
    rig.poke(contexts, at + 1, u64::from(DOMAIN) << 8 | 1);
    rig.poke(contexts, at, root << 12 | 1);
    rig.map(root, 0, 200, RW);
    rig.set64(reg::RTADDR, root_table << 12);
}

#[test]
fn a_new_root_flushes_only_where_that_is_offered() {
    for (offered, then) in [
        (RootPointer::Latches, 100),
        (RootPointer::LatchesAndFlushes, 200),
    ] {
        let rig = configured(|r| r.root_pointer = offered);
        rig.map_here(0, 100);
        assert_eq!(rig.get(0).0, Some(100));
        change_root(&rig);
        assert_eq!(rig.get(0).0, Some(100), "not latched");
        rig.set32(reg::GCMD, TE | QIE | SRTP);
        assert_eq!(rig.get32(reg::GSTS), TE | QIE | SRTP);
        assert_eq!(rig.get(0).0, Some(then), "{offered:?}");
        // what is left is what a global flush of both caches removes
        rig.send(&[[0x11, 0], [0xd2, 0]]);
        assert_eq!(rig.get(0).0, Some(200));
        rig.check();
    }
}

#[test]
fn a_root_that_flushes_is_set_when_what_was_in_flight_has_ended() {
    let rig = configured(|r| r.root_pointer = RootPointer::LatchesAndFlushes);
    rig.map_here(0, 100);
    let walk = rig.begin(0);
    change_root(&rig);
    rig.set32(reg::GCMD, TE | QIE | SRTP);
    assert_eq!(rig.get32(reg::GSTS), TE | QIE, "RTPS");
    rig.send(&[wait(rig.status << 12, 1)]);
    assert_eq!(rig.peek(rig.status, 0), 0, "the queue waits too");
    rig.check();
    let access = walk.finish();
    assert_eq!(target(&access), Some(100), "by the root that it began with");
    assert_eq!(rig.get32(reg::GSTS), TE | QIE | SRTP);
    assert_eq!(rig.peek(rig.status, 0), 1);
    assert_eq!(rig.get(0).0, Some(200), "and it left nothing behind");
    rig.check();
}

#[test]
fn a_root_that_flushes_waits_for_a_drain_of_the_queue() {
    for switch_off in [false, true] {
        let rig = configured(|r| r.root_pointer = RootPointer::LatchesAndFlushes);
        let (first, second) = (rig.begin(0), rig.begin(1));
        rig.send(&[flush_domain(DOMAIN), wait(rig.status << 12, 1)]);
        rig.set32(reg::GCMD, TE | QIE | SRTP);
        rig.check();
        if switch_off {
            rig.set32(reg::GCMD, TE); // gives the queue's drain up, and begins the root's
            rig.check();
        }
        drop(first);
        assert_eq!(rig.get32(reg::GSTS) & SRTP, 0);
        rig.check();
        drop(second);
        assert_eq!(rig.get32(reg::GSTS) & SRTP, SRTP);
        let done = u64::from(!switch_off);
        assert_eq!(rig.peek(rig.status, 0), done);
        rig.check();
    }
}

#[test]
fn a_root_set_again_while_the_first_drains_is_not_set_too_early() {
    let rig = configured(|r| r.root_pointer = RootPointer::LatchesAndFlushes);
    let first = rig.begin(0);
    rig.set32(reg::GCMD, TE | QIE | SRTP);
    let second = rig.begin(0);
    rig.set32(reg::GCMD, TE | QIE | SRTP);
    drop(first);
    assert_eq!(
        rig.get32(reg::GSTS),
        TE | QIE,
        "the second is in flight still"
    );
    drop(second);
    assert_eq!(rig.get32(reg::GSTS), TE | QIE | SRTP);
    rig.check();
}

#[test]
fn other_table_modes_than_legacy_translate_nothing() {
    let rig = Rig::toy();
    rig.map_here(0, 100);
    rig.set64(reg::RTADDR, rig.root_table << 12 | 1 << 10);
    rig.set32(reg::GCMD, TE | QIE | SRTP);
    assert_eq!(fault(&rig.read(0)).code(), 8);
}
