// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Costs that are made up, and what is learned from them.

use super::*;
use crate::platform::host::*;

/// Runs `ops` operations whose roads take so long; returns how many took each road.
fn run(learner: &Learner<Host>, p: &Host, ops: u64, cost: impl Fn(u64, Road) -> u64) -> [u64; 2] {
    let mut took = [0, 0];
    for nth in 0..ops {
        let advice = learner
            .advise(p, ByteCount(4096), Direction::ToDevice)
            .unwrap();
        took[advice.road as usize] += 1;
        if let Some(cell) = advice.timed {
            learner.note(cell, advice.road, cost(nth, advice.road));
        }
    }
    took
}

fn host() -> (Host, Learner<Host>) {
    let p = Host::new(HostConfig {
        frames: 0,
        slots: 1,
    });
    let learner = Learner::new(&p);
    (p, learner)
}

#[test]
fn the_cheaper_road_is_found_within_a_thousand_operations_and_kept() {
    for (direct, bounce) in [(100, 900), (900, 100), (100, 104), (104, 100), (50, 20_000)] {
        let (p, learner) = host();
        let cost = |_, road| match road {
            Road::Direct => direct,
            Road::Bounce => bounce,
        };
        run(&learner, &p, 999, cost);
        let learned = learner.learned()[0];
        let better = if direct < bounce {
            Road::Direct
        } else {
            Road::Bounce
        };
        assert_eq!(learned.settled, Some(better), "{learned:?}");
        let ops = 1_000_000;
        let took = run(&learner, &p, ops, cost);
        let spent = took[0] * direct + took[1] * bounce;
        let best = ops * direct.min(bounce);
        assert!(spent * 100 <= best * 103, "{spent} of {best}: {took:?}");
    }
}

/// A driver that maps a header and a payload in turn, or several of each: each road is measured on
/// both kinds.
#[test]
fn what_comes_in_turn_is_measured_on_both_roads() {
    for each in [1, 2, 4, 8] {
        let (p, learner) = host();
        // copying is cheaper for both kinds, and dearer for payloads than mapping is for headers
        let cost = |nth: u64, road| match ((nth / each).is_multiple_of(2), road) {
            (true, Road::Direct) => 100,
            (true, Road::Bounce) => 50,
            (false, Road::Direct) => 900,
            (false, Road::Bounce) => 550,
        };
        run(&learner, &p, 999, cost);
        let learned = learner.learned()[0];
        assert_eq!(learned.settled, Some(Road::Bounce), "{each}: {learned:?}");
        let direct = learned.direct_ns.abs_diff(500);
        assert!(direct < 100, "{each}: 500 is the mean of {learned:?}");
    }
}

#[test]
fn what_is_made_once_does_not_count() {
    let (p, learner) = host();
    let cost = |nth, road| match road {
        Road::Direct => 200,
        Road::Bounce if nth < 128 => 5_000,
        Road::Bounce => 150,
    };
    run(&learner, &p, 600, cost);
    assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
}

#[test]
fn what_is_paid_for_once_in_250_counts() {
    let (p, learner) = host();
    // 40 most of the time, and 25,040 once in 250: 140 on average
    run(&learner, &p, 999, |nth, road| match road {
        Road::Direct if nth / 2 % 250 == 0 => 25_040,
        Road::Direct => 40,
        Road::Bounce => 90,
    });
    assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
}

#[test]
fn what_is_paid_for_once_in_250_counts_in_short_looks_too() {
    let (p, learner) = host();
    let (ops, mut direct, mut spent) = (1_000_000, 0u64, 0);
    for _ in 0..ops {
        let advice = learner.advise(&p, ByteCount(4096), Direction::ToDevice);
        let advice = advice.unwrap();
        direct += u64::from(advice.road == Road::Direct);
        // by the operations that took the road, looks and all
        let took = match advice.road {
            Road::Direct if direct.is_multiple_of(250) => 25_040,
            Road::Direct => 40,
            Road::Bounce => 90,
        };
        spent += took;
        if let Some(cell) = advice.timed {
            learner.note(cell, advice.road, took);
        }
    }
    assert!(spent * 100 <= ops * 90 * 105, "{spent} of {}", ops * 90);
}

#[test]
fn it_learns_anew_when_its_road_becomes_dear_and_when_the_other_becomes_cheap() {
    let (p, learner) = host();
    run(&learner, &p, 1000, |_, road| {
        if road == Road::Direct { 100 } else { 300 }
    });
    assert_eq!(learner.learned()[0].settled, Some(Road::Direct));
    run(&learner, &p, 10_000, |_, road| {
        if road == Road::Direct { 900 } else { 300 }
    });
    assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
    run(&learner, &p, 200_000, |_, road| {
        if road == Road::Direct { 100 } else { 300 }
    });
    assert_eq!(learner.learned()[0].settled, Some(Road::Direct));
}

#[test]
fn a_batch_anywhere_in_250_counts_in_the_end() {
    for at in (0..250).step_by(7) {
        let (p, learner) = host();
        let mut direct = at;
        let mut run = |ops: u64| {
            let mut spent = 0;
            for _ in 0..ops {
                let advice = learner.advise(&p, ByteCount(4096), Direction::ToDevice);
                let advice = advice.unwrap();
                direct += u64::from(advice.road == Road::Direct);
                let took = match advice.road {
                    Road::Direct if direct.is_multiple_of(250) => 25_040,
                    Road::Direct => 40,
                    Road::Bounce => 90,
                };
                spent += took;
                if let Some(cell) = advice.timed {
                    learner.note(cell, advice.road, took);
                }
            }
            spent / ops
        };
        run(200_000);
        assert!(run(100_000) <= 96, "{at}: {:?}", learner.learned());
    }
}

#[test]
fn short_interruptions_change_nothing() {
    // of 0.1 to 0.9 ms, one in so many operations, on whichever road they fall
    for (pairs, each) in [
        (&[(24_000, 8_000), (3_000, 12_000)][..], [170, 331, 504]),
        (&[(8_000, 10_000), (23_000, 20_000)], [1_700, 3_310, 5_040]),
    ] {
        for (every, (direct, bounce)) in each.iter().zip(pairs.iter().cycle()) {
            let (every, direct, bounce) = (*every, *direct, *bounce);
            let (p, learner) = host();
            let mut lost = 0u64;
            let cost = |nth: u64, road| {
                let usual = match road {
                    Road::Direct => direct,
                    Road::Bounce => bounce,
                };
                match nth % every {
                    7 => usual + 100_000 + nth * 7_919 % 800_000,
                    _ => usual,
                }
            };
            let better = match direct < bounce {
                true => Road::Direct,
                false => Road::Bounce,
            };
            run(&learner, &p, 999, cost);
            let found = learner.learned()[0];
            assert_eq!(found.settled, Some(better), "{every}: {found:?}");
            for _ in 0..100 {
                run(&learner, &p, 1_000, cost);
                lost += u64::from(learner.learned()[0].settled != Some(better));
            }
            assert_eq!(lost, 0, "{every}, {direct}, {bounce}");
        }
    }
}

#[test]
fn a_first_use_and_one_interruption_are_no_two_batches() {
    let (p, learner) = host();
    run(&learner, &p, 999, |nth, road| match road {
        Road::Direct => 200,
        Road::Bounce if nth == 1 => 6_000,
        Road::Bounce if nth == 301 => 500_000,
        Road::Bounce => 100,
    });
    let learned = learner.learned()[0];
    assert_eq!(learned.settled, Some(Road::Bounce), "{learned:?}");
}

#[test]
fn what_is_suddenly_a_hundred_times_as_dear_is_learned_anew() {
    let (p, learner) = host();
    let cheap = |_, road| if road == Road::Direct { 100 } else { 300 };
    run(&learner, &p, 999, cheap);
    assert_eq!(learner.learned()[0].settled, Some(Road::Direct));
    let dear = |_, road| if road == Road::Direct { 10_000 } else { 300 };
    run(&learner, &p, 2_000, dear);
    assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
}

#[test]
fn a_lost_time_slice_is_not_counted() {
    let (p, learner) = host();
    run(&learner, &p, 999, |nth, road| match road {
        Road::Bounce if nth % 100 == 1 => 4_000_000,
        Road::Bounce => 100,
        Road::Direct => 200,
    });
    assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
}

#[test]
fn a_road_on_which_all_is_too_long_to_be_looked_at_is_left() {
    let cheap = |_, road| if road == Road::Direct { 100 } else { 300 };
    let hangs = |_, road| if road == Road::Direct { 5_000_000 } else { 300 };
    // from the beginning, and from one time on
    for before in [0, 999] {
        let (p, learner) = host();
        run(&learner, &p, before, cheap);
        run(&learner, &p, 2_000, hangs);
        let learned = learner.learned()[0];
        assert_eq!(learned.settled, Some(Road::Bounce), "{learned:?}");
    }
}

#[test]
fn operations_that_take_long_because_they_are_large_are_learned() {
    let (p, learner) = host();
    let largest = ByteCount(256 * GRANULE);
    for _ in 0..999 {
        let advice = learner.advise(&p, largest, Direction::FromDevice).unwrap();
        // 256 pages, 10 us each; and a copy
        let took = match advice.road {
            Road::Direct => 2_560_000,
            Road::Bounce => 130_000,
        };
        if let Some(cell) = advice.timed {
            learner.note(cell, advice.road, took);
        }
    }
    assert_eq!(learner.learned()[0].settled, Some(Road::Bounce));
}

#[test]
fn what_is_larger_than_any_cell_gets_no_advice() {
    let (p, learner) = host();
    let advise = |len| learner.advise(&p, ByteCount(len), Direction::FromDevice);
    assert!(advise(1 << 20).is_some() && advise((1 << 20) + 1).is_none());
    assert!(advise(1 << 52).is_none());
}

#[test]
fn a_road_that_is_far_cheaper_still_is_not_learned_anew() {
    let (p, learner) = host();
    // copies are cheap while every second operation copies, and dearer later
    let learns = || {
        learner
            .learned()
            .first()
            .is_none_or(|cell| cell.settled.is_none())
    };
    let cost = |_, road| match road {
        Road::Direct => 48_000,
        Road::Bounce if learns() => 500,
        Road::Bounce => 900,
    };
    let took = run(&learner, &p, 100_000, cost);
    assert!(took[Road::Direct as usize] < 1000, "{took:?}");
    let learned = learner.learned()[0];
    assert!(learned.bounce_ns > 800, "it goes on measuring: {learned:?}");
}

/// Neither half of a word runs into the other.
#[test]
fn counts_stay_at_their_largest() {
    let most = u64::from(u32::MAX);
    let both = Halves::<Host>::new(7, 8);
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
