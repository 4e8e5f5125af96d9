// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report on a terminal: at most 24 lines of 100 columns, more only where more rows were asked
//! for than the default has, or where the terminal is narrower. There sentences go on in a line
//! more, and a table that does not fit goes without the designs, or each of its rows becomes a
//! sentence.

use super::captures::{Capture, CapturedDevice};
use super::compare::{self, Comparison};
use super::model::{Report, Source};
use super::remedy::{self, Remedy};
use super::systems::Exposure;
use super::timings::Origin;
use super::verdict::DeviceVerdict;
use crate::Screen;
use crate::record::Class;
use ioatlas_present::{Sentence, columns, printable, wrapped};

/// Lines of the smallest terminal that people still use.
pub const MAX_LINES: usize = 24;
/// Columns of a line, at most.
pub const MAX_COLUMNS: usize = 100;

/// Lines for devices and what is said of all of them, where the rows of systems leave no room.
const MIN_VERDICTS: usize = 10;

/// Least room for the name of a trace and device.
const MIN_NAME_COLUMNS: usize = 12;

/// What the costs of a capture's modes are of.
fn whose_code(times: &Origin) -> String {
    let ours = match times {
        Origin::NotMeasured { .. } => "not measured (--no-bench)",
        _ => "this project's code, measured here",
    };
    format!("CPUs busy: {ours}; Linux's own: 6.12, measured elsewhere, see the page")
}

/// Renders the report for a screen: its title bold, and what was lost in red. `page_bytes` is the
/// size of the page that was written.
#[must_use]
pub fn render(report: &Report, page_bytes: usize, screen: &Screen) -> String {
    let width = screen.columns().unwrap_or(MAX_COLUMNS).min(MAX_COLUMNS);
    let lines = lines(report, page_bytes, width);
    lines
        .iter()
        .map(|line| printed(line, width, screen))
        .collect()
}

/// A line as the screen shows it, in several where it is narrower than all are to be.
fn printed(line: &str, width: usize, screen: &Screen) -> String {
    let whole = printable(line, usize::MAX);
    let whole = match width == MAX_COLUMNS || fits(&whole, width) {
        true => whole,
        false => {
            let indent = whole.len() - whole.trim_start().len();
            format!(
                "{:indent$}{}",
                "",
                wrapped(&whole, width, indent, indent + 2)
            )
        }
    };
    let shown = |text: &str| {
        let text = printable(text, width);
        match line {
            line if line.starts_with("LOST") => screen.alarm(&text),
            line if line.starts_with("ioatlas report") => screen.heading(&text),
            _ => text,
        }
    };
    whole.lines().map(|text| shown(text) + "\n").collect()
}

fn fits(line: &str, width: usize) -> bool {
    printable(line, width).len() == line.len()
}

/// The lines of the report; only those of tables keep to the width.
fn lines(report: &Report, page_bytes: usize, width: usize) -> Vec<String> {
    let systems = match report.is_of_captures() && report.systems.is_empty() {
        // of captures alone, what their modes cost is said at their own rate instead
        true => {
            let costs = report.captures.iter().any(|of| of.costs.is_some());
            let whose = costs.then(|| whose_code(&report.provenance.timings));
            whose
                .into_iter()
                .chain([report.wait_sentence().plain()])
                .collect()
        }
        false => systems(report, width),
    };
    let mut closing = closing(report, page_bytes);
    let mut perfetto = perfetto(report);
    if report.is_of_captures() {
        // they have room
        closing.splice(closing.len() - 1..closing.len() - 1, perfetto.take());
    }
    let loss = report.loss_sentence().map(|words| words.plain());
    let mut lines: Vec<String> = loss.into_iter().chain([heading(report)]).collect();
    lines.extend(assumptions(report, width));
    lines.extend(cut(report));
    let compared_to = report.comparison.as_ref().filter(|of| of.tells());
    if let Some(comparison) = compared_to {
        lines.extend(compared(
            report,
            comparison,
            lines.len() + closing.len(),
            width,
        ));
        if lines.len() + systems.len() + closing.len() <= MAX_LINES {
            lines.extend(systems);
        }
        return finished(lines, closing, perfetto);
    }
    let tail = [systems, closing].concat();
    // why nothing is compared, where nothing is
    let why = report.comparison.iter().flat_map(Comparison::closing);
    let why: Vec<String> = why.collect();
    let room = MAX_LINES.saturating_sub(lines.len() + why.len() + tail.len());
    let of_captures = captures(report, room, width);
    let room = room.saturating_sub(of_captures.len());
    lines.extend(of_captures);
    if !report.is_of_captures() {
        lines.extend(verdicts(report, room));
    }
    let room = MAX_LINES.saturating_sub(lines.len() + tail.len());
    lines.extend(why.into_iter().take(room));
    let bouncing = report.bouncing.filter(|_| !report.verdicts.is_empty());
    if let (Some(bouncing), true) = (bouncing, lines.len() + tail.len() < MAX_LINES) {
        lines.push(bouncing.sentence().plain());
    }
    finished(lines, tail, perfetto)
}

/// All lines, and before the last of them this one, if there is room.
fn finished(mut lines: Vec<String>, tail: Vec<String>, more: Option<String>) -> Vec<String> {
    lines.extend(tail);
    if lines.len() < MAX_LINES {
        lines.splice(lines.len() - 1..lines.len() - 1, more);
    }
    lines
}

/// What changed between two traces, beside so many lines; what each is alone is on the page.
fn compared(report: &Report, comparison: &Comparison, others: usize, width: usize) -> Vec<String> {
    let alone = |capture: &Capture| format!("{}: {}", capture.trace, capture.heading().plain());
    let mut lines: Vec<String> = report.captures.iter().map(alone).collect();
    let room = MAX_LINES.saturating_sub(others + lines.len());
    lines.extend(compare::terminal::lines(comparison, room, width));
    lines
}

fn heading(report: &Report) -> String {
    let (entries, ways) = (report.iotlb_entries, report.iotlb_ways);
    let traces = report.provenance.traces.len();
    match report.source {
        Source::Bundled => {
            let variants = report
                .provenance
                .traces
                .iter()
                .filter(|t| t.is_variant)
                .count();
            format!(
                "ioatlas report: {} bundled traces (+{variants} variants), IOTLB of {entries} entries, \
                 {ways}-way; misses simulated",
                traces - variants
            )
        }
        Source::User if report.is_of_captures() => {
            let plural = if traces == 1 { "" } else { "s" };
            format!("ioatlas report: {traces} capture{plural} of maps and unmaps")
        }
        Source::User => {
            let plural = if traces == 1 { "" } else { "s" };
            format!(
                "ioatlas report: {traces} trace{plural}, IOTLB of {entries} entries, {ways}-way; misses \
                 simulated"
            )
        }
    }
}

/// What is assumed of the first trace of which anything is, in a few lines; the page has the rest.
fn assumptions(report: &Report, width: usize) -> Vec<String> {
    const LINES: usize = 3;
    let assumed = report.made.iter().filter(|made| made.assumptions > 0);
    let Some(first) = assumed.clone().next() else {
        return Vec::new();
    };
    let mut words = format!(
        "ASSUMED of {}:",
        and_more(&first.trace, assumed.count() - 1)
    );
    for note in &first.notes[..first.assumptions] {
        words += " ";
        words += note.plain().trim_start_matches("assumed: ");
    }
    let lines = wrapped(&words, MAX_COLUMNS, 0, 0);
    let lines: Vec<&str> = lines.lines().take(LINES).collect();
    match width == MAX_COLUMNS {
        true => lines.into_iter().map(String::from).collect(),
        false => vec![lines.join(" ")],
    }
}

/// Which trace ends in the middle of a line, and so may lack more than that.
fn cut(report: &Report) -> Option<String> {
    let mut traces = report.made.iter().filter(|made| made.is_cut);
    let first = &traces.next()?.trace;
    let named = and_more(first, traces.count());
    Some(format!("CUT: {named}: the last line was cut, left out"))
}

fn and_more(first: &str, more: usize) -> String {
    match more {
        0 => first.into(),
        more => format!("{first} (and {more} more traces)"),
    }
}

/// What each mode costs and what each device does, of as many captures and devices as fit.
fn captures(report: &Report, room: usize, width: usize) -> Vec<String> {
    // what verdicts need at least stays theirs
    let room = match report.verdicts.len() {
        0 => room,
        _ => room.saturating_sub(MIN_VERDICTS),
    };
    let (mut lines, mut left) = (Vec::new(), 0);
    for capture in &report.captures {
        // a line is kept for what does not fit
        let fits = |more: &[String], lines: &[String]| lines.len() + more.len() < room;
        let mut head = vec![format!("{}: {}", capture.trace, capture.heading().plain())];
        head.extend(modes(capture, width));
        let mut devices = capture
            .devices
            .iter()
            .map(|device| captured(capture, device));
        let first = devices.next().unwrap_or_default();
        if left > 0 || !fits(&[head.clone(), first.clone()].concat(), &lines) {
            left += capture.devices.len();
            continue;
        }
        lines.extend(head.into_iter().chain(first));
        for device in devices {
            match left == 0 && fits(&device, &lines) {
                true => lines.extend(device),
                false => left += 1,
            }
        }
    }
    if left > 0 && room > 0 {
        lines.push(format!("... {left} more devices: see the page"));
    }
    lines
}

/// The table of a capture's modes.
fn modes(capture: &Capture, width: usize) -> Vec<String> {
    let Some(costs) = &capture.costs else {
        return Vec::new();
    };
    let heading = [
        "  all assumed",
        "",
        "CPUs busy",
        "Linux's own",
        "a device may reach what was unmapped",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for mode in &costs.modes {
        let busy = || mode.cpus_busy.map_or("-".into(), |cpus| cpus.text());
        let linux = mode
            .linux
            .map(|linux| linux.cpus_busy.map(|cpus| cpus.text()));
        rows.push(vec![
            format!("  {}", mode.name),
            mode.knob.into(),
            busy(),
            linux.map_or_else(busy, |[low, high]| format!("{low}-{high}")),
            mode.reach().plain(),
        ]);
    }
    let lines = columns("lllll", 2, &rows);
    match width == MAX_COLUMNS || lines.iter().all(|line| fits(line, width)) {
        true => lines,
        false => {
            let row = |row: &Vec<String>| in_words(&row[..2].join(" "), &heading[2..], &row[2..]);
            let rows = rows[1..].iter().map(row);
            [format!("{}:", heading[0])]
                .into_iter()
                .chain(rows)
                .collect()
        }
    }
}

/// A row of a table that does not fit, as a sentence: so it stays one line, which goes on where it
/// has to.
fn in_words(title: &str, names: &[&str], cells: &[String]) -> String {
    let cells = names.iter().zip(cells);
    let cells = cells.map(|(name, cell)| format!("{name} {cell}"));
    let cells: Vec<String> = cells.collect();
    format!("{title}: {}", cells.join(", "))
}

/// A device of a capture, in a few lines.
fn captured(capture: &Capture, device: &CapturedDevice) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {} [counted]",
        device.device,
        device.workload().plain()
    )];
    let says = [device.reach(), device.users(3)];
    lines.extend(
        says.iter()
            .flatten()
            .map(|says| format!("  {}", says.plain())),
    );
    lines.extend(helps(&device.remedies, device.class, !capture.usable));
    lines
}

/// The best that one can have today, as many as fit into a line; nothing if there is none. That
/// there is none because events were lost is said.
fn helps(remedies: &[Remedy], class: Option<Class>, lost: bool) -> Option<String> {
    if lost {
        return Some(format!("  {}", remedy::NONE_OF_LOST));
    }
    let mut line = String::new();
    for remedy in remedy::first(remedies) {
        let says = remedy.brief(class).plain();
        let next = match line.is_empty() {
            true => format!("  today: {says}"),
            false => format!("{line}; {says}"),
        };
        if next.chars().count() <= MAX_COLUMNS {
            line = next;
        }
    }
    (!line.is_empty()).then_some(line)
}

/// Three lines a device, as many devices as fit.
fn verdicts(report: &Report, room: usize) -> Vec<String> {
    const LINES: usize = 3;
    let verdicts = &report.verdicts;
    let room = room.max(MIN_VERDICTS);
    let all_fit = verdicts.len() * LINES <= room;
    let shown = if all_fit {
        verdicts.len()
    } else {
        (room - 1) / LINES
    };
    let mut lines: Vec<String> = verdicts[..shown]
        .iter()
        .flat_map(|of| verdict(of, report.is_lossy(&of.trace)))
        .collect();
    if !all_fit {
        lines.push(format!(
            "... {} more devices: see the page",
            verdicts.len() - shown
        ));
    }
    lines
}

fn verdict(verdict: &DeviceVerdict, lost: bool) -> Vec<String> {
    // What is said of the device is whole; its name takes the room that is left.
    let workload = format!(": {} [counted]", verdict.workload().plain());
    let description = verdict
        .description
        .map(|d| format!(" {d}"))
        .unwrap_or_default();
    let name = format!("{} {}{description}", verdict.trace, verdict.device);
    let room = MAX_COLUMNS
        .saturating_sub(workload.chars().count())
        .max(MIN_NAME_COLUMNS);
    let mut lines = vec![
        printable(&name, room) + &workload,
        format!("  {}", verdict.brief().plain()),
    ];
    lines.extend(helps(&verdict.remedies, verdict.class, lost));
    lines
}

fn systems(report: &Report, width: usize) -> Vec<String> {
    if report.systems.is_empty() {
        return vec!["Systems: none was run.".into()];
    }
    let fit = |rows: &[Vec<String>], sides| {
        let lines = columns(sides, 1, rows);
        let all_fit = lines.iter().all(|line| fits(line, width));
        (lines, all_fit)
    };
    let shown = systems_table(report, Design::Shown);
    let hidden = systems_table(report, Design::Hidden);
    let mut lines = match (fit(&shown, "llr"), fit(&hidden, "lr")) {
        ((lines, true), _) | (_, (lines, true)) => lines,
        (_, (lines, false)) if width == MAX_COLUMNS => lines,
        _ => systems_in_words(&hidden),
    };
    if report.systems.iter().any(|row| row.wait.is_some()) {
        let each = report.wait_of_each().plain();
        lines.push(format!("inv: counted; wait: each {each}"));
    }
    lines
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Design {
    Shown,
    Hidden,
}

fn systems_table(report: &Report, design: Design) -> Vec<Vec<String>> {
    // Left of the bar is what this machine takes, whatever the traces, and right of it what follows
    // from the traces. One space between columns, as designs without options and with four-digit
    // numbers then just fit.
    let whose = match report.source {
        Source::Bundled => "these",
        Source::User => "your",
    };
    let traces = match report.provenance.traces.len() {
        1 => "trace:",
        _ => "traces:",
    };
    let mut rows = [
        [
            "",
            "as built here; measured",
            "on this",
            "machine",
            "|",
            whose,
            traces,
            "simul.",
            "counted",
            "window:",
        ],
        [
            "system",
            "ns a map+unmap, 256 held",
            "1 thr.",
            "2 thr.",
            "|",
            "inv/1k",
            "wait ns",
            "miss/1k",
            "tab KiB",
            "ops/time",
        ],
    ]
    .map(|row| row.map(String::from).to_vec())
    .to_vec();
    for row in &report.systems {
        rows.push(vec![
            match design {
                Design::Shown => row.system().into(),
                Design::Hidden => row.name.clone(),
            },
            row.design.clone(),
            row.ns_per_pair_1_thread
                .map_or("-".into(), |figure| figure.text()),
            row.ns_per_pair_2_threads
                .map_or("-".into(), |figure| figure.text()),
            "|".into(),
            row.invalidations_per_1k_maps.text(),
            row.wait.map_or("-".into(), |wait| wait.text()),
            row.misses_per_1k_maps
                .map_or("-".into(), |figure| figure.text()),
            row.table_memory.text(),
            exposure(&row.exposure),
        ]);
    }
    if design == Design::Hidden {
        // what the column that goes says of the two beside it
        rows[0][0] = "ns a pair, measured".into();
        rows.iter_mut().for_each(|row| drop(row.remove(1)));
    }
    rows
}

/// The rows below the headings, each with the names of its numbers.
fn systems_in_words(rows: &[Vec<String>]) -> Vec<String> {
    const NAMES: [&str; 7] = [
        "1 thread",
        "2 threads",
        "invalidations per 1k maps",
        "wait ns a map",
        "misses per 1k maps",
        "page tables KiB",
        "window (unmaps/time)",
    ];
    let heading = "System: ns a map+unmap as built here, 256 held, measured on this machine; what \
                   follows from the traces:";
    let row = |row: &Vec<String>| {
        let numbers = [&row[1..3], &row[4..]].concat(); // without the bar
        in_words(&row[0], &NAMES, &numbers)
    };
    let rows = rows[2..].iter().map(row);
    [heading.into()].into_iter().chain(rows).collect()
}

/// The bounds: they are what a user may rely on; what was seen is on the page.
fn exposure(exposure: &Exposure) -> String {
    match exposure {
        Exposure::None => "none".into(),
        Exposure::Bounded {
            operations_bound,
            time_bound,
            ..
        } => {
            let time = time_bound.map_or("unit".into(), |time| time.with_unit());
            format!("{}/{time}", operations_bound.text())
        }
        Exposure::Unbounded { .. } => "unbounded".into(),
    }
}

/// What viewers of time lines open, as a line of its own, where it is not said in the last one.
fn perfetto(report: &Report) -> Option<String> {
    let in_last = !report.is_of_captures() && report.provenance.timings == Origin::Measured;
    let path = report.provenance.perfetto.as_ref().filter(|_| !in_last)?;
    Some(format!("For Perfetto: {path}"))
}

fn closing(report: &Report, page_bytes: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let well = report.oracle.is_some_and(|totals| totals.is_well());
    if !well {
        let sentences = [report.oracle_sentence(), report.attempts_sentence()];
        lines.extend(sentences.iter().flatten().map(Sentence::plain));
    }
    // room for a usual name, and for what stands behind it
    let (room, more) = match &report.provenance.timings {
        Origin::Measured => match &report.provenance.perfetto {
            Some(perfetto) if !report.is_of_captures() => {
                (22, format!("For Perfetto: {}", printable(perfetto, 22)))
            }
            _ => (50, "Details: --json, --help".into()),
        },
        Origin::Cached { measured_on } => (
            14,
            format!("Times of {measured_on}, cached (--fresh-bench)"),
        ),
        Origin::NotMeasured { .. } => (26, "No times measured (--no-bench)".into()),
    };
    lines.push(format!(
        "{} written (offline, {} KB){}. {more}",
        printable(&report.provenance.page, room),
        page_bytes.div_ceil(1000),
        if well { "; self-check ok" } else { "" },
    ));
    lines
}
