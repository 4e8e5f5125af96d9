// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The documents: README is short, links lead somewhere, and what they repeat of the code is so.
//! That the Rust of README is compiled is seen to by `ioatlas`, of the READMEs of crates by
//! themselves, and that it shows what `report` prints by the tests of the report.

use ioatlas_dma::design;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::{fs, iter};

/// Columns of a line of prose.
const COLUMNS: usize = 100;
/// Lines of README.
const LINES: usize = 150;

/// Words of notes between the makers, about goals of their own. Users are told what works.
const INTERNAL: [&str; 4] = ["missed", "reached", "aim", "aims"];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// Every Markdown file of the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with('.') || name == "target" || name == "papers" {
                continue;
            }
            // A link to a folder could go round in circles.
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The lines of a document that are no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Where the links of a document lead, with the lines they end in.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
        // [name]: target
        if line.starts_with('[')
            && let Some((_, target)) = line.split_once("]: ")
        {
            found.push((number, target.trim().to_owned()));
        }
    }
    found
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let words: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = words.replace(' ', "-");
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let mut names = iter::once(anchor.clone()).chain(again);
        anchors.insert(names.find(|name| !anchors.contains(name)).unwrap());
    }
    anchors
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (number, link) in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let leads = target.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).contains(anchor)));
            if !leads {
                let document = path.strip_prefix(root()).unwrap().display();
                broken.push(format!("{document}:{number}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(checked > 20, "{checked} links");
}

#[test]
fn a_broken_link_is_found_and_an_anchor_is_made_as_on_github() {
    let text = "# What runs, where?\n[a](b.md#c) `[no](link)`\n```sh\n# no heading [x](y)\n```\n## Two\n## Two\n[d]: e.md\n";
    let expected = [(2, "b.md#c"), (8, "e.md")].map(|(line, to)| (line, to.to_owned()));
    assert_eq!(links(text), expected);
    let expected = ["what-runs-where", "two", "two-1"].map(String::from);
    assert_eq!(anchors(text), HashSet::from(expected));
}

/// Paths that documents name between backticks exist, so that a file that moves is renamed there
/// too.
#[test]
fn files_that_documents_name_exist() {
    let folders = [
        "ci/",
        "crates/",
        "docs/",
        "examples/",
        "fuzz/",
        "lab/",
        "traces/",
        ".ci/",
    ];
    let mut missing = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let name_of = path.display();
        for (number, line) in prose(&text) {
            for code in line.split('`').skip(1).step_by(2) {
                let name = code.split([' ', ':']).next().unwrap_or_default();
                // A pattern, or a name with a part to be put in, is no path.
                let path = !name.contains(['*', '{', '<', '$', '[']);
                let ours = folders.iter().any(|folder| name.starts_with(folder));
                if ours && path && !root().join(name).exists() {
                    missing.push(format!("{name_of}:{number}: {name}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The way of one page names files of the core by their place in its `src`.
#[test]
fn files_on_the_way_of_a_page_exist() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let source = root().join("crates/dma/src");
    let rows = rows_under(&page, "The way of one page");
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let names: Vec<&str> = names
        .filter(|name| name.ends_with(".rs") && !name.starts_with("crates/"))
        .collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(source.join(name).exists(), "{name}");
    }
}

#[test]
fn readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= LINES, "{lines} lines; want at most {LINES}");
}

#[test]
fn prose_is_wrapped() {
    let mut long = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let wide = prose(&text).filter(|(_, line)| {
            let kept = line.trim_start().starts_with('|') || line.starts_with("    ");
            // Tables and code stay as they are. A link, or a piece of code, cannot be broken.
            let whole = line.split(' ').any(|word| word.len() > COLUMNS / 2);
            !kept && !whole && line.chars().count() > COLUMNS
        });
        long.extend(wide.map(|(number, _)| format!("{}:{number}", path.display())));
    }
    assert!(long.is_empty(), "over {COLUMNS} columns: {long:?}");
}

#[test]
fn documents_judge_by_no_goal_of_ours() {
    let mut found = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            let words = line
                .split(|c: char| !c.is_alphanumeric())
                .map(str::to_lowercase);
            for word in words.filter(|word| INTERNAL.contains(&word.as_str())) {
                found.push(format!("{}:{number}: {word}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The rows of the table under a heading.
fn rows_under<'t>(text: &'t str, heading: &str) -> impl Iterator<Item = &'t str> {
    let from = text.find(&format!("\n## {heading}\n")).expect(heading) + 1;
    let rows = text[from..]
        .lines()
        .skip(1)
        .skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|')).skip(2)
}

/// The first cells of the rows of the table under a heading, without backticks.
fn table_under(text: &str, heading: &str) -> Vec<String> {
    let first = |row: &str| row.split('|').nth(1).unwrap().trim().replace('`', "");
    rows_under(text, heading).map(first).collect()
}

#[test]
fn the_page_of_designs_lists_what_there_is() {
    let page = fs::read_to_string(root().join("docs/designs.md")).unwrap();
    let names = |listed: Vec<&str>| listed.into_iter().map(String::from).collect::<HashSet<_>>();
    let table = |heading| {
        table_under(&page, heading)
            .into_iter()
            .collect::<HashSet<_>>()
    };
    let presets = design::presets().map(|preset| preset.name).collect();
    assert_eq!(table("Systems"), names(presets));
    let allocators: Vec<&str> = design::allocators()
        .map(|allocator| allocator.name)
        .collect();
    let policies: Vec<&str> = design::policies().map(|policy| policy.name).collect();
    // README says how many.
    assert_eq!((allocators.len(), policies.len()), (8, 6));
    assert_eq!(table("IOVA allocators"), names(allocators));
    assert_eq!(table("Invalidation policies"), names(policies));
}

/// Every subcommand has its row.
#[test]
fn the_page_of_commands_lists_what_there_is() {
    let page = fs::read_to_string(root().join("docs/commands.md")).unwrap();
    let help = crate::common::ioatlas(&["--help"]);
    let commands = help
        .out
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        // what is further to the right goes on with what the line above says
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() > 5, "{commands:?}");
    for name in commands {
        assert!(page.contains(&format!("| `{name}")), "{name} has no row");
    }
}

/// A crate uses crates of lower layers only, as the picture of the architecture has them, and only
/// the command uses the laboratory.
#[test]
fn crates_use_lower_layers_only() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let row = |line: &str| -> Option<(String, u32)> {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let layer = cells.next()?.parse().ok()?;
        let (name, lab) = cells.next()?.strip_prefix('`')?.split_once('`')?;
        assert!(["", " (`lab`)"].contains(&lab), "{name}{lab}");
        Some((name.to_owned(), layer))
    };
    let layers: HashMap<String, u32> = page.lines().filter_map(row).collect();
    let folders = |of: &str| fs::read_dir(root().join(of)).unwrap();
    let in_lab = |name: &str| root().join("lab").join(name).exists();
    let mut arrows = 0;
    for entry in folders("crates").chain(folders("lab")) {
        let folder = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let name = folder.file_name().unwrap().to_str().unwrap();
        let layer = layers
            .get(name)
            .unwrap_or_else(|| panic!("{name} has no row"));
        let marked = page.contains(&format!("`{name}` (`lab`)"));
        assert_eq!(marked, in_lab(name), "{name} is in the other folder");
        // Tests may use what they like.
        let sections = manifest
            .split("\n[")
            .filter(|part| part.starts_with("dependencies]"));
        for line in sections.flat_map(str::lines) {
            let Some(used) = line.strip_prefix("ioatlas-") else {
                continue;
            };
            let used = used.split(['.', ' ', '=']).next().unwrap();
            assert!(layers[used] < *layer, "{name} uses {used}");
            let may = in_lab(name) || name == "cli" || !in_lab(used);
            assert!(
                may,
                "{name}, which users link, uses {used} of the laboratory"
            );
            arrows += 1;
        }
    }
    assert!(arrows > 15, "{arrows}");
}
