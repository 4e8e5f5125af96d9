// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Terminal, page and JSON are views of one model.

use super::{full_report, measured_report};
use crate::common::{built, figures, page_figures};
use ioatlas_cli::Screen;
use ioatlas_cli::report::systems::{Exposure, Rows, SystemRow};
use ioatlas_cli::report::timings::Origin;
use ioatlas_cli::report::{Report, bundled_traces, page, terminal};
use std::collections::HashSet;

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
    let shown = terminal::render(&report, 400_000, &Screen::default());
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
        let shown = terminal::render(report, 123_456, &Screen::default());
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
    // what is written besides changes nothing else, however long its name is
    let mut both = measured_report();
    both.provenance.perfetto = Some("p".repeat(100));
    let (first, last) = shown.trim_end().rsplit_once('\n').unwrap();
    let (says, _) = last.split_once(" Details:").expect(last);
    let expected = format!("{first}\n{says} For Perfetto: {}..\n", "p".repeat(20));
    assert_eq!(check(&both), expected);
    // where the last line says that times are old, or none, it has no room for that
    let cached = Origin::Cached {
        measured_on: "2026-11-25".into(),
    };
    both.provenance.timings = cached;
    assert!(check(&both).ends_with("Times of 2026-11-25, cached (--fresh-bench)\n"));
    both.verdicts.truncate(1);
    let shown = check(&both);
    let end: Vec<&str> = shown.lines().rev().take(2).collect();
    assert!(end[0].ends_with("cached (--fresh-bench)"), "{shown}");
    assert!(end[1].starts_with("For Perfetto: ppp"), "{shown}");
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

/// The cells of the line or row of a system, in the order of the columns from time to window.
fn terminal_cells<'t>(shown: &'t str, row: &SystemRow) -> Vec<&'t str> {
    let line = shown
        .lines()
        .find_map(|line| line.strip_prefix(row.system()))
        .unwrap();
    let cells = line.trim_start().strip_prefix(row.design.as_str()).unwrap();
    cells.split_whitespace().collect()
}

/// The first number of each cell in the page's row of a system that goes on with `next`.
fn page_cells(html: &str, row: &SystemRow, next: &str) -> Vec<Option<String>> {
    let start = format!(">{}</td>{next}", row.system());
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
    let mut traces = bundled_traces().unwrap();
    traces.variants.clear();
    let report = built(&traces, &Rows::Systems, None, &[]);
    let (shown, html) = (
        terminal::render(&report, 1000, &Screen::default()),
        page(&report),
    );
    assert_eq!(report.systems.len(), 7);
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
