// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The exhibits on one page that needs no network, no script and no other file.

use super::{Found, LEGEND, Made, Papers, Statement, VerdictCounts, parameters};
use crate::report::provenance::command_line;
use crate::stated::Compared;
use ioatlas_present::html::{chip, document, escaped};
use ioatlas_present::{Tag, plot};
use std::ffi::OsString;

/// The page as HTML, with `command` in its provenance.
pub(super) fn page(papers: &Papers, command: &[OsString]) -> String {
    let sections: String = papers.exhibits.iter().map(section).collect();
    let body = format!(
        "<header><h1>Figures and tables of the papers, ours beside theirs</h1><p>Of what the papers state, our data reproduce <b>{}</b>. {LEGEND}</p>\
         <p><a href=\"#parameters\">{}</a>.</p></header>\n<main>\n{}\n{sections}{}\
         <section><h2>Provenance</h2><dl><dt>command</dt><dd><code>{}</code></dd><dt>program</dt>\
         <dd>ioatlas {}, commit <code>{}</code></dd><dt>numbers</dt><dd>{}</dd></dl></section>\n</main>",
        papers.counts,
        parameters::count(&papers.parameters),
        contents(papers),
        parameters_section(papers),
        escaped(&command_line("cargo lab", command)),
        papers.version,
        escaped(papers.commit),
        Tag::LEGEND
            .map(|(tag, means)| format!("{} {means}", chip(tag)))
            .join(", "),
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

/// Counts, coloured as its findings would be if all were alike.
fn counts(counts: &VerdictCounts) -> String {
    let class = match (counts.judged(), counts.reproduced) {
        (0, _) => "given",
        (judged, reproduced) if judged == reproduced => "reproduced",
        (judged, 0) if counts.not == judged => "not",
        _ => "weak",
    };
    let others = match counts.others().as_str() {
        "" => String::new(),
        others => format!(" <small>{others}</small>"),
    };
    format!(
        "<b class=\"verdict {class}\">{}</b>{others}",
        counts.short()
    )
}

/// How the findings of an exhibit came out, a place a line.
fn outcomes(made: &Made) -> String {
    let lines = made.places.iter().map(|placed| match made.places.len() {
        1 => counts(&placed.counts),
        _ => format!("{}: {}", escaped(placed.on), counts(&placed.counts)),
    });
    lines.collect::<Vec<_>>().join("<br>")
}

/// Every exhibit, a document after the other: what it looks like, its title, and how it came out.
fn contents(papers: &Papers) -> String {
    let mut html = "<nav>".to_owned();
    let mut of = "";
    for made in &papers.exhibits {
        let about = made.about;
        if about.paper != of {
            let end = if of.is_empty() { "" } else { "</ul>" };
            html += &format!("{end}<h3>{}</h3><ul>", escaped(about.paper));
            of = about.paper;
        }
        let thumbnail = match made.shown.plots.first() {
            Some(plot) => plot.thumbnail(),
            None => "<span class=\"thumbnail\">table</span>".into(),
        };
        html += &format!(
            "<li><a href=\"#{}\">{thumbnail}<span><b>{}</b> {}</span></a><span>{}</span></li>",
            about.stem(),
            about.exhibit,
            escaped(about.title),
            outcomes(made)
        );
    }
    html + "</ul></nav>"
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
        .map(|note| format!("<li>{}</li>", together(note)))
        .collect();
    let table = shown.table.html();
    let table = if shown.plots.is_empty() {
        table
    } else {
        format!("<details><summary>The numbers</summary>{table}</details>")
    };
    let sources: String = shown.sources().map(chip).collect();
    format!(
        "<section id=\"{}\"><h2>{}, {}: {} {sources}</h2><p>{}</p>\
         <div class=\"plots\">{plots}</div>{}{table}<ul class=\"note\">{notes}</ul></section>\n",
        about.stem(),
        escaped(about.paper),
        about.exhibit,
        escaped(about.title),
        together(about.claim),
        said(statements),
    )
}

/// What is said of results, each with what is found.
fn said(statements: &[Statement]) -> String {
    if statements.is_empty() {
        return String::new();
    }
    let mut found = statements.iter().flat_map(|statement| &statement.found);
    let has_numbers = found.any(|found| !found.compared.is_empty());
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
        let compared = |found: &Found| -> Option<String> {
            let all: Vec<String> = found.compared.iter().map(Compared::text).collect();
            (!all.is_empty()).then(|| all.join(", "))
        };
        let ratios: Vec<String> = statement.found.iter().filter_map(compared).collect();
        let cell = |name: &str, words: String| match words.is_empty() {
            true => "<td class=\"none\"></td>".to_owned(),
            false => format!("<td data-name=\"{name}\">{words}</td>"),
        };
        let mut cells = vec![
            cell("statement", together(&statement.says)),
            cell("theirs", together(statement.theirs)),
            cell("ours", found.join("<br>")),
        ];
        if has_numbers {
            cells.push(cell("ours over theirs", ratios.join("<br>")));
        }
        cells.push(cell("reproduced if", together(&statement.rule)));
        format!("<tr>{}</tr>", cells.concat())
    };
    let rows: String = statements.iter().map(row).collect();
    let over = if has_numbers {
        "<th>ours over theirs</th>"
    } else {
        ""
    };
    format!(
        "<table class=\"cases\"><thead><tr><th>statement</th><th>theirs {}</th><th>ours</th>{over}<th>reproduced if</th></tr></thead>\
         <tbody>{rows}</tbody></table>",
        chip(Tag::Assumed)
    )
}

/// Every parameter, with where its value comes from.
fn parameters_section(papers: &Papers) -> String {
    if papers.parameters.is_empty() {
        return "<section id=\"parameters\"></section>".into();
    }
    let cell =
        |name: &str, words: &str| format!("<td data-name=\"{name}\">{}</td>", together(words));
    let row = |parameter: &parameters::Parameter| {
        let cells = [
            cell("model", parameter.model),
            cell("parameter", &parameter.name),
            cell("value", &parameter.shown()),
            cell("from", parameter.origin()),
            cell("source", &parameter.source),
        ];
        format!("<tr>{}</tr>", cells.concat())
    };
    let rows: String = papers.parameters.iter().map(row).collect();
    format!(
        "<section id=\"parameters\"><h2>{}</h2><p class=\"note\">{}</p><details><summary>All of them</summary><table class=\"cases\"><thead><tr><th>model</th><th>parameter</th>\
         <th>value</th><th>from</th><th>source</th></tr></thead><tbody>{rows}</tbody></table></details></section>\n",
        parameters::count(&papers.parameters),
        parameters::MEANING,
    )
}
