// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `papers` through the program.

use crate::common::{json, lab};
use ioatlas_cli::Status;
use serde_json::Value;
use std::fs;
use std::sync::LazyLock;

/// One run of everything, for all tests: it takes long.
struct Everything {
    dir: tempfile::TempDir,
    model: Value,
}

fn everything() -> &'static Everything {
    static RUN: LazyLock<Everything> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        // a page that is half there from some other run is replaced
        fs::write(dir.path().join("index.html"), "<!doctype html><p>ha").unwrap();
        let model = json(&["papers", "--json", "-o", dir.path().to_str().unwrap()]);
        Everything { dir, model }
    });
    &RUN
}

#[test]
fn papers_writes_whole_files_and_says_the_same_everywhere() {
    let Everything { dir, model } = everything();
    let path = dir.path();
    let page = fs::read_to_string(path.join("index.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for reference in ["http:", "https:", "src=", "url(", "<script", "`"] {
        assert!(!page.contains(reference), "{reference}");
    }
    for link in page.split("href=\"").skip(1) {
        let target = link
            .split('"')
            .next()
            .and_then(|link| link.strip_prefix('#'));
        let target = target.expect("a link out of the page");
        assert!(page.contains(&format!("id=\"{target}\"")), "{target}");
    }
    let names = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    };
    let mut files = names(&model["files"]);
    let mut found: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    found.sort();
    assert_eq!(files, found);
    let exhibits = model["exhibits"].as_array().unwrap();
    let of_atc15 = exhibits.iter().filter(|e| e["paper"] == "ATC'15");
    let mut which: Vec<_> = of_atc15.map(|e| e["exhibit"].as_str().unwrap()).collect();
    which.sort_unstable();
    assert_eq!(
        which,
        [
            "figure 1",
            "figure 2",
            "figure 3",
            "figure 4",
            "figure 5",
            "figure 6",
            "figure 7",
            "strict that scales",
            "table 1",
            "table 2"
        ]
    );
    for exhibit in exhibits {
        let count = |field: &str| exhibit["counts"][field].as_u64().unwrap();
        let judged = count("reproduced") + count("weak") + count("not");
        assert_eq!(judged, verdicts(exhibit).count() as u64);
        let places = exhibit["places"].as_array().unwrap();
        for place in places {
            let [reproduced, weak, not] =
                ["reproduced", "weak", "not"].map(|field| place[field].as_u64().unwrap());
            let said = match reproduced + weak + not {
                0 => "none judged".to_owned(),
                judged => format!("{reproduced} of {judged}"),
            };
            assert!(page.contains(&said), "{said}");
        }
        let width = names(&exhibit["columns"]).len();
        assert_eq!(exhibit["tags"].as_array().unwrap().len(), width);
        let [paper, which] = ["paper", "exhibit"].map(|field| exhibit[field].as_str().unwrap());
        let stem = format!("{paper} {which}").replace(['\'', '.'], "");
        let stem = stem.to_lowercase().replace(' ', "-");
        let csv = fs::read_to_string(path.join(stem + ".csv")).unwrap();
        let rows = exhibit["rows"].as_array().unwrap();
        assert_eq!(csv.lines().count(), rows.len() + 1);
        for row in rows {
            assert_eq!(row.as_array().unwrap().len(), width);
        }
        for field in ["paper", "title", "claim"] {
            assert!(!exhibit[field].as_str().unwrap().is_empty(), "{field}");
        }
    }
    for svg in files.iter().filter(|name| name.ends_with(".svg")) {
        assert!(files.contains(&svg.replace(".svg", ".csv")), "{svg}");
    }
    let svg = fs::read_to_string(path.join("atc15-figure-6.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.matches("</title></polyline>").count() == 5);
}

/// The verdicts of an exhibit's findings, of those that have one.
fn verdicts(exhibit: &Value) -> impl Iterator<Item = &str> {
    let statements = exhibit["statements"].as_array().unwrap().iter();
    let found = statements.flat_map(|statement| statement["found"].as_array().unwrap());
    found.filter_map(|found| found["verdict"].as_str())
}

#[test]
fn what_was_fitted_to_a_statement_has_no_verdict_on_it() {
    let exhibits = everything().model["exhibits"].as_array().unwrap();
    let mut fitted = Vec::new();
    for exhibit in exhibits {
        for statement in exhibit["statements"].as_array().unwrap() {
            for found in statement["found"].as_array().unwrap() {
                let is_evidence = found["kind"] == "predicted";
                assert_eq!(found["verdict"].is_string(), is_evidence, "{statement}");
                if found["kind"] == "fitted" {
                    fitted.push(exhibit["exhibit"].as_str().unwrap());
                }
            }
        }
    }
    // two waits for locks, three designs on one CPU, 2.8 times at 4 KiB, and costs made of it
    let expected = [
        "figure 2",
        "figure 2",
        "figure 3",
        "figure 3",
        "figure 3",
        "results",
        "crossover",
    ];
    assert_eq!(fitted, expected);
}

#[test]
fn the_papers_numbers_are_drawn_where_the_text_has_them() {
    let dir = &everything().dir;
    for (name, count) in [
        ("atc15-figure-2", 4),
        ("atc15-figure-3-share", 3),
        ("atc15-figure-4", 4),
        ("atc15-figure-5", 1),
        ("atc15-figure-5-share", 4),
        ("atc15-figure-7-share", 1),
        ("bounce21-results-throughput", 4),
        ("wiosca10-figure-2-penalty", 4),
        ("wiosca10-section-49-savings", 2),
    ] {
        let svg = fs::read_to_string(dir.path().join(format!("{name}.svg"))).unwrap();
        assert_eq!(svg.matches("<title>theirs, ").count(), count, "{name}");
        assert!(
            svg.contains(">theirs, where the text has a number<"),
            "{name}"
        );
    }
}

#[test]
fn a_wide_range_does_not_hide_a_factor() {
    let exhibits = everything().model["exhibits"].as_array().unwrap();
    let statements = exhibits
        .iter()
        .flat_map(|exhibit| exhibit["statements"].as_array().unwrap());
    let mut later = statements.filter(|statement| {
        let says = statement["says"].as_str().unwrap();
        says.starts_with("EiovaR, 1 CPU: latency beyond no IOMMU")
    });
    let compared = &later.next().unwrap()["found"][0]["compared"][0];
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(number(&compared["theirs"]["low"]), 1.2);
    let ratio = number(&compared["ours"]) / 1.2;
    assert!(
        (number(&compared["ratio"]) - ratio).abs() < 1e-9,
        "{compared}"
    );
}

/// Also in the document, whose line is written by hand.
#[test]
fn every_parameter_is_listed_with_its_origin_and_they_are_counted() {
    let Everything { dir, model } = everything();
    let page = fs::read_to_string(dir.path().join("index.html")).unwrap();
    let parameters = model["parameters"].as_array().unwrap();
    for parameter in parameters {
        for field in ["model", "name", "source"] {
            assert!(
                !parameter[field].as_str().unwrap().is_empty(),
                "{parameter}"
            );
        }
        assert!(parameter["value"].is_number() || parameter["value"].is_string());
        assert!(parameter["unit"].is_string());
    }
    let count = |origin: &str| {
        let such = parameters
            .iter()
            .filter(|parameter| parameter["origin"] == origin);
        format!("{} {origin}", such.count())
    };
    let counts = ["published", "measured", "fitted", "free"]
        .map(count)
        .join(", ");
    let line = format!("{} parameters: {counts}", parameters.len());
    assert!(page.contains(&line), "{line}");
    let document = include_str!("../../../../docs/papers.md");
    let document: Vec<&str> = document.split_whitespace().collect();
    assert!(
        document.join(" ").contains(&line),
        "docs/papers.md must say: {line}"
    );
}

#[test]
fn the_terminal_has_lines_of_at_most_100_columns_with_counts_and_no_backticks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let only = [
        "papers",
        "--only",
        "wiosca10-figure-1,bounce21-results",
        "-o",
    ];
    let ran = lab(&[&only[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(ran.status, Status::Success, "{}", ran.err);
    let (last, lines) = ran
        .out
        .trim_end()
        .split_once("All findings")
        .map(|(lines, last)| (last, lines))
        .unwrap();
    assert!(
        last.contains(" of ") && !ran.out.contains('`'),
        "{}",
        ran.out
    );
    for line in lines.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let counted = "WIOSCA'10 figure 11, Miss rate of different configurations: SCSI, bonnie++: today's kernel: 5 of 6";
    let words: Vec<&str> = ran.out.split_whitespace().collect();
    assert!(words.join(" ").contains(counted), "{}", ran.out);
}

/// What issue and paper say of figure 6, by the data.
#[test]
fn page_tables_grow_under_kmalloc_with_others_in_its_heap_and_nowhere_else() {
    let exhibits = everything().model["exhibits"].as_array().unwrap();
    let is_it = |e: &&Value| {
        e["paper"] == "ATC'15"
            && e["exhibit"]
                .as_str()
                .unwrap()
                .eq_ignore_ascii_case("figure 6")
    };
    let figure = exhibits.iter().find(is_it).unwrap();
    let columns: Vec<_> = figure["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c.as_str().unwrap())
        .collect();
    let at = |row: usize, column: &str| {
        let nth = columns.iter().position(|name| *name == column).unwrap();
        figure["rows"][row][nth].as_f64().unwrap()
    };
    assert_eq!(figure["rows"].as_array().unwrap().len(), 101);
    let freed = "magazine, emptied tables freed";
    for design in ["eiovar", "magazine", freed] {
        let column = format!("{design} drifting background");
        assert_eq!(at(1, &column), at(100, &column), "{design}");
    }
    let last = |design: &str| at(100, &format!("{design} drifting background"));
    assert!(last(freed) < last("magazine"));
    let growing = "kmalloc drifting background";
    let over = [1, 25, 50, 75, 100].map(|row| at(row, growing));
    assert!(over.windows(2).all(|pair| pair[0] < pair[1]), "{over:?}");
    assert_eq!(
        at(1, "kmalloc no background"),
        at(100, "kmalloc no background")
    );
}

#[test]
fn papers_that_cannot_be_written_are_named_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "old").unwrap();
    let under = dir.path().join("no/such");
    let mut cases = vec![
        (file.clone(), Status::Failure, "not a directory"),
        (under, Status::Failure, "cannot write"),
        ("-".into(), Status::Usage, "standard output"),
    ];
    #[cfg(unix)]
    {
        // held back even from root: a directory where a file is to be
        let taken = dir.path().join("taken");
        fs::create_dir_all(taken.join("index.html")).unwrap();
        cases.push((taken, Status::Failure, "not a regular file"));
    }
    for (path, status, message) in cases {
        let ran = lab(&["papers", "-o", path.to_str().unwrap()]);
        assert_eq!((ran.status, ran.out.as_str()), (status, ""), "{}", ran.err);
        assert!(
            ran.err.contains(message) && ran.err.contains(path.to_str().unwrap()),
            "{}",
            ran.err
        );
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}

/// The kernel kills a process in the middle of the write that passes its limit on file size.
#[cfg(unix)]
#[test]
fn papers_killed_while_they_write_leave_the_old_page() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("index.html");
    fs::write(&page, "old").unwrap();
    let status = Command::new("sh")
        // 16 blocks of 512 or 1024 bytes: tables and drawings of these fit, the page does not
        .args(["-c", "ulimit -c 0; ulimit -f 16; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_ioatlas-lab"), "papers"])
        .args(["--only", "wiosca10-figure-8,wiosca10-figure-9", "-o"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.signal().is_some(), "not killed: {status}");
    assert_eq!(fs::read_to_string(&page).unwrap(), "old");
    assert!(dir.path().join("wiosca10-figure-9-today.svg").exists());
}

#[test]
fn papers_of_some_exhibits_have_these_and_their_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let only = ["--only", "bounce21-results,atc15-table-2", "-o", path];
    let model = json(&[&["papers", "--json"], &only[..]].concat());
    let exhibits = model["exhibits"].as_array().unwrap();
    let which: Vec<_> = exhibits.iter().map(|e| e["exhibit"].clone()).collect();
    assert_eq!(which, ["table 2", "results"]);
    let files = model["files"].as_array().unwrap();
    let index = files.last().unwrap();
    assert_eq!((files.len(), index), (5, &"index.html".into()), "{files:?}");
    let refused = lab(&["papers", "--only", "bounce21,atc15-figure-66", "-o", path]);
    assert_eq!((refused.status, refused.out.as_str()), (Status::Usage, ""));
    for known in ["`atc15-figure-66`", "bounce21-crossover", "atc15-figure-6"] {
        let known = known.trim_matches('`');
        assert!(refused.err.contains(known), "{}", refused.err);
    }
}
