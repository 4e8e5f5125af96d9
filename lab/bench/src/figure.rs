// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From slices to figures.
//!
//! A figure of one thread is of all its slices, as they are timed by its own CPU time. One of two
//! threads is of clean ones, and of one mode: that in which more of its group's clean slices were,
//! or else, where it has too few of these, the other; see [`crate::probe`]. A ratio is the median
//! of ratios within rounds, so that what disturbs a round disturbs both sides of it.

use crate::{
    Spread,
    probe::Mode,
    slices::{LEAST, Quality, Record, Slice},
};

/// Why there is no figure.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum Unmeasured {
    /// What was measured failed, or could not be made.
    #[error("{0}")]
    Failed(String),
    /// There are fewer CPUs than threads.
    #[error("{threads} threads need as many CPUs, and there are {cpus}")]
    Cpus {
        threads: usize,
        /// CPUs that there are.
        cpus: usize,
    },
    /// The time for all that was to be measured was over.
    #[error("the time for all rows was over: {slices} slices were run, {LEAST} are needed")]
    Late {
        /// Slices that there was time for.
        slices: usize,
    },
    /// Too few slices count.
    #[error(
        "the machine was too busy: {counting} of {slices} slices count, {LEAST} are needed (a thread waited for a CPU in {queued}, threads were not at once in {apart}, their distance changed in {unsteady})"
    )]
    Busy {
        /// Slices that count: clean, and of one mode.
        counting: usize,
        /// Slices that were run in all.
        slices: usize,
        /// Those in which a thread waited for a CPU.
        queued: usize,
        /// Those in which threads did not run at the same time.
        apart: usize,
        /// Those in which the mode changed.
        unsteady: usize,
    },
}

/// The mode in which most of the clean slices of these contestants were.
pub fn usual(records: &[Record]) -> Mode {
    let slices = records.iter().flat_map(|record| &record.slices);
    let clean = slices.filter(|slice| slice.quality == Quality::Clean);
    let (mut near, mut far) = (0, 0);
    for mode in clean.filter_map(|slice| slice.mode) {
        match mode {
            Mode::Near => near += 1,
            Mode::Far => far += 1,
        }
    }
    if near > far { Mode::Near } else { Mode::Far }
}

/// What the slices of a contestant come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Nanoseconds that a pair took.
    pub ns: Spread,
    /// Where the threads were; `None` for one thread.
    pub mode: Option<Mode>,
    /// The slices that count.
    pub slices: Vec<Slice>,
}

impl Figure {
    /// Of a contestant on so many threads; of several, in `mode` if enough slices are.
    ///
    /// # Errors
    /// Why there is none.
    pub fn of(record: &Record, threads: usize, mode: Mode) -> Result<Self, Unmeasured> {
        if let Some(failure) = &record.failure {
            return Err(Unmeasured::Failed(failure.to_string()));
        }
        if record.late {
            let slices = record.slices.len();
            return Err(Unmeasured::Late { slices });
        }
        let clean = |mode| {
            let slices = record.slices.iter().copied();
            let fits = move |s: &Slice| s.quality == Quality::Clean && s.mode == mode;
            slices.filter(fits).collect::<Vec<_>>()
        };
        let (mode, slices) = if threads == 1 {
            // of CPU time: what waiting does to caches, the median bears, and rounds have both
            // sides of a ratio
            (None, record.slices.clone())
        } else {
            let of = |mode| (Some(mode), clean(Some(mode)));
            let (wanted, other) = (of(mode), of(mode.other()));
            let enough = |slices: &[Slice]| slices.len() >= LEAST;
            let turn = !enough(&wanted.1) && enough(&other.1);
            if turn { other } else { wanted }
        };
        if slices.len() < LEAST {
            let of = |quality| {
                let slices = record.slices.iter();
                slices.filter(|s| s.quality == quality).count()
            };
            return Err(Unmeasured::Busy {
                counting: slices.len(),
                slices: record.slices.len(),
                queued: of(Quality::Queued),
                apart: of(Quality::Apart),
                unsteady: of(Quality::Unsteady),
            });
        }
        let ns = Spread::of(slices.iter().map(|slice| slice.ns).collect());
        Ok(Figure {
            ns: ns.ok_or_else(|| Unmeasured::Failed("no slices".into()))?,
            mode,
            slices,
        })
    }

    /// This figure by another's, slice by slice of the same rounds; `None` where fewer than
    /// [`LEAST`] rounds have both.
    pub fn ratio(&self, to: &Figure) -> Option<Spread> {
        self.paired(to, |ours, theirs| ours / theirs)
    }

    /// This figure less another's, in nanoseconds; likewise.
    pub fn excess(&self, over: &Figure) -> Option<Spread> {
        self.paired(over, |ours, theirs| ours - theirs)
    }

    fn paired(&self, other: &Figure, of: impl Fn(f64, f64) -> f64) -> Option<Spread> {
        let partner = |ours: &Slice| {
            let theirs = other.slices.iter().find(|s| s.round == ours.round)?;
            Some(of(ours.ns, theirs.ns))
        };
        let pairs: Vec<f64> = self.slices.iter().filter_map(partner).collect();
        if pairs.len() < LEAST {
            return None;
        }
        Spread::of(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(round: usize, ns: f64, quality: Quality, mode: Option<Mode>) -> Slice {
        Slice {
            round,
            ns,
            quality,
            mode,
        }
    }

    fn record(slices: impl IntoIterator<Item = Slice>) -> Record {
        Record {
            slices: slices.into_iter().collect(),
            ..Record::default()
        }
    }

    #[test]
    fn a_figure_of_two_threads_is_of_its_groups_mode_if_it_can_be() {
        let of = |n: usize, ns, mode| (0..n).map(move |i| slice(i, ns, Quality::Clean, Some(mode)));
        let queued = (0..9).map(|i| slice(i, 1.0, Quality::Queued, Some(Mode::Far)));
        let both = record(
            of(6, 300.0, Mode::Far)
                .chain(of(9, 50.0, Mode::Near))
                .chain(queued),
        );
        let far = record(of(4, 50.0, Mode::Near).chain(of(9, 300.0, Mode::Far)));
        assert_eq!(usual(std::slice::from_ref(&both)), Mode::Near);
        assert_eq!(usual(&[record([]), far.clone()]), Mode::Far);
        let figure = |record, mode| {
            let figure = Figure::of(record, 2, mode).unwrap();
            (figure.mode, figure.ns.median, figure.slices.len())
        };
        assert_eq!(figure(&both, Mode::Near), (Some(Mode::Near), 50.0, 9));
        assert_eq!(figure(&both, Mode::Far), (Some(Mode::Far), 300.0, 6));
        assert_eq!(figure(&far, Mode::Near), (Some(Mode::Far), 300.0, 9));
        let few = record(of(4, 300.0, Mode::Far).chain(of(4, 50.0, Mode::Near)));
        let why = Figure::of(&few, 2, Mode::Near).unwrap_err().to_string();
        assert!(why.contains("4 of 8 slices"), "{why}");
    }

    #[test]
    fn one_thread_has_a_figure_however_busy_the_machine() {
        let disturbed = (0..7).map(|i| slice(i, i as f64, Quality::Queued, None));
        let figure = Figure::of(&record(disturbed.clone()), 1, Mode::Near).unwrap();
        assert_eq!((figure.ns.median, figure.mode), (3.0, None));
        let clean = (7..12).map(|i| slice(i, 100.0, Quality::Clean, None));
        let figure = Figure::of(&record(disturbed.chain(clean)), 1, Mode::Near).unwrap();
        assert_eq!(figure.slices.len(), 12, "each round has its part");
        assert!(Figure::of(&record([]), 1, Mode::Near).is_err());
    }

    #[test]
    fn ratios_are_of_the_same_rounds() {
        let ours = (0..8).map(|i| slice(i, 10.0 * (i + 1) as f64, Quality::Clean, None));
        let theirs = (2..9).map(|i| slice(i, 5.0 * (i + 1) as f64, Quality::Clean, None));
        let figure = |slices: Vec<Slice>| Figure::of(&record(slices), 1, Mode::Near).unwrap();
        let (ours, theirs) = (figure(ours.collect()), figure(theirs.collect()));
        let ratio = ours.ratio(&theirs).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (2.0, 2.0, 2.0));
        assert_eq!(ours.excess(&theirs).unwrap().low, 15.0);
        let elsewhere = (20..30).map(|i| slice(i, 5.0, Quality::Clean, None));
        assert_eq!(ours.ratio(&figure(elsewhere.collect())), None);
    }

    #[test]
    fn a_failure_is_the_reason() {
        let failed = Record {
            failure: Some(crate::Failure::new("no frame")),
            ..record((0..9).map(|i| slice(i, 1.0, Quality::Clean, None)))
        };
        assert_eq!(
            Figure::of(&failed, 1, Mode::Near).unwrap_err().to_string(),
            "no frame"
        );
    }
}
