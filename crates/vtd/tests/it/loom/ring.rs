// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The command ring: slots, tickets, the tail, what is done, and recovery from errors. Two CPUs and
//! the unit, or one CPU and the unit; at most two preemptions.

use crate::loom::{
    CLEARED, Counter,
    chip::{Chip, NIC, Reports, Runs},
    explore,
    machine::Machine,
    platform::on_cpu_1,
};
use ioatlas_dma::{
    invalidation::{InvalidateError, WaitLimit},
    platform::{Atomic64, Ordering, Platform},
};
use ioatlas_vtd::{
    layout::Words,
    queue::{Queue, Ticket},
};
use std::sync::Arc;

type Outcome = Result<bool, InvalidateError>;

/// Slots of the ring that loom watches; the others hold what was queued before a model begins.
const SLOTS: usize = 6;
/// How often a CPU asks whether a submission is done, and looks for room.
const LOOKS: usize = 3;

struct Bench {
    p: Arc<Machine>,
    chip: Arc<Chip>,
    queue: Queue<Machine>,
}

/// An IOTLB invalidation of a domain.
fn of_domain(id: u64) -> Words {
    Words {
        low: 0x22 | id << 16,
        high: 0,
    }
}
/// Removes everything from the device's own TLB.
fn of_device() -> Words {
    Words {
        low: 0x3 | u64::from(NIC.0) << 32,
        high: 0x7fff_ffff_ffff_f001,
    }
}

impl Bench {
    fn new(reports: Reports) -> Arc<Self> {
        use ioatlas_vtd::registers::*;
        let p = Arc::new(Machine::new(&[2 * SLOTS, 1]));
        let chip = Chip::new(p.clone(), Runs::Beside, reports);
        let frame = || p.frame_alloc().expect("two frames").publish();
        let queue = Queue::new(&*p, frame(), frame(), WaitLimit(1000));
        chip.write64(IQA, queue.ring().0);
        chip.write32(GCMD, GCMD_QIE);
        Arc::new(Bench { p, chip, queue })
    }
    fn submit(&self, batch: &[Words]) -> Result<Ticket, InvalidateError> {
        let limit = WaitLimit(LOOKS as u64);
        let batch = batch.iter().copied();
        self.queue.submit(&*self.p, &self.chip, batch, limit)
    }
    fn done(&self, ticket: Ticket) -> Outcome {
        self.queue.done(&*self.p, &self.chip, ticket)
    }
    /// Asks a few times, and lets others go on in between.
    fn answer(&self, ticket: Ticket) -> Outcome {
        for _ in 0..LOOKS {
            match self.done(ticket) {
                Ok(false) => self.p.relax(),
                answer => return answer,
            }
        }
        Ok(false)
    }
    /// Clears the entry of domain `n`, invalidates it, and asks; what is done, the unit did.
    fn clear_and_wait(&self, n: usize, batch: &[Words]) -> Outcome {
        self.chip.tables[n].store(CLEARED, Ordering::Relaxed);
        let outcome = self.submit(batch).and_then(|ticket| self.answer(ticket));
        if outcome == Ok(true) {
            let seen = self.chip.seen[n].load(Ordering::Relaxed);
            assert_eq!(seen, CLEARED, "P1: done, and the unit has the old entry");
        }
        outcome
    }
    /// The unit's thread: it looks a few times.
    fn run(&self) {
        for _ in 0..LOOKS {
            if !self.chip.run() {
                self.p.relax();
            }
        }
    }
}

/// Each CPU clears an entry, invalidates it and waits, and the unit runs beside them. CPU 1 submits
/// `theirs`, and is told what is `due` if it is told anything; CPU 0's is done, whatever that is.
fn two_cpus(name: &str, prepare: fn(&Chip), theirs: fn() -> Vec<Words>, due: fn(Outcome) -> bool) {
    let ended: [Counter; 2] = Default::default();
    let counters = ended.clone();
    explore(name, 2, move || {
        let bench = Bench::new(Reports::AtOnce);
        prepare(&bench.chip);
        let unit = {
            let bench = bench.clone();
            loom::thread::spawn(move || bench.run())
        };
        let other = {
            let bench = bench.clone();
            on_cpu_1(move || bench.clear_and_wait(1, &theirs()))
        };
        let mine = bench.clear_and_wait(0, &[of_domain(0)]);
        let told = other.join().unwrap();
        unit.join().unwrap();
        let ends = [(mine, mine == Ok(true)), (told, due(told))];
        for (cpu, (answer, as_due)) in ends.into_iter().enumerate() {
            assert!(as_due || answer == Ok(false), "P1: CPU {cpu}: {answer:?}");
            if as_due {
                counters[cpu].add();
            }
        }
    });
    let ended = ended.map(|counter| counter.get());
    println!("CPU 0 and CPU 1 were answered in {ended:?}");
    assert!(ended.iter().all(|n| *n > 0), "both must be seen");
}

#[test]
fn what_is_reported_done_the_unit_did() {
    let done = |answer| answer == Ok(true);
    two_cpus("two submissions", |_| (), || vec![of_domain(1)], done);
}

#[test]
fn a_refused_submission_is_never_taken_for_one_that_is_done() {
    let refused = |answer| matches!(answer, Err(InvalidateError::QueueError { .. }));
    let prepare = |chip: &Chip| chip.refuse(1);
    two_cpus("one of two is refused", prepare, asks_unit, refused);
    recovery("one of two was refused", prepare, asks_unit, refused);
}

#[test]
fn a_device_that_does_not_answer_fails_what_asked_it_and_nothing_else() {
    let timed_out = |answer| answer == Err(InvalidateError::DeviceTimedOut { device: NIC });
    let prepare = Chip::silence_device;
    two_cpus(
        "one of two asks a silent device",
        prepare,
        asks_device,
        timed_out,
    );
    recovery(
        "one of two asked a silent device",
        prepare,
        asks_device,
        timed_out,
    );
}

fn asks_unit() -> Vec<Words> {
    vec![of_domain(1)]
}
fn asks_device() -> Vec<Words> {
    vec![of_domain(1), of_device()]
}

/// The queue has stopped at the submission that CPU 1 waits for, another's behind it; either CPU
/// may be the one that recovers it. Here no thread yields: loom lets those that yielded go on only
/// when no other can, and so would not look into the middle of a recovery.
fn recovery(name: &str, prepare: fn(&Chip), theirs: fn() -> Vec<Words>, due: fn(Outcome) -> bool) {
    let ended: [Counter; 2] = Default::default();
    let counters = ended.clone();
    explore(name, 2, move || {
        let bench = Bench::new(Reports::AtOnce);
        prepare(&bench.chip);
        let [refused, other] = [theirs(), vec![of_domain(0)]]
            .map(|batch| bench.submit(&batch).expect("there is room"));
        bench.chip.run();
        let unit = {
            let bench = bench.clone();
            loom::thread::spawn(move || (bench.chip.run(), bench.chip.run()))
        };
        let waits = {
            let bench = bench.clone();
            on_cpu_1(move || [bench.done(refused), bench.done(refused)])
        };
        let mine = [bench.done(other), bench.done(other)];
        for answer in waits.join().unwrap() {
            assert!(due(answer) || answer == Ok(false), "P1: {answer:?}");
            if due(answer) {
                counters[1].add();
            }
        }
        unit.join().unwrap();
        if mine.contains(&Ok(true)) {
            assert_eq!(bench.chip.carried_out(0), 1, "P1: done, and never was");
            counters[0].add();
        }
    });
    let ended = ended.map(|counter| counter.get());
    println!("CPU 0 and CPU 1 were answered in {ended:?}");
    assert!(ended.iter().all(|n| *n > 0), "both must be seen");
}

/// As many submissions as fill the ring, but for the two slots that stay free: seven of 33
/// descriptors and one of 23, of a domain each.
fn full(bench: &Bench) -> Vec<(u64, Ticket, usize)> {
    let sizes = [32, 32, 32, 32, 32, 32, 32, 22];
    let submit = |(n, size): (usize, usize)| {
        let id = 10 + n as u64;
        let batch = vec![of_domain(id); size];
        (id, bench.submit(&batch).expect("there is room"), size)
    };
    sizes.into_iter().enumerate().map(submit).collect()
}

/// A CPU finds no room in a full ring, and waits for it: what it overwrites, the unit has read and
/// done.
#[test]
fn a_full_ring_loses_nothing() {
    let done = Counter::default();
    let counter = done.clone();
    // one preemption: of eight reports the CPU may see any
    explore("a full ring", 1, move || {
        let bench = Bench::new(Reports::AtOnce);
        let before = full(&bench);
        let unit = {
            let bench = bench.clone();
            loom::thread::spawn(move || bench.run())
        };
        if let Ok(ticket) = bench.submit(&[of_domain(0)])
            && bench.done(ticket) == Ok(true)
        {
            assert_eq!(bench.chip.carried_out(0), 1, "P1: done, and never was");
            counter.add();
        }
        unit.join().unwrap();
        bench.run();
        for (id, ticket, size) in before {
            assert_eq!(bench.answer(ticket), Ok(true));
            assert_eq!(bench.chip.carried_out(id), size, "P1: none of {id} is lost");
        }
    });
    println!("it fitted, and was done, in {}", done.get());
    assert!(done.get() > 0, "must be seen");
}

/// The unit has fetched the first of the submissions that fill the ring, refuses the second, and
/// reports the first whenever it likes: before the recovery, after it, or meanwhile.
#[test]
fn what_is_reported_during_a_recovery_makes_no_room() {
    let (recovered, fitted) = (Counter::default(), Counter::default());
    let counters = (recovered.clone(), fitted.clone());
    explore("late reports", 2, move || {
        let bench = Bench::new(Reports::Later);
        let before = full(&bench);
        let refused = before[1].0;
        bench.chip.refuse(refused);
        bench.chip.run();
        let unit = {
            let bench = bench.clone();
            loom::thread::spawn(move || {
                for _ in 0..LOOKS {
                    bench.chip.report();
                    bench.p.relax();
                    bench.chip.run();
                }
            })
        };
        let all = |outcome: Outcome, id: u64, size: usize| {
            let carried_out = bench.chip.carried_out(id);
            let done = outcome == Ok(true);
            assert!(
                !done || carried_out >= size,
                "P1: {id} is done and was lost"
            );
            done
        };
        let (id, ticket, size) = before[0];
        if all(bench.answer(ticket), id, size) {
            counters.0.add();
        }
        let batch = vec![of_domain(0); 32];
        if let Ok(ticket) = bench.submit(&batch) {
            counters.1.add();
            all(bench.answer(ticket), 0, batch.len());
        }
        for (id, ticket, size) in &before {
            all(bench.answer(*ticket), *id, *size);
        }
        unit.join().unwrap();
    });
    println!(
        "the first was done in {}, another fitted in {}",
        recovered.get(),
        fitted.get()
    );
    assert!(recovered.get() > 0 && fitted.get() > 0, "must be seen");
}
