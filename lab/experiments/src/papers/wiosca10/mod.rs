// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! WIOSCA'10: Amit, Ben-Yehuda and Yassour, "IOMMU: Strategies for Mitigating the IOTLB
//! Bottleneck", WIOSCA 2010.
//!
//! # Theory
//!
//! The paper's figures are drawn from our traces of a kernel of today, and of the same kernel with
//! its IOVA reuse cache off, which hands out addresses in descending order, as Linux did in 2010.
//! What differs between the two is the kernel's doing; what differs between the second and the
//! paper is the device model's, the driver's or the simulator's. A [`workload::Workload`] is a
//! device and what it did; one more is an entry of [`workload::MORE`], for the replay, and a figure
//! of [`strategies::OTHERS`].
//!
//! Figures 1 and 3 are drawings of how things work and hold no result.

mod copy;
mod discussion;
mod entries;
mod pattern;
mod strategies;
pub(super) mod workload;

use super::{About, Found, Made, Parameter, Runs, Shown, Statement, Verdict};
use ioatlas_iotlb::{BufferSize, Geometry};
use ioatlas_present::Cell;
use ioatlas_sim::timing::params::Origin;

const PAPER: &str = "WIOSCA'10";

const fn about(exhibit: &'static str, title: &'static str, claim: &'static str) -> About {
    About {
        paper: PAPER,
        exhibit,
        title,
        claim,
    }
}

/// All of them, in the paper's order.
pub(super) fn exhibits() -> Vec<&'static dyn Runs> {
    let mut all: Vec<&'static dyn Runs> = vec![&copy::Figure2];
    all.extend(pattern::FIGURES.iter().map(|figure| figure as &dyn Runs));
    all.extend(entries::FIGURES.iter().map(|figure| figure as &dyn Runs));
    all.extend(strategies::FIGURES.iter().map(|figure| figure as &dyn Runs));
    all.push(&discussion::Discussion);
    all.extend(strategies::OTHERS.iter().map(|figure| figure as &dyn Runs));
    all
}

/// A fraction in hundredths, as text.
fn percent(part: f64) -> String {
    format!("{:.1}\u{a0}%", part * 100.0)
}

/// `part` of `whole`, 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

/// The paper's baseline, which several exhibits rest on.
pub(super) fn iotlb() -> Vec<Parameter> {
    const MODEL: &str = "IOTLB: WIOSCA'10, figures 10 to 12 and section 4.9; replay";
    let geometry = Geometry::default();
    let buffer = BufferSize::default();
    let of = |name, count: usize, unit| {
        let value = (Cell::count(count as u64), unit);
        Parameter::new(
            MODEL,
            name,
            value,
            Origin::Published,
            "WIOSCA'10 4.8, the baseline",
        )
    };
    vec![
        of("entries", geometry.entries(), "entries"),
        of("ways", geometry.ways(), "ways"),
        of("prefetch buffer", buffer.entries(), "entries"),
    ]
}
