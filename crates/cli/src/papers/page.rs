// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The exhibits on one page that needs no network, no script and no other file.

use super::{Cell, Made, Papers, Shown};
use crate::report::html::escaped;
use crate::report::provenance::command_line;
use std::ffi::OsString;

/// Renders the page.
pub(super) fn page(papers: &Papers, command: &[OsString]) -> String {
    let sections: String = papers.exhibits.iter().map(section).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>ioatlas papers</title>\n<style>\n{}</style></head>\n<body>\n\
         <header><h1>ioatlas papers</h1><p class=\"note\">Figures and tables of the papers, ours beside theirs. A verdict is \
         computed from our data: reproduced, weak (part of the claim, or less clearly), or not.</p></header>\n<main>\n{}\n{sections}\
         <section><h2>Provenance</h2><dl><dt>command</dt><dd><code>{}</code></dd><dt>program</dt>\
         <dd>ioatlas {}, commit <code>{}</code></dd></dl></section>\n</main>\n</body></html>\n",
        include_str!("../report/page.css"),
        contents(papers),
        escaped(&command_line(command)),
        papers.version,
        escaped(papers.commit),
    )
}

fn contents(papers: &Papers) -> String {
    let row = |made: &Made| {
        let Made {
            about, judgement, ..
        } = made;
        format!(
            "<tr><td>{}, {}</td><td>{}</td><td><b>{}</b></td></tr>",
            escaped(about.paper),
            about.exhibit,
            escaped(about.title),
            judgement.verdict.name()
        )
    };
    let rows: String = papers.exhibits.iter().map(row).collect();
    format!(
        "<section><table><thead><tr><th>exhibit</th><th>shows</th><th>verdict</th></tr></thead><tbody>{rows}</tbody></table></section>"
    )
}

fn section(made: &Made) -> String {
    let Made {
        about,
        judgement,
        shown,
    } = made;
    let plots: String = shown
        .plots
        .iter()
        .map(|plot| {
            format!(
                "<figure><figcaption>{}</figcaption>{}</figure>",
                escaped(&plot.title),
                plot.svg()
            )
        })
        .collect();
    let notes: String = shown
        .notes
        .iter()
        .map(|note| format!("<li>{}</li>", escaped(note)))
        .collect();
    let table = table(shown);
    let table = if shown.plots.is_empty() {
        table
    } else {
        format!("<details><summary>The numbers</summary>{table}</details>")
    };
    format!(
        "<section><h2>{}, {}: {}</h2><dl><dt>theirs</dt><dd>{}</dd><dt>ours</dt><dd><b>{}</b>: {}</dd></dl>{plots}{table}\
         <ul class=\"note\">{notes}</ul></section>\n",
        escaped(about.paper),
        about.exhibit,
        escaped(about.title),
        escaped(about.claim),
        judgement.verdict.name(),
        escaped(&judgement.reason),
    )
}

fn table(shown: &Shown) -> String {
    let heading: String = shown
        .columns
        .iter()
        .map(|name| format!("<th>{}</th>", escaped(name)))
        .collect();
    let cell = |cell: &Cell| {
        let class = match cell {
            Cell::Words(_) => "",
            Cell::Number(_) => " class=\"r\"",
        };
        format!("<td{class}>{}</td>", escaped(&cell.text()))
    };
    let row = |row: &Vec<Cell>| {
        let cells: String = row.iter().map(cell).collect();
        format!("<tr>{cells}</tr>")
    };
    let rows: String = shown.rows.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
}
