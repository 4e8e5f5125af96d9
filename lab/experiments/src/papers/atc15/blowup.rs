// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figure 6: page tables over repetitions of a workload.
//!
//! A bundled trace's maps and unmaps are done [`REPETITIONS`] times in one domain, under Linux's
//! rule that a table is freed only if one unmap covers all it maps. Before the first repetition and
//! after each, flushed, the frames in use are counted: the tables of all levels. Beside the paper's
//! designs there are magazines that free emptied tables, by one call after each repetition.
//!
//! *Background*: another user of the same heap. [`LIVE`] blocks are held, of sizes drawn evenly
//! from the powers of two from 8 bytes to 4 KiB; after every [`PACE`]th map, and [`BETWEEN`] times
//! between repetitions, the oldest is given back and another taken: what is allocated lives long
//! and is replaced slowly. Before the first repetition each has been replaced once, for a running
//! system's heap is not freshly packed. *Steady*: that is all. *Drifting*: besides, [`GROWTH`] more
//! are held after each repetition, as the caches of a running system fill. From a seed, so every
//! run is the same. Designs other than `kmalloc` have the same background and do not notice.
//!
//! When a series is flat, and when it grows almost linearly: [`crate::growth`].

use super::{
    super::{About, Experiment, Found, Parameter, Shown, Statement, Verdict, random::Random},
    about,
    script::{Step, script},
};
use crate::{
    bundled,
    growth::{ALMOST_LINEAR, Growth},
};
use ioatlas_bench::platform::host;
use ioatlas_dma::{
    design::Design,
    domain::{Domain, Mapping},
    platform::{Heap, HeapBlock, Platform},
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::ByteCount,
};
use ioatlas_host::Host;
use ioatlas_present::{
    Cell, Tag,
    plot::{Drawing, Line, Plot, Scale},
};
use ioatlas_sim::timing::params::Origin;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

const REPETITIONS: usize = 100;
/// Blocks of the background at first.
const LIVE: usize = 16_384;
/// Maps for each replacement of a block.
const PACE: usize = 4;
/// Replacements of blocks between two repetitions.
const BETWEEN: usize = 256;
/// Blocks that a drifting background holds more after each repetition: 1 %.
const GROWTH: usize = LIVE / 100;
/// Sizes of the background's blocks: 8 bytes to 2^this times as many.
const LARGEST_LG2: usize = 9;
/// Seed of the background's sizes.
const SEED: u64 = 15;
/// Frames for tables, more than any design needs.
const FRAMES: usize = 1 << 16;

/// In the paper's order, and then ours; each with its name.
const DESIGNS: [(&str, &str); 5] = [
    ("eiovar", "eiovar,deferred-percpu"),
    ("magazine", "magazine,deferred-percpu"),
    ("identity", "identity,deferred-percpu"),
    ("kmalloc", "kmalloc,deferred-percpu"),
    (
        "magazine, emptied tables freed",
        "magazine,deferred-percpu,reclaim=emptied",
    ),
];

/// What the other user of the heap does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Background {
    /// What it holds is replaced, and grows slowly.
    Drifting,
    /// What it holds is replaced.
    Steady,
    /// There is no other user.
    Off,
}

/// The other user of the heap, as the module documentation has it.
struct Other<'h> {
    heap: &'h dyn Heap,
    random: Random,
    held: VecDeque<HeapBlock>,
}

impl<'h> Other<'h> {
    fn new(heap: &'h dyn Heap) -> Result<Self, String> {
        let mut other = Other {
            heap,
            random: Random::new(SEED),
            held: VecDeque::with_capacity(LIVE),
        };
        (0..LIVE).for_each(|_| other.take());
        (0..LIVE).try_for_each(|_| other.replace())?;
        Ok(other)
    }

    fn take(&mut self) {
        let len = ByteCount(8 << self.random.below(LARGEST_LG2 + 1));
        self.held.extend(self.heap.alloc(len));
    }

    fn replace(&mut self) -> Result<(), String> {
        if let Some(block) = self.held.pop_front() {
            self.heap.free(block).map_err(|error| error.to_string())?;
        }
        self.take();
        Ok(())
    }
}

/// Tables after each repetition, the first before any.
#[derive(Clone, Debug)]
pub(super) struct Series {
    design: &'static str,
    background: Background,
    tables: Vec<u64>,
}

impl Series {
    fn is_flat(&self) -> bool {
        Growth::of(&self.tables).is_flat()
    }

    fn steadiness(&self) -> Option<f64> {
        Growth::of(&self.tables).steadiness()
    }
}

pub(super) struct Figure6;

/// Where it is seen.
const REPEATED: &str = "trace repeated";

impl Experiment for Figure6 {
    type Data = Vec<Series>;
    const ABOUT: About = about(
        "figure 6",
        "Page-table memory over repetitions",
        "Over 100 iterations EiovaR and magazines keep the number of page tables minimal, for they pack IOVAs; under IOVA-kmalloc it grows almost \
         linearly, since its addresses follow what else the system allocates (6).",
    );

    fn run(&self, progress: &dyn Fn(&str)) -> Result<Vec<Series>, String> {
        let loaded = bundled::BASE[0].load().map_err(|error| error.to_string())?;
        let steps = script(&loaded.trace);
        let mut all = Vec::new();
        for background in [Background::Drifting, Background::Steady, Background::Off] {
            for (design, words) in DESIGNS {
                progress(design);
                let tables = tables(&steps, words, background)?;
                all.push(Series {
                    design,
                    background,
                    tables,
                });
            }
        }
        Ok(all)
    }

    fn judge(all: &Vec<Series>) -> Vec<Statement> {
        let of = |design, background| {
            all.iter()
                .find(|series| series.design == design && series.background == background)
        };
        let ends = |series: &Series| {
            let end = |tables: Option<&u64>| tables.copied().unwrap_or(0);
            let (first, last) = (series.tables.get(1), series.tables.last());
            format!("{} to {} tables", end(first), end(last))
        };
        let statement = |says: &'static str,
                         theirs,
                         rule: &'static str,
                         (verdict, reason): (Verdict, String)| {
            Statement {
                says: says.into(),
                theirs,
                rule: rule.into(),
                found: vec![Found::new(REPEATED, verdict.because(reason))],
            }
        };
        let flat = |design, background| match of(design, background) {
            Some(series) if series.is_flat() => (Verdict::Reproduced, ends(series)),
            Some(series) => (Verdict::Not, ends(series)),
            None => (Verdict::Not, "not repeated".into()),
        };
        let drifting = of("kmalloc", Background::Drifting);
        let growth = match drifting.and_then(|series| Some((series, series.steadiness()?))) {
            Some((series, steady)) => (
                Verdict::at_least(steady, ALMOST_LINEAR, f64::MIN),
                format!(
                    "{}; over the last half {:.0} % of the growth over the first",
                    ends(series),
                    steady * 100.0
                ),
            ),
            None => (Verdict::Not, "it does not grow".into()),
        };
        vec![
            statement(
                "EiovaR packs IOVAs, and so keeps page tables few (6.1, figure 6).",
                "minimal",
                "beside a drifting background the number is flat",
                flat("eiovar", Background::Drifting),
            ),
            statement(
                "Magazines do so, too (6.1, figure 6).",
                "minimal",
                "beside a drifting background the number is flat",
                flat("magazine", Background::Drifting),
            ),
            statement(
                "Under IOVA-kmalloc the number grows almost linearly (6.1, figure 6).",
                "almost linear",
                "beside a drifting background it grows over the last half at least half as much as over the first; weak: it grows",
                growth,
            ),
            statement(
                "It does so since kmalloc's addresses follow what else the system allocates (6.1).",
                "the cause",
                "without a background the number is flat under kmalloc",
                flat("kmalloc", Background::Off),
            ),
        ]
    }

    fn parameters() -> Vec<Parameter> {
        const MODEL: &str = "another user of the heap: ATC'15, figure 6";
        let free = |name, count: usize, unit, why| {
            Parameter::new(
                MODEL,
                name,
                (Cell::count(count as u64), unit),
                Origin::Free,
                why,
            )
        };
        let repetitions = (Cell::count(REPETITIONS as u64), "");
        vec![
            Parameter::new(
                MODEL,
                "repetitions",
                repetitions,
                Origin::Published,
                "ATC'15 6.1",
            ),
            free(
                "held at first",
                LIVE,
                "blocks",
                "no source says what else allocates",
            ),
            free(
                "largest block",
                8 << LARGEST_LG2,
                "bytes",
                "a page; sizes are powers of two from 8 on",
            ),
            free(
                "maps to a replaced block",
                PACE,
                "maps",
                "what is allocated lives long",
            ),
            free(
                "replaced between repetitions",
                BETWEEN,
                "blocks",
                "other work goes on",
            ),
            free(
                "more held after a repetition",
                GROWTH,
                "blocks",
                "1 %: the caches of a running system fill; with 0 kmalloc's tables stop growing",
            ),
            free("seed", SEED as usize, "", "any"),
        ]
    }

    fn show(all: &Vec<Series>) -> Shown {
        let word = |background| match background {
            Background::Drifting => "drifting background",
            Background::Steady => "steady background",
            Background::Off => "no background",
        };
        let mut columns = vec![("repetition".to_owned(), None)];
        columns.extend(all.iter().map(|s| {
            let name = format!("{} {}", s.design, word(s.background));
            (name, Some(Tag::Counted))
        }));
        let row = |nth: usize| {
            let mut row = vec![Cell::count(nth as u64)];
            let cells = all.iter().map(|s| {
                s.tables
                    .get(nth)
                    .map_or(Cell::from(""), |tables| Cell::count(*tables))
            });
            row.extend(cells);
            row
        };
        let plot = |background, suffix: &str| {
            let drawn = || all.iter().filter(|series| series.background == background);
            let most = drawn().flat_map(|series| &series.tables).max();
            let values = |series: &Series| -> Vec<f64> {
                series.tables.iter().map(|tables| *tables as f64).collect()
            };
            Plot {
                suffix: suffix.into(),
                title: format!(
                    "Page tables of all levels, {} allocation in the heap",
                    word(background)
                ),
                tag: Tag::Counted,
                x: Scale::linear("repetitions of the trace", 0.0, REPETITIONS as f64),
                y: Scale::linear(
                    "page tables (4 KiB frames)",
                    0.0,
                    most.copied().unwrap_or(0) as f64,
                ),
                drawing: Drawing::Lines(
                    drawn()
                        .map(|series| Line::counted(series.design, values(series)))
                        .collect(),
                ),
                theirs: Vec::new(),
            }
        };
        let rows = all
            .iter()
            .map(|series| series.tables.len())
            .max()
            .unwrap_or(0);
        Shown {
            plots: vec![
                plot(Background::Drifting, ""),
                plot(Background::Steady, "-steady-background"),
                plot(Background::Off, "-without-background"),
            ],
            notes: vec![
                format!(
                    "Theirs: 100 runs of 270 netperf request-response streams on 16 cores. Ours: maps and unmaps of the bundled trace e1000-stream, on one CPU, \
                     deferred-percpu; what is mapped at the end of a repetition is unmapped. Background: {LIVE} blocks of 8 bytes to 4 KiB in the same \
                     heap, one replaced after every {PACE}th map and {BETWEEN} between repetitions, seed {SEED}. The oldest is replaced, and all were once before the first repetition. Drifting: \
                     besides, {GROWTH} more are held after each repetition. Steady: always as many."
                ),
                "identity has the tables that its buffers' addresses need; a trace that is repeated has the same buffers each time, so here it is flat \
                 by construction. New buffers would need new tables (4.1)."
                    .into(),
                "With other users that always hold as much, kmalloc's tables stop growing: so it is other users that spread its IOVAs, and they do without an \
                 end only while they hold ever more or other memory."
                    .into(),
                "Flat: over the last half a series grows by at most 1 %, or one table. Almost linear: over the last half at least half as much as over the \
                 first, the first repetition left out. Tables are freed only where one unmap covers all they map (Linux's rule, 3.3)."
                    .into(),
                "Emptied tables freed: ours, not the paper's. As nothing is mapped after a repetition, all tables but the root may go, 16 at each tick. \
                 identity and kmalloc keep no record of what is allocated, so there it cannot be done."
                    .into(),
            ],
            ..Shown::table(columns, (0..rows).map(row))
        }
    }
}

/// The tables before the first repetition and after each.
fn tables(steps: &[Step], words: &str, background: Background) -> Result<Vec<u64>, String> {
    let design = Design::parse(words).map_err(|error| error.to_string())?;
    let host = Arc::new(host(FRAMES, 1).map_err(|e| e.to_string())?);
    let unit = Arc::new(Uncached::new());
    let paged: Paged<Host, VtdSecond48, _> =
        Paged::new(&host, unit, design.tables).map_err(|error| error.to_string())?;
    let domain =
        Domain::new(host.clone(), paged, design.domain).map_err(|error| error.to_string())?;
    let mut other = match (background, Platform::heap(&*host)) {
        (Background::Off, _) | (_, None) => None,
        (_, Some(heap)) => Some(Other::new(heap)?),
    };
    let mut counts = vec![host.frames_in_use() as u64];
    for _ in 0..REPETITIONS {
        let mut live: HashMap<usize, Mapping> = HashMap::new();
        for step in steps {
            match step {
                Step::Map {
                    id,
                    buffers,
                    direction,
                } => {
                    let mapping = match buffers.as_slice() {
                        [buffer] => domain.map(*buffer, *direction),
                        list => domain.map_list(list, *direction),
                    };
                    live.insert(*id, mapping.map_err(|error| error.to_string())?);
                    if let Some(other) = &mut other
                        && id % PACE == 0
                    {
                        other.replace()?;
                    }
                }
                Step::Unmap { id } => {
                    if let Some(mapping) = live.remove(id) {
                        domain.unmap(mapping).map_err(|error| error.to_string())?;
                    }
                }
            }
        }
        domain.flush().map_err(|error| error.to_string())?;
        // as a tick does
        domain.reclaim_tables().map_err(|error| error.to_string())?;
        counts.push(host.frames_in_use() as u64);
        if let Some(other) = &mut other {
            if background == Background::Drifting {
                (0..GROWTH).for_each(|_| other.take());
            }
            (0..BETWEEN).try_for_each(|_| other.replace())?;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All series, of `late` of which the last half is so much steeper or flatter than the first.
    fn all(
        kmalloc: impl Fn(u64) -> u64,
        eiovar: impl Fn(u64) -> u64,
        quiet: impl Fn(u64) -> u64,
    ) -> Vec<Series> {
        let series = |design, background, of: &dyn Fn(u64) -> u64| Series {
            design,
            background,
            tables: (0..=100).map(of).collect(),
        };
        let flat = |_| 20;
        let mut all = vec![
            series("eiovar", Background::Drifting, &eiovar),
            series("magazine", Background::Drifting, &flat),
            series("identity", Background::Drifting, &flat),
            series("kmalloc", Background::Drifting, &kmalloc),
            series("kmalloc", Background::Off, &quiet),
        ];
        for design in ["eiovar", "magazine", "identity"] {
            all.push(series(design, Background::Off, &flat));
        }
        all
    }

    #[test]
    fn verdicts_follow_from_the_series() {
        use Verdict::{Not, Reproduced, Weak};
        let flat = |_| 20;
        let linear = |n| 20 + 3 * n;
        let slowing = |n: u64| 20 + 30 * n.min(52);
        let verdicts = |all: &Vec<Series>| -> Vec<Verdict> {
            let all = Figure6::judge(all);
            all.iter().filter_map(|s| s.found[0].verdict).collect()
        };
        assert_eq!(verdicts(&all(linear, flat, flat)), [Reproduced; 4]);
        assert_eq!(
            verdicts(&all(slowing, flat, flat)),
            [Reproduced, Reproduced, Weak, Reproduced]
        );
        assert_eq!(
            verdicts(&all(linear, flat, linear)),
            [Reproduced, Reproduced, Reproduced, Not],
            "grows by itself"
        );
        assert_eq!(
            verdicts(&all(flat, linear, flat)),
            [Not, Reproduced, Not, Reproduced]
        );
        assert_eq!(verdicts(&Vec::new()), [Not; 4]);
    }

    #[test]
    fn filling_once_is_no_growth() {
        let series = |of: &dyn Fn(u64) -> u64| Series {
            design: "d",
            background: Background::Off,
            tables: (0..=100).map(of).collect(),
        };
        assert!(series(&|n| if n == 0 { 1 } else { 500 }).is_flat());
        assert!(series(&|n| 1000 + n / 10).is_flat(), "5 of 1000");
        assert!(!series(&|n| 1000 + n).is_flat());
        assert!(series(&|n| 200 - n).is_flat(), "it shrinks");
    }

    #[test]
    fn the_background_holds_what_it_says_and_gives_back_what_it_replaces() {
        let host = host(1, 1).unwrap();
        let mut other = Other::new(&host).unwrap();
        (0..1000).for_each(|_| other.replace().unwrap());
        assert_eq!(other.held.len(), LIVE);
        let held: u64 = other.held.iter().map(|block| block.len.0).sum();
        assert_eq!(Heap::in_use(&host), ByteCount(held));
    }
}
