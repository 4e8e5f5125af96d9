// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The grammar of the command line.

use crate::capture::CaptureArguments;
use crate::convert::ConvertArguments;
use crate::doctor::DoctorArguments;
use crate::error::Error;
use crate::live_capture::LiveCaptureArguments;
use crate::packaging::{CompletionsArguments, ManArguments};
use crate::record::RecordArguments;
use crate::report::systems::Rows;
use crate::report::timings::Bench;
use crate::vhost_bench::arguments::VhostBenchArguments;
use crate::vhost_net::arguments::VhostNetArguments;
use clap::{Args, Parser, Subcommand};
use ioatlas_dma::design::{self, Design, Shipped};
use ioatlas_iotlb::{
    BufferSize, Geometry, GeometryError, Grid, InvalidationHint, Named, Setup, SetupError, Toward,
    Trigger, Walks,
};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// With the commit: reports are sent around.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("IOATLAS_COMMIT"),
    ")"
);

/// An I/O atlas: what your IOMMU costs you, and what another design would cost.
#[derive(Debug, Parser)]
#[command(name = "ioatlas", version = VERSION, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Iotlb(Box<IotlbArguments>),
    #[command(subcommand)]
    Trace(TraceCommand),
    Report(ReportArguments),
    Doctor(DoctorArguments),
    Capture(LiveCaptureArguments),
    Replay(ReplayArguments),
    VhostNet(Box<VhostNetArguments>),
    VhostBench(Box<VhostBenchArguments>),
    Completions(CompletionsArguments),
    Man(ManArguments),
}

/// Look at traces, convert them, and record guests.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    Info(InfoArguments),
    Convert(ConvertArguments),
    RecordGuest(RecordArguments),
}

/// Simulate IOTLBs on traces.
///
/// Strategies: baseline; opt-ev (optimal eviction: knows the future); eh (eviction hints: streaming
/// entries go first); alh (prefetch the pages beside the one accessed); sd-alh (on one side); mpre
/// (prefetch the first page of a group of mappings when it is mapped); of (each device's pages
/// moved by the consistent pages of those before it); 8-prefetch (8 entries in the prefetch
/// buffer); descending (groups of mappings in descending order); superpage (entries of 2 MiB). They
/// combine with +, as in alh+mpre+8-prefetch; opt-ev with of and descending only.
///
/// JSON: for one trace an array with one object a strategy, in the order asked; for
/// several traces an object, file name -> such an array. Fields: strategy, accesses, hits,
/// prefetch_hits, misses, faults, miss_rate (a fraction), prefetches, useful_prefetches,
/// evictions, invalidations, memory_reads, reads_per_access, prefetch_reads, anomalies.
#[derive(Args, Debug)]
pub(crate) struct IotlbArguments {
    /// Trace files (text, .zst or .gz), or captures: see `ioatlas trace convert --help`; - is
    /// standard input.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub capture: CaptureArguments,
    /// Strategies, separated by commas.
    #[arg(
        long,
        value_name = "A,B+C",
        value_delimiter = ',',
        default_value = "baseline"
    )]
    pub strategy: Vec<Named>,
    #[command(flatten)]
    pub geometry: GeometryArguments,
    /// Entries of the prefetch buffer; 0 is none.
    #[arg(long, value_name = "B", default_value = "4", value_parser = buffer)]
    pub prefetch_entries: BufferSize,
    /// What makes alh and sd-alh prefetch: miss, or miss-or-prefetch-hit.
    #[arg(long, value_name = "WHAT", default_value = "miss-or-prefetch-hit", value_parser = trigger)]
    pub trigger: Trigger,
    /// Where sd-alh prefetches: down (the page before) or up.
    #[arg(long, value_name = "WHERE", default_value = "down", value_parser = toward)]
    pub direction: Toward,
    /// Walk caches: entries by level of the page table, as L2=16,L3=8,L4=4. A level that is absent,
    /// 0, or not on the way to the leaf is not cached.
    #[arg(long, value_name = "L2=N,..", default_value = "", hide_default_value = true, value_parser = walk_caches)]
    pub walk_cache: Walks,
    /// Levels of the page table, 2 to 6.
    #[arg(long, default_value_t = 4)]
    pub levels: usize,
    /// Invalidation hint of unmaps: 1 leaves the walk caches alone, 0 clears those of the device.
    #[arg(long, value_name = "0|1", default_value = "1", value_parser = hint)]
    pub ih: InvalidationHint,
    /// Sweep instead: DIMENSION=VALUES,.. over entries, ways, prefetch (entries of the buffer),
    /// strategy and page (4k, 2m). Values are separated by |; 8..256 is 8, 16, 32 and so on,
    /// 8..64:8 goes in steps of 8. Quote it: entries=8..256,ways=1..16,'page=4k|2m'. What is not
    /// swept over is as the other options say. Points that cannot be (ways > entries, not a
    /// multiple) are skipped and counted. JSON: points[] (entries, ways, prefetch_entries, page and
    /// the fields above) and skipped.
    #[arg(long, value_name = "DIM=VALUES,..")]
    pub sweep: Option<Grid>,
    /// Write all points of the sweep as CSV.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub csv: Option<PathBuf>,
    /// Draw the sweep as heat maps (SVG): miss rate by entries and ways.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub plot: Option<PathBuf>,
    /// Threads [default: as many as the machine runs at once].
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl IotlbArguments {
    /// Threads to simulate on.
    pub fn jobs(&self) -> NonZeroUsize {
        let here = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.jobs.unwrap_or_else(here)
    }

    /// The simulation that the options ask for, of each strategy.
    pub fn setups(&self) -> Result<Vec<Setup>, Error> {
        let geometry = self.geometry.geometry()?;
        let mut walks = self.walk_cache.with_levels(self.levels)?;
        walks.hint = self.ih;
        let setup = |strategy: &Named| Setup {
            strategy: strategy.clone(),
            geometry,
            buffer: self.prefetch_entries,
            trigger: self.trigger,
            toward: self.direction,
            walks,
        };
        Ok(self.strategy.iter().map(setup).collect())
    }
}

fn buffer(text: &str) -> Result<BufferSize, String> {
    let entries = text.parse().map_err(|_| "expected a number of entries")?;
    BufferSize::new(entries).map_err(|error| error.to_string())
}

fn trigger(text: &str) -> Result<Trigger, String> {
    match text {
        "miss" => Ok(Trigger::Miss),
        "miss-or-prefetch-hit" => Ok(Trigger::MissOrPrefetchHit),
        _ => Err("expected miss or miss-or-prefetch-hit".into()),
    }
}

fn toward(text: &str) -> Result<Toward, String> {
    match text {
        "down" => Ok(Toward::Down),
        "up" => Ok(Toward::Up),
        _ => Err("expected down or up".into()),
    }
}

fn hint(text: &str) -> Result<InvalidationHint, String> {
    match text {
        "0" => Ok(InvalidationHint::WalkCachesToo),
        "1" => Ok(InvalidationHint::LeavesOnly),
        _ => Err("expected 0 or 1".into()),
    }
}

fn walk_caches(text: &str) -> Result<Walks, String> {
    let mut walks = Walks::default();
    let mut seen = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (level, entries) = part
            .strip_prefix('L')
            .and_then(|part| part.split_once('='))
            .and_then(|(level, entries)| Some((level.parse().ok()?, entries.parse().ok()?)))
            .ok_or_else(|| format!("`{part}` is not of the form L2=16"))?;
        if seen.contains(&level) {
            return Err(format!("L{level} is given twice"));
        }
        seen.push(level);
        let with = walks.with_cache(level, entries);
        walks = with.map_err(|error: SetupError| error.to_string())?;
    }
    Ok(walks)
}

#[derive(Args, Debug)]
pub(crate) struct GeometryArguments {
    /// Entries of the IOTLB, a multiple of the ways.
    #[arg(long, default_value_t = 32)]
    pub entries: usize,
    /// Ways of the IOTLB.
    #[arg(long, default_value_t = 2)]
    pub ways: usize,
}

impl GeometryArguments {
    pub fn geometry(&self) -> Result<Geometry, GeometryError> {
        Geometry::new(self.entries, self.ways)
    }
}

/// Say what is in traces: devices, events, kinds, peaks, anomalies.
///
/// JSON: for one trace an object, for several an object, file name -> such an object. Fields: name,
/// events, peak_live_pages, marks, anomalies, clock (null, or seconds, cpus (null if not known),
/// maps_per_second, unmaps_per_second), notes[] (what the trace says about its making),
/// not_understood (null, or events of the capture that are unknown here, by number and name),
/// devices[] (device, maps, unmaps, accesses, kinds, consistent_maps, streaming_maps,
/// peak_live_pages, anomalies). With --assumption-error: trace, strategy, saving, saving_at_unmap,
/// saving_at_map (fractions).
#[derive(Args, Debug)]
pub(crate) struct InfoArguments {
    /// Trace files (text, .zst or .gz), or captures: see `ioatlas trace convert --help`; - is
    /// standard input.
    #[arg(required_unless_present = "assumption_error", value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub capture: CaptureArguments,
    /// Say how wrong results are where accesses are assumed: what strategies save of the misses, by
    /// the accesses of these traces (the bundled ones if there are none), and with one to each
    /// streaming page at its unmap or at its map instead.
    #[arg(long)]
    pub assumption_error: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Diagnose traces: why each device misses, and what each system costs; of captures, which show no
/// accesses: what maps and unmaps cost at their rate, and what lies within reach. None are put
/// where there are none: --assume changes nothing here. What the script of
/// `ioatlas capture --bpftrace` printed is read as well. Of exactly two traces, also what changed
/// from the first to the second.
///
/// Prints a summary and writes one self-contained page that needs no network. Every number
/// says where it comes from: counted in the trace or by a checker, measured on this machine,
/// simulated, or assumed. JSON: the same model that page and summary are made from; every
/// number is an object with value, unit, tag, and the text shown.
///
/// Words. ns, of this machine whatever the traces: measured time of one map and its unmap in this
/// project's code, on a ring of 256 pages, without the invalidation. inv/1k, miss/1k: invalidations
/// and misses in 1,000 map lines of the traces. wait: what the invalidations of a map of the traces
/// take, each by assumption. tab: page-table memory at its peak; a deferred design has more. today:
/// what one can do, best first; the page says how, and what it costs. window: how long a device may
/// reach a page after its unmap returned, by unmaps (ops) and time; unbounded: until its range is
/// mapped again. batches of 16: a driver that unmaps 16 mappings by one call. violations: what the
/// oracle, a checker that watches every access, found forbidden. (no system): a design that no
/// system ships. Papers: ATC'15 is Peleg et al., Utilizing the IOMMU Scalably; WIOSCA'10 is Amit et
/// al., Strategies for Mitigating the IOTLB Bottleneck; rIOMMU is Malka et al., ASPLOS 2015.
///
/// Fails, once the page is written, if the oracle found a violation.
#[derive(Args, Debug)]
#[command(after_long_help = registry())]
pub(crate) struct ReportArguments {
    /// Trace files (text, .zst or .gz), or captures: see `ioatlas trace convert --help`; - is
    /// standard input; the bundled sample traces if there is none.
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub capture: CaptureArguments,
    /// Where to write the page.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Also write the mappings for viewers of time lines, ui.perfetto.dev or chrome://tracing: a
    /// slice from each map to its unmap by device, the calls by CPU, mapped pages and rates. As
    /// JSON, compressed if FILE ends in .gz.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Print JSON instead of the summary.
    #[arg(long)]
    pub json: bool,
    /// Nanoseconds that one invalidation makes the CPU wait under strict policies
    /// [default: 2,127 cycles of this CPU, after the rIOMMU paper].
    #[arg(long, value_name = "N", value_parser = nanoseconds)]
    pub inv_ns: Option<f64>,
    /// Time this project's code now. Otherwise times are taken that the same program measured since
    /// this machine was booted, in the last 7 days; the report says so.
    #[arg(long)]
    pub fresh_bench: bool,
    /// Measure nothing on this machine, and take no times that were. What needs them is left out:
    /// -, or null in JSON, where provenance.timings says why.
    #[arg(long, conflicts_with = "fresh_bench")]
    pub no_bench: bool,
    #[command(flatten)]
    pub designs: DesignArguments,
}

impl ReportArguments {
    /// Where times come from, with a folder to keep them in, or none.
    pub fn bench(&self, cache: Option<&Path>) -> Bench {
        match (cache, self.fresh_bench) {
            _ if self.no_bench => Bench::Off,
            (None, _) => Bench::Now,
            (Some(folder), true) => Bench::Fresh(folder.into()),
            (Some(folder), false) => Bench::Cached(folder.into()),
        }
    }
}

/// Re-run the maps and unmaps of traces under designs, then the IOTLB on the result.
///
/// One CPU does everything, in the order of the trace, whatever CPUs the trace has.
/// Every mapping goes where the design's IOVA allocator puts it; the accesses move along, through a
/// software unit with an IOTLB of the given shape, watched by the oracle. Each device of a trace is
/// a domain; virtual time is the event, and no timer ticks.
///
/// JSON: for one trace an array with one object a design, in the order asked; for several an
/// object, file name -> such an array. Fields: system (what people call it, or null), design,
/// shipped_by (or null), maps, unmaps, invalidations, accesses, misses, miss_rate (a fraction),
/// table_kib (page tables at their peak), exposure (none, bounded, unbounded: how long an
/// unmapped page may be reached), exposure_unmaps (the most unmaps seen between an unmap and its
/// flush), exposure_us (how long so many unmaps take at most in the trace, or until the design's
/// timer, in microseconds; null without times), notes[] (what the trace says about its making;
/// absent if nothing), violations, anomalies and limited (lines skipped: they do not fit; the
/// replay would be too large).
///
/// Fails, with the results printed, if the oracle found a violation.
#[derive(Args, Debug)]
#[command(after_long_help = registry())]
pub(crate) struct ReplayArguments {
    /// Trace files (text, .zst or .gz), or captures: see `ioatlas trace convert --help`; - is
    /// standard input.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub capture: CaptureArguments,
    #[command(flatten)]
    pub designs: DesignArguments,
    #[command(flatten)]
    pub geometry: GeometryArguments,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DesignArguments {
    /// Only this design; may be given several times. A system (linux-3.17, linux, linux-strict,
    /// freebsd, solaris, macos), or an IOVA allocator and a policy (eiovar,strict); then options:
    /// order=descending, offset=fixed:PAGES, offset=coherent, leaf=2m, leaf=1g,
    /// reclaim=emptied, reclaim=never.
    /// The list is below
    #[arg(long = "as", value_name = "DESIGN", value_parser = Design::parse)]
    pub named: Vec<Design>,
    /// Every IOVA allocator with every policy, instead of the systems that people run. Where time
    /// is measured, each gets less of it.
    #[arg(long, conflicts_with = "named")]
    pub all: bool,
}

impl DesignArguments {
    pub fn rows(&self) -> Rows {
        match self {
            Self { all: true, .. } => Rows::All,
            Self { named, .. } if named.is_empty() => Rows::Systems,
            Self { named, .. } => Rows::Named(named.clone()),
        }
    }
}

/// What `--as` takes, from the registry of designs.
fn registry() -> String {
    let mut text = String::new();
    let mut list = |title: &str, lines: Vec<[String; 3]>| {
        text += &format!("{title}:\n");
        for [name, doc, paper] in lines {
            // help is wrapped, and what goes on is indented as its line is
            text += &format!("  {name}\n          {doc} ({paper})\n");
        }
        text += "\n";
    };
    let preset = |preset: design::Preset| {
        let whose = match preset.shipped {
            Shipped::By(system) => system,
            Shipped::Nowhere => "no system ships it",
        };
        let doc = format!("{}: {}. {whose}", preset.design, preset.doc);
        [preset.name.into(), doc, preset.paper.into()]
    };
    list("Systems", design::presets().map(preset).collect());
    let part = |name: &str, doc: &str, paper: &str| [name, doc, paper].map(String::from);
    let allocators = design::allocators().map(|a| part(a.name, a.doc, a.paper));
    list("IOVA allocators", allocators.collect());
    let policies = design::policies().map(|p| part(p.name, p.doc, p.paper));
    list("Policies of invalidation", policies.collect());
    let options = [
        (
            "order=descending",
            "the first segment of a list gets the highest addresses",
            "WIOSCA'10 5.2",
        ),
        (
            "offset=fixed:N",
            "the k-th domain begins k times N pages further: page colouring",
            "WIOSCA'10 4.2",
        ),
        (
            "offset=coherent",
            "as far further as others have consistent memory; none in a replay, so no change",
            "WIOSCA'10 4.2",
        ),
        (
            "leaf=2m, leaf=1g",
            "larger leaves, where address and length allow; never under identity",
            "VT-d 9.8",
        ),
        (
            "reclaim=emptied",
            "emptied page tables go by and by; else one that a single unmap covers",
            "ATC'15 3.3",
        ),
        ("reclaim=never", "emptied page tables stay", "ATC'15 3.3"),
    ];
    let options = options.map(|(name, doc, paper)| part(name, doc, paper));
    list("Options", options.into());
    text.truncate(text.trim_end().len());
    text
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1e12).contains(&value) => Ok(value),
        _ => Err("expected a number of nanoseconds from 0 to 1e12".into()),
    }
}
