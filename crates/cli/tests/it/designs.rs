// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `replay`, and the designs that commands take.

use crate::common::{bundled, ioatlas, json};
use ioatlas_cli::Status;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A trace of a few lines in `dir`.
fn small(dir: &Path) -> String {
    let path = dir.join("small.trace");
    let pairs = "M a 100 1 r 5\nA a 100 r\nU a 100 1\n".repeat(300);
    fs::write(&path, format!("# ioatlas-trace 1\n{pairs}")).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn replay_shows_systems_by_default_and_all_designs_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small(dir.path());
    let rows = json(&["replay", &trace, "--json"]);
    let systems: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["system"].clone())
        .collect();
    let expected = [
        "Linux 3.17",
        "Linux today",
        "Linux strict",
        "FreeBSD",
        "Solaris",
        "Mac OS X",
    ];
    assert_eq!(
        systems,
        expected.map(|name| Value::from(format!("as {name}")))
    );
    let all = json(&["replay", &trace, "--all", "--json"]);
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 48);
    for row in all {
        assert_eq!(
            (&row["maps"], &row["violations"]),
            (&300.into(), &0.into()),
            "{row}"
        );
        assert_eq!(row["accesses"], 300);
    }
    // an unmap of each of 300, which Solaris does not flush before the next map
    let solaris = &rows[4];
    assert_eq!(solaris["design"], "vmem,solaris");
    assert!(
        solaris["exposure_unmaps"].as_u64().unwrap() < 2,
        "{solaris}"
    );
    assert_eq!(rows[0]["invalidations"], 1, "250, and 50 that wait");
    let unshipped = all.iter().filter(|row| row["shipped_by"].is_null());
    assert_eq!(unshipped.count(), 42);
}

#[test]
fn help_lists_the_registry() {
    use ioatlas_dma::design::{allocators, policies, presets};
    for command in ["report", "replay"] {
        let help = ioatlas(&[command, "--help"]).out;
        let words: Vec<&str> = help.split_whitespace().collect();
        let help = words.join(" ");
        let parts = allocators()
            .map(|a| format!("{} {} ({})", a.name, a.doc, a.paper))
            .chain(policies().map(|p| format!("{} {} ({})", p.name, p.doc, p.paper)))
            .chain(presets().map(|p| format!("{} {}: {}. ", p.name, p.design, p.doc)));
        for part in parts {
            assert!(help.contains(&part), "{part}: {help}");
        }
    }
}

#[test]
fn a_replay_says_which_windows_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small(dir.path());
    let designs = ["--as", "linux", "--as", "linux-strict", "--as", "solaris"];
    let rows = json(&[&["replay", &trace, "--json"], &designs[..]].concat());
    let kinds = ["bounded", "none", "unbounded"];
    for (at, kind) in kinds.iter().enumerate() {
        assert_eq!(rows[at]["exposure"], *kind);
    }
    let table = ioatlas(&[&["replay", &trace], &designs[..]].concat()).out;
    let solaris = table.lines().find(|line| line.contains("vmem")).unwrap();
    assert!(solaris.contains("unbounded: "), "{solaris}");
}

#[test]
fn replay_of_designs_by_name_keeps_their_order_and_options() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small(dir.path());
    let names = [
        "--as",
        "kmalloc,strict",
        "--as",
        "linux",
        "--as",
        "rbtree,strict,leaf=2m",
        "--as",
        "linux",
    ];
    let rows = json(&[&["replay", &trace, "--json"], &names[..]].concat());
    let designs: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["design"].as_str().unwrap())
        .collect();
    assert_eq!(
        designs,
        [
            "kmalloc,strict",
            "magazine,deferred-percpu",
            "rbtree,strict,leaf=2m"
        ]
    );
    let plain = ioatlas(&[&["replay", &trace], &names[..]].concat());
    let labels = ["(no system)", "as Linux today"];
    assert!(
        labels.iter().all(|label| plain.out.contains(label)),
        "{}",
        plain.out
    );
    let two = json(&[
        "replay",
        &trace,
        &bundled("lsi-bonnie"),
        "--json",
        "--as",
        "linux",
    ]);
    assert_eq!(two[&trace][0]["maps"], 300);
}

#[test]
fn report_takes_designs_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, page) = (small(dir.path()), dir.path().join("r.html"));
    let arguments = ["report", &trace, "-o", page.to_str().unwrap(), "--json"];
    let named = json(
        &[
            &arguments[..],
            &["--as", "solaris", "--as", "identity,strict"],
        ]
        .concat(),
    );
    let rows = named["systems"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["exposure"]["kind"], "unbounded");
    assert!(rows[0]["exposure"]["operations_observed"]["value"].is_number());
    assert_eq!(
        (&rows[0]["shipped_by"], &rows[1]["shipped_by"]),
        (&"Solaris (as illumos has it)".into(), &Value::Null)
    );
    assert_eq!(
        (&rows[1]["name"], &rows[1]["design"]),
        (&"identity,strict".into(), &"identity, strict".into())
    );
    assert_eq!(rows[1]["exposure"]["kind"], "none");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains(">unbounded</td>") && html.contains("(no system)"));
}

#[test]
fn designs_that_do_not_exist_are_refused_with_what_does() {
    for command in ["report", "replay"] {
        let ran = ioatlas(&[command, "t.trace", "--as", "best"]);
        assert_eq!((ran.status, ran.out.as_str()), (Status::Usage, ""));
        for known in ["`best`", "linux-3.17", "kmalloc"] {
            assert!(ran.err.contains(known), "{}", ran.err);
        }
        for wrong in ["rbtree", "rbtree,lax", "linux,leaf=3m", ""] {
            assert_eq!(
                ioatlas(&[command, "t.trace", "--as", wrong]).status,
                Status::Usage,
                "{wrong}"
            );
        }
        let both = ioatlas(&[command, "t.trace", "--as", "linux", "--all"]);
        assert_eq!(both.status, Status::Usage, "{}", both.err);
    }
    let missing = ioatlas(&["replay", "missing.trace"]);
    assert_eq!(
        (missing.status, missing.out.as_str()),
        (Status::Failure, "")
    );
}
