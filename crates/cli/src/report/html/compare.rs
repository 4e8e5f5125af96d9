// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's section of what changed between two traces.

use super::MAX_CARDS;
use crate::loaded::NAME;
use crate::report::compare::{Change, Comparison, DeviceChanges};
use crate::report::model::Report;
use ioatlas_present::Figure;
use ioatlas_present::html::{chip, escaped, quantity};

pub(super) fn compare(report: &Report) -> String {
    let Some(comparison) = &report.comparison else {
        return String::new();
    };
    let paragraph = |text: &str| format!("<p>{}</p>", escaped(text));
    let remarks: String = comparison
        .remarks
        .iter()
        .map(|text| paragraph(text))
        .collect();
    let unmatched: String = comparison
        .unmatched()
        .iter()
        .map(|text| paragraph(text))
        .collect();
    let more = match comparison.devices.len().saturating_sub(MAX_CARDS) {
        0 => String::new(),
        more => format!("<p>{more} more devices are in the JSON.</p>"),
    };
    format!(
        "<section><h2>What changed</h2>{remarks}{}{unmatched}{more}</section>\n",
        table(comparison),
    )
}

fn table(comparison: &Comparison) -> String {
    let devices = &comparison.devices[..comparison.devices.len().min(MAX_CARDS)];
    let mut rows: String = comparison.all_devices.iter().map(row).collect();
    if rows.is_empty() && devices.is_empty() {
        return String::new();
    }
    rows.extend(devices.iter().map(device));
    let [before, after] = comparison.names(NAME);
    format!(
        "<div class=\"scroll\"><table><thead><tr><th></th><th class=\"r\">{}</th><th class=\"r\">{}</th>\
         <th class=\"r\">change</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>",
        escaped(&before),
        escaped(&after),
    )
}

fn device(device: &DeviceChanges) -> String {
    let rows: String = device.changes.iter().map(row).collect();
    let name = escaped(&device.name());
    format!("<tr><th colspan=\"5\"><code>{name}</code></th></tr>{rows}")
}

fn row(change: &Change) -> String {
    let cell = |figure: Option<Figure>| {
        let shown = figure.as_ref().map_or("-".into(), quantity);
        format!("<td class=\"r\">{shown}</td>")
    };
    let tag = change.tag().map(chip).unwrap_or_default();
    format!(
        "<tr><td>{}</td>{}{}{}<td>{tag} {}</td></tr>",
        change.what,
        cell(change.before),
        cell(change.after),
        cell(change.change),
        change.note(),
    )
}
