// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is published can be packaged, and says in its package what it is. That it compiles there is
//! seen to by `ci/package.sh`.

use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What cargo knows of the workspace.
#[derive(Deserialize)]
struct Workspace {
    packages: Vec<Member>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Member {
    name: String,
    /// The registries that it may go to: any, if there is no list.
    publish: Option<Vec<String>>,
    manifest_path: PathBuf,
    description: Option<String>,
    readme: Option<PathBuf>,
    keywords: Vec<String>,
    categories: Vec<String>,
    dependencies: Vec<Dependency>,
    features: HashMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Its version, `*` if none is given.
    req: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

impl Member {
    fn is_published(&self) -> bool {
        self.publish.is_none()
    }

    /// Its dependencies in the workspace that are in its package: cargo leaves out those of tests
    /// that have no version.
    fn packaged(&self) -> impl Iterator<Item = &Dependency> {
        let left_out = |d: &Dependency| d.kind.as_deref() == Some("dev") && d.req == "*";
        let ours = self.dependencies.iter().filter(|d| d.path.is_some());
        ours.filter(move |d| !left_out(d))
    }
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What keeps published members from being packaged, or from being found and understood.
fn faults(metadata: Value) -> Vec<String> {
    let Workspace {
        packages,
        workspace_root,
    } = serde_json::from_value(metadata).unwrap();
    let members = packages.iter().map(|m| (m.name.as_str(), m));
    let members: HashMap<&str, &Member> = members.collect();
    let published = packages.iter().filter(|m| m.is_published());
    assert!(published.clone().count() > 5);
    published
        .flat_map(|member| {
            let mut faults = undescribed(member, &workspace_root);
            faults.extend(missing_in_front(member));
            faults.extend(not_to_be_had(member, &members));
            let name = &member.name;
            faults
                .into_iter()
                .map(move |fault| format!("{name}: {fault}"))
        })
        .collect()
}

/// What a registry demands of a package, or people look for in it, and is not there.
fn undescribed(member: &Member, root: &Path) -> Vec<String> {
    let folder = member.manifest_path.parent().unwrap();
    let readme = member.readme.as_ref();
    let readme = readme.and_then(|file| fs::read_to_string(folder.join(file)).ok());
    let title = format!("# {}\n", member.name);
    let is_licence = |file| {
        let text = fs::read(root.join(file)).unwrap();
        fs::read(folder.join(file)).is_ok_and(|there| there == text)
    };
    // as a registry counts them
    let few = |words: &[String]| (1..=5).contains(&words.len());
    let short = |word: &String| word.len() <= 20;
    let keywords = few(&member.keywords) && member.keywords.iter().all(short);
    let demands = [
        ("description", member.description.is_some()),
        ("keywords", keywords),
        ("categories", few(&member.categories)),
        (
            "README",
            readme.is_some_and(|text| text.starts_with(&title)),
        ),
        ("LICENSE-APACHE", is_licence("LICENSE-APACHE")),
        ("LICENSE-BSD-3-Clause", is_licence("LICENSE-BSD-3-Clause")),
    ];
    let missing = demands.into_iter().filter(|(_, is_there)| !is_there);
    missing.map(|(what, _)| what.to_owned()).collect()
}

/// What the front page of its documentation does not have: a first program, a picture of its
/// layers, its features.
fn missing_in_front(member: &Member) -> Vec<String> {
    let folder = member.manifest_path.parent().unwrap();
    let library = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
    let mut page = match library.contains("#![doc = include_str!(\"../README.md\")]") {
        true => fs::read_to_string(folder.join("README.md")).unwrap(),
        false => String::new(),
    };
    for line in library.lines().filter_map(|line| line.strip_prefix("//!")) {
        page.push_str(line.trim_start());
        page.push('\n');
    }
    // a block without a language is a program, too
    let blocks = || page.split("```").skip(1).step_by(2);
    let is_program = |block: &str| block.starts_with("rust") || block.starts_with('\n');
    let mut missing = Vec::new();
    if !blocks().any(is_program) {
        missing.push("no program in front".into());
    }
    if !blocks().any(|block| block.starts_with("text\n")) {
        missing.push("no picture in front".into());
    }
    let features = member.features.keys();
    let unnamed = features.filter(|name| !page.contains(&format!("`{name}`")));
    missing.extend(unnamed.map(|name| format!("{name} is not named in front")));
    missing
}

/// Dependencies that the package could not have.
fn not_to_be_had(member: &Member, members: &HashMap<&str, &Member>) -> Vec<String> {
    let mut faults = Vec::new();
    for used in member.packaged() {
        let name = &used.name;
        if !members[name.as_str()].is_published() {
            faults.push(format!("{name} is not published"));
        }
        if used.req == "*" {
            faults.push(format!("{name} has no version"));
        }
        let mut seen = HashSet::new();
        let mut next = vec![name.as_str()];
        while let Some(at) = next.pop() {
            if seen.insert(at) {
                next.extend(members[at].packaged().map(|d| d.name.as_str()));
            }
        }
        // one of the two has to be published first
        if seen.contains(member.name.as_str()) {
            faults.push(format!("{name} uses it"));
        }
    }
    faults
}

#[test]
fn what_is_published_can_be_packaged() {
    let faults = faults(metadata());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_cannot_be_packaged_is_found() {
    let elsewhere = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    // of a member, or of a dependency of it
    let changes = [
        ("vtd", "", "description", Value::Null, "vtd: description"),
        ("vtd", "", "keywords", json!([]), "vtd: keywords"),
        (
            "vtd",
            "",
            "keywords",
            json!(["x".repeat(21)]),
            "vtd: keywords",
        ),
        ("vtd", "", "categories", json!([]), "vtd: categories"),
        ("vtd", "", "readme", json!("Cargo.toml"), "vtd: README"),
        (
            "vtd",
            "",
            "manifest_path",
            json!(elsewhere),
            "vtd: LICENSE-APACHE",
        ),
        (
            "vhost",
            "",
            "features",
            json!({"baselines": [], "hidden": []}),
            "vhost: hidden is not named in front",
        ),
        (
            "vtd",
            "",
            "manifest_path",
            json!(elsewhere),
            "vtd: no picture in front",
        ),
        (
            "dma",
            "",
            "publish",
            json!([]),
            "vtd: ioatlas-dma is not published",
        ),
        (
            "vtd",
            "dma",
            "req",
            json!("*"),
            "vtd: ioatlas-dma has no version",
        ),
        (
            "dma",
            "host",
            "req",
            json!("^0.2.0"),
            "dma: ioatlas-host uses it",
        ),
    ];
    for (member, used, field, value, fault) in changes {
        let mut metadata = metadata();
        let mut changed = named(&mut metadata["packages"], member);
        if !used.is_empty() {
            changed = named(&mut changed["dependencies"], used);
        }
        changed[field] = value;
        let fault = format!("ioatlas-{fault}");
        let faults = faults(metadata);
        assert!(faults.contains(&fault), "{fault}: {faults:?}");
    }
}

/// The one of `list` that has this name.
fn named<'l>(list: &'l mut Value, name: &str) -> &'l mut Value {
    let name = format!("ioatlas-{name}");
    let mut list = list.as_array_mut().unwrap().iter_mut();
    list.find(|one| one["name"] == *name).unwrap()
}
