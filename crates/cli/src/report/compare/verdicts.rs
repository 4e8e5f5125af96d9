// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What changed from one trace with accesses to another.

use super::pairing::{Named, Pairing};
use super::{Change, Comparison, DeviceChanges};
use crate::record::Class;
use crate::report::verdict::DeviceVerdict;
use ioatlas_present::{Figure, Unit};

const NO_MISSES: &str = "nothing misses in one";
const NO_MAPS: &str = "nothing is mapped in one";

impl Named for DeviceVerdict {
    fn name(&self) -> &str {
        &self.device
    }
    fn class(&self) -> Option<Class> {
        self.class
    }
}

pub(super) fn compare(to: &mut Comparison, before: &[DeviceVerdict], after: &[DeviceVerdict]) {
    let (before, after): (Vec<_>, Vec<_>) = (before.iter().collect(), after.iter().collect());
    let pairing = Pairing::of(&before, &after);
    let mut pairs = pairing.pairs;
    let maps = |(before, after, _): &(&DeviceVerdict, &DeviceVerdict, _)| {
        before.maps.value + after.maps.value
    };
    pairs.sort_by(|a, b| maps(b).total_cmp(&maps(a)));
    let of_device =
        |(before, after, matched): &(&DeviceVerdict, &DeviceVerdict, _)| DeviceChanges {
            before: before.device.clone(),
            after: after.device.clone(),
            matched: *matched,
            changes: changes([before, after]),
        };
    to.devices = pairs.iter().map(of_device).collect();
    to.only_before = pairing.only_before;
    to.only_after = pairing.only_after;
}

fn changes(both: [&DeviceVerdict; 2]) -> Vec<Change> {
    let of = |number: fn(&DeviceVerdict) -> Figure| both.map(|verdict| Some(number(verdict)));
    let first_touches = both.map(|v| (v.misses.value > 0.0).then_some(v.first_touch));
    vec![
        Change::points(
            "misses of 100 accesses",
            of(|v| v.misses_per_100_accesses),
            "",
        )
        .less_is_better(),
        Change::relative("misses a map", both.map(misses_a_map), NO_MAPS).less_is_better(),
        Change::points("first touches, of misses", first_touches, NO_MISSES),
        Change::relative("misses", of(|v| v.misses), ""),
        Change::relative("accesses", of(|v| v.accesses), ""),
        Change::relative("maps", of(|v| v.maps), ""),
        Change::relative("pages at peak", of(|v| v.peak_live_pages), ""),
    ]
}

fn misses_a_map(verdict: &DeviceVerdict) -> Option<Figure> {
    let (misses, maps) = (verdict.misses.value, verdict.maps.value);
    (maps > 0.0).then(|| Figure::simulated(misses / maps, Unit::Count))
}
