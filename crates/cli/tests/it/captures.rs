// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Commands on captures by real tools: what they make of them, and that they say what results rest
//! on.

use ioatlas_cli::Status;
use ioatlas_iotlb::{Laboratory, Named, Setup, Trace};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

fn run(arguments: &[&str]) -> (Status, String, String) {
    let arguments = ["ioatlas"].iter().chain(arguments).map(OsString::from);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = ioatlas_cli::run(arguments, &mut stdout, &mut stderr);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status, text(stdout), text(stderr))
}

fn succeeds(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = run(arguments);
    assert_eq!(status, Status::Success, "{stderr}");
    stdout
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn fixture(name: &str) -> String {
    let path = root("crates/iotlb/tests/fixtures").join(name);
    path.to_string_lossy().into_owned()
}

const STRATEGIES: [&str; 9] = [
    "baseline",
    "opt-ev",
    "eh",
    "alh",
    "sd-alh",
    "mpre",
    "alh+mpre+of",
    "descending+mpre",
    "superpage+alh",
];

/// Misses by strategy, and events.
fn results(path: &Path) -> (Vec<u64>, usize) {
    let trace = Trace::open(path).unwrap();
    let laboratory = Laboratory::new(&trace);
    let misses = STRATEGIES.map(|name| {
        let named: Named = name.parse().unwrap();
        laboratory.simulate(&Setup::of(named)).misses
    });
    (misses.into(), trace.events().len())
}

#[test]
fn what_the_tracer_lost_is_said_before_all_else() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, page) = (dir.path().join("c.txt"), dir.path().join("p.html"));
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let mut text =
        String::from("# tracer: nop\n# entries-in-buffer/entries-written: 20/20   #P:1\n");
    for n in 0..10 {
        let addr = 0x10_0000 + n * 0x1000;
        text += &format!(
            "a-1 [000] .... {n}.000001: dma_map_page: 0000:01:00.0 dir=FROM_DEVICE dma_addr={addr:x} size=4096 phys_addr={addr:x} attrs=\n"
        );
        text += &format!(
            "a-1 [000] .... {n}.000002: dma_unmap_page: 0000:01:00.0 dir=FROM_DEVICE dma_addr={addr:x} size=4096 attrs=\n"
        );
    }
    std::fs::write(&capture, format!("{text}CPU:0 [LOST 180 EVENTS]\n")).unwrap();
    let report = ["report", &name(&capture), "-o", &name(&page)];
    let said = succeeds(&report);
    let first = said.lines().next().unwrap();
    assert_eq!(
        first,
        "LOST: 90 % of the events of c, at least: nothing below holds. Enlarge buffer_size_kb."
    );
    assert!(said.lines().count() <= 24, "{said}");
    let html = std::fs::read_to_string(&page).unwrap();
    let (loss, card) = (html.find("<section class=\"lost\">"), html.find("<h2>"));
    assert!(loss.unwrap() < card.unwrap());
    let json = succeeds(&[&report[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["usable"], false);
    assert_eq!(json["losses"][0]["events"]["value"], 180.0);
    // nothing follows from what is left, and no number of it is to be used
    let lossy = &json["captures"][0];
    assert_eq!(lossy["usable"], false);
    assert_eq!(lossy["devices"][0]["remedies"], serde_json::json!([]));
    let none = "No advice: events of this trace were lost.";
    assert!(said.contains(none), "{said}");
    assert!(html.contains("<section class=\"unusable\"><h2>c "));
    assert!(html.contains(none) && html.contains("none of these numbers is to be used"));
    assert!(!html.contains("no time to gain"));
    // and nothing of the sort where nothing was lost, or only what is older than the capture
    std::fs::write(&capture, &text).unwrap();
    assert!(!succeeds(&report).contains("LOST"));
    std::fs::write(&capture, text.replace("20/20 ", "20/200 ")).unwrap();
    assert!(!succeeds(&report).contains("LOST"));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(!html.contains("<section class=\"unusable\">") && !html.contains(none));
    assert!(html.contains("older entries overwritten before the capture begins"));
}

#[test]
fn an_anonymous_trace_gives_the_same_results() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a.trace.zst");
    for (input, name) in [
        (root("traces/2xe1000-stream.trace.zst"), "2xe1000"),
        (root("traces/lsi-bonnie-norcache.trace.zst"), "lsi"),
        (
            PathBuf::from(fixture("ftrace-pipe-off-6.12.txt.zst")),
            "off",
        ),
    ] {
        let kept = dir.path().join(format!("{name}.trace"));
        let input = input.to_str().unwrap();
        succeeds(&["trace", "convert", input, "-o", kept.to_str().unwrap()]);
        succeeds(&[
            "trace",
            "convert",
            input,
            "--anonymize",
            "-o",
            out.to_str().unwrap(),
        ]);
        assert_eq!(results(&kept), results(&out), "{name}");
        let before = Trace::open(&kept).unwrap();
        let after = Trace::open(&out).unwrap();
        for (number, device) in after.devices().enumerate() {
            assert_eq!(after.device_name(device), format!("dev{number}"));
        }
        let class = match name {
            "off" => None,
            "lsi" => Some("disk"),
            _ => Some("network"),
        };
        assert_eq!(after.origin(), class, "{name}");
        assert_eq!(after.marks().len(), 0);
        assert_eq!(after.stamps().len(), before.stamps().len());
        // a design that maps memory onto itself sees the same sets of the cache; only its upper
        // tables can be fewer
        let replay = |path: &Path| -> Vec<[u64; 4]> {
            let designs = ["--as", "identity,strict", "--as", "rbtree,strict"];
            let json =
                succeeds(&[&["replay", path.to_str().unwrap(), "--json"][..], &designs].concat());
            let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
            let fields = ["maps", "accesses", "misses", "invalidations"];
            let row = |row: &serde_json::Value| fields.map(|field| row[field].as_u64().unwrap());
            rows.iter().map(row).collect()
        };
        assert_eq!(replay(&kept), replay(&out), "{name}");
    }
}

#[test]
fn convert_writes_all_or_nothing_and_says_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.trace.gz");
    let to = out.to_str().unwrap();
    let text = succeeds(&[
        "trace",
        "convert",
        &fixture("ftrace-lost-6.12.txt.zst"),
        "-o",
        to,
    ]);
    for expected in [
        "(ftrace)",
        "at least 3529 events lost",
        "assumed: 794 accesses, one to each streaming page just before its unmap",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let before = std::fs::read(&out).unwrap();
    assert_eq!(before[..2], [0x1f, 0x8b]);
    // an error in the middle leaves the file as it was, and no other file
    let bad = dir.path().join("bad.txt");
    let line = "  x-1 [000] ..... 1.0: dma_unmap_page: d dir=NONE dma_addr=1000 size=8 attrs=\n";
    std::fs::write(
        &bad,
        format!(
            "{}  x-1 [000] ..... 2.0: dma_unmap_page: d dir=NONE size=8\n",
            line.repeat(5000)
        ),
    )
    .unwrap();
    let (status, _, stderr) = run(&["trace", "convert", bad.to_str().unwrap(), "-o", to]);
    assert_eq!(status, Status::Failure);
    assert!(
        stderr.contains("bad.txt:5001:") && stderr.contains("missing field: dma_addr"),
        "{stderr}"
    );
    assert_eq!(std::fs::read(&out).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    let (status, _, stderr) = run(&["trace", "convert", to, "-o", to]);
    assert_eq!(
        (status, stderr.contains("it is one of the traces")),
        (Status::Usage, true)
    );
    let (_, _, stderr) = run(&["trace", "convert", bad.to_str().unwrap(), "--from", "qemu"]);
    assert!(
        stderr.contains("no event in 5001 lines; expected, as qemu: vtd_"),
        "{stderr}"
    );
}

#[test]
fn events_that_are_not_known_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let [capture, trace] = ["c.txt", "c.trace"].map(|name| dir.path().join(name));
    let line = |event: &str| {
        format!("a-1 [000] .... 1.0: {event}: d dir=NONE dma_addr=1000 size=8 phys_addr=0 attrs=\n")
    };
    let lines = [
        "sched_switch",
        "dma_map_page",
        "sched_switch",
        "dma_map_future",
    ]
    .map(line);
    std::fs::write(&capture, lines.concat()).unwrap();
    let [capture, trace] = [capture, trace].map(|path| path.to_str().unwrap().to_owned());
    let said = "2 sched_switch, 1 dma_map_future\n";
    let converted = succeeds(&["trace", "convert", &capture, "-o", &trace]);
    assert!(
        converted.contains(&format!("left out\n  {said}")),
        "{converted}"
    );
    for path in [&capture, &trace] {
        let info = succeeds(&["trace", "info", path]);
        assert!(
            info.ends_with(&format!("  not understood: {said}")),
            "{info}"
        );
        let json = succeeds(&["trace", "info", path, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["not_understood"], said.trim_end());
    }
}

#[test]
fn commands_take_captures_and_say_what_results_rest_on() {
    let off = fixture("ftrace-pipe-off-6.12.txt.zst");
    let allocated = "assumed: IOVAs of 1550 maps; no IOMMU translated (off, or passthrough)";
    let accesses = "assumed: 1758 accesses, one to each streaming page just before its unmap";
    for command in [
        &["iotlb", &off, "--strategy", "alh"][..],
        &["trace", "info", &off],
        &["replay", &off, "--as", "linux-strict"],
    ] {
        let text = succeeds(command);
        assert!(
            text.contains(allocated) && text.contains(accesses),
            "{command:?}: {text}"
        );
        let json = succeeds(&[command, &["--json"]].concat());
        assert!(
            json.contains(allocated) && json.contains(accesses),
            "{command:?}: {json}"
        );
    }
    let text = succeeds(&["trace", "info", &off]);
    assert!(
        text.contains("4.929 s, 2 CPUs; 314 maps and 180 unmaps a second"),
        "{text}"
    );
    // nothing is assumed of a trace with accesses
    let traces = root("traces/e1000-stream.trace.zst");
    let json = succeeds(&["iotlb", traces.to_str().unwrap(), "--json"]);
    assert!(!json.contains("notes"), "{json}");
}

#[test]
fn a_report_marks_every_assumption() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("r.html");
    let off = fixture("perf-off-6.12.txt.zst");
    let text = succeeds(&[
        "report",
        &off,
        "-o",
        page.to_str().unwrap(),
        "--as",
        "linux-strict",
    ]);
    assert!(
        text.contains("ASSUMED of perf-off-6.12: IOVAs of 1,554 maps; no IOMMU translated (off, or passthrough)"),
        "{text}"
    );
    assert!(text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 100));
    let html = std::fs::read_to_string(&page).unwrap();
    let begin = html.find("How the traces were made").unwrap();
    let section = &html[begin..begin + html[begin..].find("</section>").unwrap()];
    assert_eq!(
        section.matches("<small class=\"tag assumed\">").count(),
        1,
        "{section}"
    );
    assert!(section.contains("no IOMMU translated (off, or passthrough)"));
    // nothing rests on accesses that no tracer saw: these addresses are not a kernel's either
    let cards = html.matches("<article class=\"card\">").count();
    assert_eq!((cards, html.matches("give or take").count()), (2, 0));
    assert!(!html.contains("<small class=\"tag simulated\">simulated</small> <small"));
}

#[test]
fn the_error_of_assumed_accesses_is_what_we_say() {
    let json = succeeds(&["trace", "info", "--assumption-error", "--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert!(rows.len() >= 6 * 4);
    let points = |row: &serde_json::Value, field: &str| {
        100.0 * (row[field].as_f64().unwrap() - row["saving"].as_f64().unwrap()).abs()
    };
    for row in rows.iter().filter(|row| row["strategy"] == "alh") {
        // measured: 7.3 at most, on a NIC without the reuse cache
        assert!(points(row, "saving_at_unmap") < 7.5, "{row}");
        let at_map = points(row, "saving_at_map");
        let trace = row["trace"].as_str().unwrap();
        if trace.contains("e1000") {
            assert!(at_map > 25.0, "{row}");
        } else if trace.contains("lsi") {
            assert!(at_map < 2.0, "{row}");
        }
    }
    // other strategies are less sure
    let worst = rows
        .iter()
        .map(|row| points(row, "saving_at_unmap"))
        .fold(0.0, f64::max);
    assert!((18.0..20.0).contains(&worst), "{worst}");
}

/// A pipe of `text`, as a path that a command can open; the descriptor lives as long as the
/// process.
#[cfg(target_os = "linux")]
fn pipe_of(text: &str) -> String {
    use std::io::Write;
    use std::os::fd::IntoRawFd;
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    format!("/proc/self/fd/{}", reader.into_raw_fd())
}

#[test]
#[cfg(target_os = "linux")]
fn a_pipe_is_converted_as_often_as_it_must_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.trace");
    let to = out.to_str().unwrap();
    let trace = "# ioatlas-trace 2\nM nic 1 1 r - sg 0+9\nA nic 1 r\nU nic 1 1\n";
    let renamed = trace.replace("nic", "dev0") + "# note anonymized 1\n";
    for (option, expected) in [
        ("--assume=none", trace),
        ("--assume=unmap", trace),
        ("--anonymize", &renamed),
    ] {
        let pipe = pipe_of(trace);
        succeeds(&["trace", "convert", &pipe, option, "-o", to]);
        assert_eq!(std::fs::read_to_string(&out).unwrap(), expected, "{option}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_trace_without_accesses_gives_the_same_from_a_file_and_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.trace");
    let trace = "# ioatlas-trace 1\nM d 1 3 r - sg\nU d 1 3\nM d 5 1 r - alloc\n";
    std::fs::write(&file, trace).unwrap();

    for (option, accesses, notes) in [
        ("--assume=unmap", 3, 1),
        ("--assume=map", 3, 1),
        ("--assume=none", 0, 0),
    ] {
        for path in [file.to_str().unwrap(), &pipe_of(trace)] {
            let json = succeeds(&["iotlb", path, option, "--json"]);
            let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(rows[0]["accesses"], accesses, "{path} {option}");
            let said = rows[0]["notes"].as_array().map_or(0, Vec::len);
            assert_eq!(said, notes, "{path} {option}");
        }
    }
}

/// What a report says of a capture of these bytes, `c.txt.zst`, in JSON without what identifies it,
/// and its page.
fn reported(bytes: &[u8], options: &[&str]) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let (capture, page) = (dir.path().join("c.txt.zst"), dir.path().join("p.html"));
    std::fs::write(&capture, bytes).unwrap();
    let [name, output] = [&capture, &page].map(|path| path.to_str().unwrap());
    let report = ["report", name, "-o", output, "--json"];
    let json = succeeds(&[&report, options].concat());
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["provenance"].take();
    (json, std::fs::read_to_string(page).unwrap())
}

#[test]
fn names_before_a_capture_take_nothing_from_what_tells_what_it_is() {
    let off = std::fs::read(fixture("ftrace-pipe-off-6.12.txt.zst")).unwrap();
    // more than a MiB of tasks that are not in the capture
    let name = |n: u32| format!("saved_cmdlines:{} kworker/u256:{n}\n", 1_000_000 + n);
    let names: String = (0..40_000).map(name).collect();
    assert!(names.len() > 1 << 20);
    let mut named = Vec::new();
    ioatlas_iotlb::compress_zstd(names.as_bytes(), &mut named).unwrap();
    named.extend_from_slice(&off);
    let [plain, named] = [&off, &named].map(|bytes| reported(bytes, &["--no-bench"]).0);
    assert_eq!(plain["captures"][0]["translated"], "no");
    assert_eq!(named, plain);
}

#[test]
fn a_report_without_a_bench_gives_no_other_advice() {
    let bytes = std::fs::read(fixture("perf-6.12.txt.zst")).unwrap();
    for options in [&["--no-bench"][..], &[]] {
        let (json, page) = reported(&bytes, options);
        for device in json["captures"][0]["devices"].as_array().unwrap() {
            let remedies = device["remedies"].as_array().unwrap();
            let today = remedies.iter().filter(|of| of["available"] != "firmware");
            assert_eq!(today.count(), 0, "{device}");
        }
        assert!(page.contains("no time to gain") && !page.contains("<h4>What to do"));
    }
}
