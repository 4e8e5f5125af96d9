// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! README shows what the command prints and draws, and code that is compiled.

use super::measured_report;
use ioatlas_cli::Screen;
use ioatlas_cli::report::{Report, page, terminal};

#[test]
fn readme_shows_the_example_that_is_compiled() {
    let readme = include_str!("../../../../../README.md");
    let example = include_str!("../../../../ioatlas/examples/quickstart.rs");
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
        let cells = line.strip_prefix(row.system())?.trim_start();
        let cells = words(cells.strip_prefix(&row.design)?);
        Some((format!("{} {}", row.system(), row.design), cells))
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
    let readme = include_str!("../../../../../README.md");
    let (_, block) = readme.split_once("```text\nioatlas report: ").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let block = format!("ioatlas report: {block}");
    let report = measured_report();
    let printed = terminal::render(&report, page(&report).len(), &Screen::default());
    let mask = |text: &str| {
        let lines = text.lines().map(|line| masked(line, &report));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(mask(&block), mask(&printed), "printed:\n{printed}");
    // of the page's size, little is the machine's
    let kilobytes = |text: &str| {
        let (before, _) = text.split_once(" KB)").unwrap();
        let number = before.rsplit(' ').next().unwrap();
        number.parse::<f64>().unwrap()
    };
    let (says, is) = (kilobytes(&block), kilobytes(&printed));
    assert!(
        (says / is - 1.0).abs() < 0.02,
        "README: {says} KB, it is {is}"
    );
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

#[path = "../../../examples/picture.rs"]
#[allow(dead_code, reason = "its main is not run here")]
mod picture;

#[test]
fn readme_has_the_picture_that_is_drawn() {
    let drawn = picture::picture(&measured_report()).unwrap();
    let kept = include_str!("../../../../../docs/report.svg");
    assert!(
        drawn == kept,
        "not what is drawn now: cargo run --release -p ioatlas-cli --example picture >docs/report.svg"
    );
    assert!(drawn.len() < 150_000, "{} bytes", drawn.len());
    // or no browser draws it
    let mut comments = drawn.split("<!--").skip(1);
    let mut inside = comments.by_ref().map(|rest| rest.split("-->").next());
    assert!(inside.all(|comment| !comment.unwrap().contains("--")));
}
