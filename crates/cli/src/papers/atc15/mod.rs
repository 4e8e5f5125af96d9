// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! ATC'15: Peleg, Morrison, Serebrin and Tsafrir, "Utilizing the IOMMU Scalably", USENIX ATC 2015.

mod blowup;
mod lines;
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
pub(super) fn exhibits() -> [&'static dyn Runs; 3] {
    [&systems::Table1, &blowup::Figure6, &lines::Table2]
}
