// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Many simulations in few passes over a trace, which need not fit in memory.
//!
//! Passes: the survey (classes, devices); the long groups, if a mirrored view is asked
//! for; then the steps, a batch at a time, through all engines. A file is read again in
//! each pass. Only the optimal eviction needs to hold the steps of the whole trace.
//! Engines are independent, so threads share them out batch by batch.

use crate::classify::Survey;
use crate::engine::Counts;
use crate::error::TraceError;
use crate::event::Event;
use crate::info::Anomalies;
use crate::mirror::{Groups, LongGroupFinder, LongGroups};
use crate::named::Part;
use crate::note::Note;
use crate::optimal::NextUses;
use crate::plan::{Plans, View};
use crate::read::{BATCH, Limits, Reader};
use crate::setup::Setup;
use crate::simulate::{Laboratory, Outcome, Run, engine};
use crate::step::Step;
use crate::trace::Trace;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;

/// Events that a mirrored view holds back when it reads from a file: 3 MiB of them.
const WINDOW: usize = 1 << 16;

/// Most IOTLB entries of all simulations of one pass: 32 MiB.
const ENTRIES_A_PASS: usize = 1 << 20;

/// Most events that the optimal eviction can look ahead in: 5 GiB of steps.
const OPTIMAL_EVENTS: usize = 1 << 28;

/// Runs the trace in `path` through each setup, on `jobs` threads. Memory does not grow
/// with the length of the trace, unless a setup has the optimal eviction, or `path` is no
/// regular file and can be read only once. Gives the trace's notes as well. `progress` is told how
/// many events, counted once a setup, are done, of how many.
pub fn simulate_file(
    path: &Path,
    setups: &[Setup],
    jobs: NonZeroUsize,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<(Vec<Outcome>, Vec<Note>), TraceError> {
    let name = path.display().to_string();
    let failed = |source| TraceError::Open {
        file: name.clone(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        let trace = Trace::read(&name, BufReader::new(file), Limits::default())?;
        let outcomes = simulate_many(&trace, setups, jobs, progress);
        return Ok((outcomes, trace.notes().to_vec()));
    }
    let optimal = setups
        .iter()
        .any(|setup| setup.strategy.has(Part::OptimalEviction));
    let limits = Limits {
        events: if optimal { OPTIMAL_EVENTS } else { usize::MAX },
        text_bytes: u64::MAX,
        ..Limits::default()
    };
    let mut source = Source {
        file,
        name,
        limits,
        devices: None,
        notes: Vec::new(),
    };
    let mut survey = Survey::default();
    let mut events = 0;
    source.pass(|batch| {
        batch.iter().for_each(|event| survey.observe(event));
        events += batch.len() as u64;
    })?;
    let long = if setups.iter().any(|setup| setup.view().mirrored) {
        let (mut classes, mut groups) = (survey.classes(), Groups::new(survey.devices()));
        let mut finder = LongGroupFinder::new(survey.devices(), WINDOW);
        source.pass(|batch| {
            for event in batch {
                let class = classes.next(event);
                finder.observe(event, groups.next(event, class));
            }
        })?;
        finder.finish()
    } else {
        LongGroups::default()
    };
    let meter = Meter::new(events * setups.len() as u64, progress);
    let mut outcomes = Vec::new();
    for setups in passes(setups) {
        let mut views: Vec<View> = setups.iter().map(Setup::view).collect();
        views.sort_unstable();
        views.dedup();
        let mut plans = Plans::new(&survey, &views, WINDOW, long.clone());
        let mut benches = Benches::new(setups, &survey);
        source.pass(|batch| {
            batch.iter().for_each(|event| plans.event(event));
            benches.run(&mut plans, jobs, &meter, batch.len());
        })?;
        plans.end();
        benches.run(&mut plans, jobs, &meter, 0);
        outcomes.extend(benches.finish(&mut plans, &survey, &meter));
    }
    Ok((outcomes, source.notes))
}

/// The setups in pieces whose IOTLBs together are not too large.
fn passes(setups: &[Setup]) -> impl Iterator<Item = &[Setup]> {
    let mut entries = 0;
    setups.chunk_by(move |setup, next| {
        entries += setup.geometry.entries();
        let fits = entries + next.geometry.entries() <= ENTRIES_A_PASS;
        if !fits {
            entries = 0;
        }
        fits
    })
}

/// A regular file that is read again and again.
struct Source {
    file: File,
    name: String,
    limits: Limits,
    /// What the first pass found.
    devices: Option<(Vec<String>, usize)>,
    notes: Vec<Note>,
}

impl Source {
    /// Shows `each` all events in batches.
    fn pass(&mut self, mut each: impl FnMut(&[Event])) -> Result<(), TraceError> {
        self.file.rewind().map_err(|source| TraceError::Open {
            file: self.name.clone(),
            source,
        })?;
        let mut reader = Reader::new(&self.name, BufReader::new(&self.file), self.limits)?;
        let (mut batch, mut events) = (Vec::with_capacity(BATCH), 0);
        while reader.read(&mut batch, BATCH)? {
            // Later passes index by device.
            let known = self.devices.as_ref().map(|(devices, _)| devices.len());
            if known.is_some_and(|known| reader.devices.len() > known) {
                return Err(self.changed());
            }
            each(&batch);
            events += batch.len();
            batch.clear();
            reader.marks.clear();
            reader.stamps.clear();
        }
        self.notes = reader.notes;
        let found = (reader.devices, events);
        match &self.devices {
            Some(first) if *first != found => Err(self.changed()),
            _ => {
                self.devices = Some(found);
                Ok(())
            }
        }
    }

    fn changed(&self) -> TraceError {
        TraceError::Changed {
            file: self.name.clone(),
        }
    }
}

type Report<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Counts what is done.
struct Meter<'a> {
    done: Mutex<(u64, Report<'a>)>,
    total: u64,
}

impl<'a> Meter<'a> {
    fn new(total: u64, progress: Report<'a>) -> Self {
        Self {
            done: Mutex::new((0, progress)),
            total,
        }
    }

    fn add(&self, events: u64) {
        if let Ok(mut done) = self.done.lock() {
            let (count, progress) = &mut *done;
            *count += events;
            progress(*count, self.total);
        }
    }
}

/// Engines by setup, and the steps kept for those that need all of them.
struct Benches<'a> {
    setups: &'a [Setup],
    /// `None` where the whole trace must be known first.
    engines: Vec<Option<Box<dyn Run + Send>>>,
    kept: BTreeMap<View, Vec<Step>>,
    events: u64,
}

impl<'a> Benches<'a> {
    fn new(setups: &'a [Setup], survey: &Survey) -> Self {
        let (mut engines, mut kept) = (Vec::new(), BTreeMap::new());
        for setup in setups {
            let optimal = setup.strategy.has(Part::OptimalEviction);
            if optimal {
                kept.insert(setup.view(), Vec::new());
            }
            engines.push((!optimal).then(|| engine(setup, survey, None, ())));
        }
        Self {
            setups,
            engines,
            kept,
            events: 0,
        }
    }

    /// Runs the steps that `plans` has made, and clears them.
    fn run(&mut self, plans: &mut Plans<'_>, jobs: NonZeroUsize, meter: &Meter<'_>, events: usize) {
        self.events += events as u64;
        for (view, _, steps) in plans.views() {
            let of_view = |setup: &Setup| setup.view() == view;
            let engines = self.setups.iter().zip(&mut self.engines);
            let engines = engines.filter(|(setup, _)| of_view(setup));
            let engines: Vec<_> = engines.filter_map(|(_, engine)| engine.as_mut()).collect();
            share_out(jobs, engines, |engine| {
                engine.run(steps);
                meter.add(events as u64);
            });
            if let Some(kept) = self.kept.get_mut(&view) {
                kept.extend_from_slice(steps);
            }
            steps.clear();
        }
    }

    fn finish(self, plans: &mut Plans<'_>, survey: &Survey, meter: &Meter<'_>) -> Vec<Outcome> {
        let views = plans.views();
        let anomalies: BTreeMap<View, Anomalies> = views
            .map(|(view, anomalies, _)| (view, anomalies))
            .collect();
        let next_uses = |(view, steps): (View, Vec<Step>)| {
            // The limit on events keeps the steps below what can be numbered.
            let next_uses = NextUses::of(&steps, survey.devices()).unwrap_or_default();
            (view, (steps, next_uses))
        };
        let kept: BTreeMap<_, _> = self.kept.into_iter().map(next_uses).collect();
        let counts = |(setup, done): (&Setup, Option<Box<dyn Run + Send>>)| -> Counts {
            match (done, kept.get(&setup.view())) {
                (Some(engine), _) => engine.finish(),
                (None, Some((steps, next_uses))) => {
                    let mut engine = engine(setup, survey, Some(next_uses), ());
                    engine.run(steps);
                    meter.add(self.events);
                    engine.finish()
                }
                (None, None) => Counts::default(),
            }
        };
        let outcomes = self.setups.iter().zip(self.engines).map(|(setup, engine)| {
            let anomalies = anomalies.get(&setup.view()).copied().unwrap_or_default();
            let counts = counts((setup, engine));
            Outcome::new(setup.strategy.to_string(), &counts, anomalies)
        });
        outcomes.collect()
    }
}

/// Runs a trace in memory through each setup, on `jobs` threads.
#[must_use]
pub fn simulate_many(
    trace: &Trace,
    setups: &[Setup],
    jobs: NonZeroUsize,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Vec<Outcome> {
    let laboratory = Laboratory::new(trace);
    let meter = Meter::new((trace.events().len() * setups.len()) as u64, progress);
    let mut outcomes = vec![Outcome::default(); setups.len()];
    let work = setups.iter().zip(&mut outcomes).collect();
    share_out(jobs, work, |(setup, outcome)| {
        *outcome = laboratory.simulate(setup);
        meter.add(trace.events().len() as u64);
    });
    outcomes
}

/// Does all the work on `jobs` threads, each taking the next piece when it is free.
fn share_out<T: Send>(jobs: NonZeroUsize, work: Vec<T>, each: impl Fn(T) + Sync) {
    let threads = jobs.get().min(work.len());
    if threads <= 1 {
        return work.into_iter().for_each(each);
    }
    let queue = Mutex::new(work.into_iter());
    let next = || queue.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(piece) = next() {
                    each(piece);
                }
            });
        }
    });
}
