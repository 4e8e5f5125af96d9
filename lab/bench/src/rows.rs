// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Rows of a table of figures, and how a group of them is measured together.
//!
//! A group is run by [`alternate_within`]: all of its rows, with the controls they need, in slices
//! one after the other. So what is compared stands in one group. Under `producer-consumer` the
//! control is the ring of 256 on two threads, since what is private cannot be handed over; and the
//! hand-off itself, of numbers that were not taken from any subject, is a contestant too.

use crate::{
    Case, Contestant, Effort, Failure, Figure, Kind, Pattern, Sizes, Spread,
    case::Ours,
    figure::{Unmeasured, usual},
    latency,
    peers::{Peer, PeerSubject},
    platform::host,
    slices::{Limit, alternate_within},
    subjects::{Invalidation, Software, UnderLate, UnderSoftware},
};
use ioatlas_dma::{design::Design, table::fmt::VtdSecond48};
use ioatlas_host::Host;
use std::{fmt, sync::Arc};

/// A subject or a unit that a row can be of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum What {
    /// A subject of this project.
    Ours(Kind),
    /// A whole domain on the software unit, which does every invalidation when it is asked, on
    /// the thread that asks.
    Software(Design),
    /// The same, answered [`latency::LATENCY`] later, one request after the other.
    Late(Design),
    /// The software unit's latency: one invalidation after the other.
    Invalidation,
    /// A subject from another project.
    Peer(Peer),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Ours(kind) => kind.fmt(f),
            What::Software(design) | What::Late(design) => {
                let (allocator, policy) = (design.domain.allocator, design.domain.policy);
                let unit = match self {
                    What::Late(_) => "late",
                    _ => "software",
                };
                write!(f, "{unit}/{}+{}", allocator.name(), policy.name())
            }
            What::Invalidation => write!(f, "software/invalidation"),
            What::Peer(peer) => write!(f, "peer/{}", peer.name),
        }
    }
}

/// One row: what, in which order, how large, on how many threads.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Spec {
    pub what: What,
    pub pattern: Pattern,
    pub sizes: Sizes,
    /// How many threads share it.
    pub threads: usize,
}

impl Spec {
    /// This one in place of another, under the same circumstances.
    fn instead(self, what: What) -> Spec {
        Spec { what, ..self }
    }
    /// Its control: the control loop under the same pattern, or a ring where that takes two sides.
    fn control(self) -> Spec {
        let pattern = match self.pattern {
            Pattern::ProducerConsumer => Pattern::Ring(256),
            pattern => pattern,
        };
        Spec {
            pattern,
            ..self.instead(What::Ours(Kind::Control))
        }
    }
    /// What else its row says something of.
    fn beside(self) -> Option<Spec> {
        if self.pattern == Pattern::ProducerConsumer {
            return Some(self.instead(What::Ours(Kind::Nothing)));
        }
        let software = matches!(self.what, What::Software(_));
        software.then(|| self.instead(What::Invalidation))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spec {
            what,
            pattern,
            sizes,
            threads,
        } = self;
        write!(f, "{what}/{pattern}/{}/{threads}", sizes.name())
    }
}

impl From<Case> for Spec {
    /// The case on one thread.
    fn from(case: Case) -> Self {
        Spec {
            what: What::Ours(case.kind),
            pattern: case.pattern,
            sizes: case.sizes,
            threads: 1,
        }
    }
}

/// What was measured of one row.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Row {
    pub spec: Spec,
    /// Its time; or why there is none.
    pub figure: Result<Figure, Unmeasured>,
    /// The control's time in the same rounds.
    pub control: Option<Figure>,
    /// Its time by the control's, in the same rounds.
    pub control_ratio: Option<Spread>,
    /// Under `producer-consumer`, the time of the hand-off itself; on the software unit,
    /// that of an invalidation.
    pub beside: Option<Figure>,
    /// Its time beyond that, in the same rounds.
    pub excess: Option<Spread>,
}

enum Subject {
    Ours(Ours),
    Software(Box<UnderSoftware<Host, VtdSecond48>>),
    Late(Box<UnderLate<Host, VtdSecond48>>),
    Invalidation(Box<Invalidation<Host>>),
    Peer(PeerSubject),
}

/// Frames of a software unit's platform.
const FRAMES: usize = 1 << 14;
/// Slots of a host beyond those of a measurement's threads: other threads of this process may
/// hold some of them.
const SPARE_SLOTS: usize = 16;

impl Subject {
    fn new(spec: &Spec) -> Result<Self, Failure> {
        let slots = spec.threads + SPARE_SLOTS;
        let software = || Software::new::<VtdSecond48>(Arc::new(host(FRAMES, slots)?));
        Ok(match spec.what {
            What::Ours(kind) => Subject::Ours(Ours::new(kind, slots)?),
            What::Software(design) => Subject::Software(Box::new(software()?.domain(design)?)),
            What::Late(design) => {
                Subject::Late(Box::new(software()?.late(design, latency::LATENCY)?))
            }
            What::Invalidation => Subject::Invalidation(Box::new(software()?.invalidation()?)),
            What::Peer(peer) => Subject::Peer(peer.subject(spec.threads)?),
        })
    }
    fn contestant(&self, spec: &Spec) -> Contestant<'_> {
        let Spec {
            pattern,
            sizes,
            threads,
            ..
        } = *spec;
        match self {
            Subject::Ours(ours) => ours.contestant(pattern, sizes, threads),
            Subject::Software(s) => Contestant::new(&**s, pattern, sizes, threads),
            Subject::Late(s) => Contestant::new(&**s, pattern, sizes, threads),
            Subject::Invalidation(s) => Contestant::new(&**s, pattern, sizes, threads),
            Subject::Peer(peer) => peer.contestant(pattern, sizes, threads),
        }
    }
}

impl Row {
    /// One that there is no time for.
    pub fn late(spec: Spec) -> Self {
        Row {
            spec,
            figure: Err(Unmeasured::Late { slices: 0 }),
            control: None,
            control_ratio: None,
            beside: None,
            excess: None,
        }
    }
}

/// What runs in turns when `rows` are measured together: they, and what they are compared with.
pub fn contestants(rows: &[Spec]) -> Vec<Spec> {
    let mut specs: Vec<Spec> = Vec::new();
    let wanted = rows.iter().flat_map(|row| {
        let own = [Some(*row), Some(row.control()), row.beside()];
        own.into_iter().flatten()
    });
    for spec in wanted {
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    specs
}

/// Measures `rows` together. What cannot be measured says why; the others are.
pub fn measure(rows: &[Spec], effort: Effort) -> Vec<Row> {
    measure_within(rows, effort, Limit::NONE)
}

/// The same within a limit.
pub fn measure_within(rows: &[Spec], effort: Effort, limit: Limit) -> Vec<Row> {
    let specs = contestants(rows);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let made = |spec: &Spec| {
        if spec.threads > cpus {
            let threads = spec.threads;
            return Err(Unmeasured::Cpus { threads, cpus });
        }
        Subject::new(spec).map_err(|failure| Unmeasured::Failed(failure.to_string()))
    };
    let subjects: Vec<Result<Subject, Unmeasured>> = specs.iter().map(made).collect();
    let able = |(subject, spec)| -> Option<(&Subject, &Spec)> {
        let subject: &Result<Subject, Unmeasured> = subject;
        Some((subject.as_ref().ok()?, spec))
    };
    let contestants: Vec<Contestant<'_>> = subjects
        .iter()
        .zip(&specs)
        .filter_map(able)
        .map(|(subject, spec)| subject.contestant(spec))
        .collect();
    let records = alternate_within(&contestants, effort, limit);
    drop(contestants);
    let mode = usual(&records);
    let mut records = records.into_iter();
    let figures: Vec<Result<Figure, Unmeasured>> = subjects
        .iter()
        .zip(&specs)
        .map(|(subject, spec)| {
            subject.as_ref().map_err(Unmeasured::clone)?;
            let record = records.next().unwrap_or_default();
            Figure::of(&record, spec.threads, mode)
        })
        .collect();
    let figure = |spec: Spec| specs.iter().position(|s| *s == spec).map(|at| &figures[at]);
    let row = |spec: &Spec| {
        let ours = figure(*spec).cloned();
        let ours = ours.unwrap_or_else(|| Err(Unmeasured::Failed("it was not run".into())));
        let found = |spec: Option<Spec>| figure(spec?)?.as_ref().ok().cloned();
        let control = found(Some(spec.control()));
        let beside = found(spec.beside());
        let pair = |other: &Option<Figure>, of: fn(&Figure, &Figure) -> Option<Spread>| {
            of(ours.as_ref().ok()?, other.as_ref()?)
        };
        Row {
            spec: *spec,
            control_ratio: pair(&control, Figure::ratio),
            excess: pair(&beside, Figure::excess),
            figure: ours,
            control,
            beside,
        }
    };
    rows.iter().map(row).collect()
}

/// The time of a map and an unmap of one page under `pattern`, on each of `threads` threads at
/// once. `None` where there are fewer CPUs, or where the machine was too busy to run all threads at
/// the same time.
///
/// # Errors
/// The design failed where it must not.
pub fn pair_time(
    design: Design,
    pattern: Pattern,
    threads: usize,
    effort: Effort,
) -> Result<Option<Spread>, Failure> {
    let spec = Spec {
        what: What::Ours(Kind::Domain(design)),
        pattern,
        sizes: Sizes::One,
        threads,
    };
    match measure(&[spec], effort).pop().map(|row| row.figure) {
        Some(Ok(figure)) => Ok(Some(figure.ns)),
        Some(Err(Unmeasured::Failed(why))) => Err(Failure::new(why)),
        Some(Err(_)) | None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_thread_is_measured_however_busy_the_machine() {
        let impatient = Effort {
            patience: Duration::ZERO,
            ..Effort::QUICK
        };
        let design = Design::parse("rbtree,strict").unwrap();
        assert!(
            pair_time(design, Pattern::Ring(256), 1, impatient)
                .unwrap()
                .is_some()
        );
    }
}
