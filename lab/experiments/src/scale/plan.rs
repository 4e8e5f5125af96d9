// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which points are measured.

use super::arguments::ScaleArguments;
use ioatlas_dma::design::{self, Design};
use ioatlas_sim::timing::{
    CPUS_MAX,
    workload::{System, Workload},
};

/// Numbers of CPUs, ascending, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuCounts(Vec<usize>);

impl CpuCounts {
    /// Reads numbers and ranges, as in `1-4,16`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut counts = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |word: &str| -> Result<usize, String> {
                let cpus = word
                    .parse()
                    .map_err(|_| format!("`{word}` is not a number of CPUs"))?;
                match cpus {
                    1..=CPUS_MAX => Ok(cpus),
                    _ => Err(format!("{cpus} CPUs: 1 to {CPUS_MAX} can be simulated")),
                }
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("`{part}` runs backwards"));
            }
            counts.extend(first..=last);
        }
        counts.sort_unstable();
        counts.dedup();
        Ok(CpuCounts(counts))
    }

    pub fn all(&self) -> &[usize] {
        &self.0
    }
}

/// How much is measured where nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Every design on 1 to 16 CPUs.
    Full,
    /// What the paper's results need.
    Quick,
}

/// The designs that the paper's results are about.
pub(crate) mod named {
    /// Linux 3.17 as it is, without EiovaR.
    pub const STOCK: &str = "rbtree,deferred-global";
    /// The baseline of the paper.
    pub const EIOVAR: &str = "eiovar,deferred-global";
    /// The baseline with scalable invalidation.
    pub const EIOVAR_PERCPU: &str = "eiovar,deferred-percpu";
    /// The paper's three designs.
    pub const OURS: [&str; 3] = [
        "magazine,deferred-percpu",
        "identity,deferred-percpu",
        "kmalloc,deferred-percpu",
    ];
    /// The four under strict invalidation (figure 7).
    pub const STRICT: [&str; 4] = [
        "eiovar,strict",
        "magazine,strict",
        "identity,strict",
        "kmalloc,strict",
    ];
}

/// One point of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub system: System,
    pub workload: Workload,
    pub cpus: usize,
}

/// A design of [`named`].
pub(crate) fn design(words: &str) -> Design {
    Design::parse(words).expect("a design of the registry")
}

/// The designs that are asked for: all, where none is named.
pub(crate) fn chosen(arguments: &ScaleArguments) -> impl Iterator<Item = Design> {
    let (designs, policies) = (&arguments.design, &arguments.policy);
    design::all().filter(move |design| {
        let (allocator, policy) = (design.domain.allocator.name(), design.domain.policy.name());
        (designs.is_empty() || designs.iter().any(|asked| asked.name() == allocator))
            && (policies.is_empty() || policies.iter().any(|asked| asked.name() == policy))
    })
}

/// All points, those of a workload and a number of CPUs together, without an IOMMU first.
pub(crate) fn points(arguments: &ScaleArguments) -> Vec<Planned> {
    let papers: Vec<Design> = [named::STOCK, named::EIOVAR, named::EIOVAR_PERCPU]
        .iter()
        .chain(&named::OURS)
        .chain(&named::STRICT)
        .map(|words| design(words))
        .collect();
    // figures 4 and 5 have these only
    let few: Vec<Design> = [named::EIOVAR]
        .iter()
        .chain(&named::OURS)
        .map(|words| design(words))
        .collect();
    let all: Vec<Design> = chosen(arguments).collect();
    let workloads = match arguments.workload.as_slice() {
        [] => &[
            Workload::RequestResponse,
            Workload::Latency,
            Workload::Memcached,
        ][..],
        asked => asked,
    };
    let mut counts = match (&arguments.cpus, arguments.extent()) {
        (Some(CpuCounts(counts)), _) => counts.clone(),
        (None, Extent::Full) => (1..=16).collect(),
        (None, Extent::Quick) => vec![1, 2, 4, 7, 8, 9, 12, 16],
    };
    if arguments.forecast {
        counts.extend([32, 64, 128, 256]);
        counts.sort_unstable();
        counts.dedup();
    }
    let mut points = Vec::new();
    for &workload in workloads {
        let designs = match (arguments.chooses_designs(), arguments.extent(), workload) {
            (true, _, _) => &all,
            (false, Extent::Full, Workload::RequestResponse) => &all,
            (false, Extent::Quick, Workload::RequestResponse) => &papers,
            _ => &few,
        };
        for &cpus in &counts {
            let systems = designs.iter().copied().map(System::Design);
            for system in [System::NoIommu].into_iter().chain(systems) {
                points.push(Planned {
                    system,
                    workload,
                    cpus,
                });
            }
        }
    }
    points
}
