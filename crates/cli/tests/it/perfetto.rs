// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `report --perfetto` writes: the Trace Event Format, read back as a viewer does.

use crate::common::{bundled, ioatlas};
use ioatlas_cli::output::Target;
use ioatlas_cli::report::perfetto::export;
use ioatlas_cli::{LoadedTrace, Status};
use ioatlas_present::printable;
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

fn read(name: &str, text: &str) -> LoadedTrace {
    LoadedTrace::read(name, text.as_bytes(), None).unwrap()
}

/// What is written of traces.
fn written(traces: &[LoadedTrace]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.json");
    export(traces, &Target::prepare(&path).unwrap()).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn events(file: &Value) -> &[Value] {
    file["traceEvents"].as_array().unwrap()
}

/// The events of a phase.
fn of<'f>(file: &'f Value, phase: &'f str) -> impl Iterator<Item = &'f Value> {
    events(file)
        .iter()
        .filter(move |event| event["ph"] == phase)
}

/// The names of all processes, by number.
fn processes(file: &Value) -> HashMap<u64, String> {
    let named = of(file, "M").filter(|event| event["name"] == "process_name");
    let pair = |event: &Value| {
        let name = event["args"]["name"].as_str().unwrap();
        (event["pid"].as_u64().unwrap(), name.to_owned())
    };
    named.map(pair).collect()
}

#[test]
fn two_mappings_by_hand() {
    let text = "# ioatlas-trace 2\n# at 5000001000 2 iperf3\nM nic 10 1 w 7 page 64+1500\n\
                # at 5000003500 0\nM nic 20 2 r\n# at 5000009000 2 softirq\nU nic 10 1\n";
    let file = written(&[read("two.trace", text)]);
    let lines: Vec<String> = events(&file).iter().map(Value::to_string).collect();
    let expected = [
        r#"{"args":{"name":"two CPUs: maps and unmaps"},"name":"process_name","ph":"M","pid":1,"tid":1}"#,
        r#"{"args":{"sort_index":1},"name":"process_sort_index","ph":"M","pid":1,"tid":1}"#,
        r#"{"args":{"name":"CPU 2"},"name":"thread_name","ph":"M","pid":1,"tid":2}"#,
        r#"{"args":{"sort_index":2},"name":"thread_sort_index","ph":"M","pid":1,"tid":2}"#,
        r#"{"args":{"device":"nic","iova":"0x10000","pages":1,"task":"iperf3"},"cat":"dma","name":"map","ph":"i","pid":1,"s":"t","tid":2,"ts":0.0}"#,
        r#"{"args":{"name":"two nic"},"name":"process_name","ph":"M","pid":3,"tid":3}"#,
        r#"{"args":{"sort_index":3},"name":"process_sort_index","ph":"M","pid":3,"tid":3}"#,
        r#"{"args":{"bytes":1500,"cpu":2,"direction":"from the device","iova":"0x10000","pages":1,"task":"iperf3"},"cat":"dma","id2":{"local":"0x0"},"name":"page up to 2 KiB","ph":"b","pid":3,"tid":3,"ts":0.0}"#,
        r#"{"args":{"pages":1},"cat":"dma","name":"mapped","ph":"C","pid":3,"tid":3,"ts":0.0}"#,
        r#"{"args":{"name":"CPU 0"},"name":"thread_name","ph":"M","pid":1,"tid":4}"#,
        r#"{"args":{"sort_index":0},"name":"thread_sort_index","ph":"M","pid":1,"tid":4}"#,
        r#"{"args":{"device":"nic","iova":"0x20000","pages":2},"cat":"dma","name":"map","ph":"i","pid":1,"s":"t","tid":4,"ts":2.5}"#,
        r#"{"args":{"cpu":0,"direction":"to the device","iova":"0x20000","pages":2},"cat":"dma","id2":{"local":"0x1"},"name":"mapping up to 8 KiB","ph":"b","pid":3,"tid":3,"ts":2.5}"#,
        r#"{"args":{"pages":3},"cat":"dma","name":"mapped","ph":"C","pid":3,"tid":3,"ts":2.5}"#,
        r#"{"args":{"device":"nic","iova":"0x10000","pages":1,"task":"softirq"},"cat":"dma","name":"unmap","ph":"i","pid":1,"s":"t","tid":2,"ts":8.0}"#,
        r#"{"args":{"unmapped_by":"softirq","unmapped_on_cpu":2},"cat":"dma","id2":{"local":"0x0"},"name":"page up to 2 KiB","ph":"e","pid":3,"tid":3,"ts":8.0}"#,
        r#"{"args":{"pages":2},"cat":"dma","name":"mapped","ph":"C","pid":3,"tid":3,"ts":8.0}"#,
        r#"{"args":{"ends":"with the trace, still mapped"},"cat":"dma","id2":{"local":"0x1"},"name":"mapping up to 8 KiB","ph":"e","pid":3,"tid":3,"ts":8.0}"#,
        r#"{"args":{"per second":249968.75390576178},"cat":"dma","name":"maps","ph":"C","pid":3,"tid":3,"ts":0.0}"#,
        r#"{"args":{"per second":0.0},"cat":"dma","name":"maps","ph":"C","pid":3,"tid":3,"ts":8.001}"#,
        r#"{"args":{"pages":0},"cat":"dma","name":"mapped","ph":"C","pid":3,"tid":3,"ts":8.0}"#,
    ];
    assert_eq!(lines, expected, "{lines:#?}");
    assert_eq!(
        file["otherData"]["traces"][0]["first_stamp_ns"],
        5000001000u64
    );
}

/// As a viewer reads it: each slice begins and ends once, and no track goes back in time.
fn check(file: &Value) {
    let mut open = HashMap::new();
    let mut times: HashMap<String, f64> = HashMap::new();
    let names = processes(file);
    for event in events(file) {
        assert!(
            names.contains_key(&event["pid"].as_u64().unwrap()),
            "{event}"
        );
        let Some(time) = event["ts"].as_f64() else {
            assert_eq!(event["ph"], "M");
            continue;
        };
        let slice = (event["pid"].to_string(), event["id2"].to_string());
        let called = (event["name"].to_string(), event["cat"].to_string());
        match event["ph"].as_str().unwrap() {
            "b" => assert!(open.insert(slice, (time, called)).is_none(), "{event}"),
            "e" => {
                let (begin, name) = open.remove(&slice).expect("it has begun");
                assert!(begin <= time && name == called, "{event}");
            }
            "i" | "C" => {
                let track = format!("{}/{}/{}", event["pid"], event["tid"], event["name"]);
                let before = times.insert(track, time);
                assert!(before.is_none_or(|before| before <= time), "{event}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn slices_and_instants_are_the_maps_and_unmaps_of_the_trace() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../iotlb/tests/fixtures/ftrace-7.2.txt.zst");
    let text = std::fs::read(fixture).unwrap();
    let options = ioatlas_iotlb::import::Options {
        assume: ioatlas_iotlb::import::Assume::None,
        ..Default::default()
    };
    let limits = ioatlas_iotlb::Limits::default();
    let trace = ioatlas_iotlb::import::load("f", &text.as_slice(), options, limits).unwrap();
    let mut imported = read("f", "# ioatlas-trace 1\n");
    imported.trace = trace;
    let recorded =
        |name: &str| LoadedTrace::read(name, &std::fs::read(bundled(name)).unwrap(), None).unwrap();
    let timed = [imported, recorded("2xvirtio-net-4q-stream")];
    let without_times = [recorded("e1000-stream"), recorded("lsi-bonnie")];
    for traces in [&timed, &without_times] {
        let file = written(traces);
        check(&file);
        let counted = traces.iter().map(|loaded| {
            let traffic = loaded.trace.traffic();
            let devices = traffic.devices.iter();
            devices.fold((0, 0), |(m, u), d| (m + d.maps, u + d.unmaps))
        });
        let (maps, unmaps) = counted.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        assert!(maps > 1000 && unmaps > 300);
        assert_eq!(of(&file, "b").count() as u64, maps);
        let instants = |name: &str| of(&file, "i").filter(|e| e["name"] == name).count() as u64;
        let names: Vec<String> = processes(&file).into_values().collect();
        if traces[0].trace.span().is_some() {
            assert_eq!((instants("map"), instants("unmap")), (maps, unmaps));
            assert!(of(&file, "C").any(|event| event["name"] == "maps"));
        } else {
            assert_eq!((instants("map"), instants("unmap")), (0, 0));
            assert!(!of(&file, "C").any(|event| event["name"] == "maps"));
            let says = |name: &String| name.ends_with("(no times: 1 us is 1 event)");
            assert!(names.iter().all(says), "{names:?}");
            let time = file["otherData"]["traces"][1]["time"].as_str().unwrap();
            assert!(time.starts_with("virtual"), "{time}");
        }
        // each trace's devices are processes of its own
        for loaded in traces {
            let own = names.iter().filter(|name| name.starts_with(&loaded.label));
            assert!(own.count() >= loaded.trace.devices().len(), "{names:?}");
        }
    }
}

#[test]
fn rates_add_up_to_the_maps() {
    let pair = |n: u64| format!("# at {} 0\nM d {n:x} 1 w\nU d {n:x} 1\n", n * n * 1000);
    let pairs: String = (0..3000).map(pair).collect();
    let file = written(&[read("t", &format!("# ioatlas-trace 1\n{pairs}"))]);
    check(&file);
    let rates = of(&file, "C").filter(|event| event["name"] == "maps");
    let rates: Vec<(f64, f64)> = rates
        .map(|e| {
            (
                e["ts"].as_f64().unwrap(),
                e["args"]["per second"].as_f64().unwrap(),
            )
        })
        .collect();
    let end: f64 = 2999.0 * 2999.0;
    let part = (end * 1e3 / 300.0).floor() + 1.0;
    let until = rates.iter().skip(1).map(|next| next.0);
    let maps: f64 = (until.zip(&rates))
        .map(|(until, (begin, rate))| (until - begin) / 1e6 * rate)
        .sum();
    assert!((maps - 3000.0).abs() < 1e-6, "{maps}");
    // the beginning is busier than the end, and after that nothing is mapped
    let [.., last, after] = rates.as_slice() else {
        panic!("{rates:?}");
    };
    assert!(rates[0].1 > 10.0 * last.1);
    assert_eq!(*after, (part * 300.0 / 1e3, 0.0));
}

#[test]
fn mapped_pages_are_few_numbers_and_each_is_true() {
    let line = |n: u64| format!("# at {n} 0\nM d {n:x} 1 w\n");
    let lines: String = (0..40_000).map(line).collect();
    let file = written(&[read("t", &format!("# ioatlas-trace 1\n{lines}"))]);
    check(&file);
    let pages = of(&file, "C").filter(|event| event["name"] == "mapped");
    let pages = pages.map(|event| {
        let ns = (event["ts"].as_f64().unwrap() * 1e3).round() as u64;
        (ns, event["args"]["pages"].as_u64().unwrap())
    });
    let pages: Vec<(u64, u64)> = pages.collect();
    let [true_ones @ .., end] = pages.as_slice() else {
        panic!("none");
    };
    assert!(true_ones.iter().all(|(ns, pages)| *pages == ns + 1));
    assert_eq!(true_ones.last(), Some(&(39_999, 40_000)));
    assert!((10_000..=30_000).contains(&pages.len()), "{}", pages.len());
    // what is still mapped ends with the trace
    assert_eq!(*end, (39_999, 0));
}

#[test]
fn no_counter_goes_on_over_a_longer_trace() {
    let short = "# ioatlas-trace 1\n# at 0 0\nM d 1 1 w\n# at 1000 0\nM d 2 1 w\n";
    let long = format!("{short}# at 900000 0\nU d 1 1\n");
    let file = written(&[read("short", short), read("long", &long)]);
    check(&file);
    let mut last = HashMap::new();
    for event in of(&file, "C") {
        let track = (event["pid"].to_string(), event["name"].to_string());
        let value = event["args"].as_object().unwrap().values().next();
        last.insert(track, value.unwrap().as_f64().unwrap());
    }
    assert_eq!(last.len(), 4);
    assert!(last.values().all(|value| *value == 0.0), "{last:?}");
}

#[test]
fn what_ends_otherwise_than_by_an_unmap_says_so() {
    let text = "# ioatlas-trace 1\nM d 1 1 w\n# note lost-events 7\n# at 1000 0\nM d 1 2 w\nU d 9 1\nU d 1 1\n\
                # at 900 1\nU d 2 1\nM d 7 4503599627370489 rw\n";
    let file = written(&[read("t", text)]);
    check(&file);
    let ends: Vec<String> = of(&file, "e").map(|e| e["args"].to_string()).collect();
    assert_eq!(
        ends,
        [
            r#"{"ends":"mapped over"}"#,
            r#"{"unmapped_on_cpu":1}"#,
            r#"{"ends":"with the trace, still mapped"}"#
        ]
    );
    let first = of(&file, "b").next().unwrap();
    assert_eq!(
        first["args"]["begins"],
        "before the first time of the trace"
    );
    assert_eq!(
        of(&file, "b").nth(2).unwrap()["name"],
        "mapping up to 16 EiB"
    );
    assert_eq!(file["otherData"]["traces"][0]["lost_events"], 7);
    let names = processes(&file);
    assert!(
        names.values().any(|name| name == "t d (events were LOST)"),
        "{names:?}"
    );
}

#[test]
fn hostile_names_and_numbers_are_only_shown() {
    let evil = "\"},{\u{1b}[31m\\u0000</script>\u{202e}";
    let last = u64::MAX;
    let text = format!(
        "# ioatlas-trace 2\n# at 0 4294967295 {evil} {evil}\nM {evil} 0 4503599627370496 rw\n\
         # at {last} 0 x\nU {evil} 0 1\n"
    );
    let file = written(&[read(evil, &text), read(evil, &text)]);
    check(&file);
    assert_eq!(of(&file, "b").count(), 2);
    let begin = of(&file, "b").next().unwrap();
    assert_eq!(begin["args"]["task"], format!("{evil} {evil}"));
    assert_eq!(begin["args"]["cpu"], u32::MAX);
    assert!(processes(&file).values().any(|name| name.contains(evil)));
    // however long a name is, what is to be known is said behind it
    let long = "x".repeat(4000);
    let file = written(&[read("t", &format!("# ioatlas-trace 1\nM {long} 1 1 r\n"))]);
    let names = processes(&file);
    assert!(names.values().all(|name| name.len() < 100), "{names:?}");
    assert!(
        names
            .values()
            .any(|name| name.ends_with("… (no times: 1 us is 1 event)"))
    );
}

#[test]
fn the_command_writes_it_beside_the_page_and_over_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (trace, page, out) = (path("t.trace"), path("p.html"), path("out.json.gz"));
    let text = "# ioatlas-trace 2\nM d 1 1 w 7 page 0+64\nU d 1 1\n";
    std::fs::write(&trace, text).unwrap();
    let run = |page: &str, out: &str| ioatlas(&["report", &trace, "-o", page, "--perfetto", out]);
    for (page, out) in [
        (&page, &trace),
        (&page, &page),
        (&page, &path("./p.html")),
        (&page, &path("no/such/out.json")),
        (&page, &"-".to_owned()),
    ] {
        let ran = run(page, out);
        assert_ne!(ran.status, Status::Success, "{out}");
        assert!(ran.err.contains("cannot write"), "{}", ran.err);
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing was written");
    let ran = run(&page, &out);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    let own = format!("For Perfetto: {out}");
    assert!(
        ran.out.lines().any(|line| line == printable(&own, 100)),
        "{}",
        ran.out
    );
    assert!(ran.out.lines().all(|line| line.chars().count() <= 100));
    let mut json = String::new();
    let file = std::fs::File::open(&out).unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut json)
        .unwrap();
    let file: Value = serde_json::from_str(&json).unwrap();
    check(&file);
    assert_eq!(of(&file, "b").count(), 1);
    // the same names again, now that the files are there, and by another name
    std::fs::hard_link(&page, path("link.html")).unwrap();
    assert_eq!(run(&page, &path("link.html")).status, Status::Usage);
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), text);
}
