// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The explorer: from each seed a schedule, a design, tables, a unit and a scenario; run on
//! simulated CPUs, with the oracle attached.
//!
//! # Theory
//!
//! A seed says everything ([`plan::Plan`]): which agents act, what each does in which order, what
//! fails, when an interrupt comes, what the unit caches, and which agent goes on at each shared
//! access. So a failing seed replays to the access, on any machine.
//!
//! * `IOATLAS_EXPLORE_SEEDS=n` explores the seeds below n, instead of [`BUDGET`];
//! * `IOATLAS_EXPLORE_SEED=s` runs that one, and prints its plan.
//!
//! A seed fails where the oracle has seen a violation (P1 to P9, P14), the books do not add up or a
//! frame is lost (P10), an agent panics, none gets on, or locks are dead. `ci/explore-mutants.sh`
//! counts how many seeds each planted bug takes.
//!
//! **Not found here**: what needs memory that is not sequentially consistent, or not coherent with
//! the unit (see `ioatlas_sim::platform`).

mod bare;
mod colours;
mod crowded;
pub mod pieces;
mod plan;

use crate::suite::{crowd, interface, rig};
use plan::{Plan, Scenario};
use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Seeds that are explored where the environment does not say otherwise.
const BUDGET: u64 = 1000;

fn from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// Runs the plan of `seed`; a text that says what went wrong.
fn explore(seed: u64) -> Result<crowd::Checked, String> {
    let plan = Plan::draw(seed);
    let run = AssertUnwindSafe(|| match plan.scenario {
        Scenario::Bare => bare::run(&plan),
        Scenario::Colours => colours::run(&plan),
        _ => crowded::run(&plan),
    });
    catch_unwind(run).map_err(|panic| {
        let what = match panic.downcast_ref::<String>() {
            Some(text) => text.as_str(),
            None => panic.downcast_ref::<&str>().copied().unwrap_or("a panic"),
        };
        format!("{what}\nfound at {plan}\nto replay: IOATLAS_EXPLORE_SEED={seed}")
    })
}

#[test]
fn no_seed_shows_a_violation() {
    if let Some(seed) = from_env("IOATLAS_EXPLORE_SEED") {
        println!("{}", Plan::draw(seed));
        let found = explore(seed).unwrap_or_else(|what| panic!("{what}"));
        return println!("{found:?}");
    }
    let seeds = from_env("IOATLAS_EXPLORE_SEEDS").unwrap_or(BUDGET);
    let mut sum = crowd::Checked::default();
    for seed in 0..seeds {
        match explore(seed) {
            Ok(checked) => sum.add(checked),
            Err(what) => panic!("{what}\nseeds explored: {}", seed + 1),
        }
    }
    println!("seeds explored: {seeds}: {sum:?}");
    let all = [sum.maps, sum.succeeded, sum.blocked, sum.stale];
    assert!(seeds < BUDGET || !all.contains(&0), "{sum:?}: too little");
}

/// What replaying rests on.
#[test]
fn a_seed_is_one_run() {
    for seed in 0..16 {
        let [once, again] = [(); 2].map(|()| explore(seed).expect("a seed of the budget"));
        assert_eq!(format!("{once:?}"), format!("{again:?}"), "seed {seed}");
    }
}
