// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The exhibits on one page that needs no network, no script and no other file.

use super::{Found, LEGEND, Made, Papers, Statement};
use crate::report::provenance::command_line;
use ioatlas_present::html::{chip, document, escaped};
use ioatlas_present::{Tag, plot};
use std::ffi::OsString;

/// The page as HTML, with `command` in its provenance.
pub(super) fn page(papers: &Papers, command: &[OsString]) -> String {
    let sections: String = papers.exhibits.iter().map(section).collect();
    let body = format!(
        "<header><h1>cargo lab papers</h1><p class=\"note\">Figures and tables of the papers, ours beside theirs: \
         of each statement of theirs, whether our data reproduce it. All findings reproduced: <b>{}</b>. {LEGEND} Numbers say where they come from: {}.</p></header>\n<main>\n{}\n{sections}\
         <section><h2>Provenance</h2><dl><dt>command</dt><dd><code>{}</code></dd><dt>program</dt>\
         <dd>ioatlas {}, commit <code>{}</code></dd></dl></section>\n</main>",
        papers.tally,
        Tag::LEGEND
            .map(|(tag, means)| format!("{} {means}", chip(tag)))
            .join(", "),
        contents(papers),
        escaped(&command_line("cargo lab", command)),
        papers.version,
        escaped(papers.commit),
    );
    let style = [plot::STYLE, include_str!("page.css")].concat();
    document("cargo lab papers", &style, &body)
}

/// Words, safe for the page, in which a number and its sign stay on one line.
fn together(text: &str) -> String {
    escaped(text).replace(" %", "\u{a0}%")
}

/// The word for a finding, coloured.
fn verdict(found: &Found) -> String {
    format!("<b class=\"verdict {0}\">{0}</b>", found.word())
}

/// How the findings of an exhibit came out, a place a line.
fn outcomes(made: &Made) -> String {
    let lines: Vec<String> = made.outcomes().iter().map(|line| escaped(line)).collect();
    lines.join("<br>")
}

fn contents(papers: &Papers) -> String {
    let row = |made: &Made| {
        let about = made.about;
        format!(
            "<tr><td class=\"w\"><a href=\"#{}\">{}, {}</a></td><td>{}</td><td>{}</td></tr>",
            about.stem(),
            escaped(about.paper),
            about.exhibit,
            escaped(about.title),
            outcomes(made)
        )
    };
    let rows: String = papers.exhibits.iter().map(row).collect();
    format!(
        "<section><div class=\"scroll\"><table><thead><tr><th>exhibit</th><th>shows</th><th>reproduced</th></tr></thead>\
         <tbody>{rows}</tbody></table></div></section>"
    )
}

fn section(made: &Made) -> String {
    let Made {
        about,
        statements,
        shown,
        ..
    } = made;
    let drawing = |plot: &plot::Plot| {
        format!(
            "<figure><figcaption>{} {}</figcaption>{}</figure>",
            escaped(&plot.title),
            chip(plot.tag),
            plot.svg()
        )
    };
    let plots: String = shown.plots.iter().map(drawing).collect();
    let notes: String = shown
        .notes
        .iter()
        .map(|note| format!("<li>{}</li>", escaped(note)))
        .collect();
    let table = shown.table.html();
    let table = if shown.plots.is_empty() {
        table
    } else {
        format!("<details><summary>The numbers</summary>{table}</details>")
    };
    let sources: String = shown.sources().map(chip).collect();
    format!(
        "<section id=\"{}\"><h2>{}, {}: {} {sources}</h2><dl><dt>theirs</dt><dd>{}</dd><dt>reproduced</dt><dd>{}</dd></dl>{}\
         <div class=\"plots\">{plots}</div>{table}<ul class=\"note\">{notes}</ul></section>\n",
        about.stem(),
        escaped(about.paper),
        about.exhibit,
        escaped(about.title),
        together(about.claim),
        outcomes(made),
        said(statements),
    )
}

/// What is said of results, each with what is found.
fn said(statements: &[Statement]) -> String {
    let row = |statement: &Statement| {
        let found = |found: &Found| {
            format!(
                "{} {}: {}",
                verdict(found),
                escaped(found.on),
                together(&found.reason)
            )
        };
        let found: Vec<String> = statement.found.iter().map(found).collect();
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            together(&statement.says),
            together(statement.theirs),
            found.join("<br>"),
            together(&statement.rule)
        )
    };
    let rows: String = statements.iter().map(row).collect();
    format!(
        "<div class=\"scroll statements\"><table><thead><tr><th>statement</th><th>theirs {}</th><th>ours</th><th>reproduced if</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>",
        chip(Tag::Assumed)
    )
}
