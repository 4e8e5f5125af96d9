// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `cargo lab bench bounce`: bounce buffers beside direct mapping.

pub(crate) mod arguments;
mod json;
mod table;

use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use arguments::BounceArguments;
use ioatlas_bench::bounce::{
    Block, Preset, Way, limits,
    lists::lists,
    memory::memory,
    plan::{Filter, effort, loads, run as measure},
    study::Study,
};

/// Over what, and how large, operations beyond the pools' limits are: where bouncing pays, so that
/// there is a cliff to fall from.
const BEYOND: (Preset, Block, Way) = (Preset::VfioGuest, Block(4), Way::Read);

pub(crate) fn run(arguments: &BounceArguments) -> Answer {
    let (extent, filter) = (arguments.extent(), arguments.filter());
    let loads = loads(extent, &filter);
    if loads.is_empty() {
        return Error::NoCells.into();
    }
    let bar = Bar::default();
    let steps = loads.len() + 2;
    let cells = measure(extent, &loads, &filter, |load, done| {
        bar.at(&load.to_string(), done, steps);
    });
    let points = match wants_limits(&filter) {
        true => {
            bar.at("beyond the pools", loads.len(), steps);
            let (preset, block, way) = BEYOND;
            let mut policies = filter.policies();
            policies.retain(|policy| limits::POLICIES.contains(policy));
            limits::points(preset, block, way, &policies, effort(extent))
        }
        false => Vec::new(),
    };
    let all = filter == Filter::default();
    bar.at("lists, memory", loads.len() + 1, steps);
    let lists = all.then(|| lists(effort(extent)));
    let memory = all.then(|| memory().map_err(|failure| failure.to_string()));
    drop(bar);
    let study = Study {
        cells,
        points,
        lists,
        memory,
    };
    Answer::show(&json::object(&study, &filter), arguments.json, |_| {
        table::text(&study, &filter)
    })
}

/// Whether the filter leaves the load beyond the limits.
fn wants_limits(filter: &Filter) -> bool {
    let (preset, block, direction) = BEYOND;
    filter.permits(&ioatlas_bench::bounce::Load {
        preset,
        block,
        direction,
        depth: 64,
        threads: 1,
    })
}
