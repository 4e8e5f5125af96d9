// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! BOUNCE'21: Stevens, "Add dynamic iommu backed bounce buffers", a patch series for Linux of
//! August 2021.
//!
//! # Theory
//!
//! It has eight results in two sentences and no figure. [`results`] has them beside what a model
//! predicts; the model is arithmetic ([`ioatlas_bench::bounce::model`]), so these numbers are the
//! same on every machine. The other exhibits are what the series lacks, measured on this machine in
//! short slices: from which size on direct mapping wins again, and what becomes of throughput
//! beyond the pools' limits.

mod crossover;
mod limit;
mod results;

use super::{About, Found, Made, Runs, Shown, Statement, Verdict};

const PAPER: &str = "BOUNCE'21";

const fn about(exhibit: &'static str, title: &'static str, claim: &'static str) -> About {
    About {
        paper: PAPER,
        exhibit,
        title,
        claim,
    }
}

/// The exhibits of BOUNCE'21, in the order of the page.
pub(super) fn exhibits() -> Vec<&'static dyn Runs> {
    vec![&results::Results, &crossover::Crossover, &limit::Limit]
}
