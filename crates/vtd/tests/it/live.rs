// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Units as firmware and hosts leave them: in use, with interrupts remapped, with write buffers,
//! with roots that flush.

use crate::common::{Happened::*, rig::*, *};
use ioatlas_dma::invalidation::{Invalidate, InvalidateError, OnMap, Scope};
use ioatlas_dma::platform::{Ordering, Platform};
use ioatlas_dma::translator::RemappingUnit;
use ioatlas_dma::units::*;
use ioatlas_vtd::driver::*;
use ioatlas_vtd::layout::InterruptIndex;
use std::sync::Arc;

const TAKE_OVER: Config = CONFIG.live(Live::TakeOver);
/// Interrupt remapping is on, its table is set, and the old format is let through.
const INTERRUPTS: u32 = 0x0380_0000;
/// Of them, what a command repeats.
const REPEATED: u32 = 0x0280_0000;
const RWBF: u64 = 1 << 4;
const CM: u64 = 1 << 7;
const ESRTPS: u64 = 1 << 63;
const GLOBAL: [Happened; 2] = [Descriptor(0x11, 0), Descriptor(0xd2, 0)];

#[test]
fn translation_that_is_on_stays_on_through_the_whole_take_over() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().gsts = TE | SRTP | INTERRUPTS;
    fake.state().rtaddr = 0x7000;
    let unit = Unit::prepare(host.clone(), fake.clone(), TAKE_OVER).unwrap();
    assert_eq!(fake.state().rtaddr, 0x7000, "firmware's tables still serve");
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    unit.activate().unwrap();
    assert_eq!(fake.context(0x20).unwrap().0, ROOT.addr().0 | 1);
    let commands = fake.state().commands.clone();
    assert_eq!(commands, [TE | REPEATED | QIE, TE | REPEATED | QIE | SRTP]);
    let log = fake.log();
    assert_eq!(log[2..], GLOBAL, "the old tables are flushed");
    assert_eq!(
        fake.state().gsts,
        TE | SRTP | QIE | REPEATED | (INTERRUPTS & !REPEATED)
    );
}

#[test]
fn scalable_mode_cannot_be_taken_over_and_nothing_is_touched() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().gsts = TE | SRTP;
    fake.state().rtaddr = 0x7400;
    let refused = Unit::prepare(host.clone(), fake.clone(), TAKE_OVER).err();
    assert_eq!(refused, Some(BringUpError::TableMode { root: 0x7400 }));
    assert_eq!((fake.log(), host.frames_in_use()), (vec![], 0));
}

#[test]
fn a_queue_that_is_on_runs_empty_and_is_disabled_before_ours_is_set() {
    let host = host(16);
    let fake = Fake::new(&host);
    let ring = host_ring(&host);
    fake.state().gsts = QIE;
    fake.state().iqa = ring;
    (fake.state().head, fake.state().tail) = (7, 9);
    fake.state().credit = 0;
    // the fake refuses a new address while the queue is on, and goes on when it is looked at
    fake.state().late = 1;
    let unit = Unit::bring_up(host.clone(), fake.clone(), TAKE_OVER).unwrap();
    let state = fake.state();
    assert_eq!(state.commands, [0, QIE, QIE | SRTP, QIE | TE]);
    assert_ne!(state.iqa, ring);
    assert_eq!(&state.taken[..2], [(0x5, 0), (0x5, 0)], "theirs ran first");
    drop(state);
    drop(unit);
}

/// The ring of another driver: wait descriptors that write nothing.
fn host_ring(host: &Arc<Memory>) -> u64 {
    let ring = host.frame_alloc().unwrap().publish();
    for pair in host.entries(BY, ring.by_ref()).chunks(2) {
        pair[0].store(0x5, Ordering::Relaxed);
    }
    host.publish(host.entries(BY, ring.by_ref()));
    ring.page().addr().0
}

#[test]
fn a_queue_that_stopped_with_an_error_is_disabled_as_it_is() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().gsts = QIE;
    fake.state().fsts = 0x10;
    (fake.state().head, fake.state().tail) = (7, 9);
    let unit = Unit::bring_up(host.clone(), fake.clone(), TAKE_OVER).unwrap();
    assert_eq!(fake.state().fsts, 0);
    let ticket = unit.submit(DomainId(1), Scope::DOMAIN).unwrap();
    assert_eq!(unit.done(ticket), Ok(true));
}

#[test]
fn a_unit_that_was_only_prepared_goes_on_as_it_was() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().gsts = TE | SRTP;
    fake.state().rtaddr = 0x7000;
    let unit = Unit::prepare(host.clone(), fake.clone(), TAKE_OVER).unwrap();
    shut_down(unit).unwrap();
    assert_eq!(fake.state().gsts, TE | SRTP);
    assert_eq!(fake.state().rtaddr, 0x7000);
    assert_eq!(host.frames_in_use(), 0);
}

#[test]
fn every_command_repeats_what_interrupts_need_and_no_one_shot() {
    let (host, fake, unit) = up_with(|s| (s.gsts, s.cap) = (INTERRUPTS, QEMU_CAP | RWBF));
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    unit.detach(BY, &*host, NIC, DomainId(5)).unwrap();
    shut_down(unit).unwrap();
    let state = fake.state();
    assert!(state.commands.len() >= 5);
    for command in &state.commands {
        assert_eq!(command & INTERRUPTS, REPEATED, "{command:#x}");
    }
    assert_eq!(state.gsts & REPEATED, REPEATED);
}

#[test]
fn the_host_flushes_interrupt_entries_through_our_queue() {
    let (_host, fake, unit) = up_with(|s| s.ecap = QEMU_ECAP | 8 | 3 << 20);
    unit.invalidate_interrupt_entries(InterruptIndex(0x55), 1)
        .unwrap();
    // 6 and 7 lie in an aligned pair; 16 entries are more than 2^3
    unit.invalidate_interrupt_entries(InterruptIndex(6), 2)
        .unwrap();
    unit.invalidate_interrupt_entries(InterruptIndex(0), 16)
        .unwrap();
    unit.invalidate_all_interrupt_entries().unwrap();
    let log = [
        Descriptor(0x55_0000_0014, 0),
        Descriptor(0x6_0800_0014, 0),
        Descriptor(0x4, 0),
        Descriptor(0x4, 0),
    ];
    assert_eq!(fake.log(), log);
}

#[test]
fn a_root_pointer_that_flushes_is_not_flushed_after() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().cap |= ESRTPS;
    let _unit = bring_up(&host, &fake).unwrap();
    let commands = [QIE, QIE | SRTP, QIE | TE].map(Command);
    assert_eq!(fake.log(), commands);
}

#[test]
fn write_buffers_are_flushed_before_every_invalidation_and_after_every_change() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().cap |= RWBF;
    fake.state().slow_buffers = 3;
    let unit = bring_up(&host, &fake).unwrap();
    let [context, iotlb] = GLOBAL;
    let log = [
        Flush,
        Command(QIE),
        Flush,
        Command(QIE | SRTP),
        Flush,
        context,
        iotlb,
        Command(QIE | TE),
    ];
    assert_eq!(fake.log(), log);
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    assert_eq!(fake.log(), [Flush], "a change that needs no invalidation");
    let ticket = unit.submit(DomainId(5), Scope::DOMAIN).unwrap();
    assert_eq!(unit.done(ticket), Ok(true));
    assert_eq!(fake.log(), [Flush, Descriptor(0x5_00e2, 0)]);
    unit.flush_write_buffers().unwrap();
    assert_eq!(fake.log(), [Flush]);
}

#[test]
fn without_write_buffers_nothing_is_flushed() {
    let (host, fake, unit) = up_with(|_| {});
    unit.flush_write_buffers().unwrap();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    assert_eq!(fake.log(), []);
}

#[test]
fn a_flush_of_write_buffers_that_never_ends_is_an_error() {
    let (_, fake, unit) = up_with(|s| s.cap |= RWBF);
    fake.state().slow_buffers = u32::MAX;
    let turns = LIMIT.0;
    let error = Err(InvalidateError::TimedOut { turns });
    assert_eq!(unit.flush_write_buffers(), error);
    // the unit has ended no command since
    let at_once = Err(InvalidateError::TimedOut { turns: 0 });
    let submitted = unit.submit(DomainId(5), Scope::DOMAIN);
    assert_eq!(submitted.map(drop), at_once);
}

/// A flush under way when a CPU comes does not serve it; the next one serves all CPUs that wait.
#[test]
fn several_cpus_flush_write_buffers_one_command_at_a_time() {
    let (_, fake, unit) = up_with(|s| s.cap |= RWBF);
    fake.state().slow_buffers = 2;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    // the fake insists that no command is given while another is under way
                    while unit.flush_write_buffers().is_err() {}
                }
            });
        }
    });
    let flushes = fake.log().len();
    assert!((100..=400).contains(&flushes), "{flushes}");
}

#[test]
fn what_follows_a_map_depends_on_the_unit() {
    let on_map = |bits| {
        let (_host, _fake, unit) = up_with(|s| s.cap |= bits);
        unit.on_map()
    };
    assert_eq!(on_map(0), OnMap::Nothing);
    assert_eq!(on_map(RWBF), OnMap::FlushWriteBuffers);
    assert_eq!(on_map(CM), OnMap::Invalidate);
    assert_eq!(on_map(CM | RWBF), OnMap::Invalidate);
}

#[test]
fn the_largest_leaf_is_what_the_unit_says() {
    let largest = |sslps: u64| {
        let clear = QEMU_CAP & !(0xf << 34);
        let (_host, _fake, unit) = up_with(|s| s.cap = clear | sslps << 34);
        unit.largest_leaf()
    };
    assert_eq!([0, 1, 2, 3].map(largest), [1, 2, 1, 3]);
}
