// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `cargo lab bench` takes.

use super::{bounce::arguments::BounceArguments, latency::LatencyArguments};
use clap::{Args, Subcommand};
use ioatlas_bench::{
    Pattern, Sizes,
    case::{allocator, policy},
    peers::{Peer, peers},
    plan::{Choice, Extent, Filter},
};
use ioatlas_dma::domain::{AllocatorConfig, PolicyConfig};

/// Measure what a map and its unmap cost on this machine, of every IOVA allocator under every
/// policy, beside other people's code.
///
/// Whole domains have real page tables under a unit that caches nothing, so that an invalidation
/// takes no time; allocators and tables are measured alone too. Each figure is the median of slices
/// of about 1 ms that alternate with those of a control loop, which touches private memory only:
/// compare ratios. Slices that were disturbed do not count. Two threads are near or far, as their
/// CPUs are at the moment, and a figure is of one mode. It takes at most four minutes, 22 seconds
/// with `--quick`, on any machine: rows that a busy one has no time for say so.
///
/// JSON: an array with one object a row. Fields: kind (domain, allocator, table, software, peer),
/// allocator, policy ("none" where the row is of an allocator or a table alone; null for peers),
/// peer (the name of foreign code, else null), pattern (immediate, ring256, ring1024,
/// producer-consumer, replace), sizes (1, mixed), threads, outstanding (ranges at a time on each
/// thread), ns_per_pair (median), ns_p10, ns_p90, control_ns, control_ratio (the median of ratios
/// within rounds), mode (near, far; null for one thread), slices (how many count), handoff_ns
/// (under producer-consumer: the hand-off alone), wait_ns (on the software unit: one invalidation
/// alone), excess_ns (beyond either), reason (why figures are null, else null).
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub part: Option<Part>,
    /// Only these IOVA allocators, separated by commas; `none` is page tables alone.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = any_allocator)]
    pub allocator: Vec<Choice<AllocatorConfig>>,
    /// Only these policies; `none` is allocators and page tables alone.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = any_policy)]
    pub policy: Vec<Choice<PolicyConfig>>,
    /// Only these patterns: immediate, ring256, ring1024, producer-consumer, replace (or
    /// replace1000, replace10000, replace100000).
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = patterns)]
    pub pattern: Vec<Patterns>,
    /// Only these sizes: 1 (page), mixed (1, 2, 4, 8, 16, 17 and 32 pages).
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub sizes: Vec<Sizes>,
    /// Only so many threads: 1, 2.
    #[arg(long, value_name = "N,M", value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<usize>,
    /// Only these peers, other people's crates; `none` for none of them.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = any_peer)]
    pub peers: Vec<Choice<Peer>>,
    /// The summary, and rings of 256 single pages: in less than half a minute instead of five.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What else there is to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    Bounce(BounceArguments),
    Latency(LatencyArguments),
}

/// Patterns that one word names.
#[derive(Clone, Debug)]
pub(crate) struct Patterns(Vec<Pattern>);

impl BenchArguments {
    pub fn extent(&self) -> Extent {
        match self.quick {
            true => Extent::Quick,
            false => Extent::Full,
        }
    }
    pub fn filter(&self) -> Filter {
        Filter {
            allocators: self.allocator.clone(),
            policies: self.policy.clone(),
            patterns: self.pattern.iter().flat_map(|p| p.0.clone()).collect(),
            sizes: self.sizes.clone(),
            threads: self.threads.clone(),
            peers: self.peers.clone(),
        }
    }
}

const NONE: &str = "none";

fn any_allocator(word: &str) -> Result<Choice<AllocatorConfig>, String> {
    if word == NONE {
        return Ok(None);
    }
    allocator(word).map(Some).map_err(|e| e.to_string())
}

fn any_policy(word: &str) -> Result<Choice<PolicyConfig>, String> {
    if word == NONE {
        return Ok(None);
    }
    policy(word).map(Some).map_err(|e| e.to_string())
}

fn any_peer(word: &str) -> Result<Choice<Peer>, String> {
    if word == NONE {
        return Ok(None);
    }
    let all = peers();
    let found = all.iter().find(|peer| peer.name == word);
    found.copied().map(Some).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|peer| peer.name).collect();
        format!("`{word}` is no peer ({})", names.join(", "))
    })
}

fn patterns(word: &str) -> Result<Patterns, String> {
    let named = Pattern::ALL.into_iter().filter(|p| p.name() == word);
    let named: Vec<Pattern> = named.collect();
    if !named.is_empty() {
        return Ok(Patterns(named));
    }
    let one = word.parse::<Pattern>().map_err(|e| e.to_string())?;
    Ok(Patterns(vec![one]))
}

fn threads(word: &str) -> Result<usize, String> {
    match word {
        "1" => Ok(1),
        "2" => Ok(2),
        _ => Err(format!("`{word}` is no number of threads (1, 2)")),
    }
}
