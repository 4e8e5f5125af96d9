// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Costs that are made up, and what is learned from them.

use super::*;
use crate::platform::one_cpu::OneCpu;

/// Runs `ops` operations whose routes take so long; returns how many took each route.
fn run(
    model: &CostModel<OneCpu>,
    p: &OneCpu,
    ops: u64,
    mut cost: impl FnMut(u64, Route) -> u64,
) -> [u64; 2] {
    let mut took = [0, 0];
    for nth in 0..ops {
        let advice = model
            .advise(p, ByteCount(4096), Direction::ToDevice)
            .unwrap();
        took[advice.route as usize] += 1;
        let time = cost(nth, advice.route);
        if let Some(cell) = advice.timed {
            model.note(cell, advice.route, time);
        }
    }
    took
}

/// Runs `ops` operations; of those mapped directly, which `direct` counts, one in 250 pays for all.
/// Returns how long they took, looks and all.
fn run_in_batches(model: &CostModel<OneCpu>, p: &OneCpu, ops: u64, direct: &mut u64) -> u64 {
    let mut spent = 0;
    run(model, p, ops, |_, route| {
        *direct += u64::from(route == Route::Direct);
        let time = match route {
            Route::Direct if direct.is_multiple_of(250) => 25_040,
            Route::Direct => 40,
            Route::Bounce => 90,
        };
        spent += time;
        time
    });
    spent
}

fn fresh() -> (OneCpu, CostModel<OneCpu>) {
    let p = OneCpu::new(0);
    let model = CostModel::new(&p);
    (p, model)
}

#[test]
fn the_cheaper_route_is_found_within_a_thousand_operations_and_kept() {
    for (direct, bounce) in [(100, 900), (900, 100), (100, 104), (104, 100), (50, 20_000)] {
        let (p, model) = fresh();
        let cost = |_, route| match route {
            Route::Direct => direct,
            Route::Bounce => bounce,
        };
        run(&model, &p, 999, cost);
        let learned = model.learned()[0];
        let better = if direct < bounce {
            Route::Direct
        } else {
            Route::Bounce
        };
        assert_eq!(learned.settled, Some(better), "{learned:?}");
        let ops = 1_000_000;
        let took = run(&model, &p, ops, cost);
        let spent = took[0] * direct + took[1] * bounce;
        let best = ops * direct.min(bounce);
        assert!(spent * 100 <= best * 103, "{spent} of {best}: {took:?}");
    }
}

/// A driver that maps a header and a payload in turn, or several of each: each route is measured on
/// both kinds.
#[test]
fn what_comes_in_turn_is_measured_on_both_routes() {
    for each in [1, 2, 4, 8] {
        let (p, model) = fresh();
        // copying is cheaper for both kinds, and dearer for payloads than mapping is for headers
        let cost = |nth: u64, route| match ((nth / each).is_multiple_of(2), route) {
            (true, Route::Direct) => 100,
            (true, Route::Bounce) => 50,
            (false, Route::Direct) => 900,
            (false, Route::Bounce) => 550,
        };
        run(&model, &p, 999, cost);
        let learned = model.learned()[0];
        assert_eq!(learned.settled, Some(Route::Bounce), "{each}: {learned:?}");
        let direct = learned.direct_ns.abs_diff(500);
        assert!(direct < 100, "{each}: 500 is the mean of {learned:?}");
    }
}

#[test]
fn what_is_made_once_does_not_count() {
    let (p, model) = fresh();
    let cost = |nth, route| match route {
        Route::Direct => 200,
        Route::Bounce if nth < 128 => 5_000,
        Route::Bounce => 150,
    };
    run(&model, &p, 600, cost);
    assert_eq!(model.learned()[0].settled, Some(Route::Bounce));
}

#[test]
fn what_is_paid_for_once_in_250_counts() {
    let (p, model) = fresh();
    // 40 most of the time, and 25,040 once in 250: 140 on average
    run(&model, &p, 999, |nth, route| match route {
        Route::Direct if nth / 2 % 250 == 0 => 25_040,
        Route::Direct => 40,
        Route::Bounce => 90,
    });
    assert_eq!(model.learned()[0].settled, Some(Route::Bounce));
}

#[test]
fn what_is_paid_for_once_in_250_counts_in_short_looks_too() {
    let (p, model) = fresh();
    let ops = 1_000_000;
    let spent = run_in_batches(&model, &p, ops, &mut 0);
    assert!(spent * 100 <= ops * 90 * 105, "{spent} of {}", ops * 90);
}

#[test]
fn it_learns_anew_when_its_route_becomes_dear_and_when_the_other_becomes_cheap() {
    let (p, model) = fresh();
    run(&model, &p, 1000, |_, route| {
        if route == Route::Direct { 100 } else { 300 }
    });
    assert_eq!(model.learned()[0].settled, Some(Route::Direct));
    run(&model, &p, 10_000, |_, route| {
        if route == Route::Direct { 900 } else { 300 }
    });
    assert_eq!(model.learned()[0].settled, Some(Route::Bounce));
    run(&model, &p, 200_000, |_, route| {
        if route == Route::Direct { 100 } else { 300 }
    });
    assert_eq!(model.learned()[0].settled, Some(Route::Direct));
}

#[test]
fn a_batch_anywhere_in_250_counts_in_the_end() {
    for at in (0..250).step_by(7) {
        let (p, model) = fresh();
        let mut direct = at;
        run_in_batches(&model, &p, 200_000, &mut direct);
        let spent = run_in_batches(&model, &p, 100_000, &mut direct);
        assert!(spent / 100_000 <= 96, "{at}: {:?}", model.learned());
    }
}

#[test]
fn short_interruptions_change_nothing() {
    // of 0.1 to 0.9 ms, one in so many operations, on whichever route they fall
    for (pairs, each) in [
        (&[(24_000, 8_000), (3_000, 12_000)][..], [170, 331, 504]),
        (&[(8_000, 10_000), (23_000, 20_000)], [1_700, 3_310, 5_040]),
    ] {
        for (every, (direct, bounce)) in each.iter().zip(pairs.iter().cycle()) {
            let (every, direct, bounce) = (*every, *direct, *bounce);
            let (p, model) = fresh();
            let mut lost = 0u64;
            let cost = |nth: u64, route| {
                let usual = match route {
                    Route::Direct => direct,
                    Route::Bounce => bounce,
                };
                match nth % every {
                    7 => usual + 100_000 + nth * 7_919 % 800_000,
                    _ => usual,
                }
            };
            let better = match direct < bounce {
                true => Route::Direct,
                false => Route::Bounce,
            };
            run(&model, &p, 999, cost);
            let found = model.learned()[0];
            assert_eq!(found.settled, Some(better), "{every}: {found:?}");
            for _ in 0..100 {
                run(&model, &p, 1_000, cost);
                lost += u64::from(model.learned()[0].settled != Some(better));
            }
            assert_eq!(lost, 0, "{every}, {direct}, {bounce}");
        }
    }
}

#[test]
fn a_first_use_and_one_interruption_are_no_two_batches() {
    let (p, model) = fresh();
    run(&model, &p, 999, |nth, route| match route {
        Route::Direct => 200,
        Route::Bounce if nth == 1 => 6_000,
        Route::Bounce if nth == 301 => 500_000,
        Route::Bounce => 100,
    });
    let learned = model.learned()[0];
    assert_eq!(learned.settled, Some(Route::Bounce), "{learned:?}");
}

#[test]
fn what_is_suddenly_a_hundred_times_as_dear_is_learned_anew() {
    let (p, model) = fresh();
    let cheap = |_, route| if route == Route::Direct { 100 } else { 300 };
    run(&model, &p, 999, cheap);
    assert_eq!(model.learned()[0].settled, Some(Route::Direct));
    let dear = |_, route| if route == Route::Direct { 10_000 } else { 300 };
    run(&model, &p, 2_000, dear);
    assert_eq!(model.learned()[0].settled, Some(Route::Bounce));
}

#[test]
fn a_lost_time_slice_is_not_counted() {
    let (p, model) = fresh();
    run(&model, &p, 999, |nth, route| match route {
        Route::Bounce if nth % 100 == 1 => 4_000_000,
        Route::Bounce => 100,
        Route::Direct => 200,
    });
    assert_eq!(model.learned()[0].settled, Some(Route::Bounce));
}

#[test]
fn a_route_on_which_all_is_too_long_to_be_looked_at_is_left() {
    let cheap = |_, route| if route == Route::Direct { 100 } else { 300 };
    let hangs = |_, route| {
        if route == Route::Direct {
            5_000_000
        } else {
            300
        }
    };
    // from the beginning, and from one time on
    for before in [0, 999] {
        let (p, model) = fresh();
        run(&model, &p, before, cheap);
        run(&model, &p, 2_000, hangs);
        let learned = model.learned()[0];
        assert_eq!(learned.settled, Some(Route::Bounce), "{learned:?}");
    }
}

#[test]
fn operations_that_take_long_because_they_are_large_are_learned() {
    let (p, model) = fresh();
    let largest = ByteCount(256 * GRANULE);
    for _ in 0..999 {
        let advice = model.advise(&p, largest, Direction::FromDevice).unwrap();
        // 256 pages, 10 us each; and a copy
        let took = match advice.route {
            Route::Direct => 2_560_000,
            Route::Bounce => 130_000,
        };
        if let Some(cell) = advice.timed {
            model.note(cell, advice.route, took);
        }
    }
    assert_eq!(model.learned()[0].settled, Some(Route::Bounce));
}

#[test]
fn what_is_larger_than_any_cell_gets_no_advice() {
    let (p, model) = fresh();
    let advise = |len| model.advise(&p, ByteCount(len), Direction::FromDevice);
    assert!(advise(1 << 20).is_some() && advise((1 << 20) + 1).is_none());
    assert!(advise(1 << 52).is_none());
}

#[test]
fn a_route_that_is_far_cheaper_still_is_not_learned_anew() {
    let (p, model) = fresh();
    // copies are cheap while every second operation copies, and dearer later
    let learns = || {
        model
            .learned()
            .first()
            .is_none_or(|cell| cell.settled.is_none())
    };
    let cost = |_, route| match route {
        Route::Direct => 48_000,
        Route::Bounce if learns() => 500,
        Route::Bounce => 900,
    };
    let took = run(&model, &p, 100_000, cost);
    assert!(took[Route::Direct as usize] < 1000, "{took:?}");
    let learned = model.learned()[0];
    assert!(learned.bounce_ns > 800, "it goes on measuring: {learned:?}");
}

/// Neither half of a word runs into the other.
#[test]
fn counts_stay_at_their_largest() {
    let most = u64::from(u32::MAX);
    let both = Halves::<OneCpu>::new(7, 8);
    for (low, high) in [
        (most, 0),
        (most + 1, 0),
        (u64::MAX, 3),
        (3, u64::MAX),
        (0, most + 1),
    ] {
        both.set(low, high);
        assert_eq!(both.get(), (low.min(most), high.min(most)));
    }
}
