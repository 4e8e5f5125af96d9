// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a report says of captures, which have no accesses: what is in them, and nothing else.

use crate::common::{figures, page_figures};
use ioatlas_cli::LoadedTrace;
use ioatlas_cli::Screen;
use ioatlas_cli::report::captures::ALH_ERROR_POINTS;
use ioatlas_cli::report::remedy::{Bound, Less};
use ioatlas_cli::report::systems::Rows;
use ioatlas_cli::report::{Report, Traces, bundled_traces, page, terminal};
use ioatlas_iotlb::Trace;
use ioatlas_iotlb::import::Assume;
use ioatlas_present::Tag;
use serde_json::Value;
use std::path::Path;

fn report_of(traces: Vec<LoadedTrace>, rows: &Rows) -> Report {
    // a wait that no measured time comes near
    crate::common::report_of(traces, rows, Some(1e6))
}

fn with_trace(loaded: &LoadedTrace, trace: Trace) -> LoadedTrace {
    LoadedTrace {
        trace,
        label: loaded.label.clone(),
        description: loaded.description,
        sha256: loaded.sha256.clone(),
        file_bytes: loaded.file_bytes,
    }
}

/// A trace as `report` reads a capture of the same maps and unmaps.
fn as_capture(loaded: &LoadedTrace) -> LoadedTrace {
    let bare = loaded.trace.without_accesses();
    with_trace(loaded, bare.with_assumed_accesses(Assume::Unmap))
}

fn bundled() -> Vec<LoadedTrace> {
    let Traces {
        traces, variants, ..
    } = bundled_traces().unwrap();
    traces.into_iter().chain(variants).collect()
}

/// Every number of `bare` that is neither measured nor of the self-check is the same in `full`.
fn same_numbers(bare: &Value, full: &Value, path: &str) {
    match (bare, full) {
        (Value::Object(fields), Value::Object(others)) => {
            if fields.contains_key("tag") {
                if fields["tag"] != "measured" {
                    assert_eq!(bare, full, "{path}");
                }
                return;
            }
            for (name, field) in fields {
                // how many accesses this run checked, and tried, is true of this run
                let of_run = ["checked_accesses", "attempts"].iter();
                if !of_run.clone().any(|word| name.contains(word)) {
                    same_numbers(field, &others[name], &format!("{path}/{name}"));
                }
            }
        }
        (Value::Array(items), Value::Array(others)) => {
            for (at, (item, other)) in items.iter().zip(others).enumerate() {
                same_numbers(item, other, &format!("{path}/{at}"));
            }
        }
        _ => {}
    }
}

#[test]
fn no_number_of_a_capture_follows_from_assumed_accesses() {
    // of captures no system has a row unless it is named
    let six = Rows::Named(Rows::Systems.designs());
    let full = report_of(bundled(), &six);
    let bare = report_of(bundled().iter().map(as_capture).collect(), &six);
    assert_eq!((full.captures.len(), bare.verdicts.len()), (0, 0));
    assert_eq!(bare.captures.len(), 6);
    let json = |report: &Report| serde_json::to_value(report).unwrap();
    let (full_json, bare_json) = (json(&full), json(&bare));
    for part in ["systems", "bouncing", "losses", "wait"] {
        same_numbers(&bare_json[part], &full_json[part], part);
    }
    for row in bare_json["systems"].as_array().unwrap() {
        assert_eq!(row["misses_per_1k_maps"], Value::Null);
        for on in row["per_trace"].as_array().unwrap() {
            assert_eq!(on["misses"], Value::Null);
        }
    }
    let devices = bare.captures.iter().flat_map(|capture| {
        let trace = &capture.trace;
        capture.devices.iter().map(move |device| (trace, device))
    });
    let (all, mut compared) = (bundled(), 0);
    for (trace, device) in devices {
        let same = |v: &&ioatlas_cli::report::verdict::DeviceVerdict| {
            v.trace == *trace && v.device == device.device
        };
        let verdict = full.verdicts.iter().find(same).unwrap();
        let with_accesses = all.iter().find(|loaded| loaded.label == *trace).unwrap();
        let traffic = with_accesses.trace.traffic();
        let mut ids = with_accesses.trace.devices();
        let id = ids.find(|id| with_accesses.trace.device_name(*id) == device.device);
        assert_eq!(
            device.maps.value,
            traffic.devices[id.unwrap().index()].maps as f64
        );
        assert!(device.maps.value <= verdict.maps.value, "a list is one map");
        assert_eq!(device.peak_live_pages, Some(verdict.peak_live_pages));
        let pool = (device.pool.map(|p| p.pages), device.pool.map(|p| p.maps));
        assert_eq!(pool, (verdict.knobs.pool_pages, verdict.knobs.pool_maps));
        let (estimate, real) = (device.alh.unwrap().change, verdict.saving("alh").unwrap());
        let off = (estimate.value - real.value).abs();
        assert!(off <= ALH_ERROR_POINTS, "{trace} {}: {off}", device.device);
        compared += 1;
    }
    assert_eq!(compared, 8);
    let html = page(&bare);
    // the script knows all that a page can have
    let html = html.split("<script>").next().unwrap();
    for word in [
        "first touch",
        "Why they miss",
        "of 100 accesses",
        "<h2>Atlas",
    ] {
        assert!(!html.contains(word), "{word}");
    }
    let shown = terminal::render(&bare, 1000, &Screen::default());
    assert!(!shown.contains("misses are a floor") && !shown.contains("of 100 miss"));
}

fn fixture(name: &str) -> LoadedTrace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../iotlb/tests/fixtures");
    let file = std::fs::read(path.join(name)).unwrap();
    let options = ioatlas_iotlb::import::Options::default();
    let limits = ioatlas_iotlb::Limits::default();
    let trace = ioatlas_iotlb::import::load(name, &file.as_slice(), options, limits).unwrap();
    LoadedTrace {
        trace,
        label: name.split('.').next().unwrap().into(),
        description: None,
        sha256: String::new(),
        file_bytes: 0,
    }
}

#[test]
fn a_capture_says_rates_bytes_lifetimes_tasks_and_costs() {
    let report = report_of(vec![fixture("ftrace-7.2.txt.zst")], &Rows::Systems);
    let [capture] = report.captures.as_slice() else {
        panic!("{:?}", report.captures);
    };
    let costs = capture.costs.as_ref().unwrap();
    let busy = |name: &str| costs.mode(name).unwrap().cpus_busy.unwrap().value;
    assert!(busy("lazy") > 0.0 && busy("passthrough") == 0.0);
    let invalidations = |name: &str| costs.mode(name).unwrap().invalidations_per_second;
    assert_eq!(invalidations("strict"), Some(costs.unmaps_per_second));
    // so few that each may have a flush of its own
    let lazy = invalidations("lazy").unwrap().value;
    assert_eq!(lazy, costs.unmaps_per_second.value);
    let seconds = capture.seconds.unwrap();
    assert!((costs.maps_per_second.value * seconds - capture.maps()).abs() < 1e-6);
    // what was not accessed was not checked, and no system was asked for
    assert!(!terminal::render(&report, 1000, &Screen::default()).contains("violation"));
    assert!(report.systems.is_empty());
    let [disk, card] = capture.devices.as_slice() else {
        panic!("{:?}", capture.devices);
    };
    // counted by grep in the text: 6 allocations and 10 lists of the disk, 2 and 744 of the card
    assert_eq!((disk.maps.value, disk.unmaps.value), (16.0, 10.0));
    assert_eq!((card.maps.value, card.unmaps.value), (746.0, 489.0));
    assert_eq!(disk.tasks[0].name, "modprobe");
    // what an interrupt came upon is no task of it
    assert_eq!(card.tasks[0].name, "softirq");
    assert_eq!(card.mean_bytes.text(), "1,378");
    let beside = card.beside.unwrap();
    assert_eq!(
        (beside.maps.text(), beside.bytes.text()),
        ("99.1 %".into(), "74 %".into())
    );
    assert!(card.lifetimes.unwrap().median.value > 0.0);

    let shown = terminal::render(&report, 1000, &Screen::default());
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines.len() <= 24, "{shown}");
    for line in &lines {
        assert!(
            line.chars().count() <= 100 && !line.ends_with(".."),
            "{line}"
        );
    }
    for words in [
        "136 maps and 89 unmaps a second",
        "strict       iommu.strict=1",
        "a device may reach what was unmapped",
        "Other data in reach: in 99.1 % of maps, 74 % of the bytes",
        "By task: modprobe 38 %, dd 31 %",
    ] {
        assert!(shown.contains(words), "{words}\n{shown}");
    }

    let (json, html) = (serde_json::to_value(&report).unwrap(), page(&report));
    let mut model = std::collections::HashSet::new();
    figures(&json["captures"], &mut model);
    assert!(html.contains("<title>ioatlas report: ftrace-7</title>"));
    let begin = html.find("<h2>ftrace-7").unwrap();
    let section = &html[begin..begin + html[begin..].find("</section>").unwrap()];
    let drawn = page_figures(section);
    let missing: Vec<_> = model.difference(&drawn).collect();
    assert!(
        missing.is_empty(),
        "in the model, not on the page: {missing:?}"
    );
    let strange: Vec<_> = drawn.difference(&model).collect();
    assert!(
        strange.is_empty(),
        "on the page, not in the model: {strange:?}"
    );
}

#[test]
fn rates_are_of_the_time_that_was_recorded() {
    let text = |note: &str| {
        format!("# ioatlas-trace 2\n{note}# at 0 0\nM d 1 1 w\n# at 1000000 0\nU d 1 1\n")
    };
    let rate = |note: &str| {
        let trace = LoadedTrace::read("t", text(note).as_bytes(), None).unwrap();
        let report = report_of(vec![trace], &Rows::Systems);
        let device = &report.captures[0].devices[0];
        device.maps_per_second.unwrap().value
    };
    assert_eq!(rate(""), 1000.0);
    assert_eq!(rate("# note recorded-ns 2000000000\n"), 0.5);
    // what says less than the events cannot be
    assert_eq!(rate("# note recorded-ns 7\n"), 1000.0);
}

#[test]
fn at_a_high_rate_strict_waits_and_lazy_does_not() {
    let pair = |n: u64| {
        let ns = n * 1000;
        format!("# at {ns} 0\nM d 1 1 w 7 page 64+100\nU d 1 1\n")
    };
    let pairs: String = (0..=1000).map(pair).collect();
    let text = format!("# ioatlas-trace 2\n{pairs}");
    let trace = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
    let report = report_of(vec![trace], &Rows::Systems);
    let costs = report.captures[0].costs.as_ref().unwrap();
    let mode = |name: &str| costs.mode(name).unwrap();
    let rate = |name: &str| mode(name).invalidations_per_second.unwrap().value;
    assert_eq!(rate("strict").round(), 1_001_000.0);
    // full queues of 250, and 100 ticks a second
    assert_eq!(rate("lazy").round(), 1_001_000.0 / 250.0 + 100.0);
    // with Linux's own code there are as many invalidations, and other times beside them
    let linux = mode("lazy").linux.unwrap();
    for (pair, cpus) in linux.ns_per_pair.iter().zip(linux.cpus_busy) {
        let expected = costs.maps_per_second.value * pair.value / 1e9 + rate("lazy") / 1e3;
        assert!((cpus.value - expected).abs() < 1e-9);
        assert_eq!((pair.tag, cpus.tag), (Tag::Assumed, Tag::Assumed));
    }
    assert_eq!(mode("passthrough").linux, None);
    // a wait of a millisecond each
    assert!(mode("strict").cpus_busy.unwrap().value > 1000.0);
    assert!(mode("lazy").cpus_busy.unwrap().value < 100.0);
    let shown = terminal::render(&report, 1000, &Screen::default());
    assert!(
        shown.contains("up to 10 ms, or 250 unmaps of a CPU"),
        "{shown}"
    );
}

/// A thousand pairs, one a microsecond, of maps of `bytes`.
fn busy(bytes: u64) -> Report {
    let pair = |n: u64| {
        let ns = n * 1000;
        format!("# at {ns} 0\nM d 1 1 w 7 page 64+{bytes}\nU d 1 1\n")
    };
    let pairs: String = (0..1000).map(pair).collect();
    let text = format!("# ioatlas-trace 2\n{pairs}");
    let trace = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
    report_of(vec![trace], &Rows::Systems)
}

#[test]
fn remedies_of_a_capture_are_of_its_maps_and_of_their_time() {
    let report = busy(1514);
    let device = &report.captures[0].devices[0];
    let gains: Vec<_> = device
        .remedies
        .iter()
        .map(|of| (of.about.id, of.gains[0]))
        .collect();
    let ids: Vec<_> = gains.iter().map(|(id, _)| *id).collect();
    let today = ["page-pool", "lazy", "large-frames", "passthrough"];
    assert_eq!(ids, [&today[..], &["untrusted", "bouncing"]].concat());
    let (pool, frames) = (gains[0].1, gains[2].1);
    assert_eq!((pool.of, pool.change.value), (Less::Maps, -99.9));
    assert_eq!(pool.left.unwrap().value, 1.0);
    // six frames become one
    assert_eq!(frames.bound, Bound::AtMost);
    assert!((frames.change.value + 100.0 * 5.0 / 6.0).abs() < 1e-9);
    let costs = report.captures[0].costs.as_ref().unwrap();
    let time = |name: &str| costs.mode(name).unwrap().cpus_busy.unwrap().value;
    let lazy = gains[1].1;
    assert_eq!(
        (lazy.of, lazy.left.unwrap().value),
        (Less::Time, time("lazy"))
    );
    let change = 100.0 * (time("lazy") / time("strict") - 1.0);
    assert!((lazy.change.value - change).abs() < 1e-9);

    let shown = terminal::render(&report, 1000, &Screen::default());
    let line = shown.lines().find(|line| line.contains("today:")).unwrap();
    assert!(
        line.contains("  today: page pool (network) -99.9 % maps; lazy -"),
        "{line}"
    );
    // what needs code is folded away, and on the page only
    assert!(!shown.contains("bouncing") && !line.contains("passthrough"));
    let html = page(&report);
    let (_, folded) = html.split_once("<summary>What needs code").unwrap();
    assert!(folded.contains("bouncing small buffers"));
    assert!(html.contains("echo DMA-FQ &gt;/sys/kernel/iommu_groups/N/type"));
    // of other sizes the MTU says nothing
    let others = &busy(100).captures[0].devices[0];
    assert!(
        !others
            .remedies
            .iter()
            .any(|of| of.about.id == "large-frames")
    );
}

#[test]
fn where_maps_take_next_to_nothing_no_time_is_to_be_gained() {
    let text = "# ioatlas-trace 2\n# at 0 0\nM d 1 1 w 7 page 0+64\n# at 5000000000 0\nU d 1 1\n";
    let trace = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
    let report = report_of(vec![trace], &Rows::Systems);
    let [remedy] = report.captures[0].devices[0].remedies.as_slice() else {
        panic!("{:?}", report.captures[0].devices);
    };
    // but 4,032 bytes beside those that are mapped need not be within reach
    assert_eq!(
        (remedy.about.id, remedy.gains[0].of),
        ("untrusted", Less::OtherData)
    );
    // no command asks for it, so it is none of what one can have today
    let html = page(&report);
    assert!(html.contains("no time to gain") && !html.contains("<h4>What to do"));
    let (_, folded) = html.split_once("<summary>What needs firmware").unwrap();
    assert!(folded.contains("<b>untrusted device</b>") && folded.contains("ExternalFacingPort"));
    assert!(!terminal::render(&report, 1000, &Screen::default()).contains("today:"));
    let json = serde_json::to_value(remedy).unwrap();
    assert_eq!(json["available"], "firmware");
}

#[test]
fn where_no_iommu_translated_no_data_are_said_to_be_in_reach_besides() {
    let text = |note: &str| {
        format!("# ioatlas-trace 2\n{note}# at 0 0\nM d 1 1 w 7 page 0+64\n# at 9000 0\nU d 1 1\n")
    };
    for (note, translated) in [("", true), ("# note iovas-assigned 1\n", false)] {
        let trace = LoadedTrace::read("t", text(note).as_bytes(), None).unwrap();
        let report = report_of(vec![trace], &Rows::Systems);
        let (shown, html) = (
            terminal::render(&report, 1000, &Screen::default()),
            page(&report),
        );
        let device = &serde_json::to_value(&report).unwrap()["captures"][0]["devices"][0];
        for says in [&shown, &html] {
            assert_eq!(says.contains("Other data in reach"), translated, "{says}");
            assert_eq!(says.contains("no IOMMU translated"), !translated, "{says}");
        }
        assert_eq!(device["beside"].is_object(), translated);
        // its bytes are known all the same, and its times
        assert_eq!(device["bytes_recorded"], true);
        assert!(shown.contains("64 B in the mean"), "{shown}");
        assert!(shown.contains("mapped for "), "{shown}");
        let remedies = &report.captures[0].devices[0].remedies;
        let untrusted = remedies.iter().any(|of| of.about.id == "untrusted");
        assert_eq!(untrusted, translated);
    }
}

#[test]
fn what_was_cut_or_is_too_short_is_said_on_the_first_screen() {
    let of = |note: &str, ns: u64| {
        let text =
            format!("# ioatlas-trace 2\n{note}# at 0 0\nM d 1 1 w 7\n# at {ns} 0\nU d 1 1\n");
        let trace = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
        let report = report_of(vec![trace], &Rows::Systems);
        (
            terminal::render(&report, 1000, &Screen::default()),
            page(&report),
        )
    };
    for (ns, short) in [(18_000_000, true), (1_000_000_000, false)] {
        let (shown, html) = of("", ns);
        let first = shown.lines().find(|line| line.starts_with("t: ")).unwrap();
        assert_eq!(first.ends_with("too short for rates"), short, "{first}");
        assert_eq!(html.contains(": too short for rates"), short);
        assert_eq!(shown.contains("a second"), !short, "{shown}");
        assert!(!shown.contains("CUT"), "{shown}");
    }
    let (shown, _) = of("# note cut-line 1\n", 2_000_000_000);
    assert_eq!(
        shown.lines().nth(1),
        Some("CUT: t: the last line was cut, left out")
    );
}

#[test]
fn a_capture_without_times_has_no_rates_and_says_so() {
    let text =
        "# ioatlas-trace 2\nM d 1 1 w 7 page 64+100\nU d 1 1\nM d 1 1 w 7 page 64+100\nU d 1 1\n";
    let trace = LoadedTrace::read("t", text.as_bytes(), None).unwrap();
    let report = report_of(vec![trace], &Rows::Systems);
    assert_eq!(
        (report.captures[0].time, &report.captures[0].costs),
        (None, &None)
    );
    let shown = terminal::render(&report, 1000, &Screen::default());
    assert!(
        shown.contains("no times recorded, so there are no rates"),
        "{shown}"
    );
    assert!(shown.contains("d: 2 maps, 100 B in the mean"), "{shown}");
    assert!(page(&report).contains("without rates no costs"));
}

#[test]
fn what_a_hostile_capture_names_is_only_shown() {
    let evil = "<script>x</script>\u{1b}[31m\"'";
    let text = format!(
        "# ioatlas-trace 2\n# at 1 4294967295 {evil}\nM {evil} 0 4503599627370496 rw - -\n\
         # at 18446744073709551615 0 {evil}\nU {evil} 0 4503599627370496\n"
    );
    let trace = LoadedTrace::read(evil, text.replace("<script>x", "<b>").as_bytes(), None);
    let trace = trace.unwrap();
    for rows in [Rows::Systems, Rows::Named(Vec::new())] {
        let report = report_of(vec![with_trace(&trace, trace.trace.clone())], &rows);
        let (shown, html) = (
            terminal::render(&report, 1000, &Screen::default()),
            page(&report),
        );
        assert!(
            !shown.contains('\u{1b}') && !html.contains('\u{1b}'),
            "{shown}"
        );
        assert!(!html.contains("<b>"));
        assert!(shown.lines().count() <= 24);
        assert!(serde_json::to_string(&report).is_ok());
    }
}

#[test]
fn many_captures_fit_a_terminal() {
    let line = |n: usize| format!("M d{n} 1 1 w 7 page 0+64\nU d{n} 1 1\n");
    let lines: String = (0..40).map(line).collect();
    let text = format!("# ioatlas-trace 2\n# at 1 0 a\n{lines}# at 1000000 0 b\n{lines}");
    let read = |n| LoadedTrace::read(&format!("t{n}"), text.as_bytes(), None).unwrap();
    let mut traces: Vec<_> = (0..30).map(read).collect();
    let report = report_of(traces.split_off(1), &Rows::Named(Vec::new()));
    let shown = terminal::render(&report, 1000, &Screen::default());
    assert!(shown.lines().count() <= 24, "{shown}");
    assert!(shown.contains("more devices: see the page"), "{shown}");
    assert!(page(&report).contains("more devices are in the JSON"));
    // beside one whose accesses are known
    traces.extend(bundled());
    let report = report_of(traces, &Rows::Systems);
    let shown = terminal::render(&report, 1000, &Screen::default());
    assert!(shown.lines().count() <= 24, "{shown}");
    assert!(
        shown.contains("of 100 miss") && shown.contains("see the page"),
        "{shown}"
    );
}
