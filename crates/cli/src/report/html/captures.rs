// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's sections of captures: traces without accesses of their own.

use super::advice::{best, folded};
use super::{MAX_CARDS, csv, not_measured, paragraph, plot, points};
use crate::report::captures::{Capture, CapturedDevice, Linux, Mode, Share, Size};
use crate::report::charts;
use crate::report::model::Report;
use crate::report::remedy;
use ioatlas_present::html::wide_table;
use ioatlas_present::html::{Column, Order, chip, escaped, marked, number, quantity, sentence};
use ioatlas_present::{Figure, Sentence, Tag};
use std::fmt::Write;

pub(super) fn captures(report: &Report) -> String {
    let mut html = String::new();
    let mut room = MAX_CARDS;
    for capture in &report.captures {
        let devices = &capture.devices[..capture.devices.len().min(room)];
        room -= devices.len();
        html += &of(report, capture, devices);
        if room == 0 {
            break;
        }
    }
    let all: usize = report.captures.iter().map(|c| c.devices.len()).sum();
    match all.saturating_sub(MAX_CARDS) {
        0 => html,
        more => html + &format!("<p>{more} more devices are in the JSON.</p>\n"),
    }
}

fn of(report: &Report, capture: &Capture, devices: &[CapturedDevice]) -> String {
    let cards: String = devices.iter().map(|device| card(capture, device)).collect();
    let (class, lost) = match capture.usable {
        true => ("", ""),
        false => (
            " class=\"unusable\"",
            "<p class=\"lost\">Events of this trace were lost: none of these numbers is to be used.</p>",
        ),
    };
    format!(
        "<section{class}><h2>{} {}</h2>{lost}<p>{}</p>{}<div class=\"captures\">{cards}</div></section>\n",
        escaped(&capture.trace),
        chip(Tag::Counted),
        sentence(&capture.heading()),
        modes(report, capture),
    )
}

/// What each mode of the kernel costs at this rate.
fn modes(report: &Report, capture: &Capture) -> String {
    let Some(costs) = &capture.costs else {
        return "<p class=\"note\">Without times there are no rates, and without rates no costs. Record with \
                <code>ioatlas capture</code>, or keep the times of the tracer.</p>"
            .into();
    };
    let row = |mode: &Mode| {
        let rate = mode.invalidations_per_second.as_ref();
        let range = |[low, high]: [Figure; 2]| format!("{} to {}", number(&low), number(&high));
        let linux = |of: fn(Linux) -> [Figure; 2]| mode.linux.map(of).map_or("-".into(), range);
        format!(
            "<tr><td>{}</td><td class=\"w\"><code>{}</code></td><td class=\"r\">{}</td><td class=\"r\">{}</td>\
             <td class=\"r\">{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td><td>{}</td></tr>",
            mode.name,
            mode.knob,
            mode.cpus_busy.as_ref().map_or("-".into(), number),
            linux(|linux| linux.cpus_busy),
            mode.ns_per_pair.as_ref().map_or("-".into(), number),
            linux(|linux| linux.ns_per_pair),
            rate.map_or("-".into(), number),
            sentence(&mode.reach()),
        )
    };
    let rows: String = costs.modes.iter().map(row).collect();
    let columns = [
        Column::words("mode"),
        Column::words("asked for by"),
        Column::numbers("CPUs busy with it"),
        Column::numbers("with Linux's own code"),
        Column::numbers("ns a map and unmap").of(Tag::Measured),
        Column::numbers("in Linux's own code"),
        Column::numbers("invalidations a second"),
        Column::words("a device may reach what was unmapped"),
    ];
    format!(
        "<h3>What each mode costs at this rate {}</h3>{}{}\
         <p class=\"note\">CPUs busy: the capture&#39;s own rates of maps and unmaps, counted, times what a map and its unmap take \
         in this project&#39;s code, measured on this machine, and what an invalidation takes, assumed (<code>--inv-ns</code>): one an \
         unmap under strict, at most one a full queue and tick under lazy. Linux&#39;s own code: that of {} for IOVAs and \
         VT-d, compiled in user space and measured on another machine, the fastest to the slowest of three passes; the \
         kernel&#39;s layers above the IOMMU come on top.</p>",
        chip(Tag::Assumed),
        wide_table(&columns, Order::Fixed, &rows),
        not_measured(report),
        Linux::VERSION,
    )
}

fn card(capture: &Capture, device: &CapturedDevice) -> String {
    let counted = |says: &Sentence| paragraph(says, Tag::Counted);
    let plain = |says: Option<Sentence>| says.as_ref().map(counted).unwrap_or_default();
    let small = match capture.takes_little() {
        true => "<p>Maps take so little here that there is no time to gain.</p>",
        false => "",
    };
    let remedies = match best(&device.remedies, device.class) {
        _ if !capture.usable => format!("<p>{}</p>", remedy::NONE_OF_LOST),
        says if says.is_empty() => says,
        says => format!("<h4>What to do</h4>{says}"),
    };
    let folded = folded(&device.remedies, device.class);
    format!(
        "<article class=\"card\"><h3><code>{}</code></h3>{}{}{}{small}{remedies}{folded}{}{}{}</article>",
        escaped(&device.device),
        counted(&device.workload()),
        plain(device.reach()),
        plain(device.users(3)),
        drawings(capture, device),
        details(device),
        plain(device.prefetching()),
    )
}

/// Rate and mapped pages, where times are known, and sizes.
fn drawings(capture: &Capture, device: &CapturedDevice) -> String {
    let draw = |file: &str, point: &Sentence, drawing: String, numbers: &str| {
        plot(
            "",
            file,
            &marked(point, Some(Tag::Counted)),
            &drawing,
            Some(numbers),
        )
    };
    let mut drawn = String::new();
    let seconds = capture.span_s;
    if seconds > 0.0 && !device.timeline.is_empty() {
        let slot_s = seconds / device.timeline.len() as f64;
        let rates = device.timeline.iter().map(|slot| slot.maps as f64 / slot_s);
        let live = device.timeline.iter().map(|slot| slot.live_pages.0 as f64);
        let numbers = csv::timeline(&device.timeline, seconds);
        for (file, point, values) in [
            (
                "maps-over-time",
                points::rate(device),
                rates.collect::<Vec<f64>>(),
            ),
            ("pages-over-time", points::live(device), live.collect()),
        ] {
            let drawing = charts::over_time(&point.plain(), &values, seconds);
            drawn += &draw(file, &point, drawing, &numbers);
        }
    }
    let point = points::map_sizes(device);
    let histogram = charts::size_histogram(&point.plain(), &device.sizes);
    if !histogram.is_empty() {
        drawn += &draw(
            "map-sizes",
            &point,
            histogram,
            &csv::map_sizes(&device.sizes),
        );
    }
    format!("<div class=\"three\">{drawn}</div>")
}

/// All that is known of a device, as a table.
fn details(device: &CapturedDevice) -> String {
    let mut rows = String::new();
    let mut row = |what: &str, figures: &[Option<Figure>]| {
        let shown: Vec<String> = figures.iter().flatten().map(quantity).collect();
        if !shown.is_empty() {
            let shown = shown.join(", ");
            let _ = write!(rows, "<tr><td>{what}</td><td class=\"r\">{shown}</td></tr>");
        }
    };
    row("maps, unmaps", &[Some(device.maps), Some(device.unmaps)]);
    row(
        "maps, unmaps a second",
        &[device.maps_per_second, device.unmaps_per_second],
    );
    row("anomalies", &[device.anomalies]);
    if let Some(of) = device.lifetimes {
        row(
            "mappings seen to end; mapped for: median, 90th and 99th percentile, longest",
            &[of.mappings, of.median, of.p90, of.p99, of.longest].map(Some),
        );
    }
    if let Some(pool) = device.pool {
        row(
            "a page pool: its pages, maps less",
            &[Some(pool.pages), Some(pool.maps)],
        );
    }
    row(
        "maps as large as a frame of an MTU of 1,500",
        &[device.full_frames],
    );
    for Size { up_to, maps } in &device.sizes {
        let what = format!("maps of up to {}", quantity(up_to));
        row(&what, &[Some(*maps)]);
    }
    for (kind, shares) in [("task", &device.tasks), ("CPU", &device.cpus)] {
        for Share { name, share } in shares {
            row(&format!("{kind} {}", escaped(name)), &[Some(*share)]);
        }
    }
    let bounced = device.bouncing.map_or(String::new(), |gain| {
        format!(
            "<tr><td>maps that cost less bounced; change of strict&#39;s time if they are {}</td>\
             <td class=\"r\">{}, {}</td></tr>",
            chip(Tag::Assumed),
            quantity(&gain.maps),
            quantity(&gain.time),
        )
    });
    format!(
        "<details><summary>The numbers</summary><div class=\"scroll\"><table><tbody>{rows}{bounced}</tbody></table></div></details>",
    )
}
