// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A completion that proves nothing completes nothing: the retired thing comes back with the
//! reason.

use crate::suite::rig::Base;
use ioatlas_dma::{invalidation::*, translator::Uncached, units::*};
use ioatlas_host::Host;
use ioatlas_sim::platform::Sim;

macro_rules! on_both_platforms {
    ($($scenario:ident),* $(,)?) => {
        mod host { $( #[test] fn $scenario() { super::$scenario::<super::Host>(); } )* }
        mod sim { $( #[test] fn $scenario() { super::$scenario::<super::Sim>(); } )* }
    };
}

on_both_platforms! {
    a_completion_of_another_domain,
    a_completion_that_began_before_the_unmap,
    a_completion_of_other_pages,
    a_completion_that_left_the_walk_caches_alone,
    one_completion_completes_all_that_it_covers,
}

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(count))
}

/// A sequence for numbers: nothing is ever translated here.
fn sequence<B: Base>(p: &B) -> FlushSequence<B> {
    // SAFETY: a number is in no cache.
    unsafe { FlushSequence::new(p) }
}

fn flush<B: Base>(p: &B, sequence: &FlushSequence<B>, scope: Scope) -> Completion {
    let unit = Uncached::<B>::new();
    let done = sequence.flush(p, &unit, DomainId(1), scope, WaitLimit(1));
    done.expect("a unit without caches")
}

/// The reason, in words that have `numbers`; and the thing, back as it was.
fn unsettled(
    thing: Retired<u32>,
    by: &Completion,
    numbers: &[&str],
) -> (Retired<u32>, CompleteError) {
    let (what, seq, need) = (*thing.get(), thing.seq(), thing.need());
    let Err((back, why)) = thing.complete(by) else {
        panic!("it was completed")
    };
    assert_eq!((*back.get(), back.seq(), back.need()), (what, seq, need));
    let text = why.to_string();
    for number in numbers {
        assert!(text.contains(number), "{text:?} lacks {number:?}");
    }
    (back, why)
}

fn a_completion_of_another_domain<B: Base>() {
    let p = &B::make(0);
    let (ours, theirs) = (sequence(p), sequence(p));
    let thing = ours.retire(p, 7, Scope::leaves(pages(5, 1)));
    // later, and of everything, but theirs
    flush(p, &theirs, Scope::DOMAIN);
    let foreign = flush(p, &theirs, Scope::DOMAIN);
    let (thing, why) = unsettled(thing, &foreign, &["another domain"]);
    assert_eq!(why, CompleteError::ForeignDomain);
    let own = flush(p, &ours, Scope::DOMAIN);
    assert_eq!(*thing.complete(&own).expect("our own").get(), 7);
}

fn a_completion_that_began_before_the_unmap<B: Base>() {
    let p = &B::make(0);
    let (sequence, unit) = (sequence(p), Uncached::<B>::new());
    let before = flush(p, &sequence, Scope::DOMAIN);
    let thing = sequence.retire(p, 7, Scope::leaves(pages(5, 1)));
    let (thing, why) = unsettled(thing, &before, &["number 0", "stamp 1"]);
    let (began, stamp) = (before.seq(), thing.seq());
    assert_eq!(why, CompleteError::Older { began, stamp });

    // begun before another unmap, done after it
    let started = sequence
        .start(p, &unit, DomainId(1), Scope::DOMAIN)
        .expect("submitted");
    let late = sequence.retire(p, 8, Scope::leaves(pages(6, 1)));
    let done = sequence
        .wait(p, &unit, started, WaitLimit(1))
        .expect("done at once");
    assert!(thing.complete(&done).is_ok(), "the first was before it");
    let (late, why) = unsettled(late, &done, &["number 1", "stamp 2"]);
    assert!(matches!(why, CompleteError::Older { .. }));
    assert!(late.complete(&flush(p, &sequence, Scope::DOMAIN)).is_ok());
}

fn a_completion_of_other_pages<B: Base>() {
    let p = &B::make(0);
    let sequence = sequence(p);
    let need = Scope::leaves(pages(5, 3));
    let mut thing = sequence.retire(p, 7, need);
    for (first, count) in [(5, 2), (6, 3), (4, 3), (6, 1), (8, 3), (0, 5)] {
        let covered = Scope::leaves(pages(first, count));
        let done = flush(p, &sequence, covered);
        let why;
        let names = [&*pages(first, count).to_string(), "0x5+3"];
        (thing, why) = unsettled(thing, &done, &names);
        assert_eq!(why, CompleteError::NotCovered { covered, need });
    }
    let exactly = flush(p, &sequence, need);
    assert!(thing.complete(&exactly).is_ok());
    let thing = sequence.retire(p, 8, need);
    let more = flush(p, &sequence, Scope::leaves(pages(4, 5)));
    assert!(thing.complete(&more).is_ok());
    // what needs the whole domain is not completed by any pages
    let thing = sequence.retire(p, 9, Scope::DOMAIN);
    let all_pages = flush(p, &sequence, Scope::tables(pages(0, 1 << 40)));
    let (thing, why) = unsettled(thing, &all_pages, &["the domain"]);
    assert!(matches!(why, CompleteError::NotCovered { .. }));
    assert!(thing.complete(&flush(p, &sequence, Scope::DOMAIN)).is_ok());
}

fn a_completion_that_left_the_walk_caches_alone<B: Base>() {
    let p = &B::make(0);
    let sequence = sequence(p);
    let range = pages(4, 4);
    let thing = sequence.retire(p, 7, Scope::tables(range));
    let leaves = flush(p, &sequence, Scope::leaves(range));
    let (thing, why) = unsettled(thing, &leaves, &["leaves only", "walk caches too"]);
    let (covered, need) = (Scope::leaves(range), Scope::tables(range));
    assert_eq!(why, CompleteError::NotCovered { covered, need });
    let leaves_of_all = Scope {
        pages: None,
        caches: Caches::Leaves,
    };
    let (thing, _) = unsettled(thing, &flush(p, &sequence, leaves_of_all), &[]);
    assert!(thing.complete(&flush(p, &sequence, need)).is_ok());
    // more than is needed is fine
    let leaf = sequence.retire(p, 8, Scope::leaves(range));
    assert!(
        leaf.complete(&flush(p, &sequence, Scope::tables(range)))
            .is_ok()
    );
}

fn one_completion_completes_all_that_it_covers<B: Base>() {
    let p = &B::make(0);
    let sequence = sequence(p);
    let things: Vec<_> = (0..10u32)
        .map(|n| sequence.retire(p, n, Scope::leaves(pages(u64::from(n), 1))))
        .collect();
    let done = flush(p, &sequence, Scope::DOMAIN);
    for (n, thing) in (0..).zip(things) {
        assert_eq!(*thing.complete(&done).expect("covered").get(), n);
    }
    assert_eq!(sequence.started(), 1);
}
