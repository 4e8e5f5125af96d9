// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guest: Debian's kernel, busybox and our program, under QEMU with a unit, a controller and an `edu`.
//!
//! QEMU counts instructions instead of time (`-icount`), so costs do not depend on the machine that the test runs on; and it writes down every invalidation, fault, read and
//! note, in order, outside of the guest.

use crate::trace::Trace;
use ioatlas_dma::units::ByteCount;
use ioatlas_guest::{Cache, GuestError, Image, Keep, Lines, Watch, qemu};
use ioatlas_nvme::pattern;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// What installs what is missing.
pub const INSTALL: &str = "needs QEMU and packages: ci/install-record.sh";
const TARGET: &str = "x86_64-unknown-linux-gnu";
pub const NVME: &str = "0000:00:05.0";
const EDU: &str = "0000:00:04.0";
/// As the trace has it.
pub const EDU_SOURCE: u16 = 0x20;
const DISK: ByteCount = ByteCount(16 << 20);
/// A loaded machine may take ten times as long as a quiet one.
const LIMIT: Duration = Duration::from_secs(900);
const HUGE_OPTIONS: &str = "--reads 64 --rounds 3";
const SCATTERED_OPTIONS: &str =
    "--reads 64 --rounds 3 --depth 8 --verify map-unmap --measure map-unmap,always,adaptive";
/// In steps of CPU time that a memory copy of the guest takes: with `rep movsb` QEMU copies byte by byte.
const CPU: &str = "max,erms=off";

/// What the guest said, and what QEMU saw.
pub struct Run {
    pub kernel: String,
    pub qemu: String,
    pub seconds: f64,
    pub reports: Vec<serde_json::Value>,
    /// What it said of a kind of space that its kernel has not.
    pub refused: String,
    pub trace: Trace,
}

/// The directory of packages, if it has what the guest needs and QEMU is there.
pub fn packages() -> Option<PathBuf> {
    qemu::version().ok()?;
    let named = env::var_os("IOATLAS_RECORD_PACKAGES").map(PathBuf::from);
    let directory = named.or_else(Cache::default_directory)?;
    let cache = directory.is_dir().then(|| Cache::open(&directory).ok())??;
    let kernel = cache.kernel().ok()?;
    (cache.has(&kernel) && cache.has("busybox-static")).then_some(directory)
}

/// Our program, so that it needs nothing of the guest's: optimised, and linked statically.
fn program() -> Result<Vec<u8>, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    // beside the test's own builds, which have other flags
    let test = env::current_exe().map_err(|e| e.to_string())?;
    let target = test.ancestors().nth(2).ok_or("no target directory")?;
    let target = target.join("guest");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--quiet", "--target", TARGET]);
    cargo
        .args(["--bin", "ioatlas-nvme", "--manifest-path"])
        .arg(manifest);
    cargo.arg("--target-dir").arg(&target);
    cargo.env(
        "RUSTFLAGS",
        "-C target-feature=+crt-static -C strip=symbols",
    );
    let built = cargo.output().map_err(|e| format!("cargo: {e}"))?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into());
    }
    let path = target.join(TARGET).join("release/ioatlas-nvme");
    fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Boots the guest and waits for its end.
pub fn run(packages: &Path) -> Result<Run, String> {
    let program = program()?;
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let run = boot(packages, directory.path(), &program);
    run.map_err(|error| {
        let kept = directory.keep();
        format!("{error}; see {}", kept.display())
    })
}

fn boot(packages: &Path, directory: &Path, program: &[u8]) -> Result<Run, GuestError> {
    let file = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|source| GuestError::File {
            path: path.into(),
            source,
        })
    };
    let cache = Cache::open(packages)?;
    let kernel = cache.kernel()?;
    let tree = cache.tree(&[&kernel, "busybox-static"])?;
    let mut image = Image::new(&tree, include_str!("init.sh"))?;
    image.module("vfio_iommu_type1")?;
    image.module("vfio-pci")?;
    image.executable("ioatlas-nvme", program)?;
    image.variable("NVME", NVME);
    image.variable("EDU", EDU);
    image.variable("HUGE_PAGES", "32");
    image.variable("HUGE_OPTIONS", HUGE_OPTIONS);
    image.variable("SCATTERED_OPTIONS", SCATTERED_OPTIONS);
    let (initrd, disk) = (directory.join("initrd"), directory.join("disk"));
    file(&initrd, &image.finish())?;
    let bytes: Vec<u8> = pattern::disk(DISK).flatten().collect();
    file(&disk, &bytes)?;
    let machine = qemu::Machine {
        cpus: 1,
        memory_mib: 512,
        kernel: tree.only("vmlinuz-")?,
        initrd: &initrd,
        // the console is for the reports: no messages between
        command_line: "loglevel=1 intel_iommu=on iommu.strict=1 tsc=reliable",
        reboot: qemu::Reboot::Ends,
    };
    let mut arguments = machine.arguments();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(Into::into));
    add(&[
        "-accel",
        "tcg,thread=single",
        "-icount",
        "shift=0,sleep=off",
        "-cpu",
        CPU,
    ]);
    // in caching mode the guest tells the unit of what it maps, too: so QEMU sees maps and unmaps
    add(&["-device", "intel-iommu,intremap=on,caching-mode=on"]);
    let drive = format!(
        "if=none,format=raw,snapshot=on,file={}",
        qemu::comma_safe(&disk)
    );
    add(&["-drive", &format!("{drive},id=d1")]);
    add(&["-drive", &format!("{drive},id=d2,throttling.iops-total=8")]);
    add(&["-device", "nvme,id=n,addr=05.0,serial=guest"]);
    add(&["-device", "nvme-ns,bus=n,drive=d1,nsid=1"]);
    add(&["-device", "nvme-ns,bus=n,drive=d2,nsid=2"]);
    add(&["-device", "edu,addr=04.0,dma_mask=0xffffffffffffffff"]);
    for event in crate::trace::EVENTS {
        add(&["-trace", event]);
    }
    let watch = Watch {
        arguments,
        directory,
        limit: LIMIT,
        keep_log: Keep::Tail,
    };
    let mut said = Lines::default();
    let begun = Instant::now();
    let trace = watch.run(
        &mut said,
        Trace::default(),
        |_| {},
        || Ok::<_, GuestError>(()),
    )?;
    let reports = said.all("report").map(|text| {
        serde_json::from_str(text).map_err(|error| GuestError::BadFile {
            name: "the guest's report".into(),
            detail: format!("{error}: {text}"),
        })
    });
    Ok(Run {
        kernel: said.all("kernel").collect(),
        qemu: qemu::version()?,
        refused: said.all("refused").collect(),
        seconds: begun.elapsed().as_secs_f64(),
        reports: reports.collect::<Result<_, _>>()?,
        trace,
    })
}
