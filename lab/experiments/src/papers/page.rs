// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The exhibits on one page that needs no network, no script and no other file.

use super::{Made, Papers, Statement, Verdict};
use crate::report::provenance::command_line;
use ioatlas_present::html::{chip, document, escaped};
use ioatlas_present::{Tag, plot};
use std::ffi::OsString;

/// The page as HTML, with `command` in its provenance.
pub(super) fn page(papers: &Papers, command: &[OsString]) -> String {
    let sections: String = papers.exhibits.iter().map(section).collect();
    let body = format!(
        "<header><h1>cargo lab papers</h1><p class=\"note\">Figures and tables of the papers, ours beside theirs. A verdict is \
         computed from our data: reproduced, weak (part of the claim, or less clearly), or not. Numbers say where they come from: {}.</p></header>\n<main>\n{}\n{sections}\
         <section><h2>Provenance</h2><dl><dt>command</dt><dd><code>{}</code></dd><dt>program</dt>\
         <dd>ioatlas {}, commit <code>{}</code></dd></dl></section>\n</main>",
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

fn verdict(verdict: Verdict) -> String {
    format!("<b class=\"verdict {0}\">{0}</b>", verdict.name())
}

fn contents(papers: &Papers) -> String {
    let row = |made: &Made| {
        let Made {
            about, judgement, ..
        } = made;
        let statement = |statement: &Statement| {
            let found: Vec<String> = statement
                .found
                .iter()
                .map(|found| {
                    format!(
                        "{}: {}",
                        escaped(found.on),
                        verdict(found.judgement.verdict)
                    )
                })
                .collect();
            format!(
                "<tr class=\"statement\"><td></td><td>{}</td><td>{}</td></tr>",
                together(statement.says),
                found.join("<br>")
            )
        };
        let statements: String = made.statements.iter().map(statement).collect();
        format!(
            "<tr><td class=\"w\">{}, {}</td><td><b>{}</b></td><td>{}</td></tr>{statements}",
            escaped(about.paper),
            about.exhibit,
            escaped(about.title),
            verdict(judgement.verdict)
        )
    };
    let rows: String = papers.exhibits.iter().map(row).collect();
    format!(
        "<section><div class=\"scroll\"><table><thead><tr><th>exhibit</th><th>shows; what is said of it</th><th>verdict</th></tr></thead>\
         <tbody>{rows}</tbody></table></div></section>"
    )
}

fn section(made: &Made) -> String {
    let Made {
        about,
        judgement,
        statements,
        shown,
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
        "<section id=\"{}\"><h2>{}, {}: {} {sources}</h2><dl><dt>theirs</dt><dd>{}</dd><dt>ours</dt><dd>{}: {}</dd></dl>{}\
         <div class=\"plots\">{plots}</div>{table}<ul class=\"note\">{notes}</ul></section>\n",
        about.stem(),
        escaped(about.paper),
        about.exhibit,
        escaped(about.title),
        together(about.claim),
        verdict(judgement.verdict),
        together(&judgement.reason),
        said(statements),
    )
}

/// What is said of results, each with what is found.
fn said(statements: &[Statement]) -> String {
    if statements.is_empty() {
        return String::new();
    }
    let row = |statement: &Statement| {
        let found: Vec<String> = statement
            .found
            .iter()
            .map(|found| {
                format!(
                    "{} {}: {}",
                    verdict(found.judgement.verdict),
                    escaped(found.on),
                    together(&found.judgement.reason)
                )
            })
            .collect();
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            together(statement.says),
            together(statement.theirs),
            found.join("<br>"),
            together(statement.rule)
        )
    };
    let rows: String = statements.iter().map(row).collect();
    format!(
        "<div class=\"scroll statements\"><table><thead><tr><th>statement</th><th>theirs {}</th><th>ours</th><th>reproduced if</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>",
        chip(Tag::Assumed)
    )
}
