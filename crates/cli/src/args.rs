// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The grammar of the command line.

use crate::report::systems::Rows;
use clap::{Args, Parser, Subcommand};
use ioatlas_dma::design::{self, Design, Shipped};
use ioatlas_iotlb::{Geometry, GeometryError, Strategy};
use std::path::PathBuf;

/// An I/O atlas: what your IOMMU costs you, and what another design would cost.
#[derive(Debug, Parser)]
#[command(name = "ioatlas", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Iotlb(IotlbArguments),
    #[command(subcommand)]
    Trace(TraceCommand),
    Report(ReportArguments),
    Replay(ReplayArguments),
    Papers(PapersArguments),
}

/// Look at traces.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    Info(InfoArguments),
}

/// Simulate IOTLBs on traces.
///
/// JSON: for one trace an array with one object a strategy, in the order asked; for
/// several traces an object, file name -> such an array. Fields: strategy, accesses, hits,
/// prefetch_hits, misses, faults, miss_rate (a fraction), prefetches, useful_prefetches,
/// evictions, invalidations, anomalies.
#[derive(Args, Debug)]
pub(crate) struct IotlbArguments {
    /// Trace files (text, .zst or .gz).
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Strategies, separated by commas.
    #[arg(
        long,
        value_name = "A,B",
        value_delimiter = ',',
        default_value = "baseline"
    )]
    pub strategy: Vec<Strategy>,
    #[command(flatten)]
    pub geometry: GeometryArguments,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
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
/// JSON: for one trace an object, for several an object, file name -> such an object.
/// Fields: name, events, peak_live_pages, marks, anomalies, devices[] (device, maps, unmaps,
/// accesses, kinds, consistent_maps, streaming_maps, peak_live_pages, anomalies).
#[derive(Args, Debug)]
pub(crate) struct InfoArguments {
    /// Trace files (text, .zst or .gz).
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Diagnose traces: why each device misses, and what each system costs.
///
/// Prints a summary and writes one self-contained page that needs no network. Every number
/// says where it comes from: counted in the trace or by a checker, measured on this machine,
/// simulated, or assumed. JSON: the same model that page and summary are made from; every
/// number is an object with value, unit, tag, and the text shown.
///
/// Words. ns/pair: measured time of one map and its unmap, without the invalidation. +w: the wait of a strict design for
/// one invalidation, assumed. per 1k: per 1,000 map lines of the trace. tables: page-table memory at its peak; a deferred
/// design has more. window: how long a device may reach a page after its unmap returned; unbounded: until its range is mapped again. violations: what the oracle, a
/// checker that watches every access, found forbidden. (nobody): a design that nobody ships. Papers: ATC'15 is Peleg et al., Utilizing the IOMMU Scalably;
/// WIOSCA'10 is Amit et al., Strategies for Mitigating the IOTLB Bottleneck; rIOMMU is Malka et al., ASPLOS 2015.
///
/// Fails, once the page is written, if the oracle found a violation.
#[derive(Args, Debug)]
#[command(after_long_help = registry())]
pub(crate) struct ReportArguments {
    /// Trace files (text, .zst or .gz); the bundled sample traces if there is none.
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Where to write the page.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Print JSON instead of the summary.
    #[arg(long)]
    pub json: bool,
    /// Nanoseconds that one invalidation makes the CPU wait under strict policies
    /// [default: 2,127 cycles of this CPU, after the rIOMMU paper].
    #[arg(long, value_name = "N", value_parser = nanoseconds)]
    pub inv_ns: Option<f64>,
    #[command(flatten)]
    pub designs: DesignArguments,
}

/// Re-run the maps and unmaps of traces under designs, then the IOTLB on the result.
///
/// Every mapping goes where the design's IOVA allocator puts it; the accesses move along, through a software unit with an IOTLB of
/// the given shape, watched by the oracle. Each device of a trace is a domain; virtual time is the event, and no timer ticks.
///
/// JSON: for one trace an array with one object a design, in the order asked; for several an object, file name -> such an
/// array. Fields: system (what people call it, or null), design, shipped_by (or null), maps, unmaps, invalidations, accesses, misses,
/// miss_rate (a fraction), table_kib (page tables at their peak), exposure (none, bounded, unbounded: how long an unmapped page may be
/// reached), exposure_unmaps (the most unmaps seen between an unmap and its flush), violations, anomalies and limited (lines skipped: they do not fit; the replay would be too large).
///
/// Fails, with the results printed, if the oracle found a violation.
#[derive(Args, Debug)]
#[command(after_long_help = registry())]
pub(crate) struct ReplayArguments {
    /// Trace files (text, .zst or .gz).
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub designs: DesignArguments,
    #[command(flatten)]
    pub geometry: GeometryArguments,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Make the figures and tables of the papers, ours beside theirs, each with a verdict and its reason.
///
/// Writes one CSV file an exhibit, its drawings as SVG, and index.html, one page that needs none of the others. Each file is replaced
/// whole, the page last. Here so far: tables 1 and 2 and figure 6 of ATC'15 (Peleg et al., Utilizing the IOMMU Scalably).
///
/// A verdict (reproduced, weak, not) is computed from our data. One that is not "reproduced" is a result, not a failure.
///
/// JSON: exhibits[] (paper, exhibit, title, claim, verdict, reason, columns[], rows[][], notes[]), version, commit, files[].
#[derive(Args, Debug)]
pub(crate) struct PapersArguments {
    /// Directory to write into; made if there is none.
    #[arg(short, long, value_name = "DIR", default_value = "papers")]
    pub output: PathBuf,
    /// Print JSON instead of the verdicts.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DesignArguments {
    /// Only this design; may be given several times. A system (linux-3.17, linux, linux-strict, freebsd, solaris, macos), or an
    /// IOVA allocator and a policy (eiovar,strict); then options: order=descending, offset=fixed:PAGES,
    /// offset=coherent, leaf=2m, leaf=1g, reclaim=never. The list is below
    #[arg(long = "as", value_name = "DESIGN", value_parser = Design::parse)]
    pub named: Vec<Design>,
    /// Every IOVA allocator with every policy, instead of the systems that people run. Where time is measured, each gets less of it.
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
            text += &format!("  {name:16} {doc} ({paper})\n");
        }
        text += "\n";
    };
    let preset = |preset: design::Preset| {
        let whose = match preset.shipped {
            Shipped::By(whom) => whom,
            Shipped::ByNobody => "nobody ships it",
        };
        let doc = format!("{}: {}. {whose}", preset.design, preset.doc);
        [preset.name.into(), doc, preset.paper.into()]
    };
    list("Systems", design::presets().map(preset).collect());
    let part = |name: &str, doc: &str, paper: &str| [name, doc, paper].map(String::from);
    let assigners = design::assigners().map(|a| part(a.name, a.doc, a.paper));
    list("IOVA allocators", assigners.collect());
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
            "reclaim=never",
            "emptied page tables stay; else one that a single unmap covers goes",
            "ATC'15 3.3",
        ),
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
