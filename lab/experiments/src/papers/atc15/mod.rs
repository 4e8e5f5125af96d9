// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! ATC'15: Peleg, Morrison, Serebrin and Tsafrir, "Utilizing the IOMMU Scalably", USENIX ATC 2015.

mod blowup;
mod lines;
mod scale;
mod script;
mod strict;
mod systems;

use super::{About, Runs};

const PAPER: &str = "ATC'15";

const fn about(exhibit: &'static str, title: &'static str, claim: &'static str) -> About {
    About {
        paper: PAPER,
        exhibit,
        title,
        claim,
    }
}

/// Those made here so far, in the paper's order.
pub(super) fn exhibits() -> [&'static dyn Runs; 10] {
    [
        &scale::FIGURE_1,
        &scale::FIGURE_2,
        &scale::FIGURE_3,
        &scale::FIGURE_4,
        &scale::FIGURE_5,
        &systems::Table1,
        &blowup::Figure6,
        &scale::FIGURE_7,
        &strict::Strict,
        &lines::Table2,
    ]
}
