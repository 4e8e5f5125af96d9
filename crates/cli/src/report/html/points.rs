// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What each drawing shows, in a sentence with its numbers: the drawing's title.

use crate::report::captures::{CapturedDevice, Size};
use crate::report::model::Report;
use crate::report::systems::{Exposure, SystemRow};
use crate::report::verdict::{DeviceVerdict, LARGER};
use ioatlas_present::{Figure, Sentence, sentence};

/// Least and largest of a number of devices, each with its device; `None` if no device has it.
fn ends(
    verdicts: &[DeviceVerdict],
    of: impl Fn(&DeviceVerdict) -> Option<Figure>,
) -> Option<[(&DeviceVerdict, Figure); 2]> {
    let all = verdicts
        .iter()
        .filter_map(|verdict| Some((verdict, of(verdict)?)));
    let by = |a: &(&DeviceVerdict, Figure), b: &(&DeviceVerdict, Figure)| {
        a.1.value.total_cmp(&b.1.value)
    };
    Some([all.clone().min_by(by)?, all.max_by(by)?])
}

/// The trace of a device, and the device where its trace has others.
fn name(verdict: &DeviceVerdict, all: &[DeviceVerdict]) -> String {
    match all
        .iter()
        .filter(|other| other.trace == verdict.trace)
        .count()
    {
        ..2 => verdict.trace.clone(),
        _ => format!("{} {}", verdict.trace, verdict.device),
    }
}

/// From the least to the largest, or the one number where all show the same.
fn span(verdicts: &[DeviceVerdict], [least, most]: [(&DeviceVerdict, Figure); 2]) -> Sentence {
    let with_name = |of: &DeviceVerdict| format!(" ({})", name(of, verdicts));
    match least.1.text() == most.1.text() {
        true => sentence![least.1],
        false => sentence![
            least.1,
            with_name(least.0),
            " to ",
            most.1,
            with_name(most.0)
        ],
    }
}

fn joined(parts: [Sentence; 3]) -> Sentence {
    Sentence(parts.into_iter().flat_map(|part| part.0).collect())
}

/// Of the picture of a trace.
pub(super) fn atlas(report: &Report, trace: &str) -> Sentence {
    let of_trace = |verdict: &DeviceVerdict| verdict.trace == trace;
    let from = report
        .verdicts
        .iter()
        .position(of_trace)
        .unwrap_or_default();
    let verdicts = &report.verdicts[from..];
    let to = verdicts
        .iter()
        .take_while(|verdict| of_trace(verdict))
        .count();
    let verdicts = &verdicts[..to];
    let rate = |of: &DeviceVerdict| (of.accesses.value > 0.0).then_some(of.misses_per_100_accesses);
    match ends(verdicts, rate) {
        None => sentence![format!("{trace}: no accesses")],
        Some([least, most]) => {
            let device = |of: &DeviceVerdict| format!(" ({})", of.device);
            let span = match least.1.text() == most.1.text() {
                true => sentence![least.1],
                false => sentence![least.1, device(least.0), " to ", most.1, device(most.0)],
            };
            let begin = sentence![format!("{trace}: ")];
            joined([begin, span, sentence![" of 100 accesses miss"]])
        }
    }
}

/// Of the causes of misses.
pub(super) fn causes(verdicts: &[DeviceVerdict]) -> Sentence {
    let share = |of: &DeviceVerdict| (of.misses.value > 0.0).then_some(of.first_touch);
    match ends(verdicts, share) {
        None => sentence!["No access misses"],
        Some(ends) => joined([
            sentence!["First touches, which no larger IOTLB removes, are "],
            span(verdicts, ends),
            sentence![" of misses"],
        ]),
    }
}

/// Of the curve of misses against sizes.
pub(super) fn sizes(report: &Report, verdicts: &[DeviceVerdict]) -> Sentence {
    let Some([least, most]) = ends(verdicts, |verdict| verdict.larger_iotlb_change) else {
        return sentence!["No access misses, whatever the size of the IOTLB"];
    };
    let entries = report.iotlb_entries;
    joined([
        sentence![format!(
            "{} IOTLB entries instead of {entries} change misses by ",
            entries * LARGER
        )],
        // a change: the largest loss is the least number
        span(verdicts, [most, least]),
        sentence![""],
    ])
}

/// Of cost against safety; `None` where costs were not measured.
pub(super) fn safety(systems: &[SystemRow]) -> Option<Sentence> {
    let felt: Vec<(f64, Figure, &SystemRow)> = systems
        .iter()
        .filter_map(|row| Some((row.felt_ns_per_pair()?, row.ns_per_pair_1_thread?, row)))
        .collect();
    let by = |a: &&(f64, Figure, &SystemRow), b: &&(f64, Figure, &SystemRow)| a.0.total_cmp(&b.0);
    let strict = felt.iter().filter(|of| of.2.exposure == Exposure::None);
    let (all, strict) = (felt.iter().min_by(by)?, strict.min_by(by));
    let cost = |(_, time, row): &(f64, Figure, &SystemRow)| {
        let name = format!(" ({})", row.name);
        match row.wait {
            Some(wait) => sentence![*time, " and ", wait, " of wait", name],
            None => sentence![*time, " and no wait", name],
        }
    };
    Some(match strict {
        None => joined([
            sentence!["A map costs at least "],
            cost(all),
            sentence!["; each design leaves a window"],
        ]),
        Some(strict) if strict.0 <= all.0 => joined([
            sentence!["A map costs at least "],
            cost(strict),
            sentence![", without a window"],
        ]),
        Some(strict) => {
            let mut with = sentence!["; with one "];
            with.0.extend(cost(all).0);
            let without = sentence!["A map without a window costs at least "];
            joined([without, cost(strict), with])
        }
    })
}

/// Of maps over time.
pub(super) fn rate(device: &CapturedDevice) -> Sentence {
    match (device.busiest_maps_per_second, device.maps_per_second) {
        (Some(most), Some(mean)) => {
            sentence!["Maps a second: ", mean, " in the mean, ", most, " at most"]
        }
        _ => sentence!["Maps a second"],
    }
}

/// Of mapped pages over time.
pub(super) fn live(device: &CapturedDevice) -> Sentence {
    match device.peak_live_pages {
        Some(peak) => sentence!["Pages mapped at a time: at most ", peak],
        None => sentence!["Pages mapped at a time"],
    }
}

/// Of maps by size.
pub(super) fn map_sizes(device: &CapturedDevice) -> Sentence {
    let by = |a: &&Size, b: &&Size| a.maps.value.total_cmp(&b.maps.value);
    match device.sizes.iter().max_by(by) {
        None => sentence!["No map has a size"],
        Some(most) => sentence![
            "Most frequent size of a map: up to ",
            most.up_to,
            ", ",
            most.maps,
            " of ",
            device.maps,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_present::Unit;

    fn verdict(trace: &str, misses: f64, first_touch: f64) -> DeviceVerdict {
        let count = |value: f64| Figure::simulated(value, Unit::Count);
        let share = |value: f64| Figure::simulated(value, Unit::Percent);
        DeviceVerdict {
            trace: trace.into(),
            device: "d".into(),
            description: None,
            class: None,
            maps: count(1.0),
            accesses: count(100.0),
            peak_live_pages: count(1.0),
            anomalies: count(0.0),
            misses: count(misses),
            misses_per_100_accesses: count(misses),
            first_touch: share(first_touch),
            capacity: share(100.0 - first_touch),
            conflict: share(0.0),
            larger_iotlb_change: None,
            sizes: Vec::new(),
            savings: Vec::new(),
            knobs: crate::report::savings::Knobs::default(),
            remedies: Vec::new(),
        }
    }

    #[test]
    fn causes_are_told_of_those_that_miss_and_with_one_number_where_all_are_the_same() {
        let says = |verdicts: &[DeviceVerdict]| causes(verdicts).plain();
        let (a, b, none) = (
            verdict("a", 7.0, 42.0),
            verdict("b", 9.0, 98.0),
            verdict("c", 0.0, 0.0),
        );
        let (begin, end) = (
            "First touches, which no larger IOTLB removes, are ",
            " of misses",
        );
        assert_eq!(
            says(&[a.clone(), none.clone(), b]),
            format!("{begin}42 % (a) to 98 % (b){end}")
        );
        for same in [vec![a.clone()], vec![a.clone(), a, none.clone()]] {
            assert_eq!(says(&same), format!("{begin}42 %{end}"));
        }
        for nothing in [vec![none], Vec::new()] {
            assert_eq!(says(&nothing), "No access misses");
        }
    }

    #[test]
    fn devices_of_one_trace_are_told_apart() {
        let mut other = verdict("a", 7.0, 98.0);
        other.device = "e".into();
        let says = causes(&[verdict("a", 7.0, 42.0), other]).plain();
        assert!(says.contains("42 % (a d) to 98 % (a e)"), "{says}");
    }
}
