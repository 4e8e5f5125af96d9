// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The guests: Debian's kernel, busybox and our program, under QEMU with a unit, a controller and
//! an `edu`. One has a VT-d unit, the other virtio-iommu, for which Debian 12 has a driver in its
//! newer kernel only.
//!
//! QEMU counts instructions instead of time (`-icount`), so costs do not depend on the machine that
//! the test runs on; and it writes down every invalidation, fault, read and note, in order, outside
//! of the guest.

use crate::trace::Trace;
use ioatlas_dma::units::ByteCount;
use ioatlas_guest::{Cache, GuestError, Image, Keep, Lines, Watch, qemu};
use ioatlas_nvme::pattern;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

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
/// Of the second guest: what is measured there is that it is the same.
const FEW_HUGE_OPTIONS: &str =
    "--reads 64 --rounds 1 --depth 8 --kib 4,64 --measure map-unmap,always,adaptive";
const FEW_SCATTERED_OPTIONS: &str = "--reads 64 --rounds 1 --depth 8 --kib 4,64 --verify map-unmap --measure map-unmap,always,adaptive";
/// Under one policy of the domain after the other. As many reads as are whole bursts, and whole
/// batches of what is deferred, so that each pays for what it ends.
const BURST_OPTIONS: &str = "--reads 2000 --rounds 1 --depth 16 --kib 4 \
    --verify map-unmap,map-unmap-bursts --measure map-unmap,map-unmap-bursts";
/// In steps of CPU time that a memory copy of the guest takes: with `rep movsb` QEMU copies byte by
/// byte.
const CPU: &str = "max,erms=off";

/// What stands between the devices and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Vtd,
    Virtio,
}

impl Unit {
    pub const ALL: [Unit; 2] = [Unit::Vtd, Unit::Virtio];

    pub fn name(self) -> &'static str {
        match self {
            Unit::Vtd => "intel-iommu",
            Unit::Virtio => "virtio-iommu",
        }
    }
    /// What installs what is missing.
    pub fn install(self) -> &'static str {
        match self {
            Unit::Vtd => "needs QEMU and packages: ci/install-record.sh",
            Unit::Virtio => {
                "needs QEMU and a kernel that drives virtio-iommu: ci/install-kernel.sh"
            }
        }
    }
    /// The metapackage of its kernel.
    fn meta(self) -> &'static str {
        match self {
            Unit::Vtd => "linux-image-amd64",
            // 6.1 has no driver for it
            Unit::Virtio => "linux-image-6.12-cloud-amd64",
        }
    }
    /// In the order in which they are loaded; each after what it needs.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Unit::Vtd => &["vfio_iommu_type1", "vfio-pci"],
            Unit::Virtio => &["virtio-iommu", "vfio_iommu_type1", "vfio-pci"],
        }
    }
    fn command_line(self) -> &'static str {
        // the console is for the reports: no messages between
        match self {
            Unit::Vtd => "loglevel=1 intel_iommu=on iommu.strict=1 tsc=reliable",
            Unit::Virtio => "loglevel=1 tsc=reliable",
        }
    }
    fn device(self) -> &'static str {
        match self {
            // in caching mode the guest tells the unit of what it maps, too: so QEMU sees maps and
            // unmaps
            Unit::Vtd => "intel-iommu,intremap=on,caching-mode=on",
            Unit::Virtio => "virtio-iommu-pci",
        }
    }
    /// Of reports in either layout.
    fn options(self) -> [&'static str; 2] {
        match self {
            Unit::Vtd => [HUGE_OPTIONS, SCATTERED_OPTIONS],
            Unit::Virtio => [FEW_HUGE_OPTIONS, FEW_SCATTERED_OPTIONS],
        }
    }
}

/// What the guest said, and what QEMU saw.
pub struct Run {
    pub unit: Unit,
    pub kernel: String,
    pub qemu: String,
    pub seconds: f64,
    pub reports: Vec<serde_json::Value>,
    /// What it said of a kind of space that its kernel has not.
    pub refused: String,
    pub trace: Trace,
}

/// The directory of packages, if it has what the guest needs and QEMU is there.
pub fn packages(unit: Unit) -> Option<PathBuf> {
    qemu::version().ok()?;
    let named = env::var_os("IOATLAS_RECORD_PACKAGES").map(PathBuf::from);
    let directory = named.or_else(Cache::default_directory)?;
    let cache = directory.is_dir().then(|| Cache::open(&directory).ok())??;
    // the modules of its kernel are compressed
    if unit == Unit::Virtio {
        Command::new("xz").arg("--version").output().ok()?;
    }
    let kernel = cache.kernel_of(unit.meta()).ok()?;
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

static PROGRAM: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();

/// Boots the guest and waits for its end.
pub fn run(unit: Unit, packages: &Path) -> Result<Run, String> {
    let program = PROGRAM.get_or_init(program).as_ref();
    let program = program.map_err(Clone::clone)?;
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let run = boot(unit, packages, directory.path(), program);
    run.map_err(|error| {
        let kept = directory.keep();
        format!("{error}; see {}", kept.display())
    })
}

fn boot(unit: Unit, packages: &Path, directory: &Path, program: &[u8]) -> Result<Run, GuestError> {
    let file = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|source| GuestError::File {
            path: path.into(),
            source,
        })
    };
    let cache = Cache::open(packages)?;
    let kernel = cache.kernel_of(unit.meta())?;
    let tree = cache.tree(&[&kernel, "busybox-static"])?;
    let mut image = Image::new(&tree, include_str!("init.sh"))?;
    for module in unit.modules() {
        image.module(module)?;
    }
    // virtio-iommu does not remap interrupts
    let interrupts = match unit {
        Unit::Vtd => "",
        Unit::Virtio => "allow_unsafe_interrupts=1",
    };
    image.variable("PARAMETERS_vfio_iommu_type1", interrupts);
    image.executable("ioatlas-nvme", program)?;
    image.variable("NVME", NVME);
    image.variable("EDU", EDU);
    image.variable("HUGE_PAGES", "32");
    let [huge, scattered] = unit.options();
    image.variable("HUGE_OPTIONS", huge);
    image.variable("SCATTERED_OPTIONS", scattered);
    image.variable("BURST_OPTIONS", BURST_OPTIONS);
    let (initrd, disk) = (directory.join("initrd"), directory.join("disk"));
    file(&initrd, &image.finish())?;
    let bytes: Vec<u8> = pattern::disk(DISK).flatten().collect();
    file(&disk, &bytes)?;
    let machine = qemu::Machine {
        cpus: 1,
        memory_mib: 512,
        kernel: tree.only("vmlinuz-")?,
        initrd: &initrd,
        command_line: unit.command_line(),
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
    add(&["-device", unit.device()]);
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
        unit,
        kernel: said.all("kernel").collect(),
        qemu: qemu::version()?,
        refused: said.all("refused").collect(),
        seconds: begun.elapsed().as_secs_f64(),
        reports: reports.collect::<Result<_, _>>()?,
        trace,
    })
}
