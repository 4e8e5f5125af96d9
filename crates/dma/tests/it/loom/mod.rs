// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Loom as one more platform: weak memory, which the simulated multiprocessor does not have.
//!
//! Loom runs every execution of a model that its bounds allow: which thread runs at each access,
//! and which store a load sees under the C11 orderings. Its orders of execution are bounded by
//! three preemptions in the largest model (`map_and_unmap`), by four in those of late claims, and
//! in no other; what a load sees is not bounded. The core is compiled once, without `cfg(loom)`, so
//! plain `cargo test` runs this.
#![deny(unsafe_code)] // but for promises, each with its reason

mod platform;
mod unit;

mod combining;
mod domain;
mod invalidation;
mod magazine;
mod shared;
mod switch;
mod table;

use std::sync::{Arc, Mutex, PoisonError};

/// Entries of a table.
const FRAME_WORDS: usize = 2;

/// Runs a model and returns how many executions it has. `preemptions` bounds switches that the
/// model does not ask for.
fn explore(name: &str, preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) -> u64 {
    let executions = Counter::default();
    let counted = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    builder.check(move || {
        counted.add();
        body()
    });
    println!("{name}: {} executions", executions.get());
    executions.get()
}

/// Counts over executions, unseen by loom; shows that a model reaches what it is about.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<u64>>);

impl Counter {
    fn add(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
    fn get(&self) -> u64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
