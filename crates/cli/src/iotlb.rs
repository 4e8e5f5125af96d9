// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas iotlb`: strategies on traces.

mod heat;
mod sweep;

use crate::args::IotlbArguments;
use crate::capture::{CaptureArguments, Noted, noted};
use crate::error::Error;
use crate::info::ByName;
use crate::input;
use crate::progress::{Bar, Part, Progress};
use crate::{Answer, Screen};
use ioatlas_iotlb::import::{Assume, Format};
use ioatlas_iotlb::{Note, Outcome, Setup, TraceError, simulate_file, simulate_many};
use ioatlas_present::{Table, grouped, printable};
use std::num::NonZeroUsize;
use std::path::Path;

pub(crate) fn run(arguments: &IotlbArguments, screen: &Screen) -> Answer {
    if let Err(error) = Error::if_twice(&arguments.traces) {
        return error.into();
    }
    let setups = match arguments.setups() {
        Ok(setups) => setups,
        Err(error) => return error.into(),
    };
    if let Some(grid) = &arguments.sweep {
        return sweep::run(arguments, grid, &setups);
    }
    let (mut results, mut errors) = (Vec::new(), Vec::new());
    let bar = Bar::default();
    for (n, path) in arguments.traces.iter().enumerate() {
        let part = Part::of(&bar, n, arguments.traces.len());
        match simulate(path, &arguments.capture, &setups, arguments.jobs(), &part) {
            Ok(outcomes) => results.push((input::name(path), outcomes)),
            Err(error) => errors.push(error),
        }
    }
    drop(bar);
    let text = if arguments.json {
        ByName::new(&results, arguments.traces.len()).json(&mut errors)
    } else {
        plain(&results, screen)
    };
    Answer { text, errors }
}

/// Simulates. A capture must fit in memory, a trace only if accesses are to be put
/// into it or it can be read only once.
fn simulate(
    path: &Path,
    capture: &CaptureArguments,
    setups: &[Setup],
    jobs: NonZeroUsize,
    progress: &(dyn Progress + Sync),
) -> Result<Vec<Noted<Outcome>>, Error> {
    let what = printable(&input::name(path), 40);
    let steps = |events: u64| usize::try_from(events).unwrap_or(usize::MAX);
    let tell =
        |part: &(dyn Progress + Sync), done, total| part.at(&what, steps(done), steps(total));
    let with = |notes: Vec<Note>, outcomes: Vec<Outcome>| {
        let noted = |result| Noted {
            result,
            notes: notes.clone(),
        };
        outcomes.into_iter().map(noted).collect()
    };
    // What is no regular file can be read only once.
    let again =
        !input::is_standard(path) && path.metadata().is_ok_and(|metadata| metadata.is_file());
    if again && matches!(capture.from, None | Some(Format::Trace)) {
        match simulate_file(path, setups, jobs, &mut |done, total| {
            tell(progress, done, total);
        }) {
            Err(TraceError::MissingHeader { .. }) if capture.from.is_none() => {}
            Err(error) => return Err(error.into()),
            Ok((outcomes, notes)) => {
                let has_accesses = outcomes.iter().any(|outcome| outcome.accesses > 0);
                if has_accesses || capture.options().assume == Assume::None {
                    return Ok(with(notes, outcomes));
                }
            }
        }
    }
    let [reading, simulating] = Part::divide(progress, [1, setups.len()]);
    let trace = capture.load(path, &reading)?;
    let outcomes = simulate_many(&trace, setups, jobs, &mut |done, total| {
        tell(&simulating, done, total);
    });
    Ok(with(trace.notes().to_vec(), outcomes))
}

fn plain(results: &[(String, Vec<Noted<Outcome>>)], screen: &Screen) -> String {
    if results.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        "trace",
        "strategy",
        "accesses",
        "hits",
        "prefetch hits",
        "misses",
        "faults",
        "miss rate",
        "evictions",
        "invalidations",
    ])
    .aligned("llr");
    for (name, outcomes) in results {
        for Noted {
            result: outcome, ..
        } in outcomes
        {
            table.row([
                printable(name, 60),
                outcome.strategy.clone(),
                grouped(outcome.accesses),
                grouped(outcome.hits),
                grouped(outcome.prefetch_hits),
                grouped(outcome.misses),
                grouped(outcome.faults),
                format!("{:.4}", outcome.miss_rate),
                grouped(outcome.evictions),
                grouped(outcome.invalidations),
            ]);
        }
    }
    let mut text = table.fitted("", screen.columns(), |text| screen.heading(text));
    for (name, outcomes) in results {
        let anomalies = outcomes
            .first()
            .map(|outcome| outcome.result.anomalies)
            .unwrap_or_default();
        if !anomalies.is_empty() {
            text.push_str(&format!(
                "{}: anomalies: {} pages mapped over, {} pages unmapped twice, {} faults\n",
                printable(name, 60),
                grouped(anomalies.map_over_mapped_pages.0),
                grouped(anomalies.unmap_not_mapped_pages.0),
                grouped(anomalies.faults)
            ));
        }
        text += &noted(name, outcomes);
    }
    text
}
