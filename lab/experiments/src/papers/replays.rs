// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What no document has: which allocator of I/O addresses costs how many misses, walk reads and
//! page tables.
//!
//! A trace's maps and unmaps are replayed under every allocator of the registry, strict, and its
//! accesses move along, through a software unit with the IOTLB of WIOSCA'10's baseline and walk
//! caches of 8 entries a level ([`replay`] has the rules). What changes from row to row is only
//! where buffers lie in the I/O address space. Traces are those of today's kernel: what its own
//! allocator did is replaced anyway.
//!
//! What ATC'15 says of page tables is judged on it, since the paper gives no numbers for most
//! allocators.

use super::{
    About, Found, Made, Parameter, Runs, Shown, Statement, Verdict,
    wiosca10::{
        iotlb as baseline,
        workload::{TODAY, Workload, all},
    },
};
use crate::replay::{Probe, replay};
use crate::report::systems::iotlb;
use ioatlas_dma::design::{Design, allocators};
use ioatlas_iotlb::Geometry;
use ioatlas_present::{
    Cell, Tag,
    plot::{Bars, Drawing, Plot, Scale},
};
use ioatlas_sim::timing::params::Origin;

/// The only size of page tables here, in KiB.
const FRAME_KIB: u64 = 4;

/// Entries of a walk cache, as the replay's unit has them.
const WALK_CACHE: u64 = 8;

/// A trace under an allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    accesses: u64,
    misses: u64,
    walk_reads: u64,
    frames: u64,
    skipped: u64,
}

/// A trace under every allocator.
struct Table {
    workload: &'static Workload,
    rows: Vec<(&'static str, Counts)>,
}

impl Table {
    fn of(&self, allocator: &str) -> Counts {
        let found = self.rows.iter().find(|(name, _)| *name == allocator);
        found.map(|(_, counts)| *counts).unwrap_or_default()
    }

    fn frames(&self, allocator: &str) -> f64 {
        self.of(allocator).frames as f64
    }

    /// Its page tables over the fewest that any allocator needs.
    fn over_fewest(&self, allocator: &str) -> f64 {
        let fewest = self.rows.iter().map(|(_, counts)| counts.frames).min();
        self.frames(allocator) / fewest.unwrap_or(1).max(1) as f64
    }
}

pub(super) struct Replays;

impl Runs for Replays {
    fn about(&self) -> About {
        About {
            paper: "No paper",
            exhibit: "replay",
            title: "Misses, walk reads and page tables by IOVA allocator",
            claim: "No document has measured which allocator costs how many misses. Of page tables, ATC'15 says which allocators need few.",
        }
    }

    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        let mut tables = Vec::new();
        for workload in all() {
            let recorded = workload.today.load().map_err(|error| error.to_string())?;
            let mut rows = Vec::new();
            for allocator in allocators() {
                progress(&format!("{} under {}", workload.name, allocator.name));
                let design = Design::parse(&format!("{},strict", allocator.name));
                let design = design.map_err(|error| error.to_string())?;
                let replayed = replay(
                    &recorded.trace,
                    design,
                    iotlb(Geometry::default()),
                    Probe::Off,
                )?;
                let counts = Counts {
                    accesses: replayed.oracle.accesses,
                    misses: replayed.misses,
                    walk_reads: replayed.walk_reads,
                    frames: replayed.table_kib / FRAME_KIB,
                    skipped: replayed.anomalies + replayed.limited,
                };
                rows.push((allocator.name, counts));
            }
            tables.push(Table { workload, rows });
        }
        let made = Made::new(self.about(), statements(&tables), show(&tables));
        let mut parameters = baseline();
        parameters.push(Parameter::new(
            "walk caches: replay",
            "entries of a level",
            (Cell::count(WALK_CACHE), "entries"),
            Origin::Free,
            "no source says",
        ));
        Ok(made.with(parameters))
    }
}

fn statements(tables: &[Table]) -> Vec<Statement> {
    let found = |verdict: &dyn Fn(&Table) -> Verdict, reason: &dyn Fn(&Table) -> String| {
        let reasons: Vec<String> = tables
            .iter()
            .map(|table| format!("{}: {}", table.workload.name, reason(table)))
            .collect();
        let verdict = Verdict::all(tables.iter().map(verdict));
        vec![Found::new(TODAY, verdict.because(reasons.join("; ")))]
    };
    let times = |table: &Table, name: &str| table.frames(name) / table.frames("rbtree").max(1.0);
    vec![
        Statement {
            says: "EiovaR and magazines keep the memory of page tables minimal, by packing addresses (ATC'15 6).".into(),
            theirs: "minimal",
            rule: "on every trace neither needs more than 1.25 times the fewest tables of any allocator; weak: 2 times".into(),
            found: found(
                &|table| {
                    let most = table
                        .over_fewest("eiovar")
                        .max(table.over_fewest("magazine"));
                    Verdict::at_most(most, 1.25, 2.0)
                },
                &|table| {
                    format!(
                        "{:.2} and {:.2} times",
                        table.over_fewest("eiovar"),
                        table.over_fewest("magazine")
                    )
                },
            ),
        },
        Statement {
            says: "Identity mappings may need more memory for page tables, since physical addresses are not packed (ATC'15 4.1).".into(),
            theirs: "more",
            rule: "on every trace at least 1.5 times as many tables as under the tree of Linux; weak: more".into(),
            found: found(
                &|table| Verdict::at_least(times(table, "identity"), 1.5, 1.0 + f64::EPSILON),
                &|table| format!("{:.1} times", times(table, "identity")),
            ),
        },
        Statement {
            says: "Vmem does not keep page tables few, in contrast to the allocator of Linux (ATC'15 7).".into(),
            theirs: "not minimal",
            rule: "on every trace at least 1.25 times as many tables as under the tree of Linux; weak: more".into(),
            found: found(
                &|table| Verdict::at_least(times(table, "vmem"), 1.25, 1.0 + f64::EPSILON),
                &|table| format!("{:.2} times", times(table, "vmem")),
            ),
        },
    ]
}

fn show(tables: &[Table]) -> Shown {
    let columns = [
        ("trace", None),
        ("allocator", None),
        ("accesses", Some(Tag::Counted)),
        ("misses", Some(Tag::Simulated)),
        ("miss rate, %", Some(Tag::Simulated)),
        ("misses against rbtree, %", Some(Tag::Simulated)),
        ("walk reads", Some(Tag::Simulated)),
        ("reads a miss", Some(Tag::Simulated)),
        ("page-table frames, at most", Some(Tag::Counted)),
        ("lines skipped", Some(Tag::Counted)),
    ];
    let mut rows = Vec::new();
    let mut plots = Vec::new();
    for table in tables {
        let tree = table.of("rbtree").misses;
        for (allocator, counts) in &table.rows {
            let part = |of: u64, whole: u64| of as f64 / whole.max(1) as f64;
            rows.push(vec![
                table.workload.title.into(),
                (*allocator).into(),
                Cell::count(counts.accesses),
                Cell::count(counts.misses),
                Cell::Number(part(counts.misses, counts.accesses) * 100.0),
                Cell::Number((part(counts.misses, tree) - 1.0) * 100.0),
                Cell::count(counts.walk_reads),
                Cell::Number(part(counts.walk_reads, counts.misses)),
                Cell::count(counts.frames),
                Cell::count(counts.skipped),
            ]);
        }
        plots.push(plot(table));
    }
    Shown {
        plots,
        notes: vec![
            "Each trace of today's kernel is replayed: the same maps and unmaps in the same order, by one CPU, strict, at the addresses that the allocator gives, with tables freed by Linux's rule; accesses move along, by their offset in the mapping. IOTLB: 32 entries in 2 ways; walk caches: 8 entries for each of three levels. Timing does not change, as it would on a machine."
                .into(),
            "Not in a paper, to our knowledge. A stream that touches each page for one transfer misses on it wherever it lies; what an allocator changes is whether pages share sets, and how many tables a walk passes."
                .into(),
        ],
        ..Shown::table(columns, rows)
    }
}

/// Misses, walk reads and frames of each allocator, over those of the tree.
fn plot(table: &Table) -> Plot {
    let tree = table.of("rbtree");
    let over = |which: fn(&Counts) -> u64| {
        let of = |(_, counts): &(&str, Counts)| {
            Some(which(counts) as f64 * 100.0 / which(&tree).max(1) as f64)
        };
        table.rows.iter().map(of).collect::<Vec<Option<f64>>>()
    };
    let bars = Bars {
        groups: table
            .rows
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        ..Bars::default()
    };
    let bars = bars
        .with("misses", over(|counts| counts.misses))
        .with("walk reads", over(|counts| counts.walk_reads))
        .with("page-table frames", over(|counts| counts.frames));
    Plot {
        suffix: format!("-{}", table.workload.name),
        title: format!("{}: each allocator against rbtree", table.workload.title),
        tag: Tag::Simulated,
        x: Scale::linear("of what rbtree has (%)", 0.0, bars.highest() * 1.08),
        y: Scale::names("allocator"),
        drawing: Drawing::Bars(bars),
        theirs: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::wiosca10::workload::E1000;

    fn verdicts(frames: [(&'static str, u64); 5]) -> Vec<Verdict> {
        let row = |(name, frames)| {
            let counts = Counts {
                frames,
                ..Counts::default()
            };
            (name, counts)
        };
        let table = Table {
            workload: &E1000,
            rows: frames.map(row).to_vec(),
        };
        let all = statements(&[table]);
        all.iter().filter_map(|s| s.found[0].verdict).collect()
    }

    #[test]
    fn verdicts_follow_from_frames() {
        use Verdict::{Not, Reproduced, Weak};
        let frames = |[tree, eiovar, magazine, identity, vmem]: [u64; 5]| {
            [
                ("rbtree", tree),
                ("eiovar", eiovar),
                ("magazine", magazine),
                ("identity", identity),
                ("vmem", vmem),
            ]
        };
        assert_eq!(verdicts(frames([8, 8, 8, 40, 12])), [Reproduced; 3]);
        assert_eq!(verdicts(frames([10, 8, 12, 12, 11])), [Weak; 3]);
        assert_eq!(verdicts(frames([10, 30, 10, 10, 9])), [Not; 3]);
    }

    #[test]
    fn the_verdicts_on_the_bundled_traces_are_these_and_nothing_is_skipped() {
        use Verdict::{Not, Reproduced, Weak};
        let made = Replays.make(&|_| ()).unwrap();
        let verdicts: Vec<Verdict> = made
            .statements
            .iter()
            .filter_map(|statement| statement.found[0].verdict)
            .collect();
        assert_eq!(verdicts, [Weak, Reproduced, Not], "{:#?}", made.statements);
        let skipped = made.shown.table.rows.iter().filter_map(|row| row.last());
        assert!(skipped.clone().count() >= 24);
        assert!(skipped.into_iter().all(|cell| *cell == Cell::count(0)));
    }
}
