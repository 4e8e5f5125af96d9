// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Requests that are combined, in front of a unit that is done when it is told to be.

mod domains;
mod months;
mod unattended;

use ioatlas_dma::{
    domain::*,
    invalidation::*,
    iova::MagazineConfig,
    platform::{Authority, Platform},
    table::{TableConfig, TableShape, fmt::VtdSecond48},
    translator::{AttachError, Paged, RemappingUnit},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_sim::platform::{Interrupt, Schedule, Sim, SimConfig, World};
use std::{
    cell::Cell,
    sync::{Arc, Mutex},
};

const DOMAIN: DomainId = DomainId(3);

/// What was asked for, and what became of it.
#[derive(Default)]
struct Seen {
    asked: Vec<(Vec<IovaRange>, Caches)>,
    /// Of which domain, each.
    domains: Vec<DomainId>,
    answers: Vec<Option<Result<(), InvalidateError>>>,
    /// To what is asked next; else it is told later.
    at_once: Option<Result<(), InvalidateError>>,
    refuses: Option<InvalidateError>,
    /// Comes in the middle of the next submission.
    interrupt: Option<Box<dyn FnOnce() + Send>>,
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
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = usize;
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<usize, InvalidateError> {
        self.submit_ranges(domain, scope.pages.as_slice(), scope.caches)
    }
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<usize, InvalidateError> {
        if let Some(interrupt) = self.seen(|seen| seen.interrupt.take()) {
            interrupt();
        }
        self.seen(|seen| {
            if let Some(why) = seen.refuses {
                return Err(why);
            }
            seen.asked.push((ranges.to_vec(), caches));
            seen.domains.push(domain);
            seen.answers.push(seen.at_once);
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

/// The id of every domain that is made.
const MADE: DomainId = DomainId(7);

#[allow(unsafe_code)] // a promise
// SAFETY: no device is there to be attached.
unsafe impl RemappingUnit<Host> for Told {
    fn walks(&self, _: TableShape) -> bool {
        true
    }
    fn platform(&self) -> Option<&Arc<Host>> {
        None
    }
    fn attach(
        &self,
        _: Authority,
        _: &Host,
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
        _: &Host,
        device: SourceId,
        _: DomainId,
    ) -> Result<(), AttachError> {
        Err(AttachError::Unknown { device })
    }
    fn domain_id(&self, _: &Host) -> Option<DomainId> {
        Some(MADE)
    }
    fn release_domain_id(&self, _: Authority, _: &Host, _: DomainId) {}
}

type Unit = Combining<Host, Told>;
type Token = <Unit as Invalidate>::Token;

thread_local! {
    /// The first round of a unit that this thread makes.
    static FIRST: Cell<u64> = const { Cell::new(0) };
}

const TAKE_OVER: u64 = 4;
const RANGES: usize = 8;

fn unit(cpus_min: usize) -> (Unit, Told) {
    let host = Arc::new(Host::new(HostConfig::default().frames(0).slots(8)));
    behind(host, cpus_min)
}

fn behind<P: Platform>(p: Arc<P>, cpus_min: usize) -> (Combining<P, Told>, Told) {
    let told = Told::default();
    let config = CombiningConfig::default()
        .cpus_min(cpus_min)
        .take_over(TAKE_OVER)
        .ranges_max(RANGES);
    let unit = Combining::new(p, told.clone(), config);
    unit.skip_to(FIRST.get());
    (unit, told)
}

fn pages(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}

fn ask<P: Platform>(unit: &Combining<P, Told>, first: u64) -> Token {
    unit.submit(DOMAIN, Scope::leaves(pages(first, 1))).unwrap()
}

fn done<P: Platform>(unit: &Combining<P, Told>, token: Token) -> bool {
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
        let not_yet = all.into_iter().all(|token| !done(&unit, *token));
        assert!(not_yet, "P1: the unit has not answered");
    }
    assert_eq!(told.asked(), 1, "one is under way");
    told.answer(0, Ok(()));
    assert!(done(&unit, first), "P11: answered");
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
    assert_eq!(unit.done(first), Err(why), "P1: it failed");
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
    assert_eq!(unit.done(refused), Err(why), "P1: it was not taken");
    told.seen(|seen| seen.refuses = None);
    let taken = ask(&unit, 9);
    told.answer(0, Ok(()));
    assert!(done(&unit, taken));
    assert_eq!(unit.done(refused), Err(why), "P1: nor later");
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

/// The handler cannot wait for what it interrupts.
#[test]
fn an_interrupt_in_the_submission_of_a_round_submits_all_of_it() {
    let (unit, told) = unit(1);
    let unit = Arc::new(unit);
    let first = ask(&unit, 9);
    let tables = Scope::tables(pages(20, 1));
    let both = [unit.submit(DOMAIN, tables).unwrap(), ask(&unit, 40)];
    told.answer(0, Ok(()));
    let handler = {
        let (unit, told) = (unit.clone(), told.clone());
        move || {
            let nested = ask(&unit, 60);
            let mut looks = 0;
            while !done(&unit, nested) {
                told.seen(|seen| seen.answers.fill(Some(Ok(()))));
                looks += 1;
                assert!(looks <= 3 * TAKE_OVER, "P11: {looks} looks");
            }
            let all = (vec![pages(20, 1), pages(40, 1)], Caches::LeavesAndWalks);
            assert_eq!(told.nth(1), all, "P1: the round that it interrupts");
            let own = (vec![pages(60, 1)], Caches::Leaves);
            assert_eq!(told.nth(2), own, "P1: its own");
        }
    };
    told.seen(|seen| seen.interrupt = Some(Box::new(handler)));
    assert!(done(&unit, first), "P11: answered");
    assert_eq!(told.asked(), 4, "the interrupted submission comes last");
    assert!(both.iter().all(|token| done(&unit, *token)), "P11");
    // and its room is back
    for nth in 4..12 {
        let token = ask(&unit, 9);
        assert_eq!(told.asked(), nth + 1, "P11: no round is under way");
        told.answer(nth, Ok(()));
        assert!(done(&unit, token), "P11");
    }
}

#[test]
fn requests_that_are_given_up_keep_no_round_open() {
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
    let under_way = ask(&unit, 9);
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
    let all = told.asked();
    told.answer(0, Ok(()));
    assert!(done(&unit, under_way));
    told.answer(all, Ok(()));
    assert!(done(&unit, one.unwrap()));
}

#[test]
fn a_round_of_many_requests_is_of_the_whole_domain() {
    for (requests, ranges) in [(RANGES, RANGES), (RANGES + 1, 0), (40, 0)] {
        let (unit, told) = unit(1);
        let first = ask(&unit, 1);
        // with gaps: nothing merges
        let tokens: Vec<_> = (0..requests as u64)
            .map(|nth| ask(&unit, 100 + 2 * nth))
            .collect();
        assert_eq!(told.asked(), 1, "one is under way");
        told.answer(0, Ok(()));
        assert!(done(&unit, first));
        let (asked, caches) = told.nth(1);
        assert_eq!(asked.len(), ranges, "P1: the pages of all, or the domain");
        assert!(ranges > 0 || caches == Caches::LeavesAndWalks, "P1");
        assert!(tokens.iter().all(|token| !done(&unit, *token)), "P1");
        told.answer(1, Ok(()));
        let all = tokens.iter().all(|token| done(&unit, *token));
        assert!(all, "P11: of {requests}");
    }
}

/// What waited for longer than an outage knows soon after it, however rarely it looks then.
#[test]
fn after_an_outage_the_second_look_finds_the_unit_back() {
    let (unit, told) = unit(1);
    let _given_up = ask(&unit, 9);
    let _leads = ask(&unit, 20);
    let waits = ask(&unit, 30);
    for _ in 0..=16 * TAKE_OVER {
        assert!(!done(&unit, waits), "P1: the unit has not answered");
    }
    told.answer(0, Ok(()));
    assert!(!done(&unit, waits), "P1: not asked for yet");
    assert_eq!(told.asked(), 2, "P11: asked for at the first look");
    told.answer(1, Ok(()));
    assert!(done(&unit, waits), "P11: the unit is back");
}

/// What joined it is given up, and nothing asks for the round.
#[test]
fn a_full_round_of_requests_that_are_given_up_ends() {
    const FULL: u64 = 1 << 15;
    let (unit, told) = unit(1);
    for _ in 0..FULL + 2 {
        ask(&unit, 3);
    }
    told.seen(|seen| {
        seen.answers.fill(Some(Ok(())));
        seen.at_once = Some(Ok(()));
    });
    let straight = (0..3).map(|_| ask(&unit, 5));
    let straight: Vec<_> = straight.collect();
    assert!(straight.iter().all(|token| done(&unit, *token)), "P11");
    told.seen(|seen| seen.at_once = None);
    let (one, other) = (ask(&unit, 7), ask(&unit, 9));
    assert!(!done(&unit, one) && !done(&unit, other));
    let (ranges, _) = told.nth(told.asked() - 1);
    assert_eq!(ranges, [pages(7, 1)], "P11: they are combined again");
}

/// One request is stopped when it has made `first` accesses, and again after `second`. At the first
/// stop others come, of which the last waits in a round that has the same entries; at the second,
/// or else when the request is made, it must be asked for, by its page or with the domain. Returns
/// where the second stop was, and whether that was by its page.
fn stopped_twice(first: u64, second: u64) -> Option<(u64, bool)> {
    let (unit, told) = behind(Arc::new(Sim::new(SimConfig::default())), 1);
    let until_done = |token: Token| {
        while !done(&unit, token) {
            told.seen(|seen| seen.answers.fill(Some(Ok(()))));
        }
    };
    let waits = Cell::new(None);
    let others = || {
        until_done(ask(&unit, 20)); // with what was stopped, if that has joined
        let under_way = ask(&unit, 30);
        let next = ask(&unit, 40);
        until_done(under_way);
        waits.set(Some((told.asked(), next, ask(&unit, 50))));
    };
    let by_page = Cell::new(false);
    let end = || {
        if let Some((before, under_way, token)) = waits.take() {
            until_done(under_way);
            until_done(token);
            let all = told.seen(|seen| seen.asked[before..].to_vec());
            let whole = all.iter().any(|(ranges, _)| ranges.is_empty());
            by_page.set(all.iter().any(|(ranges, _)| ranges.contains(&pages(50, 1))));
            assert!(
                whole || by_page.get(),
                "P1: done, and not asked for: {all:?}"
            );
        }
    };
    let interrupt = |at_access, handler| Interrupt {
        cpu: CpuIndex(0),
        at_access,
        handler,
    };
    let schedule = Schedule::Bounded {
        seed: 0,
        preemptions: 0,
    };
    let outcome = World::new(schedule)
        .cpu(|| {
            ask(&unit, 10);
            end();
        })
        .interrupt(interrupt(first, Box::new(others)))
        .interrupt(interrupt(second, Box::new(end)))
        .run();
    let second = outcome.deliveries.get(1)?.cpu_access;
    Some((second, by_page.get()))
}

#[test]
fn pages_that_come_late_are_not_taken_for_those_of_a_later_request() {
    let (mut by_page, mut by_domain) = (0, 0);
    for first in 1.. {
        let mut second = first;
        while let Some((at, page)) = stopped_twice(first, second + 1) {
            second = at;
            match page {
                true => by_page += 1,
                false => by_domain += 1,
            }
        }
        if second == first {
            break;
        }
    }
    println!("by its page {by_page}, with the domain {by_domain}");
    assert!(by_page > 0 && by_domain > 0, "both must be seen");
}

/// Of a unit that does not answer, and requests that are given up.
#[test]
fn what_comes_to_a_full_round_goes_straight_to_the_unit() {
    const FULL: usize = 1 << 15;
    let (unit, told) = unit(1);
    let first = ask(&unit, 1);
    let given_up: Vec<_> = (0..FULL).map(|_| ask(&unit, 3)).collect();
    assert_eq!(told.asked(), 1);
    let _last = ask(&unit, 3);
    let straight = ask(&unit, 5);
    assert_eq!(told.nth(1), (vec![pages(5, 1)], Caches::Leaves));
    told.answer(1, Ok(()));
    assert!(done(&unit, straight), "P11");
    told.answer(0, Ok(()));
    assert!(done(&unit, first), "P11");
    told.answer(2, Ok(()));
    assert!(given_up.iter().all(|token| done(&unit, *token)));
    // and they are combined again
    let (one, other) = (ask(&unit, 7), ask(&unit, 9));
    assert_eq!(told.asked(), 4);
    told.answer(3, Ok(()));
    assert!(done(&unit, one) && !done(&unit, other), "P1");
}

#[test]
fn on_few_cpus_nothing_is_combined() {
    let (unit, told) = unit(9);
    let tokens = [ask(&unit, 1), ask(&unit, 2), ask(&unit, 3)];
    assert_eq!(told.asked(), 3);
    told.answer(1, Ok(()));
    assert_eq!(tokens.map(|token| done(&unit, token)), [false, true, false]);
}

type Dom = Domain<Host, Paged<Host, VtdSecond48, Arc<Unit>>>;

fn domain(unit: &Arc<Unit>, policy: PolicyConfig) -> Dom {
    let host = Arc::new(Host::new(HostConfig::default().frames(8).slots(8)));
    let tables = Paged::new(&host, unit.clone(), TableConfig::default()).unwrap();
    let allocator = AllocatorConfig::Magazine(MagazineConfig::default());
    Domain::new(host, tables, DomainConfig::new(allocator, policy)).unwrap()
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
                    // where a request's pages were not there yet, its round is of the domain
                    let has = |ranges: &Vec<IovaRange>| {
                        let page = pages(page, 1);
                        ranges.is_empty() || ranges.iter().any(|range| range.contains(&page))
                    };
                    let asked = told.seen(|seen| seen.asked[before..].iter().any(|(r, _)| has(r)));
                    assert!(asked, "P1: done, and not asked for since");
                }
            });
        }
    });
    let last = ask(&unit, 1);
    told.answer(told.asked() - 1, Ok(()));
    assert!(done(&unit, last), "P11: no round is under way");
}
