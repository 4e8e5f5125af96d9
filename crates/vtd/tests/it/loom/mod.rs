// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver under loom: the command ring, and the list of devices that keep translations.
//!
//! Every order of execution with few preemptions, every store that a load may see under the C11
//! orderings. The driver is the shipped one, on the core's loom platform, in front of a unit that
//! orders memory as the contract of registers says and not more.
#![deny(unsafe_code)] // but for promises, each with its reason

mod chip;
mod machine;
#[allow(dead_code)] // more than these models need
#[path = "../../../../dma/tests/it/loom/platform.rs"]
mod platform;

mod device_tlbs;
mod ring;

use std::sync::{Arc, Mutex, PoisonError};

/// Frames are the machine's own here: see [`machine`].
const FRAME_WORDS: usize = 0;

/// What an entry of a table holds before it is cleared.
const OLD: u64 = 1;
const CLEARED: u64 = 0;

/// Runs a model. `preemptions` bounds switches that no thread asked for.
fn explore(name: &str, preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let executions = Counter::default();
    let counted = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        counted.add();
        body()
    });
    println!("{name}: {} executions", executions.get());
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
