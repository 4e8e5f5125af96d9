// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Table 1: the designs of systems. What the registry has for each, and its complexity by counted
//! steps.
//!
//! The aperture is filled with N ranges of mixed sizes, then [`TURNS`] times a random one is given
//! back and another of random size allocated. A *step* is one look at a node of a tree, or at a
//! segment or list, as `Backing::nodes_visited` counts; the figure is steps an allocation, no time.
//! The class follows from how it grows over [`SIZES`]: see [`Class::of`].

use super::{
    super::{About, Experiment, Found, Parameter, Shown, Statement, Verdict, random::Random},
    about,
};
use crate::stated::Kind;
use ioatlas_dma::{
    design::{Design, Preset, presets},
    domain::{AllocatorConfig, Exposure},
    iova::{Backing, backing::Refill},
    units::{IovaPage, IovaRange, PageCount},
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_present::{Cell, Tag};
use ioatlas_sim::timing::params::Origin;
use std::cmp::Ordering;

/// Numbers of ranges in use.
const SIZES: [usize; 4] = [256, 1024, 4096, 16_384];
/// Ranges replaced, at each size.
const TURNS: usize = 2000;
/// Pages of a range: drawn from these.
const PAGES: [u64; 4] = [1, 2, 4, 8];
/// 2^36 pages: 48-bit IOVAs.
const APERTURE: IovaRange = IovaRange {
    first: IovaPage(0),
    pages: PageCount(1 << 36),
};

/// How steps grow with the number of ranges in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Constant,
    Logarithmic,
    Between,
    Linear,
}

impl Class {
    /// By the growth from the smallest size to the largest, which is 64-fold: constant up to 1.25
    /// times, logarithmic up to 4 times (the logarithm itself grows 1.75 times), linear from 16
    /// times on, else between.
    fn of(steps: &[f64]) -> Self {
        let first = steps.first().copied().unwrap_or(0.0);
        let last = steps.last().copied().unwrap_or(0.0);
        // a look is the least that an allocation takes, whatever is counted
        let growth = last.max(1.0) / first.max(1.0);
        match growth {
            growth if growth <= 1.25 => Class::Constant,
            growth if growth <= 4.0 => Class::Logarithmic,
            growth if growth < 16.0 => Class::Between,
            _ => Class::Linear,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Class::Constant => "constant",
            Class::Logarithmic => "logarithmic",
            Class::Between => "between logarithmic and linear",
            Class::Linear => "linear",
        }
    }
}

/// How long a page stays reachable, in the paper's three kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    None,
    Bounded,
    Unbounded,
}

impl Window {
    fn of(preset: &Preset) -> Self {
        match preset.design.domain.policy.exposure(1) {
            Exposure::None => Window::None,
            Exposure::Bounded { .. } => Window::Bounded,
            Exposure::Unbounded => Window::Unbounded,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Window::None => "none",
            Window::Bounded => "bounded",
            Window::Unbounded => "unbounded",
        }
    }
}

/// What the paper says of a system: its preset here, the allocator, its class, when it invalidates,
/// and how long pages are reachable.
const THEIRS: [(&str, &str, Class, &str, Window); 4] = [
    (
        "linux-3.17",
        "red-black tree, linear traversals",
        Class::Linear,
        "batched, 250 or 10 ms",
        Window::Bounded,
    ),
    (
        "freebsd",
        "red-black tree, usually logarithmic",
        Class::Logarithmic,
        "in each unmap, waited for",
        Window::None,
    ),
    (
        "solaris",
        "Vmem, constant time",
        Class::Constant,
        "none at unmap; at map",
        Window::Unbounded,
    ),
    (
        "macos",
        "buddy up to 512 MB, tree above, both logarithmic",
        Class::Logarithmic,
        "queued at unmap, not waited for",
        Window::Bounded,
    ),
];

/// A system of ours.
#[derive(Clone, Debug)]
pub(super) struct Row {
    title: &'static str,
    theirs: (&'static str, Class, &'static str, Window),
    allocator: &'static str,
    policy: &'static str,
    window: Window,
    /// Steps an allocation, by [`SIZES`].
    steps: Vec<f64>,
}

pub(super) struct Table1;

/// Where it is seen.
const COUNTED: &str = "steps counted";

impl Experiment for Table1 {
    type Data = Vec<Row>;
    const ABOUT: About = about(
        "table 1",
        "IOMMU management of systems",
        "Linux 3.17 searches linearly where its cached node fails, and defers flushes; FreeBSD usually finds a range in logarithmic time, and \
         is alone in waiting for each; Solaris allocates in constant time, and leaves unmapped pages reachable without bound; Mac OS X is \
         logarithmic, and does not wait (3.1, 3.2, 3.4).",
    );

    fn run(&self, progress: &dyn Fn(&str)) -> Result<Vec<Row>, String> {
        let row = |(name, allocator, class, when, window): &(&str, _, _, _, _)| {
            progress(name);
            let preset = presets().find(|preset| preset.name == *name);
            let preset = preset.ok_or_else(|| format!("no preset {name}"))?;
            row(&preset, (*allocator, *class, *when, *window))
        };
        THEIRS.iter().map(row).collect()
    }

    fn judge(rows: &Vec<Row>) -> Vec<Statement> {
        let statements = rows.iter().flat_map(|row| {
            let (allocator, theirs, _, window) = row.theirs;
            let ours = Class::of(&row.steps);
            let verdict = match ours.cmp(&theirs) {
                Ordering::Equal => Verdict::Reproduced,
                Ordering::Less => Verdict::Weak,
                Ordering::Greater => Verdict::Not,
            };
            let end = |step: Option<&f64>| step.copied().unwrap_or(0.0);
            let (from, to) = (end(row.steps.first()), end(row.steps.last()));
            let found = Found::new(
                COUNTED,
                verdict.because(format!("{}: {from:.1} to {to:.1} steps", ours.name())),
            );
            let same = match row.window == window {
                true => Verdict::Reproduced,
                false => Verdict::Not,
            };
            // a policy is built from the description
            let built = Found::of(COUNTED, Kind::Input, same.because(row.window.name()));
            [
                Statement {
                    says: format!("{}: {allocator} (3.1, 3.4).", row.title).into(),
                    theirs: theirs.name(),
                    rule: format!(
                        "steps grow so from {} ranges in use to {}; weak: they grow less",
                        SIZES[0],
                        SIZES[SIZES.len() - 1]
                    )
                    .into(),
                    found: vec![found],
                },
                Statement {
                    says: format!(
                        "{}: how long an unmapped page is reachable (3.2, 3.4).",
                        row.title
                    )
                    .into(),
                    theirs: window.name(),
                    rule: "it is so by construction".into(),
                    found: vec![built],
                },
            ]
        });
        statements.collect()
    }

    fn parameters() -> Vec<Parameter> {
        const MODEL: &str = "ranges in use: ATC'15, table 1";
        let list = |all: &[u64]| {
            let all: Vec<String> = all.iter().map(u64::to_string).collect();
            Cell::from(all.join(", "))
        };
        let free = |name, value, why| Parameter::new(MODEL, name, value, Origin::Free, why);
        let sizes = SIZES.map(|size| size as u64);
        let aperture = (Cell::count(APERTURE.pages.0), "pages");
        vec![
            free(
                "ranges in use",
                (list(&sizes), ""),
                "64-fold, to tell classes apart",
            ),
            free("pages of a range", (list(&PAGES), "pages"), "drawn evenly"),
            free(
                "ranges replaced",
                (Cell::count(TURNS as u64), ""),
                "enough for a mean",
            ),
            Parameter::new(
                MODEL,
                "aperture",
                aperture,
                Origin::Published,
                "ATC'15 4.2: 48 bits",
            ),
        ]
    }

    fn show(rows: &Vec<Row>) -> Shown {
        let theirs = Some(Tag::Assumed);
        let mut columns = vec![
            ("system".to_owned(), None),
            ("IOVA allocator, theirs".into(), theirs),
            ("ours".into(), None),
            ("class, theirs".into(), theirs),
            ("ours".into(), Some(Tag::Counted)),
        ];
        let steps = |size| (format!("steps with {size} ranges"), Some(Tag::Counted));
        columns.extend(SIZES.map(steps));
        columns.extend([
            ("invalidation, theirs".into(), theirs),
            ("ours".into(), None),
            ("exposure, ours".into(), None),
        ]);
        let row = |row: &Row| {
            let (allocator, class, when, _) = row.theirs;
            let mut cells: Vec<Cell> = vec![
                row.title.into(),
                allocator.into(),
                row.allocator.into(),
                class.name().into(),
                Class::of(&row.steps).name().into(),
            ];
            cells.extend(row.steps.iter().map(|steps| Cell::Number(*steps)));
            cells.extend([when, row.policy, row.window.name()].map(Cell::from));
            cells
        };
        Shown {
            notes: vec![
                format!(
                    "Steps: looks at nodes, segments or lists an allocation, counted over {TURNS} random replacements of ranges of 1, 2, 4 or 8 \
                     pages. Growth from {} to {} ranges, 64-fold: up to 1.25 times is called constant, up to 4 logarithmic, 16 and more linear.",
                    SIZES[0],
                    SIZES[SIZES.len() - 1]
                ),
                "The designs are as implemented here from the paper's description, not the systems' code. The table itself is not in our copy of the \
                 paper; theirs is what its text says."
                    .into(),
                "A buddy allocator searches orders, of which there are as many however many ranges are in use: logarithmic in the size of the space."
                    .into(),
            ],
            ..Shown::table(columns, rows.iter().map(row))
        }
    }
}

fn row(
    preset: &Preset,
    theirs: (&'static str, Class, &'static str, Window),
) -> Result<Row, String> {
    let Design { domain, .. } = preset.design;
    Ok(Row {
        title: preset.title,
        theirs,
        allocator: domain.allocator.name(),
        policy: domain.policy.name(),
        window: Window::of(preset),
        steps: SIZES
            .iter()
            .map(|size| steps(domain.allocator, *size))
            .collect::<Result<_, _>>()?,
    })
}

/// Steps an allocation while `size` ranges are in use.
fn steps(allocator: AllocatorConfig, size: usize) -> Result<f64, String> {
    let AllocatorConfig::Plain(config) = allocator else {
        return Err(format!("{} counts no steps", allocator.name()));
    };
    let host = Host::new(HostConfig::default().frames(0).slots(1));
    let backing: Backing<Host> = Backing::new(&host, config, APERTURE);
    let mut random = Random::new(size as u64);
    let alloc = |random: &mut Random| {
        let pages = PAGES[random.below(PAGES.len())];
        backing
            .alloc_run(PageCount(pages), 1)
            .map_err(|error| error.to_string())
    };
    let mut held = Vec::with_capacity(size);
    for _ in 0..size {
        held.push(alloc(&mut random)?);
    }
    let before = backing.nodes_visited();
    for _ in 0..TURNS {
        let at = random.below(size);
        backing.free_all(std::iter::once(held[at]));
        held[at] = alloc(&mut random)?;
    }
    Ok((backing.nodes_visited() - before) as f64 / TURNS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the paper's four, with these steps.
    fn rows(steps: [[f64; 2]; 4]) -> Vec<Row> {
        let row = |(theirs, steps): (
            &(&'static str, &'static str, Class, &'static str, Window),
            [f64; 2],
        )| Row {
            title: theirs.0,
            theirs: (theirs.1, theirs.2, theirs.3, theirs.4),
            allocator: "a",
            policy: "p",
            window: theirs.4,
            steps: steps.into(),
        };
        THEIRS.iter().zip(steps).map(row).collect()
    }

    #[test]
    fn classes_follow_from_growth() {
        for (steps, class) in [
            ([1.0, 1.2], Class::Constant),
            ([0.0, 0.0], Class::Constant),
            ([8.0, 14.0], Class::Logarithmic),
            ([10.0, 90.0], Class::Between),
            ([100.0, 5000.0], Class::Linear),
        ] {
            assert_eq!(Class::of(&steps), class, "{steps:?}");
        }
    }

    #[test]
    fn verdicts_follow_from_steps_and_what_is_built_so_has_none() {
        use Verdict::{Not, Reproduced, Weak};
        let verdicts = |steps| -> Vec<Option<Verdict>> {
            let all = Table1::judge(&rows(steps));
            all.iter()
                .map(|statement| statement.found[0].verdict)
                .collect()
        };
        let as_said = [[100.0, 6000.0], [8.0, 14.0], [1.0, 1.0], [3.0, 5.0]];
        let of = |all: [Verdict; 4]| all.map(|verdict| [Some(verdict), None]).concat();
        assert_eq!(verdicts(as_said), of([Reproduced; 4]));
        let mut others = as_said;
        (others[2], others[3]) = ([1.0, 60.0], [3.0, 3.0]);
        assert_eq!(verdicts(others), of([Reproduced, Reproduced, Not, Weak]));
    }

    #[test]
    fn each_system_leaves_pages_reachable_as_the_paper_describes() {
        for (name, .., theirs) in THEIRS {
            let preset = presets().find(|preset| preset.name == name).unwrap();
            assert_eq!(Window::of(&preset), theirs, "{name}");
        }
    }

    #[test]
    fn steps_are_counted_and_not_timed() {
        let linux = presets().next().unwrap().design.domain.allocator;
        assert_eq!(steps(linux, 256), steps(linux, 256));
        assert!(steps(linux, 1024).unwrap() > 1.0);
    }
}
