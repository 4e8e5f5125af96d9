// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Requests that are combined: whoever is told that its own is done finds the entry that it cleared
//! in no cache. The unit reads the entries when it is asked, which is the worst moment, and answers
//! at the second look, or fails what it was asked first.

use crate::loom::{
    Counter, explore,
    platform::{Loom, Word, on_cpu, on_cpu_1},
};
use ioatlas_dma::{
    invalidation::*,
    platform::{Atomic64, Authority, Ordering, Platform},
    table::TableShape,
    translator::{AttachError, RemappingUnit},
    units::*,
};
use std::sync::Arc;

const OLD: u64 = 1;
const CLEARED: u64 = 0;
const RELAXED: Ordering = Ordering::Relaxed;
const PAGES: usize = 3;

struct Late {
    entries: [Word; PAGES],
    caches: [Word; PAGES],
    /// Of which domain each page is.
    domains: [DomainId; PAGES],
    /// Looks, of any round.
    looks: Word,
    /// Whether it fails what it is asked first; then, how often it was asked.
    fails: Option<Word>,
}

const DOMAIN: DomainId = DomainId(1);

/// The token of what fails.
const FAILS: u64 = u64::MAX;

impl Late {
    fn new() -> Self {
        Late {
            fails: None,
            entries: core::array::from_fn(|_| Word::new(OLD)),
            caches: core::array::from_fn(|_| Word::new(OLD)),
            domains: [DOMAIN; PAGES],
            looks: Word::new(0),
        }
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: its cache of what it is asked for is what is in memory then.
unsafe impl Invalidate for Late {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = u64;
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<u64, InvalidateError> {
        self.submit_ranges(domain, scope.pages.as_slice(), scope.caches)
    }
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        _: Caches,
    ) -> Result<u64, InvalidateError> {
        if let Some(asked) = &self.fails
            && asked.fetch_add(1, RELAXED) == 0
        {
            return Ok(FAILS);
        }
        let all = [IovaRange::new(IovaPage(0), PageCount(PAGES as u64))];
        let ranges = match ranges {
            [] => &all,
            some => some,
        };
        let pages = ranges.iter().flat_map(|range| range.iter());
        for at in pages.map(|page| page.0 as usize) {
            if self.domains[at] != domain {
                continue;
            }
            self.caches[at].store(self.entries[at].load(RELAXED), RELAXED);
        }
        Ok(self.looks.load(RELAXED))
    }
    fn done(&self, asked: u64) -> Result<bool, InvalidateError> {
        if asked == FAILS {
            return Err(InvalidateError::Refused);
        }
        Ok(self.looks.fetch_add(1, RELAXED) > asked)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: no device is there to be attached.
unsafe impl RemappingUnit<Loom> for Late {
    fn walks(&self, _: TableShape) -> bool {
        true
    }
    fn platform(&self) -> Option<&Arc<Loom>> {
        None
    }
    fn attach(
        &self,
        _: Authority,
        _: &Loom,
        device: SourceId,
        _: DomainId,
        _: PhysPage,
        _: u32,
    ) -> Result<(), AttachError> {
        Err(AttachError::Unknown { device })
    }
    fn detach(
        &self,
        _: Authority,
        _: &Loom,
        device: SourceId,
        _: DomainId,
    ) -> Result<(), AttachError> {
        Err(AttachError::Unknown { device })
    }
    fn domain_id(&self, _: &Loom) -> Option<DomainId> {
        None
    }
    fn release_domain_id(&self, _: Authority, _: &Loom, _: DomainId) {}
}

type Unit = Combining<Loom, Late>;

fn behind<U: Invalidate>(
    cpus: usize,
    unit: U,
    take_over: u64,
) -> (Arc<Loom>, Arc<Combining<Loom, U>>) {
    let p = Arc::new(Loom::with_cpus(cpus, 0));
    let config = CombiningConfig::default()
        .cpus_min(1)
        .take_over(take_over)
        .ranges_max(PAGES);
    (p.clone(), Arc::new(Combining::new(p, unit, config)))
}

fn unit(take_over: u64) -> (Arc<Loom>, Arc<Unit>) {
    behind(2, Late::new(), take_over)
}

/// Clears an entry and asks for the invalidation of its page, as an unmap does.
fn clear<U: Invalidate>(
    p: &Loom,
    unit: &Combining<Loom, U>,
    entry: &Word,
    (domain, page): (DomainId, usize),
) -> CombinedToken<U::Token> {
    entry.store(CLEARED, RELAXED);
    p.fence(Ordering::SeqCst);
    let pages = IovaRange::new(IovaPage(page as u64), PageCount(1));
    let token = unit.submit(domain, Scope::leaves(pages));
    token.expect("this unit takes all")
}

fn ask(p: &Loom, unit: &Unit, page: usize) -> CombinedToken<u64> {
    let Late {
        entries, domains, ..
    } = unit.unit();
    clear(p, unit, &entries[page], (domains[page], page))
}

/// Looks a few times; whether it was done, and then it must be.
///
/// # Errors
/// What the unit says.
fn try_wait(
    p: &Loom,
    unit: &Unit,
    page: usize,
    token: CombinedToken<u64>,
) -> Result<bool, InvalidateError> {
    for _ in 0..4 {
        if unit.done(token)? {
            let cached = unit.unit().caches[page].load(RELAXED);
            assert_eq!(cached, CLEARED, "P1: done, and in a cache");
            return Ok(true);
        }
        p.relax();
    }
    Ok(false)
}

fn wait(p: &Loom, unit: &Unit, page: usize, token: CombinedToken<u64>) -> bool {
    try_wait(p, unit, page, token).expect("this unit does not fail")
}

/// Another CPU that flushes the page of its number, and tells whether it was done.
fn flushes(p: &Arc<Loom>, unit: &Arc<Unit>, cpu: usize) -> loom::thread::JoinHandle<bool> {
    let (p, unit) = (p.clone(), unit.clone());
    on_cpu(cpu, move || {
        let token = ask(&p, &unit, cpu);
        wait(&p, &unit, cpu, token)
    })
}

/// CPU 1 asks for page 1, and never for the answer.
fn asks_and_looks_no_more(p: &Arc<Loom>, unit: &Arc<Unit>) -> loom::thread::JoinHandle<()> {
    let (p, unit) = (p.clone(), unit.clone());
    on_cpu_1(move || {
        ask(&p, &unit, 1);
    })
}

#[test]
fn two_that_flush_at_once_are_each_flushed() {
    let (both, other) = (Counter::default(), Counter::default());
    let (seen, not) = (both.clone(), other.clone());
    explore("two combined", Some(2), move || {
        let (p, unit) = unit(2);
        let other = flushes(&p, &unit, 1);
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
        let other = asks_and_looks_no_more(&p, &unit);
        let token = ask(&p, &unit, 0);
        if wait(&p, &unit, 0, token) {
            seen.add();
        }
        other.join().unwrap();
    });
    assert!(done.get() > 0, "must be seen");
}

#[test]
fn three_that_flush_at_once_are_each_flushed() {
    let all = Counter::default();
    let seen = all.clone();
    explore("three combined", Some(1), move || {
        let (p, unit) = behind(3, Late::new(), 2);
        let others = [1, 2].map(|cpu| flushes(&p, &unit, cpu));
        let token = ask(&p, &unit, 0);
        let mine = wait(&p, &unit, 0, token);
        let others = others.map(|other| other.join().unwrap());
        if mine && others == [true, true] {
            seen.add();
        }
    });
    assert!(all.get() > 0, "must be seen");
}

/// What an interrupt handler asks for, on the CPU of a request that waits and perhaps leads.
#[test]
fn one_nested_in_a_wait_is_flushed_without_it() {
    let done = Counter::default();
    let seen = done.clone();
    explore("nested", Some(2), move || {
        let (p, unit) = unit(1);
        let other = asks_and_looks_no_more(&p, &unit);
        let token = ask(&p, &unit, 0);
        let nested = ask(&p, &unit, 2);
        if wait(&p, &unit, 2, nested) {
            seen.add();
        }
        wait(&p, &unit, 0, token);
        other.join().unwrap();
    });
    assert!(done.get() > 0, "must be seen");
}

#[test]
fn a_round_that_fails_is_no_answer_to_the_next() {
    let (one, none) = (Counter::default(), Counter::default());
    let (fails, seen) = (none.clone(), one.clone());
    explore("a failure", Some(2), move || {
        let late = Late {
            fails: Some(Word::new(0)),
            ..Late::new()
        };
        let (p, unit) = behind(2, late, 1);
        let other = {
            let (p, unit) = (p.clone(), unit.clone());
            on_cpu_1(move || {
                let token = ask(&p, &unit, 1);
                try_wait(&p, &unit, 1, token)
            })
        };
        let token = ask(&p, &unit, 0);
        let mine = try_wait(&p, &unit, 0, token);
        let other = other.join().unwrap();
        match (mine, other) {
            (Err(_), Err(_)) => fails.add(),
            (Err(_), Ok(true)) | (Ok(true), Err(_)) => seen.add(),
            _ => {}
        }
    });
    println!("one failed {}, both {}", one.get(), none.get());
    assert!(one.get() > 0 && none.get() > 0, "both must be seen");
}

/// A request of the domain that has ended leads the round in which the next one's is.
#[test]
fn a_round_is_of_the_domain_of_those_that_wait() {
    let (found, other) = (Counter::default(), DomainId(2));
    let seen = found.clone();
    explore("two domains", Some(2), move || {
        let late = Late {
            domains: [DOMAIN, other, other],
            ..Late::new()
        };
        let p = Arc::new(Loom::with_cpus(2, 0));
        let config = CombiningConfig::default()
            .cpus_min(1)
            .take_over(1)
            .ranges_max(0); // to look at pages is an acquire, too
        let unit = Arc::new(Combining::new(p.clone(), late, config));
        let first = ask(&p, &unit, 0);
        ask(&p, &unit, 0);
        #[allow(unsafe_code)]
        // SAFETY: what is asked for in its name reaches no page of another.
        let ends = unsafe { Authority::assume() };
        unit.release_domain_id(ends, &p, DOMAIN);
        let next = flushes(&p, &unit, 1);
        // with no turn between, after which loom shows what is newest
        let is_done = (0..2).any(|_| unit.done(first).expect("this unit does not fail"));
        if next.join().unwrap() && is_done {
            seen.add();
        }
    });
    assert!(found.get() > 0, "must be seen");
}

/// Counts how often it was asked for page 0, and answers at once.
struct Counts(Word);

#[allow(unsafe_code)] // a promise
// SAFETY: there is no cache.
unsafe impl Invalidate for Counts {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        self.submit_ranges(domain, scope.pages.as_slice(), scope.caches)
    }
    fn submit_ranges(
        &self,
        _: DomainId,
        ranges: &[IovaRange],
        _: Caches,
    ) -> Result<(), InvalidateError> {
        let page = IovaRange::new(IovaPage(0), PageCount(1));
        if ranges.is_empty() || ranges.iter().any(|range| range.contains(&page)) {
            self.0.fetch_add(1, RELAXED);
        }
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

/// A request that is stopped after it has joined has the entry of later rounds, too.
#[test]
fn pages_that_come_late_are_not_those_of_a_later_round() {
    const ROUNDS: usize = 4;
    let all = Counter::default();
    let seen = all.clone();
    explore("late pages", Some(2), move || {
        let (p, unit) = behind(2, Counts(Word::new(0)), 1);
        let late = {
            let (p, unit) = (p.clone(), unit.clone());
            on_cpu_1(move || {
                clear(&p, &unit, &Word::new(OLD), (DOMAIN, 1));
            })
        };
        let waited = (0..ROUNDS).filter(|_| {
            let asked = unit.unit().0.load(RELAXED);
            let token = clear(&p, &unit, &Word::new(OLD), (DOMAIN, 0));
            let is_done = (0..4).any(|_| unit.done(token).expect("it does not fail"));
            let since = unit.unit().0.load(RELAXED) - asked;
            assert!(!is_done || since > 0, "P1: done, and not asked for since");
            is_done
        });
        if waited.count() == ROUNDS {
            seen.add();
        }
        late.join().unwrap();
    });
    assert!(all.get() > 0, "must be seen");
}

/// Walks as another agent, when it finds that it was asked for page 1.
struct Apart {
    entries: [Word; PAGES],
    asked: Word,
}

#[allow(unsafe_code)] // a promise
// SAFETY: it never says that anything is done.
unsafe impl Invalidate for Apart {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        self.submit_ranges(domain, scope.pages.as_slice(), scope.caches)
    }
    fn submit_ranges(
        &self,
        _: DomainId,
        ranges: &[IovaRange],
        _: Caches,
    ) -> Result<(), InvalidateError> {
        let is_asked = |range: &IovaRange| range.iter().any(|page| page == IovaPage(1));
        if ranges.iter().any(is_asked) {
            self.asked.store(1, RELAXED);
        }
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(false)
    }
}

/// A unit that is asked by one CPU sees what another one cleared.
#[test]
fn what_another_cpu_cleared_is_fenced_too() {
    let found = Counter::default();
    let seen = found.clone();
    explore("apart", Some(2), move || {
        let apart = Apart {
            entries: core::array::from_fn(|_| Word::new(OLD)),
            asked: Word::new(0),
        };
        let (p, unit) = behind(2, apart, 1);
        let other = {
            let (p, unit) = (p.clone(), unit.clone());
            on_cpu_1(move || {
                clear(&p, &unit, &unit.unit().entries[1], (DOMAIN, 1));
            })
        };
        let walker = {
            let (p, unit, seen) = (p.clone(), unit.clone(), seen.clone());
            loom::thread::spawn(move || {
                let Apart { entries, asked } = unit.unit();
                if asked.load(RELAXED) == 1 {
                    p.fence(Ordering::Acquire);
                    let entry = entries[1].load(RELAXED);
                    assert_eq!(entry, CLEARED, "P1: asked, and walked to what was unmapped");
                    seen.add();
                }
            })
        };
        clear(&p, &unit, &unit.unit().entries[0], (DOMAIN, 0));
        other.join().unwrap();
        walker.join().unwrap();
    });
    assert!(found.get() > 0, "must be seen");
}
