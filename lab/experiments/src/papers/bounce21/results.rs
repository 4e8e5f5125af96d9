// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The results of the series beside what the model predicts: throughput, and time in map and unmap,
//! by size.

use super::{About, Found, Made, Parameter, Runs, Shown, Statement, Verdict, about, charges};
use crate::stated::{Compared, Kind, Stated};
use ioatlas_bench::bounce::{
    Machine, Preset,
    model::{Assumed, Prediction, THEIR_MAP_CHANGE, THEIRS, TOLERATED, range},
};
use ioatlas_present::{
    Cell, Tag,
    plot::{At, Drawing, Line, Plot, Scale, Stroke, Theirs},
};
use ioatlas_sim::timing::params::Origin;

/// Where a statement is looked at: a preset under the model.
const FITTED: &str = "the model, fitted at 4 KiB";
const UNFITTED: &str = "the model, costs of vfio-guest";

/// What the model says under both presets, by size.
#[derive(Clone, Copy, Debug)]
struct Both {
    fitted: Prediction,
    unfitted: Prediction,
}

fn predictions() -> Vec<Both> {
    let fitted = Machine::bounce21();
    let unfitted = Machine {
        charge: Preset::VfioGuest.charge(),
        ..fitted
    };
    let both = |theirs| Both {
        fitted: fitted.predicted(theirs),
        unfitted: unfitted.predicted(theirs),
    };
    THEIRS.into_iter().map(both).collect()
}

fn kib(prediction: &Prediction) -> u64 {
    prediction.theirs.block.0 >> 10
}

/// By what factor two numbers differ, at least 1.
fn factor(one: f64, other: f64) -> f64 {
    (one / other).max(other / one)
}

fn ratio(on: &'static str, kind: Kind, prediction: &Prediction) -> Found {
    let verdict = match prediction.difference().abs() <= TOLERATED {
        true => Verdict::Reproduced,
        false => Verdict::at_most(factor(prediction.ratio, prediction.theirs.ratio), 1.0, 2.0),
    };
    let judgement = verdict.because(format!(
        "{:.2} times, direct bound by the {}, bounced by the {}",
        prediction.ratio,
        prediction.direct.name(),
        prediction.bounced.name()
    ));
    let theirs = Stated::number(prediction.theirs.ratio);
    Found::of(on, kind, judgement).beside([Compared::new("", prediction.ratio, theirs)])
}

fn unmap(on: &'static str, all: &[Prediction]) -> Found {
    let worst = all.iter().map(|p| p.unmap_difference().abs());
    let list: Vec<String> = all
        .iter()
        .map(|p| format!("{:.0}", p.unmap_change))
        .collect();
    let verdict = Verdict::at_most(worst.fold(0.0, f64::max), TOLERATED, 50.0);
    let compared = all.iter().map(|p| {
        let theirs = Stated::number(p.theirs.unmap_change);
        Compared::new(format!("{} KiB", kib(p)), p.unmap_change, theirs)
    });
    Found::new(on, verdict.because(format!("{} %", list.join(", ")))).beside(compared)
}

fn map(on: &'static str, all: &[Prediction]) -> Found {
    let worst = all.iter().map(|p| p.map_change).fold(f64::MIN, f64::max);
    let verdict = Verdict::at_most(worst, THEIR_MAP_CHANGE, -90.0);
    let theirs = Stated::range(-100.0, THEIR_MAP_CHANGE);
    Found::new(
        on,
        verdict.because(format!("{worst:.1} % at the worst size")),
    )
    .beside([Compared::new("", worst, theirs)])
}

fn statements(all: &[Both]) -> Vec<Statement> {
    const RATIO_RULE: &str = "the prediction is within 15 % of theirs; weak: within a factor of 2";
    const SAYS: [(&str, &str); 4] = [
        ("Reads of 4 KiB become 2.8 times as fast.", "2.8"),
        ("Reads of 16 KiB become 4.7 times as fast.", "4.7"),
        ("Reads of 64 KiB become 3.6 times as fast.", "3.6"),
        ("Reads of 128 KiB become 3.6 times as fast.", "3.6"),
    ];
    let mut statements: Vec<Statement> = all
        .iter()
        .zip(SAYS)
        .enumerate()
        .map(|(nth, (both, (says, theirs)))| {
            let kind = match nth {
                0 => Kind::Fitted,
                _ => Kind::Predicted,
            };
            Statement {
                says: says.into(),
                theirs,
                rule: RATIO_RULE.into(),
                found: vec![
                    ratio(FITTED, kind, &both.fitted),
                    ratio(UNFITTED, Kind::Predicted, &both.unfitted),
                ],
            }
        })
        .collect();
    let fitted: Vec<Prediction> = all.iter().map(|both| both.fitted).collect();
    let unfitted: Vec<Prediction> = all.iter().map(|both| both.unfitted).collect();
    let places = [(FITTED, &fitted), (UNFITTED, &unfitted)];
    statements.push(Statement {
        says: "Time in unmap for each GB falls, less so for larger blocks.".into(),
        theirs: "-97, -94, -90, -87 %",
        rule: "no size is off by more than 15 % of the change; weak: 50 %".into(),
        found: places.map(|(on, all)| unmap(on, all)).into(),
    });
    statements.push(Statement {
        says: "Time in map for each GB falls by more than 99 %, since reads copy nothing there."
            .into(),
        theirs: "more than -99 %",
        rule: "at least 99 % at every size; weak: 90 %".into(),
        found: places.map(|(on, all)| map(on, all)).into(),
    });
    statements
}

fn show(all: &[Both]) -> Shown {
    let columns = [
        ("block, KiB", None),
        ("theirs, times", Some(Tag::Assumed)),
        ("fitted at 4 KiB, times", Some(Tag::Simulated)),
        ("ours over theirs", Some(Tag::Simulated)),
        ("least, other guesses", Some(Tag::Simulated)),
        ("most, other guesses", Some(Tag::Simulated)),
        ("vfio-guest, times", Some(Tag::Simulated)),
        ("unmap, theirs, %", Some(Tag::Assumed)),
        ("unmap, fitted, %", Some(Tag::Simulated)),
        ("unmap, vfio-guest, %", Some(Tag::Simulated)),
        ("map, fitted, %", Some(Tag::Simulated)),
        ("this ratio is", None),
        ("why it differs", None),
    ];
    let row = |(nth, both): (usize, &Both)| {
        let Both { fitted, unfitted } = both;
        let (low, high) = range(fitted.theirs);
        vec![
            Cell::count(kib(fitted)),
            Cell::Number(fitted.theirs.ratio),
            Cell::Number(fitted.ratio),
            Cell::Number(fitted.ratio / fitted.theirs.ratio),
            Cell::Number(low),
            Cell::Number(high),
            Cell::Number(unfitted.ratio),
            Cell::Number(fitted.theirs.unmap_change),
            Cell::Number(fitted.unmap_change),
            Cell::Number(unfitted.unmap_change),
            Cell::Number(fitted.map_change),
            if nth == 0 { "fitted" } else { "predicted" }.into(),
            fitted.reason().unwrap_or_default().into(),
        ]
    };
    let line = |name: &str, of: &dyn Fn(&Both) -> f64| Line {
        name: name.into(),
        stroke: Stroke::Numbers,
        points: all
            .iter()
            .map(|both| (kib(&both.fitted) as f64, of(both)))
            .collect(),
    };
    let lines = vec![
        line("fitted at 4 KiB", &|both| both.fitted.ratio),
        line("costs of vfio-guest", &|both| both.unfitted.ratio),
    ];
    let theirs = |both: &Both| Theirs {
        name: format!("{} KiB", kib(&both.fitted)),
        series: None,
        at: At::dot(kib(&both.fitted) as f64, both.fitted.theirs.ratio),
    };
    let ours = lines.iter().flat_map(|line| &line.points).map(|at| at.1);
    let highest = ours.chain(all.iter().map(|both| both.fitted.theirs.ratio));
    let plot = Plot {
        suffix: "-throughput".into(),
        title: "Throughput with bounce buffers by that without, sequential reads".into(),
        tag: Tag::Simulated,
        x: Scale::log2("block size (KiB)", 2, 7),
        y: Scale::linear("times as fast", 0.0, highest.fold(1.0, f64::max)),
        drawing: Drawing::Lines(lines),
        theirs: all.iter().map(theirs).collect(),
    };
    Shown {
        plots: vec![plot],
        notes: notes(),
        ..Shown::table(columns, all.iter().enumerate().map(row))
    }
}

fn parameters() -> Vec<Parameter> {
    const MODEL: &str = "the laptop: BOUNCE'21, results";
    let Assumed {
        other_ns,
        rate,
        copy_ns,
        slot_ns,
        base_by_page,
    } = Assumed::BOUNCE21;
    let of = |name, number, unit, origin, why| {
        Parameter::new(MODEL, name, (Cell::Number(number), unit), origin, why)
    };
    let mut all = vec![
        of(
            "CPU time of an operation besides",
            other_ns,
            "ns",
            Origin::Free,
            "a guess",
        ),
        of(
            "what the device moves",
            rate,
            "GB/s",
            Origin::Free,
            "what PCIe 3.0 x4 carries at most; the drive is not named",
        ),
        of(
            "copying a byte",
            copy_ns,
            "ns",
            Origin::Measured,
            "64 KiB, neither side in a cache, on another machine",
        ),
        of(
            "taking and returning a slot",
            slot_ns,
            "ns",
            Origin::Free,
            "what this project's pools were designed for",
        ),
        of(
            "a request by a page of it",
            base_by_page,
            "",
            Origin::Free,
            "a guess",
        ),
    ];
    all.extend([Preset::VfioGuest, Preset::Bounce21].map(charges).concat());
    all
}

fn notes() -> Vec<String> {
    let Assumed {
        other_ns,
        rate,
        copy_ns,
        slot_ns,
        base_by_page,
    } = Assumed::BOUNCE21;
    let charge = Machine::bounce21().charge;
    vec![
        format!(
            "Model, no measurement: an operation takes the CPU {:.1} us, its map and unmap or its copy at {copy_ns} ns a byte and {slot_ns} ns for a slot, and the device \
             its bytes at {rate} GB/s; the slower sets the pace (64 in flight). Assumed, since the series names neither drive nor costs.",
            other_ns / 1e3
        ),
        format!(
            "Fitted, on 2.8 times at 4 KiB alone: a map, and likewise an unmap, costs {:.2} us and {:.2} us a page, {base_by_page} to 1 by assumption. Everything else is predicted.",
            charge.map.base_ns / 1e3,
            charge.map.page_ns / 1e3
        ),
        "What is left of the time in unmap is the copy: on their machine faster, or their unmap dearer, than assumed.".into(),
        "Other guesses: base by page 1/4, 1 and 4; 2.5, 5 and 10 us; 1.8, 2.5 and 3.5 GB/s; each fitted anew. How far the predictions move is how little one number settles."
            .into(),
        format!(
            "vfio-guest: {}. An exit costs next to nothing under emulation, and its pages lie together, so larger blocks cost little more there and the advantage ends where the device sets the pace.",
            Preset::VfioGuest.source()
        ),
    ]
}

pub(super) struct Results;

impl Runs for Results {
    fn about(&self) -> About {
        about(
            "results",
            "Throughput and time in map and unmap with bounce buffers, sequential reads",
            "With virtio-iommu and a passed-through NVMe drive, reads of 4, 16, 64 and 128 KiB become 2.8, 4.7, 3.6 and 3.6 times as fast; time in unmap for each GB falls by \
             97, 94, 90 and 87 %, time in map by more than 99 %.",
        )
    }

    fn make(&self, _: &dyn Fn(&str)) -> Result<Made, String> {
        let all = predictions();
        let made = Made::new(self.about(), statements(&all), show(&all));
        Ok(made.with(parameters()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_bench::bounce::Bound;

    fn verdicts(all: &[Both]) -> Vec<Vec<Verdict>> {
        let of = |s: &Statement| s.found.iter().filter_map(|f| f.verdict).collect();
        statements(all).iter().map(of).collect()
    }

    #[test]
    fn verdicts_follow_from_predictions() {
        use Verdict::{Not, Reproduced, Weak};
        let with = |ratio: &dyn Fn(f64) -> f64, unmap: f64, map: f64| -> Vec<Both> {
            let made = |theirs: ioatlas_bench::bounce::model::Theirs| Prediction {
                theirs,
                ratio: ratio(theirs.ratio),
                direct: Bound::Cpu,
                bounced: Bound::Device,
                unmap_change: theirs.unmap_change * unmap,
                map_change: map,
                direct_ns: 1e5,
            };
            let both = |theirs| Both {
                fitted: made(theirs),
                unfitted: made(theirs),
            };
            THEIRS.into_iter().map(both).collect()
        };
        let all = |verdict: Verdict, unmap, map| {
            let of = |n| vec![verdict; n];
            vec![of(1), of(2), of(2), of(2), vec![unmap; 2], vec![map; 2]]
        };
        let same = with(&|ratio| ratio, 1.0, -99.5);
        assert_eq!(verdicts(&same), all(Reproduced, Reproduced, Reproduced));
        let near = with(&|ratio| ratio * 0.86, 0.86, -99.0);
        assert_eq!(verdicts(&near), all(Reproduced, Reproduced, Reproduced));
        let half = with(&|ratio| ratio * 0.51, 0.6, -98.9);
        assert_eq!(verdicts(&half), all(Weak, Weak, Weak));
        let far = with(&|ratio| ratio * 2.1, 0.4, -80.0);
        assert_eq!(verdicts(&far), all(Not, Not, Not));
    }

    #[test]
    fn the_fitted_row_is_marked_and_has_no_verdict_of_its_own() {
        let all = predictions();
        let shown = show(&all);
        let status = |row: &Vec<Cell>| row[11].text();
        let words: Vec<String> = shown.table.rows.iter().map(status).collect();
        assert_eq!(words, ["fitted", "predicted", "predicted", "predicted"]);
        let found = &statements(&all)[0].found;
        assert_eq!((found[0].on, found[0].word()), (FITTED, "fitted"));
        assert_eq!(found[0].verdict, None);
        assert!(found[1].verdict.is_some());
        for row in &shown.table.rows {
            assert_eq!(row.len(), shown.table.columns.len());
            // every difference over 15 % has its reason
            let Cell::Number(ratio) = row[3] else {
                panic!("{row:?}");
            };
            let difference = (ratio - 1.0) * 100.0;
            assert_eq!(difference.abs() > TOLERATED, !row[12].text().is_empty());
        }
    }
}
