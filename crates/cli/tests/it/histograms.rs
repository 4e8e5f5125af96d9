// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counts that bpftrace made in the kernel: the script, and the report of what it prints.

use crate::common::ioatlas;
use ioatlas_cli::Status;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// What bpftrace 0.17 prints at the end of the script: in 2 seconds a disk that was mapped 300 times
/// by a task, and a card that was mapped 900 times in softirqs of two CPUs. It was printed by the
/// script's first form; the names of its rows were put in the order of the second.
const PRINTED: &str = r#"{"type": "attached_probes", "data": {"probes": 9}}
{"type": "printf", "data": "ioatlas-bpftrace 2\n"}


{"type": "map", "data": {"@begin": 17607310161}}
{"type": "map", "data": {"@bytes": {"0,0000:00:03.0": 409600, "1,0000:00:03.0": 819200, "1,0000:00:04.0": 1366200}}}
{"type": "map", "data": {"@end": 19607310161}}
{"type": "hist", "data": {"@lifetimes": {"0000:00:03.0": [{"min": 8192, "max": 16383, "count": 299}], "0000:00:04.0": [{"min": 64, "max": 127, "count": 450}, {"min": 128, "max": 255, "count": 441}, {"min": 256, "max": 511, "count": 0}, {"min": 512, "max": 1023, "count": 7}]}}}
{"type": "hist", "data": {"@sizes": {"0000:00:03.0": [{"min": 2048, "max": 4095, "count": 300}], "0000:00:04.0": [{"min": 1024, "max": 2047, "count": 900}]}}}
{"type": "map", "data": {"@softirqs": {"1,0000:00:04.0": 300, "0,0000:00:04.0": 600}}}
{"type": "map", "data": {"@tasks": {"0,0000:00:03.0,/,dd": 100, "1,0000:00:03.0,/,dd": 199, "1,0000:00:03.0,/,a, b": 1}}}
{"type": "map", "data": {"@unmatched": {"1,0000:00:03.0": 1, "0,0000:00:04.0": 2}}}
"#;

/// The report of files of these contents, named `a.json`, `b.json` and `c.json`.
fn report(files: &[&str], options: &[&str]) -> (TempDir, crate::common::Ran) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: String| dir.path().join(name).to_str().unwrap().to_owned();
    let mut arguments = vec!["report".into(), "-o".into(), path("report.html".into())];
    for (number, content) in files.iter().enumerate() {
        let name = path(format!("{}.json", ['a', 'b', 'c'][number]));
        fs::write(&name, content).unwrap();
        arguments.push(name);
    }
    arguments.extend(options.iter().map(|option| option.to_string()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = ioatlas(&arguments);
    (dir, ran)
}

fn number(value: &Value) -> f64 {
    value["value"].as_f64().unwrap()
}

#[test]
fn what_was_counted_is_in_the_report_and_nothing_else() {
    let report = report(&[PRINTED], &["--json", "--inv-ns", "1000"]).1.json();
    let capture = &report["captures"][0];
    assert_eq!(capture["trace"], "a");
    assert_eq!(
        (number(&capture["time"]), number(&capture["cpus"])),
        (2000.0, 2.0)
    );
    assert_eq!(capture["translated"], "yes");
    let costs = &capture["costs"];
    assert_eq!(number(&costs["maps_per_second"]), 600.0);
    assert_eq!(number(&costs["unmaps_per_second"]), 600.0);
    // 600 waits of a microsecond, and what the pairs take
    let strict = &costs["modes"][0];
    assert!(number(&strict["cpus_busy"]) > 0.0006, "{strict}");
    let [disk, card] = [0, 1].map(|at| &capture["devices"][at]);
    assert_eq!(disk["device"], "0000:00:03.0");
    for (device, maps, mean) in [(disk, 300.0, 4096.0), (card, 900.0, 1518.0)] {
        assert_eq!(number(&device["maps"]), maps);
        assert_eq!(number(&device["unmaps"]), maps);
        assert_eq!(number(&device["maps_per_second"]), maps / 2.0);
        assert_eq!(number(&device["mean_bytes"]), mean);
        for unknown in [
            "beside",
            "peak_live_pages",
            "pool",
            "bouncing",
            "alh",
            "anomalies",
        ] {
            assert_eq!(device[unknown], Value::Null, "{unknown}");
        }
    }
    assert_eq!(number(&disk["sizes"][0]["up_to"]), 4096.0);
    assert_eq!(disk["tasks"][0]["name"], "dd");
    assert_eq!(disk["tasks"][1]["name"], "a, b");
    assert_eq!(card["tasks"][0]["name"], "softirq");
    assert_eq!(number(&card["cpus"][0]["share"]), 100.0 * 2.0 / 3.0);
    let lifetimes = &card["lifetimes"];
    assert_eq!(lifetimes["resolution"], "power-of-two");
    assert_eq!(number(&lifetimes["mappings"]), 898.0);
    // 64 ns a unit
    for (which, us) in [("median", 8.192), ("p99", 16.384), ("longest", 65.536)] {
        let time = &lifetimes[which];
        let us_of = match time["unit"].as_str() {
            Some("ns") => number(time) / 1000.0,
            _ => number(time),
        };
        assert_eq!(us_of, us, "{which}: {time}");
    }
    for nothing in ["verdicts", "systems", "losses"] {
        assert_eq!(report[nothing], Value::Array(Vec::new()), "{nothing}");
    }
    let made = report["made"][0]["notes"].to_string();
    assert!(
        made.contains("bpftrace") && made.contains("3 unmaps"),
        "{made}"
    );
    assert_eq!(report["provenance"]["traces"][0]["events"]["text"], "2,400");
}

#[test]
fn counts_by_task_that_exceed_the_maps_are_no_shares() {
    let most = PRINTED.replace("/,dd\": 100", "/,dd\": 18446744073709551615");
    for (text, named) in [(PRINTED, 2), (&most, 0)] {
        let report = report(&[text], &["--json", "--no-bench"]).1.json();
        let [disk, card] = [0, 1].map(|at| &report["captures"][0]["devices"][at]);
        for by in ["tasks", "cpus"] {
            assert_eq!(disk[by].as_array().unwrap().len(), named, "{by}");
        }
        assert_eq!(card["tasks"].as_array().unwrap().len(), 1);
        let made = report["made"][0]["notes"].to_string();
        assert_eq!(made.contains("not by task and CPU: devices 1."), named == 0);
    }
}

#[test]
fn terminal_and_page_say_what_is_counted() {
    let (dir, ran) = report(&[PRINTED], &["--inv-ns", "1000"]);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    for words in [
        "ioatlas report: 1 capture of maps and unmaps",
        "2,000 ms on 2 CPUs: 600 maps and 600 unmaps a second",
        "300 maps (150/s), 4,096 B in the mean",
        "mapped for up to 1,049 us (99 %: 1,049 us)",
        "By task: softirq 100 %; by CPU: 0 67 %, 1 33 %",
    ] {
        assert!(ran.out.contains(words), "no {words:?} in\n{}", ran.out);
    }
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("0000:00:04.0") && page.contains("up to a power of two"));
    assert!(!page.contains("maps-over-time"));
}

/// Names of a device that are the beginning of another's, and commas in both names of a row.
#[test]
fn commas_in_names_take_nothing_to_another_device() {
    let with = |disk: &str, card: &str| {
        PRINTED
            .replace("0000:00:03.0", disk)
            .replace("0000:00:04.0", card)
    };
    let devices = |text: &str| {
        let mut report = report(&[text], &["--json"]).1.json();
        report["captures"][0]["devices"].take()
    };
    let plain = devices(PRINTED);
    for [disk, card] in [
        ["a", "a,0"],
        ["a,b", "a,b,0"],
        ["0,1", "1,0"],
        ["a", "a,dd"],
    ] {
        let mut named = devices(&with(disk, card));
        assert_eq!(named[0]["device"], disk);
        assert_eq!(named[1]["device"], card);
        for at in [0, 1] {
            named[at]["device"] = plain[at]["device"].clone();
        }
        assert_eq!(named, plain, "{disk} and {card}");
    }
}

#[test]
fn addresses_of_memory_tell_that_nothing_translates() {
    let with = |disk: u64, card: u64| {
        let row = format!(
            "{{\"type\": \"map\", \"data\": {{\"@physical\": {{\"0,0000:00:03.0\": {disk}, \
             \"1,0000:00:04.0\": {card}}}}}}}\n"
        );
        let report = report(&[&(PRINTED.to_owned() + &row)], &["--json"])
            .1
            .json();
        report["captures"][0]["translated"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        (with(300, 900), with(300, 0)),
        ("no".into(), "partly".into())
    );
}

#[test]
fn counts_stand_beside_others_and_come_from_standard_input() {
    let two = report(&[PRINTED, PRINTED], &["--json"]).1.json();
    let labels = [0, 1].map(|at| two["captures"][at]["trace"].as_str().unwrap());
    assert_eq!(labels, ["a", "b"]);
    let trace = "# ioatlas-trace 1\nM d 1 1 r\nA d 1 r\nU d 1 1\n";
    let mixed = report(&[PRINTED, trace], &["--json"]).1.json();
    assert_eq!(mixed["captures"].as_array().unwrap().len(), 1);
    assert_eq!(mixed["verdicts"].as_array().unwrap().len(), 1);
    // a reader who gave two is told why there is no comparison
    for other in [PRINTED, trace] {
        let (dir, ran) = report(&[PRINTED, other], &["--no-bench"]);
        let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
        for shown in [&ran.out, &page] {
            assert!(
                shown.contains("What bpftrace counted is not compared."),
                "{shown}"
            );
        }
    }
    // three are not compared, though two of them are traces
    let three = report(&[PRINTED, trace, trace], &["--json"]).1.json();
    assert_eq!(three["comparison"], Value::Null);
}

#[test]
fn what_is_no_whole_output_is_refused_with_its_line() {
    let cut = &PRINTED[..PRINTED.len() - 20];
    let no_end = PRINTED.replace("\"@end\"", "\"@other\"");
    let twice = PRINTED.replace("\"@unmatched\"", "\"@bytes\"");
    let odd = PRINTED.replace("\"1,0000:00:04.0\": 1366200", "\"0000:00:04.0\": 1366200");
    let no_slash = PRINTED.replace("/,dd", "dd");
    let first = PRINTED.replace("ioatlas-bpftrace 2", "ioatlas-bpftrace 1");
    let formless: String = PRINTED
        .lines()
        .filter(|line| !line.contains("ioatlas-bpftrace"))
        .fold(String::new(), |text, line| text + line + "\n");
    let unsorted = PRINTED.replace("\"max\": 255", "\"max\": 100");
    let nothing: String = PRINTED
        .lines()
        .filter(|line| !line.contains("0000:"))
        .fold(String::new(), |text, line| text + line + "\n");
    for (content, wanted) in [
        (cut, "a.json:12: no line of JSON"),
        (&no_end, "its end is missing"),
        (&twice, "a.json:12: @bytes is there twice"),
        (&odd, "a.json:6: @bytes is not as the script"),
        (&no_slash, "a.json:11: @tasks is not as the script"),
        (
            &first,
            "a.json:2: ioatlas-bpftrace 1 is of the script of another version of ioatlas",
        ),
        (&formless, "a.json:4: counting had not begun"),
        (&unsorted, "a.json:8: @lifetimes is not as the script"),
        (&nothing, "nothing was counted"),
        (
            "Attaching 9 probes...\nioatlas-bpftrace 1\n",
            "bpftrace -f json",
        ),
        ("{\"type\": \"other\"}\n", "not a trace"),
    ] {
        let (dir, ran) = report(&[content], &[]);
        assert_eq!(ran.status, Status::Failure, "{wanted}");
        assert!(ran.err.contains(wanted), "no {wanted} in {}", ran.err);
        assert!(!dir.path().join("report.html").exists());
    }
}

#[test]
fn the_script_is_printed_for_a_time_and_devices() {
    let plain = ioatlas(&["capture", "--bpftrace"]);
    assert_eq!((plain.status, plain.err.as_str()), (Status::Success, ""));
    assert!(plain.out.starts_with("#!/bin/sh\n") && plain.out.contains("bpftrace -f json -e"));
    assert!(plain.out.contains("nsecs - @begin >= 5000000000/\n"));
    // an empty list, whose size less 1 would be the largest there is
    assert_eq!(plain.out.matches("hist($bytes - 1)").count(), 2);
    assert!(plain.out.contains("args->size != 0 &&"));
    assert!(plain.out.contains("if ($bytes == 0) {\n        return;"));
    let asked = [
        "--seconds",
        "0.5",
        "--device",
        "5e:00.0",
        "--device",
        "fe300000.mmc",
    ];
    let asked = ioatlas(&[&["capture", "--bpftrace"], &asked[..]].concat()).out;
    assert!(asked.contains("nsecs - @begin >= 500000000/\n"));
    let filter = r#"if ($device != "0000:5e:00.0" && $device != "fe300000.mmc") { return; }"#;
    assert_eq!(asked.matches(filter).count(), 4);
    for other in ["--print", "--json", "--size=64"] {
        let ran = ioatlas(&["capture", "--bpftrace", other]);
        assert_eq!(ran.status, Status::Usage, "{other}");
    }
    // it is a script for a shell
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, plain.out).unwrap();
    let checked = std::process::Command::new("sh")
        .arg("-n")
        .arg(&script)
        .status();
    assert!(checked.unwrap().success());
}
