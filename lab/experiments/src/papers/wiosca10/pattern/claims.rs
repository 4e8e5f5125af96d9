// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the paper says of figures 4 to 7, and how each statement is judged.

use super::observed::Observed;
use crate::papers::{
    Judgement,
    wiosca10::{Verdict, percent, share},
};
use std::collections::BTreeSet;

/// A statement, and how it is judged on what was seen of the devices.
pub(super) struct Claim {
    pub says: &'static str,
    pub theirs: &'static str,
    pub rule: &'static str,
    pub judge: fn(&[Observed]) -> Judgement,
}

pub(super) const RAPIDLY: Claim = Claim {
    says: "The consistent region is consistently and rapidly accessed (3.2).",
    theirs: "evident in figures 4 and 6",
    rule: "every whole window of 1,000 accesses of a device has a consistent access, and a consistent page is accessed at least 10 times as often as a streaming \
           page; weak: 9 of 10 windows, and 3 times",
    judge: |devices| {
        let windows = devices
            .iter()
            .map(Observed::windows_with)
            .fold(1.0, f64::min);
        let times = devices
            .iter()
            .map(Observed::rapidity)
            .fold(f64::MAX, f64::min);
        let verdict = Verdict::at_least(windows, 1.0, 0.9).max(Verdict::at_least(times, 10.0, 3.0));
        verdict.because(format!(
            "in {} of the windows, {times:.0} times as often a page",
            percent(windows)
        ))
    },
};

pub(super) const DESCENDING_STEPS: Claim = Claim {
    says: "Pages mapped one by one are at descending addresses, and accessed so (3.2, figure 4).",
    theirs: "apparent in figure 4",
    rule: "of the steps to a neighbouring page 90 % go down, and at least half of all steps are to a neighbour; weak: 60 %, and a quarter",
    judge: |devices| steps(devices, |seen| seen.down, "down"),
};

pub(super) const ASCENDING_STEPS: Claim = Claim {
    says: "Consecutive pages of a scatter-gather list have ascending addresses (3.2, figure 6).",
    theirs: "apparent in figure 6",
    rule: "of the steps to a neighbouring page 90 % go up, and at least half of all steps are to a neighbour; weak: 60 %, and a quarter",
    judge: |devices| steps(devices, |seen| seen.up, "up"),
};

pub(super) fn steps(devices: &[Observed], which: fn(&Observed) -> u64, word: &str) -> Judgement {
    let sum = |of: &dyn Fn(&Observed) -> u64| devices.iter().map(of).sum::<u64>();
    let neighbours = sum(&Observed::neighbours);
    let direction = share(sum(&which), neighbours);
    let near = share(neighbours, neighbours + sum(&|seen| seen.jumps));
    let verdict = Verdict::at_least(direction, 0.9, 0.6).max(Verdict::at_least(near, 0.5, 0.25));
    verdict.because(format!(
        "{} of the steps to a neighbour go {word}; {} of all steps are to a neighbour",
        percent(direction),
        percent(near)
    ))
}

pub(super) const DESCENDING_MAPS: Claim = Claim {
    says: "Mapping starts at a certain address and goes on in descending order (3.2).",
    theirs: "shown in figures 5 to 7",
    rule: "90 % of the groups of streaming maps begin below the one before; weak: 60 %",
    judge: |devices| {
        let below: u64 = devices.iter().map(|seen| seen.groups_below).sum();
        let above: u64 = devices.iter().map(|seen| seen.groups_above).sum();
        let part = share(below, below + above);
        Verdict::at_least(part, 0.9, 0.6).because(format!("{} of them", percent(part)))
    },
};

pub(super) const CONSISTENT_FIRST: Claim = Claim {
    says: "Drivers make consistent mappings before any streaming ones (3.2, figure 5).",
    theirs: "all",
    rule: "no consistent map comes after a device's first streaming map; weak: at most one in ten",
    judge: |devices| {
        let late: u64 = devices.iter().map(|seen| seen.consistent_late).sum();
        let all: u64 = devices.iter().map(|seen| seen.consistent_maps).sum();
        let verdict = match all {
            0 => Verdict::Not,
            all => Verdict::at_most(share(late, all), 0.0, 0.1),
        };
        verdict.because(format!("{late} of {all} consistent maps come later"))
    },
};

pub(super) const ADJACENT_MAPS: Claim = Claim {
    says: "The red-black tree allocator shows spatial locality (4.6, figure 5).",
    theirs: "shown in figure 5",
    rule: "at least half of all groups of streaming maps end just below the one before; weak: a quarter",
    judge: |devices| {
        let adjacent: u64 = devices.iter().map(|seen| seen.groups_adjacent).sum();
        let maps = devices
            .iter()
            .map(|seen| seen.groups_below + seen.groups_above);
        let part = share(adjacent, maps.sum());
        Verdict::at_least(part, 0.5, 0.25).because(format!("{} do", percent(part)))
    },
};

pub(super) const OVERLAP: Claim = Claim {
    says: "The regions in use by two devices overlap (3.2, figure 7).",
    theirs: "evident in figure 7",
    rule: "at least half of the device with fewer streaming pages uses page numbers that the other uses too; weak: a tenth",
    judge: |devices| {
        let part = common(devices, |seen| &seen.streaming_pages);
        Verdict::at_least(part, 0.5, 0.1).because(format!("{} of its pages", percent(part)))
    },
};

pub(super) const SAME_CONSISTENT: Claim = Claim {
    says: "The consistent mappings of all devices are in the same few pages (3.2, figure 7).",
    theirs: "the same few",
    rule: "all consistent pages of the device with fewer are also the other's; weak: half of them",
    judge: |devices| {
        let part = common(devices, |seen| &seen.consistent_pages);
        let count = devices.iter().map(|seen| seen.consistent_pages.len()).max();
        Verdict::at_least(part, 1.0, 0.5).because(format!(
            "{} of them are, of at most {} a device",
            percent(part),
            count.unwrap_or(0)
        ))
    },
};

/// The share of the page numbers of the device with fewest that every device has; 0 with
/// fewer than two devices.
fn common(devices: &[Observed], which: fn(&Observed) -> &BTreeSet<u64>) -> f64 {
    let [first, others @ ..] = devices else {
        return 0.0;
    };
    if others.is_empty() {
        return 0.0;
    }
    let shared = which(first)
        .iter()
        .filter(|page| others.iter().all(|seen| which(seen).contains(page)));
    let fewest = devices.iter().map(|seen| which(seen).len()).min();
    share(shared.count() as u64, fewest.unwrap_or(0) as u64)
}
