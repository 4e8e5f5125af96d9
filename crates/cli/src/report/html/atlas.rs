// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The page's pictures of traces, and what a reader can choose in them. The script draws.

use super::{plot, points};
use crate::report::atlas::Atlas;
use crate::report::model::Report;
use ioatlas_present::Tag;
use ioatlas_present::html::{chip, escaped, sentence};
use std::fmt::Write;

/// What is shown: class, words, bits of a cell, and whether it is at first.
const LAYERS: [(&str, &str, u8, bool); 6] = [
    ("consistent", "consistent accesses", 1, true),
    ("streaming", "streaming accesses", 2, true),
    ("miss", "misses: first touch", 4, true),
    ("other", "misses: capacity, conflict", 8, true),
    ("map", "maps", 16, false),
    ("unmap", "unmaps", 32, false),
];

/// Strategies with a button of their own.
const STRATEGIES: [(&str, &str); 4] = [
    ("baseline", "baseline"),
    ("alh", "both neighbours"),
    ("sd-alh", "one neighbour"),
    ("mpre", "when mapped"),
];

/// What a reader can add up; the script knows that they are named in this order.
const PARTS: [&str; 6] = [
    "alh",
    "sd-alh",
    "mpre",
    "8-prefetch",
    "descending",
    "superpage",
];

pub(super) fn atlases(report: &Report) -> String {
    let layer = |&(class, name, bit, on): &(&str, &str, u8, bool)| {
        let checked = if on { " checked" } else { "" };
        format!(
            "<label><input type=\"checkbox\" data-bit=\"{bit}\"{checked}><i class=\"{class}\"></i>{name}</label>"
        )
    };
    let layers: String = LAYERS.iter().map(layer).collect();
    let strategy = |&(name, words): &(&str, &str)| {
        let (words, checked) = match name {
            "baseline" => (name.into(), " checked"),
            _ => (format!("{name}: {words}"), ""),
        };
        format!(
            "<label><input type=\"radio\" name=\"strategy\" value=\"{name}\"{checked}>{words}</label>"
        )
    };
    let strategies: String = STRATEGIES.iter().map(strategy).collect();
    let part = |name: &&str| {
        format!("<label><input type=\"checkbox\" data-part=\"{name}\">{name}</label>")
    };
    let parts: String = PARTS.iter().map(part).collect();
    let drawings = report.atlases.iter().map(|of| atlas(report, of));
    let mut drawings: String = drawings.collect();
    let traces = report.provenance.traces.iter().filter(|t| !t.is_variant);
    let more = traces.count().saturating_sub(report.atlases.len());
    if more > 0 {
        let _ = write!(drawings, "<p>{more} more traces are not drawn.</p>");
    }
    format!(
        "<section><h2>Atlas {}</h2><p class=\"note\">IOVA page (hexadecimal, upwards, gaps of never used pages closed) \
         against virtual time (events, to the right; below them the time, where the trace has times). Accesses and misses are WIOSCA&#39;10&#39;s figures 4 \
         and 6; maps and unmaps its figures 5 and 7. Choose a strategy: the misses that it saves go out. The address of the page keeps the view.</p>\
         <p class=\"note how\">Point at a place, and it says what lies there. Drag or pinch to come closer; double-click, or Back, \
         leads out again. With keys: Tab to a picture, arrows point, + and - zoom, 0 is the whole.</p>\
         <fieldset class=\"layers\"><legend>Show</legend>{layers}</fieldset>\
         <fieldset class=\"layers strategies\"><legend>Prefetching</legend>{strategies}\
         <label><input type=\"radio\" name=\"strategy\" value=\"own\">your combination:</label>\
         <span class=\"parts\">{parts}</span></fieldset>{drawings}<noscript><p>The atlas needs JavaScript; all \
         numbers are below and above.</p></noscript></section>\n",
        chip(Tag::Simulated)
    )
}

fn atlas(report: &Report, atlas: &Atlas) -> String {
    let pairs = |pairs: &[(usize, String)]| {
        let pair = |(row, name): &(usize, String)| format!("{row} {}", escaped(name));
        pairs.iter().map(pair).collect::<Vec<_>>().join("\n")
    };
    let sets: Vec<String> = atlas
        .sets
        .iter()
        .map(|[first, others]| format!("{first:x} {others:x}"))
        .collect();
    let misses: Vec<String> = atlas.misses.iter().map(u64::to_string).collect();
    let name = escaped(&atlas.label);
    let tasks: Vec<String> = atlas.lies.tasks.iter().map(|task| escaped(task)).collect();
    let (kept, all) = atlas.lies.kept;
    let canvas = format!(
        "<canvas tabindex=\"0\" role=\"img\" aria-label=\"{name}: pages \
         accessed over {0} events, misses in red\" data-columns=\"{1}\" data-rows=\"{2}\" \
         data-events=\"{0}\" data-devices=\"{3}\" data-ticks=\"{4}\" data-combinations=\"{5}\" \
         data-misses=\"{6}\" data-sets=\"{7}\" data-cells=\"{8}\" data-exact=\"{9}\" data-pages=\"{10}\" \
         data-mappings=\"{11}\" data-kept=\"{12}\" data-tasks=\"{13}\" data-times=\"{14}\"></canvas>\
         <p class=\"note\"><output></output> <span class=\"take\"><button class=\"whole\" hidden>whole picture</button></span></p>",
        atlas.events,
        atlas.columns,
        atlas.rows,
        pairs(&atlas.devices),
        pairs(&atlas.ticks),
        atlas.combinations.join(" "),
        misses.join(" "),
        sets.join(";"),
        atlas.cells,
        atlas.is_exact,
        atlas.lies.rows,
        atlas.lies.mappings,
        if kept == all { "all" } else { "some" },
        tasks.join("\n"),
        atlas.lies.times,
    );
    let point = sentence(&points::atlas(report, &atlas.label));
    plot("atlas", &format!("atlas-{name}"), &point, &canvas, None)
}
