// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report as one self-contained page: no network, two small scripts, which draw
//! the atlas, sort tables and hand out plots. Everything else works without it.

mod advice;
mod atlas;
mod captures;
mod compare;
mod csv;
mod points;
mod systems;

use super::charts;
use super::model::{Loss, Making, Report};
use super::timings::Origin;
use super::verdict::DeviceVerdict;
use crate::loaded::NAME;
use ioatlas_present::html::{Column, Order, chip, document, escaped, marked, number, quantity};
use ioatlas_present::html::{sentence, wide_table};
use ioatlas_present::{Figure, Sentence, Tag, short, svg};
use std::fmt::Write;

/// Cards on the page; the JSON has all.
const MAX_CARDS: usize = 32;

/// Devices whose misses are drawn: more lines than these cannot be told apart.
const MAX_DRAWN: usize = 12;

/// Traces in a table; the JSON has all.
const MAX_TRACES: usize = 32;

/// Characters of the command line; the JSON has all.
const MAX_COMMAND: usize = 1000;

/// The report as one HTML page that needs no other file.
#[must_use]
pub fn page(report: &Report) -> String {
    // what is said of devices' misses
    let of_misses = |sections: &[fn(&Report) -> String]| match report.verdicts.is_empty() {
        true => String::new(),
        false => sections.iter().map(|section| section(report)).collect(),
    };
    // what is wrong and what to do, the picture, then the evidence
    let body = [
        losses(report),
        compare::compare(report),
        captures::captures(report),
        of_misses(&[verdicts, advice::first, atlas::atlases, causes]),
        cost(report),
        systems::systems(report),
        of_misses(&[advice::rest]),
        making(report),
        provenance(report),
    ]
    .concat();
    let body = format!(
        "<header><h1>{}</h1>\
         <p class=\"take\"><button id=\"markdown\">copy as Markdown</button></p>{}</header>\n<main>\n{body}</main>\n\
         <script>\n{}{}</script>\n<script>\n{}</script>",
        title(report),
        legend(),
        include_str!("../look.js"),
        include_str!("../page.js"),
        include_str!("../take.js"),
    );
    document(&title(report), "", &body)
}

/// With the trace's name, where there is one: pages are kept side by side.
fn title(report: &Report) -> String {
    let captures = report.captures.iter().map(|capture| &capture.trace);
    let mut names = captures.chain(report.verdicts.iter().map(|verdict| &verdict.trace));
    match names.next() {
        Some(first) if names.all(|name| name == first) => {
            format!("ioatlas report: {}", escaped(first))
        }
        _ => "ioatlas report".into(),
    }
}

/// Before all else, in red: what was lost makes the rest worthless.
fn losses(report: &Report) -> String {
    let Some(worst) = report.loss_sentence() else {
        return String::new();
    };
    let each = |loss: &Loss| {
        format!(
            "<li>{}: at least {} events, {} of all</li>",
            escaped(&loss.trace),
            number(&loss.events),
            quantity(&loss.share),
        )
    };
    let items: String = report.losses.iter().take(MAX_TRACES).map(each).collect();
    let more = match report.losses.len().saturating_sub(MAX_TRACES) {
        0 => String::new(),
        more => format!("<li>{more} more traces are in the JSON.</li>"),
    };
    format!(
        "<section class=\"lost\"><p>{} {}</p><ul>{items}{more}</ul></section>\n",
        sentence(&worst),
        chip(Tag::Counted),
    )
}

fn legend() -> String {
    let [counted, measured, simulated, assumed] = Tag::LEGEND.map(|(tag, _)| chip(tag));
    let meaning =
        |(tag, meaning): (Tag, &str)| format!("<dt>{}</dt><dd>{meaning}</dd>", tag.name());
    format!(
        "<p class=\"legend\">Numbers are {counted} {measured} {simulated} or {assumed}: each section says which, and marks \
         those that differ.</p><details><summary>Words</summary><dl>{}<dt>pair</dt><dd>one map and its unmap</dd><dt>per 1,000 maps</dt>\
         <dd>per 1,000 map lines of the trace</dd><dt>tables</dt><dd>page-table memory at its peak</dd>\
         <dt>wait</dt><dd>how long a CPU waits for the invalidations that a map causes</dd><dt>window</dt><dd>how long a \
         device may reach a page after its unmap returned</dd><dt>oracle</dt><dd>a checker that watches every map, \
         unmap, invalidation and access</dd><dt>ATC&#39;15</dt><dd>Peleg et al., Utilizing the IOMMU Scalably</dd>\
         <dt>WIOSCA&#39;10</dt><dd>Amit et al., IOMMU: Strategies for Mitigating the IOTLB Bottleneck</dd>\
         <dt>rIOMMU</dt><dd>Malka et al., rIOMMU, ASPLOS 2015</dd></dl></details>",
        Tag::LEGEND.map(meaning).concat()
    )
}

/// A sentence as a paragraph, where numbers are `usual`.
fn paragraph(words: &Sentence, usual: Tag) -> String {
    format!("<p>{}</p>", marked(words, Some(usual)))
}

/// What was assumed, lost or left out. What rests on an assumption says so where it stands.
fn making(report: &Report) -> String {
    if report.made.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<section><h2>How the traces were made {}</h2>",
        chip(Tag::Counted)
    );
    for made in report.made.iter().take(MAX_CARDS) {
        let _ = write!(html, "<h3>{}</h3>", escaped(&made.trace));
        let says = made.notes.iter();
        html.extend(says.map(|note| paragraph(note, Tag::Counted)));
    }
    html += &more_traces(report.made.len(), MAX_CARDS);
    html + "</section>\n"
}

fn verdicts(report: &Report) -> String {
    let shown = &report.verdicts[..report.verdicts.len().min(MAX_CARDS)];
    let cards: String = shown
        .iter()
        .map(|verdict| {
            let assumed = |made: &&Making| made.trace == verdict.trace && made.assumptions > 0;
            card(verdict, report.made.iter().find(assumed))
        })
        .collect();
    let more = match report.verdicts.len() - shown.len() {
        0 => String::new(),
        more => format!("<p>{more} more devices are in the JSON.</p>"),
    };
    let (entries, ways) = (report.iotlb_entries, report.iotlb_ways);
    let mut html = format!(
        "<section><h2>Verdict</h2><p class=\"note\">One card a device; IOTLB of {entries} entries, \
         {ways}-way, shared by the devices of a trace. Misses and their changes are {}, maps, accesses \
         and pages {}.</p><div class=\"cards\">{cards}</div>{more}",
        chip(Tag::Simulated),
        chip(Tag::Counted),
    );
    if !report.variants.is_empty() {
        let rows: String = report.variants.iter().map(variant_row).collect();
        let columns = [
            Column::words("trace"),
            Column::words("device"),
            Column::numbers("misses of 100 accesses"),
            Column::numbers("first touches"),
            Column::numbers("with 8x the entries"),
            Column::numbers("prefetching neighbours (alh)"),
        ];
        let _ = write!(
            html,
            "<details><summary>Variants: the same workloads without the kernel's IOVA reuse cache</summary>{}</details>",
            wide_table(&columns, Order::Fixed, &rows)
        );
    }
    html + "</section>\n"
}

fn card(verdict: &DeviceVerdict, assumed: Option<&Making>) -> String {
    let simulated = |words| paragraph(&words, Tag::Simulated);
    format!(
        "<article class=\"card\"><h3>{} <code>{}</code></h3><p class=\"note\">{}</p>\
         <p class=\"big\">{} {}</p>{}{}{}{}</article>",
        escaped(&verdict.trace),
        escaped(&verdict.device),
        escaped(verdict.description.unwrap_or("given on the command line")),
        sentence(&verdict.rate()),
        // what was simulated is itself assumed, at least in part
        assumed
            .map(|_| chip(Tag::Assumed) + " in part: see how the traces were made")
            .unwrap_or_default(),
        simulated(verdict.cause()),
        simulated(verdict.remedy()),
        verdict.prefetching().map(simulated).unwrap_or_default(),
        paragraph(&verdict.workload(), Tag::Counted),
    )
}

fn variant_row(verdict: &DeviceVerdict) -> String {
    format!(
        "<tr><td>{}</td><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>",
        escaped(&verdict.trace),
        escaped(&verdict.device),
        number(&verdict.misses_per_100_accesses),
        number(&verdict.first_touch),
        verdict
            .larger_iotlb_change
            .as_ref()
            .map_or("-".into(), number),
        verdict.saving("alh").as_ref().map_or("-".into(), number),
    )
}

/// A drawing that a reader can take away: the script makes the buttons work. `csv` is what
/// it shows as numbers; the script knows those of an atlas.
fn plot(class: &str, file: &str, caption: &str, drawing: &str, csv: Option<&str>) -> String {
    let csv = csv.map(|csv| format!(" data-csv=\"{}\"", escaped_lines(csv)));
    format!(
        "<figure class=\"plot {class}\" data-file=\"{file}\"{}><figcaption>{caption} <span class=\"take\">\
         <button data-take=\"svg\">SVG</button> <button data-take=\"csv\">CSV</button></span></figcaption>\
         {drawing}</figure>",
        csv.unwrap_or_default()
    )
}

/// Like [`escaped`], but lines stay lines.
fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("&#10;")
}

fn causes(report: &Report) -> String {
    let shown = &report.verdicts[..report.verdicts.len().min(MAX_DRAWN)];
    let bar = |verdict: &DeviceVerdict| {
        let piece = |class: &str, figure: &Figure| {
            format!(
                "<span class=\"{class}\" style=\"flex-grow:{:.3}\"></span>",
                figure.value
            )
        };
        format!(
            "<div class=\"cause\"><div>{} <code>{}</code></div><div class=\"bar\" aria-hidden=\"true\">{}{}{}</div>\
             <div>{} first touch, {} capacity, {} conflict, of {} misses</div></div>",
            escaped(&verdict.trace),
            escaped(&verdict.device),
            piece("first", &verdict.first_touch),
            piece("capacity", &verdict.capacity),
            piece("conflict", &verdict.conflict),
            number(&verdict.first_touch),
            number(&verdict.capacity),
            number(&verdict.conflict),
            number(&verdict.misses),
        )
    };
    let bars: String = shown.iter().map(bar).collect();
    let key = |(number, verdict): (usize, &DeviceVerdict)| {
        format!(
            "<span><i class=\"{}\"></i>{} {}</span>",
            svg::series(number),
            escaped(&verdict.trace),
            escaped(&verdict.device)
        )
    };
    let keys: String = match shown.len() > charts::MOST_NAMED {
        true => shown.iter().enumerate().map(key).collect(),
        false => String::new(),
    };
    let by_cause = points::causes(shown);
    let by_size = points::sizes(report, shown);
    let curve = charts::size_curve(&by_size.plain(), shown);
    format!(
        "<section><h2>Why they miss {}</h2><p class=\"note\"><i class=\"first\"></i>first touch: the page was \
         not accessed since it was mapped; no larger IOTLB removes it. <i class=\"capacity\"></i>capacity: more \
         entries help. <i class=\"conflict\"></i>conflict: more ways help.</p><div class=\"pair\">{}{}</div>{}{}</section>\n",
        chip(Tag::Simulated),
        plot(
            "bars",
            "why-they-miss",
            &sentence(&by_cause),
            &bars,
            Some(&csv::causes(shown))
        ),
        plot(
            "",
            "misses-against-size",
            &sentence(&by_size),
            &format!(
                "<p class=\"note\">Misses in 100 accesses, by size of the IOTLB.</p><p class=\"keys\">{keys}</p>{curve}"
            ),
            Some(&csv::sizes(shown)),
        ),
        sizes(shown),
        match report.verdicts.len() - shown.len() {
            0 => String::new(),
            more => format!("<p>{more} more devices are in the JSON.</p>"),
        },
    )
}

fn sizes(verdicts: &[DeviceVerdict]) -> String {
    let Some(first) = verdicts.first() else {
        return String::new();
    };
    let sizes = first.sizes.iter();
    let sizes = sizes.map(|point| Column::numbers(&format!("{} entries", point.entries)));
    let names = [Column::words("trace"), Column::words("device")];
    let columns: Vec<Column> = names.into_iter().chain(sizes).collect();
    let row = |verdict: &DeviceVerdict| {
        let cell = |point: &super::verdict::SizePoint| {
            format!(
                "<td class=\"r\">{} ({})</td>",
                number(&point.misses_per_100_accesses),
                number(&point.misses)
            )
        };
        let cells: String = verdict.sizes.iter().map(cell).collect();
        let (trace, device) = (escaped(&verdict.trace), escaped(&verdict.device));
        format!("<tr><td>{trace}</td><td>{device}</td>{cells}</tr>")
    };
    let rows: String = verdicts.iter().map(row).collect();
    format!(
        "<details><summary>The numbers: misses in 100 accesses (misses)</summary>{}</details>",
        wide_table(&columns, Order::Fixed, &rows)
    )
}

fn cost(report: &Report) -> String {
    if report.systems.is_empty() {
        return String::new();
    }
    let Some(point) = points::safety(&report.systems) else {
        let why = not_measured(report);
        return format!("<section><h2>Cost against safety</h2>{why}</section>\n");
    };
    let drawing =
        charts::cost_against_safety(&point.plain(), &report.systems, report.wait.time.value);
    format!(
        "<section><h2>Cost against safety {}</h2><div class=\"pair\">{}<p class=\"note\">Left is cheaper, lower is safer; nothing lies both \
         left of and below the dashed line, and what is hollow is beaten in both. Upwards: how long a device may reach a page after its unmap \
         returned (the longest seen in the traces, counted; else the configured bound, assumed; where it is what the unit takes, the wait for \
         one invalidation, assumed). To the right: the time of a map and its unmap, measured, and the wait of the traces&#39; invalidations \
         for each map, assumed.</p></div></section>\n",
        chip(Tag::Measured),
        plot(
            "",
            "cost-against-safety",
            &marked(&point, Some(Tag::Measured)),
            &drawing,
            Some(&csv::systems(&report.systems)),
        ),
    )
}

/// Why no times of this machine are there, if so, and how to get them.
fn not_measured(report: &Report) -> String {
    match &report.provenance.timings {
        times @ Origin::NotMeasured { .. } => format!("<p>Times of this machine: {times}.</p>"),
        _ => String::new(),
    }
}

/// A row that says how many traces a table leaves out, if it does.
fn more_traces(traces: usize, shown: usize) -> String {
    match traces.saturating_sub(shown) {
        0 => String::new(),
        more => format!("<tr><td colspan=\"3\">{more} more traces are in the JSON.</td></tr>"),
    }
}

fn provenance(report: &Report) -> String {
    let origin = &report.provenance;
    let trace = |trace: &super::model::TraceOrigin| {
        format!(
            "<tr><td class=\"long\">{}</td><td class=\"r\">{}</td><td><code>{}</code></td></tr>",
            escaped(&short(&trace.name, NAME)),
            number(&trace.events),
            escaped(&trace.sha256)
        )
    };
    let shown = origin.traces.iter().take(MAX_TRACES);
    let traces: String = shown.map(trace).collect();
    let traces = traces + &more_traces(origin.traces.len(), MAX_TRACES);
    format!(
        "<section><h2>Provenance</h2><dl><dt>command</dt><dd><code>{}</code></dd><dt>program</dt>\
         <dd>ioatlas {}, commit <code>{}</code></dd><dt>machine</dt><dd>{}, {} CPUs</dd><dt>times</dt><dd>{}</dd></dl>\
         <div class=\"scroll\"><table><thead><tr><th>trace</th><th class=\"r\">events {}</th><th>SHA-256 of the \
         file</th></tr></thead><tbody>{traces}</tbody></table></div></section>\n",
        escaped(&short(&origin.command, MAX_COMMAND)),
        origin.version,
        escaped(origin.commit),
        escaped(&origin.cpu),
        origin.cpus,
        origin.timings,
        chip(Tag::Counted),
    )
}
