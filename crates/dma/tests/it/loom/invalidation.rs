// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The order of retire against start, with the unit's read in it. No preemption bound.
//!
//! One CPU clears an entry and retires; another starts an invalidation, after which the unit reads
//! the entry once more, as it may at any time. If the completion completes what was retired, the
//! unit must have read the cleared entry.

use crate::loom::{
    Counter, explore,
    platform::{Loom, Word, on_cpu_1},
};
use ioatlas_dma::{
    invalidation::{FlushSequence, Invalidate, InvalidateError, Scope, WaitLimit},
    platform::{Atomic64, Ordering},
    units::DomainId,
};
use std::sync::Arc;

const OLD: u64 = 1;
const CLEARED: u64 = 0;
const RELAXED: Ordering = Ordering::Relaxed;

/// The unit acts at once: what it reads during the submission stays in its cache.
struct Immediate {
    entry: Arc<Word>,
    cache: Word,
}

#[allow(unsafe_code)] // a promise
// SAFETY: its cache is what is in memory when it is asked.
unsafe impl Invalidate for Immediate {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> {
        self.cache.store(self.entry.load(RELAXED), RELAXED);
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

/// The sequence of one unit, with which each model is alone.
#[allow(unsafe_code)]
fn sequence(p: &Loom) -> FlushSequence<Loom> {
    // SAFETY: what is retired is nothing; whether it completes too early is what the models ask.
    unsafe { FlushSequence::new(p) }
}

#[test]
fn a_completed_entry_is_in_no_cache() {
    let (completed, not) = (Counter::default(), Counter::default());
    let counters = (completed.clone(), not.clone());
    explore("retire against start", None, move || {
        let p = Arc::new(Loom::new(0));
        let sequence = Arc::new(sequence(&p));
        let entry = Arc::new(Word::new(OLD));
        let unit = Arc::new(Immediate {
            entry: entry.clone(),
            cache: Word::new(OLD),
        });
        let flusher = {
            let (p, sequence, unit) = (p.clone(), sequence.clone(), unit.clone());
            on_cpu_1(move || {
                sequence
                    .flush(&*p, &unit, DomainId(1), Scope::DOMAIN, WaitLimit(1))
                    .expect("this unit does not fail")
            })
        };
        entry.store(CLEARED, RELAXED);
        let retired = sequence.retire(&*p, (), Scope::DOMAIN);
        let completion = flusher.join().unwrap();
        match retired.complete(&completion) {
            Ok(_) => {
                assert_eq!(
                    unit.cache.load(RELAXED),
                    CLEARED,
                    "completed over the old entry"
                );
                counters.0.add();
            }
            Err(_) => counters.1.add(),
        }
    });
    println!("completed {}, not completed {}", completed.get(), not.get());
    assert!(completed.get() > 0 && not.get() > 0, "both must be seen");
}

/// A queue of one place; the unit is a thread of its own, as hardware is.
struct Queue {
    submitted: Word,
    done: Word,
}

#[allow(unsafe_code)] // a promise
// SAFETY: the thread that serves it says "done" after that.
unsafe impl Invalidate for Queue {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> {
        self.submitted.store(1, Ordering::Release);
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(self.done.load(Ordering::Acquire) == 1)
    }
}

#[test]
fn a_completed_entry_is_in_no_cache_of_an_asynchronous_unit() {
    let completed = Counter::default();
    let counter = completed.clone();
    explore("retire against start, unit apart", None, move || {
        let p = Arc::new(Loom::new(0));
        let sequence = Arc::new(sequence(&p));
        let entry = Arc::new(Word::new(OLD));
        let queue = Arc::new(Queue {
            submitted: Word::new(0),
            done: Word::new(0),
        });
        let unit = {
            let (entry, queue) = (entry.clone(), queue.clone());
            loom::thread::spawn(move || {
                // one look: it invalidates if it was asked to, and else stays out of it
                if queue.submitted.load(Ordering::Acquire) == 0 {
                    return None;
                }
                let read_again = entry.load(RELAXED);
                queue.done.store(1, Ordering::Release);
                Some(read_again)
            })
        };
        let flusher = {
            let (p, sequence, queue) = (p.clone(), sequence.clone(), queue.clone());
            on_cpu_1(move || {
                // fails in the executions in which the unit looked too early
                sequence.flush(&*p, &queue, DomainId(1), Scope::DOMAIN, WaitLimit(2))
            })
        };
        entry.store(CLEARED, RELAXED);
        let retired = sequence.retire(&*p, (), Scope::DOMAIN);
        let cached = unit.join().unwrap();
        if let Ok(completion) = flusher.join().unwrap()
            && retired.complete(&completion).is_ok()
        {
            assert_eq!(cached, Some(CLEARED), "completed over the old entry");
            counter.add();
        }
    });
    println!("completed {}", completed.get());
    assert!(completed.get() > 0, "must be seen");
}

/// Which fences a hand-written pair has.
#[derive(Clone, Copy)]
struct Fences {
    retire: bool,
    start: bool,
}

/// The pair without `FlushSequence`, so that either fence can be left out: shows that loom sees the
/// difference.
fn by_hand(fences: Fences) {
    explore("by hand", None, move || {
        let fence = |present: bool| {
            if present {
                loom::sync::atomic::fence(Ordering::SeqCst)
            }
        };
        let (entry, next) = (Arc::new(Word::new(OLD)), Arc::new(Word::new(0)));
        let started = {
            let (entry, next) = (entry.clone(), next.clone());
            on_cpu_1(move || {
                let began = next.fetch_add(1, RELAXED);
                fence(fences.start);
                (began, entry.load(RELAXED))
            })
        };
        entry.store(CLEARED, RELAXED);
        fence(fences.retire);
        let stamp = next.load(RELAXED);
        let (began, cached) = started.join().unwrap();
        assert!(
            began < stamp || cached == CLEARED,
            "completed over the old entry"
        );
    });
}

#[test]
fn the_pair_by_hand_holds_with_both_fences() {
    by_hand(Fences {
        retire: true,
        start: true,
    });
}

#[test]
#[should_panic(expected = "completed over the old entry")]
fn the_pair_by_hand_fails_without_the_fence_of_retire() {
    by_hand(Fences {
        retire: false,
        start: true,
    });
}

#[test]
#[should_panic(expected = "completed over the old entry")]
fn the_pair_by_hand_fails_without_the_fence_of_start() {
    by_hand(Fences {
        retire: true,
        start: false,
    });
}
