// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A domain of a deferred policy that is made strict while it runs, and deferred again: from the
//! return of the switch on, what was unmapped is flushed (P1). The oracle judges by the mode at the
//! time.

use crate::suite::{
    crowd::Crowd,
    interface::Interface,
    rig::*,
    schedules::{Cast, LIMIT, through},
};
use ioatlas_dma::{
    domain::*,
    invalidation::InvalidateError,
    platform::{Atomic64, Ordering, Platform},
    table::Format,
    units::*,
};
use ioatlas_host::{Host, register};
use ioatlas_sim::platform::{Interrupt, Schedule, Sim, World};
use ioatlas_viommu::{config::Processing, unit::Injection};
use std::{
    cell::{Cell, RefCell},
    thread,
};

on_every_machine! {
    switching::a_switch_drains_what_is_deferred,
    switching::every_way_to_unmap_is_strict_then,
    switching::deferred_again_keeps_its_window,
    switching::a_unit_that_does_not_answer_leaves_it_closed,
    switching::a_unit_that_refuses_quarantines,
    switching::what_a_failed_batch_left_is_flushed_by_the_switch,
    switching::other_policies_have_one_mode,
}

const STRICT: InvalidationMode = InvalidationMode::Strict;
const DEFERRED: InvalidationMode = InvalidationMode::Deferred;

fn batched() -> impl Iterator<Item = DomainConfig> {
    designs().into_iter().filter(is_batched)
}

fn map<B: Base, F: Format>(domain: &Dom<B, F>, first: u64) -> Mapping {
    let mapping = domain.map(buffer(first, 1), Direction::ToDevice);
    mapping.expect("room")
}

/// Mapped, and in the unit's caches.
fn reached<B: Base, F: Format>(rig: &Rig<B>, domain: &Dom<B, F>, first: u64) -> Mapping {
    let mapping = map(domain, first);
    let at = mapping.range().first;
    assert!(rig.access(at, AccessKind::Read).is_some(), "P14");
    mapping
}

fn gone<B: Base>(rig: &Rig<B>, range: IovaRange, context: &str) {
    let access = rig.access(range.first, AccessKind::Read);
    assert_eq!(access, None, "P1: {range} is reached, {context}");
}

fn counts<B: Base, F: Format>(domain: &Dom<B, F>) -> (u64, u64) {
    let stats = domain.domain().stats();
    (stats.invalidations, stats.retired.pages.0)
}

pub fn a_switch_drains_what_is_deferred<B: Base, F: Format>() {
    for design in batched() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let configured = domain.domain().exposure();
        assert!(matches!(configured, Exposure::Bounded { .. }), "{context}");
        let mut unmapped = Vec::new();
        for nth in 0..3 {
            let mapping = reached(&rig, &domain, 0x100 + nth);
            unmapped.push(mapping.range());
            let unmap = || domain.unmap(mapping).expect("unmapped");
            match nth {
                2 => rig.failing().inner().on_another_cpu(unmap),
                _ => unmap(),
            }
        }
        assert_eq!(counts(&domain), (0, 3), "{context}");
        assert_eq!(domain.domain().mode(), Some(DEFERRED), "{context}");
        domain.set_mode(STRICT).expect("a unit that answers");
        assert_eq!(counts(&domain), (1, 0), "P1: {context}");
        for range in unmapped {
            gone(&rig, range, &context);
        }
        let domain_is = domain.domain();
        assert_eq!(domain_is.mode(), Some(STRICT), "{context}");
        assert_eq!(domain_is.exposure(), Exposure::None, "{context}");
        assert_eq!(domain_is.policy(), design.policy, "{context}");
        // what is strict already flushes once more, and has nothing to tick or to flush
        domain.set_mode(STRICT).expect("a unit that answers");
        assert_eq!(counts(&domain), (2, 0), "{context}");
        domain_is.flush().expect("nothing");
        let ticked = domain.tick(TimeNs(u64::MAX));
        assert_eq!(ticked, Ok(TickReport::default()), "{context}");
        assert_eq!(counts(&domain), (2, 0), "{context}");
        domain.set_mode(DEFERRED).expect("it waits for nothing");
        assert_eq!(domain_is.exposure(), configured, "{context}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn every_way_to_unmap_is_strict_then<B: Base, F: Format>() {
    for design in batched() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(1024);
        let domain = rig.domain::<F>(design);
        // queues that have had pages, and so room for more
        for nth in 0..8 {
            let used = reached(&rig, &domain, 0x200 + nth);
            domain.unmap(used).expect("unmapped");
        }
        domain.set_mode(STRICT).expect("a unit that answers");
        let made = |what: &str, invalidations: u64, unmap: &dyn Fn(Vec<Mapping>)| {
            let mappings: Vec<_> = (0..8)
                .map(|nth| reached(&rig, &domain, 0x200 + nth))
                .collect();
            let ranges: Vec<_> = mappings.iter().map(Mapping::range).collect();
            let (before, _) = counts(&domain);
            unmap(mappings);
            for range in ranges {
                gone(&rig, range, &format!("{what}, {context}"));
            }
            let now = counts(&domain);
            let strict = (before + invalidations, 0);
            assert_eq!(now, strict, "P1: none waits in a queue, {what}, {context}");
        };
        made("one by one", 8, &|mappings| {
            for mapping in mappings {
                domain.unmap(mapping).expect("unmapped");
            }
        });
        made("batch", 1, &|mappings| {
            let ended = domain.unmap_batch(&mut mappings.into_iter());
            ended.expect("unmapped");
        });
        made("started", 2, &|mappings| {
            let pending = domain.unmap_start(&mut mappings.into_iter());
            // one that is pending is its own, and no switch ends it; that has the other
            // invalidation
            domain.set_mode(DEFERRED).expect("it waits for nothing");
            assert_eq!(pending.finish(), Ok(8));
            domain.set_mode(STRICT).expect("a unit that answers");
            let stats = domain.domain().stats();
            assert_eq!(stats.retired.pages, PageCount(0));
        });
        made("by address", 8, &|mappings| {
            for mapping in mappings {
                domain.unmap_raw(mapping).expect("unmapped");
            }
        });
        let memory = domain.alloc_consistent(ByteCount(GRANULE)).expect("memory");
        let range = IovaRange::new(memory.iova().page(), PageCount(1));
        assert!(rig.access(range.first, AccessKind::Write).is_some(), "P14");
        domain.free_consistent(memory).expect("freed");
        gone(&rig, range, &context);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// A batch begins where it was, and a tick is due when it was.
pub fn deferred_again_keeps_its_window<B: Base, F: Format>() {
    for design in batched() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        for round in 1..4 {
            for nth in 0..4 {
                let mapping = reached(&rig, &domain, 0x100 + nth);
                domain.unmap(mapping).expect("unmapped");
            }
            let (before, retired) = counts(&domain);
            assert_eq!(retired, 4, "P2: the batch is five, {context}");
            domain.set_mode(STRICT).expect("a unit that answers");
            domain.set_mode(DEFERRED).expect("it waits for nothing");
            assert_eq!(counts(&domain), (before + 1, 0), "{context}");
            let mapping = reached(&rig, &domain, 0x100);
            let range = mapping.range();
            domain.unmap(mapping).expect("unmapped");
            let ticked = domain.tick(TimeNs(round * 10_000_000)).expect("a tick");
            assert_eq!((ticked.invalidations, ticked.drained), (1, 1), "{context}");
            gone(&rig, range, &context);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_unit_that_does_not_answer_leaves_it_closed<B: Base, F: Format>() {
    for design in batched() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let configured = domain.domain().exposure();
        let before = reached(&rig, &domain, 0x100);
        let (lost, after) = (before.range(), reached(&rig, &domain, 0x101));
        domain.unmap(before).expect("queued");
        let unit = rig.machine.machine().unit();
        unit.set_processing(Processing::Stuck);
        let error = domain.set_mode(STRICT).expect_err("it does not answer");
        let timed_out = SwitchError::Invalidate(InvalidateError::TimedOut { turns: LIMITED });
        assert_eq!(error, timed_out, "{context}");
        let stats = domain.domain().stats();
        assert_eq!(stats.quarantined.pages, PageCount(1), "{context}");
        assert_eq!(stats.retired.pages, PageCount(0), "{context}");
        assert_eq!(domain.domain().mode(), Some(STRICT), "{context}");
        assert_eq!(domain.domain().exposure(), configured, "P1: {context}");
        unit.set_processing(Processing::Inline);
        // an unmap flushes with its own what was left
        let range = after.range();
        domain.unmap(after).expect("unmapped");
        gone(&rig, range, &context);
        gone(&rig, lost, &context);
        domain.set_mode(STRICT).expect("a unit that answers");
        assert_eq!(domain.domain().exposure(), Exposure::None, "{context}");
        assert_eq!(counts(&domain).1, 0, "{context}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// As the rig's domains wait.
const LIMITED: u64 = crate::suite::rig::LIMIT.0;

pub fn a_unit_that_refuses_quarantines<B: Base, F: Format>() {
    for design in batched() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let (before, after) = (reached(&rig, &domain, 0x100), reached(&rig, &domain, 0x101));
        domain.unmap(before).expect("queued");
        let unit = rig.machine.machine().unit();
        unit.inject(Injection::QueueErrors(u32::MAX));
        let error = domain.set_mode(STRICT).expect_err("it is broken");
        assert!(error.to_string().contains("deferred"), "{error}");
        let unmapped = domain.unmap(after);
        let refused = matches!(unmapped, Err(UnmapError::Invalidate { .. }));
        assert!(refused, "P1: nothing is deferred any more, {context}");
        let audit = domain.domain().audit().expect("P10");
        assert_eq!(audit.stats.quarantined.pages, PageCount(2), "{context}");
        rig.assert_clean();
        domain.close(&[]).expect_err("it is broken");
    }
}

/// It stands in no queue, and its unmap has returned.
pub fn what_a_failed_batch_left_is_flushed_by_the_switch<B: Base, F: Format>() {
    for design in batched() {
        let context = name(&design);
        let rig = Rig::<B>::new::<F>(256);
        let domain = rig.domain::<F>(design);
        let mapping = reached(&rig, &domain, 0x100);
        let range = mapping.range();
        domain.unmap(mapping).expect("queued");
        let unit = rig.machine.machine().unit();
        unit.set_processing(Processing::Stuck);
        domain.tick(TimeNs(1)).expect_err("it does not answer");
        // the request that timed out is lost with the reset of a queue, as far as the domain knows
        let switched = domain.set_mode(STRICT);
        switched.expect_err("P1: it is not flushed, as no unit answers");
        unit.set_processing(Processing::Inline);
        let (before, _) = counts(&domain);
        domain.set_mode(STRICT).expect("a unit that answers");
        let made = counts(&domain).0 - before;
        assert_eq!(made, 1, "P1: no queue holds it, {context}");
        gone(&rig, range, &context);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn other_policies_have_one_mode<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        if is_batched(&design) {
            continue;
        }
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let policy = design.policy.name();
        for mode in [STRICT, DEFERRED] {
            let error = domain.set_mode(mode).expect_err("one mode");
            assert_eq!(error, SwitchError::OneMode { policy });
            assert!(error.to_string().contains(policy), "{error}");
        }
        assert_eq!(domain.domain().mode(), None);
        let cpus = rig.failing().cpus();
        let promised = design.policy.exposure(cpus);
        assert_eq!(domain.domain().exposure(), promised, "{policy}");
        assert_eq!(counts(&domain), (0, 0));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// One CPU switches, and unmaps in between, while another unmaps, a device accesses and the timer
/// ticks.
fn switched_while_all_act<F: Format>(interface: Interface) {
    let what = "switched";
    let sum = through::<F>(interface, what, is_batched, None, |c, ends, seed| {
        let on_a_cpu = c.by_address || interface == Interface::Dma;
        let (ticks, cpu_ticks) = if on_a_cpu { (0, 4) } else { (4, 0) };
        Cast {
            cpus: [
                Box::new(move || {
                    c.cpu(2 * seed, 14, 3, &ends[0]);
                    c.ticker(cpu_ticks);
                }),
                Box::new(move || {
                    for round in 0..4 {
                        let mode = [STRICT, DEFERRED][round as usize % 2];
                        c.domain.set_mode(mode).expect("switched");
                        c.cpu(16 * seed + round, 4, 2, &ends[1]);
                    }
                    c.domain.set_mode(STRICT).expect("switched");
                }),
            ],
            agents: vec![
                ("NIC", Box::new(move || c.device(NIC, seed, 40))),
                ("timer", Box::new(move || c.ticker(ticks))),
            ],
        }
    });
    assert!(sum.succeeded > 0 && sum.blocked > 0 && sum.stale > 0);
}

#[test]
fn switched_while_all_act_on_toy_tables() {
    switched_while_all_act::<Small>(Interface::Domain);
}

/// With the designs that go by addresses.
#[test]
fn switched_while_all_act_on_wide_tables() {
    switched_while_all_act::<Wide>(Interface::Domain);
}

#[test]
fn switched_while_all_act_through_the_dma_api() {
    switched_while_all_act::<Small>(Interface::Dma);
}

/// Each CPU switches as it likes.
#[test]
fn two_cpus_switch() {
    let what = "two switch";
    let sum = through::<Small>(
        Interface::Domain,
        what,
        is_batched,
        None,
        |c, ends, seed| {
            let cpu = |cpu: u64, modes: [InvalidationMode; 4]| {
                let end = &ends[cpu as usize];
                move || {
                    for (round, mode) in (0..).zip(modes) {
                        c.cpu(16 * seed + 8 * cpu + round, 3, 2, end);
                        c.domain.set_mode(mode).expect("switched");
                    }
                }
            };
            Cast {
                cpus: [
                    Box::new(cpu(0, [STRICT, DEFERRED, STRICT, STRICT])),
                    Box::new(cpu(1, [STRICT, STRICT, DEFERRED, STRICT])),
                ],
                agents: vec![("NIC", Box::new(move || c.device(NIC, seed, 30)))],
            }
        },
    );
    assert!(sum.succeeded > 0 && sum.blocked > 0);
}

/// Threads of this host: two unmap, one switches back and forth, a device accesses.
#[cfg(not(ioatlas_killers))]
#[test]
fn threads_unmap_while_another_switches() {
    for design in designs().into_iter().filter(is_batched) {
        let crowd = Crowd::<Host, Vtd>::by(Interface::Domain, design, PATIENT, |_| ());
        let (left, right) = crate::suite::crowd::exchange();
        let over = <Host as Platform>::A64::new(0);
        let ends = thread::scope(|scope| {
            let (crowd, over) = (&crowd, &over);
            let cpu = |seed, end| {
                scope.spawn(move || {
                    register();
                    crowd.cpu(seed, 1_500, 5, &end);
                    end
                })
            };
            let cpus = [cpu(1, left), cpu(2, right)];
            let device = scope.spawn(|| crowd.device(NIC, 3, 8_000));
            let switcher = scope.spawn(|| {
                register();
                let mut switches = 0;
                while switches < 40 || Atomic64::load(over, Ordering::Acquire) == 0 {
                    crowd.domain.set_mode(STRICT).expect("switched");
                    thread::yield_now();
                    crowd.domain.set_mode(DEFERRED).expect("switched");
                    thread::yield_now();
                    switches += 1;
                }
            });
            let ends = cpus.map(|cpu| cpu.join());
            Atomic64::store(over, 1, Ordering::Release);
            device.join().expect("the NIC");
            switcher.join().expect("the switcher");
            ends.map(|end| end.expect("a CPU"))
        });
        let done = crowd.check(ends, &name(&design));
        assert!(done.maps > 0, "{done:?}");
    }
}

type OnSim = Crowd<Sim, Small>;
type Act<'a> = &'a dyn Fn(&OnSim, &RefCell<Vec<Mapping>>);

/// What `act` does is interrupted at each of its accesses in turn, by `handler`. Each may unmap one
/// of two mappings that a device has reached; a third is queued. The device looks at all about the
/// handler, and at the end. (An access that is interrupted would never be drained.)
fn at_every_access(what: &str, act: Act<'_>, handler: Act<'_>) {
    for mut design in designs().into_iter().filter(is_batched) {
        // with the page that is queued, two fill a batch
        if let PolicyConfig::DeferredPerCpu(bounds) | PolicyConfig::DeferredGlobal(bounds) =
            &mut design.policy
        {
            bounds.batch = 3;
        }
        let mut delivered = 0;
        for n in 1.. {
            let context = format!("{what}, {}, access {n}", name(&design));
            let crowd = OnSim::new(64, design, LIMIT, |_| ());
            let mut mappings: Vec<_> = (0..3)
                .map(|nth| reached(&crowd.rig, &crowd.domain, 0x100 + nth))
                .collect();
            let ranges: Vec<_> = mappings.iter().map(Mapping::range).collect();
            let queued = mappings.pop().expect("three");
            crowd.domain.unmap(queued).expect("queued");
            let mappings = RefCell::new(mappings);
            let look = || {
                for range in &ranges {
                    let _ = crowd.rig.access(range.first, AccessKind::Read);
                }
            };
            let unit = crowd.rig.machine.machine().unit();
            unit.set_processing(Processing::Asynchronous);
            let over = Cell::new(false);
            let (crowd_, mappings_, over_, look_) = (&crowd, &mappings, &over, &look);
            let outcome = World::new(Schedule::Bounded {
                seed: n,
                preemptions: 0,
            })
            .cpu(move || {
                act(crowd_, mappings_);
                over_.set(true);
            })
            .agent("unit", move || crowd_.unit(|| over_.get()))
            .interrupt(Interrupt {
                cpu: CpuIndex(0),
                at_access: n,
                handler: Box::new(move || {
                    look_();
                    handler(crowd_, mappings_);
                    look_();
                }),
            })
            .try_run();
            let outcome = outcome.unwrap_or_else(|failure| panic!("{context}: {failure}"));
            unit.set_processing(Processing::Inline);
            look();
            crowd.domain.set_mode(STRICT).expect("switched");
            look();
            for mapping in mappings.take() {
                crowd.domain.unmap(mapping).expect("unmapped");
            }
            look();
            crowd.finish(&context);
            if outcome.delivered_at().is_none() {
                break;
            }
            delivered += 1;
        }
        println!("{what}, {}: {delivered} interrupts", name(&design));
        assert!(delivered > 10, "{delivered}");
    }
}

fn unmap_one(crowd: &OnSim, mappings: &RefCell<Vec<Mapping>>) {
    let mapping = mappings.borrow_mut().pop();
    let mapping = mapping.expect("one for each");
    crowd.domain.unmap(mapping).expect("unmapped");
}
fn to_strict(crowd: &OnSim, _: &RefCell<Vec<Mapping>>) {
    crowd.domain.set_mode(STRICT).expect("switched");
}
fn to_deferred(crowd: &OnSim, _: &RefCell<Vec<Mapping>>) {
    crowd.domain.set_mode(DEFERRED).expect("switched");
}

#[test]
fn a_switch_interrupts_an_unmap() {
    at_every_access("unmap, to strict", &unmap_one, &to_strict);
}

#[test]
fn an_unmap_interrupts_a_switch() {
    at_every_access("to strict, unmap", &to_strict, &unmap_one);
    at_every_access(
        "strict, deferred, unmap",
        &|crowd, mappings| {
            to_strict(crowd, mappings);
            to_deferred(crowd, mappings);
        },
        &unmap_one,
    );
}

#[test]
fn a_switch_interrupts_a_switch() {
    at_every_access("to strict, to strict", &to_strict, &to_strict);
    at_every_access("to strict, to deferred", &to_strict, &to_deferred);
}
