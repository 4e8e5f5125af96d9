// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Table 2: how complex the designs are, in lines of code.
//!
//! Counted by the compiler from the very files that it compiles: a line counts unless it is blank,
//! a comment, or belongs to the tests at the end of its file.

use super::{
    super::{About, Experiment, Found, Parameter, Shown, Statement, Verdict},
    about,
};
use ioatlas_present::{Cell, Tag};

/// A file of the core, from its `src`, and its lines of code.
macro_rules! file {
    ($path:literal) => {{
        const LINES: u32 = code_lines(include_str!(concat!(
            "../../../../../crates/dma/src/",
            $path
        )));
        File {
            path: $path,
            lines: LINES,
        }
    }};
}

/// Lines of code in a file.
#[derive(Clone, Copy, Debug)]
struct File {
    path: &'static str,
    lines: u32,
}

/// A design and what it is made of.
#[derive(Clone, Debug)]
pub(super) struct Row {
    design: &'static str,
    /// What it needs beyond the tree that all have below or as fallback.
    files: Vec<File>,
}

impl Row {
    fn lines(&self) -> u32 {
        self.files.iter().map(|file| file.lines).sum()
    }

    /// Those in the page tables: what the paper calls intrusive.
    fn in_tables(&self) -> u32 {
        let tables = self
            .files
            .iter()
            .filter(|file| file.path.starts_with("table/"));
        tables.map(|file| file.lines).sum()
    }
}

pub(super) struct Table2;

/// Where it is seen.
const HERE: &str = "lines of code";

/// From the simplest on, as the paper orders them.
const ORDER: [&str; 3] = ["kmalloc", "magazine", "identity"];

impl Experiment for Table2 {
    type Data = Vec<Row>;
    const ABOUT: About = about(
        "table 2",
        "Implementation complexity of the designs",
        "IOVA-kmalloc is the simplest design, magazines are a bit more complex, dynamic identity mapping is the most complicated and intrusive: it \
         changes page table management itself (6.2). The numbers are not in our copy of the paper.",
    );

    fn run(&self, _progress: &dyn Fn(&str)) -> Result<Vec<Row>, String> {
        let row = |design, files: &[File]| Row {
            design,
            files: files.to_vec(),
        };
        let reserved = file!("iova/reserved_ranges.rs");
        Ok(vec![
            row("kmalloc", &[file!("iova/kmalloc.rs"), reserved]),
            row(
                "magazine",
                &[
                    file!("iova/magazine.rs"),
                    file!("magazine/mod.rs"),
                    file!("magazine/depot.rs"),
                    file!("magazine/account.rs"),
                ],
            ),
            row(
                "identity",
                &[
                    file!("iova/identity.rs"),
                    reserved,
                    file!("table/shared.rs"),
                ],
            ),
            row("eiovar", &[file!("iova/eiovar.rs")]),
        ])
    }

    fn judge(rows: &Vec<Row>) -> Vec<Statement> {
        let of = |which: fn(&Row) -> u32| {
            ORDER.map(|name| {
                let row = rows.iter().find(|row| row.design == name);
                row.map_or(0, which)
            })
        };
        let (lines, in_tables) = (of(Row::lines), of(Row::in_tables));
        let statement =
            |says: &'static str, theirs, rule: &'static str, holds, counts: [u32; 3]| {
                let verdict = match holds {
                    true => Verdict::Reproduced,
                    false => Verdict::Not,
                };
                let counts = ORDER.iter().zip(counts);
                let counts: Vec<String> = counts
                    .map(|(name, lines)| format!("{name} {lines}"))
                    .collect();
                Statement {
                    says: says.into(),
                    theirs,
                    rule: rule.into(),
                    found: vec![Found::new(HERE, verdict.because(counts.join(", ")))],
                }
            };
        vec![
            statement(
                "IOVA-kmalloc is the simplest (6.2).",
                "the simplest",
                "it has the fewest lines",
                lines[0] < lines[1].min(lines[2]),
                lines,
            ),
            statement(
                "Magazines are a bit more complex, dynamic identity mapping is the most complicated (6.2).",
                "in this order",
                "magazines have fewer lines than identity",
                lines[1] < lines[2],
                lines,
            ),
            statement(
                "Identity mapping is the most intrusive: it modifies page table management itself (6.2).",
                "the most intrusive",
                "it has the most lines in the page tables",
                in_tables[2] > in_tables[0].max(in_tables[1]),
                in_tables,
            ),
        ]
    }

    fn parameters() -> Vec<Parameter> {
        Vec::new()
    }

    fn show(rows: &Vec<Row>) -> Shown {
        let columns = [
            ("design", None),
            ("lines of code", Some(Tag::Counted)),
            ("of these in the page tables", Some(Tag::Counted)),
            ("files", Some(Tag::Counted)),
        ];
        let row = |row: &Row| {
            let files: Vec<String> = row
                .files
                .iter()
                .map(|file| format!("{} {}", file.path, file.lines))
                .collect();
            vec![
                row.design.into(),
                Cell::count(row.lines().into()),
                Cell::count(row.in_tables().into()),
                files.join(", ").into(),
            ]
        };
        Shown {
            notes: vec![
                "The paper counts lines changed in Linux 3.17.2; ours are whole implementations, with audits, limits of devices and chosen ranges, which \
                 the paper's did not have to bring along. Ours without comments, blank lines and tests, counted when the program was compiled."
                    .into(),
                "The magazines themselves (magazine/) also serve the heap and are not particular to IOVAs; kmalloc's heap is the platform's and not counted, as \
                 in the paper; reserved.rs is shared by kmalloc and identity. All have a tree below them or as fallback, also not counted."
                    .into(),
                "eiovar is the paper's baseline, and not in its table.".into(),
            ],
            ..Shown::table(columns, rows.iter().map(row))
        }
    }
}

/// Lines that are neither blank nor comments, up to a line that begins with
/// `#[cfg(` and names `test`.
const fn code_lines(text: &str) -> u32 {
    let text = text.as_bytes();
    let (mut at, mut count) = (0, 0);
    while at < text.len() {
        let start = at;
        while at < text.len() && text[at] != b'\n' {
            at += 1;
        }
        if is_test(text, start, at) {
            return count;
        }
        let mut first = start;
        while first < at && (text[first] == b' ' || text[first] == b'\t') {
            first += 1;
        }
        let comment = first + 1 < at && text[first] == b'/' && text[first + 1] == b'/';
        if first < at && !comment {
            count += 1;
        }
        at += 1;
    }
    count
}

/// Whether the line from `start` to `end` begins what is compiled for tests only.
const fn is_test(text: &[u8], start: usize, end: usize) -> bool {
    begins(text, start, end, b"#[cfg(test") || begins(text, start, end, b"#[cfg(all(test")
}

const fn begins(text: &[u8], start: usize, end: usize, with: &[u8]) -> bool {
    if end - start < with.len() {
        return false;
    }
    let mut at = 0;
    while at < with.len() {
        if text[start + at] != with[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(kmalloc: u32, magazine: u32, identity: u32, tables: u32) -> Vec<Row> {
        let file = |path, lines| File { path, lines };
        let row = |design, files: &[File]| Row {
            design,
            files: files.to_vec(),
        };
        vec![
            row("kmalloc", &[file("iova/a.rs", kmalloc)]),
            row("magazine", &[file("iova/b.rs", magazine)]),
            row(
                "identity",
                &[file("iova/c.rs", identity), file("table/d.rs", tables)],
            ),
        ]
    }

    #[test]
    fn verdicts_follow_from_the_order() {
        use Verdict::{Not, Reproduced};
        let verdicts = |rows: &Vec<Row>| -> Vec<Verdict> {
            let all = Table2::judge(rows);
            all.iter().filter_map(|s| s.found[0].verdict).collect()
        };
        assert_eq!(verdicts(&rows(100, 200, 250, 50)), [Reproduced; 3]);
        assert_eq!(
            verdicts(&rows(100, 400, 250, 50)),
            [Reproduced, Not, Reproduced]
        );
        assert_eq!(
            verdicts(&rows(300, 200, 250, 50)),
            [Not, Reproduced, Reproduced]
        );
        assert_eq!(verdicts(&rows(500, 400, 250, 0)), [Not; 3]);
    }

    #[test]
    fn code_is_counted_and_nothing_else() {
        let text = "// licence\n//! doc\n\nfn a() {\n    // why\n    b(); // what\n\t\n}\n#[cfg(test)]\nmod tests {}\n";
        assert_eq!(code_lines(text), 3);
        assert_eq!(code_lines("a\n  #[cfg(test)]\nb"), 3, "only at the margin");
        assert_eq!(
            (code_lines(""), code_lines("a"), code_lines("/")),
            (0, 1, 1)
        );
        assert_eq!(
            code_lines("#[cfg(all(test, feature = \"host\"))]\nmod t;"),
            0
        );
    }

    #[test]
    fn no_file_is_empty() {
        for row in Table2.run(&|_| ()).unwrap() {
            for file in &row.files {
                assert!(file.lines > 20, "{file:?}");
            }
        }
    }
}
