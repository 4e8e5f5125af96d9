// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures 8 and 9: how many IOTLB entries are in use, with pages and with superpages.
//!
//! An entry is in use in a window of 1,000 accesses if one of them needs it. The paper evaluates
//! superpages with mappings that buffers share (4.4); our traces have a mapping a buffer, so what
//! is counted is the pages and superpages that the accesses of such mappings touch.

use super::{
    About, Found, Made, Parameter, Runs, Shown, Statement, Verdict, about,
    workload::{E1000, LSI, Workload},
};
use ioatlas_iotlb::{PageSize, Trace, WorkingSet};
use ioatlas_present::{
    Cell, Tag,
    plot::{Drawing, Line, Plot, Scale, Stroke},
};
use ioatlas_sim::timing::params::Origin;

/// A figure of the paper.
pub(super) struct Exhibit {
    about: About,
    workload: &'static Workload,
}

const CLAIM: &str = "Superpages drastically decrease the number of entries that are needed (4.4).";

pub(super) static FIGURES: [Exhibit; 2] = [
    Exhibit {
        about: about(
            "figure 8",
            "Number of IOTLB entries in use: E1000, netperf",
            CLAIM,
        ),
        workload: &E1000,
    },
    Exhibit {
        about: about(
            "figure 9",
            "Number of IOTLB entries in use: SCSI, bonnie++",
            CLAIM,
        ),
        workload: &LSI,
    },
];

/// Entries in use of one trace.
struct InUse {
    kernel: &'static str,
    suffix: &'static str,
    pages: WorkingSet,
    superpages: WorkingSet,
}

impl InUse {
    fn of(kernel: &'static str, suffix: &'static str, trace: &Trace) -> Self {
        let set = |size| WorkingSet::of(trace, size, WorkingSet::WINDOW);
        InUse {
            kernel,
            suffix,
            pages: set(PageSize::Page),
            superpages: set(PageSize::Superpage),
        }
    }

    /// Superpages for a page, on average over the windows.
    fn ratio(&self) -> f64 {
        self.superpages.mean / self.pages.mean.max(1.0)
    }
}

fn statement(all: &[InUse]) -> Statement {
    let found = |one: &InUse| {
        let verdict = Verdict::at_most(one.ratio(), 0.25, 0.5);
        let reason = format!(
            "a window needs {:.1} entries of 4 KiB on average and {} at most, of 2 MiB {:.1} and {}",
            one.pages.mean, one.pages.maximum, one.superpages.mean, one.superpages.maximum
        );
        Found::new(one.kernel, verdict.because(reason))
    };
    Statement {
        says: "Superpages drastically decrease the number of entries needed (4.4).".into(),
        theirs: "drastically",
        rule: "a window of 1,000 accesses needs on average at most a quarter as many superpages as pages; weak: half as many".into(),
        found: all.iter().map(found).collect(),
    }
}

impl Runs for Exhibit {
    fn about(&self) -> About {
        self.about
    }

    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        progress(self.workload.name);
        let recorded = self.workload.load()?;
        let all: Vec<InUse> = recorded
            .iter()
            .map(|one| InUse::of(one.kernel, one.suffix(), &one.trace))
            .collect();
        let made = Made::new(self.about, vec![statement(&all)], self.show(&all));
        Ok(made.with(vec![Parameter::new(
            "entries in use: WIOSCA'10, figures 8 and 9",
            "window",
            (Cell::count(WorkingSet::WINDOW.get() as u64), "accesses"),
            Origin::Free,
            "the paper does not say",
        )]))
    }
}

impl Exhibit {
    fn show(&self, all: &[InUse]) -> Shown {
        let counted = Some(Tag::Counted);
        let columns = [
            ("kernel", None),
            ("entry", None),
            ("in use, on average", counted),
            ("at most", counted),
            ("windows", counted),
        ];
        let row = |one: &InUse, name: &str, set: &WorkingSet| {
            vec![
                one.kernel.into(),
                name.into(),
                Cell::Number(set.mean),
                Cell::count(set.maximum),
                Cell::count(set.windows.len() as u64),
            ]
        };
        let rows = all.iter().flat_map(|one| {
            [
                row(one, "4 KiB", &one.pages),
                row(one, "2 MiB", &one.superpages),
            ]
        });
        Shown {
            plots: all.iter().map(|one| self.plot(one)).collect(),
            notes: vec![
                "An entry is in use in a window of 1,000 consecutive accesses if one of them needs it; the last window may be shorter. Theirs: mappings that \
                 buffers share; ours: a mapping a buffer, so on a real unit superpages also need memory that is contiguous, and protect less."
                    .into(),
            ],
            ..Shown::table(columns, rows)
        }
    }

    fn plot(&self, one: &InUse) -> Plot {
        let line = |name: &str, set: &WorkingSet| Line {
            name: name.into(),
            stroke: Stroke::Numbers,
            points: set
                .windows
                .iter()
                .zip(1u32..)
                .map(|(count, nth)| (f64::from(nth), *count as f64))
                .collect(),
        };
        Plot {
            suffix: one.suffix.into(),
            title: format!(
                "{}, {}: IOTLB entries in use",
                self.workload.title, one.kernel
            ),
            tag: Tag::Counted,
            x: Scale::linear("accesses (thousands)", 0.0, one.pages.windows.len() as f64),
            y: Scale::linear(
                "entries in use in 1,000 accesses",
                0.0,
                one.pages.maximum as f64,
            ),
            drawing: Drawing::Lines(vec![
                line("4 KiB pages", &one.pages),
                line("2 MiB superpages", &one.superpages),
            ]),
            theirs: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(pages: f64, superpages: f64) -> Vec<InUse> {
        let set = |mean| WorkingSet {
            mean,
            ..WorkingSet::default()
        };
        vec![InUse {
            kernel: "k",
            suffix: "",
            pages: set(pages),
            superpages: set(superpages),
        }]
    }

    #[test]
    fn the_verdict_follows_from_the_means() {
        let verdict = |pages, superpages| {
            let statement = statement(&in_use(pages, superpages));
            statement.found[0].verdict.unwrap()
        };
        assert_eq!(verdict(40.0, 3.0), Verdict::Reproduced);
        assert_eq!(verdict(40.0, 15.0), Verdict::Weak);
        assert_eq!(verdict(40.0, 30.0), Verdict::Not);
    }

    #[test]
    fn superpages_collapse_the_working_set_of_both_devices() {
        for figure in &FIGURES {
            let made = figure.make(&|_| ()).unwrap();
            assert_eq!(made.counts.reproduced, made.counts.judged(), "{made:?}");
            assert_eq!(made.counts.judged(), 2);
        }
    }
}
