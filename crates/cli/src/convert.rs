// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas trace convert`: captures, and traces, to traces.

use crate::Answer;
use crate::capture::{CaptureArguments, sentences};
use crate::error::Error;
use crate::input::{self, Input};
use crate::loaded;
use crate::output::Target;
use crate::progress::Bar;
use clap::Args;
use ioatlas_iotlb::Limits;
use ioatlas_iotlb::import::{Capture, Identity, ImportError, Options};
use ioatlas_present::{grouped, printable};
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};

/// Make a trace of a capture by another tool, or of a trace.
///
/// IN is, in plain text or compressed (.zst, .gz):
///
///   a log of QEMU (-trace enable=PATTERN -D FILE): vtd_iotlb_page_hit, vtd_iotlb_page_update,
///   vtd_inv_desc_iotlb_*, vtd_dmar_fault, or virtio_iommu_attach, _map, _unmap, _translate. VT-d
///   logs no maps: a page is taken to be mapped when it is first used.
///
///   the text of the kernel's tracepoints, from /sys/kernel/tracing/trace, trace_pipe or
///   `perf script`: dma:* (Linux 6.12 and later; with device, kind and direction, and also without
///   an IOMMU) or, if there are none, iommu:map and iommu:unmap (without).
///
///   values separated by commas or semicolons, with a first line of column names: event (map,
///   unmap, access), device, iova, bytes, and perhaps direction (r, w, rw), phys, kind (alloc,
///   page, sg), time_ns, cpu, task; addresses in bytes, decimal or 0x.
///
///   a trace, to compress it, to anonymize it, or to put accesses in.
///
/// Where there are no accesses, `--assume` puts some in, and results say so. What else was assumed,
/// lost or left out is printed, and kept in the trace as `# note` lines. Times, CPUs and
/// tasks become `# at NANOSECONDS CPU TASK` lines.
///
/// The trace is written whole or not at all, compressed if its name ends in .zst or .gz.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct ConvertArguments {
    /// The capture, or - for standard input.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Where to write the trace [default: IN without its endings, then .trace.zst; none for -].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub capture: CaptureArguments,
    /// Renumber devices, tasks, memory and times, and drop comments, so that the trace can be shown
    /// to others. Results stay as they are: that a network card or a disk was recorded is kept.
    #[arg(long)]
    pub anonymize: bool,
}

pub(crate) fn run(arguments: &ConvertArguments) -> Answer {
    convert(arguments).into()
}

fn convert(arguments: &ConvertArguments) -> Result<String, Error> {
    let input = &arguments.input;
    let output = match &arguments.output {
        Some(output) => output.clone(),
        None if input::is_standard(input) => return Err(Error::NoOutput),
        None => default_output(input),
    };
    let options = Options {
        identity: match arguments.anonymize {
            true => Identity::Removed,
            false => Identity::Kept,
        },
        ..arguments.capture.options()
    };
    let name = input::name(input);
    let bar = Bar::default();
    let file = Input::open(input, &bar)?;
    let target = Target::prepare(&output)?;
    target.is_none_of(std::slice::from_ref(input))?;
    let mut capture = Capture::new(&name, &file, options, Limits::default())?;
    // what `report` chooses its advice by
    let class = capture.origin().and_then(loaded::class);
    let class = class.map(|class| format!("# recorded: {}\n", class.name()));
    let class = Cursor::new(class.unwrap_or_default());
    write_trace(&mut (&mut capture).chain(class), &target)?;
    let mut text = format!(
        "{}: {} lines M, U and A from {} ({})\n",
        printable(&output.display().to_string(), 200),
        grouped(capture.events()),
        printable(&name, 200),
        capture.format()
    );
    text += &sentences(capture.notes(), "  ");
    for line in capture.samples() {
        text += &format!("  {}\n", printable(line, 160));
    }
    Ok(text)
}

/// Writes what a capture becomes, compressed as the name of the target says.
pub(crate) fn write_trace(capture: &mut dyn Read, target: &Target) -> Result<(), Error> {
    // what goes wrong with the input is not the output's fault
    let mut failed = None;
    let written = target.replace(|file| {
        let mut source = Kept {
            source: capture,
            failed: &mut failed,
        };
        let result = compress(&mut source, target.path(), file);
        match failed.is_some() {
            true => Err(io::Error::other("the capture could not be read")),
            false => result,
        }
    });
    match failed {
        Some(error) => Err(ImportError::from(error).into()),
        None => written,
    }
}

/// `a.txt.zst` becomes `a.trace.zst`, in the same directory.
fn default_output(input: &Path) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let endings = [".zst", ".gz", ".txt", ".log", ".csv", ".trace"];
    let stem = input::without_endings(&name, &endings);
    input.with_file_name(format!("{stem}.trace.zst"))
}

/// Writes `source` to `file`, compressed as `name` says.
pub(crate) fn compress(source: &mut dyn Read, name: &Path, file: &mut dyn Write) -> io::Result<()> {
    let name = name.to_string_lossy();
    if name.ends_with(".zst") {
        return ioatlas_iotlb::compress_zstd(source, file);
    }
    if name.ends_with(".gz") {
        return ioatlas_iotlb::compress_gzip(source, file);
    }
    let mut file = io::BufWriter::new(file);
    io::copy(source, &mut file)?;
    file.flush()
}

/// A reader that ends where it fails, and keeps why: a compressor knows no errors.
struct Kept<'a, R> {
    source: R,
    failed: &'a mut Option<io::Error>,
}

impl<R: Read> Read for Kept<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.source.read(buf) {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.failed.get_or_insert(error);
                Ok(0)
            }
        }
    }
}
