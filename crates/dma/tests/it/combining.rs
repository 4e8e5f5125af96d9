// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Requests that are combined, in front of a unit that is done when it is told to be.

use ioatlas_dma::{invalidation::*, units::*};
use ioatlas_host::{Host, HostConfig};
use std::sync::{Arc, Mutex};

const DOMAIN: DomainId = DomainId(3);

/// What was asked for, and what became of it.
#[derive(Default)]
struct Seen {
    asked: Vec<(Vec<IovaRange>, Caches)>,
    answers: Vec<Option<Result<(), InvalidateError>>>,
    refuses: Option<InvalidateError>,
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Seen>>);

impl Told {
    fn seen<R>(&self, f: impl FnOnce(&mut Seen) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
    fn asked(&self) -> usize {
        self.seen(|seen| seen.asked.len())
    }
    fn nth(&self, nth: usize) -> (Vec<IovaRange>, Caches) {
        self.seen(|seen| seen.asked[nth].clone())
    }
    fn answer(&self, nth: usize, with: Result<(), InvalidateError>) {
        self.seen(|seen| seen.answers[nth] = Some(with));
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: there is no cache; what it says proves something of nothing.
unsafe impl Invalidate for Told {
    type Token = usize;
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<usize, InvalidateError> {
        self.submit_ranges(domain, scope.pages.as_slice(), scope.caches)
    }
    fn submit_ranges(
        &self,
        _: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<usize, InvalidateError> {
        self.seen(|seen| {
            if let Some(why) = seen.refuses {
                return Err(why);
            }
            seen.asked.push((ranges.to_vec(), caches));
            seen.answers.push(None);
            Ok(seen.asked.len() - 1)
        })
    }
    fn done(&self, token: usize) -> Result<bool, InvalidateError> {
        match self.seen(|seen| seen.answers[token]) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(why)) => Err(why),
        }
    }
}

type Unit = Combining<Host, Told>;
type Token = <Unit as Invalidate>::Token;

const TAKE_OVER: u64 = 4;

fn unit(cpus_min: usize) -> (Unit, Told) {
    let host = Arc::new(Host::new(HostConfig {
        frames: 0,
        slots: 8,
    }));
    let told = Told::default();
    let config = CombiningConfig {
        cpus_min,
        take_over: TAKE_OVER,
    };
    (Combining::new(host, told.clone(), config), told)
}

fn pages(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}

fn ask(unit: &Unit, first: u64) -> Token {
    unit.submit(DOMAIN, Scope::leaves(pages(first, 1))).unwrap()
}

fn done(unit: &Unit, token: Token) -> bool {
    unit.done(token).unwrap()
}

#[test]
fn what_comes_while_one_is_under_way_goes_together() {
    let (unit, told) = unit(1);
    let first = ask(&unit, 9);
    assert_eq!(told.nth(0), (vec![pages(9, 1)], Caches::Leaves), "at once");
    let tables = Scope::tables(pages(21, 1));
    let others = [
        ask(&unit, 20),
        unit.submit(DOMAIN, tables).unwrap(),
        ask(&unit, 40),
    ];
    for _ in 0..3 {
        let all = others.iter().chain([&first]);
        assert!(all.into_iter().all(|token| !done(&unit, *token)), "P1");
    }
    assert_eq!(told.asked(), 1, "one is under way");
    told.answer(0, Ok(()));
    assert!(done(&unit, first));
    assert_eq!(told.asked(), 2);
    let together = (vec![pages(20, 2), pages(40, 1)], Caches::LeavesAndWalks);
    assert_eq!(
        told.nth(1),
        together,
        "P1: no page less, and walk caches too"
    );
    assert!(
        others.iter().all(|token| !done(&unit, *token)),
        "P1: the round that is over was submitted before them"
    );
    told.answer(1, Ok(()));
    // once it was said it always is
    for _ in 0..3 {
        assert!(done(&unit, first) && others.iter().all(|token| done(&unit, *token)));
    }
    assert_eq!(told.asked(), 2);
}

#[test]
fn a_round_that_fails_fails_its_own_requests_for_good() {
    let (unit, told) = unit(1);
    let first = ask(&unit, 9);
    let next = ask(&unit, 30);
    let why = InvalidateError::Refused;
    told.answer(0, Err(why));
    assert_eq!(unit.done(first), Err(why), "P10");
    told.answer(1, Ok(()));
    assert!(done(&unit, next), "P10: of another round");
    for nth in 2..300 {
        let token = ask(&unit, 100 + nth);
        told.answer(nth as usize, Ok(()));
        assert!(done(&unit, token), "P11: slots are used again");
        assert!(unit.done(first).is_err(), "P1: it never was done");
    }
    // of a slot in which none ever failed, or where that is known
    let late = ask(&unit, 9);
    told.answer(300, Ok(()));
    assert!(done(&unit, late));
}

#[test]
fn what_the_unit_does_not_take_fails_and_the_next_is_asked_anew() {
    let (unit, told) = unit(1);
    let why = InvalidateError::OutOfService;
    told.seen(|seen| seen.refuses = Some(why));
    let refused = ask(&unit, 9);
    assert_eq!(unit.done(refused), Err(why));
    told.seen(|seen| seen.refuses = None);
    let taken = ask(&unit, 9);
    told.answer(0, Ok(()));
    assert!(done(&unit, taken));
    assert_eq!(unit.done(refused), Err(why), "P1");
}

#[test]
fn a_leader_that_looks_no_more_is_replaced() {
    let (unit, told) = unit(1);
    let _leader = ask(&unit, 9);
    let waits = ask(&unit, 30);
    told.answer(0, Ok(()));
    let mut looks = 0;
    while told.asked() == 1 {
        assert!(!done(&unit, waits), "P1: not asked for yet");
        looks += 1;
        assert!(looks <= TAKE_OVER, "P11: {looks} looks");
    }
    told.answer(1, Ok(()));
    assert!(done(&unit, waits));
}

#[test]
fn requests_that_nobody_waits_for_cost_no_slot() {
    let (unit, told) = unit(1);
    for nth in 0..200 {
        let forgotten = ask(&unit, nth);
        told.answer(told.asked() - 1, Ok(()));
        let token = ask(&unit, 1000 + nth);
        while !done(&unit, token) {
            told.answer(told.asked() - 1, Ok(()));
        }
        assert!(done(&unit, forgotten));
    }
    let (ranges, _) = told.nth(told.asked() - 1);
    assert_eq!(ranges, [pages(1199, 1)]);
}

#[test]
fn what_is_not_combined_goes_to_the_unit_as_it_is() {
    let (unit, told) = unit(1);
    let _under_way = ask(&unit, 9);
    // the domain, several ranges, another domain: each at once
    let whole = unit.submit(DOMAIN, Scope::DOMAIN).unwrap();
    assert_eq!(told.nth(1), (vec![], Caches::LeavesAndWalks));
    let two = [pages(1, 1), pages(5, 2)];
    let ranges = unit.submit_ranges(DOMAIN, &two, Caches::Leaves).unwrap();
    assert_eq!(told.nth(2), (two.to_vec(), Caches::Leaves));
    let scope = Scope::leaves(pages(7, 1));
    let other = unit.submit(DomainId(4), scope).unwrap();
    assert_eq!(told.asked(), 4);
    for (nth, token) in (1..).zip([whole, ranges, other]) {
        assert!(!done(&unit, token));
        told.answer(nth, Ok(()));
        assert!(done(&unit, token), "whatever is under way");
    }
    // one range of a batch is combined
    let one = unit.submit_ranges(DOMAIN, &two[1..], Caches::Leaves);
    assert_eq!(told.asked(), 4);
    // slots run out
    let tokens: Vec<_> = (0..40).map(|nth| ask(&unit, 100 + nth)).collect();
    assert!(told.asked() > 4 && told.asked() < 4 + 40, "P11");
    while !tokens.iter().chain(&one).all(|token| done(&unit, *token)) {
        (0..told.asked()).for_each(|nth| told.answer(nth, Ok(())));
    }
}

#[test]
fn on_few_cpus_nothing_is_combined() {
    let (unit, told) = unit(9);
    let tokens = [ask(&unit, 1), ask(&unit, 2), ask(&unit, 3)];
    assert_eq!(told.asked(), 3);
    told.answer(1, Ok(()));
    assert_eq!(tokens.map(|token| done(&unit, token)), [false, true, false]);
}

/// Threads that flush as `strict` does, and a unit that notes what it is asked.
#[test]
fn threads_share_rounds_and_each_has_its_pages_in_one() {
    const THREADS: u64 = 4;
    const FLUSHES: u64 = 2_000;
    let (unit, told) = unit(1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (unit, told) = (&unit, &told);
            scope.spawn(move || {
                ioatlas_host::register();
                for nth in 0..FLUSHES {
                    let page = (thread << 32) + 2 * nth; // with gaps: nothing merges
                    let before = told.asked();
                    let token = ask(unit, page);
                    while !done(unit, token) {
                        told.seen(|seen| seen.answers.fill(Some(Ok(()))));
                        std::hint::spin_loop();
                    }
                    let asked = told.seen(|seen| {
                        let mut since = seen.asked[before..].iter().flat_map(|(ranges, _)| ranges);
                        since.any(|range| range.contains(&pages(page, 1)))
                    });
                    assert!(asked, "P1: done, and not asked for since");
                }
            });
        }
    });
    let all = told.seen(|seen| {
        let ranges = |(ranges, _): &(Vec<IovaRange>, Caches)| ranges.len();
        seen.asked.iter().map(ranges).sum::<usize>()
    });
    // a round that was left alone is asked for once more, by one range
    assert!(all as u64 >= THREADS * FLUSHES, "P10: {all} ranges");
}
