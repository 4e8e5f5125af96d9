// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's words on what to do for each device: the best that one can have today at the top of
//! the page, the rest folded away further below.

use super::MAX_TRACES;
use crate::record::Class;
use crate::report::model::{Making, Report};
use crate::report::remedy::{self, Availability, Knob, Protection, Remedy};
use crate::report::savings::Saving;
use crate::report::verdict::DeviceVerdict;
use ioatlas_present::Tag;
use ioatlas_present::html::{chip, escaped, marked, number};

/// Devices with remedies; the JSON has those of all.
const MAX_ADVISED: usize = MAX_TRACES / 2;

/// The best remedies of each device of a trace with accesses.
pub(super) fn first(report: &Report) -> String {
    let cards: String = advised(report).iter().map(|of| card(report, of)).collect();
    let more = match report.verdicts.len() - advised(report).len() {
        0 => String::new(),
        more => format!("<p>{more} more devices are in the JSON.</p>"),
    };
    format!(
        "<section><h2>What to do</h2><p class=\"note\">At most {} a device, best first, of what one can have today. \
         Waits: those for invalidations, against a strict policy. Further below is what else there is.</p>\
         <div class=\"todo\">{cards}</div>{more}</section>\n",
        remedy::FIRST,
    )
}

/// What else there is, and every sum of strategies.
pub(super) fn rest(report: &Report) -> String {
    let devices: String = advised(report)
        .iter()
        .map(|verdict| {
            let heading = heading(report, verdict);
            let folded = folded(&verdict.remedies, verdict.class);
            format!("{heading}{folded}{}", table(verdict))
        })
        .collect();
    format!("<section><h2>What else there is</h2>{devices}</section>\n")
}

fn advised(report: &Report) -> &[DeviceVerdict] {
    &report.verdicts[..report.verdicts.len().min(MAX_ADVISED)]
}

fn card(report: &Report, verdict: &DeviceVerdict) -> String {
    let says = match best(&verdict.remedies, verdict.class) {
        _ if report.is_lossy(&verdict.trace) => format!("<p>{}</p>", remedy::NONE_OF_LOST),
        says if says.is_empty() => "<p>Nothing to gain today.</p>".into(),
        says => says,
    };
    format!("<div>{}{says}</div>", heading(report, verdict))
}

fn heading(report: &Report, verdict: &DeviceVerdict) -> String {
    let rests = |made: &&Making| made.trace == verdict.trace && made.assumptions > 0;
    let assumed = match report.made.iter().find(rests) {
        Some(_) => format!(" {}", chip(Tag::Assumed)),
        None => String::new(),
    };
    format!(
        "<h3>{} <code>{}</code>{assumed}</h3>",
        escaped(&verdict.trace),
        escaped(&verdict.device)
    )
}

/// The remedies that come before all else, as a list; empty if there is none.
pub(super) fn best(remedies: &[Remedy], class: Option<Class>) -> String {
    match remedy::first(remedies) {
        [] => String::new(),
        first => format!("<ul>{}</ul>", items(first, class)),
    }
}

/// All others, folded away by who can have them.
pub(super) fn folded(remedies: &[Remedy], class: Option<Class>) -> String {
    let rest = &remedies[remedy::first(remedies).len()..];
    let summary = |of: &Remedy| match of.about.available {
        Availability::AsItIs | Availability::UserSpace => "More that one can have today",
        Availability::Firmware => "What needs firmware",
        Availability::NeedsCode => "What needs code",
    };
    let fold = |alike: &[Remedy]| {
        format!(
            "<details><summary>{}</summary><ul>{}</ul></details>",
            summary(&alike[0]),
            items(alike, class)
        )
    };
    rest.chunk_by(|a, b| summary(a) == summary(b))
        .map(fold)
        .collect()
}

fn items(remedies: &[Remedy], class: Option<Class>) -> String {
    let item = |remedy: &Remedy| format!("<li>{}</li>", says(remedy, class));
    remedies.iter().map(item).collect()
}

/// All of a remedy: its name, whom it is for, what it gains and costs, and by what one asks for it.
fn says(remedy: &Remedy, class: Option<Class>) -> String {
    let about = remedy.about;
    let of = remedy.of.as_ref().map(|of| format!(": {}", escaped(of)));
    let whom = match remedy.whom(class) {
        Some(whom) if remedy.is_for_today() => format!(" (for {whom})"),
        _ => String::new(),
    };
    let mut html = format!(
        "<b>{}</b>{}{whom}: {}",
        escaped(about.name),
        of.unwrap_or_default(),
        marked(&remedy.gained(), None),
    );
    // that an IOMMU costs no protection goes without saying
    if remedy.is_for_today() || about.protection != Protection::None {
        html += &format!("<br>{}", about.protection.words());
    }
    html.extend(remedy.knobs.iter().map(asked_for));
    if !about.note.is_empty() {
        html += &format!("<br><span class=\"note\">{}</span>", escaped(about.note));
    }
    html
}

fn asked_for(knob: &Knob) -> String {
    let how = match knob.how {
        "" => String::new(),
        how => format!(" {}", escaped(how)),
    };
    let since = knob
        .since
        .map(|since| format!(" (Linux {since} and later)"));
    format!(
        "<br><code>{}</code>{how}{}",
        escaped(knob.knob),
        since.unwrap_or_default()
    )
}

/// Every sum of strategies.
fn table(verdict: &DeviceVerdict) -> String {
    let row = |saving: &Saving| {
        format!(
            "<tr><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>",
            escaped(&saving.strategy),
            number(&saving.misses),
            saving.change.as_ref().map_or("-".into(), number),
        )
    };
    let rows: String = verdict.savings.iter().map(row).collect();
    format!(
        "<details><summary>Every strategy and sum of strategies</summary><div class=\"scroll\">\
         <table class=\"sortable\"><thead><tr><th aria-sort=\"none\"><button>strategy</button></th>\
         <th class=\"r\" aria-sort=\"none\"><button>misses</button> {0}</th>\
         <th class=\"r\" aria-sort=\"none\"><button>change</button> {0}</th></tr></thead>\
         <tbody><tr><td>baseline</td><td class=\"r\">{1}</td><td class=\"r\">-</td></tr>{rows}</tbody></table>\
         </div></details>",
        chip(Tag::Simulated),
        number(&verdict.misses),
    )
}
