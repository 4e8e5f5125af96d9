// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Fault records: read, cleared, and put into words.

use crate::common::rig::*;
use ioatlas_dma::units::*;
use ioatlas_host::Host;
use ioatlas_vtd::fault::*;
use std::collections::BTreeSet;

/// F, then T1 for a read.
const F: u64 = 1 << 63;
const READ: u64 = 1 << 62;

fn record(reason: u64, sid: u64, page: u64, read: u64) -> (u64, u64) {
    (page << 12, F | read | reason << 32 | sid)
}

#[test]
fn records_come_in_the_order_in_which_they_were_filled_and_are_freed() {
    // four records; the unit began at the third
    let (_host, fake, unit) = up_with(|s| s.cap |= 3 << 40);
    fake.state().faults = vec![
        record(6, 0x28, 0x30, READ),
        (0, 0),
        record(5, 0x20, 0x10, 0),
        record(5, 0x20, 0x20, 0),
    ];
    fake.state().fsts = 2 << 8;
    let (faults, overflow) = unit.faults();
    assert_eq!(overflow, Overflow::None);
    let pages: Vec<u64> = faults.iter().map(|f| f.page.page().0).collect();
    assert_eq!(pages, [0x10, 0x20, 0x30]);
    assert_eq!(faults[0].device, NIC);
    assert_eq!(faults[0].attempt, Attempt::Write);
    assert_eq!(faults[0].reason, Reason::NotWritable);
    assert_eq!(faults[2].attempt, Attempt::Read);
    assert_eq!(unit.faults(), (vec![], Overflow::None), "they were freed");
}

#[test]
fn an_overflow_is_told_once_and_cleared() {
    let (_host, fake, unit) = up_with(|_| {});
    fake.state().faults = vec![record(2, 0x28, 0, READ)];
    fake.state().fsts = 1;
    let (faults, overflow) = unit.faults();
    assert_eq!((faults.len(), overflow), (1, Overflow::Lost));
    assert_eq!(fake.state().fsts, 0);
    assert_eq!(unit.faults().1, Overflow::None);
}

#[test]
fn errors_of_the_queue_survive_the_reading_of_faults() {
    let (_host, fake, unit) = up_with(|_| {});
    fake.state().faults = vec![record(2, 0x28, 0, READ)];
    fake.state().fsts = 0x71;
    unit.faults();
    assert_eq!(fake.state().fsts, 0x70);
}

#[test]
fn a_unit_that_is_gone_has_no_records() {
    let (_host, fake, unit) = up_with(|_| {});
    fake.state().faults = vec![(u64::MAX, u64::MAX)];
    fake.state().fsts = 0xff;
    assert_eq!(unit.faults().0, []);
}

#[test]
fn every_bit_of_a_record_is_where_the_specification_puts_it() {
    let decode = |low, high| FaultRecord::decode(low, F | high);
    for bit in 12..64 {
        assert_eq!(decode(1 << bit, 0x5 << 32).page, Iova(1 << bit));
    }
    for bit in 0..16 {
        assert_eq!(decode(0, 1 << bit).device, SourceId(1 << bit));
    }
    let attempt = |high| decode(0, high).attempt;
    assert_eq!(attempt(0), Attempt::Write);
    assert_eq!(attempt(READ), Attempt::Read);
    assert_eq!(attempt(1 << 28), Attempt::PageRequest);
    assert_eq!(attempt(READ | 1 << 28), Attempt::Atomic);
    for code in 0..=255u8 {
        let reason = decode(0, u64::from(code) << 32).reason;
        assert_eq!(reason.code(), code);
    }
    let interrupt = decode(0x1234 << 48, 0x22 << 32);
    assert_eq!(interrupt.attempt, Attempt::Interrupt { index: 0x1234 });
    // as QEMU records it: filler where a PASID would be
    let qemu = FaultRecord::decode(0x5000, 0x80ff_ff05_0000_0020);
    assert_eq!(
        qemu.to_string(),
        FaultRecord::decode(0x5000, F | 5 << 32 | 0x20).to_string()
    );
}

#[test]
fn every_reason_has_a_sentence_of_its_own() {
    let codes: Vec<u8> = Reason::ALL.iter().map(|r| r.code()).collect();
    let want: Vec<u8> = (1..=0xe).chain(0x20..=0x28).collect();
    assert_eq!(codes, want);
    let sentences: BTreeSet<_> = Reason::ALL.iter().map(|r| r.to_string()).collect();
    assert_eq!(sentences.len(), Reason::ALL.len());
    assert!(Reason::Other(0x77).to_string().contains("0x77"));
}

#[test]
fn a_record_is_a_sentence() {
    let (low, high) = record(5, 0x20, 0x12, 0);
    assert_eq!(
        FaultRecord::decode(low, high).to_string(),
        "device 00:04.0 tried to write page 0x12000, and was blocked: nothing is mapped there for writing (reason 0x5)"
    );
}

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(count))
}

const ID: DomainId = DomainId(5);

fn history(events: usize) -> History<Host> {
    let history = History::new(events, 4);
    history.attached(NIC, ID);
    history
}

#[test]
fn a_page_that_was_unmapped_is_remembered_with_its_size_purpose_and_age() {
    let history = history(100);
    history.mapped(ID, pages(0x12, 1), Perm::Read, TimeNs(1));
    history.unmapped(ID, pages(0x12, 1), TimeNs(1_500_000_000));
    for n in 0..12 {
        history.mapped(ID, pages(0x100 + n, 1), Perm::Write, TimeNs(2));
        history.unmapped(ID, pages(0x100 + n, 1), TimeNs(3));
        // of another domain: the same page, and it counts for nothing
        history.unmapped(DomainId(6), pages(0x12, 1), TimeNs(4));
    }
    let (low, high) = record(6, 0x20, 0x12, READ);
    let explained = FaultRecord::decode(low, high).explain(&history);
    assert_eq!(
        explained.past.unwrap().to_string(),
        "the page was unmapped 12 unmaps ago, at 1.500000 s; it was in a mapping of 4 KiB for reading"
    );
    let sentence = explained.to_string();
    assert!(sentence.starts_with("device 00:04.0 tried to read page 0x12000"));
}

#[test]
fn the_newest_event_of_a_page_counts() {
    let history = history(100);
    let recall = |page| history.recall(NIC, IovaPage(page));
    assert_eq!(recall(0x12), Past::Never);
    history.mapped(ID, pages(0x10, 8), Perm::Read, TimeNs(1));
    history.unmapped(ID, pages(0x10, 8), TimeNs(2));
    history.mapped(ID, pages(0x12, 1), Perm::Write, TimeNs(3));
    let (range, perm, at) = (pages(0x12, 1), Perm::Write, TimeNs(3));
    assert_eq!(recall(0x12), Past::Mapped { range, perm, at });
    let unmapped = Past::Unmapped {
        range: pages(0x10, 8),
        perm: Some(Perm::Read),
        unmaps_ago: 0,
        at: TimeNs(2),
    };
    assert_eq!(recall(0x17), unmapped);
    assert_eq!(recall(0x18), Past::Never);
    assert_eq!(history.recall(DISK, IovaPage(0x12)), Past::NoDomain);
}

#[test]
fn what_the_ring_no_longer_holds_is_forgotten_and_said_to_be() {
    let history = history(4);
    history.mapped(ID, pages(0x12, 1), Perm::Read, TimeNs(1));
    for n in 0..3 {
        history.unmapped(ID, pages(0x100 + n, 1), TimeNs(2));
    }
    assert!(matches!(
        history.recall(NIC, IovaPage(0x12)),
        Past::Mapped { .. }
    ));
    history.unmapped(ID, pages(0x12, 1), TimeNs(3));
    let half = history.recall(NIC, IovaPage(0x12));
    assert!(matches!(half, Past::Unmapped { perm: None, .. }), "{half}");
    for n in 0..4 {
        history.unmapped(ID, pages(0x200 + n, 1), TimeNs(4));
    }
    let gone = history.recall(NIC, IovaPage(0x12));
    assert_eq!(gone, Past::Forgotten { remembered: 4 });
}

/// Against a plain list, searched from its end.
#[test]
fn the_ring_remembers_what_a_list_does() {
    let history = history(1000);
    let mut list = Vec::new();
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..900 {
        let range = pages(random.u64(..30), random.u64(1..=3));
        let mapped = random.bool();
        match mapped {
            true => history.mapped(ID, range, Perm::Read, TimeNs(n)),
            false => history.unmapped(ID, range, TimeNs(n)),
        }
        list.push((range, mapped));
        let page = random.u64(..34);
        let newest = list.iter().rev().find(|e| e.0.contains(&pages(page, 1)));
        match (history.recall(NIC, IovaPage(page)), newest) {
            (Past::Mapped { range, .. }, Some((of, true))) => assert_eq!(range, *of),
            (
                Past::Unmapped {
                    range, unmaps_ago, ..
                },
                Some((of, false)),
            ) => {
                assert_eq!(range, *of);
                let since = list
                    .iter()
                    .rev()
                    .take_while(|e| !e.0.contains(&pages(page, 1)) || e.1);
                assert_eq!(unmaps_ago, since.filter(|e| !e.1).count() as u64);
            }
            (Past::Never, None) => {}
            (past, newest) => panic!("{past:?}, {newest:?}"),
        }
    }
}
