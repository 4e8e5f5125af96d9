// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an observer sees, and that it sees it in order.

use crate::unit::rig::*;
use ioatlas_dma::{invalidation::Caches, units::*};
use ioatlas_viommu::{
    config::*,
    invalidation::{Drain, Invalidation, Selection},
    observe::*,
};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Log(Mutex<Vec<(Moment, Event)>>);

impl Observer for Log {
    fn event(&self, at: Moment, event: &Event) {
        self.0.lock().unwrap().push((at, *event));
    }
}

fn logged() -> (Rig, Arc<Log>) {
    let log = Arc::new(Log::default());
    let rig = Rig::build(&UnitConfig::new(TOY), Some(log.clone()));
    (rig, log)
}

fn take(log: &Log) -> Vec<(Moment, Event)> {
    core::mem::take(&mut log.0.lock().unwrap())
}

#[test]
fn an_access_from_begin_to_finish() {
    let (rig, log) = logged();
    let (leaf_table, _) = rig.map_here(0, 100);
    let middle = PhysPage(rig.peek(rig.root, 0) >> 12);
    let access = rig.read(0);
    let (domain, page, id) = (DomainId(DOMAIN), IovaPage(0), access.id);
    let pointed = |level, frame| Event::Pointed { id, level, frame };
    let filled = |entry| Event::Filled { id, entry };
    let walk = |level, frame| Filled::Walk {
        level,
        domain,
        page,
        frame,
    };
    let events = take(&log);
    assert!(events.windows(2).all(|w| w[0].0 < w[1].0), "moments ascend");
    assert_eq!(
        (events[0].0, events.last().unwrap().0),
        (access.began, access.ended)
    );
    let events: Vec<_> = events.into_iter().map(|e| e.1).collect();
    let expected = [
        Event::AccessBegan {
            id,
            source: DEVICE,
            page,
            kind: AccessKind::Read,
        },
        pointed(None, PhysPage(rig.root_table)),
        pointed(None, PhysPage(rig.context_table)),
        filled(Filled::Context {
            source: DEVICE,
            domain,
        }),
        pointed(Some(3), PhysPage(rig.root)),
        filled(walk(3, middle)),
        pointed(Some(2), middle),
        filled(walk(2, PhysPage(leaf_table))),
        pointed(Some(1), PhysPage(leaf_table)),
        filled(Filled::Iotlb {
            domain,
            page,
            to: PhysPage(100),
            perm: Perm::ReadWrite,
            leaf: PageCount(1),
        }),
        Event::AccessFinished(access),
    ];
    assert_eq!(events, expected);
}

#[test]
fn an_invalidation_is_complete_when_the_access_has_ended_and_signalled_after() {
    let (rig, log) = logged();
    let walk = rig.begin(0);
    take(&log);
    rig.send(&[flush_pages(DOMAIN, 0, 1, 0), wait(rig.status << 12 | 4, 7)]);
    let id = InvalidationId(0);
    let range = IovaRange::new(IovaPage(0), PageCount(2));
    let what = Invalidation::Iotlb {
        selection: Selection::Pages(DomainId(DOMAIN), range),
        caches: Caches::LeavesAndWalks,
        drain: Drain {
            reads: true,
            writes: true,
        },
    };
    let began = Event::InvalidationBegan {
        id,
        what,
        draining: 1,
    };
    let events = |log| take(log).into_iter().map(|e| e.1).collect::<Vec<_>>();
    assert_eq!(events(&log), [began]);
    drop(walk);
    let rest = events(&log);
    assert!(matches!(rest[0], Event::AccessAborted { .. }));
    let address = PhysAddr(rig.status << 12 | 4);
    let signal = Event::Signalling { address, data: 7 };
    assert_eq!(rest[1..], [Event::InvalidationCompleted { id }, signal]);
}

#[test]
fn a_queue_error_names_its_descriptor() {
    let (rig, log) = logged();
    rig.send(&[[0xd2, 0], [0, 0]]);
    assert_eq!(take(&log).last().unwrap().1, Event::QueueError { head: 1 });
}

#[test]
fn several_observers_are_told_the_same() {
    let logs = [Arc::new(Log::default()), Arc::new(Log::default())];
    let all: Vec<Arc<dyn Observer>> = vec![logs[0].clone(), logs[1].clone()];
    let rig = Rig::build(&UnitConfig::new(TOY), Some(Arc::new(all)));
    rig.read(0);
    let [first, second] = logs.map(|log| take(&log));
    assert!(!first.is_empty());
    assert_eq!(first, second);
}

#[test]
fn display_shows_queue_and_caches() {
    let rig = Rig::toy();
    rig.map_here(0, 100);
    rig.read(0);
    let text = rig.unit.to_string();
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "queue 0..0 of 256; IOTLB 1/32, L2 1/8, L3 1/8, contexts 1/16, 0 in flight"
    );
    assert_eq!(lines.next().unwrap().trim(), "03:02.0 -> domain 5");
    assert_eq!(
        lines.next().unwrap().trim(),
        "domain 5 page 0x0 -> 0x64 ReadWrite"
    );
    assert_eq!(lines.count(), 2);
}

#[test]
fn counts_add_up() {
    let rig = Rig::toy();
    for page in 0..8 {
        rig.map_here(page, 100 + page);
    }
    for n in 0..40 {
        rig.read(n % 10);
    }
    let s = rig.unit.stats();
    assert_eq!(s.accesses, 40);
    assert_eq!(s.iotlb_hits + s.iotlb_misses, 40, "the device is attached");
    assert_eq!((s.context_hits, s.context_misses), (39, 1));
    assert_eq!(
        (s.faults, s.iotlb_hits),
        (8, 24),
        "pages 8 and 9 four times each, pages 0 to 7 after the first"
    );
}
