// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a measurement says of subjects that behave, fail and panic. What runs real threads for a
//! time is ignored unless asked for: `ci/full.sh timing`.

use ioatlas_bench::{
    Contestant, Effort, Failure, Figure, Kind, Limit, Mode, Pattern, Sizes, Spec, Subject,
    Unmeasured, What, alternate, alternate_within, measure, plan, slices::LEAST,
};
use ioatlas_dma::units::PageCount;
use std::time::{Duration, Instant};

const SHORT: Effort = Effort {
    slices: LEAST,
    patience: Duration::from_secs(5),
    filling: Duration::from_millis(20),
};

/// What a subject does when it is asked for a range.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Serve,
    /// Not after so many.
    FailAfter(u32),
    Panic,
    Dawdle,
}

impl Subject for Does {
    type Token = ();
    type Hand = u32;
    fn hand(&self, _: usize) -> u32 {
        0
    }
    fn take(&self, taken: &mut u32, _: PageCount) -> Result<(), Failure> {
        *taken += 1;
        match self {
            Does::FailAfter(n) if *taken > *n => Err(Failure::new(format!("{n} were taken"))),
            Does::Panic if *taken > 1000 => panic!("a bug of theirs"),
            Does::Dawdle => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(())
            }
            _ => Ok(()),
        }
    }
    fn give(&self, _: &mut u32, (): ()) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
#[ignore = "measures real threads, for a time: ci/full.sh timing"]
fn one_that_fails_says_so_and_the_others_are_measured() {
    let all = [Does::Serve, Does::FailAfter(1000), Does::Panic, Does::Serve];
    let contestants: Vec<Contestant<'_>> = all
        .iter()
        .map(|does| Contestant::new(does, Pattern::Ring(256), Sizes::One, 1))
        .collect();
    let records = alternate(&contestants, SHORT);
    let why = |nth: usize| records[nth].failure.as_ref().map(ToString::to_string);
    assert_eq!(why(0), None);
    assert_eq!(why(1).as_deref(), Some("1000 were taken"));
    assert_eq!(why(2).as_deref(), Some("it panicked: a bug of theirs"));
    for nth in [0, 3] {
        assert!(records[nth].slices.len() >= LEAST);
        assert!(records[nth].slices.iter().all(|slice| slice.ns > 0.0));
    }
}

#[test]
fn a_limit_bounds_the_slices_and_one_that_is_over_leaves_none() {
    let serves = Does::Serve;
    let threads = [1, 2];
    let contestants = threads.map(|n| Contestant::new(&serves, Pattern::Immediate, Sizes::One, n));
    // more than can be had, in time that does not end
    let insatiable = Effort {
        slices: usize::MAX,
        patience: Duration::from_secs(3600),
        ..SHORT
    };
    let rounds = Limit {
        rounds: LEAST + 1,
        ..Limit::NONE
    };
    for record in alternate_within(&contestants, insatiable, rounds) {
        assert_eq!(record.slices.len(), LEAST + 1);
        assert!(!record.late);
    }
    let over = Limit {
        over: Some(Instant::now()),
        ..Limit::NONE
    };
    for (record, threads) in alternate_within(&contestants, insatiable, over)
        .iter()
        .zip(threads)
    {
        assert!(record.late && record.slices.is_empty() && record.failure.is_none());
        let why = Figure::of(record, threads, Mode::Near).unwrap_err();
        assert_eq!(why, Unmeasured::Late { slices: 0 });
    }
    // nor is anything filled any more
    let filled = Limit {
        filled: Some(Instant::now()),
        ..Limit::NONE
    };
    let large = [Contestant::new(
        &serves,
        Pattern::Replace(1000),
        Sizes::One,
        1,
    )];
    let records = alternate_within(&large, insatiable, filled);
    let why = records[0].failure.as_ref().unwrap().to_string();
    assert!(why.starts_with("out of time with 0 of 2000 "), "{why}");
}

#[test]
#[ignore = "measures real threads, for a time: ci/full.sh timing"]
fn what_takes_too_long_to_fill_is_given_up() {
    let (slow, fast) = (Does::Dawdle, Does::Serve);
    let pattern = Pattern::Replace(1000);
    let contestants = [
        Contestant::new(&slow, pattern, Sizes::One, 1),
        Contestant::new(&fast, pattern, Sizes::One, 1),
    ];
    let effort = Effort {
        filling: Duration::from_secs(2),
        ..SHORT
    };
    let records = alternate(&contestants, effort);
    let why = records[0].failure.as_ref().unwrap().to_string();
    assert!(why.starts_with("out of time with "), "{why}");
    assert!(records[0].slices.is_empty());
    assert!(records[1].failure.is_none() && !records[1].slices.is_empty());
}

#[test]
#[ignore = "measures real threads, for a time: ci/full.sh timing"]
fn threads_meet_again_when_one_of_them_fails() {
    let serves = Does::Serve;
    // while it fills; while it warms up; and before the hand-off is full, so that no consumer is
    // needed for it
    for (pattern, after) in [
        (Pattern::Ring(256), 100),
        (Pattern::Ring(256), 300),
        (Pattern::ProducerConsumer, 100),
    ] {
        let fails = Does::FailAfter(after);
        let contestants = [
            Contestant::new(&fails, pattern, Sizes::One, 2),
            Contestant::new(&serves, pattern, Sizes::One, 2),
        ];
        let effort = Effort {
            patience: Duration::from_millis(100),
            ..SHORT
        };
        let records = alternate(&contestants, effort);
        assert!(records[0].failure.is_some());
        assert!(records[1].failure.is_none());
    }
}

#[test]
#[ignore = "measures real threads, for a time: ci/full.sh timing"]
fn a_row_has_its_control_and_what_it_is_beyond() {
    let spec = |what, pattern| Spec {
        what,
        pattern,
        sizes: Sizes::One,
        threads: 1,
    };
    let software = What::Software(plan::strict());
    let rows = [
        spec(
            What::Ours(Kind::Domain(plan::deferred())),
            Pattern::Ring(256),
        ),
        spec(software, Pattern::Immediate),
    ];
    let measured = measure(&rows, SHORT);
    assert_eq!(measured.len(), 2);
    for (row, spec) in measured.iter().zip(&rows) {
        assert_eq!(row.spec, *spec);
        let figure = row.figure.as_ref().unwrap();
        assert!(figure.ns.low <= figure.ns.median && figure.ns.median <= figure.ns.high);
        assert_eq!(figure.mode, None, "one thread has no other to be near");
        assert!(row.control.is_some());
        let beside = spec.what == software;
        assert_eq!(row.beside.is_some(), beside, "{spec}");
    }
}

#[test]
fn more_threads_than_cpus_are_a_reason_and_no_figure() {
    let spec = Spec {
        what: What::Ours(Kind::Table),
        pattern: Pattern::Immediate,
        sizes: Sizes::One,
        threads: 1 << 20,
    };
    let row = measure(&[spec], SHORT).pop().unwrap();
    let why = row.figure.unwrap_err().to_string();
    assert!(
        why.starts_with("1048576 threads need as many CPUs"),
        "{why}"
    );
    assert!(row.control_ratio.is_none());
}
