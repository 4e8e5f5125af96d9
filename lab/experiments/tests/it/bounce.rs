// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench bounce` through the program: fields, filters and what it refuses. No figure is judged.

use crate::common::{json, lab};
use ioatlas_cli::Status;
use serde_json::Value;

const ROW: [&str; 24] = [
    "behind_better_percent",
    "beyond_copy_ns",
    "block_kib",
    "bounced_percent",
    "copy_ns",
    "depth",
    "direction",
    "gb_per_second",
    "learned_after",
    "map_change_percent",
    "map_ms_per_gb",
    "mode",
    "ns_p10",
    "ns_p90",
    "ns_per_operation",
    "paced_times_never",
    "policy",
    "reason",
    "slices",
    "threads",
    "times_never",
    "translator",
    "unmap_change_percent",
    "unmap_ms_per_gb",
];
const POINT: [&str; 10] = [
    "block_kib",
    "by_never",
    "by_within",
    "depth",
    "direction",
    "ns_per_operation",
    "policy",
    "reason",
    "slots",
    "translator",
];
const BESIDE: [&str; 10] = [
    "block_kib",
    "measured",
    "measured_map_change_percent",
    "measured_unmap_change_percent",
    "model",
    "model_difference_percent",
    "model_unmap_change_percent",
    "reason",
    "their_unmap_change_percent",
    "theirs",
];
const LINE: [&str; 4] = ["reason", "unit", "value", "what"];

fn study(filters: &[&str]) -> Value {
    json(&[&["bench", "bounce", "--json"], filters].concat())
}

fn has_fields(object: &Value, fields: &[&str]) {
    let mut names: Vec<&String> = object.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, fields, "{object}");
}

#[test]
fn every_part_has_its_fields_and_figures_or_reasons() {
    let study = study(&[
        "--quick",
        "--translator",
        "vfio-guest",
        "--block",
        "4k",
        "--direction",
        "read",
    ]);
    has_fields(&study, &["bounce21", "in_flight", "rows", "summary"]);
    let list = |name: &str| study[name].as_array().unwrap().clone();
    let rows = list("rows");
    let policies: Vec<&str> = rows
        .iter()
        .map(|row| row["policy"].as_str().unwrap())
        .collect();
    assert_eq!(
        policies,
        [
            "never",
            "below",
            "always",
            "adaptive",
            "untrusted",
            "single-use"
        ]
    );
    for row in &rows {
        has_fields(row, &ROW);
        assert_eq!(
            (&row["translator"], &row["direction"]),
            (&"vfio-guest".into(), &"read".into())
        );
        assert_eq!(
            (&row["block_kib"], &row["depth"], &row["threads"]),
            (&4.into(), &64.into(), &1.into())
        );
        let ns = |field: &str| row[field].as_f64().unwrap();
        assert!(ns("ns_p10") <= ns("ns_per_operation") && ns("ns_per_operation") <= ns("ns_p90"));
        assert!(row["reason"].is_null() && row["mode"].is_null(), "{row}");
        // GB/s are bytes a nanosecond
        let rate = 4096.0 / ns("ns_per_operation");
        assert!((ns("gb_per_second") / rate - 1.0).abs() < 1e-9);
    }
    let never = &rows[0];
    assert_eq!(never["times_never"], 1.0);
    assert_eq!(never["unmap_change_percent"], 0.0);
    assert_eq!(never["bounced_percent"], 0.0);
    let bounced: Vec<f64> = rows
        .iter()
        .map(|row| row["bounced_percent"].as_f64().unwrap())
        .collect();
    // whole pages need no protection, and go directly where only that is asked for
    assert_eq!(bounced, [0.0, 100.0, 100.0, bounced[3], 0.0, 0.0]);
    // what is charged is waited for: 10.2 and 7.1 us, but for what passes in interrupts, which is
    // not the thread's own time
    assert!(never["ns_per_operation"].as_f64().unwrap() >= 17_300.0 * 0.95);
    assert!(never["map_ms_per_gb"].as_f64().unwrap() > 10_199.0 / 4096.0 * 1e3 * 0.9);
    // which route it finds is the machine's affair; that it finds one is not
    assert!(rows[3]["learned_after"].as_u64().unwrap() >= 64);
    assert!(rows[2]["behind_better_percent"].is_null() && rows[2]["learned_after"].is_null());
    for point in list("in_flight") {
        has_fields(&point, &POINT);
        assert_eq!(
            point["ns_per_operation"].is_null(),
            point["reason"].is_string()
        );
    }
    let beside = list("bounce21");
    assert_eq!(beside.len(), 4);
    for row in &beside {
        has_fields(row, &BESIDE);
        assert!(row["measured"].is_null(), "not among the rows: {row}");
        let far = row["model_difference_percent"].as_f64().unwrap().abs() > 15.0;
        assert_eq!(far, row["reason"].is_string(), "{row}");
    }
    for line in list("summary") {
        has_fields(&line, &LINE);
        assert_eq!(
            line["value"].is_null(),
            line["reason"].is_string(),
            "{line}"
        );
    }
}

#[test]
fn a_filter_of_policies_hides_what_it_compares_with() {
    let filters = [
        "--translator",
        "free",
        "--block",
        "8k",
        "--direction",
        "write",
    ];
    let filters = [&filters[..], &["--depth", "1", "--threads", "1"]].concat();
    let study = study(&[&filters[..], &["--policy", "always"]].concat());
    let rows = study["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["policy"], "always");
    assert!(rows[0]["ns_per_operation"].is_f64(), "{}", rows[0]);
    assert_eq!(study["in_flight"], Value::Array(Vec::new()));
}

#[test]
fn the_table_has_the_summary_and_what_it_is_of() {
    let filters = [
        "bench",
        "bounce",
        "--quick",
        "--translator",
        "free",
        "--block",
        "4k",
    ];
    let ran = lab(&[&filters[..], &["--direction", "write", "--threads", "1"]].concat());
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "Summary");
    let of = |start: &str| lines.iter().find(|line| line.starts_with(start)).copied();
    let overhead = of("always, 4 KiB writes, 64 in flight: beyond the copy").unwrap();
    assert!(
        overhead.ends_with("too few rounds have both") || overhead.ends_with(" ns"),
        "{overhead}"
    );
    let reads = of("always, 4 KiB reads, 64 in flight: beyond the copy").unwrap();
    assert!(reads.contains("is not among the rows"), "{reads}");
    let rows = lines.iter().filter(|line| line.starts_with("free "));
    assert!(rows.count() >= 2, "{}", ran.out);
}

#[test]
fn filters_that_name_nothing_say_what_there_is() {
    for (filter, word, names) in [
        (
            "--translator",
            "cheap",
            "free, moderate, vfio-guest, bounce21",
        ),
        ("--policy", "sometimes", "never, below, always"),
        ("--block", "5k", "4k, 8k, 16k"),
        ("--direction", "up", "read, write"),
        ("--depth", "3", "1, 8, 64"),
        ("--threads", "3", "1, 2"),
    ] {
        let ran = lab(&["bench", "bounce", filter, word]);
        assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
        let said = ran.err.contains(&format!("`{word}`")) && ran.err.contains(names);
        assert!(said, "{}", ran.err);
    }
}

#[test]
fn filters_that_leave_nothing_and_flags_of_the_other_benchmark_are_refused() {
    let few = ["--translator", "moderate", "--depth", "1"];
    let ran = lab(&[&["bench", "bounce", "--quick"], &few[..]].concat());
    assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
    assert!(
        ran.err.starts_with("error: no row is left: "),
        "{}",
        ran.err
    );
    for arguments in [
        ["bench", "bounce", "--allocator", "rbtree"],
        ["bench", "--allocator", "rbtree", "bounce"],
    ] {
        let ran = lab(&arguments);
        assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
        assert!(
            ran.err.contains("--allocator") || ran.err.contains("bounce"),
            "{}",
            ran.err
        );
    }
}
