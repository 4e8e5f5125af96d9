// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which loads are measured, under which policies, and how long.

use super::{
    cells::{Cell, measure},
    cost::Preset,
    load::{Block, Load, Way},
    policy::Policy,
};
use crate::{
    Effort,
    budget::{Budget, Weight},
    plan::Extent,
};
use std::time::{Duration, Instant};

/// Operations in flight on a thread.
pub const DEPTHS: [usize; 3] = [1, 8, 64];
/// Numbers of threads that loads have.
pub const THREADS: [usize; 2] = [1, 2];

/// What is wanted. An empty list is all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Filter {
    pub presets: Vec<Preset>,
    /// Policies; [`Policy::Never`] is measured in any case, to compare with.
    pub policies: Vec<Policy>,
    pub blocks: Vec<Block>,
    pub ways: Vec<Way>,
    /// Operations in flight on each thread.
    pub depths: Vec<usize>,
    pub threads: Vec<usize>,
}

fn permits<T: PartialEq>(list: &[T], item: &T) -> bool {
    list.is_empty() || list.contains(item)
}

impl Filter {
    /// Whether a load is wanted.
    pub fn permits(&self, load: &Load) -> bool {
        permits(&self.presets, &load.preset)
            && permits(&self.blocks, &load.block)
            && permits(&self.ways, &load.direction)
            && permits(&self.depths, &load.depth)
            && permits(&self.threads, &load.threads)
    }
    /// The policies to measure, direct mapping first.
    pub fn policies(&self) -> Vec<Policy> {
        let wanted = |policy: &Policy| *policy == Policy::ALL[0] || permits(&self.policies, policy);
        Policy::ALL.into_iter().filter(wanted).collect()
    }
    /// Whether a policy is to be shown.
    pub fn shows(&self, policy: Policy) -> bool {
        permits(&self.policies, &policy)
    }
}

/// Whether a load is among those of a quick run: the cells of the summary.
fn is_quick(load: &Load) -> bool {
    let overhead = load.preset == Preset::Free && load.block == Block(4);
    let sizes = [Block(4), Block(16), Block(64), Block(128)];
    let cell = load.threads == 1 && sizes.contains(&load.block);
    load.depth == 64 && (overhead || cell)
}

/// The loads, cheap translators first.
pub fn loads(extent: Extent, filter: &Filter) -> Vec<Load> {
    let mut loads = Vec::new();
    for preset in Preset::ALL {
        for threads in THREADS {
            for direction in Way::ALL {
                for depth in DEPTHS {
                    loads.extend(Block::ALL.map(|block| Load {
                        preset,
                        block,
                        direction,
                        depth,
                        threads,
                    }));
                }
            }
        }
    }
    loads.retain(|load| (extent == Extent::Full || is_quick(load)) && filter.permits(load));
    loads
}

/// How long all cells together may take, about, divided by [`Budget`]: slow ones cost the others
/// precision, not the user time. A cell on one thread takes what a figure needs in any case.
pub fn budget(extent: Extent) -> Duration {
    match extent {
        Extent::Quick => Duration::from_secs(22),
        Extent::Full => Duration::from_secs(250),
    }
}

/// How long a cell of two threads may take that an aim is about: where the machine has other work,
/// both are seldom on CPUs at once.
const PATIENT: Duration = Duration::from_secs(4);

/// Whether it is one that says what two threads cost each other.
fn is_of_two(load: &Load) -> bool {
    let of_aim = load.preset == Preset::Free && load.block == Block(4) && load.depth == 64;
    load.threads == 2 && of_aim
}

/// How long a cell may take, if nothing else is short.
pub fn effort(extent: Extent) -> Effort {
    match extent {
        Extent::Quick => Effort {
            slices: 7,
            patience: Duration::from_millis(300),
            filling: Duration::from_secs(1),
        },
        Extent::Full => Effort {
            slices: 15,
            patience: Duration::from_millis(800),
            filling: Duration::from_secs(1),
        },
    }
}

/// Measures every load. `at` is told what comes next, and how many lie behind.
pub fn run(
    extent: Extent,
    loads: &[Load],
    filter: &Filter,
    mut at: impl FnMut(&Load, usize),
) -> Vec<Cell> {
    let (policies, effort) = (filter.policies(), effort(extent));
    let begun = Instant::now();
    let longest = |load: &Load| match is_of_two(load) {
        true => PATIENT,
        false => effort.patience,
    };
    let weight = |load: &Load| Weight(longest(load).as_millis() as u32);
    let mut budget = Budget::new(budget(extent), loads.iter().map(weight));
    let cell = |(nth, load): (usize, &Load)| {
        at(load, nth);
        let time = budget.next(weight(load), begun.elapsed());
        // a third for what comes before slices and after
        let patience = longest(load).min(time.unwrap_or_default() * 2 / 3);
        measure(*load, &policies, Effort { patience, ..effort })
    };
    loads.iter().enumerate().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_there_once() {
        let all = loads(Extent::Full, &Filter::default());
        let names: std::collections::HashSet<String> = all.iter().map(Load::to_string).collect();
        assert_eq!(names.len(), all.len());
        let cells = Preset::ALL.len() * Block::ALL.len() * 2 * DEPTHS.len() * THREADS.len();
        assert_eq!(all.len(), cells);
        let quick = loads(Extent::Quick, &Filter::default());
        assert!(!quick.is_empty() && quick.iter().all(|load| all.contains(load)));
    }

    #[test]
    fn filters_leave_what_they_name() {
        let filter = Filter {
            presets: vec![Preset::VfioGuest],
            blocks: vec![Block(16)],
            ways: vec![Way::Write],
            depths: vec![8],
            threads: vec![2],
            policies: vec![Policy::Always],
        };
        let load = Load {
            preset: Preset::VfioGuest,
            block: Block(16),
            direction: Way::Write,
            depth: 8,
            threads: 2,
        };
        assert_eq!(loads(Extent::Full, &filter), [load]);
        assert_eq!(loads(Extent::Quick, &filter), []);
        assert_eq!(filter.policies(), [Policy::Never, Policy::Always]);
        assert!(filter.shows(Policy::Always) && !filter.shows(Policy::Never));
        assert_eq!(Filter::default().policies(), Policy::ALL);
    }
}
