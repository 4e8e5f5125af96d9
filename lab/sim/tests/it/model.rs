// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the model charges: lines, locks, waiting, timers, sums.

use ioatlas_dma::platform::{Atomic64, CachePadded, Lock, Ordering::Relaxed, Platform};
use ioatlas_sim::{platform::*, timing::*};
use std::cell::{Cell, RefCell};

/// No instructions but those of the test.
fn bare() -> Params {
    Params {
        step_other: 0,
        section_other: 0,
        guarded_lines: 0,
        atomic: 0,
        ..Params::default()
    }
}

fn machine(cpus: usize, params: Params) -> Machine {
    let config = MachineConfig {
        topology: Topology::of_eights(cpus),
        frames: 8,
        heap: None,
    };
    Machine::new(config, params).unwrap()
}

/// Everything is measured, and bodies end by themselves.
fn run(machine: &Machine, body: impl Fn(&VirtualCpu)) -> Run {
    let span = Span::fixed(Cycles(0), Cycles(u64::MAX / 1024));
    let body = |cpu: &VirtualCpu| {
        assert!(cpu.running());
        body(cpu);
    };
    machine.run(span, None, body).unwrap()
}

fn word() -> CachePadded<SimWord> {
    CachePadded(SimWord::new(0))
}

fn cycles(run: &Run) -> Vec<u64> {
    run.cpus.iter().map(|cpu| cpu.cycles.0).collect()
}

#[test]
fn one_cpu_takes_exactly_the_sum_of_its_costs() {
    let params = Params::default();
    let (machine, word) = (machine(1, params.clone()), word());
    let lock = SimLock::new(0_u64);
    let run = run(&machine, |cpu| {
        cpu.work(Cycles(1000));
        word.0.load(Relaxed);
        word.0.store(1, Relaxed);
        word.0.fetch_add(1, Relaxed);
        lock.with(|value| *value += 1);
        machine.platform().fence(Relaxed);
        let frame = machine.platform().frame_alloc().unwrap();
        machine.platform().frame_free(crate::BY, frame);
    });
    let p = &params;
    let words = p.memory + 2 * p.hit + p.atomic;
    let locks = p.memory + p.atomic + p.section_other + p.hit;
    let frames = p.frame_alloc + p.frame_free;
    let points = 3 + 2 + 1 + 2;
    let sum = 1000 + words + locks + p.fence + frames + points * p.step_other;
    assert_eq!(cycles(&run), [sum]);
    assert_eq!(run.cpus[0].account.total(), sum);
    assert_eq!(run.points, points);
}

#[test]
fn a_round_of_ping_pong_is_two_transfers() {
    const ROUNDS: u64 = 100;
    for (cpus, partner) in [(2, 1), (16, 15)] {
        let (machine, word) = (machine(cpus, bare()), word());
        let run = run(&machine, |cpu| {
            let me = cpu.index().0;
            if me != 0 && me != partner {
                return;
            }
            cpu.work(Cycles(if me == 0 { 0 } else { 5_000 }));
            for _ in 0..ROUNDS {
                word.0.fetch_add(1, Relaxed);
                cpu.work(Cycles(10_000));
            }
        });
        let line = &run.lines[0];
        let expected = 2 * ROUNDS - 1;
        let seen = if partner == 1 { line.near } else { line.far };
        assert_eq!(
            (seen, line.transfers(), line.memory),
            (expected, 2 * ROUNDS, 1)
        );
        assert_eq!(line.queued, Cycles(0));
        assert_eq!(word.0.peek(), 2 * ROUNDS);
    }
}

#[test]
fn a_line_that_is_only_read_moves_once_to_each() {
    let (machine, word) = (machine(16, bare()), word());
    let run = run(&machine, |cpu| {
        for _ in 0..50 {
            word.0.load(Relaxed);
            cpu.work(Cycles(100));
        }
    });
    let line = &run.lines[0];
    // the first of the other socket has it from far, the rest from a neighbour
    assert_eq!((line.memory, line.near, line.far), (1, 14, 1));
    assert_eq!(line.hits, 16 * 50 - 16);
}

#[test]
fn a_hot_line_serves_one_at_a_time() {
    let params = bare();
    let (machine, word) = (machine(8, params.clone()), word());
    let run = run(&machine, |_| {
        word.0.fetch_add(1, Relaxed);
    });
    let arrivals: Vec<u64> = (0..8)
        .map(|n| params.memory + n * params.transfer_near)
        .collect();
    assert_eq!(cycles(&run), arrivals);
    let queued: u64 = (0..7)
        .map(|n| params.memory + n * params.transfer_near)
        .sum();
    assert_eq!(run.lines[0].queued, Cycles(queued));
}

#[test]
fn what_a_lock_guards_behind_a_pointer_is_followed_and_costs_nothing() {
    // in turns; the second CPU is on the other socket
    let in_turns = |touched: &[usize]| {
        let machine = machine(16, bare());
        let block = vec![0_u64; 64];
        run(&machine, |cpu| {
            if cpu.index().0 % 8 == 0 {
                cpu.work(Cycles(500 * cpu.index().0 as u64));
                for _ in 0..10 {
                    cpu.turn();
                    let element = |index| SimWord::touches(|| Some((&block[..], index)));
                    touched.iter().copied().for_each(element);
                    cpu.work(Cycles(8_000));
                }
            }
        })
    };
    let run = in_turns(&[0, 7, 8]);
    assert_eq!(cycles(&run), cycles(&in_turns(&[])));
    let seen = run.lines.iter().map(|line| {
        let LineRun {
            hits,
            writes,
            moved,
            ..
        } = line;
        (*hits, *writes, line.near, line.far, line.memory, moved.0)
    });
    // elements 0 and 7 share a line, wherever the host has put them
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [(20, 40, 0, 19, 1, 0), (0, 20, 0, 19, 1, 0)]
    );
    assert!(run.lines[0].name.starts_with("block 1 of u64, line 0 ("));
}

#[test]
fn words_of_one_line_are_shared_falsely_and_words_apart_are_not() {
    let transfers = |words: [&SimWord; 2]| {
        let machine = machine(2, bare());
        let run = run(&machine, |cpu| {
            for _ in 0..100 {
                words[cpu.index().0].fetch_add(1, Relaxed);
                cpu.work(Cycles(1000));
            }
        });
        run.lines.iter().map(LineRun::transfers).sum::<u64>()
    };
    let together = CachePadded([SimWord::new(0), SimWord::new(0)]);
    let apart = [word(), word()];
    assert_eq!(transfers([&together.0[0], &together.0[1]]), 200);
    assert_eq!(transfers([&apart[0].0, &apart[1].0]), 2);
}

#[test]
fn a_frame_is_its_allocators_and_its_lines_are_called_by_frame() {
    let machine = machine(1, bare());
    let run = run(&machine, |_| {
        let p = machine.platform();
        let frame = p.frame_alloc().unwrap().publish();
        let entries = p.entries(crate::BY, frame.by_ref());
        entries[0].store(1, Relaxed);
        entries[7].store(1, Relaxed);
        entries[8].store(1, Relaxed);
    });
    let used: Vec<_> = run.lines.iter().map(|l| (l.hits, l.transfers())).collect();
    assert_eq!(used, [(2, 0), (1, 0)]);
    assert!(
        run.lines[0]
            .name
            .starts_with("frame 1, line 0 (sim/tests/it/model.rs:")
    );
    assert!(run.lines[1].name.starts_with("frame 1, line 1 ("));
}

/// CPU 0 takes the lock and keeps it until all others wait, in the order `arrive`. Returns in which
/// order they got it and when each did.
fn handing_over(model: LockModel, cpus: usize, arrive: &[usize]) -> (Vec<usize>, Vec<u64>, Run) {
    let machine = machine(
        cpus,
        Params {
            lock_model: model,
            ..bare()
        },
    );
    let lock = SimLock::new(());
    let order = RefCell::new(Vec::new());
    let times = RefCell::new(Vec::new());
    let run = run(&machine, |cpu| {
        let me = cpu.index().0;
        let at = arrive.iter().position(|&c| c == me);
        let Some(delay) = at.map(|n| 1000 * n as u64).or((me == 0).then_some(0)) else {
            return;
        };
        cpu.work(Cycles(if me == 0 { 0 } else { 10_000 + delay }));
        lock.with(|()| {
            cpu.work(Cycles(if me == 0 { 100_000 } else { 10_000 }));
            cpu.turn();
            if me != 0 {
                order.borrow_mut().push(me);
                times.borrow_mut().push(cpu.now().0);
            }
        });
    });
    (order.take(), times.take(), run)
}

#[test]
fn ticket_and_queue_locks_are_handed_over_in_order_and_test_and_set_to_the_nearest() {
    let arrive = [9, 3, 12, 1];
    for model in [LockModel::Ticket, LockModel::Queue] {
        assert_eq!(handing_over(model, 16, &arrive).0, arrive);
    }
    // from CPU 0: 3 and 1 are near; then, from 1, the rest as they came
    let (order, _, _) = handing_over(LockModel::TestAndSet, 16, &arrive);
    assert_eq!(order, [3, 1, 9, 12]);
}

#[test]
fn a_queue_lock_hands_over_in_one_transfer_and_a_ticket_lock_slower_the_more_wait() {
    let gap = |model, cpus: usize| {
        let arrive: Vec<usize> = (1..cpus).collect();
        let (_, times, _) = handing_over(model, cpus, &arrive);
        times[1] - times[0] - 10_000
    };
    let p = bare();
    // release: the waiter's flag; the new holder's section has no cost here
    assert_eq!(gap(LockModel::Queue, 3), p.transfer_near);
    assert_eq!(gap(LockModel::Queue, 8), p.transfer_near);
    assert!(gap(LockModel::Ticket, 8) > gap(LockModel::Ticket, 3));
    assert!(gap(LockModel::Ticket, 3) >= p.transfer_near);
}

#[test]
fn a_wait_for_a_lock_is_charged_by_the_locks_name() {
    let (_, _, run) = handing_over(LockModel::Queue, 2, &[1]);
    let lock = &run.locks[0];
    assert!(
        lock.name.starts_with("() (sim/tests/it/model.rs:"),
        "{}",
        lock.name
    );
    assert_eq!((lock.taken, lock.contended, lock.longest_queue), (2, 1, 1));
    assert!(lock.waited.0 > 89_000 && lock.waited.0 < 91_000, "{lock:?}");
    assert_eq!(
        run.cpus[1].account.get(Category::Outside, Way::Lock),
        lock.waited.0
    );
}

#[test]
fn a_lock_that_is_only_tried_is_not_waited_for() {
    let machine = machine(2, bare());
    let lock = SimLock::new(());
    let got = RefCell::new(Vec::new());
    let run = run(&machine, |cpu| match cpu.index().0 {
        0 => lock.with(|()| cpu.work(Cycles(10_000))),
        _ => {
            cpu.work(Cycles(5000));
            got.borrow_mut().push(lock.try_with(|()| ()).is_some());
            cpu.work(Cycles(50_000));
            got.borrow_mut().push(lock.try_with(|()| ()).is_some());
        }
    });
    assert_eq!(got.take(), [false, true]);
    assert_eq!(run.locks[0].waited, Cycles(0));
}

#[test]
fn the_data_under_a_lock_moves_with_it() {
    let time = |lock: &dyn Fn(u64), other: &dyn Fn(u64)| {
        let machine = machine(2, bare());
        let run = run(&machine, |cpu| match cpu.index().0 {
            0 => lock(0),
            _ => {
                cpu.work(Cycles(10_000));
                other(1);
            }
        });
        run.cpus[1].cycles.0
    };
    let small = SimLock::new(0_u64);
    let large = SimLock::new([0_u64; 64]);
    let small = time(&|v| small.with(|w| *w = v), &|v| small.with(|w| *w = v));
    let large = time(&|v| large.with(|w| w[0] = v), &|v| large.with(|w| w[0] = v));
    // its lines come together
    assert_eq!(large - small, bare().transfer_near);
}

#[test]
fn a_cpu_that_waits_sleeps_until_its_line_changes() {
    let (machine, word) = (machine(2, bare()), word());
    let turns = Cell::new(0);
    let run = run(&machine, |cpu| match cpu.index().0 {
        0 => {
            cpu.work(Cycles(1_000_000 - 1));
            word.0.store(1, Relaxed);
        }
        _ => {
            while word.0.load(Relaxed) == 0 {
                turns.set(turns.get() + 1);
                machine.platform().relax();
            }
        }
    });
    assert_eq!(turns.get(), 1);
    let p = bare();
    // the store has the line after one transfer; to see it takes another
    let seen = 1_000_000 - 1 + 2 * p.transfer_near;
    assert_eq!(cycles(&run)[1], seen);
    assert!(run.cpus[1].account.get(Category::Outside, Way::Wait) > 990_000);
}

#[test]
fn a_cpu_that_waits_for_what_a_lock_guards_wakes_when_another_takes_it() {
    let (machine, word) = (machine(2, bare()), word());
    let (lock, turns) = (SimLock::new(false), Cell::new(0));
    let run = run(&machine, |cpu| match cpu.index().0 {
        0 => {
            cpu.work(Cycles(100_000));
            lock.with(|done| *done = true);
        }
        _ => {
            // a word that never changes is read as well, and would let it sleep for long
            while word.0.load(Relaxed) == 0 && !lock.with(|done| *done) {
                turns.set(turns.get() + 1);
                machine.platform().relax();
            }
        }
    });
    assert_eq!(turns.get(), 1);
    assert!(cycles(&run)[1] < 101_000, "{:?}", cycles(&run));
}

#[test]
fn a_timer_interrupts_cpu_0_even_while_it_sleeps() {
    let (machine, word) = (machine(2, bare()), word());
    let ticks = RefCell::new(Vec::new());
    let timer = Timer {
        period: Cycles(100_000),
        tick: Box::new(|now| ticks.borrow_mut().push(now.0)),
    };
    let span = Span::fixed(Cycles(0), Cycles::from_ms(1));
    machine
        .run(span, Some(timer), |cpu| match cpu.index().0 {
            0 => {
                while word.0.load(Relaxed) == 0 {
                    machine.platform().relax();
                }
            }
            _ => {
                cpu.work(Cycles(450_000));
                word.0.store(1, Relaxed);
            }
        })
        .unwrap();
    let entry = bare().interrupt;
    let expected: Vec<u64> = (1..=4).map(|n| n * 100_000 + entry).collect();
    assert_eq!(ticks.take(), expected);
}

#[test]
fn a_handler_that_wakes_a_cpu_waits_for_locks() {
    let (machine, word) = (machine(2, bare()), word());
    let (lock, inside, taken) = (SimLock::new(()), Cell::new(false), Cell::new(0));
    let timer = Timer {
        period: Cycles(100_000),
        // the first thing it does: nothing is between it and the sleep
        tick: Box::new(|_| {
            lock.with(|()| {
                assert!(!inside.get());
                taken.set(taken.get() + 1);
            });
        }),
    };
    let span = Span::fixed(Cycles(0), Cycles::from_ms(1));
    let body = |cpu: &VirtualCpu| match cpu.index().0 {
        0 => {
            while word.0.load(Relaxed) == 0 {
                machine.platform().relax();
            }
        }
        _ => {
            lock.with(|()| {
                inside.set(true);
                for _ in 0..150 {
                    cpu.work(Cycles(1000));
                    cpu.turn();
                }
                inside.set(false);
            });
            cpu.work(Cycles(100_000));
            word.0.store(1, Relaxed);
        }
    };
    machine.run(span, Some(timer), body).unwrap();
    assert_eq!(taken.get(), 2, "one waits for the lock, one finds it free");
}

#[test]
fn interrupts_wait_until_a_lock_is_released() {
    let machine = machine(1, bare());
    let (lock, inside, ticks) = (SimLock::new(()), Cell::new(false), Cell::new(0));
    let timer = Timer {
        period: Cycles(10_000),
        tick: Box::new(|_| {
            assert!(!inside.get());
            ticks.set(ticks.get() + 1);
        }),
    };
    let span = Span::fixed(Cycles(0), Cycles(1));
    let body = |cpu: &VirtualCpu| {
        lock.with(|()| {
            inside.set(true);
            for _ in 0..50 {
                cpu.work(Cycles(1000));
                cpu.turn();
            }
            inside.set(false);
        });
    };
    machine.run(span, Some(timer), body).unwrap();
    // those missed meanwhile are one
    assert_eq!(ticks.get(), 1);
}

#[test]
fn bodies_take_turns_by_virtual_time() {
    let machine = machine(3, bare());
    let order = RefCell::new(Vec::new());
    run(&machine, |cpu| {
        for round in 0..3 {
            cpu.work(Cycles([30, 20, 70][cpu.index().0]));
            cpu.turn();
            order.borrow_mut().push((cpu.now().0, cpu.index().0, round));
        }
    });
    let order = order.take();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn a_dead_lock_and_a_panic_are_errors_that_say_where() {
    let span = Span::fixed(Cycles(0), Cycles(1));
    let locks = [SimLock::new(()), SimLock::new(())];
    let opposite = |cpu: &VirtualCpu| {
        let me = cpu.index().0;
        locks[me].with(|()| {
            cpu.work(Cycles(1000));
            locks[1 - me].with(|()| ());
        });
    };
    let why = machine(2, bare()).run(span, None, opposite).unwrap_err();
    assert!(
        matches!(
            why,
            RunError::DeadLock {
                waiting: 2,
                cpus: 2,
                ..
            }
        ),
        "{why}"
    );

    let fails = |cpu: &VirtualCpu| assert_ne!(cpu.index().0, 1, "as planned");
    let why = machine(2, bare()).run(span, None, fails).unwrap_err();
    assert!(why.to_string().contains("CPU 1 panicked"), "{why}");
    assert!(why.to_string().contains("as planned"), "{why}");
}

#[test]
fn machines_have_a_bounded_number_of_cpus() {
    for (cpus, cpus_per_socket) in [(0, 8), (CPUS_MAX + 1, 8), (4, 0)] {
        let config = MachineConfig {
            topology: Topology {
                cpus,
                cpus_per_socket,
            },
            frames: 1,
            heap: None,
        };
        assert!(matches!(
            Machine::new(config, Params::default()),
            Err(MachineError::Cpus { .. })
        ));
    }
    let config = MachineConfig {
        topology: Topology::of_eights(CPUS_MAX),
        frames: 1,
        heap: None,
    };
    let machine = Machine::new(config, bare()).unwrap();
    let word = word();
    let run = run(&machine, |_| {
        word.0.fetch_add(1, Relaxed);
    });
    assert_eq!(word.0.peek(), CPUS_MAX as u64);
    assert_eq!(run.lines[0].transfers(), CPUS_MAX as u64);
}
