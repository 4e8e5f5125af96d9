// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Requests that are combined: whoever is told that its own is done finds the entry that it cleared
//! in no cache. The unit reads the entries when it is asked, which is the worst moment, and answers
//! at the second look.

use crate::loom::{
    Counter, explore,
    platform::{Loom, Word, on_cpu_1},
};
use ioatlas_dma::{
    invalidation::*,
    platform::{Atomic64, Ordering, Platform},
    units::*,
};
use std::sync::Arc;

const OLD: u64 = 1;
const CLEARED: u64 = 0;
const RELAXED: Ordering = Ordering::Relaxed;
const PAGES: usize = 2;

struct Late {
    entries: [Word; PAGES],
    caches: [Word; PAGES],
    /// Looks, of any round.
    looks: Word,
}

impl Late {
    fn new() -> Self {
        Late {
            entries: core::array::from_fn(|_| Word::new(OLD)),
            caches: core::array::from_fn(|_| Word::new(OLD)),
            looks: Word::new(0),
        }
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: its cache of what it is asked for is what is in memory then.
unsafe impl Invalidate for Late {
    type Token = u64;
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<u64, InvalidateError> {
        self.submit_ranges(domain, scope.pages.as_slice(), scope.caches)
    }
    fn submit_ranges(
        &self,
        _: DomainId,
        ranges: &[IovaRange],
        _: Caches,
    ) -> Result<u64, InvalidateError> {
        for page in ranges.iter().flat_map(|range| range.iter()) {
            let at = page.0 as usize;
            self.caches[at].store(self.entries[at].load(RELAXED), RELAXED);
        }
        Ok(self.looks.load(RELAXED))
    }
    fn done(&self, asked: u64) -> Result<bool, InvalidateError> {
        Ok(self.looks.fetch_add(1, RELAXED) > asked)
    }
}

type Unit = Combining<Loom, Late>;

fn unit(take_over: u64) -> (Arc<Loom>, Arc<Unit>) {
    let p = Arc::new(Loom::new(0));
    let config = CombiningConfig {
        cpus_min: 1,
        take_over,
    };
    (p.clone(), Arc::new(Combining::new(p, Late::new(), config)))
}

/// Clears the entry of `page` and asks for its invalidation, as an unmap does.
fn ask(p: &Loom, unit: &Unit, page: usize) -> CombinedToken<u64> {
    unit.unit().entries[page].store(CLEARED, RELAXED);
    p.fence(Ordering::SeqCst);
    let pages = IovaRange::new(IovaPage(page as u64), PageCount(1));
    let token = unit.submit(DomainId(1), Scope::leaves(pages));
    token.expect("this unit does not fail")
}

/// Looks a few times; whether it was done, and then it must be.
fn wait(p: &Loom, unit: &Unit, page: usize, token: CombinedToken<u64>) -> bool {
    for _ in 0..4 {
        if unit.done(token).expect("this unit does not fail") {
            let cached = unit.unit().caches[page].load(RELAXED);
            assert_eq!(cached, CLEARED, "P1: done, and in a cache");
            return true;
        }
        p.relax();
    }
    false
}

#[test]
fn two_that_flush_at_once_are_each_flushed() {
    let (both, other) = (Counter::default(), Counter::default());
    let (seen, not) = (both.clone(), other.clone());
    explore("two combined", Some(2), move || {
        let (p, unit) = unit(2);
        let other = {
            let (p, unit) = (p.clone(), unit.clone());
            on_cpu_1(move || {
                let token = ask(&p, &unit, 1);
                wait(&p, &unit, 1, token)
            })
        };
        let token = ask(&p, &unit, 0);
        let mine = wait(&p, &unit, 0, token);
        match other.join().unwrap() && mine {
            true => seen.add(),
            false => not.add(),
        }
    });
    println!("both done {}, one not yet {}", both.get(), other.get());
    assert!(both.get() > 0, "must be seen");
}

#[test]
fn one_that_leads_and_looks_no_more_is_replaced() {
    let done = Counter::default();
    let seen = done.clone();
    explore("take-over", Some(2), move || {
        let (p, unit) = unit(1);
        let other = {
            let (p, unit) = (p.clone(), unit.clone());
            on_cpu_1(move || {
                let _nobody_looks = ask(&p, &unit, 1);
            })
        };
        let token = ask(&p, &unit, 0);
        if wait(&p, &unit, 0, token) {
            seen.add();
        }
        other.join().unwrap();
    });
    assert!(done.get() > 0, "must be seen");
}
