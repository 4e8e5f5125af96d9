// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs a family on both units, compares, and remembers what the report prints.

use crate::{
    bench::*,
    bench_qemu::QemuBench,
    bench_soft::SoftBench,
    case::{Case, Differs, Only, Seen},
    cases,
};
use ioatlas_viommu::config::{UnitConfig, WaitReports};
use ioatlas_vtd::layout::AddressWidth;
use libtest_mimic::Failed;
use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What one family came to.
struct Sum {
    family: &'static str,
    cases: usize,
    seen: usize,
    took: Duration,
    differs: Vec<(String, Differs)>,
    only: Vec<Only>,
}

static SUMS: Mutex<Vec<Sum>> = Mutex::new(Vec::new());

/// How many lines of what is wrong are printed.
const LINES: usize = 120;

/// A bench of each width, made when it is first needed.
struct Benches<B> {
    all: Vec<B>,
}

impl<B: Bench> Benches<B> {
    fn get(
        &mut self,
        width: AddressWidth,
        make: impl FnOnce() -> io::Result<B>,
    ) -> io::Result<&mut B> {
        let at = match self.all.iter().position(|bench| bench.width() == width) {
            Some(at) => at,
            None => {
                self.all.push(make()?);
                self.all.len() - 1
            }
        };
        Ok(&mut self.all[at])
    }
}

/// One family, on both units.
pub fn family(family: &'static str, cases: fn() -> Vec<Case>) -> Result<(), Failed> {
    let begun = Instant::now();
    let mut qemu = Benches::<QemuBench> { all: Vec::new() };
    let mut soft = Benches::<SoftBench> { all: Vec::new() };
    let mut late = Benches::<SoftBench> { all: Vec::new() };
    let all = cases();
    let (mut wrong, mut seen, mut differs) = (Vec::new(), 0, Vec::new());
    for case in &all {
        let width = case.width;
        let mut both: Vec<Vec<Seen>> = Vec::new();
        if case.is_for(Which::Software) {
            let mut special = case.made.map(|made| SoftBench::new(width, made));
            let bench = match &mut special {
                Some(bench) => bench,
                None => soft.get(width, || Ok(SoftBench::new(width, |_| {})))?,
            };
            both.push(on(case, bench, &mut wrong));
            // one that reports wait descriptors late shows the same
            if case.made.is_none() {
                let made = |c: &mut UnitConfig| c.wait_reports = WaitReports::Late;
                let bench = late.get(width, || Ok(SoftBench::new(width, made)))?;
                let seen = on(case, bench, &mut wrong);
                wrong.extend(case.unlike(&both[0], &seen));
            }
        }
        if case.is_for(Which::Qemu) {
            let bench = qemu.get(width, || QemuBench::start(width))?;
            both.push(on(case, bench, &mut wrong));
            if let Some(trouble) = bench.trouble() {
                wrong.push(format!("{}: {trouble}", case.name));
                break;
            }
        }
        if let [first, second] = &both[..] {
            wrong.extend(case.unlike(first, second));
        }
        seen += both.iter().map(Vec::len).sum::<usize>();
        differs.extend(case.differs.iter().map(|d| (case.name.clone(), *d)));
    }
    let sum = Sum {
        family,
        cases: all.len(),
        seen,
        took: begun.elapsed(),
        differs,
        only: all.iter().filter_map(|case| case.only).collect(),
    };
    sums().push(sum);
    if wrong.is_empty() {
        return Ok(());
    }
    let more = wrong.len().saturating_sub(LINES);
    wrong.truncate(LINES);
    Err(format!("{}\nand {more} more", wrong.join("\n")).into())
}

fn on(case: &Case, bench: &mut dyn Bench, wrong: &mut Vec<String>) -> Vec<Seen> {
    let seen = case.run(bench, None);
    wrong.extend(case.wrong(bench.which(), &seen));
    seen
}

fn sums() -> std::sync::MutexGuard<'static, Vec<Sum>> {
    SUMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long bring-ups took, by unit and number of devices behind it.
static BRING_UPS: Mutex<BTreeMap<String, Vec<f64>>> = Mutex::new(BTreeMap::new());

pub fn note_bring_up(which: Which, devices: usize, took: Duration) {
    let mut all = BRING_UPS.lock().unwrap_or_else(PoisonError::into_inner);
    let of = format!("{which}, devices: {devices}");
    all.entry(of).or_default().push(took.as_secs_f64() * 1e3);
}

fn report_bring_ups() {
    let mut all = BRING_UPS.lock().unwrap_or_else(PoisonError::into_inner);
    for (of, took) in all.iter_mut() {
        took.sort_by(f64::total_cmp);
        if let (Some(least), Some(median)) = (took.first(), took.get(took.len() / 2)) {
            let count = took.len();
            println!("{count:5} bring-ups, {of}: least {least:.2} ms, median {median:.2} ms");
        }
    }
}

/// Bring-ups of a machine with one device.
pub fn bring_ups() -> Result<(), Failed> {
    let case = cases::driver::alone();
    let mut bench = QemuBench::start_with(case.width, &[NIC], &[])?;
    let mut wrong = Vec::new();
    on(&case, &mut bench, &mut wrong);
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

/// What was run, and where the units differ.
pub fn report() {
    let sums = sums();
    if sums.is_empty() {
        return;
    }
    for sum in sums.iter() {
        let (family, cases, seen, took) = (sum.family, sum.cases, sum.seen, sum.took.as_secs_f64());
        println!("{cases:5} cases, {seen:6} observations, {took:6.2} s  {family}");
    }
    let cases: usize = sums.iter().map(|s| s.cases).sum();
    println!("{cases:5} cases in all");
    report_bring_ups();
    // alike ones once, with the first case and how many there are
    let mut alike: Vec<(&Differs, &str, usize)> = Vec::new();
    for (case, differs) in sums.iter().flat_map(|s| &s.differs) {
        match alike.iter_mut().find(|(other, ..)| *other == differs) {
            Some((.., count)) => *count += 1,
            None => alike.push((differs, case, 1)),
        }
    }
    println!("where the units differ:");
    for (differs, case, count) in &alike {
        println!(
            "  {count} cases ({case}{}): {differs}",
            if *count > 1 { ", .." } else { "" }
        );
    }
    println!("run on one unit only:");
    let mut only: Vec<(String, usize)> = Vec::new();
    for one in sums.iter().flat_map(|s| &s.only) {
        let text = one.to_string();
        match only.iter_mut().find(|(other, _)| *other == text) {
            Some((_, count)) => *count += 1,
            None => only.push((text, 1)),
        }
    }
    for (text, count) in &only {
        println!("  {count} cases: {text}");
    }
}
