// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! After so many rounds that the bits of their number that are joined have come round.

use super::*;

/// One request, and then many that come while it is under way.
fn one_and_many(unit: &Unit, told: &Told, many: u64) {
    let one = ask(unit, 1);
    let last = told.asked() - 1;
    assert_eq!(
        told.nth(last).0,
        [pages(1, 1)],
        "P11: no wait for its pages"
    );
    let many: Vec<_> = (0..many).map(|nth| ask(unit, 2 * nth)).collect();
    let all_not = || many.iter().all(|token| !done(unit, *token));
    assert!(all_not(), "P1: not asked for yet");
    told.answer(last, Ok(()));
    assert!(done(unit, one), "P11: answered");
    assert!(all_not(), "P1: not answered yet");
    told.answer(last + 1, Ok(()));
    let all = many.iter().all(|token| done(unit, *token));
    assert!(all, "P11: answered");
}

/// 2^46 rounds take months.
const MONTHS: u64 = 1 << 46;

/// Where late requests of a round look nothing was said for long, and their bits of its number have
/// come round.
#[test]
fn months_after_the_last_crowd_all_wait_for_their_own_round() {
    let (unit, told) = unit(1);
    for months in [1, 3, 5, 8, 9, 400] {
        unit.skip_to(months * MONTHS + 100);
        one_and_many(&unit, &told, 60);
    }
}

#[test]
fn pages_of_months_ago_are_written_over() {
    for rounds in [2 * MONTHS + 5, 4 * MONTHS, 6 * MONTHS + 1] {
        let (unit, told) = unit(1);
        one_and_many(&unit, &told, 2);
        unit.skip_to(rounds);
        for many in [2, 3] {
            one_and_many(&unit, &told, many);
            let (ranges, _) = told.nth(told.asked() - 1);
            assert_eq!(ranges.len() as u64, many, "P11: by their pages");
        }
    }
}

#[test]
fn a_round_that_failed_months_ago_has_failed_still() {
    let (unit, told) = unit(1);
    let failed = ask(&unit, 9);
    let why = InvalidateError::Refused;
    told.answer(0, Err(why));
    assert_eq!(unit.done(failed), Err(why));
    for months in [2, 3, 4, 5] {
        unit.skip_to(months * MONTHS);
        one_and_many(&unit, &told, 2);
        assert_eq!(unit.done(failed), Err(why), "P1: {months} later it is done");
    }
}

#[test]
fn months_later_all_is_as_at_first() {
    let tests: [fn(); 12] = [
        what_comes_while_one_is_under_way_goes_together,
        a_round_that_fails_fails_its_own_requests_for_good,
        what_the_unit_does_not_take_fails_and_the_next_is_asked_anew,
        a_leader_that_looks_no_more_is_replaced,
        an_interrupt_in_the_submission_of_a_round_submits_all_of_it,
        requests_that_are_given_up_keep_no_round_open,
        what_is_not_combined_goes_to_the_unit_as_it_is,
        a_round_of_many_requests_is_of_the_whole_domain,
        a_full_round_of_requests_that_are_given_up_ends,
        what_comes_to_a_full_round_goes_straight_to_the_unit,
        domains::the_domain_after_the_one_that_was_combined_is_combined,
        threads_share_rounds_and_each_has_its_pages_in_one,
    ];
    for months in [1, 2, 4] {
        FIRST.set(months * MONTHS - 4);
        tests.iter().for_each(|test| test());
    }
}
