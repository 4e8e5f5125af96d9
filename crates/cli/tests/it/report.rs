// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report's three views: sizes, agreement on every number, offline.

use crate::common::{bundled, figures, ioatlas, page_figures, report_of, rows};
use ioatlas::output::Target;
use ioatlas::progress::Silent;
use ioatlas::report::model::{OracleTotals, Source};
use ioatlas::report::remedy::{self, Availability, Less, Protection, Remedy};
use ioatlas::report::systems::{Exposure, Rows, SystemRow};
use ioatlas::report::{MAX_PAGE_BYTES, Report, Traces, build, bundled_traces, page, terminal};
use ioatlas::{LoadedTrace, Status};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

/// The bundled report with made-up systems.
fn full_report() -> Report {
    let mut report = measured_report();
    report.systems = rows(report.wait.time);
    report.oracle = OracleTotals::of(&report.systems);
    report
}

/// The bundled report as the command makes it; made once, since it takes seconds where the compiler
/// does not optimise.
fn measured_report() -> Report {
    static REPORT: OnceLock<Report> = OnceLock::new();
    REPORT.get_or_init(make_measured_report).clone()
}

fn make_measured_report() -> Report {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::prepare(&dir.path().join("report.html")).unwrap();
    let command = [OsString::from("ioatlas"), OsString::from("report")];
    let traces = bundled_traces().unwrap();
    let mut report = build(&traces, &Rows::Systems, None, &target, &command, &Silent).unwrap();
    report.provenance.page = "report.html".into();
    report
}

fn model_figures(report: &Report) -> HashSet<(String, String, String)> {
    let mut found = HashSet::new();
    figures(&serde_json::to_value(report).unwrap(), &mut found);
    found
}

#[test]
fn page_and_json_agree_on_every_number() {
    let report = full_report();
    let (model, page) = (model_figures(&report), page_figures(&page(&report)));
    let only_page: Vec<_> = page.difference(&model).collect();
    assert!(
        only_page.is_empty(),
        "on the page, not in the model: {only_page:?}"
    );
    // The page leaves out what the variants' table does not show.
    let mut without_variants = report.clone();
    without_variants.variants.clear();
    let model = model_figures(&without_variants);
    let only_model: Vec<_> = model.difference(&page).collect();
    assert!(
        only_model.is_empty(),
        "in the model, not on the page: {only_model:?}"
    );
    assert!(page.len() > 100);
}

#[test]
fn terminal_shows_only_numbers_of_the_model() {
    let report = full_report();
    let texts: HashSet<String> = model_figures(&report)
        .into_iter()
        .map(|(_, text, _)| text.trim_end_matches(" %").to_owned())
        .collect();
    let shown = terminal::render(&report, 400_000);
    let lines: Vec<&str> = shown.lines().collect();
    // Words of the text that hold digits and are no results.
    let words = [
        "100",
        "8x",
        "00:04.0",
        "00:05.0",
        "00:06.0",
        "e1000-stream",
        "2xe1000-stream",
        "2",
        "1",
        "1k",
        "3.17",
        "128",
        "256",
    ];
    let mut numbers = 0;
    for line in &lines[1..lines.len() - 1] {
        for token in line.split([' ', '+', '/', ';', '[', ']', '(', ')']) {
            let token = token.trim_end_matches([',', '.', ':']);
            if token.contains(|c: char| c.is_ascii_digit()) && !words.contains(&token) {
                assert!(
                    texts.contains(token),
                    "`{token}` in `{line}` is not in the model"
                );
                numbers += 1;
            }
        }
    }
    assert!(numbers > 50, "{numbers}\n{shown}");
    // And it shows each number of a verdict's sentences and of the table.
    for row in &report.systems {
        let line = lines
            .iter()
            .find(|line| line.starts_with(&row.name))
            .unwrap();
        for figure in [
            row.ns_per_pair_1_thread.unwrap(),
            row.ns_per_pair_2_threads.unwrap(),
            row.misses_per_1k_maps.unwrap(),
        ]
        .into_iter()
        .chain(row.wait)
        {
            assert!(line.contains(&figure.text()), "{line}");
        }
    }
    assert!(shown.contains(
        "26 of 100 miss, 42 % first touches. 8x the IOTLB: -10 %; an IOMMU that prefetches (alh): -56 %"
    ));
    assert!(shown.contains("0 violations in 690,591 accesses checked"));
}

#[test]
fn terminal_is_at_most_24_lines_of_100_columns() {
    let mut report = full_report();
    let check = |report: &Report| {
        let shown = terminal::render(report, 123_456);
        assert!(shown.lines().count() <= 24, "{shown}");
        for line in shown.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        shown
    };
    let shown = check(&measured_report());
    assert!(!shown.contains(".."), "cut short:\n{shown}");
    assert!(shown.contains("magazine, deferred-percpu"), "{shown}");
    assert!(shown.contains("self-check ok"), "{shown}");
    // Many devices, long names, wide numbers.
    let one = report.verdicts[0].clone();
    report.verdicts = vec![one; 50];
    for verdict in &mut report.verdicts {
        verdict.trace = "t".repeat(300);
    }
    for row in &mut report.systems {
        row.ns_per_pair_1_thread.as_mut().unwrap().value *= 1e6;
        row.table_memory.value *= 1e6;
    }
    assert!(check(&report).contains("more devices"));
    report.systems.clear();
    report.oracle = None;
    assert!(check(&report).contains("Systems: none was run."));
}

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
    let dir = tempfile::tempdir().unwrap();
    let target = Target::prepare(&dir.path().join("report.html")).unwrap();
    let load = || LoadedTrace::read("large", lines.as_bytes(), None).unwrap();
    let mut traces = bundled_traces().unwrap();
    traces.traces = vec![load(), load()];
    traces.variants.clear();
    let report = build(&traces, &Rows::Systems, None, &target, &[], &Silent).unwrap();
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

/// The cells of the line or row of a system, in the order of the columns from time to window.
fn terminal_cells<'t>(shown: &'t str, row: &SystemRow) -> Vec<&'t str> {
    let line = shown
        .lines()
        .find_map(|line| line.strip_prefix(row.name.as_str()))
        .unwrap();
    let cells = line.trim_start().strip_prefix(row.design.as_str()).unwrap();
    cells.split_whitespace().collect()
}

/// The first number of each cell in the page's row of a system that goes on with `next`.
fn page_cells(html: &str, row: &SystemRow, next: &str) -> Vec<Option<String>> {
    let start = format!(">{}</td>{next}", row.name);
    let from = html.find(&start).unwrap();
    let row = &html[from..][..html[from..].find("</tr>").unwrap()];
    let first = |cell: &str| {
        let number = &cell[cell.find("<data ")?..];
        let number = &number[number.find('>')? + 1..];
        Some(number[..number.find('<')?].to_owned())
    };
    row.split("<td class=\"r").skip(1).map(first).collect()
}

/// With numbers of real runs, so that none stands in another's column by accident.
#[test]
fn terminal_and_page_have_each_number_in_its_column() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::prepare(&dir.path().join("report.html")).unwrap();
    let mut traces = bundled_traces().unwrap();
    traces.variants.clear();
    let report = build(&traces, &Rows::Systems, None, &target, &[], &Silent).unwrap();
    let (shown, html) = (terminal::render(&report, 1000), page(&report));
    assert_eq!(report.systems.len(), 6);
    for row in &report.systems {
        let one = row.ns_per_pair_1_thread.unwrap().text();
        let two = row.ns_per_pair_2_threads.map(|figure| figure.text());
        // each invalidation of the traces is waited for, but under the one policy that goes on
        // meanwhile
        let waited = report.wait.time.value * row.invalidations_per_1k_maps.value / 1e3;
        let expected = (row.name != "as Mac OS X").then_some(waited);
        assert_eq!(row.wait.map(|wait| wait.value), expected, "{}", row.name);
        if let Exposure::Bounded {
            time_bound: Some(bound),
            time_observed: Some(seen),
            ..
        } = row.exposure
        {
            assert!(seen.value <= bound.value, "{}: {seen:?}", row.name);
        }
        let wait = row.wait.map(|wait| wait.text());
        let rates = [
            row.invalidations_per_1k_maps.text(),
            wait.clone().unwrap_or("-".into()),
            row.misses_per_1k_maps.unwrap().text(),
            row.table_memory.text(),
        ];
        let cells = terminal_cells(&shown, row);
        assert_eq!(cells[0], one);
        assert_eq!(cells[1], two.clone().unwrap_or("-".into()));
        // what is of the machine, and what is of the traces
        assert_eq!(cells[2], "|");
        assert_eq!(cells[3..7], rates);
        assert_eq!(cells[7] == "none", row.exposure == Exposure::None);
        let cells = page_cells(&html, row, "<td class=\"design\">");
        assert_eq!((&cells[0], &cells[1]), (&Some(one), &two));
        assert_eq!(cells[3], wait);
        let shown: Vec<&String> = [2, 4, 5].iter().flat_map(|at| &cells[*at]).collect();
        assert_eq!(shown, [&rates[0], &rates[2], &rates[3]]);
        let checks = page_cells(&html, row, &format!("<td>{}</td>", row.design));
        let checked = [
            row.attempts_blocked,
            row.attempts_stale,
            row.violations,
            row.oracle_checked_accesses,
        ];
        assert_eq!(checks[..4], checked.map(|figure| Some(figure.text())));
    }
}

/// The remedy of this name.
fn remedy<'r>(remedies: &'r [Remedy], id: &str) -> Option<&'r Remedy> {
    remedies.iter().find(|remedy| remedy.about.id == id)
}

/// The numbers are those of `ioatlas iotlb`, which other tests pin.
#[test]
fn a_remedy_says_what_is_less_by_it_how_one_asks_for_it_and_what_it_costs() {
    let report = measured_report();
    let e1000 = &report.verdicts[0].remedies;
    for (id, left) in [
        ("alh", 4197.0),
        ("sd-alh", 5103.0),
        ("mpre", 7674.0),
        ("best-sum", 2806.0),
    ] {
        let gain = remedy(e1000, id).unwrap().gains[0];
        assert_eq!(
            (gain.of, gain.left.unwrap().value),
            (Less::Misses, left),
            "{id}"
        );
        let expected = 100.0 * (left / 9492.0 - 1.0);
        assert!((gain.change.value - expected).abs() < 1e-9, "{id}");
    }
    let sum = remedy(e1000, "best-sum").unwrap().of.as_deref();
    assert_eq!(sum, Some("alh+mpre+8-prefetch"));
    for verdict in &report.verdicts {
        let first: Vec<_> = remedy::first(&verdict.remedies).iter().collect();
        assert!(first.len() <= 3 && first.iter().all(|of| of.is_for_today()));
        for remedy in &verdict.remedies {
            let id = remedy.about.id;
            assert!(
                remedy.gains.iter().all(|gain| gain.change.value <= -1.0),
                "{id}"
            );
            assert_eq!(remedy.knobs.is_empty(), !remedy.is_for_today(), "{id}");
        }
        // against strict, the waits of the very trace
        let counted = |name: &str| {
            let row = report.systems.iter().find(|row| row.name == name).unwrap();
            let on = row.per_trace.iter().find(|on| on.trace == verdict.trace);
            on.unwrap().invalidations.value
        };
        let lazy = remedy(&verdict.remedies, "lazy").unwrap();
        assert_eq!(lazy.gains[0].left.unwrap().value, counted("as Linux today"));
        let change = 100.0 * (counted("as Linux today") / counted("as Linux strict") - 1.0);
        assert!((lazy.gains[0].change.value - change).abs() < 1e-9);
        assert_eq!(lazy.about.protection, Protection::Window);
        // all protection is the dearest price
        let all = remedy(&verdict.remedies, "passthrough").unwrap();
        assert_eq!(all.about.protection, Protection::All);
        let last = verdict.remedies.iter().rfind(|of| of.is_for_today());
        assert_eq!(last.unwrap().about.id, "passthrough");
        let huge = remedy(&verdict.remedies, "huge-pages").unwrap();
        assert_eq!(huge.about.available, Availability::UserSpace);
    }
    let json = serde_json::to_value(&report).unwrap();
    let remedies = json["verdicts"][0]["remedies"].as_array().unwrap();
    let lazy = remedies.iter().find(|of| of["id"] == "lazy").unwrap();
    assert_eq!(lazy["audience"][0], "any");
    assert_eq!(lazy["available"], "as-it-is");
    assert_eq!(lazy["protection"], "window");
    assert_eq!(lazy["gains"][0]["of"], "waits");
    assert_eq!(lazy["gains"][0]["change"]["tag"], "counted");
    assert_eq!(lazy["knobs"][0]["since"], "5.15");
}

#[test]
fn the_page_has_the_best_remedies_on_top_and_folds_the_rest_away() {
    let report = measured_report();
    let html = page(&report);
    let section = |from: &str| {
        let html = &html[html.find(from).unwrap()..];
        &html[..html.find("</section>").unwrap()]
    };
    let (first, rest) = (section("<h2>What to do"), section("<h2>What else there is"));
    assert!(html.find("<h2>What to do") < html.find("<h2>Atlas"));
    assert!(!first.contains("(alh)") && !first.contains("<details"));
    assert_eq!(first.matches("<ul>").count(), report.verdicts.len());
    assert!(first.matches("<li>").count() <= 3 * report.verdicts.len());
    let (_, code) = rest.split_once("<summary>What needs code").unwrap();
    assert!(code.contains("(alh)") && code.contains("8 times the entries"));
    for item in [first, rest].concat().split("<li>").skip(1) {
        let item = &item[..item.find("</li>").unwrap()];
        assert!(item.contains("class=\"tag "), "{item}");
        assert!(
            !item.contains("<code>") || item.contains("Costs "),
            "{item}"
        );
    }
}

/// What one can do today for each device of `traces`, without any system.
fn advised(traces: Vec<LoadedTrace>) -> Vec<String> {
    let report = report_of(traces, &Rows::Named(Vec::new()), None);
    let says = |remedy: &Remedy| {
        let knobs: String = remedy.knobs.iter().map(|of| of.knob).collect();
        let whom = remedy.whom(None).unwrap_or_default();
        format!(
            "{} {knobs} {} ({whom})\n",
            remedy.about.name,
            remedy.gained().plain()
        )
    };
    let today = |remedies: &[Remedy]| {
        let today = remedies.iter().filter(|of| of.is_for_today());
        today.map(says).collect()
    };
    report.verdicts.iter().map(|v| today(&v.remedies)).collect()
}

/// Whether the trace is one of those in the binary or a file.
#[test]
fn a_disk_is_not_told_what_a_network_card_is_nor_the_other_way_round() {
    const NETWORK: [&str; 3] = ["page_pool", "ethtool", "mtu"];
    const DISK: [&str; 3] = ["nr_requests", "max_sectors_kb", "io_queue_depth"];
    let of_file = |name: &str| {
        let bytes = std::fs::read(bundled(name)).unwrap();
        advised(vec![LoadedTrace::read(name, &bytes, None).unwrap()])
    };
    let mut found = HashSet::new();
    for (name, own, others) in [
        ("e1000-stream", NETWORK, DISK),
        ("2xvirtio-net-4q-stream", NETWORK, DISK),
        ("virtio-net-4q-stream", NETWORK, DISK),
        ("lsi-bonnie", DISK, NETWORK),
        ("nvme-fio", DISK, NETWORK),
    ] {
        for says in of_file(name) {
            found.extend(own.into_iter().filter(|word| says.contains(word)));
            for word in others {
                assert!(!says.contains(word), "{name}: {word}: {says}");
            }
        }
    }
    // each of these is of use to one of them
    for word in ["page_pool", "ethtool", "max_sectors_kb", "nr_requests"] {
        assert!(found.contains(word), "{word}: {found:?}");
    }
    // of what is not known each remedy says for which it is
    let buffer = |n: u64| format!("M d {n:x} 1 w {n:x} page\nA d {n:x} w\nU d {n:x} 1\n");
    let large = "M d 1000 64 w 1000 page\nA d 1000 w\nU d 1000 64\n";
    let buffers: String = (1..9).map(buffer).collect();
    let text = format!("# ioatlas-trace 1\n{buffers}{large}");
    let unknown = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
    let says = advised(vec![unknown]).concat();
    for part in [
        "page pool page_pool with PP_FLAG_DMA_MAP misses -78 % (to 2), maps -78 % (to 2) (network)",
        "max_sectors_kb fresh IOVAs -11 % (to 8) (storage)",
    ] {
        assert!(says.contains(part), "{part}: {says}");
    }
}

#[test]
fn a_device_for_which_nothing_is_mapped_gets_no_advice() {
    let trace = "# ioatlas-trace 1\nA d 1 r\n".as_bytes();
    let trace = LoadedTrace::read("t", trace, None).unwrap();
    let report = report_of(vec![trace], &Rows::Systems, None);
    assert_eq!(report.verdicts[0].remedies, []);
    assert!(page(&report).contains("Nothing to gain today."));
    assert!(!terminal::render(&report, 1000).contains("today:"));
}

#[test]
fn readme_shows_the_example_that_is_compiled() {
    let readme = include_str!("../../../../README.md");
    let example = include_str!("../../../viommu/examples/quickstart.rs");
    let code = &example[example.find("use ").unwrap()..];
    assert!(readme.contains(&format!("```rust\n{code}```\n")));
}

/// A line of the report without what depends on the machine: times that were measured, what follows
/// from its clock, and the size of the page; and with one space between columns.
fn masked(line: &str, report: &Report) -> String {
    const HIDDEN: &str = "#";
    let words = |text: &str| {
        text.split_whitespace()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    // Of a system: both times, and the wait, which is assumed after this CPU's clock.
    let cells = report.systems.iter().find_map(|row| {
        let cells = line.strip_prefix(&row.name)?.trim_start();
        let cells = words(cells.strip_prefix(&row.design)?);
        Some((format!("{} {}", row.name, row.design), cells))
    });
    if let Some((system, mut cells)) = cells {
        for column in [0, 1, 4] {
            cells[column] = HIDDEN.into();
        }
        return format!("{system} {}", cells.join(" "));
    }
    let mut words = words(line);
    for at in 1..words.len() {
        let number = words[at - 1].replace(',', "").parse::<f64>();
        if ["GHz", "ns", "KB);"].contains(&words[at].as_str()) && number.is_ok() {
            words[at - 1] = HIDDEN.into();
        }
    }
    words.join(" ")
}

#[test]
fn readme_shows_what_the_command_prints() {
    let readme = include_str!("../../../../README.md");
    let (_, block) = readme.split_once("```text\nioatlas report: ").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let block = format!("ioatlas report: {block}");
    let report = measured_report();
    let printed = terminal::render(&report, page(&report).len());
    let mask = |text: &str| {
        let lines = text.lines().map(|line| masked(line, &report));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(mask(&block), mask(&printed), "printed:\n{printed}");
}

#[test]
fn what_is_masked_is_what_depends_on_the_machine() {
    let report = measured_report();
    for (line, expected) in [
        (
            "as Linux today  magazine, deferred-percpu     22      25 |     3.7     3.0   4,117     212 250/10 ms",
            "as Linux today magazine, deferred-percpu # # | 3.7 # 4,117 212 250/10 ms",
        ),
        (
            "wait: each invalidation 2,127 cycles [rIOMMU] at 2.6 GHz = 819 ns (assumed; yours: --inv-ns)",
            "wait: each invalidation 2,127 cycles [rIOMMU] at # GHz = # ns (assumed; yours: --inv-ns)",
        ),
        (
            "report.html written (offline, 329 KB); self-check ok. Details: --json, --help",
            "report.html written (offline, # KB); self-check ok. Details: --json, --help",
        ),
        (
            "0 violations in 759,906 accesses checked (counted).",
            "0 violations in 759,906 accesses checked (counted).",
        ),
    ] {
        assert_eq!(masked(line, &report), expected);
    }
}

#[path = "../../examples/picture.rs"]
#[allow(dead_code, reason = "its main is not run here")]
mod picture;

#[test]
fn readme_has_the_picture_that_is_drawn() {
    let drawn = picture::picture(&measured_report()).unwrap();
    let kept = include_str!("../../../../docs/report.svg");
    assert!(
        drawn == kept,
        "not what is drawn now: cargo run --release -p ioatlas --example picture >docs/report.svg"
    );
    assert!(drawn.len() < 150_000, "{} bytes", drawn.len());
    // or no browser draws it
    let mut comments = drawn.split("<!--").skip(1);
    let mut inside = comments.by_ref().map(|rest| rest.split("-->").next());
    assert!(inside.all(|comment| !comment.unwrap().contains("--")));
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
    let dir = tempfile::tempdir().unwrap();
    let target = Target::prepare(&dir.path().join("report.html")).unwrap();
    let command: Vec<OsString> = (0..36).map(|n| name(n).into()).collect();
    let report = build(&traces, &Rows::Systems, None, &target, &command, &Silent).unwrap();
    let html = page(&report);
    assert!(html.len() < MAX_PAGE_BYTES, "{}", html.len());
    assert!(html.contains("12 more traces are not drawn"));
    assert!(html.contains("4 more traces are in the JSON"));
}
