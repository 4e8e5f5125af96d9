// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The top-level modules of a library use each other in one direction, so that a reader can begin
//! at the bottom. A module is a file or a folder of `src`; what it uses is what its paths from
//! `crate` and `super` lead to. Tests, comments and links of the documentation do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Libraries that users link.
const LIBRARIES: [&str; 9] = [
    "dma",
    "vtd",
    "vfio",
    "virtio-drivers",
    "dma-api",
    "vhost",
    "vhost-net",
    "viommu",
    "iotlb",
];

/// The circles that there are, by library. One that is broken must go from here as well.
const KNOWN: [(&str, &[&str]); 1] = [
    // One state under one lock: `unit` has it, the others are its methods, by subject.
    (
        "viommu",
        &[
            "device",
            "queue",
            "registers",
            "unit",
            "walk",
            "write_buffer",
        ],
    ),
];

type Names = BTreeSet<String>;

/// Of each module, the modules that it uses, with a file that does.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

/// The words of Rust code, `::`, and other characters one by one; no comments, strings and
/// lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let hashes = rest[word..].len() - rest[word..].trim_start_matches('#').len();
        let raw = ["r", "br"].contains(&&rest[..word]) && rest[word + hashes..].starts_with('"');
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if raw {
            let end = format!("\"{}", "#".repeat(hashes));
            let from = word + hashes + 1;
            from + rest[from..].find(&end).expect("a string ends") + end.len()
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' {
            let mut after = rest.chars().skip(1);
            match (after.next(), after.next()) {
                (Some('\\'), _) | (_, Some('\'')) => quoted(rest, '\''),
                _ => 1 + rest[1..].find(|c| !is_word(c)).expect("code goes on"),
            }
        } else {
            let len = match first {
                _ if word > 0 => word,
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            if !first.is_whitespace() {
                found.push(&rest[..len]);
            }
            len
        };
        rest = &rest[len..];
    }
    found
}

/// The length of a literal that ends with `quote`.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    panic!("no end: {text:.40}")
}

/// The length of a comment that may hold others.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let rest = &text.as_bytes()[at..];
        depth += i32::from(rest.starts_with(b"/*"));
        if rest.starts_with(b"*/") {
            depth -= 1;
            if depth == 0 {
                return at + 2;
            }
        }
        let two = rest.starts_with(b"/*") || rest.starts_with(b"*/");
        at += 1 + usize::from(two);
    }
}

/// Where the braces that open at `open` are closed.
fn closing(code: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in code.iter().enumerate().skip(open) {
        match *token {
            "{" => depth += 1,
            "}" if depth == 1 => return at,
            "}" => depth -= 1,
            _ => {}
        }
    }
    panic!("no end of {:?}", &code[open..])
}

/// Notes what the path, or tree of paths, at `at` begins with, seen from the root; returns where it
/// ends.
fn follow<'t>(code: &[&'t str], mut at: usize, mut path: Vec<&'t str>, used: &mut Names) -> usize {
    loop {
        match code[at] {
            "super" => drop(path.pop()),
            "self" => {}
            "{" => {
                let end = closing(code, at);
                at += 1;
                while at < end {
                    at = follow(code, at, path.clone(), used);
                    // `as` a name
                    at += code[at..end].iter().take_while(|one| **one != ",").count() + 1;
                }
                return end + 1;
            }
            name => path.push(name),
        }
        at += 1;
        // A type's arguments are no path.
        if code[at] != "::" || code[at + 1] == "<" {
            used.extend(path.first().map(|name| name.to_string()));
            return at;
        }
        at += 1;
    }
}

/// What a module at `path` uses, by the first names of the paths.
fn used_by(text: &str, path: &[&str]) -> Names {
    let code = tokens(text);
    let mut used = Names::new();
    let mut at = 0;
    // Modules within the file, with where they end.
    let mut inner: Vec<(&str, usize)> = Vec::new();
    while at < code.len() {
        inner.retain(|(_, end)| at < *end);
        match code[at..] {
            ["mod", "tests", "{", ..] => at = closing(&code, at + 2),
            ["mod", name, "{", ..] => {
                inner.push((name, closing(&code, at + 2)));
                at += 3;
            }
            ["crate", "::", ..] => at = follow(&code, at + 2, Vec::new(), &mut used),
            ["super", "::", ..] => {
                let here = path.iter().copied();
                let here = here.chain(inner.iter().map(|(name, _)| *name));
                at = follow(&code, at, here.collect(), &mut used);
            }
            _ => at += 1,
        }
    }
    used
}

/// The arrows between the modules of a library, whose files are named from its `src`.
fn arrows(files: &[(String, String)]) -> Arrows {
    let mut found = Arrows::new();
    let mut uses = Vec::new();
    for (name, text) in files {
        let mut path: Vec<&str> = name.strip_suffix(".rs").unwrap().split('/').collect();
        path.pop_if(|last| *last == "mod");
        if path == ["lib"] || path.contains(&"tests") {
            continue;
        }
        found.entry(path[0].to_owned()).or_default();
        uses.push((name, path[0], used_by(text, &path)));
    }
    for (file, from, used) in uses {
        for to in used {
            // What `lib.rs` names again has a module, by which it is to be named.
            assert!(found.contains_key(&to), "{file}: crate::{to} is no module");
            if to != from {
                let file = file.clone();
                found.get_mut(from).unwrap().entry(to).or_insert(file);
            }
        }
    }
    found
}

/// Modules that lead back to themselves, with those that they share that with.
fn circles(arrows: &Arrows) -> BTreeSet<Names> {
    let reached = |from: &String| {
        let mut found = Names::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            open.extend(arrows[module].keys().filter(|to| !found.contains(*to)));
            found.extend(arrows[module].keys().cloned());
        }
        found
    };
    let reached: BTreeMap<_, _> = arrows.keys().map(|from| (from, reached(from))).collect();
    let circle = |from| {
        let back = |to: &&String| reached[*to].contains(from);
        reached[from].iter().filter(back).cloned().collect()
    };
    let all = arrows.keys().map(circle);
    all.filter(|circle: &Names| !circle.is_empty()).collect()
}

/// The files of a folder and of those in it, named from `root`.
fn files(folder: &Path, root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, root));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            found.push((name.to_owned(), fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn modules_of_a_library_use_each_other_in_one_direction() {
    let mut count = 0;
    for library in LIBRARIES {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{library}/src"));
        let arrows = arrows(&files(&src, &src));
        count += arrows.values().map(BTreeMap::len).sum::<usize>();
        let known = KNOWN.iter().filter(|(of, _)| *of == library);
        let known: BTreeSet<Names> = known
            .map(|(_, modules)| modules.iter().map(|name| name.to_string()).collect())
            .collect();
        let found = circles(&arrows);
        if let Some(circle) = found.difference(&known).next() {
            let mut within = Vec::new();
            for from in circle {
                let to = arrows[from].iter().filter(|(to, _)| circle.contains(*to));
                within.extend(to.map(|(to, file)| format!("{from} -> {to} by src/{file}")));
            }
            panic!("{library}: a new circle\n{}", within.join("\n"));
        }
        if let Some(circle) = known.difference(&found).next() {
            panic!("{library}: no circle any more: {circle:?}");
        }
    }
    assert!(count > 200, "{count} arrows");
}

#[test]
fn a_circle_is_found_and_nothing_else() {
    let circles_of = |files: &[(&str, &str)]| {
        let owned = files
            .iter()
            .map(|(name, text)| (name.to_string(), text.to_string()));
        let all = circles(&arrows(&owned.collect::<Vec<_>>())).into_iter();
        all.map(|circle| Vec::from_iter(circle).join(" "))
            .collect::<Vec<_>>()
    };
    let base = (
        "a.rs",
        "use std::fmt; use crate::b::{self, c::{X as Y, Z}};",
    );
    let b = ("b/mod.rs", "mod c; pub struct X;");
    // Each of these leads from b to a.
    for text in [
        "use super::super::a::Z;",
        "use super::{super::a, Y as X};",
        "use crate::{b::X as Y, a::*};",
        "fn f(x: Vec<crate::a::Z>) -> u8 { '\\'' }",
        "fn f<'a>(s: &'a str) { g('\"', r#\"\"\"#, crate::a::h::<u8>()) }",
        "mod inner { use super::super::super::a; }",
        "pub(in crate::b) fn f() { \"//\"; super::super::a::g() }",
    ] {
        let found = circles_of(&[base, b, ("b/c.rs", text)]);
        assert_eq!(found, ["a b"], "{text}");
    }
    // And these do not.
    for text in [
        "// use crate::a;\n/* /* */ crate::a::f() */",
        "/// [`X`](crate::a::X)\nfn f() { \"crate::a::f \\\" crate::a::g\" }",
        "fn f() { r##\"\"# crate::a::f\"## }",
        "#[cfg(test)] mod tests { fn f() { { crate::a::f() } } }",
        "use super::a; mod inner { use super::super::a; }",
        "pub(crate) struct A; fn f() { self::a::g() }",
    ] {
        let found = circles_of(&[base, b, ("b/c.rs", text)]);
        assert!(found.is_empty(), "{text}: {found:?}");
    }
    let tests = ("b/tests.rs", "use crate::a::X;");
    assert!(circles_of(&[base, b, tests]).is_empty());
    let lib = ("lib.rs", "mod a; mod b; pub use a::X;");
    assert!(circles_of(&[lib, base, b]).is_empty());
    let long = [("a.rs", "crate::b::f();"), ("b.rs", "crate::c::f();")];
    let ends = [("c.rs", "crate::a::f();"), ("d.rs", "crate::a::f();")];
    assert_eq!(circles_of(&[long, ends].concat()), ["a b c"]);
}
