// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas trace record-guest`: a trace of an unmodified guest at work.
//!
//! An unmodified Debian kernel with its own drivers runs under QEMU's software emulation behind an
//! emulated VT-d unit in strict mode. What the guest maps, unmaps, and what the device then
//! accesses is in QEMU's log ([`ioatlas_iotlb::import::qemu`]), which is converted as it is
//! written. Nothing is installed but QEMU: kernel and programs are fetched as packages and unpacked
//! ([`ioatlas_guest`]), and go into a file system in memory.
//!
//! The guest boots twice: once to say where its kernel has the functions of interest (and the
//! firmware its tables), once to work. In the end the trace must agree with the guest's own counts
//! ([`check`]), or it is refused.
//!
//! What emulation cannot tell: time (a guest's second is many of ours, and not evenly), how a real
//! device groups its accesses (QEMU's read one descriptor at a time and prefetch none), and whether
//! an access to a page mapped for both directions read or wrote.

mod check;
mod console;
mod dmar;
mod error;
mod gdb;
mod machine;
mod network;
mod options;
mod peer;
mod plan;
mod summary;

pub use error::RecordError;
pub(crate) use options::RecordArguments;
pub use plan::{Class, Device};

use crate::Answer;
use crate::convert;
use crate::error::Error;
use crate::output::Target;
use check::Check;
use console::Said;
use gdb::Patch;
use ioatlas_guest::{Cache, GuestError, Ignored, Image, Keep, Log, Tree, Watch, qemu};
use ioatlas_iotlb::import::Item;
use ioatlas_iotlb::import::qemu::{Counts, Function, QemuLog, Symbols};
use ioatlas_iotlb::{HEADER, Trace};
use machine::Machine;
use options::IovaCache;
use peer::{Peer, Share};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use summary::{Seconds, Summary};
use tempfile::TempDir;

/// The mark after which nothing is of the recording.
const END_MARK: u64 = 63;
/// Functions by which the IOVA reuse cache is switched off, beside those of the importer.
const CACHE_FUNCTIONS: [&str; 3] = ["init_iova_domain", "free_iova_fast", "free_iova"];

pub(crate) fn run(arguments: &RecordArguments, command_line: &[OsString]) -> Answer {
    if arguments.fetch_only {
        let tree = arguments.check().and_then(|()| packages(arguments));
        let text = tree.map(|tree| {
            let lines = tree.packages.iter().map(|package| format!("{package}\n"));
            lines.collect::<String>()
        });
        return text.map_err(Error::from).into();
    }
    let show = |summary| Answer::show(&summary, arguments.json, Summary::to_string);
    record(arguments, command_line).map(show).into()
}

fn record(arguments: &RecordArguments, command_line: &[OsString]) -> Result<Summary, Error> {
    arguments.check()?;
    let target = Target::prepare(arguments.output())?;
    let mut phases = Phases::new();
    phases.begin("looks for QEMU and the packages");
    let version = qemu::version().map_err(RecordError::from)?;
    let tree = packages(arguments)?;
    if arguments.device.class() == Class::Network && arguments.queues > 1 {
        network::enter(command_line, arguments.device.cards()).map_err(RecordError::from)?;
    }
    phases.done(|seconds| &mut seconds.packages);
    let directory = tempfile::Builder::new()
        .prefix("ioatlas-record-")
        .tempdir()
        .map_err(|source| RecordError::file(&std::env::temp_dir(), source))?;
    let mut recording = Recording {
        arguments,
        tree: &tree,
        directory: directory.path(),
        phases: &mut phases,
    };
    let made = recording.make();
    let (counts, said, trace) = match made {
        Ok(made) => made,
        Err(error) => {
            keep_for(&error, directory, arguments);
            return Err(error.into());
        }
    };
    let info = trace.info();
    let checks = check::checks(&counts, &said, &info);
    let failed: Vec<String> = checks
        .iter()
        .filter(|check| !check.holds())
        .map(Check::sentence)
        .collect();
    if !failed.is_empty() {
        let error = RecordError::DoesNotAddUp {
            failed: failed.join("; "),
            log: directory.path().join("console.log"),
        };
        keep_for(&error, directory, arguments);
        return Err(error.into());
    }
    let bytes = compressed(directory.path(), arguments.output())?;
    // what was written can be read again
    let name = arguments.output().display().to_string();
    Trace::read(&name, bytes.as_slice(), ioatlas_iotlb::Limits::default())?;
    target.replace(|file| file.write_all(&bytes))?;
    phases.done(|seconds| &mut seconds.checks);
    if arguments.keep {
        phases.say(&format!("kept: {}", directory.keep().display()));
    }
    let seconds = phases.total();
    Ok(Summary::new(
        arguments, &version, &said, &tree, &counts, &info, checks, &bytes, seconds,
    ))
}

/// What the guest is made of.
fn packages(arguments: &RecordArguments) -> Result<Tree, RecordError> {
    let cache = Cache::open(&arguments.cache()?)?;
    let kernel = cache.kernel()?;
    let mut packages = vec![kernel.as_str(), "busybox-static"];
    packages.extend(arguments.workload.packages());
    Ok(cache.tree(&packages)?)
}

/// Says what is being done, and since when the whole takes.
struct Phases {
    begun: Instant,
    phase: Instant,
    seconds: Seconds,
}

impl Phases {
    fn new() -> Self {
        let begun = Instant::now();
        Self {
            begun,
            phase: begun,
            seconds: Seconds::default(),
        }
    }

    fn say(&self, what: &str) {
        // progress that cannot be read is no failure
        let _ = writeln!(
            io::stderr(),
            "{:4} s  {what}",
            self.begun.elapsed().as_secs()
        );
    }

    fn begin(&mut self, what: &str) {
        self.phase = Instant::now();
        self.say(what);
    }

    fn done(&mut self, which: impl FnOnce(&mut Seconds) -> &mut f64) {
        *which(&mut self.seconds) += self.phase.elapsed().as_secs_f64();
        self.phase = Instant::now();
    }

    fn total(&mut self) -> Seconds {
        self.seconds.total = self.begun.elapsed().as_secs_f64();
        self.seconds
    }
}

/// A recording under way.
struct Recording<'a> {
    arguments: &'a RecordArguments,
    tree: &'a Tree,
    directory: &'a Path,
    phases: &'a mut Phases,
}

impl<'a> Recording<'a> {
    fn make(&mut self) -> Result<(Counts, Said, Trace), RecordError> {
        let disk = self.path("disk");
        let file = File::create(&disk).map_err(|source| RecordError::file(&disk, source))?;
        // a hole: it takes no room until written
        let sized = file.set_len(512 << 20);
        sized.map_err(|source| RecordError::file(&disk, source))?;
        self.phases.begin("boots the guest to look at its kernel");
        let probed = self.probe()?;
        self.phases.done(|seconds| &mut seconds.probe);
        let (counts, said) = self.work(&probed)?;
        self.phases.done(|seconds| &mut seconds.guest);
        self.phases.begin("checks the trace");
        let trace = Trace::open(&self.path("trace"))?;
        Ok((counts, said, trace))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Boots the guest for what it knows of its kernel and its machine.
    fn probe(&mut self) -> Result<Said, RecordError> {
        let functions: Vec<&str> = Function::ALL
            .iter()
            .map(|function| function.name())
            .chain(CACHE_FUNCTIONS)
            .collect();
        let config = [
            ("WORKLOAD", "probe".to_owned()),
            ("SYMBOLS", functions.join("|")),
        ];
        let image = self.image(&config)?;
        let initrd = self.write("probe.cpio", &image.finish())?;
        let watch = self.watch(&initrd, None, None)?;
        let mut said = Said::default();
        watch.run::<_, RecordError>(&mut said, Ignored, |_| {}, || Ok(()))?;
        Ok(said)
    }

    /// Boots the guest for its work.
    fn work(&mut self, probed: &Said) -> Result<(Counts, Said), RecordError> {
        let arguments = self.arguments;
        let symbols = Symbols::from_kallsyms(&probed.symbols)?;
        let initrd = self.working_image(probed)?;
        let debugger = self.path("debugger");
        let patch = match arguments.iova_cache {
            IovaCache::On => None,
            IovaCache::Off => Some(patch(&probed.symbols)?),
        };
        let socket = patch.map(|_| debugger.clone());
        let watch = self.watch(&initrd, Some(&symbols.dfilter()), socket)?;
        let log = Conversion::begin(
            symbols,
            &self.path("trace"),
            &arguments.comment(&probed.kernel),
        )?;
        let phases = &mut *self.phases;
        let phase = |what: &str| phases.say(&format!("the guest {what}"));
        let mut said = Said::default();
        let counts = watch.run(&mut said, log, phase, || {
            patch.map_or(Ok(()), |patch| patch.apply(&debugger))
        })?;
        Ok((counts, said))
    }

    /// A file system with busybox, whose script knows these variables.
    fn image(&self, variables: &[(&str, String)]) -> Result<Image<'a>, RecordError> {
        let mut image = Image::new(self.tree, include_str!("init.sh"))?;
        for (name, value) in variables {
            image.variable(name, value);
        }
        Ok(image)
    }

    /// The file system of the guest that works.
    fn working_image(&self, probed: &Said) -> Result<PathBuf, RecordError> {
        let arguments = self.arguments;
        let (device, workload) = (arguments.device, arguments.workload);
        let streams = arguments.queues;
        let share = Share {
            bytes: (u64::from(arguments.mib()) << 20) / u64::from(streams),
            round_trips: arguments.round_trips,
        };
        let peer = Peer::listen(network::address(arguments.queues), share)
            .map_err(|source| RecordError::file(Path::new("a port to listen at"), source))?;
        let config = [
            ("WORKLOAD", workload.to_string()),
            ("CLASS", device.class().name().into()),
            ("MIB", arguments.mib().to_string()),
            ("DEPTH", arguments.depth.to_string()),
            ("QUEUES", arguments.queues.to_string()),
            ("STREAMS", streams.to_string()),
            ("DISK", device.disk().into()),
            ("NET", machine::NET.into()),
            ("SINK", peer.sink.to_string()),
            ("SOURCE", peer.source.to_string()),
            ("ECHO", peer.echo.to_string()),
        ];
        let mut image = self.image(&config)?;
        for program in workload.programs() {
            image.program(program)?;
        }
        for module in [workload.modules(), device.modules()].concat() {
            image.module(module)?;
        }
        let mut archives = match device {
            Device::Lsi => lsi_tables(probed)?,
            _ => Vec::new(),
        };
        archives.extend(image.finish());
        self.write("work.cpio", &archives)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, RecordError> {
        let path = self.path(name);
        fs::write(&path, content).map_err(|source| RecordError::file(&path, source))?;
        Ok(path)
    }

    fn watch(
        &self,
        initrd: &Path,
        dfilter: Option<&str>,
        debugger: Option<PathBuf>,
    ) -> Result<Watch<'a>, RecordError> {
        let arguments = self.arguments;
        let disk = self.path("disk");
        let machine = Machine {
            device: arguments.device,
            cpus: arguments.cpus,
            memory_mib: arguments.memory_mib(),
            queues: arguments.queues,
            ring: arguments.ring,
            kernel: self.tree.only("vmlinuz-")?,
            initrd,
            disk: &disk,
            dfilter,
            debugger,
        };
        Ok(Watch {
            arguments: machine.arguments(),
            directory: self.directory,
            limit: Duration::from_secs(arguments.timeout),
            keep_log: match arguments.keep {
                true => Keep::All,
                false => Keep::Tail,
            },
        })
    }
}

/// Converts QEMU's log into a file.
struct Conversion {
    log: QemuLog,
    file: BufWriter<File>,
    path: PathBuf,
}

impl Conversion {
    fn begin(symbols: Symbols, path: &Path, comment: &str) -> Result<Self, RecordError> {
        let begin = || {
            let mut file = BufWriter::new(File::create(path)?);
            writeln!(file, "{HEADER}\n# {comment}")?;
            Ok(file)
        };
        Ok(Self {
            log: QemuLog::new(symbols),
            file: begin().map_err(|source| RecordError::file(path, source))?,
            path: path.into(),
        })
    }
}

/// Writes an item, but for the mark that is ours alone.
fn write_item(file: &mut dyn Write, item: Item<'_>) -> io::Result<()> {
    match item {
        Item::Mark(END_MARK) => Ok(()),
        item => writeln!(file, "{item}"),
    }
}

impl Log<RecordError> for Conversion {
    type Result = Counts;

    fn line(&mut self, line: &[u8]) -> Result<(), RecordError> {
        if self.log.last_mark() != Some(END_MARK) {
            let file = &mut self.file;
            self.log.line(line, &mut |item| write_item(file, item))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Counts, RecordError> {
        let file = &mut self.file;
        let counts = self.log.finish(&mut |item| write_item(file, item))?;
        self.file
            .flush()
            .map_err(|source| RecordError::file(&self.path, source))?;
        Ok(counts)
    }
}

/// The firmware's table with the LSI controller's on-chip memory in it.
fn lsi_tables(probed: &Said) -> Result<Vec<u8>, RecordError> {
    let bad = |detail: String| GuestError::BadFile {
        name: "the guest's firmware".into(),
        detail,
    };
    let device = format!("0000:00:{:02x}.0", machine::LSI_SLOT);
    let region = probed
        .regions
        .iter()
        .find(|region| region.device == device && region.number == machine::LSI_MEMORY);
    let region = region.ok_or_else(|| bad(format!("no memory of device {device}")))?;
    let reserved = dmar::Reserved {
        device: machine::LSI_SLOT,
        first: region.first,
        last: region.last,
    };
    Ok(dmar::archive(&probed.dmar, reserved).map_err(bad)?)
}

/// How the IOVA reuse cache is switched off in a kernel with these symbols.
fn patch(symbols: &str) -> Result<Patch, RecordError> {
    let address = |name: &str| {
        let line = symbols
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        let digits = line.and_then(|line| line.split(' ').next());
        let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        address.ok_or_else(|| RecordError::Option {
            option: "--iova-cache off",
            detail: format!("the guest's kernel has no function {name}"),
        })
    };
    let [stop_at, from, to] = CACHE_FUNCTIONS.map(address);
    Ok(Patch {
        stop_at: stop_at?,
        from: from?,
        to: to?,
    })
}

/// The converted trace, compressed as the output's name says.
fn compressed(directory: &Path, output: &Path) -> Result<Vec<u8>, RecordError> {
    let path = directory.join("trace");
    let compress = || {
        let mut bytes = Vec::new();
        convert::compress(&mut File::open(&path)?, output, &mut bytes)?;
        Ok(bytes)
    };
    compress().map_err(|source| RecordError::file(&path, source))
}

/// Leaves behind what explains a failure that names a log: the logs, or with `--keep` all.
fn keep_for(error: &RecordError, directory: TempDir, arguments: &RecordArguments) {
    if !error.names_a_log() && !arguments.keep {
        return;
    }
    let path = directory.keep();
    if !arguments.keep {
        for large in ["disk", "probe.cpio", "work.cpio", "trace", "debugger"] {
            // what is not there need not go
            let _ = fs::remove_file(path.join(large));
        }
    }
}
