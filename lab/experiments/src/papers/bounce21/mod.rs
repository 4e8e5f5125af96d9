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

use super::{About, Found, Made, Parameter, Runs, Shown, Statement, Verdict};
use ioatlas_bench::bounce::{Charge, Preset};
use ioatlas_present::Cell;
use ioatlas_sim::timing::params::Origin;

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

/// What a translator charges, which several exhibits rest on.
fn charges(preset: Preset) -> Vec<Parameter> {
    const MODEL: &str = "translators: BOUNCE'21";
    let of = |name, ns: f64, origin| {
        Parameter::new(
            MODEL,
            name,
            (Cell::Number(ns), "ns"),
            origin,
            preset.source(),
        )
    };
    let Charge { map, unmap, .. } = preset.charge();
    match preset {
        Preset::Free => Vec::new(),
        Preset::Moderate => vec![of("moderate: an unmap", unmap.base_ns, Origin::Published)],
        Preset::VfioGuest => vec![
            of("vfio-guest: a map", map.base_ns, Origin::Measured),
            of("vfio-guest: a page of it", map.page_ns, Origin::Measured),
            of("vfio-guest: an unmap", unmap.base_ns, Origin::Measured),
            of(
                "vfio-guest: a page of it unmapped",
                unmap.page_ns,
                Origin::Measured,
            ),
        ],
        Preset::Bounce21 => vec![of(
            "bounce21: a map or an unmap, and as much a page",
            map.page_ns,
            Origin::Fitted,
        )],
    }
}
