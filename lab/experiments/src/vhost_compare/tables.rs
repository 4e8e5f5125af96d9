// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What was found, as two tables: rates beside each other, and the benchmarks of KVM'17.

use super::back_end::Whose;
use super::cases::Case;
use super::{Run, VhostCompareError};
use ioatlas_present::{Table, grouped, median};
use serde::Serialize;
use std::path::PathBuf;

/// All runs, and what they were made with.
pub(super) struct Outcome {
    pub cpus: [usize; 2],
    pub load_before: Option<f64>,
    pub load_after: Option<f64>,
    pub rounds: usize,
    pub seconds: f64,
    pub logs: PathBuf,
    pub runs: Vec<Run>,
}

/// A line of the first table.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    row: &'static str,
    testpmd: Option<f64>,
    ours: Option<f64>,
    ratio: Option<f64>,
    #[serde(skip)]
    shown: Shown,
}

/// How a line's figures are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Part,
    Rate,
}

/// A line of the second.
#[derive(Clone, Debug, Serialize)]
struct Benchmark {
    cell: String,
    seed: &'static str,
    testpmd: Option<f64>,
    testpmd_of_off: Option<f64>,
    ours: Option<f64>,
    ours_of_off: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Json<'o> {
    cpus: [usize; 2],
    load_before: Option<f64>,
    load_after: Option<f64>,
    rounds: usize,
    seconds: f64,
    comparisons: Vec<Comparison>,
    benchmarks: Vec<Benchmark>,
    runs: &'o [Run],
}

/// A back end in a case.
type Cell = (Whose, Case);

impl Outcome {
    fn of(&self, (whose, case): Cell) -> impl Iterator<Item = &Run> {
        self.runs
            .iter()
            .filter(move |run| run.back_end == whose && run.case == case.name())
    }

    fn rate(&self, cell: Cell) -> Option<f64> {
        median(self.of(cell).filter_map(|r| r.frames_per_second))
    }

    /// The median over rounds of the ratios of two rates.
    fn ratio(&self, above: Cell, below: Cell) -> Option<f64> {
        self.ratio_of(above, below, |run| run.frames_per_second)
    }

    fn ratio_of(
        &self,
        above: Cell,
        below: Cell,
        rate: impl Fn(&Run) -> Option<f64>,
    ) -> Option<f64> {
        let of =
            |cell: Cell, round: usize| self.of(cell).find(|run| run.round == round).and_then(&rate);
        let rounds = (0..self.rounds).filter_map(|round| {
            let (above, below) = (of(above, round)?, of(below, round)?);
            (below > 0.0).then(|| above / below)
        });
        median(rounds)
    }

    fn comparisons(&self) -> Vec<Comparison> {
        use Whose::{Ours, Testpmd};
        let part = |row, case, off| {
            let testpmd = self.ratio((Testpmd, case), (Testpmd, off));
            let ours = self.ratio((Ours, case), (Ours, off));
            Comparison {
                row,
                testpmd,
                ours,
                ratio: testpmd.zip(ours).map(|(t, o)| o / t),
                shown: Shown::Part,
            }
        };
        let rate = |row, case, below| Comparison {
            row,
            testpmd: self.rate((Testpmd, case)),
            ours: self.rate((Ours, case)),
            ratio: self.ratio((Ours, case), (Testpmd, below)),
            shown: Shown::Rate,
        };
        let (off_512, off_1000) = (Case::OffScattered512, Case::OffScattered1000);
        let (pages, ranges) = (Case::DynamicPages, Case::DynamicRanges);
        vec![
            part("static 2M, of IOMMU off", Case::Large, Case::Off),
            part("static 1G, of IOMMU off", Case::Huge, Case::Off),
            part(
                "static 4K, 512 pages scattered, of off",
                Case::Small512,
                off_512,
            ),
            part(
                "static 4K, 1,000 pages scattered, of off",
                Case::Small1000,
                off_1000,
            ),
            part(
                "static 4K, 100,000 pages scattered, of off",
                Case::Small100k,
                Case::OffScattered100k,
            ),
            rate("IOMMU off, frames/s", Case::Off, Case::Off),
            rate("dynamic, batch 32, page answers, frames/s", pages, pages),
            rate(
                "dynamic, batch 32, range answers, by page answers, frames/s",
                ranges,
                pages,
            ),
        ]
    }

    fn benchmarks(&self) -> Vec<Benchmark> {
        use Whose::{Ours, Testpmd};
        // The micro-benchmark's figures are bars without numbers.
        let cells = [
            (Case::SeedOff, "off", "-", "-"),
            (Case::SeedLarge, "2M", "about 25 % below off", "bars only"),
            (Case::SeedHuge, "1G", "no regression", "bars only"),
        ];
        let highest = |run: &Run| run.highest_per_second;
        let full = |run: &Run| run.frames_per_second;
        let line = |what: &str, name: &str, case, seed, rate: &dyn Fn(&Run) -> Option<f64>| {
            let of = |whose| median(self.of((whose, case)).filter_map(rate));
            let part = |whose| self.ratio_of((whose, case), (whose, Case::SeedOff), rate);
            Benchmark {
                cell: format!("{what}, {name}"),
                seed,
                testpmd: of(Testpmd),
                testpmd_of_off: part(Testpmd),
                ours: of(Ours),
                ours_of_off: part(Ours),
            }
        };
        let pvp = cells.map(|(case, name, seed, _)| line("PVP", name, case, seed, &highest));
        let micro =
            cells.map(|(case, name, _, seed)| line("testpmd micro", name, case, seed, &full));
        pvp.into_iter().chain(micro).collect()
    }

    /// What ours did wrong, or what could not be run.
    pub fn wrongs(&self) -> impl Iterator<Item = VhostCompareError> {
        let ours = self.runs.iter().filter(|run| run.back_end == Whose::Ours);
        ours.filter_map(|run| {
            let (case, round) = (run.case, run.round);
            let what = match &run.failure {
                Some(why) => why.clone(),
                None if run.frames_corrupt > 0 => format!("{} frames corrupt", run.frames_corrupt),
                None if run.frames_lost > 0 => format!("{} frames lost", run.frames_lost),
                None => return None,
            };
            let what = format!("vhost-net, {case}, round {round}: {what}");
            Some(VhostCompareError::Failed(what))
        })
    }

    pub fn json(&self) -> Json<'_> {
        Json {
            cpus: self.cpus,
            load_before: self.load_before,
            load_after: self.load_after,
            rounds: self.rounds,
            seconds: self.seconds,
            comparisons: self.comparisons(),
            benchmarks: self.benchmarks(),
            runs: &self.runs,
        }
    }

    pub fn plain(&self) -> String {
        let load = |load: Option<f64>| load.map_or("?".into(), |load| format!("{load:.1}"));
        let least = |whose| {
            let shares = self.runs.iter().filter(|run| run.back_end == whose);
            let least = shares.filter_map(|run| run.forwarding_share);
            least.fold(1.0, f64::min)
        };
        let mut lines = vec![
            format!(
                "{} rounds of {} s; load {} before, {} after; forwarding threads had {:.0} % (testpmd) and {:.0} % (ours) of their CPU at least",
                self.rounds,
                self.seconds,
                load(self.load_before),
                load(self.load_after),
                100.0 * least(Whose::Testpmd),
                100.0 * least(Whose::Ours)
            ),
            String::new(),
        ];
        lines.extend(comparison_table(&self.comparisons()));
        lines.push(String::new());
        lines.extend(self.losses());
        lines.push(String::new());
        lines.extend(benchmark_table(&self.benchmarks()));
        lines.push("PVP: the highest rate at which at most 0.005 % is lost; micro: as fast as it goes. 32,768 pages of buffers in each direction".into());
        for run in &self.runs {
            if let Some(why) = &run.failure {
                let (whose, case) = (run.back_end.name(), run.case);
                lines.push(format!(
                    "failed: {whose}, {case}, round {}: {why}",
                    run.round
                ));
            }
        }
        lines.push(format!("logs: {}", self.logs.display()));
        lines.join("\n") + "\n"
    }

    /// What dynamic mappings cost: frames and messages.
    fn losses(&self) -> Vec<String> {
        let mut table = Table::new([
            "dynamic",
            "",
            "lost",
            "of sent",
            "misses a frame",
            "round trip",
        ])
        .aligned("llr");
        for case in [Case::DynamicPages, Case::DynamicRanges] {
            for whose in [Whose::Testpmd, Whose::Ours] {
                let sum = |of: fn(&Run) -> u64| self.of((whose, case)).map(of).sum::<u64>();
                let (sent, lost) = (sum(|r| r.frames_sent), sum(|r| r.frames_lost));
                let misses = sum(|r| r.misses) as f64 / sent.max(1) as f64;
                let trips = self.of((whose, case)).map(|r| r.round_trip_ns);
                table.row([
                    case.name().into(),
                    whose.name().into(),
                    grouped(lost),
                    format!("{:.1} %", 100.0 * lost as f64 / sent.max(1) as f64),
                    format!("{misses:.2}"),
                    median(trips).map_or("-".into(), |ns| format!("{:.1} us", ns / 1000.0)),
                ]);
            }
        }
        table.lines()
    }
}

fn figure(value: Option<f64>, shown: Shown) -> String {
    match (value, shown) {
        (None, _) => "-".into(),
        (Some(value), Shown::Part) => format!("{value:.3}"),
        (Some(value), Shown::Rate) => grouped(value as u64),
    }
}

fn comparison_table(comparisons: &[Comparison]) -> Vec<String> {
    let mut table = Table::new(["", "testpmd", "ours", "ratio"]).aligned("lr");
    for line in comparisons {
        table.row([
            line.row.into(),
            figure(line.testpmd, line.shown),
            figure(line.ours, line.shown),
            line.ratio
                .map_or("-".into(), |ratio| format!("{ratio:.2} x")),
        ]);
    }
    table.lines()
}

fn benchmark_table(benchmarks: &[Benchmark]) -> Vec<String> {
    let mut table =
        Table::new(["KVM'17", "seed", "testpmd", "of off", "ours", "of off"]).aligned("llr");
    for line in benchmarks {
        let part = |part: Option<f64>| figure(part, Shown::Part);
        table.row([
            line.cell.clone(),
            line.seed.into(),
            figure(line.testpmd, Shown::Rate),
            part(line.testpmd_of_off),
            figure(line.ours, Shown::Rate),
            part(line.ours_of_off),
        ]);
    }
    table.lines()
}
