// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The numbers behind the page's plots, as comma-separated values.

use crate::report::systems::{Exposure, SystemRow};
use crate::report::verdict::DeviceVerdict;
use ioatlas_present::Figure;

/// A field that stands for itself; formulas of spreadsheets do not start.
fn field(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@']);
    let text = if formula {
        format!("'{text}")
    } else {
        text.into()
    };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

fn lines(heading: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows = rows.map(|row| row.join(","));
    std::iter::once(heading.to_owned())
        .chain(rows)
        .collect::<Vec<_>>()
        .join("\n")
}

fn value(figure: &Figure) -> String {
    figure.value.to_string()
}

/// Why devices miss, a line a device.
pub(super) fn causes(verdicts: &[DeviceVerdict]) -> String {
    let row = |verdict: &DeviceVerdict| {
        let figures = [
            &verdict.misses,
            &verdict.first_touch,
            &verdict.capacity,
            &verdict.conflict,
        ];
        let names = [field(&verdict.trace), field(&verdict.device)];
        names.into_iter().chain(figures.map(value)).collect()
    };
    let heading = "trace,device,misses,first touch %,capacity %,conflict %";
    lines(heading, verdicts.iter().map(row))
}

/// Misses against the size of the IOTLB, a line a device and size.
pub(super) fn sizes(verdicts: &[DeviceVerdict]) -> String {
    let rows = verdicts.iter().flat_map(|verdict| {
        verdict.sizes.iter().map(|point| {
            vec![
                field(&verdict.trace),
                field(&verdict.device),
                point.entries.to_string(),
                value(&point.misses),
                value(&point.misses_per_100_accesses),
            ]
        })
    });
    lines("trace,device,entries,misses,misses per 100 accesses", rows)
}

/// Cost and window, a line a system.
pub(super) fn systems(systems: &[SystemRow]) -> String {
    let row = |row: &SystemRow| {
        let (unmaps, time) = match &row.exposure {
            Exposure::None => ("0".into(), "0".into()),
            Exposure::Bounded {
                operations_bound,
                time_bound,
                ..
            } => (
                value(operations_bound),
                time_bound.as_ref().map_or("unit".into(), value),
            ),
            Exposure::Unbounded { .. } => ("unbounded".into(), "unbounded".into()),
        };
        vec![
            field(&row.name),
            field(&row.design),
            value(&row.ns_per_pair_1_thread),
            row.wait.as_ref().map_or(String::new(), value),
            unmaps,
            time,
        ]
    };
    let heading = "system,design,ns a pair (measured),wait ns (assumed),window unmaps,window ms";
    lines(heading, systems.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_are_one_field_and_no_formula() {
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("=1+1"), "'=1+1");
        assert_eq!(field("00:04.0"), "00:04.0");
    }
}
