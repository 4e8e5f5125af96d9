// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench` through the program: rows, fields, filters and what it refuses. No figure is judged.

use crate::common::{json, lab};
use ioatlas_cli::Status;
use serde_json::Value;

const FIELDS: [&str; 19] = [
    "allocator",
    "control_ns",
    "control_ratio",
    "excess_ns",
    "handoff_ns",
    "kind",
    "mode",
    "ns_p10",
    "ns_p90",
    "ns_per_pair",
    "outstanding",
    "pattern",
    "peer",
    "policy",
    "reason",
    "sizes",
    "slices",
    "threads",
    "wait_ns",
];

fn rows(filters: &[&str]) -> Vec<Value> {
    rows_of(&["bench", "--quick", "--json"], filters)
}

fn rows_of(command: &[&str], filters: &[&str]) -> Vec<Value> {
    let rows = json(&[command, filters].concat());
    rows.as_array().unwrap().clone()
}

/// Every row has every field; a figure or a reason; and figures in their order.
fn check(row: &Value) {
    let names: Vec<&String> = row.as_object().unwrap().keys().collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, FIELDS, "{row}");
    let ns = |field: &str| row[field].as_f64();
    match (ns("ns_p10"), ns("ns_per_pair"), ns("ns_p90")) {
        (Some(low), Some(median), Some(high)) => {
            assert!(0.0 < low && low <= median && median <= high, "{row}");
            assert!(
                row["reason"].is_null() && row["slices"].as_u64() >= Some(5),
                "{row}"
            );
        }
        figures => {
            assert_eq!(figures, (None, None, None), "{row}");
            assert!(
                row["reason"].is_string() && row["control_ratio"].is_null(),
                "{row}"
            );
        }
    }
    match (&row["mode"], row["threads"].as_u64()) {
        (mode, Some(1)) => assert!(mode.is_null(), "{row}"),
        (mode, _) if row["reason"].is_null() => assert!(mode == "near" || mode == "far", "{row}"),
        (mode, _) => assert!(mode.is_null(), "{row}"),
    }
}

#[test]
fn a_row_of_one_design_has_all_fields() {
    let filters = [
        "--allocator",
        "rbtree",
        "--policy",
        "strict",
        "--pattern",
        "ring256",
        "--sizes",
        "1",
        "--threads",
        "1",
        "--peers",
        "none",
    ];
    // with the time of all rows for one
    let rows = rows_of(&["bench", "--json"], &filters);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = &rows[0];
    check(row);
    let text = |field: &str| row[field].as_str();
    assert_eq!(text("kind"), Some("domain"));
    assert_eq!(
        (text("allocator"), text("policy")),
        (Some("rbtree"), Some("strict"))
    );
    assert_eq!(
        (text("pattern"), text("sizes")),
        (Some("ring256"), Some("1"))
    );
    assert_eq!(
        (row["threads"].as_u64(), row["outstanding"].as_u64()),
        (Some(1), Some(256))
    );
    assert!(row["peer"].is_null() && row["handoff_ns"].is_null() && row["wait_ns"].is_null());
    // alone a figure is certain to come
    assert!(
        row["ns_per_pair"].is_f64() && row["control_ratio"].is_f64(),
        "{row}"
    );
}

#[test]
fn foreign_code_allocators_alone_and_tables_alone_are_told_apart() {
    let filters = [
        "--allocator",
        "magazine,none",
        "--policy",
        "none",
        "--sizes",
        "1",
    ];
    let filters = [
        &filters[..],
        &[
            "--pattern",
            "ring256",
            "--threads",
            "1",
            "--peers",
            "range-alloc",
        ],
    ];
    let rows = rows(&filters.concat());
    rows.iter().for_each(check);
    let mut kinds: Vec<(&str, Option<&str>, Option<&str>)> = rows
        .iter()
        .map(|row| {
            let text = |field: &str| row[field].as_str();
            (text("kind").unwrap(), text("allocator"), text("peer"))
        })
        .collect();
    kinds.sort();
    let wanted = [
        ("allocator", Some("magazine"), None),
        ("peer", None, Some("range-alloc")),
        ("table", Some("none"), None),
    ];
    assert_eq!(kinds, wanted);
}

#[test]
fn a_hand_over_has_the_time_of_the_hand_off_or_a_reason() {
    let filters = [
        "--pattern",
        "producer-consumer",
        "--allocator",
        "magazine",
        "--peers",
        "none",
    ];
    let rows = rows(&filters);
    assert_eq!(rows.len(), 2);
    for row in &rows {
        check(row);
        assert_eq!(
            (&row["threads"], &row["outstanding"]),
            (&2.into(), &256.into())
        );
        assert!(row["wait_ns"].is_null());
    }
}

#[test]
fn the_table_begins_with_a_summary_of_the_rows_asked_for() {
    let filters = [
        "bench",
        "--pattern",
        "ring256",
        "--sizes",
        "1",
        "--allocator",
        "magazine",
        "--policy",
        "strict",
        "--threads",
        "1",
    ];
    let ran = lab(&[&filters[..], &["--peers", "none"]].concat());
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "Summary");
    let what = "magazine + strict on the software unit: beyond its latency";
    assert!(lines[2].starts_with(what), "{}", lines[2]);
    let cells: Vec<&str> = lines[2][what.len()..].split_whitespace().collect();
    let [here, "ns", "invalidation", beside, "ns", ratio, ..] = cells[..] else {
        panic!("{}", lines[2]);
    };
    for number in [here, beside, ratio] {
        assert!(number.parse::<f64>().is_ok(), "{}", lines[2]);
    }
    assert_eq!(lines[3], "", "one line of these rows");
    let named = |name: &str| lines.iter().filter(|line| line.contains(name)).count();
    assert!(
        named("soft unit") == 1 && named("rbtree") == 0,
        "{}",
        ran.out
    );
}

#[test]
fn filters_that_name_nothing_say_what_there_is() {
    for (filter, word, names) in [
        ("--allocator", "best", "rbtree, eiovar"),
        ("--policy", "lax", "strict, freebsd"),
        ("--pattern", "ring7", "immediate, ring256"),
        ("--sizes", "2", "1, mixed"),
        ("--threads", "3", "1, 2"),
        ("--peers", "jemalloc", "range-alloc, offset-allocator"),
    ] {
        let ran = lab(&["bench", filter, word]);
        assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
        let said = ran.err.contains(&format!("`{word}`")) && ran.err.contains(names);
        assert!(said, "{}", ran.err);
    }
}

#[test]
fn filters_that_leave_nothing_are_refused() {
    let ran = lab(&["bench", "--pattern", "producer-consumer", "--threads", "1"]);
    assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
    assert!(
        ran.err.starts_with("error: no row is left: "),
        "{}",
        ran.err
    );
}

#[test]
fn under_a_late_unit_three_ways_stand_beside_each_other() {
    let latency = json(&["bench", "latency", "--quick", "--json"]);
    assert_eq!(
        (&latency["latency_ns"], &latency["threads"]),
        (&1000.into(), &2.into())
    );
    let rows = latency["rows"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["strict, one by one", "strict, batches of 16", "deferred"]
    );
    for row in rows {
        let measured = row["reason"].is_null();
        assert_eq!(row["ns_per_pair"].is_f64(), measured, "{row}");
        assert_eq!(row["per_second"].is_f64(), measured, "{row}");
    }
}
