// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page: small, offline, in order, and safe from what traces name.

use super::full_report;
use crate::common::{built, bundled, figures, ioatlas, page_figures};
use ioatlas_cli::report::model::Source;
use ioatlas_cli::report::systems::{Exposure, Rows, SystemRow};
use ioatlas_cli::report::{MAX_PAGE_BYTES, Report, Traces, bundled_traces, page};
use ioatlas_cli::{LoadedTrace, Status};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

#[test]
fn page_is_small_offline_and_whole() {
    let report = full_report();
    let html = page(&report);
    assert!(html.len() < MAX_PAGE_BYTES, "{} bytes", html.len());
    for reference in [
        "http:", "https:", "src=", "href=", "@import", "url(", "//fonts",
    ] {
        assert!(!html.contains(reference), "{reference}");
    }
    for needed in [
        "prefers-color-scheme: dark",
        "<h2>Verdict",
        "<h2>Atlas",
        "<h2>Why they miss",
        "<h2>Cost against safety",
        "<h2>Systems",
        "<h2>What to do",
        "<h2>What else there is",
        "More that one can have today",
        "What needs code",
        "<h2>Provenance",
        "data-cells=",
    ] {
        assert!(html.contains(needed), "{needed}");
    }
    for origin in &report.provenance.traces {
        assert_eq!(origin.sha256.len(), 64);
        assert!(html.contains(&origin.sha256));
    }
    assert_eq!(report.provenance.traces.len(), 6);
    // For work on the page: a copy of it with systems in it, to look at.
    std::fs::write(
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html"),
        html,
    )
    .unwrap();
}

#[test]
fn the_page_says_what_to_do_before_it_says_why() {
    let html = page(&full_report());
    let shown = html.split("<script>").next().unwrap();
    let headings = shown.split("<h2>").skip(1);
    let words = headings.map(|rest| rest.split(['<', '\n']).next().unwrap().trim());
    let order: Vec<&str> = words.collect();
    let expected = [
        "Verdict",
        "What to do",
        "Atlas",
        "Why they miss",
        "Cost against safety",
        "Systems",
        "What else there is",
        "Provenance",
    ];
    assert_eq!(order, expected);
}

/// A section names the kinds of its numbers, and repeats none that is usual in it.
#[test]
fn each_number_has_its_kind_beside_it_or_once_in_its_section() {
    let html = page(&full_report());
    let shown = html.split("<script>").next().unwrap();
    let (mut numbers, mut marks) = (0, 0);
    for section in shown.split("<section").skip(1) {
        for (_, text, tag) in page_figures(section) {
            let mark = format!("class=\"tag {tag}\"");
            assert!(section.contains(&mark), "{tag} {text} in {section}");
            numbers += 1;
        }
        // each sentence of advice is marked
        let of_advice = ["<h2>What to do", "<h2>What else there is"];
        if !of_advice.iter().any(|heading| section.contains(heading)) {
            marks += section.matches("class=\"tag ").count();
        }
    }
    assert!(numbers > 200 && marks < 30, "{marks} marks for {numbers}");
}

/// The words above each drawing.
fn titles(report: &Report) -> Vec<String> {
    let html = page(report);
    let titles = html.split("<figcaption>").skip(1);
    let words = |title: &str| {
        let (title, _) = title.split_once("<span class=\"take\">").unwrap();
        let pieces = title
            .split('<')
            .map(|piece| piece.rsplit('>').next().unwrap());
        pieces.collect::<String>().trim_end().to_owned()
    };
    titles.map(words).collect()
}

#[test]
fn each_drawing_has_its_point_as_title() {
    let mut report = full_report();
    let all = titles(&report);
    let misses = [
        "e1000-stream: 26 of 100 accesses miss",
        "lsi-bonnie: 37 of 100 accesses miss",
        "2xe1000-stream: 28 of 100 accesses miss",
        "First touches, which no larger IOTLB removes, are 42 % (e1000-stream) to 98 % (lsi-bonnie) of misses",
        "256 IOTLB entries instead of 32 change misses by -2 % (lsi-bonnie) to -10 % (e1000-stream)",
    ];
    assert_eq!((&all[..5], all.len()), (&misses.map(String::from)[..], 6));
    let cost = |report: &Report| titles(report).pop().unwrap();
    let says = cost(&report);
    for words in [
        "A map without a window costs at least 331 ns and ",
        " of wait (as Linux strict); with one 151 ns and ",
        " of wait (as Linux 3.17)",
    ] {
        assert!(says.contains(words), "{words}: {says}");
    }
    let systems = report.systems.clone();
    let is_strict = |row: &SystemRow| row.exposure == Exposure::None;
    report.systems.retain(is_strict);
    let says = cost(&report);
    assert!(
        says.starts_with("A map costs at least 331 ns and "),
        "{says}"
    );
    assert!(
        says.ends_with(" (as Linux strict), without a window"),
        "{says}"
    );
    report.systems = systems;
    report.systems.retain(|row| !is_strict(row));
    let says = cost(&report);
    assert!(
        says.ends_with(" (as Linux 3.17); each design leaves a window"),
        "{says}"
    );
    // of one device there is nothing to compare
    report.verdicts.truncate(1);
    let says = titles(&report);
    assert!(says[3].ends_with("are 42 % of misses"), "{says:?}");
    assert!(says[4].ends_with("change misses by -10 %"), "{says:?}");
}

#[test]
fn names_in_traces_cannot_inject_markup_or_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("x.trace");
    let evil = "<script>alert(1)</script>\u{1b}[31m\"'";
    let text = format!("# ioatlas-trace 1\nM {evil} 1 1 r\nA {evil} 1 r\n");
    std::fs::write(&trace, text).unwrap();
    let page = dir.path().join("p.html");
    let ran = ioatlas(&[
        "report",
        trace.to_str().unwrap(),
        "-o",
        page.to_str().unwrap(),
    ]);
    assert_eq!(ran.status, Status::Success, "{}", ran.err);
    assert!(!ran.out.contains('\u{1b}'));
    let html = std::fs::read_to_string(page).unwrap();
    assert!(!html.contains("<script>alert") && !html.contains('\u{1b}'));
    assert!(html.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn pages_of_many_or_large_traces_stay_small() {
    let mut lines = String::from("# ioatlas-trace 1\nM d 0 300000 rw\n");
    for event in 0..40_000u64 {
        lines += &format!("A d {:x} r\n", event * 104_729 % 300_000);
    }
    let load = || LoadedTrace::read("large", lines.as_bytes(), None).unwrap();
    let mut traces = bundled_traces().unwrap();
    traces.traces = vec![load(), load()];
    traces.variants.clear();
    let report = built(&traces, &Rows::Systems, None, &[]);
    assert!(page(&report).len() < MAX_PAGE_BYTES);
}

#[test]
fn report_command_writes_the_page_and_prints_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.html");
    let ran = ioatlas(&[
        "report",
        "--json",
        "--inv-ns",
        "500",
        "-o",
        path.to_str().unwrap(),
    ]);
    let model = ran.json();
    assert_eq!(model["verdicts"][0]["misses"]["value"], 9492.0);
    assert_eq!(model["verdicts"][0]["misses"]["tag"], "simulated");
    assert_eq!(model["verdicts"][0]["maps"]["tag"], "counted");
    assert_eq!(model["wait"]["time"]["value"], 500.0);
    assert_eq!(model["wait"]["time"]["tag"], "assumed");
    let html = std::fs::read_to_string(&path).unwrap();
    let mut model_set = HashSet::new();
    figures(&model, &mut model_set);
    assert!(page_figures(&html).is_subset(&model_set));
    // One's own traces take the place of the bundled ones.
    let own = ioatlas(&[
        "report",
        &bundled("lsi-bonnie"),
        "-o",
        path.to_str().unwrap(),
    ]);
    assert_eq!(own.status, Status::Success, "{}", own.err);
    assert!(own.out.contains("lsi-bonnie") && !own.out.contains("e1000-stream"));
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "temporary files left");
}

#[test]
fn names_of_any_length_leave_the_page_small() {
    let device = "&".repeat(3000);
    let lines: String = (0..200)
        .map(|n| format!("M {device}{n} 1 1 r\nA {device}{n} 1 r\n"))
        .collect();
    let text = format!("# ioatlas-trace 1\n{lines}");
    let name = |n: usize| format!("{}{n}", "'".repeat(4000));
    let load = |n| LoadedTrace::read(&name(n), text.as_bytes(), None).unwrap();
    let traces = Traces {
        source: Source::User,
        traces: (0..36).map(load).collect(),
        variants: Vec::new(),
        histograms: Vec::new(),
    };
    let command: Vec<OsString> = (0..36).map(|n| name(n).into()).collect();
    let report = built(&traces, &Rows::Systems, None, &command);
    let html = page(&report);
    assert!(html.len() < MAX_PAGE_BYTES, "{}", html.len());
    assert!(html.contains("12 more traces are not drawn"));
    assert!(html.contains("4 more traces are in the JSON"));
}
