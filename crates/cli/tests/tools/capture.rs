// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a user types on a server of their own, typed in a Debian guest whose kernel has the `dma:*`
//! events: `doctor`, `capture` while a program reads a disk, `report`. What the report says of it is
//! compared with what the program did.

use base64::prelude::{BASE64_STANDARD, Engine};
use ioatlas_guest::{Cache, GuestError, Ignored, Image, Keep, Lines, Watch, qemu};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const IGNORED: &str = "boots a guest: ci/full.sh capture";
const INSTALL: &str = "needs QEMU and a kernel with dma events: ci/install-kernel.sh";
/// The metapackage of its kernel: 6.1 has no such events.
const KERNEL: &str = "linux-image-6.12-cloud-amd64";
const LIBRARIES: [&str; 2] = ["libc6", "libgcc-s1"];
/// A loaded machine may take ten times as long as a quiet one.
const LIMIT: Duration = Duration::from_secs(600);

/// What the guest's `dd` reads: so many blocks of so many bytes, one at a time.
const BLOCKS: u64 = 300;
const BLOCK_BYTES: u64 = 4096;

/// The NVMe disk.
const DISK: &str = "0000:00:03.0";

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, unit: Unit| {
        let run = move || the_report_agrees_with_the_load(&packages().ok_or(INSTALL)?, unit);
        Trial::test(format!("capture: {name}"), run)
            .with_kind(IGNORED)
            .with_ignored_flag(true)
    };
    vec![
        trial("what a disk did behind a lazy IOMMU", Unit::Lazy),
        trial("what a disk did without an IOMMU", Unit::None),
    ]
}

/// What stands between the disk and memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// VT-d, with the kernel's default of deferred invalidation.
    Lazy,
    None,
}

/// The directory of packages, if all that is needed is there.
fn packages() -> Option<PathBuf> {
    qemu::version().ok()?;
    let named = env::var_os("IOATLAS_RECORD_PACKAGES").map(PathBuf::from);
    let directory = named.or_else(Cache::default_directory)?;
    let cache = directory.is_dir().then(|| Cache::open(&directory).ok())??;
    // the modules of its kernel are compressed
    Command::new("xz").arg("--version").output().ok()?;
    let kernel = cache.kernel_of(KERNEL).ok()?;
    let wanted = [kernel.as_str(), "busybox-static"];
    let all = wanted.into_iter().chain(LIBRARIES);
    all.into_iter()
        .all(|package| cache.has(package))
        .then_some(directory)
}

fn the_report_agrees_with_the_load(packages: &Path, unit: Unit) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let said = match boot(packages, directory.path(), unit) {
        Ok(said) => said,
        Err(error) => {
            let kept = directory.keep();
            return Err(format!("{error}; see {}", kept.display()).into());
        }
    };
    let one = |word: &str| said.all(word).next().unwrap_or_default().to_owned();
    let file = |word: &str| -> Result<Vec<u8>, Failed> {
        let text: String = said.all(word).collect();
        Ok(BASE64_STANDARD.decode(text)?)
    };
    let json = |word: &str| -> Result<Value, Failed> { Ok(serde_json::from_slice(&file(word)?)?) };

    // what the machine is set to
    let doctor = json("doctor")?;
    let mode = match unit {
        Unit::Lazy => "lazy",
        Unit::None => "no-iommu",
    };
    let devices = doctor["devices"].as_array().ok_or("no devices")?;
    let disk = devices.iter().find(|device| device["name"] == DISK);
    let disk = disk.ok_or(format!("{DISK} is not in {doctor}"))?;
    assert_eq!(disk["mode"], mode, "{disk}");
    assert_eq!(disk["driver"], "nvme", "{disk}");
    let text = one("told");
    assert!(text.is_empty(), "doctor failed: {text}");
    let words = String::from_utf8(file("words")?)?;
    assert!(words.contains("ioatlas capture"), "{words}");

    // the capture left nothing behind, and lost nothing
    let instances = said.all("instances").next();
    assert_eq!(instances.map(str::trim), Some(""), "an instance is left");
    let summary = json("summary")?;
    assert_eq!(summary["lost"], 0, "{summary}");

    // the report, in the guest and here
    assert!(
        one("report").contains("ok"),
        "{:?}",
        said.all("report").collect::<Vec<_>>()
    );
    let trace = directory.path().join("my.trace.zst");
    fs::write(&trace, file("trace")?)?;
    let page = directory.path().join("report.html");
    let ran = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .arg("report")
        .arg(&trace)
        .args(["--json", "--as", "linux", "--as", "linux-strict", "-o"])
        .arg(&page)
        .output()?;
    assert!(ran.status.success(), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.stdout)?;
    let capture = &report["captures"][0];
    let translated = match unit {
        Unit::Lazy => "yes",
        Unit::None => "no",
    };
    assert_eq!(capture["translated"], translated);
    let devices = capture["devices"].as_array().ok_or("no devices")?;
    let disk = devices.iter().find(|device| device["device"] == DISK);
    let disk = disk.ok_or(format!("{DISK} is not in {devices:?}"))?;

    // the load's own count: each block is a map of its bytes, by dd
    let number = |value: &Value| value["value"].as_f64().unwrap_or(f64::NAN);
    let maps = number(&disk["maps"]);
    let by_dd = disk["tasks"].as_array().ok_or("no tasks")?;
    let by_dd = by_dd.iter().find(|task| task["name"] == "dd");
    let share = by_dd.map_or(0.0, |task| number(&task["share"]));
    let by_dd = (share * maps / 100.0).round() as u64;
    assert_eq!(by_dd, BLOCKS, "{disk}");
    let of_block = |size: &&Value| number(&size["up_to"]) == BLOCK_BYTES as f64;
    let sizes = disk["sizes"].as_array().ok_or("no sizes")?;
    let blocks = sizes
        .iter()
        .find(of_block)
        .map_or(0.0, |s| number(&s["maps"]));
    assert!(blocks >= BLOCKS as f64, "{disk}");
    assert!(
        number(&capture["costs"]["maps_per_second"]) > 0.0,
        "{capture}"
    );
    Ok(())
}

/// Boots the guest, and waits for its end; what it said.
fn boot(packages: &Path, directory: &Path, unit: Unit) -> Result<Lines, GuestError> {
    let write = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|source| GuestError::file(path, source))
    };
    let cache = Cache::open(packages)?;
    let kernel = cache.kernel_of(KERNEL)?;
    let [libc, libgcc] = LIBRARIES;
    let tree = cache.tree(&[&kernel, "busybox-static", libc, libgcc])?;
    let mut image = Image::new(&tree, include_str!("capture.sh"))?;
    let program = Path::new(env!("CARGO_BIN_EXE_ioatlas"));
    let bytes = fs::read(program).map_err(|source| GuestError::file(program, source))?;
    image.executable("ioatlas", &bytes)?;
    image.variable("BLOCKS", &BLOCKS.to_string());
    image.variable("BLOCK_BYTES", &BLOCK_BYTES.to_string());
    let (initrd, disk) = (directory.join("initrd"), directory.join("disk"));
    write(&initrd, &image.finish())?;
    write(&disk, &vec![0x5a; (BLOCKS * BLOCK_BYTES) as usize * 2])?;
    let machine = qemu::Machine {
        cpus: 2,
        memory_mib: 1024,
        kernel: tree.only("vmlinuz-")?,
        initrd: &initrd,
        command_line: match unit {
            Unit::Lazy => "loglevel=1 intel_iommu=on iommu.strict=0",
            Unit::None => "loglevel=1",
        },
        reboot: qemu::Reboot::Ends,
    };
    let mut arguments = machine.arguments();
    arguments.extend(["-accel", "tcg"].map(Into::into));
    if unit == Unit::Lazy {
        arguments.extend(["-device", "intel-iommu,intremap=off"].map(Into::into));
    }
    let drive = format!(
        "if=none,id=disk,format=raw,file={}",
        qemu::comma_safe(&disk)
    );
    arguments.extend(["-drive".into(), drive.into()]);
    arguments.extend(["-device", "nvme,drive=disk,serial=1,addr=3"].map(Into::into));
    let watch = Watch {
        arguments,
        directory,
        limit: LIMIT,
        keep_log: Keep::Tail,
    };
    let mut said = Lines::default();
    watch.run::<_, GuestError>(&mut said, Ignored, |_| {}, || Ok(()))?;
    Ok(said)
}
