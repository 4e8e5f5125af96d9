// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the paper says of all workloads together: sections 4.7, 4.9, 5 and 6, and the abstract.
//!
//! Each statement is judged on each workload, and holds as far as all agree ([`Verdict::all`]).
//! Reductions are parts of the baseline's misses.

use super::{
    About, Found, Made, Runs, Shown, Statement, Verdict, about, iotlb, percent,
    strategies::{Configuration, ROOM, Results, results},
    workload::PAPER,
};
use crate::stated::{Compared, Stated};
use ioatlas_present::{
    Cell, Tag,
    plot::{At, Bars, Drawing, Plot, Scale, Theirs},
};

/// What the conclusions call software: ALH, descending order, offsetting.
const SOFTWARE: &str = "alh+of+descending";
/// And with simple changes of hardware: mapping prefetch and a larger buffer.
const HARDWARE: &str = "alh+of+descending+mpre+8-prefetch";
/// The same, single direction.
const HARDWARE_SINGLE: &str = "sd-alh+of+descending+mpre+8-prefetch";

/// A part of the misses, or another number below 1.
type Part = fn(&Results) -> f64;

/// A statement, and how it is judged on one workload: the verdict, and the numbers.
struct Claim {
    says: &'static str,
    theirs: &'static str,
    rule: &'static str,
    judge: fn(&Results) -> (Verdict, String),
    /// The paper's number in percent, if it has one, and ours.
    stated: Option<(Stated, Part)>,
}

/// What the best saves, in percent.
const OVER_60: Stated = Stated::range(60.0, 100.0);
/// What software saves.
const SOFTWARE_SAVES: Stated = Stated::number(50.0);
/// Of the baseline.
const MISS_RATE: Stated = Stated::number(32.0);

/// In the order of the paper's sections.
const SAYINGS: [Claim; 8] = [
    Claim {
        says: "These enhancements reduce the IOTLB miss rate by over 60 % for common I/O intensive workloads (abstract).",
        theirs: "over 60 %",
        rule: "on every workload the best configuration saves 60 % of the misses; weak: 45 %",
        judge: |results| {
            let (name, saved) = results.best();
            (
                Verdict::at_least(saved, 0.6, 0.45),
                format!("{} ({name})", percent(saved)),
            )
        },
        stated: Some((OVER_60, |results| results.best().1)),
    },
    Claim {
        says: "More entries or ways bring relatively little (4.9).",
        theirs: "relatively little",
        rule: "on every workload neither twice the entries nor twice the ways saves more than 10 % of the misses; weak: 20 %",
        judge: |results| {
            let [entries, ways] = results.saved_by_size();
            (
                Verdict::at_most(entries.max(ways), 0.1, 0.2),
                format!(
                    "{} by 64 entries, {} by 4 ways",
                    percent(entries),
                    percent(ways)
                ),
            )
        },
        stated: None,
    },
    Claim {
        says: "MPRE makes a negligible number of unnecessary prefetches (4.7).",
        theirs: "negligible",
        rule: "on every workload at most 5 % of its prefetches are not used; weak: 25 %",
        judge: |results| {
            let outcome = results.outcome(Configuration::of("mpre"));
            let unused = outcome.prefetches - outcome.useful_prefetches;
            let part = super::share(unused, outcome.prefetches);
            (
                Verdict::at_most(part, 0.05, 0.25),
                format!(
                    "{unused} of {}, {}, but with {ROOM} entries in the buffer {}",
                    outcome.prefetches,
                    percent(part),
                    results.mpre_with_room.prefetches - results.mpre_with_room.useful_prefetches
                ),
            )
        },
        stated: None,
    },
    Claim {
        says: "Features of the chipset and reasonable changes of software easily reduce the miss rate by 30 % (4.9).",
        theirs: "30 %",
        rule: "on every workload ALH, offsetting and descending order together save 30 % of the misses; weak: 15 %",
        judge: |results| {
            let saved = results.saved(SOFTWARE);
            (Verdict::at_least(saved, 0.3, 0.15), percent(saved))
        },
        stated: Some((Stated::number(30.0), |results| results.saved(SOFTWARE))),
    },
    Claim {
        says: "Simple changes of hardware reduce it by an additional 20 % (4.9).",
        theirs: "20 % more",
        rule: "on every workload MPRE and 8 entries in the buffer save 20 % of the baseline's misses beyond ALH, offsetting and descending order; weak: 10 %",
        judge: |results| {
            let more = results.saved(HARDWARE) - results.saved(SOFTWARE);
            (
                Verdict::at_least(more, 0.2, 0.1),
                format!(
                    "{} more, to {}",
                    percent(more),
                    percent(results.saved(HARDWARE))
                ),
            )
        },
        stated: Some((Stated::number(20.0), |results| {
            results.saved(HARDWARE) - results.saved(SOFTWARE)
        })),
    },
    Claim {
        says: "The miss rate is 32 %, against less than 5 % of most applications in the TLB of a processor (5).",
        theirs: "32 %",
        rule: "the baseline's miss rate is from 24 to 40 % on every workload: a quarter less or more; weak: from 16 to 64 %, a factor of two",
        judge: |results| {
            let rate = results.miss_rate();
            let verdict = if (0.24..=0.40).contains(&rate) {
                Verdict::Reproduced
            } else if (0.16..=0.64).contains(&rate) {
                Verdict::Weak
            } else {
                Verdict::Not
            };
            (verdict, percent(rate))
        },
        stated: Some((MISS_RATE, Results::miss_rate)),
    },
    Claim {
        says: "ALH, descending order and offsetting, software alone, reduce the miss rate by 50 % (6).",
        theirs: "50 %",
        rule: "on every workload the three together save 50 % of the misses; weak: 25 %",
        judge: |results| {
            let saved = results.saved(SOFTWARE);
            (Verdict::at_least(saved, 0.5, 0.25), percent(saved))
        },
        stated: Some((SOFTWARE_SAVES, |results| results.saved(SOFTWARE))),
    },
    Claim {
        says: "They have no negative side effects that one would expect (6).",
        theirs: "none",
        rule: "on every workload, offsetting and descending order beside ALH raise its misses by at most 5 %; weak: 20 %",
        judge: |results| {
            let ratio = results.ratio(SOFTWARE, "alh");
            (
                Verdict::at_most(ratio, 1.05, 1.2),
                format!("{ratio:.2} times ALH's misses"),
            )
        },
        stated: None,
    },
];

/// Why descending order costs a NIC what it saves a disk.
const WHY: &str = "Descending order has a side effect on the E1000. Its receive buffers are mappings of one or two pages; those of two are aligned, which leaves a free page \
                   above them, and the frames here reach only their first page, the neighbour of the next buffer below. Mirrored, it is the upper page that is accessed, and no \
                   neighbour of it is: those accesses miss as before, and now those of the buffers below miss too.";

pub(super) struct Discussion;

/// A workload's results, a kernel each.
struct Judged {
    name: &'static str,
    results: Vec<Results>,
}

fn statements(all: &[Judged]) -> Vec<Statement> {
    let kernels: Vec<&'static str> = match all.first() {
        Some(first) => first.results.iter().map(|results| results.kernel).collect(),
        None => Vec::new(),
    };
    let found = |claim: &Claim, kernel: &'static str| {
        let judged = all.iter().filter_map(|one| {
            let results = one
                .results
                .iter()
                .find(|results| results.kernel == kernel)?;
            let (verdict, reason) = (claim.judge)(results);
            let compared = claim
                .stated
                .map(|(theirs, ours)| Compared::new(one.name, 100.0 * ours(results), theirs));
            Some(((verdict, format!("{} {reason}", one.name)), compared))
        });
        let (judged, compared): (Vec<(Verdict, String)>, Vec<Option<Compared>>) = judged.unzip();
        let (verdicts, reasons): (Vec<Verdict>, Vec<String>) = judged.into_iter().unzip();
        Found::new(kernel, Verdict::all(verdicts).because(reasons.join("; ")))
            .beside(compared.into_iter().flatten())
    };
    let statement = |claim: &Claim| Statement {
        says: claim.says.into(),
        theirs: claim.theirs,
        rule: claim.rule.into(),
        found: kernels.iter().map(|kernel| found(claim, kernel)).collect(),
    };
    SAYINGS.iter().map(statement).collect()
}

impl Runs for Discussion {
    fn about(&self) -> About {
        about(
            "section 4.9",
            "Discussion and conclusions: what is said of all workloads",
            "The miss rate is 32 %; features and software save 30 %, hardware 20 % more, up to 60 % in all; more entries or ways bring little (abstract, 4.9, 5, 6).",
        )
    }

    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        let mut all = Vec::new();
        for workload in PAPER {
            progress(workload.name);
            all.push(Judged {
                name: workload.name,
                results: results(workload)?,
            });
        }
        let made = Made::new(self.about(), statements(&all), show(&all));
        Ok(made.with(iotlb()))
    }
}

fn show(all: &[Judged]) -> Shown {
    let simulated = Some(Tag::Simulated);
    let columns = [
        ("workload", None),
        ("kernel", None),
        ("miss rate of the baseline, %", simulated),
        (
            "saved by software (ALH, offsetting, descending), %",
            simulated,
        ),
        ("with MPRE and 8 entries besides, %", simulated),
        ("the same in single direction, %", simulated),
        ("best configuration", None),
        ("saved by it, %", simulated),
    ];
    let mut rows = Vec::new();
    let mut bars = Bars::default();
    let mut values: [Vec<Option<f64>>; 4] = Default::default();
    for one in all {
        for results in &one.results {
            let (best, saved) = results.best();
            let numbers =
                [SOFTWARE, HARDWARE, HARDWARE_SINGLE].map(|name| results.saved(name) * 100.0);
            rows.push(vec![
                one.name.into(),
                results.kernel.into(),
                Cell::Number(results.miss_rate() * 100.0),
                Cell::Number(numbers[0]),
                Cell::Number(numbers[1]),
                Cell::Number(numbers[2]),
                best.into(),
                Cell::Number(saved * 100.0),
            ]);
            bars.groups
                .push(format!("{}, {}", one.name, results.kernel));
            let bar = [
                results.saved("alh") * 100.0,
                numbers[0],
                numbers[1],
                saved * 100.0,
            ];
            for (all, value) in values.iter_mut().zip(bar) {
                all.push(Some(value));
            }
        }
    }
    let names = [
        "ALH",
        "ALH+OF+descending",
        "with MPRE and 8-prefetch",
        "the best configuration",
    ];
    for (name, values) in names.into_iter().zip(values) {
        bars = bars.with(name, values);
    }
    Shown {
        plots: vec![Plot {
            suffix: "-savings".into(),
            title: "Misses saved on each workload".into(),
            tag: Tag::Simulated,
            x: Scale::linear("misses saved, of the baseline's (%)", 0.0, 100.0),
            y: Scale::names("workload and kernel"),
            drawing: Drawing::Bars(bars),
            theirs: vec![
                Theirs {
                    name: "ALH, descending and offsetting".into(),
                    series: Some(1),
                    at: At::Across(SOFTWARE_SAVES.ends()),
                },
                Theirs {
                    name: "the best".into(),
                    series: Some(3),
                    at: At::Across(OVER_60.ends()),
                },
            ],
        }],
        notes: vec![
            "Whether the paper's percentages are parts of the misses or points of the miss rate it does not say; here they are parts of the baseline's misses. With points, no saving could \
             be 60, since the miss rate is 32."
                .into(),
            WHY.into(),
        ],
        ..Shown::table(columns, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By statement; on today's kernel, and with its reuse cache off.
    #[test]
    fn the_verdicts_on_the_bundled_traces_are_these() {
        use Verdict::{Not, Reproduced, Weak};
        let made = Discussion.make(&|_| ()).unwrap();
        let pair = |statement: &Statement| [0, 1].map(|nth| statement.found[nth].verdict.unwrap());
        let verdicts: Vec<[Verdict; 2]> = made.statements.iter().map(pair).collect();
        assert_eq!(
            verdicts,
            [
                [Reproduced; 2],
                [Reproduced; 2],
                [Weak, Not],
                [Reproduced; 2],
                [Weak, Not],
                [Reproduced; 2],
                [Weak; 2],
                [Weak; 2],
            ],
            "{:#?}",
            made.statements
        );
    }
}
