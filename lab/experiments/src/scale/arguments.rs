// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `cargo lab scale` takes.

use super::{
    plan::{CpuCounts, Extent},
    strict::StrictArguments,
};
use clap::{Args, Subcommand};
use ioatlas_bench::case::{allocator, policy};
use ioatlas_dma::domain::{AllocatorConfig, PolicyConfig};
use ioatlas_sim::timing::{LockModel, Params, workload::Workload};

/// The seed if nothing is said.
pub(crate) const SEED: u64 = 1;

/// Run the mapping code on simulated CPUs: throughput and latency, where the time goes, and which
/// cache lines hurt.
///
/// The code is the core's own, on virtual CPUs with costs for cache lines, locks, instructions and
/// the invalidation engine. The machine is that of ATC'15: 2.4 GHz, sockets of 8 CPUs. Parameters
/// are fitted once, on figure 2's baseline and the results of one CPU; everything else is a
/// prediction. The same options give the same output, to the byte.
///
/// JSON: an object. `rows`: each result of the paper beside ours (name, paper, stated: low and high
/// of the paper's number, or null, low, high, ours, ratio: ours over the paper's, or null, unit,
/// kind: fitted, predicted or input, in_range: whether it is in its range, section of the paper,
/// note: why it is out of range, or null); `points`: one object a system, workload and number of
/// CPUs, those of a workload and number together, without an IOMMU first (system, design or null,
/// workload, cpus, per_second, relative to no IOMMU, latency_us, uncertainty: half the width of the
/// interval that holds per_second with 95 % confidence, as a part of it, transfers of cache lines
/// an operation, table_frames, cycles: parts of all cycles (iova, iova_lock, invalidation,
/// invalidation_lock, tables, other, outside), lines: the ten hottest (name, and an operation:
/// transfers, cycles)); `frames`: figure 6, where neither designs, policies, CPUs nor workloads are
/// chosen (design, cpus, frames before the first repetition and after each of 100); `parameters`:
/// name, value, unit, origin, source. With --check: an array, one object a design (design, near and
/// far: the time of a pair on two simulated CPUs by that on one, mode: near or far, of the two real
/// ones, predicted: near or far, as the mode is, measured: the same here, difference_percent,
/// ns_1_thread, ns_2_threads, reason: why nothing was measured, or null).
#[derive(Args, Debug, Default)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ScaleArguments {
    #[command(subcommand)]
    pub part: Option<Part>,
    /// Only these IOVA allocators, separated by commas.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = allocator)]
    pub design: Vec<AllocatorConfig>,
    /// Only these invalidation policies.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = policy)]
    pub policy: Vec<PolicyConfig>,
    /// Only these numbers of CPUs: 16, or 1-16, or 3,7,11.
    #[arg(long, value_name = "N,M-K", value_parser = CpuCounts::parse)]
    pub cpus: Option<CpuCounts>,
    /// Only these workloads: rr, latency, memcached, ring, lists.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = workload)]
    pub workload: Vec<Workload>,
    /// 32, 64, 128 and 256 CPUs as well.
    #[arg(long)]
    pub forecast: bool,
    /// Show the ten cache lines whose transfers took longest, of each point.
    #[arg(long)]
    pub lines: bool,
    /// Show all points, also where they are more than a hundred.
    #[arg(long)]
    pub points: bool,
    /// What the paper's results need only, and figure 6 on 8 CPUs.
    #[arg(long)]
    pub quick: bool,
    /// How CPUs wait for locks: ticket, queue, test-and-set.
    #[arg(long, value_name = "MODEL", value_parser = lock_model)]
    pub lock: Option<LockModel>,
    /// Change a parameter of the model; repeat for several.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<Setting>,
    /// Where the workloads' variations come from.
    #[arg(long, default_value_t = SEED)]
    pub seed: u64,
    /// Threads to simulate on; all CPUs by default. The output does not depend on it.
    #[arg(long, value_name = "N")]
    pub jobs: Option<std::num::NonZero<usize>>,
    /// Check the model: what a second CPU does to a map and its unmap, predicted and measured here.
    /// It takes seconds a design, and each run differs.
    #[arg(long, conflicts_with_all = ["cpus", "workload", "forecast", "lines", "points", "quick", "seed"])]
    pub check: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What else there is to simulate.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    Strict(StrictArguments),
}

/// A parameter of the model with its new value.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    name: String,
    value: u64,
}

impl ScaleArguments {
    pub fn params(&self) -> Params {
        let mut params = Params::default();
        for Setting { name, value } in &self.set {
            if let Some(number) = params.by_name(name) {
                *number = *value;
            }
        }
        if let Some(lock) = self.lock {
            params.lock_model = lock;
        }
        params
    }
    /// Whether only some points are asked for.
    pub fn is_filtered(&self) -> bool {
        self.cpus.is_some() || self.chooses_designs() || !self.workload.is_empty()
    }
    /// Whether designs are named, or parts of them.
    pub fn chooses_designs(&self) -> bool {
        !(self.design.is_empty() && self.policy.is_empty())
    }
    pub fn extent(&self) -> Extent {
        match self.quick {
            true => Extent::Quick,
            false => Extent::Full,
        }
    }
}

fn workload(word: &str) -> Result<Workload, String> {
    let found = Workload::ALL.iter().find(|(_, name)| *name == word);
    let names = || names(Workload::ALL.iter().map(|(_, name)| *name));
    found
        .map(|(workload, _)| *workload)
        .ok_or_else(|| format!("no such workload; there is: {}", names()))
}

fn lock_model(word: &str) -> Result<LockModel, String> {
    let found = LockModel::ALL
        .into_iter()
        .find(|model| model.name() == word);
    let names = || names(LockModel::ALL.iter().map(|model| model.name()));
    found.ok_or_else(|| format!("no such lock; there is: {}", names()))
}

fn setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = value
        .parse()
        .map_err(|_| format!("`{value}` is not a whole number"))?;
    let mut params = Params::default();
    if params.by_name(name).is_none() {
        let names = names(params.list().iter().map(|listed| listed.name));
        return Err(format!("no parameter `{name}`; there is: {names}"));
    }
    Ok(Setting {
        name: name.into(),
        value,
    })
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
