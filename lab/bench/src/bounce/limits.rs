// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Throughput across the pools' limits: with more operations in flight than there are slots, does
//! it fall off a cliff?
//!
//! The pools have one class of [`SLOTS`] slots of the operations' size, so that what is beyond has
//! no larger class to go to. All policies and numbers in flight are in one group of slices, and
//! what is compared is of the same rounds.

use super::{
    cost::Preset,
    load::{Block, Load, Way},
    policy::Policy,
    served::Served,
};
use crate::{
    Contestant, Effort, Failure, Figure, Pattern, Sizes, Spread, alternate,
    figure::{Unmeasured, usual},
};
use ioatlas_dma::dma_api::{ClassConfig, PoolConfig};

/// Slots of the pools.
pub const SLOTS: usize = 16;
/// Operations in flight: up to as many as there are slots, and up to four times as many.
pub const DEPTHS: [usize; 5] = [4, 8, 16, 32, 64];

/// Policies that bounce such operations, and what they are compared with.
pub const POLICIES: [Policy; 4] = [
    Policy::Never,
    Policy::Below,
    Policy::Always,
    Policy::Adaptive,
];

/// A policy with so many operations in flight.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Point {
    pub policy: Policy,
    /// The load, `depth` in flight.
    pub load: Load,
    /// Nanoseconds of an operation; or why there are none.
    pub figure: Result<Figure, Unmeasured>,
    /// Throughput by that of the same policy with [`SLOTS`] in flight.
    pub by_within: Option<Spread>,
    /// Throughput by that of direct mapping with as many in flight.
    pub by_never: Option<Spread>,
}

/// One class of few slots.
fn tight(block: Block) -> PoolConfig {
    PoolConfig::of(ClassConfig {
        pages_lg2: block.pages().0.next_power_of_two().trailing_zeros(),
        slots: SLOTS as u32,
    })
}

/// Measures operations of one size and direction over one translator, on one thread.
pub fn points(
    preset: Preset,
    block: Block,
    direction: Way,
    policies: &[Policy],
    effort: Effort,
) -> Vec<Point> {
    let mut wanted = Vec::new();
    for policy in policies {
        for depth in DEPTHS {
            let load = Load {
                preset,
                block,
                direction,
                depth,
                threads: 1,
            };
            wanted.push((*policy, load));
        }
    }
    let served = |(policy, load): &(Policy, Load)| {
        let served = Served::new(*load, *policy, tight(block))?;
        super::cells::taught(&served)?;
        Ok(served)
    };
    let made: Vec<Result<Served, Failure>> = wanted.iter().map(served).collect();
    let running: Vec<&Served> = made.iter().flatten().collect();
    let contestants: Vec<Contestant<'_>> = running
        .iter()
        .map(|served| Contestant::new(*served, Pattern::Ring(served.load.depth), Sizes::One, 1))
        .collect();
    let records = alternate(&contestants, effort);
    let mode = usual(&records);
    let mut measured = records.iter().map(|record| Figure::of(record, 1, mode));
    let figures: Vec<Result<Figure, Unmeasured>> = made
        .iter()
        .map(|made| match made {
            Ok(_) => {
                let none = || Err(Unmeasured::Failed("no record".into()));
                measured.next().unwrap_or_else(none)
            }
            Err(failure) => Err(Unmeasured::Failed(failure.to_string())),
        })
        .collect();
    let find = |policy: Policy, depth: usize| {
        let at = wanted
            .iter()
            .position(|(which, load)| *which == policy && load.depth == depth)?;
        figures[at].as_ref().ok()
    };
    wanted
        .iter()
        .zip(&figures)
        .map(|((policy, load), figure)| {
            let by = |other: Option<&Figure>| other?.ratio(figure.as_ref().ok()?);
            Point {
                policy: *policy,
                load: *load,
                figure: figure.clone(),
                by_within: by(find(*policy, SLOTS)),
                by_never: by(find(Policy::Never, load.depth)),
            }
        })
        .collect()
}
