// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab vhost-compare`: `vhost-net` beside DPDK's testpmd, in turns, under one generator.
//!
//! A *case* is what is run, a *run* one case with one back end in one round. A run that fails is a
//! line under the tables; the others go on.

pub(crate) mod arguments;
mod back_end;
mod cases;
mod tables;

use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress as _};
use arguments::VhostCompareArguments;
use back_end::{BackEnd, Cpus, Whose};
use cases::{By, Case};
use ioatlas_vhost_bench::{Bench, BenchError, Length, Pace, Report, Socket};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tables::Outcome;

/// The loss that the seed tolerates.
const TOLERATED: f64 = 0.005 / 100.0;
/// How long each rate of a search is tried.
const TRIAL: Duration = Duration::from_millis(300);
/// Of what is not counted, at the start of each session.
const SETTLE: Duration = Duration::from_millis(20);

/// Why nothing is compared.
#[allow(missing_docs)] // its variants say it
#[derive(Debug, thiserror::Error)]
pub enum VhostCompareError {
    /// There is no testpmd.
    #[error("{}: no such program, or it cannot be run; ci/install-dpdk.sh installs DPDK's testpmd", .0.display())]
    NoTestpmd(PathBuf),
    /// This process may use one CPU only.
    #[error("two CPUs are needed: one for the generator, one for the thread that forwards")]
    Cpus,
    /// A back end ended, or never listened.
    #[error("{whose} does not listen ({status}): {said}; its log: {}", log.display())]
    Died {
        whose: &'static str,
        /// How it ended, or that it made no socket in time.
        status: String,
        /// The file with all that it printed.
        log: PathBuf,
        /// The last line of that file.
        said: String,
    },
    /// An error of the operating system.
    #[error("{what}: {source}")]
    System {
        /// What was to be done or had.
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// A case of ours failed.
    #[error("{0}")]
    Failed(String),
}

/// What became of a run.
#[derive(Clone, Debug, Serialize)]
struct Run {
    case: &'static str,
    back_end: Whose,
    round: usize,
    frames_per_second: Option<f64>,
    /// With at most the seed's loss, where that was looked for.
    highest_per_second: Option<f64>,
    frames_sent: u64,
    frames_lost: u64,
    frames_lost_for_translation: u64,
    frames_corrupt: u64,
    misses: u64,
    updates: u64,
    invalidations: u64,
    round_trip_ns: f64,
    /// Part of the time that the forwarding thread had a CPU.
    forwarding_share: Option<f64>,
    failure: Option<String>,
}

pub(crate) fn run(arguments: &VhostCompareArguments) -> Answer {
    let outcome = match compare(arguments) {
        Ok(outcome) => outcome,
        Err(error) => return Error::from(error).into(),
    };
    let mut answer = Answer::show(&outcome.json(), arguments.json, |_| outcome.plain());
    answer.errors.extend(outcome.wrongs().map(Error::from));
    answer
}

fn compare(arguments: &VhostCompareArguments) -> Result<Outcome, VhostCompareError> {
    if !back_end::is_program(&arguments.testpmd) {
        return Err(VhostCompareError::NoTestpmd(arguments.testpmd.clone()));
    }
    let failed = |what| move |source| VhostCompareError::System { what, source };
    let cpus = Cpus::find()?;
    let sockets = tempfile::tempdir().map_err(failed("a temporary directory"))?;
    let logs = match &arguments.logs {
        Some(logs) => fs::create_dir_all(logs).map(|()| logs.clone()),
        None => tempfile::Builder::new()
            .prefix("ioatlas-vhost-compare-")
            .tempdir()
            .map(tempfile::TempDir::keep),
    };
    let logs = logs.map_err(failed("a directory for logs"))?;
    let (bar, load_before) = (Bar::default(), load());
    let (rounds, mut runs) = (arguments.rounds(), Vec::new());
    let cases = arguments.cases();
    let total = rounds * cases.len();
    for round in 0..rounds {
        for (number, case) in cases.iter().copied().enumerate() {
            bar.at(case.name(), round * cases.len() + number, total);
            // The order alternates, so that neither always runs after the other.
            let order = match round % 2 {
                0 => [Whose::Testpmd, Whose::Ours],
                _ => [Whose::Ours, Whose::Testpmd],
            };
            for whose in order {
                if whose == Whose::Testpmd && case.by() == By::OursOnly {
                    continue;
                }
                let log = logs.join(format!("{}-{}-{round}.log", case.name(), whose.name()));
                let iommu = case.has_iommu();
                let testpmd = &arguments.testpmd;
                let mut back = BackEnd::start(whose, testpmd, iommu, &cpus, sockets.path(), &log)?;
                let _stay = cpus.stay()?;
                runs.push(one(arguments, case, whose, round, &mut back));
            }
        }
    }
    Ok(Outcome {
        cpus: [cpus.generator, cpus.forwarder],
        load_before,
        load_after: load(),
        rounds,
        seconds: arguments.run_time().as_secs_f64(),
        logs,
        runs,
    })
}

/// Runs a case with a back end that was started for it; a failure is told in the result.
fn one(
    arguments: &VhostCompareArguments,
    case: Case,
    whose: Whose,
    round: usize,
    back: &mut BackEnd,
) -> Run {
    let mut run = Run {
        case: case.name(),
        back_end: whose,
        round,
        frames_per_second: None,
        highest_per_second: None,
        frames_sent: 0,
        frames_lost: 0,
        frames_lost_for_translation: 0,
        frames_corrupt: 0,
        misses: 0,
        updates: 0,
        invalidations: 0,
        round_trip_ns: 0.0,
        forwarding_share: None,
        failure: None,
    };
    match drive(arguments, case, back, &mut run) {
        Ok(()) => (),
        Err(error) => {
            if let BenchError::Corrupt { report, .. } = &error {
                run.take(report);
            }
            run.failure = Some(error.to_string());
        }
    }
    run
}

fn drive(
    arguments: &VhostCompareArguments,
    case: Case,
    back: &mut BackEnd,
    run: &mut Run,
) -> Result<(), BenchError> {
    let socket = Socket::Connect(back.socket.clone());
    let mut bench = Bench::connect(&socket, case.config(run.back_end))?;
    bench.run(Length::Time(SETTLE), Pace::Full)?;
    let (start, before) = (Instant::now(), back.forwarded());
    let report = bench.run(Length::Time(arguments.run_time()), Pace::Full)?;
    let (took, after) = (start.elapsed(), back.forwarded());
    run.take(&report);
    run.frames_per_second = Some(report.frames_per_second);
    run.forwarding_share = before
        .zip(after)
        .map(|(before, after)| (after - before).as_secs_f64() / took.as_secs_f64());
    // A search is some eight trials; once for each is what a round's time allows.
    if case.is_searched() && !arguments.quick && run.round < 3 {
        match bench.search(TOLERATED, Length::Time(TRIAL)) {
            Ok(found) => run.highest_per_second = Some(found.best.frames_per_second),
            Err(BenchError::NoRate { .. }) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Run {
    fn take(&mut self, report: &Report) {
        self.frames_sent = report.frames_sent;
        self.frames_lost = report.frames_lost;
        self.frames_lost_for_translation = report.frames_lost_for_translation;
        self.frames_corrupt = report.frames_corrupt;
        self.misses = report.messages.misses;
        self.updates = report.messages.updates;
        self.invalidations = report.messages.invalidations;
        self.round_trip_ns = report.round_trips.mean_ns;
    }
}

/// The load average of the last minute, where there is one.
fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}
