// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `cargo lab vhost-compare` takes.

use super::cases::Case;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Compare `ioatlas vhost-net` with DPDK's testpmd, under the load generator of vhost-bench.
///
/// Both swap MAC addresses. Every case is run with each in turn, `--rounds` times, started anew
/// each time: the generator and the back end's control threads have one CPU, the thread that
/// forwards has another. Figures are medians of rounds; ratios are medians of the ratios of one
/// round. The thread's share of its CPU is printed, since a busy machine shows in it. As root, with
/// a busy machine, give it priority: `setsid -w sh -c 'echo -20 > /proc/self/autogroup; exec ..'`.
///
/// Exit status 1: a back end of ours corrupted a frame or lost one, or something could not be run.
///
/// JSON: an object. Fields: cpus, load_before, load_after (1 minute), rounds, seconds,
/// comparisons[] (row, testpmd, ours, ratio; null where there is none), benchmarks[] (cell, seed,
/// testpmd, testpmd_of_off, ours, ours_of_off), runs[] (case, back_end, round, frames_per_second,
/// frames_sent, frames_lost, frames_lost_for_translation, frames_corrupt, misses, updates,
/// invalidations, round_trip_ns, forwarding_share, failure).
#[derive(Args, Debug)]
pub(crate) struct VhostCompareArguments {
    /// One round of short runs, without the searches for the highest rate: a minute or two.
    #[arg(long)]
    pub quick: bool,
    /// Rounds [default: 5, or 1 with --quick].
    #[arg(long, value_name = "N")]
    pub rounds: Option<NonZeroUsize>,
    /// Seconds of a run [default: 1, or 0.5 with --quick].
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Cases to run [default: all]: off-512, 2m-512, 1g-512, off-scattered-512, 4k-scattered-512,
    /// off-scattered-1000, 4k-scattered-1000, off-scattered-100000, 4k-scattered-100000,
    /// dynamic-pages, dynamic-ranges, off-32768, 2m-32768, 1g-32768.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = case)]
    pub case: Vec<Case>,
    /// DPDK's testpmd; ci/install-dpdk.sh installs it.
    #[arg(long, value_name = "PROGRAM", default_value = "dpdk-testpmd")]
    pub testpmd: PathBuf,
    /// Where what the back ends print is kept [default: a new temporary directory].
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl VhostCompareArguments {
    pub fn rounds(&self) -> usize {
        let default = if self.quick { 1 } else { 5 };
        self.rounds.map_or(default, NonZeroUsize::get)
    }

    pub fn cases(&self) -> Vec<Case> {
        let wanted = |case: &Case| self.case.is_empty() || self.case.contains(case);
        Case::ALL.into_iter().filter(wanted).collect()
    }

    pub fn run_time(&self) -> Duration {
        let default = if self.quick { 0.5 } else { 1.0 };
        Duration::from_secs_f64(self.seconds.unwrap_or(default))
    }
}

fn case(text: &str) -> Result<Case, String> {
    let found = Case::ALL.into_iter().find(|case| case.name() == text);
    found.ok_or_else(|| "no such case; --help names them".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.05..=3600.0).contains(&s) => Ok(s),
        _ => Err("0.05 to 3600 seconds".into()),
    }
}
