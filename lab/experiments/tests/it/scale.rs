// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `scale`: that it is the same every time, moves smoothly, and says what it does not know.
//!
//! Points are few and machines small, so that all of it takes seconds also unoptimised.

use crate::common::lab;
use ioatlas_cli::Status;
use serde_json::Value;

const MAGAZINE: [&str; 7] = [
    "scale",
    "--design",
    "magazine",
    "--policy",
    "deferred-percpu",
    "--workload",
    "rr",
];

fn out(base: &[&str], more: &[&str]) -> String {
    let ran = lab(&[base, more].concat());
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    ran.out
}

fn json(base: &[&str], more: &[&str]) -> Value {
    lab(&[base, more, &["--json"]].concat()).json()
}

/// What `field` is in the points of `design`, in order.
fn field(scale: &Value, design: &str, field: &str) -> Vec<f64> {
    let points = scale["points"].as_array().unwrap();
    let mine = points.iter().filter(|point| point["design"] == design);
    mine.map(|point| point[field].as_f64().unwrap()).collect()
}

#[test]
fn runs_are_the_same_to_the_byte_on_any_number_of_threads() {
    let more = ["--cpus", "2,4", "--lines", "--json"];
    let once = out(&MAGAZINE, &more);
    assert_eq!(once, out(&MAGAZINE, &more));
    for jobs in ["1", "2"] {
        let again = out(&MAGAZINE, &[&more[..], &["--jobs", jobs]].concat());
        assert_eq!(once, again, "{jobs} threads");
    }
    let other = out(&MAGAZINE, &[&more[..], &["--seed", "2"]].concat());
    assert_ne!(once, other, "the seed is of no consequence");
}

#[test]
fn throughput_lies_between_its_neighbours() {
    let scale = json(&MAGAZINE, &["--cpus", "2-4,6,7,8,10,11,12"]);
    let rates = field(&scale, "magazine,deferred-percpu", "per_second");
    for (at, cpus) in [(1, 3), (4, 7), (7, 11)] {
        let (below, here, above) = (rates[at - 1], rates[at], rates[at + 1]);
        assert!(below < here && here < above, "{cpus} CPUs: {rates:?}");
        let middle = (below + above) / 2.0;
        assert!(
            (here - middle).abs() < 0.05 * middle,
            "{cpus} CPUs: {here}, between its neighbours {middle}"
        );
    }
}

#[test]
fn strict_falls_as_invalidations_take_longer() {
    let strict = [
        "scale",
        "--design",
        "magazine",
        "--policy",
        "strict",
        "--workload",
        "rr",
        "--cpus",
        "4",
    ];
    let rate = |more: &[&str]| field(&json(&strict, more), "magazine,strict", "per_second")[0];
    let (usual, slower) = (rate(&[]), rate(&["--set", "invalidation=4254"]));
    assert!(slower < 0.9 * usual, "{slower} after {usual}");
    let longest = rate(&["--set", "invalidation=8508"]);
    assert!(longest < 0.7 * slower, "{longest} after {slower}");
}

#[test]
fn lines_are_named_by_what_lies_in_them_and_where() {
    let eiovar = [
        "scale",
        "--design",
        "eiovar",
        "--policy",
        "deferred-global",
        "--workload",
        "rr",
        "--cpus",
        "4",
    ];
    let scale = json(&eiovar, &[]);
    let lines = scale["points"][1]["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 10);
    for line in lines {
        let name = line["name"].as_str().unwrap();
        assert!(name.contains(".rs:"), "{name}");
        assert!(!name.contains("0x"), "an address: {name}");
    }
    let names: Vec<_> = lines
        .iter()
        .filter_map(|line| line["name"].as_str())
        .collect();
    assert!(
        names.iter().any(|name| name.starts_with("lock ")),
        "no lock is hot: {names:?}"
    );
    let text = out(&eiovar, &["--lines"]);
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn every_point_has_one_without_an_iommu_to_be_compared_with() {
    let scale = json(&MAGAZINE, &["--cpus", "1,2"]);
    let points = scale["points"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    for pair in points.chunks(2) {
        assert_eq!(
            (&pair[0]["design"], &pair[0]["relative"]),
            (&Value::Null, &1.0.into())
        );
        let relative = pair[1]["relative"].as_f64().unwrap();
        let rates = [0, 1].map(|at: usize| pair[at]["per_second"].as_f64().unwrap());
        assert_eq!(relative, rates[1] / rates[0]);
        let parts = pair[1]["cycles"].as_object().unwrap();
        let whole: f64 = parts.values().filter_map(Value::as_f64).sum();
        assert!((whole - 1.0).abs() < 1e-9, "{parts:?}");
    }
    assert_eq!(
        scale["frames"],
        Value::Array(vec![]),
        "only some points are asked for"
    );
}

#[test]
fn results_out_of_range_are_marked_and_have_a_note() {
    let quiet = json(&MAGAZINE, &["--cpus", "1"]);
    let rows = quiet["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "one CPU, request-response: {rows:?}");
    assert_eq!(quiet["lock_model"], "queue");
    // work outside that is next to nothing: no design is near 93 %
    let missed = out(&MAGAZINE, &["--cpus", "1", "--set", "rr_work=100"]);
    assert!(missed.contains(", out of it"), "{missed}");
    let missed = json(&MAGAZINE, &["--cpus", "1", "--set", "rr_work=100"]);
    let row = &missed["rows"][0];
    assert_eq!(row["in_range"], false);
    let note = row["note"].as_str().unwrap();
    assert!(note.contains("not those as shipped"), "{note}");
}

#[test]
fn strict_has_each_line_beside_no_iommu_and_is_the_same_to_the_byte() {
    let quick = ["scale", "strict", "--quick"];
    let once = out(&quick, &["--json", "--jobs", "1"]);
    assert_eq!(once, out(&quick, &["--json", "--jobs", "2"]));
    let strict: Value = serde_json::from_str(&once).unwrap();
    let points = strict["points"].as_array().unwrap();
    assert_eq!(points[0]["line"], "no IOMMU");
    assert_eq!(points[0]["relative"], 1.0);
    let of = |line: &str, cost: Option<u64>| {
        let mut found = points.iter().filter(|point| {
            point["line"] == line && (cost.is_none() || point["domain_cost"].as_u64() == cost)
        });
        found.next().unwrap()["relative"].as_f64().unwrap()
    };
    // one call for k, and one wait: each doubling is worth more, a dear domain less
    let by = |k: u64, cost| of(&format!("batches of {k}"), Some(cost));
    let strict = of("strict", None);
    assert!(strict < by(2, 1) && by(2, 1) < by(4, 1) && by(4, 1) < by(16, 1));
    assert!(strict < by(2, 8) && by(2, 8) < by(2, 1));
    assert!(by(16, 1) < 1.0);
    // one range, so that a dear domain is of no consequence
    let chunks = of("chunks of 16", None);
    assert!(by(16, 8) < chunks && chunks < 1.0);
    for point in &points[1..] {
        let fresh = point["line"].as_str().unwrap().ends_with("fresh IOVAs");
        assert_eq!(point["in_range"].is_null(), fresh, "{point}");
    }
    let text = out(&quick, &[]);
    assert!(text.contains("batches of 16"), "{text}");
}

#[test]
fn what_there_is_not_is_refused_with_what_there_is() {
    for (arguments, expected) in [
        (["--design", "none"], "magazine"),
        (["--policy", "never"], "deferred-global"),
        (["--workload", "chess"], "memcached"),
        (["--lock", "rusty"], "test-and-set"),
        (["--set", "colour=3"], "invalidation"),
        (["--set", "invalidation=red"], "`red` is not a whole number"),
        (["--cpus", "0"], "1 to"),
        (["--cpus", "5-3"], "runs backwards"),
    ] {
        let ran = lab(&[&["scale"][..], &arguments].concat());
        assert_ne!(ran.status, Status::Success, "{arguments:?}");
        assert!(ran.err.contains(expected), "{arguments:?}: {}", ran.err);
    }
}
