// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What to do: remedies, on all views.

use super::measured_report;
use crate::common::{bundled, report_of};
use ioatlas_cli::LoadedTrace;
use ioatlas_cli::Screen;
use ioatlas_cli::report::remedy::{self, Availability, Less, Protection, Remedy};
use ioatlas_cli::report::systems::Rows;
use ioatlas_cli::report::{page, terminal};
use std::collections::HashSet;

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
    const NETWORK: &[&str] = &["page_pool", "ethtool", "mtu"];
    const DISK: &[&str] = &["max_sectors_kb", "io_queue_depth"];
    let of_file = |name: &str| {
        let bytes = std::fs::read(bundled(name)).unwrap();
        advised(vec![LoadedTrace::read(name, &bytes, None).unwrap()])
    };
    let mut found: HashSet<&str> = HashSet::new();
    for (name, own, others) in [
        ("e1000-stream", NETWORK, DISK),
        ("2xvirtio-net-4q-stream", NETWORK, DISK),
        ("virtio-net-4q-stream", NETWORK, DISK),
        ("lsi-bonnie", DISK, NETWORK),
        ("nvme-fio", DISK, NETWORK),
    ] {
        for says in of_file(name) {
            found.extend(own.iter().copied().filter(|word| says.contains(word)));
            for word in others {
                assert!(!says.contains(word), "{name}: {word}: {says}");
            }
        }
    }
    // each of these is of use to one of them
    for word in ["page_pool", "ethtool", "max_sectors_kb", "io_queue_depth"] {
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
    assert!(!terminal::render(&report, 1000, &Screen::default()).contains("today:"));
}
