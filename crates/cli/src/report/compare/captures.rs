// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What changed from one capture to another.

use super::pairing::{Named, Pairing};
use super::{Change, Comparison, DeviceChanges};
use crate::record::Class;
use crate::report::captures::{Beside, Capture, CapturedDevice, Lifetimes};
use ioatlas_present::{Figure, Tag, Unit};

const NO_TIMES: &str = "no times recorded";
const NOT_MEASURED: &str = "not measured (--no-bench)";
const NO_BYTES: &str = "bytes recorded of one only";
const NO_IOMMU: &str = "no IOMMU translated";
const NONE_ENDED: &str = "none seen to end";
const IOMMU: &str =
    "The IOMMU translated for more devices in one of the captures than in the other.";

impl Named for CapturedDevice {
    fn name(&self) -> &str {
        &self.device
    }
    fn class(&self) -> Option<Class> {
        self.class
    }
}

/// What a map and its unmap take under a strict policy, and what an invalidation makes a CPU wait.
#[derive(Clone, Copy)]
struct Prices {
    pair: Figure,
    wait: Figure,
}

pub(super) fn compare(to: &mut Comparison, both: [&Capture; 2], wait: Figure) {
    let [before, after] = both.map(|capture| capture.devices.iter().collect::<Vec<_>>());
    let pairing = Pairing::of(&before, &after);
    let busy = |mode: &str| both.map(|capture| capture.costs.as_ref()?.mode(mode)?.cpus_busy);
    // measured once, for both
    let costs = both.iter().find_map(|capture| capture.costs.as_ref());
    let pair = costs.and_then(|costs| costs.mode("strict")?.ns_per_pair);
    let prices = pair.map(|pair| Prices { pair, wait });
    // why there may be no costs
    let why = match costs.is_some() && pair.is_none() {
        true => NOT_MEASURED,
        false => NO_TIMES,
    };
    let mut pairs = pairing.pairs;
    pairs.sort_by(|a, b| maps(b).total_cmp(&maps(a)));
    let of_device =
        |(before, after, matched): &(&CapturedDevice, &CapturedDevice, _)| DeviceChanges {
            before: before.device.clone(),
            after: after.device.clone(),
            matched: *matched,
            changes: changes([before, after], prices, why),
        };
    if both[0].translated != both[1].translated {
        to.remarks.push(IOMMU);
    }
    let recorded = both.map(|capture| capture.devices.iter().any(|of| of.bytes_recorded));
    let time = both.map(|capture| time_a_gib(&capture.devices, prices?));
    to.all_devices = vec![
        time_change(time, recorded, why),
        Change::relative("strict: CPUs busy", busy("strict"), why),
        Change::relative("lazy: CPUs busy", busy("lazy"), why),
    ];
    to.devices = pairs.iter().map(of_device).collect();
    to.only_before = pairing.only_before;
    to.only_after = pairing.only_after;
}

/// By how much a device matters.
fn maps<T>((before, after, _): &(&CapturedDevice, &CapturedDevice, T)) -> f64 {
    before.maps.value + after.maps.value
}

fn changes(
    both: [&CapturedDevice; 2],
    prices: Option<Prices>,
    no_prices: &'static str,
) -> Vec<Change> {
    let of = |number: fn(&CapturedDevice) -> Option<Figure>| both.map(number);
    let beside = |number: fn(Beside) -> Figure| both.map(|device| device.beside.map(number));
    let lived = |number: fn(Lifetimes) -> Figure| both.map(|device| device.lifetimes.map(number));
    // bytes of the one are not to be held against pages of the other
    let recorded = both.map(|device| device.bytes_recorded);
    let of_bytes = |change: Change| match recorded[0] == recorded[1] {
        true => change,
        false => change.untold(NO_BYTES),
    };
    // without times there are no lifetimes
    let timed = both.iter().all(|device| device.maps_per_second.is_some());
    let no_lifetimes = if timed { NONE_ENDED } else { NO_TIMES };
    let time = both.map(|device| time_a_gib(std::slice::from_ref(device), prices?));
    vec![
        time_change(time, recorded, no_prices),
        of_bytes(Change::relative(
            "bytes a map",
            of(|d| Some(d.mean_bytes)),
            "",
        )),
        Change::relative("maps a second", of(|d| d.maps_per_second), NO_TIMES),
        of_bytes(Change::relative(
            "MiB mapped a second",
            of(mib_per_second),
            NO_TIMES,
        )),
        Change::relative("unmaps a second", of(|d| d.unmaps_per_second), NO_TIMES),
        Change::relative("pages at peak", of(|d| d.peak_live_pages), ""),
        Change::relative("mapped for, median", lived(|of| of.median), no_lifetimes),
        Change::relative(
            "mapped for, 99th percentile",
            lived(|of| of.p99),
            no_lifetimes,
        ),
        Change::points(
            "other data in reach, of bytes",
            beside(|of| of.bytes),
            match recorded {
                [true, true] => NO_IOMMU,
                _ => "no bytes recorded",
            },
        )
        .less_is_better(),
    ]
}

/// What a strict policy takes of a CPU for so many maps as make a GiB.
fn time_a_gib(devices: &[CapturedDevice], prices: Prices) -> Option<Figure> {
    let sum = |of: fn(&CapturedDevice) -> f64| devices.iter().map(of).sum::<f64>();
    let bytes = sum(|device| device.mean_bytes.value * device.maps.value);
    let (maps, unmaps) = (sum(|of| of.maps.value), sum(|of| of.unmaps.value));
    let ns = maps * prices.pair.value + unmaps * prices.wait.value;
    (bytes > 0.0).then(|| Figure {
        value: ns / 1e6 / bytes * f64::from(1 << 30),
        unit: Unit::Milliseconds,
        tag: Tag::Assumed,
    })
}

/// Its change; `recorded` is whether bytes were, `why` says why there may be no times.
fn time_change(time: [Option<Figure>; 2], recorded: [bool; 2], why: &'static str) -> Change {
    let change = Change::relative("strict: CPU time a GiB mapped", time, why);
    let change = match recorded[0] == recorded[1] {
        true => change,
        false => change.untold(NO_BYTES),
    };
    change.less_is_better()
}

fn mib_per_second(device: &CapturedDevice) -> Option<Figure> {
    let bytes = device.maps_per_second?.value * device.mean_bytes.value;
    Some(Figure::counted(bytes / f64::from(1 << 20), Unit::PerSecond))
}
