// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a report of exactly two traces says of what changed between them.

use crate::common::{bundled, figures, page_figures, report_of};
use ioatlas_cli::LoadedTrace;
use ioatlas_cli::Screen;
use ioatlas_cli::report::compare::{Change, Comparison, DeviceChanges, Matched};
use ioatlas_cli::report::systems::Rows;
use ioatlas_cli::report::{Report, bundled_traces, page, terminal};
use std::collections::HashSet;

fn read(name: &str, text: &str) -> LoadedTrace {
    LoadedTrace::read(name, text.as_bytes(), None).unwrap()
}

/// With a wait of a millisecond, which no measured time comes near.
fn reported(traces: Vec<LoadedTrace>) -> Report {
    report_of(traces, &Rows::Systems, Some(1e6))
}

fn compared(traces: Vec<LoadedTrace>) -> Comparison {
    reported(traces).comparison.expect("two traces")
}

/// So many buffers of a size mapped in a millisecond, each for so many ns.
fn capture(name: &str, device: &str, buffers: u64, bytes: u64, ns: u64) -> LoadedTrace {
    let buffer = |n: u64| {
        let (begin, end) = (n * 1_000_000 / buffers, n * 1_000_000 / buffers + ns);
        format!(
            "# at {begin} 0 a\nM {device} 1 1 w 7 page 0+{bytes}\n# at {end} 0 a\nU {device} 1 1\n"
        )
    };
    let lines: String = (0..buffers).map(buffer).collect();
    let text = format!("# ioatlas-trace 2\n# note recorded-ns 1000000\n{lines}");
    read(name, &text)
}

#[track_caller]
fn of<'c>(changes: &'c [Change], what: &str) -> &'c Change {
    let found = changes.iter().find(|change| change.what == what);
    found.unwrap_or_else(|| panic!("{what}: {changes:?}"))
}

/// A change as it is shown, and why there is none.
fn shown(change: &Change) -> String {
    match (change.change, change.untold) {
        (Some(figure), None) => figure.with_unit(),
        (None, Some(why)) => why.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn captures_are_compared_by_what_was_mapped_and_at_their_rates() {
    let before = capture("before", "nic", 1000, 1024, 500);
    let after = capture("after", "nic", 500, 2048, 250);
    let found = compared(vec![before, after]);
    assert_eq!(
        (found.before.as_str(), found.after.as_str()),
        ("before", "after")
    );
    let [
        DeviceChanges {
            changes, matched, ..
        },
    ] = found.devices.as_slice()
    else {
        panic!("{:?}", found.devices);
    };
    assert_eq!(*matched, Matched::Name);
    // the one number that does not depend on how much was done stands first
    assert_eq!(changes[0].what, "strict: CPU time a GiB mapped");
    for (what, before, after, change) in [
        ("bytes a map", 1024.0, 2048.0, "+100 %"),
        ("maps a second", 1e6, 5e5, "-50 %"),
        (
            "MiB mapped a second",
            1024e6 / 1048576.0,
            1024e6 / 1048576.0,
            "0 %",
        ),
        ("unmaps a second", 1e6, 5e5, "-50 %"),
        ("pages at peak", 1.0, 1.0, "0 %"),
        ("mapped for, median", 500.0, 250.0, "-50 %"),
        ("mapped for, 99th percentile", 500.0, 250.0, "-50 %"),
        ("other data in reach, of bytes", 75.0, 50.0, "-25 points"),
    ] {
        let found = of(changes, what);
        let numbers = (found.before.unwrap().value, found.after.unwrap().value);
        assert_eq!(
            (numbers, shown(found)),
            ((before, after), change.into()),
            "{what}"
        );
    }
    // with one device, it is that of all
    assert_eq!(found.all_devices[0], changes[0]);
    // half of the maps, unmaps and waits for as many bytes: a wait of a millisecond for each KiB
    let time = of(changes, "strict: CPU time a GiB mapped");
    assert_eq!(shown(time), "-50 %");
    let seconds = time.before.unwrap().value / 1e3;
    assert!((1048.5..1060.0).contains(&seconds), "{seconds}");
    assert!(time.less_is_better && !of(changes, "maps a second").less_is_better);
    assert_eq!(shown(of(&found.all_devices, "strict: CPUs busy")), "-50 %");
    assert!(of(&found.all_devices, "lazy: CPUs busy").change.is_some());
    assert!(
        found
            .remarks
            .iter()
            .any(|remark| remark.contains("noise is not known"))
    );
}

#[test]
fn traces_with_accesses_are_compared_by_their_misses() {
    let load = |name: &str| {
        let file = std::fs::read(bundled(name)).unwrap();
        LoadedTrace::read(name, &file, None).unwrap()
    };
    let report = reported(vec![load("e1000-stream"), load("e1000-stream-norcache")]);
    let found = report.comparison.as_ref().unwrap();
    let [before, after] = report.verdicts.as_slice() else {
        panic!("{:?}", report.verdicts);
    };
    let [device] = found.devices.as_slice() else {
        panic!("{:?}", found.devices);
    };
    let rates = (
        before.misses_per_100_accesses,
        after.misses_per_100_accesses,
    );
    let change = &device.changes[0];
    assert_eq!(change.what, "misses of 100 accesses");
    assert_eq!((change.before.unwrap(), change.after.unwrap()), rates);
    assert_eq!(change.change.unwrap().value, rates.1.value - rates.0.value);
    let misses = of(&device.changes, "misses");
    assert_eq!(misses.before.unwrap().value, 9492.0);
    let expected = 100.0 * (after.misses.value / before.misses.value - 1.0);
    assert_eq!(misses.change.unwrap().value, expected);
    let a_map = of(&device.changes, "misses a map");
    assert_eq!(a_map.before.unwrap().value, 9492.0 / 3438.0);
    assert!(found.all_devices.is_empty());
    check_views(&report);
}

/// Terminal, page and JSON say the same of it, and the first two first.
fn check_views(report: &Report) {
    let html = page(report);
    let begin = html.find("<h2>What changed").expect("a section");
    let first = html.find("<h2>").unwrap();
    assert_eq!(begin, first, "it stands first");
    let section = &html[begin..begin + html[begin..].find("</section>").unwrap()];
    let mut model = HashSet::new();
    let json = serde_json::to_value(report).unwrap();
    figures(&json["comparison"], &mut model);
    assert_eq!(page_figures(section), model);
    let shown = terminal::render(report, 123_456, &Screen::default());
    assert!(shown.lines().count() <= 24, "{shown}");
    for line in shown.lines() {
        assert!(
            line.chars().count() <= 100 && !line.contains('\u{1b}'),
            "{line}"
        );
        assert!(!line.ends_with(".."), "{line}");
    }
    let comparison = report.comparison.as_ref().unwrap();
    for remark in &comparison.remarks {
        assert!(
            shown.contains(remark) && html.contains(remark),
            "{remark}\n{shown}"
        );
    }
    for change in &comparison.all_devices {
        let line = shown
            .lines()
            .find(|line| line.trim_start().starts_with(change.what));
        let line = line.unwrap_or_else(|| panic!("{}\n{shown}", change.what));
        for figure in [change.before, change.after, change.change]
            .into_iter()
            .flatten()
        {
            assert!(line.contains(&figure.with_unit()), "{line}");
        }
    }
}

#[test]
fn terminal_page_and_json_show_one_comparison() {
    let before = capture("before", "nic", 1000, 1024, 500);
    let after = capture("after", "eth", 500, 2048, 250);
    let report = reported(vec![before, after]);
    check_views(&report);
    let shown = terminal::render(&report, 1000, &Screen::default());
    assert!(shown.contains("\nnic, then eth\n"), "{shown}");
    assert!(
        shown.contains("before: 1,000 us on 1 CPU: too short for rates"),
        "{shown}"
    );
    let line = shown
        .lines()
        .find(|line| line.contains("bytes a map"))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let expected = [
        "bytes",
        "a",
        "map",
        "1,024",
        "B",
        "2,048",
        "B",
        "+100",
        "%",
        "[counted]",
    ];
    assert_eq!(words, expected);
}

#[test]
fn what_cannot_be_told_says_why() {
    let whole = || capture("whole", "nic", 1000, 1024, 500);
    let text = "# ioatlas-trace 2\nM nic 1 1 w 7 page 0+64\nU nic 1 1\nM nic 1 1 w 7 page 0+64\n";
    let no_times = compared(vec![whole(), read("t", text)]);
    let changes = &no_times.devices[0].changes;
    for what in ["maps a second", "MiB mapped a second", "unmaps a second"] {
        assert_eq!(shown(of(changes, what)), "no times recorded", "{what}");
    }
    assert_eq!(
        shown(of(changes, "mapped for, median")),
        "no times recorded"
    );
    assert_eq!(shown(of(changes, "bytes a map")), "-94 %");
    let busy = of(&no_times.all_devices, "strict: CPUs busy");
    assert_eq!(shown(busy), "no times recorded");
    // what a map costs was measured for the one with times
    assert!(changes[0].change.is_some());

    let pages = "# ioatlas-trace 2\n# at 0 0\nM nic 1 1 w\n# at 1000 0\nU nic 1 1\n";
    let no_bytes = compared(vec![read("t", pages), whole()]);
    let changes = &no_bytes.devices[0].changes;
    assert_eq!(
        shown(of(changes, "bytes a map")),
        "bytes recorded of one only"
    );
    assert_eq!(shown(&changes[0]), "bytes recorded of one only");
    assert_eq!(
        shown(of(changes, "other data in reach, of bytes")),
        "no bytes recorded"
    );
    let rate = of(changes, "maps a second").change.unwrap();
    assert!(rate.value.abs() < 1e-9, "{rate:?}");

    let off = "# ioatlas-trace 2\n# note iovas-assigned 1\nM nic 1 1 w 7 page 0+64\nU nic 1 1\n";
    let off = compared(vec![read("t", off), whole()]);
    let changes = &off.devices[0].changes;
    let beside = of(changes, "other data in reach, of bytes");
    assert_eq!(shown(beside), "no IOMMU translated");
    assert!(beside.before.is_none() && beside.after.is_some());
    assert!(of(changes, "bytes a map").change.is_some());

    let lost = format!("{}# note lost-events 5\n", "# ioatlas-trace 2\n");
    let lost = format!("{lost}{}", pages.split_once('\n').unwrap().1);
    let report = reported(vec![whole(), read("lossy", &lost)]);
    assert!(!report.usable);
    let found = report.comparison.as_ref().unwrap();
    let all = found.devices.iter().flat_map(|device| &device.changes);
    for change in all.chain(&found.all_devices) {
        assert_eq!(shown(change), "events were lost", "{change:?}");
    }
    check_views(&report);

    let accesses = "# ioatlas-trace 1\nM nic 1 1 w\nA nic 1 w\nU nic 1 1\n";
    for traces in [
        vec![whole(), read("a", accesses)],
        vec![read("a", accesses), whole()],
    ] {
        let report = reported(traces);
        let found = report.comparison.as_ref().unwrap();
        assert!(found.devices.is_empty() && found.all_devices.is_empty());
        assert!(
            found.remarks[0].contains("not compared"),
            "{:?}",
            found.remarks
        );
        check_views(&report);
    }

    // what is of other devices stands for itself
    let load =
        |name: &str| LoadedTrace::read(name, &std::fs::read(bundled(name)).unwrap(), None).unwrap();
    let report = reported(vec![load("e1000-stream"), load("lsi-bonnie")]);
    let found = report.comparison.as_ref().unwrap();
    assert!(found.devices.is_empty());
    assert_eq!(
        (&found.only_before[0], &found.only_after[0]),
        (&"00:04.0".into(), &"00:06.0".into())
    );
    check_views(&report);
    let shown = terminal::render(&report, 1000, &Screen::default());
    for words in [
        "26 of 100 miss",
        "37 of 100 miss",
        "Only in lsi-bonnie: 00:06.0.",
        "No device",
    ] {
        assert!(shown.contains(words), "{words}\n{shown}");
    }
}

#[test]
fn traces_whose_names_look_alike_are_two() {
    let name = |end: &str| format!("{}{end}", "long".repeat(20));
    let traces = vec![
        capture(&name("before"), "nic", 1000, 1024, 500),
        capture(&name("after"), "nic", 500, 2048, 250),
    ];
    assert_eq!(traces[0].label, traces[1].label);
    let report = reported(traces);
    let found = report.comparison.as_ref().unwrap();
    assert_eq!(
        shown(of(&found.devices[0].changes, "maps a second")),
        "-50 %"
    );
    let text = terminal::render(&report, 1000, &Screen::default());
    let heading = text
        .lines()
        .find(|line| line.trim_end().ends_with("change"))
        .unwrap();
    let words: Vec<&str> = heading.split_whitespace().collect();
    assert_eq!(words, ["before", "after", "change"]);
}

#[test]
fn other_than_two_traces_are_not_compared() {
    let one = || capture("one", "nic", 10, 64, 5);
    let none = |traces| reported(traces).comparison.is_none();
    assert!(none(vec![one()]));
    assert!(none(vec![
        one(),
        capture("two", "nic", 10, 64, 5),
        capture("three", "nic", 10, 64, 5)
    ]));
    let mut bundled = bundled_traces().unwrap().traces;
    bundled.truncate(1);
    assert!(none(bundled));
}

#[test]
fn devices_of_one_trace_only_are_named_and_many_fit_a_terminal() {
    let device = |n: usize, of: usize| format!("M <b>{n}{} 1 1 w 7 page 0+{of}\n", "x".repeat(60));
    let text = |from: usize, of: usize| {
        let lines: String = (from..from + 50).map(|n| device(n, of)).collect();
        format!(
            "# ioatlas-trace 2\n# note iovas-assigned 50\n# at 1 0 a\n{lines}# at 1000 0 b\n{lines}"
        )
    };
    let traces = vec![
        read(&"b".repeat(70), &text(0, 64)),
        read("a\u{1b}[31m", &text(10, 128)),
    ];
    let report = reported(traces);
    let found = report.comparison.as_ref().unwrap();
    assert_eq!(
        (
            found.devices.len(),
            found.only_before.len(),
            found.only_after.len()
        ),
        (40, 10, 10)
    );
    let shown = terminal::render(&report, 1000, &Screen::default());
    assert!(shown.lines().count() <= 24, "{shown}");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 100),
        "{shown}"
    );
    assert!(shown.contains("39 more devices: see the page"), "{shown}");
    assert!(shown.contains("and 7 more."), "{shown}");
    let html = page(&report);
    let injected = (0..60).any(|n| html.contains(&format!("<b>{n}")));
    assert!(!injected && !html.contains('\u{1b}') && !shown.contains('\u{1b}'));
    assert!(html.contains("<p>8 more devices are in the JSON"));
}
