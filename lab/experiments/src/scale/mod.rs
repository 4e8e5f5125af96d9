// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab scale`: the mapping code on simulated CPUs.

pub(crate) mod arguments;
mod check;
mod frames;
mod notes;
mod plain;
mod plan;
mod points;
mod rows;
pub(crate) mod strict;

pub(crate) use notes::Noted;
pub(crate) use plan::named;
pub(crate) use points::{Parts, Point};

use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use arguments::{Part, ScaleArguments};
use frames::Frames;
use ioatlas_sim::timing::{
    Params,
    params::{HZ, Listed, LockModel},
};
use serde::Serialize;
use std::{num::NonZero, sync::OnceLock};

/// Everything. `ScaleArguments` documents the fields.
#[derive(Debug, Serialize)]
pub(crate) struct Scale {
    pub rows: Vec<Noted>,
    pub points: Vec<Point>,
    frames: Vec<Frames>,
    /// How CPUs wait for locks.
    pub lock_model: LockModel,
    pub parameters: Vec<Listed>,
    /// What the wire carries, in memcached's requests a second.
    #[serde(skip)]
    pub wire: f64,
}

/// Whether figure 6 is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repetitions {
    Made,
    LeftOut,
}

pub(crate) fn run(arguments: &ScaleArguments) -> Answer {
    if let Some(Part::Strict(arguments)) = &arguments.part {
        return strict::run(arguments);
    }
    if arguments.check {
        return check::run(arguments);
    }
    let show = |scale: Scale| {
        Answer::show(&scale, arguments.json, |scale| {
            plain::plain(scale, arguments)
        })
    };
    whole(arguments).map(show).into()
}

fn whole(arguments: &ScaleArguments) -> Result<Scale, Error> {
    let repetitions = match arguments.is_filtered() {
        true => Repetitions::LeftOut,
        false => Repetitions::Made,
    };
    measure(arguments, repetitions, &Bar::default())
}

/// What `--quick` measures, without figure 6. It is measured once in a process; later calls
/// get the same result.
///
/// # Errors
/// A sentence: a point could not be measured.
pub(crate) fn quick(progress: &dyn Progress) -> Result<&'static Scale, String> {
    static ONCE: OnceLock<Result<Scale, String>> = OnceLock::new();
    let once = ONCE.get_or_init(|| {
        let arguments = ScaleArguments {
            quick: true,
            seed: arguments::SEED,
            ..ScaleArguments::default()
        };
        measure(&arguments, Repetitions::LeftOut, progress).map_err(|error| error.to_string())
    });
    once.as_ref().map_err(String::clone)
}

/// Threads to simulate on: as many as are `asked` for, or all CPUs.
fn jobs(asked: Option<NonZero<usize>>) -> usize {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or_else(here, usize::from)
}

fn measure(
    arguments: &ScaleArguments,
    repetitions: Repetitions,
    progress: &dyn Progress,
) -> Result<Scale, Error> {
    let params = arguments.params();
    let plan = plan::points(arguments);
    let jobs = jobs(arguments.jobs);
    let points = points::measure(&plan, &params, arguments.seed, jobs, progress)?;
    let frames = match repetitions {
        Repetitions::Made => {
            let extent = arguments.extent();
            frames::measure(extent, &params, arguments.seed, jobs, progress)?
        }
        Repetitions::LeftOut => Vec::new(),
    };
    // nine of ten requests get a value
    let wire = HZ as f64 / params.value_wire as f64 / 0.9;
    let mut rows = rows::rows(&points, wire);
    rows.extend(frames::rows(&frames));
    let of = match params == Params::default() && arguments.seed == arguments::SEED {
        true => notes::Of::Shipped,
        false => notes::Of::Changed,
    };
    Ok(Scale {
        rows: notes::noted(rows, of),
        points,
        frames,
        lock_model: params.lock_model,
        parameters: params.list(),
        wire,
    })
}
