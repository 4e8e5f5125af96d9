// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `cargo lab bench bounce` takes.

use clap::Args;
use ioatlas_bench::{
    bounce::{
        Block, Policy, Preset, Way,
        plan::{DEPTHS, Filter, THREADS},
    },
    plan::Extent,
};

/// Measure bounce buffers beside direct mapping, over translators that cost nothing, something and
/// much.
///
/// An operation is a map and, when so many others have begun, its unmap. Each policy has a domain
/// with real page tables over a translator that waits for what a request costs, by its name: free
/// (nothing is charged), moderate (one strict invalidation, 2,127 cycles at 2.4 GHz: rIOMMU),
/// vfio-guest (VFIO over virtio-iommu in an emulated guest, measured, not fitted), bounce21
/// (BOUNCE'21's laptop, fitted on its 2.8 times at 4 KiB; the last two hold one big lock). Figures
/// are medians of slices of about 1 ms that alternate with those of the other policies and of the
/// copy alone: compare ratios of one row.
///
/// JSON: rows[] (translator, policy, direction, block_kib, depth, threads, ns_per_operation
/// (median), ns_p10, ns_p90, gb_per_second (of all threads, of the CPU alone), times_never
/// (throughput by that of never, same rounds), beyond_copy_ns (beyond the copy alone, same rounds),
/// copy_ns (that copy), map_ms_per_gb, unmap_ms_per_gb (on one thread), map_change_percent,
/// unmap_change_percent (by never), paced_times_never (the same ratio where the CPU does other
/// things for each operation and the device has a rate, both assumed), bounced_percent,
/// learned_after (operations until adaptive had decided), behind_better_percent (adaptive's time by
/// that of the better of never and always), mode, slices, reason (why figures are null, else
/// null)); in_flight[] (translator, policy, depth, slots, ns_per_operation, by_within, by_never,
/// reason); bounce21[] (block_kib, theirs, model, measured, model_difference_percent, reason,
/// their_unmap_change_percent, model_unmap_change_percent, measured_unmap_change_percent,
/// measured_map_change_percent); summary[] (what, value, unit, reason).
#[derive(Args, Debug)]
pub(crate) struct BounceArguments {
    /// Only these translators: free, moderate, vfio-guest, bounce21.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub translator: Vec<Preset>,
    /// Only these placements: never, below (bounced up to 16 KiB), always, adaptive, untrusted,
    /// single-use (Linux today, where a device is not trusted). never is measured in any case.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub policy: Vec<Policy>,
    /// Only these sizes: 4k, 8k, 16k, 32k, 64k, 128k.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = block)]
    pub block: Vec<Block>,
    /// Only these directions: read (from the device), write.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = way)]
    pub direction: Vec<Way>,
    /// Only so many operations in flight on each thread: 1, 8, 64.
    #[arg(long, value_name = "N,M", value_delimiter = ',', value_parser = depth)]
    pub depth: Vec<usize>,
    /// Only so many threads: 1, 2.
    #[arg(long, value_name = "N,M", value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<usize>,
    /// The summary and the sizes of BOUNCE'21, 64 in flight: in about half a minute instead of
    /// several.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl BounceArguments {
    pub fn extent(&self) -> Extent {
        match self.quick {
            true => Extent::Quick,
            false => Extent::Full,
        }
    }
    pub fn filter(&self) -> Filter {
        Filter {
            presets: self.translator.clone(),
            policies: self.policy.clone(),
            blocks: self.block.clone(),
            ways: self.direction.clone(),
            depths: self.depth.clone(),
            threads: self.threads.clone(),
        }
    }
}

/// The one of `all` that `name` calls so.
fn named<T: Copy>(
    word: &str,
    what: &str,
    all: &[T],
    name: impl Fn(T) -> String,
) -> Result<T, String> {
    let found = all.iter().find(|one| name(**one) == word);
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|one| name(*one)).collect();
        format!("`{word}` is no {what} ({})", names.join(", "))
    })
}

fn block(word: &str) -> Result<Block, String> {
    named(word, "size", &Block::ALL, |block| format!("{}k", block.0))
}

fn way(word: &str) -> Result<Way, String> {
    named(word, "direction", &Way::ALL, |way| way.name().into())
}

fn depth(word: &str) -> Result<usize, String> {
    let all = |depth: usize| depth.to_string();
    named(word, "number of operations in flight", &DEPTHS, all)
}

fn threads(word: &str) -> Result<usize, String> {
    let all = |threads: usize| threads.to_string();
    named(word, "number of threads", &THREADS, all)
}
