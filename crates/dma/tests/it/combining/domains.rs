// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Domains that end: the requests of the next one are combined, and no request is of another's.

use super::*;

/// Makes a domain behind `unit`, and ends it.
fn a_domain_comes_and_goes(unit: &Arc<Unit>, told: &Told) {
    told.seen(|seen| seen.at_once = Some(Ok(())));
    domain(unit, PolicyConfig::Strict).close().unwrap();
    told.seen(|seen| seen.at_once = None);
}

#[test]
fn a_domain_that_ends_takes_nothing_from_the_one_that_is_combined() {
    let (unit, told) = unit(1);
    let unit = Arc::new(unit);
    let first = ask(&unit, 9);
    let next = ask(&unit, 30);
    a_domain_comes_and_goes(&unit, &told);
    let asked = told.asked();
    unit.submit(MADE, Scope::leaves(pages(50, 1))).unwrap();
    told.answer(0, Ok(()));
    assert!(done(&unit, first), "P11: answered");
    let last = told.asked() - 1;
    let domain = told.seen(|seen| seen.domains[last]);
    assert_eq!(domain, DOMAIN, "P1: done, and of another domain");
    assert_eq!(told.nth(last).0, [pages(30, 1)]);
    assert_eq!(last, asked + 1, "another's goes straight to the unit");
    told.answer(last, Ok(()));
    assert!(done(&unit, next));
}

#[test]
pub fn the_domain_after_the_one_that_was_combined_is_combined() {
    let (unit, told) = unit(1);
    let unit = Arc::new(unit);
    let one = Scope::leaves(pages(9, 1));
    // two that are never asked for: one is under way when their domain ends, the other is not
    unit.submit(MADE, one).unwrap();
    unit.submit(MADE, one).unwrap();
    a_domain_comes_and_goes(&unit, &told);
    let asked = told.asked();
    told.answer(0, Ok(()));
    let token = ask(&unit, 30);
    assert_eq!(told.asked(), asked, "P11: one is under way");
    while told.asked() == asked {
        assert!(!done(&unit, token), "P1: not asked for yet");
    }
    let domain = told.seen(|seen| seen.domains[asked]);
    assert_eq!(domain, DOMAIN, "P1: done, and of another domain");
    told.answer(asked, Ok(()));
    // the leader is a request that is not asked for
    let looks = (0..TAKE_OVER).take_while(|_| !done(&unit, token)).count();
    assert!(looks < TAKE_OVER as usize, "P11: {looks} looks");
}

/// What goes into a round of its own after its domain has ended names no other domain: a unit need
/// not take an id that it never gave.
#[test]
fn a_request_that_outlives_its_domain_is_of_that_domain() {
    let (unit, told) = unit(1);
    let unit = Arc::new(unit);
    let one = Scope::leaves(pages(9, 1));
    let first = unit.submit(MADE, one).unwrap();
    let late = unit.submit(MADE, one).unwrap();
    a_domain_comes_and_goes(&unit, &told);
    let asked = told.asked();
    told.answer(0, Ok(()));
    assert!(done(&unit, first));
    assert!(!done(&unit, late), "P1: not answered yet");
    assert_eq!(
        told.seen(|seen| seen.domains[asked]),
        MADE,
        "P8: of another"
    );
}
