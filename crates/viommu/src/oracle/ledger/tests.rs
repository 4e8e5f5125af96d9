// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Small cases by hand. The verdict in each was thought out, not computed: nothing here asks the
//! ledger what to expect.

mod switched;

use super::{frames::Own, judge::Undecided, *};
use crate::observe::{From, Moment, Outcome};

const PAGE: IovaPage = IovaPage(9);
const A: PhysPage = PhysPage(0x10);
const B: PhysPage = PhysPage(0x20);
const ID: DomainId = DomainId(3);
const NIC: SourceId = SourceId(0x20);
const READ: AccessKind = AccessKind::Read;
const WRITE: AccessKind = AccessKind::Write;
const STRICT: Bounds = Bounds::Strict;
const LAZY: Bounds = Bounds::Unbounded;

fn ledger(bounds: Bounds) -> (Ledger, DomainSerial) {
    let mut ledger = Ledger::new(Box::new(|| TimeNs(0)));
    let domain = ledger.add_domain(ID, bounds, None);
    ledger.attaching(NIC, domain, Stage::Attached);
    (ledger, domain)
}

/// A mapping of the page, for reading: when its map was called and had returned, and its unmap.
fn mapped(to: PhysPage, map: (Event, Event), unmap: Option<(Event, Option<Event>)>) -> Record {
    Record {
        to,
        perm: Perm::Read,
        whose: Whose::Theirs,
        map_called: map.0,
        map_returned: map.1,
        unmap_called: unmap.map(|(called, _)| called),
        unmap_returned: unmap.and_then(|(_, returned)| returned),
    }
}

/// A map to `A` for reading that failed.
fn failed(called: Event, returned: Event) -> FailedMap {
    FailedMap {
        called,
        returned,
        pages: Some(vec![A]),
        perm: Perm::Read,
    }
}

/// What the ledger knows of the page, and a read of it that reaches `A`.
struct Case {
    records: Vec<Record>,
    failed: Option<FailedMap>,
    /// When a map was called that is still in its call.
    coming: Option<Event>,
    /// Which pages mappings may share.
    shared: Option<(u64, u64)>,
    /// When the access began and ended.
    access: (Event, Event),
    /// When the latest complete flush of the domain had begun.
    flushed: Event,
}

impl Case {
    fn of(records: Vec<Record>, access: (Event, Event)) -> Self {
        Case {
            records,
            failed: None,
            coming: None,
            shared: None,
            access,
            flushed: 0,
        }
    }
    fn shared(self) -> Self {
        self.shared_from(PAGE.0, 1)
    }
    fn shared_from(mut self, first: u64, pages: u64) -> Self {
        self.shared = Some((first, pages));
        self
    }
    fn failed(mut self, called: Event, returned: Event) -> Self {
        self.failed = Some(failed(called, returned));
        self
    }
    fn coming(mut self, called: Event) -> Self {
        self.coming = Some(called);
        self
    }
    fn flushed(mut self, began: Event) -> Self {
        self.flushed = began;
        self
    }
    fn verdict(self, bounds: Bounds) -> &'static str {
        let (mut ledger, domain) = ledger(bounds);
        let space = &mut ledger.spaces[domain.0];
        space.flushed = self.flushed;
        space.pages.insert(PAGE, self.records);
        space.failed_maps.extend(self.failed);
        let read = || Coming {
            perm: Perm::Read,
            list: vec![],
        };
        let coming = self.coming.into_iter().map(|called| (called, read()));
        space.maps_in_progress.extend(coming);
        let range = |(first, pages)| IovaRange::new(IovaPage(first), PageCount(pages));
        space.shared = self.shared.map(range);
        ledger.undecided.push(Undecided {
            domain,
            page: PAGE,
            kind: READ,
            to: A,
            began: self.access.0,
            ended: self.access.1,
            flushed: self.flushed,
            strictness: Default::default(),
            own: Own::No,
        });
        ledger.decide();
        verdict(&ledger)
    }
}

fn verdict(ledger: &Ledger) -> &'static str {
    let violations = &ledger.seen.violations[..];
    match (violations, ledger.undecided.len(), ledger.seen.stale) {
        ([], 0, 0) => "fine",
        ([], 0, 1) => "stale",
        ([], 1, 0) => "waits",
        ([one], 0, 0) => match one.property {
            Property::P1 => "P1",
            Property::P2 => "P2",
            Property::P5 => "P5",
            Property::P6 => "P6",
            Property::P9 => "P9",
            _ => "another property",
        },
        _ => "more than one verdict",
    }
}

/// The verdict under a strict policy, and under one that defers.
fn both(case: impl Fn() -> Case) -> [&'static str; 2] {
    [case().verdict(STRICT), case().verdict(LAZY)]
}

/// No two events have one instant, so of two that have none comes first.
#[test]
fn one_mapping_at_a_time() {
    let live = || vec![mapped(A, (10, 12), None)];
    let going = || vec![mapped(A, (10, 12), Some((20, None)))];
    let ended = || vec![mapped(A, (10, 12), Some((20, Some(24))))];
    for (what, records, access, expected) in [
        ("unmapped", vec![], (1, 2), ["P9", "P9"]),
        ("before map", live(), (8, 9), ["P9", "P9"]),
        ("until map", live(), (8, 10), ["P9", "P9"]),
        ("in map", live(), (8, 11), ["fine", "fine"]),
        ("after map", live(), (8, 30), ["fine", "fine"]),
        ("in unmap", going(), (21, 30), ["fine", "fine"]),
        ("within unmap", ended(), (15, 23), ["fine", "fine"]),
        ("until its return", ended(), (15, 24), ["fine", "fine"]),
        ("across its return", ended(), (23, 25), ["P5", "stale"]),
        ("from its return", ended(), (24, 25), ["P1", "stale"]),
        ("after it", ended(), (25, 26), ["P1", "stale"]),
    ] {
        let case = || Case::of(records.clone(), access);
        assert_eq!(both(case), expected, "{what}");
    }
}

#[test]
fn a_flush_after_the_unmap() {
    let ended = || vec![mapped(A, (10, 12), Some((20, Some(24))))];
    for (began, expected) in [(23, "stale"), (24, "stale"), (25, "P2")] {
        let case = Case::of(ended(), (30, 31)).flushed(began);
        assert_eq!(case.verdict(LAZY), expected, "the flush began at {began}");
    }
}

#[test]
fn mapped_anew_to_another_page() {
    let anew = |returned| {
        let old = mapped(A, (10, 12), Some((20, Some(24))));
        vec![old, mapped(B, (28, returned), None)]
    };
    for (returned, expected) in [
        (39, ["P9", "P9"]),
        (40, ["P1", "stale"]),
        (41, ["P1", "stale"]),
    ] {
        let case = || Case::of(anew(returned), (40, 42));
        assert_eq!(both(case), expected, "map returned at {returned}");
    }
}

#[test]
fn mappings_that_share_a_page() {
    let two = |first: Option<Event>, second: Option<Event>| {
        let unmap = |returned: Option<Event>| returned.map(|at| (at - 4, Some(at)));
        vec![
            mapped(A, (10, 12), unmap(first)),
            mapped(A, (14, 16), unmap(second)),
        ]
    };
    let one = || vec![mapped(A, (10, 12), None)];
    let last = || two(Some(28), Some(24));
    for (what, records, access, expected) in [
        ("both live", two(None, None), (30, 31), ["fine", "fine"]),
        ("one lives", two(None, Some(24)), (30, 31), ["fine", "fine"]),
        ("another", two(Some(24), None), (30, 31), ["fine", "fine"]),
        ("between unmaps", last(), (25, 27), ["fine", "fine"]),
        ("until the last", last(), (25, 28), ["fine", "fine"]),
        ("across the last", last(), (27, 29), ["P5", "stale"]),
        ("from the last", last(), (28, 29), ["P1", "stale"]),
        ("after the last", last(), (30, 31), ["P1", "stale"]),
        ("until a map", one(), (8, 10), ["P9", "P9"]),
        ("in a map", one(), (8, 11), ["fine", "fine"]),
    ] {
        let case = || Case::of(records.clone(), access).shared();
        assert_eq!(both(case), expected, "{what}");
    }
    let write_only = Record {
        perm: Perm::Write,
        ..mapped(A, (10, 12), None)
    };
    let case = || Case::of(vec![write_only], (20, 21)).shared();
    assert_eq!(both(case), ["P6", "P6"]);
}

#[test]
fn what_touches_the_shared_pages_is_not_shared() {
    // the older lives, which counts where the page is shared only
    let newer = mapped(A, (14, 16), Some((20, Some(24))));
    let records = || vec![mapped(A, (10, 12), None), newer];
    for (first, pages, expected) in [
        (PAGE.0, 1, "fine"),
        (PAGE.0 - 4, 5, "fine"),
        (PAGE.0 - 4, 4, "P1"),
        (PAGE.0 + 1, 4, "P1"),
    ] {
        let case = Case::of(records(), (30, 31)).shared_from(first, pages);
        assert_eq!(case.verdict(STRICT), expected, "{pages} from {first}");
    }
}

#[test]
fn a_map_that_failed_or_is_in_its_call() {
    for (what, access, expected) in [
        ("until its call", (1, 10), ["P9", "P9"]),
        ("in its call", (1, 11), ["fine", "fine"]),
        ("until its return", (1, 12), ["P5", "stale"]),
        ("across its return", (11, 13), ["P5", "stale"]),
        ("from its return", (12, 13), ["P1", "stale"]),
        ("after it", (20, 21), ["P1", "stale"]),
    ] {
        let case = || Case::of(vec![], access).failed(10, 12);
        assert_eq!(both(case), expected, "{what}");
    }
    for (began, expected) in [(11, "stale"), (12, "P9"), (13, "P9")] {
        let case = Case::of(vec![], (20, 21)).failed(10, 12).flushed(began);
        assert_eq!(case.verdict(LAZY), expected, "the flush began at {began}");
    }
    for (called, expected) in [(19, "waits"), (20, "waits"), (21, "P9"), (22, "P9")] {
        let case = || Case::of(vec![], (20, 21)).coming(called);
        assert_eq!(both(case), [expected; 2], "a map was called at {called}");
    }
}

/// An access is under way or not, a flush came or not; then another map fails:
/// is the first remembered?
#[test]
fn failed_maps_are_forgotten_when_they_explain_nothing_more() {
    for (bounds, oldest, flushed, kept) in [
        // the first one returned at 50
        (STRICT, Some(49), 0, true),
        (STRICT, Some(50), 0, true),
        (STRICT, Some(51), 0, false),
        (STRICT, None, 0, false),
        (STRICT, None, 60, false),
        (LAZY, None, 49, true),
        (LAZY, None, 50, true),
        (LAZY, None, 51, false),
        (LAZY, Some(51), 51, false),
        (LAZY, Some(51), 50, true),
        (LAZY, Some(50), 51, true),
    ] {
        let (mut ledger, domain) = ledger(bounds);
        let space = &mut ledger.spaces[domain.0];
        space.flushed = flushed;
        space.failed_maps.push(failed(40, 50));
        ledger.events = 100;
        if let Some(began) = oldest {
            let attached = None;
            ledger
                .accesses
                .insert(AccessId(1), InFlight { began, attached });
        }
        let called = ledger.map_called(domain, Perm::Read, &[]);
        ledger.map_failed(domain, called, Some(vec![B]), Perm::Read);
        let failed = &ledger.spaces[domain.0].failed_maps;
        let returned: Vec<_> = failed.iter().map(|failed| failed.returned).collect();
        let expected = if kept { vec![50, 102] } else { vec![102] };
        assert_eq!(returned, expected, "{bounds:?}, {oldest:?}, {flushed}");
    }
}

/// The same as accesses see it: maps that fail one after the other, while one is
/// under way and after.
#[test]
fn accesses_beside_maps_that_fail() {
    let fails = |ledger: &mut Ledger, domain, to| {
        let called = ledger.map_called(domain, Perm::Read, &[]);
        ledger.map_failed(domain, called, Some(vec![to]), Perm::Read);
    };
    for (bounds, early, late) in [(STRICT, "P5", "P9"), (LAZY, "stale", "stale")] {
        // one that began before both
        let (mut ledger, domain) = ledger(bounds);
        ledger.access_began(AccessId(1), NIC);
        fails(&mut ledger, domain, A);
        fails(&mut ledger, domain, B);
        reaches(&mut ledger, 1, A, READ);
        assert_eq!(verdict(&ledger), early);
        // and one that began after both
        let (mut ledger, domain) = self::ledger(bounds);
        fails(&mut ledger, domain, A);
        fails(&mut ledger, domain, B);
        ledger.access_began(AccessId(1), NIC);
        reaches(&mut ledger, 1, A, READ);
        assert_eq!(verdict(&ledger), late);
    }
}

/// The access ends: the NIC has reached `to` at the page.
fn reaches(ledger: &mut Ledger, id: u64, to: PhysPage, kind: AccessKind) {
    let access = Access {
        id: AccessId(id),
        source: NIC,
        page: PAGE,
        kind,
        outcome: Outcome::Translated {
            page: to,
            domain: ID,
            perm: Perm::ReadWrite,
            leaf: PageCount(1),
        },
        from: From::Walk,
        reads: 0,
        began: Moment(0),
        ended: Moment(0),
    };
    ledger.access_succeeded(&access, ID, to, PageCount(1));
}

#[test]
fn an_invalidation_of_pages_is_one_of_those_alone() {
    for (first, pages, expected) in [
        (PAGE.0, 1, None),
        (PAGE.0 - 3, 4, None),
        (PAGE.0, 4, None),
        // they touch the page on either side
        (PAGE.0 - 3, 3, Some(Property::P3)),
        (PAGE.0 + 1, 3, Some(Property::P3)),
    ] {
        let (mut ledger, domain) = ledger(STRICT);
        let map = |ledger: &mut Ledger, to| {
            let called = ledger.map_called(domain, Perm::Read, &[]);
            ledger.map_returned(domain, called, PAGE, [to].into_iter(), Perm::Read);
        };
        map(&mut ledger, A);
        let page = IovaRange::new(PAGE, PageCount(1));
        let called = ledger.unmap_called(domain, page);
        let range = IovaRange::new(IovaPage(first), PageCount(pages));
        ledger.invalidation_began(InvalidationId(1), Selection::Pages(ID, range));
        ledger.invalidation_completed(InvalidationId(1));
        ledger.unmap_returned(domain, page, called);
        map(&mut ledger, B);
        let properties: Vec<_> = ledger.seen.violations.iter().map(|v| v.property).collect();
        assert_eq!(
            properties,
            Vec::from_iter(expected),
            "{pages} pages from {first}"
        );
    }
}

/// A pool's slot, its page and its frame, which had a user whose device only wrote.
struct Slot {
    ledger: Ledger,
    domain: DomainSerial,
}

impl Slot {
    fn new(slots: Slots) -> Self {
        let (mut ledger, domain) = ledger(STRICT);
        ledger.bounces(domain, slots);
        ledger.frame_allocated(A, &Default::default());
        let mut slot = Slot { ledger, domain };
        slot.user(Perm::Write);
        slot
    }
    fn mapped(&mut self, perm: Perm) {
        let called = self.ledger.map_called(self.domain, perm, &[]);
        let page = [(PAGE, A, Whose::Own)].into_iter();
        self.ledger.map_returned_of(self.domain, called, page, perm);
    }
    fn unmapping(&mut self) -> Event {
        let page = IovaRange::new(PAGE, PageCount(1));
        self.ledger.unmap_called(self.domain, page)
    }
    fn unmapped(&mut self, called: Event) {
        let page = IovaRange::new(PAGE, PageCount(1));
        self.ledger.unmap_returned(self.domain, page, called);
    }
    /// A user that comes and goes.
    fn user(&mut self, perm: Perm) {
        self.mapped(perm);
        let called = self.unmapping();
        self.unmapped(called);
    }
    /// A map that fails, whatever it took and gave back.
    fn fails(&mut self, perm: Perm) {
        let called = self.ledger.map_called(self.domain, perm, &[]);
        self.ledger
            .map_failed(self.domain, called, Some(vec![]), perm);
    }
    fn flush(&mut self) {
        let id = InvalidationId(1);
        self.ledger.invalidation_began(id, Selection::Domain(ID));
        self.ledger.invalidation_completed(id);
    }
    fn access(&mut self, kind: AccessKind) -> &'static str {
        self.ledger.access_began(AccessId(1), NIC);
        reaches(&mut self.ledger, 1, A, kind);
        let verdict = verdict(&self.ledger);
        self.ledger.seen.violations.clear();
        verdict
    }
}

type Step = fn(&mut Slot);

#[test]
fn a_kept_slot_is_as_its_last_user_had_it() {
    let read_map: Step = |slot| {
        slot.ledger.map_called(slot.domain, Perm::Read, &[]);
    };
    let write_map: Step = |slot| {
        slot.ledger.map_called(slot.domain, Perm::Write, &[]);
    };
    let flush: Step = Slot::flush;
    let next: Step = |slot| slot.user(Perm::Read);
    let anew: Step = |slot| {
        slot.ledger.frame_freed(A, &Default::default());
        slot.ledger.frame_allocated(A, &Default::default());
    };
    // a user whose unmap was called, and whose slot another one had meanwhile, for reading
    let overtaken: Step = |slot| {
        slot.mapped(Perm::Write);
        let late = slot.unmapping();
        slot.flush();
        slot.user(Perm::Read);
        slot.unmapped(late);
    };
    let fails: Step = |slot| slot.fails(Perm::Read);
    for (what, steps, read, write) in [
        ("as it was", vec![], "P6", "fine"),
        ("flushed", vec![flush], "P6", "fine"),
        ("a map, no flush", vec![read_map], "P6", "fine"),
        ("another map", vec![flush, write_map], "P6", "fine"),
        ("converted", vec![read_map, flush], "fine", "fine"),
        ("in vain", vec![flush, fails], "fine", "fine"),
        ("for the next", vec![flush, next], "fine", "P6"),
        ("overtaken", vec![overtaken], "fine", "P6"),
        ("another slot", vec![anew], "fine", "fine"),
    ] {
        for (kind, expected) in [(READ, read), (WRITE, write)] {
            let mut slot = Slot::new(Slots::AsUsed);
            steps.iter().for_each(|step| step(&mut slot));
            // a map still in its call might explain what is wrong
            let seen = match slot.access(kind) {
                "waits" => {
                    let coming = slot.ledger.spaces[0].maps_in_progress.clone();
                    for (called, map) in coming {
                        let pages = Some(vec![]);
                        slot.ledger.map_failed(slot.domain, called, pages, map.perm);
                    }
                    verdict(&slot.ledger)
                }
                verdict => verdict,
            };
            assert_eq!(seen, expected, "{what}: {kind:?}");
        }
    }
}

#[test]
fn an_access_is_judged_by_what_its_slot_was_while_it_lasted() {
    // begun while the slot was kept for writing; it ends after a user that let its device read
    for (kind, expected) in [(READ, "fine"), (WRITE, "fine")] {
        let mut slot = Slot::new(Slots::AsUsed);
        slot.ledger.access_began(AccessId(1), NIC);
        slot.flush();
        slot.user(Perm::Read);
        reaches(&mut slot.ledger, 1, A, kind);
        assert_eq!(verdict(&slot.ledger), expected, "{kind:?}");
        // one that begins now
        assert_eq!(slot.access(WRITE), "P6", "after {kind:?}");
    }
}

#[test]
fn a_slot_with_a_user_is_as_that_one_has_it() {
    for (slots, read) in [(Slots::AsUsed, "P6"), (Slots::BothWays, "fine")] {
        let mut slot = Slot::new(slots);
        assert_eq!(slot.access(READ), read, "kept");
        slot.mapped(Perm::Write);
        assert_eq!(slot.access(READ), read, "mapped");
        assert_eq!(slot.access(WRITE), "fine", "mapped");
    }
}

#[test]
fn a_slot_that_was_freed_within_an_unmap_is_the_next_ones() {
    let mut slot = Slot::new(Slots::AsUsed);
    slot.flush();
    slot.mapped(Perm::Read);
    let called = slot.unmapping();
    // what only this user had is freed in its call, and allocated for one that writes
    slot.ledger.frame_freed(A, &Default::default());
    slot.ledger.frame_allocated(A, &Default::default());
    // and of one that came and went, before the first unmap has returned
    slot.user(Perm::Write);
    assert_eq!(slot.access(WRITE), "fine");
    assert_eq!(slot.access(READ), "P6");
    slot.unmapped(called);
    assert_eq!(slot.access(WRITE), "fine");
}

/// A typed buffer's frame comes back as a bounce buffer's, at a page that the typed buffer had, or
/// that a map of it may have tried.
#[test]
fn what_a_frame_was_before_it_was_allocated_does_not_count() {
    let tried: Step = |slot| {
        let called = slot.ledger.map_called(slot.domain, Perm::Read, &[]);
        let pages = Some(vec![A]);
        slot.ledger
            .map_failed(slot.domain, called, pages, Perm::Read);
    };
    let had: Step = |slot| {
        let called = slot.ledger.map_called(slot.domain, Perm::Read, &[]);
        let pages = [A].into_iter();
        slot.ledger
            .map_returned(slot.domain, called, PAGE, pages, Perm::Read);
        let called = slot.unmapping();
        slot.flush();
        slot.unmapped(called);
    };
    for (what, before) in [("tried", tried), ("had", had)] {
        let mut slot = Slot::new(Slots::BothWays);
        slot.ledger.frame_freed(A, &Default::default());
        slot.ledger.frame_allocated(A, &Default::default());
        slot.ledger.buffer_made(A);
        // one that lasts: nothing is forgotten meanwhile
        slot.ledger.access_began(AccessId(2), NIC);
        before(&mut slot);
        // as long as it is the typed buffer's, that has no page now
        assert_eq!(slot.access(READ), "P1", "{what}");
        slot.ledger.frame_freed(A, &Default::default());
        slot.ledger.frame_allocated(A, &Default::default());
        slot.user(Perm::Read);
        assert_eq!(slot.access(READ), "fine", "{what}");
    }
}

/// A map of memory whose frames are not known fails while another gets a bounce buffer.
#[test]
fn a_bounce_buffer_is_not_what_an_unknown_map_failed_to_get() {
    let mut slot = Slot::new(Slots::BothWays);
    let called = slot.ledger.map_called(slot.domain, Perm::Read, &[]);
    slot.ledger.frame_freed(A, &Default::default());
    slot.ledger.frame_allocated(A, &Default::default());
    slot.user(Perm::Read);
    slot.ledger
        .map_failed(slot.domain, called, None, Perm::Read);
    assert_eq!(slot.access(READ), "fine");
}

/// A page's unmap is the last but one of a batch of three; then as many unmaps return as would fill
/// the next batch, and none of them flushes.
#[test]
fn a_window_is_longer_while_others_may_be_held_up() {
    let bounds = Bounds::Deferred {
        unmaps: 1,
        overlapping: 2,
        time: Deadline::Open,
    };
    let range = |nth| IovaRange::new(IovaPage(PAGE.0 + nth), PageCount(1));
    type During = fn(&mut Ledger, DomainSerial);
    let nothing: During = |_, _| ();
    let tick: During = |ledger, domain| ledger.retiring(domain);
    let tick_before: During = |ledger, domain| {
        ledger.retiring(domain);
        ledger.retired(domain);
    };
    let map: During = |ledger, domain| {
        ledger.map_called(domain, Perm::Read, &[]);
    };
    for (what, during, expected) in [
        ("nothing", nothing, Some(Property::P2)),
        ("a tick that returns", tick_before, Some(Property::P2)),
        ("a tick", tick, None),
        ("a map", map, None),
    ] {
        let (mut ledger, domain) = ledger(bounds);
        for nth in 0..3 {
            let called = ledger.map_called(domain, Perm::Read, &[]);
            let first = range(nth).first;
            ledger.map_returned(domain, called, first, [A].into_iter(), Perm::Read);
        }
        for nth in 0..3 {
            if nth == 1 {
                during(&mut ledger, domain);
            }
            let called = ledger.unmap_called(domain, range(nth));
            ledger.unmap_returned(domain, range(nth), called);
        }
        ledger.invalidation_began(InvalidationId(1), Selection::Domain(ID));
        ledger.invalidation_completed(InvalidationId(1));
        let seen = ledger.seen.violations.first().map(|v| v.property);
        assert_eq!(seen, expected, "{what}");
    }
}
