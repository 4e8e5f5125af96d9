// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas report`: a diagnosis of traces.
//!
//! One [`Report`] is built from the traces; the terminal summary, the page and the
//! JSON are views of it. Every number in it is a [`Figure`], which carries its tag and
//! decides how it is shown, so that the views agree.

mod atlas;
mod charts;
pub mod figure;
mod html;
pub mod model;
mod provenance;
pub mod systems;
pub mod terminal;
pub mod verdict;

pub use atlas::Atlas;
pub use figure::{Figure, Tag, Unit};
pub use html::page;
pub use model::Report;

use crate::Answer;
use crate::args::ReportArguments;
use crate::bundled;
use crate::error::Error;
use crate::loaded::LoadedTrace;
use crate::output::Target;
use crate::progress::{Bar, Progress};
use ioatlas_iotlb::{Geometry, SWEEP_ENTRIES};
use model::{OracleTotals, Provenance, Source};
use std::ffi::OsString;

/// Room on the page for all pictures of traces, in bytes; the rest is small.
const ATLAS_ROOM: usize = 600_000;

/// Pictures on the page; more would each be too coarse to say anything.
const MAX_ATLASES: usize = 24;

/// The traces of a report.
#[derive(Debug)]
pub struct Traces {
    /// Whose they are.
    pub source: Source,
    /// The traces to diagnose and to run the systems on.
    pub traces: Vec<LoadedTrace>,
    /// Variants of bundled ones, diagnosed only.
    pub variants: Vec<LoadedTrace>,
}

pub(crate) fn run(arguments: &ReportArguments, command: &[OsString]) -> Answer {
    // Before the long work: what can be known to fail early.
    let target = match Target::prepare(&arguments.output) {
        Ok(target) => target,
        Err(error) => {
            return Answer {
                errors: vec![error],
                ..Answer::default()
            };
        }
    };
    let traces = match load(arguments) {
        Ok(traces) => traces,
        Err(errors) => {
            return Answer {
                errors,
                ..Answer::default()
            };
        }
    };
    let result = build(&traces, arguments.inv_ns, &target, command, &Bar::default())
        .and_then(|report| write(&report, &target, arguments.json));
    match result {
        Ok(text) => Answer {
            text,
            errors: Vec::new(),
        },
        Err(error) => Answer {
            errors: vec![error],
            ..Answer::default()
        },
    }
}

fn write(report: &Report, target: &Target, json: bool) -> Result<String, Error> {
    let page = page(report);
    target.replace(|file| file.write_all(page.as_bytes()))?;
    if json {
        return Ok(serde_json::to_string_pretty(report)? + "\n");
    }
    Ok(terminal::render(report, page.len()))
}

fn load(arguments: &ReportArguments) -> Result<Traces, Vec<Error>> {
    if arguments.traces.is_empty() {
        return bundled_traces().map_err(|error| vec![error]);
    }
    let (mut traces, mut errors) = (Vec::new(), Vec::new());
    for path in &arguments.traces {
        match LoadedTrace::open(path) {
            Ok(trace) => traces.push(trace),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        Ok(Traces {
            source: Source::User,
            traces,
            variants: Vec::new(),
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
    })
}

/// Makes the report.
///
/// # Errors
///
/// [`Error::System`] or [`Error::Geometry`].
pub fn build(
    traces: &Traces,
    inv_ns: Option<f64>,
    target: &Target,
    command: &[OsString],
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let geometry = Geometry::default();
    let steps = (traces.traces.len() + traces.variants.len()) * SWEEP_ENTRIES.len();
    let mut done = 0;
    let mut diagnose = |of: &[LoadedTrace]| -> Result<Vec<_>, Error> {
        let mut verdicts = Vec::new();
        for loaded in of {
            verdicts.extend(verdict::verdicts(loaded, geometry, || {
                progress.at(&loaded.label, done, steps);
                done += 1;
            })?);
        }
        Ok(verdicts)
    };
    let verdicts = diagnose(&traces.traces)?;
    let variants = diagnose(&traces.variants)?;
    let wait = provenance::wait(inv_ns);
    let options = systems::Options {
        wait: wait.time,
        geometry,
    };
    let systems = systems::rows(&traces.traces, &options, progress)?;
    let drawn = &traces.traces[..traces.traces.len().min(MAX_ATLASES)];
    let room = ATLAS_ROOM / drawn.len().max(1);
    let draw = |t: &LoadedTrace| Atlas::draw(&t.trace, &t.label, geometry, room);
    let origins = traces
        .traces
        .iter()
        .map(|trace| provenance::origin(trace, false));
    let origins = origins.chain(traces.variants.iter().map(|t| provenance::origin(t, true)));
    Ok(Report {
        source: traces.source,
        iotlb_entries: geometry.entries(),
        iotlb_ways: geometry.ways(),
        verdicts,
        variants,
        oracle: OracleTotals::of(&systems),
        systems,
        wait,
        provenance: Provenance {
            command: provenance::command_line(command),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("IOATLAS_COMMIT"),
            cpu: provenance::cpu_model(),
            cpus: provenance::cpus(),
            traces: origins.collect(),
            page: target.path().to_owned(),
        },
        atlases: drawn.iter().map(draw).collect(),
    })
}
