// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's section of what to do about each device's misses.

use super::MAX_TRACES;
use crate::report::advice::Advice;
use crate::report::model::{Making, Report};
use crate::report::savings::Saving;
use crate::report::verdict::DeviceVerdict;
use ioatlas_present::html::{chip, escaped, number, quantity};
use ioatlas_present::{Part, Sentence, Tag};
use std::fmt::Write;

/// Devices with sentences and a table of strategies; the JSON has all numbers.
const MAX_ADVISED: usize = MAX_TRACES / 2;

pub(super) fn advice(report: &Report) -> String {
    let shown = &report.verdicts[..report.verdicts.len().min(MAX_ADVISED)];
    let mut html = String::from("<section><h2>What to do</h2>");
    if let Some(says) = Advice::of_systems(&report.systems) {
        let says = each_tagged(&says);
        let _ = write!(html, "<p>Whatever the device: {says}</p>");
    }
    html.extend(shown.iter().map(|verdict| device(report, verdict)));
    match report.verdicts.len() - shown.len() {
        0 => {}
        more => {
            let _ = write!(html, "<p>{more} more devices are in the JSON.</p>");
        }
    }
    html + "</section>\n"
}

fn device(report: &Report, verdict: &DeviceVerdict) -> String {
    let list = |says: &[Sentence]| {
        let item = |says: &Sentence| format!("<li>{}</li>", each_tagged(says));
        says.iter().map(item).collect::<String>()
    };
    let advice = Advice::of(report, verdict);
    let says = if advice == Advice::default() {
        "<p>No access misses: nothing to gain.</p>".into()
    } else {
        format!(
            "<div class=\"todo\"><div><h4>What you can do today</h4><ul>{}</ul></div>\
             <div><h4>What needs code</h4><ul>{}</ul></div></div>{}",
            list(&advice.today),
            list(&advice.needs_code),
            table(verdict),
        )
    };
    let rests = |made: &&Making| made.trace == verdict.trace && made.assumptions > 0;
    let assumed = match report.made.iter().find(rests) {
        Some(_) => format!(" {}", chip(Tag::Assumed)),
        None => String::new(),
    };
    format!(
        "<h3>{} <code>{}</code>{assumed}</h3>{says}",
        escaped(&verdict.trace),
        escaped(&verdict.device)
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

/// A sentence whose numbers each have their tag, or all together the one they share.
pub(super) fn each_tagged(sentence: &Sentence) -> String {
    let tag = |part: &Part| match part {
        Part::Number(figure) => Some(figure.tag),
        Part::Words(_) => None,
    };
    let tags: Vec<Tag> = sentence.0.iter().filter_map(tag).collect();
    let shared = tags.first().copied();
    let shared = shared.filter(|first| tags.iter().all(|tag| tag == first));
    let show = |part: &Part| match part {
        Part::Words(words) => escaped(words),
        Part::Number(figure) if shared.is_some() => quantity(figure),
        Part::Number(figure) => format!("{} {}", quantity(figure), chip(figure.tag)),
    };
    let says: String = sentence.0.iter().map(show).collect();
    match shared {
        Some(tag) => format!("{says} {}", chip(tag)),
        None => says,
    }
}
