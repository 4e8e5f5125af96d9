// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The numbers behind the page's plots, as comma-separated values.

use crate::report::captures::Size;
use crate::report::systems::{Exposure, SystemRow};
use crate::report::verdict::DeviceVerdict;
use ioatlas_iotlb::Slot;
use ioatlas_present::{Figure, Table};

/// A name from outside, which starts no formula of a spreadsheet.
fn name(text: &str) -> String {
    match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text.into(),
    }
}

fn value(figure: &Figure) -> String {
    figure.value.to_string()
}

/// Why devices miss, a line a device.
pub(super) fn causes(verdicts: &[DeviceVerdict]) -> String {
    let mut table = Table::new([
        "trace",
        "device",
        "misses",
        "first touch %",
        "capacity %",
        "conflict %",
    ]);
    for verdict in verdicts {
        table.row([
            name(&verdict.trace),
            name(&verdict.device),
            value(&verdict.misses),
            value(&verdict.first_touch),
            value(&verdict.capacity),
            value(&verdict.conflict),
        ]);
    }
    table.csv()
}

/// Misses against the size of the IOTLB, a line a device and size.
pub(super) fn sizes(verdicts: &[DeviceVerdict]) -> String {
    let mut table = Table::new([
        "trace",
        "device",
        "entries",
        "misses",
        "misses per 100 accesses",
    ]);
    for verdict in verdicts {
        for point in &verdict.sizes {
            table.row([
                name(&verdict.trace),
                name(&verdict.device),
                point.entries.to_string(),
                value(&point.misses),
                value(&point.misses_per_100_accesses),
            ]);
        }
    }
    table.csv()
}

/// Maps, unmaps and mapped pages of a device over the time of its capture, a line a slot.
pub(super) fn timeline(slots: &[Slot], seconds: f64) -> String {
    let mut table = Table::new(["from s", "maps", "unmaps", "pages mapped at most"]);
    for (at, slot) in slots.iter().enumerate() {
        table.row([
            (seconds * at as f64 / slots.len() as f64).to_string(),
            slot.maps.to_string(),
            slot.unmaps.to_string(),
            slot.live_pages.0.to_string(),
        ]);
    }
    table.csv()
}

/// How many maps there are of each size, a line a size.
pub(super) fn map_sizes(sizes: &[Size]) -> String {
    let mut table = Table::new(["bytes up to", "maps"]);
    for Size { up_to, maps } in sizes {
        table.row([value(up_to), value(maps)]);
    }
    table.csv()
}

/// Cost and window, a line a system.
pub(super) fn systems(systems: &[SystemRow]) -> String {
    let mut table = Table::new([
        "system",
        "design",
        "ns a pair (measured)",
        "wait ns (assumed)",
        "window unmaps",
        "window ms",
    ]);
    for row in systems {
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
        table.row([
            name(&row.name),
            name(&row.design),
            row.ns_per_pair_1_thread
                .as_ref()
                .map_or(String::new(), value),
            row.wait.as_ref().map_or(String::new(), value),
            unmaps,
            time,
        ]);
    }
    table.csv()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_start_no_formula() {
        assert_eq!(name("=1+1"), "'=1+1");
        assert_eq!(name("00:04.0"), "00:04.0");
    }
}
