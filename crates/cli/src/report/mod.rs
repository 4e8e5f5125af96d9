// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas report`: a diagnosis of traces.
//!
//! One [`Report`] is built from the traces; the terminal summary, the page and the
//! JSON are views of it. Every number in it is a [`Figure`](ioatlas_present::Figure), which carries
//! its tag and decides how it is shown, so that the views agree.

mod advice;
mod atlas;
pub mod bouncing;
pub mod captures;
mod catalogue;
mod charts;
pub mod compare;
mod html;
pub mod model;
pub mod perfetto;
mod pool;
pub mod provenance;
pub mod remedy;
pub mod savings;
pub mod systems;
pub mod terminal;
pub mod timings;
pub mod verdict;

pub use atlas::Atlas;
pub use html::page;
pub use model::Report;

use crate::args::ReportArguments;
use crate::bundled;
use crate::error::Error;
use crate::histograms::Histograms;
use crate::input::Input;
use crate::loaded::{self, LoadedTrace};
use crate::output::Target;
use crate::progress::{Bar, Part, Progress};
use crate::{Answer, Screen, Surroundings};
use captures::{Capture, Costs, Pairs};
use compare::Comparison;
use ioatlas_iotlb::{Geometry, SWEEP_ENTRIES};
use model::{Loss, Making, OracleTotals, Provenance, Source};
use savings::Savings;
use std::ffi::OsString;
use systems::Rows;
use timings::Timings;

/// Room on the page for all pictures of traces, in bytes; the rest is small.
const ATLAS_ROOM: usize = 450_000;

/// Bytes of a page, at most.
pub const MAX_PAGE_BYTES: usize = 1_000_000;

/// Pictures on the page; more would each be too coarse to say anything.
const MAX_ATLASES: usize = 24;

/// The traces of a report.
#[derive(Debug)]
pub struct Traces {
    /// Whether they are bundled or the user's.
    pub source: Source,
    /// The traces to diagnose and to run the systems on.
    pub traces: Vec<LoadedTrace>,
    /// Variants of bundled ones, diagnosed only.
    pub variants: Vec<LoadedTrace>,
    /// What was only counted.
    pub histograms: Vec<Histograms>,
}

pub(crate) fn run(
    arguments: &ReportArguments,
    command: &[OsString],
    surroundings: &Surroundings,
) -> Answer {
    // Before the long work: what can be known to fail early.
    let (target, perfetto) = match targets(arguments) {
        Ok(targets) => targets,
        Err(error) => return error.into(),
    };
    let bar = Bar::default();
    let [reading, working] = Part::divide(&bar, [1, 2]);
    let traces = match load(arguments, &reading) {
        Ok(traces) => traces,
        Err(errors) => return errors.into(),
    };
    if let Some(target) = &perfetto
        && let Err(error) = perfetto::export(&traces.traces, target)
    {
        return error.into();
    }
    let timings = Timings::new(&arguments.bench(surroundings.cache.as_deref()));
    let report = build(
        &timings,
        &traces,
        &arguments.designs.rows(),
        arguments.inv_ns,
        &target,
        command,
        &working,
    );
    timings.keep();
    drop(bar);
    report
        .and_then(|mut report| {
            report.provenance.perfetto = perfetto.map(|target| target.shown());
            conclude(&report, &target, arguments.json, &surroundings.screen)
        })
        .into()
}

/// Where the page goes, and what viewers of time lines open, if it was asked for.
fn targets(arguments: &ReportArguments) -> Result<(Target, Option<Target>), Error> {
    let page = Target::prepare(&arguments.output)?;
    page.is_none_of(&arguments.traces)?;
    Error::if_twice(&arguments.traces)?;
    let perfetto = match &arguments.perfetto {
        None => None,
        Some(path) => {
            let target = Target::prepare(path)?;
            target.is_none_of(&arguments.traces)?;
            target.is_not(&page)?;
            Some(target)
        }
    };
    Ok((page, perfetto))
}

/// Writes the page and says the rest; a violation is a failure, but one worth a page.
fn conclude(
    report: &Report,
    target: &Target,
    json: bool,
    screen: &Screen,
) -> Result<Answer, Error> {
    let page = page(report);
    if page.len() >= MAX_PAGE_BYTES {
        return Err(Error::PageTooLarge {
            bytes: page.len(),
            most: MAX_PAGE_BYTES,
        });
    }
    target.replace(|file| file.write_all(page.as_bytes()))?;
    let text = if json {
        ioatlas_present::json(report)?
    } else {
        terminal::render(report, page.len(), screen)
    };
    let count = report
        .oracle
        .map_or(0, |totals| totals.violations.value as u64);
    let violation = (count > 0).then(|| Error::Violation {
        first: report.first_violation().unwrap_or_default(),
        count,
    });
    Ok(Answer {
        text,
        errors: violation.into_iter().collect(),
    })
}

fn load(
    arguments: &ReportArguments,
    progress: &(dyn Progress + Sync),
) -> Result<Traces, Vec<Error>> {
    if arguments.traces.is_empty() {
        return bundled_traces().map_err(|error| vec![error]);
    }
    let (mut traces, mut histograms, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for (n, path) in arguments.traces.iter().enumerate() {
        let part = Part::of(progress, n, arguments.traces.len());
        let mut open = || -> Result<(), Error> {
            let file = Input::open(path, &part)?;
            match Histograms::open(path, &file)? {
                Some(counts) => histograms.push(counts),
                None => traces.push(LoadedTrace::open(path, &file, &arguments.capture)?),
            }
            Ok(())
        };
        errors.extend(open().err());
    }
    let traces_named = traces.iter_mut().map(LoadedTrace::naming);
    let counts_named = histograms.iter_mut().map(Histograms::naming);
    loaded::tell_apart(traces_named.chain(counts_named));
    if errors.is_empty() {
        Ok(Traces {
            source: Source::User,
            traces,
            variants: Vec::new(),
            histograms,
        })
    } else {
        Err(errors)
    }
}

/// The bundled traces, base and variants.
///
/// # Errors
///
/// [`Error::Trace`], if the binary was built from damaged files.
pub fn bundled_traces() -> Result<Traces, Error> {
    let load = |samples: &[bundled::Sample]| {
        samples
            .iter()
            .map(bundled::Sample::load)
            .collect::<Result<Vec<_>, Error>>()
    };
    Ok(Traces {
        source: Source::Bundled,
        traces: load(&bundled::BASE)?,
        variants: load(&bundled::VARIANTS)?,
        histograms: Vec::new(),
    })
}

/// Diagnoses all traces, and runs the systems of `rows` on those that are no variants; times are
/// from `timings`.
///
/// # Errors
///
/// [`Error::System`] from the runs, [`Error::Geometry`] from a diagnosis.
pub fn build(
    timings: &Timings,
    traces: &Traces,
    rows: &Rows,
    inv_ns: Option<f64>,
    target: &Target,
    command: &[OsString],
    progress: &(dyn Progress + Sync),
) -> Result<Report, Error> {
    let geometry = Geometry::default();
    let wait = provenance::wait(inv_ns);
    // misses are of those whose accesses were recorded
    let recorded = |of: &&LoadedTrace| of.has_accesses();
    let diagnosed: Vec<&LoadedTrace> = traces.traces.iter().filter(recorded).collect();
    let variants: Vec<&LoadedTrace> = traces.variants.iter().collect();
    let others = traces.traces.len() - diagnosed.len();
    let steps = (diagnosed.len() + variants.len()) * SWEEP_ENTRIES.len() + others;
    let rows = match diagnosed.is_empty() && others > 0 {
        true => rows.of_captures(),
        false => rows.clone(),
    };
    // what is run again and timed takes longer than what is simulated
    let runs = 4 * rows.systems().len() * (traces.traces.len() + 1);
    let [diagnosing, running] = Part::divide(progress, [steps, runs]);
    let mut done = 0;
    let mut captures = Vec::new();
    for loaded in &traces.traces {
        if !loaded.has_accesses() {
            diagnosing.at(&loaded.label, done, steps);
            captures.extend(Capture::of(loaded, wait.time));
            done += 1;
        }
    }
    captures.extend(traces.histograms.iter().map(Capture::of_histograms));
    let drawn = diagnosed.len().min(MAX_ATLASES);
    let room = ATLAS_ROOM / drawn.max(1);
    let mut atlases = Vec::new();
    let mut diagnose = |of: &[&LoadedTrace], drawn: usize| -> Result<Vec<_>, Error> {
        let mut verdicts = Vec::new();
        for (number, loaded) in of.iter().enumerate() {
            let savings = Savings::of(&loaded.trace, geometry);
            if number < drawn {
                let (trace, label) = (&loaded.trace, &loaded.label);
                atlases.push(Atlas::draw(trace, label, geometry, &savings, room));
            }
            verdicts.extend(verdict::verdicts(loaded, geometry, &savings, || {
                diagnosing.at(&loaded.label, done, steps);
                done += 1;
            })?);
        }
        Ok(verdicts)
    };
    let mut verdicts = diagnose(&diagnosed, drawn)?;
    let variants = diagnose(&variants, 0)?;
    let options = systems::Options {
        rows,
        wait: wait.time,
        geometry,
    };
    let systems = match traces.traces.is_empty() {
        true => Vec::new(),
        false => systems::rows(&traces.traces, &options, timings, &running)?,
    };
    if captures.iter().any(|capture| capture.seconds.is_some()) {
        let pairs = Pairs::measure(timings)?;
        for capture in &mut captures {
            capture.costs = Costs::of(capture, &pairs, wait.time);
        }
    }
    captures.iter_mut().for_each(Capture::advise);
    let whole = |loaded: &&&LoadedTrace| loaded.trace.lost_events() == 0;
    for loaded in diagnosed.iter().filter(whole) {
        let bounced = bouncing::gains(&loaded.trace, &bouncing::strict(wait.time));
        let of_trace = verdicts.iter_mut().filter(|v| v.trace == loaded.label);
        for (verdict, bounced) in of_trace.zip(bounced) {
            verdict.remedies = advice::of_verdict(verdict, bounced, &systems);
        }
    }
    let origins = traces
        .traces
        .iter()
        .map(|trace| provenance::origin(trace, false));
    let origins = origins.chain(traces.variants.iter().map(|t| provenance::origin(t, true)));
    let counted = traces.histograms.iter().map(provenance::origin_of_counts);
    let origins = origins.chain(counted);
    let losses: Vec<Loss> = traces.traces.iter().filter_map(Loss::of).collect();
    let mut report = Report {
        source: traces.source,
        iotlb_entries: geometry.entries(),
        iotlb_ways: geometry.ways(),
        usable: losses.is_empty(),
        losses,
        made: (traces.traces.iter().filter_map(Making::of))
            .chain(traces.histograms.iter().map(Making::of_histograms))
            .collect(),
        verdicts,
        captures,
        comparison: None,
        variants,
        oracle: OracleTotals::of(&systems),
        systems,
        bouncing: bouncing::Bouncing::of(&traces.traces, wait.time),
        wait,
        provenance: Provenance {
            command: provenance::command_line("ioatlas", command),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("IOATLAS_COMMIT"),
            cpu: provenance::cpu_model(),
            cpus: provenance::cpus(),
            timings: timings.origin(),
            traces: origins.collect(),
            page: target.shown(),
            perfetto: None,
        },
        atlases,
    };
    report.comparison = Comparison::of(&report, traces);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn a_violation_fails_after_the_page_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        let target = Target::prepare(&path).unwrap();
        let text = "# ioatlas-trace 1\nM d 1 1 r\nA d 1 r\nU d 1 1\n";
        let traces = Traces {
            source: Source::User,
            traces: vec![LoadedTrace::read("t", text.as_bytes(), None).unwrap()],
            variants: Vec::new(),
            histograms: Vec::new(),
        };
        let timings = Timings::new(&timings::Bench::Now);
        let rows = &Rows::Systems;
        let mut report = build(&timings, &traces, rows, None, &target, &[], &Silent).unwrap();
        assert_eq!(
            conclude(&report, &target, false, &Screen::default())
                .unwrap()
                .errors
                .len(),
            0
        );
        report.systems[2].violations.value = 3.0;
        report.systems[2].first_violation = Some("t: P1: page 7".into());
        report.oracle = OracleTotals::of(&report.systems);
        std::fs::remove_file(&path).unwrap();
        let answer = conclude(&report, &target, false, &Screen::default()).unwrap();
        assert!(
            answer.text.contains("3 violations in 14 accesses"),
            "{}",
            answer.text
        );
        let [error] = answer.errors.as_slice() else {
            panic!("{:?}", answer.errors);
        };
        assert_eq!(
            error.to_string(),
            "violation: as Linux strict: t: P1: page 7 (one of 3)"
        );
        assert!(
            std::fs::read_to_string(&path)
                .unwrap()
                .ends_with("</html>\n")
        );
    }
}
