// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Fault events and completion events: when an interrupt is sent, held back, taken back. And what
//! stops the queue.

use crate::unit::rig::*;
use ioatlas_dma::units::*;
use ioatlas_viommu::{
    config::*,
    message::{Message, MessageSource},
    observe::*,
    queue::DeviceTlbError,
};
use std::sync::{Arc, Mutex};

const IM: u32 = 1 << 31;
const IP: u32 = 1 << 30;

#[derive(Default)]
struct Sent(Mutex<Vec<Event>>);

impl Observer for Sent {
    fn event(&self, _at: Moment, event: &Event) {
        if let Event::Message(_) | Event::Signalling { .. } = event {
            self.0.lock().unwrap().push(*event);
        }
    }
}

struct Bench {
    rig: Rig,
    sent: Arc<Sent>,
}

impl Bench {
    fn new(change: impl FnOnce(&mut UnitConfig)) -> Bench {
        let mut config = UnitConfig::new(TOY);
        change(&mut config);
        let sent = Arc::new(Sent::default());
        let rig = Rig::build(&config, Some(sent.clone()));
        for (control, data) in [(reg::FECTL, 0x41), (reg::IECTL, 0x42)] {
            rig.set32(control + 4, data);
            rig.set32(control + 8, 0xfee0_1003); // 1:0 are reserved
            rig.set32(control + 12, 7);
        }
        Bench { rig, sent }
    }
    fn events(&self) -> Vec<Event> {
        core::mem::take(&mut self.sent.0.lock().unwrap())
    }
}

fn message(source: MessageSource) -> Event {
    let data = match source {
        MessageSource::Fault => 0x41,
        MessageSource::Completion => 0x42,
    };
    Event::Message(Message {
        source,
        address: 0x7_fee0_1000,
        data,
    })
}
const FAULT: MessageSource = MessageSource::Fault;
const DONE: MessageSource = MessageSource::Completion;

/// A wait descriptor that asks for an interrupt only.
const INTERRUPT: [u64; 2] = [0x15, 0];

#[test]
fn both_events_are_masked_at_first() {
    let rig = Rig::toy();
    assert_eq!((rig.get32(reg::FECTL), rig.get32(reg::IECTL)), (IM, IM));
    for first in [reg::FECTL, reg::IECTL] {
        let rest = [4, 8, 12].map(|n| rig.get32(first + n));
        assert_eq!(rest, [0; 3]);
        for (n, bits) in [(4, u32::MAX), (8, !3), (12, u32::MAX)] {
            rig.set32(first + n, u32::MAX);
            assert_eq!(rig.get32(first + n), bits, "{first:#x} + {n}");
        }
        rig.set32(first, !IM);
        assert_eq!(rig.get32(first), 0, "IP is read only");
        rig.set32(first, u32::MAX);
        assert_eq!(rig.get32(first), IM);
    }
}

#[test]
fn a_masked_fault_is_pending_until_unmasked() {
    let b = Bench::new(|_| {});
    b.rig.read(1);
    assert_eq!((b.events(), b.rig.get32(reg::FECTL)), (vec![], IM | IP));
    b.rig.set32(reg::FECTL, IM);
    assert_eq!((b.events(), b.rig.get32(reg::FECTL)), (vec![], IM | IP));
    b.rig.set32(reg::FECTL, 0);
    assert_eq!(
        (b.events(), b.rig.get32(reg::FECTL)),
        (vec![message(FAULT)], 0)
    );
    b.rig.set32(reg::FECTL, 0);
    assert_eq!(b.events(), []);
}

#[test]
fn a_fault_is_announced_once_until_all_is_cleared() {
    let b = Bench::new(|c| c.fault_records = 2);
    b.rig.set32(reg::FECTL, 0);
    b.rig.read(1);
    assert_eq!(b.events(), [message(FAULT)]);
    b.rig.read(2);
    b.rig.read(3); // overflow
    b.rig.set32(reg::FRCD + 12, 1 << 31);
    b.rig.set32(reg::FRCD + 28, 1 << 31);
    b.rig.read(4);
    assert_eq!(b.events(), [], "the overflow is not cleared");
    b.rig.set32(reg::FSTS, 1);
    b.rig.read(5);
    assert_eq!(b.events(), [message(FAULT)]);
    assert_eq!(b.rig.unit.stats().messages, 2);
}

#[test]
fn what_software_has_seen_is_not_announced() {
    let b = Bench::new(|_| {});
    for take in [false, true] {
        b.rig.read(1);
        assert_eq!(b.rig.get32(reg::FECTL), IM | IP);
        match take {
            true => drop(b.rig.unit.take_faults()),
            false => b.rig.set32(reg::FRCD + 12, 1 << 31),
        }
        assert_eq!(b.rig.get32(reg::FECTL), IM);
    }
    b.rig.set32(reg::FECTL, 0);
    assert_eq!(b.events(), []);
}

#[test]
fn a_queue_error_is_a_fault_event() {
    let b = Bench::new(|_| {});
    b.rig.set32(reg::FECTL, 0);
    b.rig.send(&[[0xf, 0]]);
    assert_eq!(b.events(), [message(FAULT)]);
    assert_eq!(b.rig.get32(reg::FSTS), 1 << 4);
}

#[test]
fn a_wait_can_end_with_an_interrupt() {
    let b = Bench::new(|_| {});
    b.rig.send(&[wait(b.rig.status << 12, 1)]);
    assert_eq!(b.rig.get32(reg::ICS), 0, "not asked for");
    b.events();
    b.rig.set32(reg::IECTL, 0);
    b.rig.send(&[INTERRUPT]);
    assert_eq!(
        (b.events(), b.rig.get32(reg::ICS)),
        (vec![message(DONE)], 1)
    );
    b.rig.send(&[INTERRUPT]);
    assert_eq!(b.events(), [], "IWC is not cleared");
    b.rig.set32(reg::ICS, 0);
    assert_eq!(b.rig.get32(reg::ICS), 1);
    b.rig.set32(reg::ICS, 1);
    assert_eq!(b.rig.get32(reg::ICS), 0);
    b.rig.send(&[INTERRUPT]);
    assert_eq!(b.events(), [message(DONE)]);
}

#[test]
fn a_masked_completion_is_pending_or_taken_back() {
    let b = Bench::new(|_| {});
    b.rig.send(&[INTERRUPT]);
    assert_eq!((b.events(), b.rig.get32(reg::IECTL)), (vec![], IM | IP));
    b.rig.set32(reg::ICS, 1);
    assert_eq!(b.rig.get32(reg::IECTL), IM);
    b.rig.send(&[INTERRUPT]);
    b.rig.set32(reg::IECTL, 0);
    assert_eq!(
        (b.events(), b.rig.get32(reg::IECTL)),
        (vec![message(DONE)], 0)
    );
}

#[test]
fn a_wait_with_both_writes_its_status_first() {
    let b = Bench::new(|_| {});
    b.rig.set32(reg::IECTL, 0);
    let [low, high] = wait(b.rig.status << 12, 5);
    b.rig.send(&[[low | 0x10, high]]);
    let (address, data) = (PhysAddr(b.rig.status << 12), 5);
    assert_eq!(
        b.events(),
        [Event::Signalling { address, data }, message(DONE)]
    );
    assert_eq!(b.rig.peek(b.rig.status, 0), 5);
}

#[test]
fn the_error_record_says_what_stopped_the_queue() {
    let info = |send: &dyn Fn(&Rig)| {
        let rig = Rig::toy();
        send(&rig);
        assert!(rig.queue_error());
        let info = rig.get64(reg::IQERCD);
        rig.set32(reg::FSTS, 1 << 4);
        info
    };
    let ring = |rig: &Rig, address| {
        rig.set32(reg::GCMD, 1 << 31);
        rig.set64(reg::IQA, address);
        rig.set32(reg::GCMD, 1 << 31 | 1 << 26);
        rig.set64(reg::IQT, 1 << 4);
    };
    assert_eq!(info(&|rig| rig.set64(reg::IQT, 256 << 4)), 1, "tail");
    assert_eq!(info(&|rig| ring(rig, 1 << 45)), 2, "fetch");
    assert_eq!(info(&|rig| rig.send(&[[0xf, 0]])), 3, "type");
    assert_eq!(info(&|rig| rig.send(&[[0x12, 1 << 7]])), 4, "reserved bit");
    assert_eq!(info(&|rig| ring(rig, rig.ring << 12 | 1 << 11)), 5, "width");
    assert_eq!(info(&|rig| rig.send(&[wait(1 << 45, 1)])), 0, "status");
    let rig = Rig::toy();
    rig.send(&[[0xf, 0]]);
    rig.poke(rig.ring, 0, 0x11);
    rig.set32(reg::FSTS, 1 << 4);
    assert_eq!(
        (rig.get64(reg::IQERCD), rig.head()),
        (0, 1),
        "cleared with IQE"
    );
}

#[test]
fn a_stopped_queue_goes_on_as_configured() {
    for restart in [Restart::ErrorCleared, Restart::TailWritten] {
        let mut config = UnitConfig::new(TOY);
        config.registers.restart = restart;
        let rig = Rig::new(&config);
        rig.send(&[[0xf, 0], wait(rig.status << 12, 1)]);
        assert_eq!(rig.head(), 0);
        rig.poke(rig.ring, 0, 0x11);
        rig.set64(reg::IQT, 2 << 4);
        assert_eq!(rig.head(), 0, "still in error");
        rig.set32(reg::FSTS, 1 << 4);
        assert!(!rig.queue_error());
        let head = match restart {
            Restart::ErrorCleared => 2,
            Restart::TailWritten => 0,
        };
        assert_eq!(rig.head(), head, "{restart:?}");
        rig.set64(reg::IQT, 2 << 4);
        assert_eq!((rig.head(), rig.peek(rig.status, 0)), (2, 1));
        rig.check();
    }
}

#[test]
fn a_time_out_is_found_by_the_wait_for_it() {
    let b = Bench::new(|_| {});
    b.rig.set32(reg::FECTL, 0);
    let error = DeviceTlbError::TimedOut(DEVICE);
    b.rig.unit.inject_device_tlb_error(error);
    let status = b.rig.status << 12;
    b.rig.send(&[[0x11, 0], wait(status, 1), wait(status, 2)]);
    assert_eq!(b.rig.get32(reg::FSTS), 1 << 6, "ITE");
    assert_eq!(b.rig.get64(reg::IQERCD), u64::from(DEVICE.0) << 32);
    assert_eq!(b.events(), [message(FAULT)]);
    assert_eq!(
        (b.rig.head(), b.rig.peek(b.rig.status, 0)),
        (2, 0),
        "aborted"
    );
    b.rig.send(&[]);
    assert_eq!(b.rig.head(), 2, "nothing is fetched");
    b.rig.set32(reg::FSTS, 1 << 6);
    assert_eq!((b.rig.get32(reg::FSTS), b.rig.get64(reg::IQERCD)), (0, 0));
    assert_eq!((b.rig.head(), b.rig.peek(b.rig.status, 0)), (3, 2));
    // where nothing waits, it is known at once
    b.rig.unit.inject_device_tlb_error(error);
    b.rig.send(&[[0x11, 0]]);
    assert_eq!((b.rig.get32(reg::FSTS), b.rig.head()), (1 << 6, 4));
    b.rig.check();
}

#[test]
fn a_bad_completion_is_reported_and_stops_nothing() {
    let b = Bench::new(|_| {});
    b.rig.set32(reg::FECTL, 0);
    for source in [DEVICE, SourceId(1)] {
        b.rig
            .unit
            .inject_device_tlb_error(DeviceTlbError::BadCompletion(source));
    }
    assert_eq!(b.rig.get32(reg::FSTS), 1 << 5, "ICE");
    assert_eq!(
        b.rig.get64(reg::IQERCD),
        u64::from(DEVICE.0) << 48,
        "the first"
    );
    assert_eq!(b.events(), [message(FAULT)]);
    b.rig.send(&[wait(b.rig.status << 12, 1)]);
    assert_eq!(b.rig.peek(b.rig.status, 0), 1);
    b.rig.set32(reg::FSTS, 1 << 5);
    assert_eq!((b.rig.get32(reg::FSTS), b.rig.get64(reg::IQERCD)), (0, 0));
}
