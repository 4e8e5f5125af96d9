// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From which size on direct mapping wins again: the plot that the series lacks. Measured, in short
//! slices.

use super::{About, Found, Parameter, Statement, Verdict, about, charges};
use crate::papers::{Experiment, Shown};
use crate::stated::Kind;
use ioatlas_bench::{
    Effort,
    bounce::{Block, Load, Policy, Preset, Way, cells, crossover::Ratios},
};
use ioatlas_present::{
    Cell as TableCell, Tag,
    plot::{Drawing, Line, Plot, Scale, Stroke},
};
use ioatlas_sim::timing::params::Origin;
use std::time::Duration;

/// Translators that charge something.
const PRESETS: [Preset; 3] = [Preset::Moderate, Preset::VfioGuest, Preset::Bounce21];
/// Operations in flight at once.
const DEPTH: usize = 8;
/// As log2 of KiB: 4 KiB to 1 MiB.
const SIZES_LG2: [u32; 2] = [2, 10];
/// Enough for a median; `cargo lab bench bounce` takes the time for more.
const EFFORT: Effort = Effort {
    slices: 5,
    patience: Duration::from_millis(200),
    filling: Duration::from_secs(1),
};

/// What was measured over one translator.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    preset: Preset,
    ratios: Ratios,
    /// Sizes that adaptive bounced, of all.
    bounced: Vec<(Block, bool)>,
    /// Why the first size without a figure has none.
    lacks: Option<String>,
}

impl Curve {
    /// How many times as fast bouncing is at the smallest size.
    fn at_smallest(&self) -> Option<f64> {
        let smallest = Block(1 << SIZES_LG2[0]);
        let (block, ratio) = self.ratios.0.first()?;
        (*block == smallest).then_some(*ratio)
    }

    /// All of it, in words.
    fn words(&self) -> String {
        let end = match self.ratios.crossover_kib() {
            Some(kib) => format!("direct mapping wins from about {kib:.0} KiB"),
            None => format!("bouncing wins up to {} KiB", 1 << SIZES_LG2[1]),
        };
        let lacks = self.lacks.iter().map(|why| format!("; {why}"));
        let lacks: String = lacks.collect();
        match self.at_smallest() {
            Some(ratio) => format!(
                "{ratio:.1} times as fast at 4 KiB, {end}; {}{lacks}",
                self.found()
            ),
            None => format!("nothing to tell by{lacks}"),
        }
    }

    /// What adaptive does, in words.
    fn found(&self) -> String {
        let largest = self.bounced.iter().filter(|(_, bounced)| *bounced);
        match largest.map(|(block, _)| block.0).max() {
            Some(kib) => format!("adaptive bounces up to {kib} KiB"),
            None => "adaptive bounces nothing".into(),
        }
    }
}

pub(super) struct Crossover;

impl Experiment for Crossover {
    type Data = Vec<Curve>;
    const ABOUT: About = about(
        "crossover",
        "Throughput with bounce buffers by that without, against the size of an operation",
        "For relatively small operations memcpy can be significantly faster than mapping, where mapping is expensive; the size below which to bounce is an \
         option. The series does not say which size.",
    );

    fn run(&self, progress: &dyn Fn(&str)) -> Result<Vec<Curve>, String> {
        let curve = |preset: Preset| {
            progress(preset.name());
            let (mut points, mut bounced, mut lacks) = (Vec::new(), Vec::new(), None);
            for lg2 in SIZES_LG2[0]..=SIZES_LG2[1] {
                let load = Load {
                    preset,
                    block: Block(1 << lg2),
                    direction: Way::Read,
                    depth: DEPTH,
                    threads: 1,
                };
                let policies = [Policy::Never, Policy::Always, Policy::Adaptive];
                let cell = cells::measure(load, &policies, EFFORT);
                let mut failed = cell.rows.iter().filter_map(|row| row.figure.as_ref().err());
                if let (Some(why), None) = (failed.next(), &lacks) {
                    lacks = Some(format!("{} KiB not measured: {why}", load.block.0));
                }
                let adaptive = cell.of(Policy::Adaptive);
                if let Some(percent) = adaptive.and_then(|row| row.bounced_percent) {
                    bounced.push((load.block, percent > 50.0));
                }
                let always = cell.of(Policy::Always);
                if let Some(ratio) = always.and_then(|row| row.ratio) {
                    points.push((load.block, ratio.median));
                }
            }
            let ratios = Ratios(points);
            Ok(Curve {
                preset,
                ratios,
                bounced,
                lacks,
            })
        };
        PRESETS.into_iter().map(curve).collect()
    }

    fn judge(all: &Vec<Curve>) -> Vec<Statement> {
        // the claim is of expensive mapping, so of virtual IOMMUs
        let dear = all.iter().filter(|curve| curve.preset != Preset::Moderate);
        let found = |curve: &Curve| {
            let verdict = curve
                .at_smallest()
                .map_or(Verdict::Not, |ratio| Verdict::at_least(ratio, 1.5, 1.0));
            // the costs of this one were chosen so that it is
            let kind = match curve.preset {
                Preset::Bounce21 => Kind::Fitted,
                Preset::Free | Preset::Moderate | Preset::VfioGuest => Kind::Predicted,
            };
            Found::of(curve.preset.name(), kind, verdict.because(curve.words()))
        };
        vec![Statement {
            says: "For relatively small operations memcpy can be significantly faster than mapping where mapping is expensive.".into(),
            theirs: "significantly",
            rule: "at 4 KiB bouncing is at least 1.5 times as fast; weak: as fast".into(),
            found: dear.map(found).collect(),
        }]
    }

    fn parameters() -> Vec<Parameter> {
        let depth = (TableCell::count(DEPTH as u64), "operations");
        let depth = Parameter::new(
            "load: BOUNCE'21, crossover",
            "in flight",
            depth,
            Origin::Free,
            "a queue that is neither empty nor long",
        );
        let charges = PRESETS.into_iter().flat_map(charges);
        [depth].into_iter().chain(charges).collect()
    }

    fn show(all: &Vec<Curve>) -> Shown {
        let mut columns = vec![("block, KiB".to_owned(), None)];
        columns.extend(
            all.iter()
                .map(|curve| (format!("{}, times", curve.preset), Some(Tag::Measured))),
        );
        columns.extend(
            all.iter()
                .map(|curve| (format!("{}, adaptive", curve.preset), None)),
        );
        let row = |lg2: u32| {
            let block = Block(1 << lg2);
            let mut row = vec![TableCell::count(block.0)];
            row.extend(all.iter().map(|curve| {
                let found = curve.ratios.0.iter().find(|(size, _)| *size == block);
                found.map_or(TableCell::from(""), |(_, ratio)| TableCell::Number(*ratio))
            }));
            row.extend(all.iter().map(|curve| {
                let found = curve.bounced.iter().find(|(size, _)| *size == block);
                let word = |bounced: bool| if bounced { "bounces" } else { "maps" };
                TableCell::from(found.map_or("", |(_, bounced)| word(*bounced)))
            }));
            row
        };
        let line = |curve: &Curve| Line {
            name: curve.preset.name().into(),
            stroke: Stroke::Numbers,
            points: curve
                .ratios
                .0
                .iter()
                .map(|(block, ratio)| (block.0 as f64, *ratio))
                .collect(),
        };
        let mut lines: Vec<Line> = all.iter().map(line).collect();
        let [from, to] = SIZES_LG2;
        lines.push(Line {
            name: "as fast as direct".into(),
            stroke: Stroke::Level,
            points: [from, to].map(|lg2| (f64::from(lg2).exp2(), 1.0)).into(),
        });
        let highest = lines.iter().flat_map(|line| &line.points).map(|at| at.1);
        let moderate = all.iter().filter(|curve| curve.preset == Preset::Moderate);
        let moderate = moderate.map(|curve| {
            format!(
                "Over moderate, of which the series does not speak: {}.",
                curve.words()
            )
        });
        let sources = PRESETS.map(|preset| format!("{}: {}", preset, preset.source()));
        Shown {
            plots: vec![Plot {
                suffix: "-ratio".into(),
                title: "Throughput of the CPU, always bounced by never, reads".into(),
                tag: Tag::Measured,
                x: Scale::log2("block size (KiB)", from, to),
                y: Scale::linear("times as fast", 0.0, highest.fold(1.0, f64::max)),
                drawing: Drawing::Lines(lines),
                theirs: Vec::new(),
            }],
            notes: moderate.chain([
                format!(
                    "Measured here: medians of slices of 1 ms of both, in turns, {DEPTH} in flight on one thread; no device and nothing else to do, so a ratio is of map, unmap and copies \
                     alone. cargo lab bench bounce measures more, and longer. Costs of the translators are waited for: {}.",
                    sources.join("; ")
                ),
                "The crossover is read off between two sizes, on the logarithm of the size. What is copied lies in the CPU's caches as far as it fits; a device's writes may not."
                    .into(),
            ])
            .collect(),
            ..Shown::table(columns, (from..=to).map(row))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(moderate: f64, vfio: f64, bounce21: f64) -> Vec<Curve> {
        let curve = |(preset, at_4): (Preset, f64)| Curve {
            preset,
            ratios: Ratios(vec![(Block(4), at_4), (Block(16), at_4 / 4.0)]),
            bounced: vec![(Block(4), at_4 > 1.0), (Block(16), at_4 > 4.0)],
            lacks: None,
        };
        PRESETS
            .into_iter()
            .zip([moderate, vfio, bounce21])
            .map(curve)
            .collect()
    }

    fn found(all: &Vec<Curve>) -> Vec<Found> {
        let statements = Crossover::judge(all);
        statements.into_iter().flat_map(|s| s.found).collect()
    }

    #[test]
    fn what_could_not_be_measured_is_said_and_proves_nothing() {
        let mut all = curves(0.5, 1.5, 9.0);
        all[1].ratios.0.clear();
        all[1].lacks = Some("4 KiB not measured: too busy".into());
        let found = &found(&all)[0];
        assert_eq!(found.verdict, Some(Verdict::Not));
        assert!(found.reason.contains("too busy"), "{}", found.reason);
    }

    #[test]
    fn the_verdict_is_of_small_operations_over_what_was_not_fitted_to_be_so() {
        let verdicts = |all| -> Vec<Option<Verdict>> {
            found(&all).iter().map(|found| found.verdict).collect()
        };
        let one = |verdict| [Some(verdict), None];
        assert_eq!(verdicts(curves(0.5, 1.5, 9.0)), one(Verdict::Reproduced));
        assert_eq!(verdicts(curves(9.0, 1.2, 9.0)), one(Verdict::Weak));
        assert_eq!(verdicts(curves(9.0, 0.9, 0.9)), one(Verdict::Not));
        assert_eq!(verdicts(Vec::new()), []);
    }

    #[test]
    fn a_curve_says_where_it_crosses_and_what_adaptive_does() {
        let words = curves(1.0, 2.0, 8.0)
            .iter()
            .map(Curve::words)
            .collect::<Vec<_>>();
        let ends = [
            "from about 4 KiB; adaptive bounces nothing",
            // two thirds of the way from 4 to 16, on the logarithm
            "from about 10 KiB; adaptive bounces up to 4 KiB",
            "wins up to 1024 KiB; adaptive bounces up to 16 KiB",
        ];
        for (words, end) in words.iter().zip(ends) {
            assert!(words.ends_with(end), "{words}");
        }
    }

    #[test]
    fn every_size_has_a_row_and_every_curve_a_line() {
        let shown = Crossover::show(&curves(1.0, 2.0, 8.0));
        assert_eq!(shown.table.rows.len(), 9);
        assert!(shown.table.rows.iter().all(|row| row.len() == 7));
        let Drawing::Lines(lines) = &shown.plots[0].drawing else {
            panic!();
        };
        assert_eq!(lines.len(), 4);
    }
}
