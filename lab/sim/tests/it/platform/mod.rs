// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The simulated multiprocessor: it finds races, replays them, masks interrupts, and reports when
//! nothing moves.

mod scheduler;

use ioatlas_dma::{
    platform::{Atomic64, Lock, Ordering, Platform},
    units::CpuIndex,
};
use ioatlas_sim::platform::{
    Cause, DeliveryPoint, Failure, Interrupt, Outcome, Schedule, Sim, SimConfig, SimLock, SimWord,
    World, YieldPoint, inspect, steps,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

const RELAXED: Ordering = Ordering::Relaxed;

fn sticky(seed: u64) -> Schedule {
    Schedule::Sticky {
        seed,
        switch_one_in: 4,
    }
}

fn bounded(seed: u64) -> Schedule {
    Schedule::Bounded {
        seed,
        preemptions: 2,
    }
}

fn by_priority(seed: u64) -> Schedule {
    Schedule::Priority { seed, changes: 1 }
}

/// Two CPUs that each add 1 three times.
fn count_to_six(schedule: Schedule, add_one: impl Fn(&SimWord)) -> (Outcome, u64) {
    let word = SimWord::new(0);
    let body = || (0..3).for_each(|_| add_one(&word));
    let outcome = World::new(schedule).cpu(body).cpu(body).run();
    (outcome, word.peek())
}

fn racy(word: &SimWord) {
    word.store(word.load(RELAXED) + 1, RELAXED);
}

fn atomic(word: &SimWord) {
    word.fetch_add(1, RELAXED);
}

#[test]
fn a_lost_update_is_found_and_only_where_there_is_one() {
    for (name, schedule) in [
        ("sticky", sticky as fn(u64) -> _),
        ("bounded", bounded),
        ("priority", by_priority),
    ] {
        let lost = (0..200).filter(|&seed| count_to_six(schedule(seed), racy).1 < 6);
        let lost = lost.count();
        println!("{name}: updates lost in {lost} of 200 schedules");
        assert!(lost > 0, "{name} finds no lost update");
        for seed in 0..200 {
            assert_eq!(count_to_six(schedule(seed), atomic).1, 6, "{name} {seed}");
        }
    }
}

#[test]
fn without_preemptions_nothing_is_lost() {
    for seed in 0..50 {
        let schedule = Schedule::Bounded {
            seed,
            preemptions: 0,
        };
        let (outcome, sum) = count_to_six(schedule, racy);
        assert_eq!((sum, outcome.switches), (6, 2), "each is chosen once");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut traces = [HashSet::new(), HashSet::new()];
    for seed in 0..100 {
        for (traces, schedule) in traces.iter_mut().zip([sticky(seed), bounded(seed)]) {
            let (first, sum) = count_to_six(schedule, racy);
            assert_eq!(count_to_six(schedule, racy), (first.clone(), sum));
            traces.insert(first.trace);
        }
    }
    let [of_sticky, of_bounded] = traces.map(|t| t.len());
    println!("distinct interleavings of 100 seeds: sticky {of_sticky}, bounded {of_bounded}");
    assert!(of_sticky > 10 && of_bounded > 10);
}

#[test]
fn without_changes_priorities_run_one_after_the_other() {
    let mut firsts = HashSet::new();
    for seed in 0..20 {
        let first = Cell::new(None);
        let body = |cpu: u32| {
            let first = &first;
            move || {
                let word = SimWord::new(0);
                racy(&word);
                first.set(first.get().or(Some(cpu)));
            }
        };
        let schedule = Schedule::Priority { seed, changes: 0 };
        let outcome = World::new(schedule).cpu(body(0)).cpu(body(1)).run();
        assert_eq!(outcome.switches, 2, "each is chosen once");
        firsts.insert(first.get());
    }
    assert_eq!(firsts.len(), 2, "either is the first, by the seed");
}

/// The one that is waited for is last, and no other agent changes what the others look
/// at but they themselves.
#[test]
fn agents_that_wake_each_other_starve_no_other() {
    for seed in 0..20 {
        let (beats, done) = (SimWord::new(0), SimWord::new(0));
        let sim = Sim::new(SimConfig {
            cpus: 3,
            ..SimConfig::default()
        });
        let spinner = || {
            while done.load(RELAXED) == 0 {
                beats.fetch_add(1, RELAXED);
                sim.relax();
            }
        };
        let schedule = Schedule::Priority { seed, changes: 0 };
        let world = World::new(schedule).cpu(spinner).cpu(spinner);
        let world = world.cpu(|| done.store(1, RELAXED)).step_limit(20_000);
        world.run();
    }
}

#[test]
fn an_expected_length_spreads_the_preemptions() {
    let distinct = |expect: Option<u64>| {
        let traces: HashSet<u64> = (0..300)
            .map(|seed| {
                let word = SimWord::new(0);
                let body = || (0..200).for_each(|_| atomic(&word));
                let world = World::new(bounded(seed)).cpu(body).cpu(body);
                let world = match expect {
                    Some(accesses) => world.expect_accesses(accesses),
                    None => world,
                };
                world.run().trace
            })
            .collect();
        traces.len()
    };
    let (blind, told) = (distinct(None), distinct(Some(400)));
    println!("distinct interleavings of 300 seeds: {blind} without a length, {told} with it");
    assert!(told > blind);
}

#[test]
fn a_lock_excludes() {
    for seed in 0..200 {
        let word = SimWord::new(0);
        let lock = SimLock::new(0u64);
        let body = || {
            for _ in 0..3 {
                lock.with(|n| {
                    racy(&word);
                    *n += 1;
                });
            }
        };
        World::new(sticky(seed)).cpu(body).cpu(body).run();
        assert_eq!((word.peek(), lock.with(|n| *n)), (6, 6));
    }
}

#[test]
fn two_locks_in_opposite_order_are_a_dead_lock_that_names_its_seed() {
    let dropped = Cell::new(0);
    struct Count<'a>(&'a Cell<u32>);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let run = |seed| {
        let (a, b) = (SimLock::new(0), SimLock::new(0));
        let (a, b) = (&a, &b);
        let nested = |first: &SimLock<i32>, second: &SimLock<i32>| {
            let _count = Count(&dropped);
            first.with(|x| second.with(|y| *x += *y));
        };
        World::new(sticky(seed))
            .cpu(move || nested(a, b))
            .cpu(move || nested(b, a))
            .try_run()
    };
    let failures: Vec<Failure> = (0..100).filter_map(|seed| run(seed).err()).collect();
    println!("dead-locks in {} of 100 schedules", failures.len());
    assert_eq!(dropped.get(), 200, "every body was unwound");
    let failure = failures.first().expect("some schedule dead-locks");
    assert!(matches!(failure.cause, Cause::DeadLock { .. }), "{failure}");
    let Schedule::Sticky { seed, .. } = failure.schedule else {
        panic!("{failure}")
    };
    let text = failure.to_string();
    assert!(text.starts_with(&format!("seed {seed} (sticky, 1 in 4), step ")));
    assert!(text.contains("CPU 0 wants the lock at") && text.contains("CPU 1 wants the lock at"));
    assert_eq!(
        run(seed).map_err(|f| f.to_string()),
        Err(text),
        "it replays"
    );
}

#[test]
fn waiting_for_what_never_comes_is_reported() {
    let p = Sim::new(SimConfig::default());
    let word = SimWord::new(0);
    let failure = World::new(bounded(1))
        .patience(1000)
        .cpu(|| {
            while word.load(RELAXED) == 0 {
                p.relax()
            }
        })
        .agent("device", || (0..10).for_each(|_| p.relax()))
        .try_run()
        .expect_err("nothing writes the word");
    let Cause::NoProgress { turns, waiting } = &failure.cause else {
        panic!("{failure}")
    };
    assert_eq!(*turns, 1001);
    assert!(waiting.starts_with("CPU 0 waits at "), "{waiting}");
    assert!(!waiting.contains("device"), "it has ended: {waiting}");
}

#[test]
fn an_agent_that_never_waits_meets_the_step_limit() {
    let word = SimWord::new(0);
    let failure = World::new(sticky(1))
        .step_limit(500)
        .cpu(|| while word.load(RELAXED) < u64::MAX {})
        .try_run()
        .expect_err("nothing writes the word");
    assert_eq!(failure.cause, Cause::StepLimit { limit: 500 });
    assert_eq!(failure.step, 501);
}

#[test]
fn an_agent_that_spins_starves_no_other() {
    let p = Sim::new(SimConfig::default());
    for schedule in (0..50).flat_map(|seed| [sticky(seed), bounded(seed)]) {
        let (request, answer) = (SimWord::new(0), SimWord::new(0));
        let ask = || {
            for n in 1..=20 {
                request.store(n, RELAXED);
                while answer.load(RELAXED) != n {
                    p.relax()
                }
            }
        };
        let serve = || {
            while answer.load(RELAXED) != 20 {
                answer.store(request.load(RELAXED), RELAXED);
                p.relax()
            }
        };
        let outcome = World::new(schedule).cpu(ask).agent("unit", serve).run();
        // a fixed number of points each way and round, and a few turns in vain
        assert!(outcome.accesses < 1000, "{outcome:?}");
    }
}

#[test]
fn a_panic_reaches_the_caller_with_seed_and_step() {
    let word = SimWord::new(0);
    let failure = World::new(sticky(7))
        .cpu(|| (0..100).for_each(|_| atomic(&word)))
        .agent("device", || {
            atomic(&word);
            panic!("a word of {}", 3)
        })
        .try_run()
        .expect_err("the device panics");
    let expected = Cause::Panicked {
        agent: "device".into(),
        message: "a word of 3".into(),
    };
    assert_eq!(failure.cause, expected);
    let text = failure.to_string();
    let start = format!(
        "seed 7 (sticky, 1 in 4), step {}: device panicked",
        failure.step
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(
        text.contains("tests/it/platform/mod.rs:"),
        "points name their line: {text}"
    );
    assert_eq!(steps(), 0, "the run is over");
}

#[test]
#[should_panic(expected = "seed 3 (sticky, 1 in 4), step 1: CPU 0 panicked: bad")]
fn run_panics_with_seed_and_step() {
    let word = SimWord::new(0);
    World::new(sticky(3))
        .cpu(|| {
            atomic(&word);
            panic!("bad")
        })
        .run();
}

/// Destructors that access shared words, take locks and wait must run to their end without a
/// scheduler.
#[test]
fn unwinding_runs_destructors_with_plain_accesses() {
    struct Busy<'a>(&'a Sim, &'a SimWord, &'a SimLock<u32>);
    impl Drop for Busy<'_> {
        fn drop(&mut self) {
            atomic(self.1);
            self.0.relax();
            self.2.with(|n| *n += 1);
        }
    }
    let p = Sim::new(SimConfig::default());
    let (word, lock) = (SimWord::new(0), SimLock::new(0));
    let started = SimWord::new(0);
    let failure = World::new(sticky(1))
        .cpu(|| {
            let _busy = Busy(&p, &word, &lock);
            started.store(1, RELAXED);
            loop {
                p.relax()
            }
        })
        .cpu(|| {
            let _busy = Busy(&p, &word, &lock);
            while started.load(RELAXED) == 0 {
                p.relax()
            }
            lock.with(|_| panic!("with the lock held"));
        })
        .try_run()
        .expect_err("one panics");
    assert!(matches!(failure.cause, Cause::Panicked { .. }), "{failure}");
    assert_eq!((word.peek(), lock.with(|n| *n)), (2, 2));
}

/// Arms an interrupt at every point of one CPU in turn; where was each delivered, and what did
/// `look` see there?
fn interrupt_everywhere<S>(
    p: &Sim,
    body: impl Fn(),
    look: impl Fn() -> S,
) -> Vec<(DeliveryPoint, S)> {
    let mut delivered = Vec::new();
    for at_access in 1.. {
        let saw = RefCell::new(None);
        let outcome = World::new(bounded(0))
            .cpu(&body)
            .interrupt(Interrupt {
                cpu: CpuIndex(0),
                at_access,
                handler: Box::new(|| {
                    *saw.borrow_mut() = Some(inspect(&look));
                    p.pinned(|cpu| assert_eq!(cpu.index(), CpuIndex(0)));
                }),
            })
            .run();
        let Some(point) = outcome.delivered_at() else {
            assert!(saw.borrow().is_none());
            return delivered;
        };
        delivered.push((point, saw.take().expect("the handler ran")));
    }
    unreachable!()
}

#[test]
fn interrupts_wait_until_pinned_and_locked_sections_end() {
    let p = Sim::new(SimConfig::default());
    let lock = SimLock::new(());
    let (pinned, locked, after) = (SimWord::new(0), SimWord::new(0), SimWord::new(0));
    let section = |word: &SimWord| {
        word.store(1, RELAXED);
        word.store(2, RELAXED);
        word.store(0, RELAXED);
    };
    let body = || {
        p.pinned(|_| section(&pinned));
        lock.with(|()| section(&locked));
        atomic(&after);
    };
    let seen = interrupt_everywhere(&p, body, || {
        lock.with(|()| ()); // panics if it is held
        (pinned.peek(), locked.peek())
    });
    let points: Vec<YieldPoint> = seen.iter().map(|(at, _)| at.point).collect();
    // armed at: pin and 3 stores; acquire, 3 stores and release; the addition
    use YieldPoint::*;
    let expected = [
        Pin, Unpin, Unpin, Unpin, Acquire, Release, Release, Release, Release, FetchAdd,
    ];
    assert_eq!(points, expected);
    assert!(seen.iter().all(|(_, words)| *words == (0, 0)), "{seen:?}");
    let places: HashSet<_> = seen.iter().map(|(at, _)| (at.location, at.point)).collect();
    assert_eq!(places.len(), 5, "distinct places: {places:?}");
}

#[test]
fn an_unmasked_word_is_seen_half_way() {
    let p = Sim::new(SimConfig::default());
    let word = SimWord::new(0);
    let body = || (1..=3).for_each(|n| word.store(n, RELAXED));
    let look = || word.peek();
    let seen: Vec<u64> = interrupt_everywhere(
        &p,
        || {
            word.store(0, RELAXED);
            body()
        },
        look,
    )
    .into_iter()
    .skip(1)
    .map(|(_, value)| value)
    .collect();
    assert_eq!(seen, [0, 1, 2]);
}

#[test]
fn handlers_may_wait_and_others_go_on() {
    let p = Sim::new(SimConfig::default());
    let (bell, reply) = (SimWord::new(0), SimWord::new(0));
    let outcome = World::new(sticky(5))
        .cpu(|| (0..4).for_each(|_| atomic(&reply)))
        .agent("device", || {
            while bell.load(RELAXED) == 0 {
                p.relax()
            }
            bell.store(2, RELAXED);
        })
        .interrupt(Interrupt {
            cpu: CpuIndex(0),
            at_access: 2,
            handler: Box::new(|| {
                bell.store(1, RELAXED);
                while bell.load(RELAXED) != 2 {
                    p.relax()
                }
                assert_eq!(reply.peek(), 1, "the CPU stands still meanwhile");
            }),
        })
        .run();
    assert_eq!(outcome.delivered_at().map(|at| at.cpu_access), Some(2));
    assert_eq!(reply.peek(), 4);
}

#[test]
fn breaches_of_the_platform_contract_are_caught() {
    let p = Sim::new(SimConfig::default());
    let lock = SimLock::new(());
    let message = |body: &dyn Fn()| match World::new(sticky(0)).cpu(body).try_run() {
        Err(Failure {
            cause: Cause::Panicked { message, .. },
            ..
        }) => message,
        other => panic!("{other:?}"),
    };
    assert!(message(&|| p.pinned(|_| p.relax())).contains("waits while pinned"));
    assert!(message(&|| lock.with(|()| p.relax())).contains("waits with a lock held"));
    assert!(message(&|| p.pinned(|_| p.pinned(|_| ()))).contains("pinned already"));
    let again = || drop(World::new(sticky(0)).cpu(|| ()).run());
    assert!(message(&again).contains("a world is run inside another"));
    let failure = World::new(sticky(0))
        .agent("device", || p.pinned(|_| ()))
        .try_run();
    assert!(failure.is_err_and(|f| f.to_string().contains("device is no CPU")));
    let failure = World::new(sticky(0))
        .cpu(|| lock.with(|()| lock.with(|()| ())))
        .try_run();
    assert!(failure.is_err_and(|f| matches!(f.cause, Cause::DeadLock { .. })));
}

#[test]
fn frames_are_zeroed_counted_and_fail_on_demand() {
    let p = Sim::new(SimConfig { frames: 3, cpus: 1 });
    let table = p.frame_alloc().expect("three are free").publish();
    p.entries(crate::BY, table.by_ref())[511].store(9, RELAXED);
    assert_eq!((p.frames_in_use(), p.in_use(table.page())), (1, true));
    p.fail_frame_alloc_at(2);
    let second = p.frame_alloc().expect("the first attempt from now");
    assert_eq!(p.frame_alloc(), None, "the second");
    let third = p.frame_alloc().expect("it fails once");
    assert_eq!(p.frame_alloc(), None, "all are used");
    assert_eq!((p.frame_alloc_attempts(), p.frames_in_use()), (5, 3));
    let page = second.page();
    let dirty = second.publish();
    p.entries(crate::BY, dirty.by_ref())[0].store(7, RELAXED);
    p.frame_free(crate::BY, third);
    let fresh = p.frame_alloc().expect("one came back").publish();
    assert!(
        p.entries(crate::BY, fresh.by_ref())
            .iter()
            .all(|word| word.peek() == 0)
    );
    use ioatlas_dma::platform::{Authority, PhysMemory};
    // SAFETY: no device sees this memory.
    let by = unsafe { Authority::assume() };
    assert_eq!(p.word(by, page, 0).map(SimWord::peek), Some(7));
    assert!(p.word(by, page, 512).is_none());
    assert!(p.word(by, ioatlas_dma::units::PhysPage(0), 0).is_none());
    assert!(p.word(by, ioatlas_dma::units::PhysPage(4), 0).is_none());
}

#[test]
fn numbers_are_unique_over_all_machines() {
    let (p, q) = (
        Sim::new(SimConfig::default()),
        Sim::new(SimConfig::default()),
    );
    let numbers: HashSet<u64> = (0..10).flat_map(|_| [p.unique(), q.unique()]).collect();
    assert_eq!(numbers.len(), 20);
}
