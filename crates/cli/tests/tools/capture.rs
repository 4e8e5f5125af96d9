// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a user types on a server of their own, typed in Debian guests whose kernels have the
//! `dma:*` events: `doctor`, `capture` while programs use two disks and two networks, `report`.
//! What the report says of it is compared with what the programs did. One guest counts with
//! bpftrace as well, and types what README says.

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
const INSTALL: &str = "needs QEMU, kernels with dma events and bpftrace: ci/install-capture.sh";

/// The metapackage of the first kernel that has the events.
const FIRST: &str = "linux-image-6.12-amd64";
/// That of the newest of those that the test's packages have.
const NEWEST: &str = "linux-image-amd64";

/// What the kernels have not built in.
const MODULES: [&str; 5] = ["nvme", "e1000", "virtio_net", "virtio_scsi", "sd_mod"];
const LIBRARIES: [&str; 2] = ["libc6", "libgcc-s1"];
/// A loaded machine may take ten times as long as a quiet one.
const LIMIT: Duration = Duration::from_secs(600);

/// What the guest's `dd` reads of each disk: so many blocks of so many bytes, one at a time.
const BLOCKS: u64 = 300;
const BLOCK_BYTES: u64 = 4096;

/// Pings on each network, and the bytes that each carries.
const PINGS: u64 = 100;
const PING_BYTES: u64 = 600;
/// Headers of a ping: Ethernet, IP, ICMP.
const HEADERS: u64 = 14 + 20 + 8;

/// A device, and what one request of the load is to it.
struct Loaded {
    name: &'static str,
    driver: &'static str,
    requests: u64,
    bytes: u64,
}

/// All devices of the guest, each with a load of its own.
const DEVICES: [Loaded; 4] = [
    Loaded {
        name: "0000:00:03.0",
        driver: "nvme",
        requests: BLOCKS,
        bytes: BLOCK_BYTES,
    },
    Loaded {
        name: "0000:00:04.0",
        driver: "e1000",
        requests: PINGS,
        bytes: HEADERS + PING_BYTES,
    },
    Loaded {
        name: "0000:00:05.0",
        driver: "virtio-pci",
        requests: PINGS,
        bytes: HEADERS + PING_BYTES,
    },
    Loaded {
        name: "0000:00:06.0",
        driver: "virtio-pci",
        requests: BLOCKS,
        bytes: BLOCK_BYTES,
    },
];

/// A guest.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Guest {
    kernel: &'static str,
    unit: Unit,
    typed: Typed,
}

/// What stands between the devices and memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// VT-d, with the kernel's default of deferred invalidation.
    Lazy,
    /// VT-d, with an invalidation at each unmap.
    Strict,
    None,
}

/// What is typed in it besides `doctor`, `capture` and `report`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Typed {
    Nothing,
    /// README's lines, and the script for bpftrace.
    All,
}

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, kernel: &'static str, unit: Unit, typed: Typed| {
        let guest = Guest {
            kernel,
            unit,
            typed,
        };
        let run = move || the_report_agrees_with_the_load(&packages().ok_or(INSTALL)?, guest);
        Trial::test(format!("capture: {name}"), run)
            .with_kind(IGNORED)
            .with_ignored_flag(true)
    };
    vec![
        trial(
            "what devices did behind a lazy IOMMU, with all that can be typed",
            FIRST,
            Unit::Lazy,
            Typed::All,
        ),
        trial(
            "what devices did behind a strict IOMMU",
            FIRST,
            Unit::Strict,
            Typed::Nothing,
        ),
        trial(
            "what devices did without an IOMMU",
            FIRST,
            Unit::None,
            Typed::Nothing,
        ),
        trial(
            "what devices did behind a lazy IOMMU of the newest kernel",
            NEWEST,
            Unit::Lazy,
            Typed::Nothing,
        ),
        trial(
            "what devices did without an IOMMU of the newest kernel",
            NEWEST,
            Unit::None,
            Typed::Nothing,
        ),
        Trial::test(
            "capture: README has at most eight lines to read and type",
            short,
        ),
    ]
}

/// The section of README that says how to record one's own server.
fn readme() -> &'static str {
    let all = include_str!("../../../../README.md");
    let (_, section) = all
        .split_once("\n## On your own server\n")
        .unwrap_or_default();
    section.split("\n## ").next().unwrap_or_default()
}

/// Its commands, a line each: those in the text, and those in the block.
fn commands() -> String {
    let (mut commands, mut is_block) = (String::new(), false);
    for line in readme().lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            commands += &format!("{line}\n");
        } else if let Some(from) = line.find("`cargo ") {
            let command = line[from + 1..].split('`').next().unwrap_or_default();
            commands += &format!("{command}\n");
        }
    }
    commands
}

fn short() -> Result<(), Failed> {
    let lines = readme().lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("```"));
    let (count, commands) = (lines.count(), commands());
    assert!((4..=8).contains(&count), "{count}");
    for command in ["doctor", "capture", "report"] {
        assert!(commands.contains(command), "no {command} in {commands}");
    }
    Ok(())
}

/// The directory of packages, if all that is needed is there.
///
/// It is not the one of other guests: those take the newest kernel that theirs has.
fn packages() -> Option<PathBuf> {
    qemu::version().ok()?;
    let named = env::var_os("IOATLAS_CAPTURE_PACKAGES").map(PathBuf::from);
    let usual = || Some(Cache::default_directory()?.with_file_name("capture-packages"));
    let directory = named.or_else(usual)?;
    let cache = directory.is_dir().then(|| Cache::open(&directory).ok())??;
    // the modules of kernels are compressed
    Command::new("xz").arg("--version").output().ok()?;
    let kernels = [FIRST, NEWEST].map(|meta| cache.kernel_of(meta).ok());
    let [first, newest] = kernels;
    let wanted = [&first?, &newest?, "busybox-static", "bpftrace"];
    let all = wanted.into_iter().chain(LIBRARIES);
    all.into_iter()
        .all(|package| cache.has(package))
        .then_some(directory)
}

fn the_report_agrees_with_the_load(packages: &Path, guest: Guest) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let said = match boot(packages, directory.path(), guest) {
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
    let mode = match guest.unit {
        Unit::Lazy => "lazy",
        Unit::Strict => "strict",
        Unit::None => "no-iommu",
    };
    for Loaded { name, driver, .. } in &DEVICES {
        let device = named(&doctor, "name", name)?;
        assert_eq!(device["mode"], mode, "{device}");
        assert_eq!(device["driver"], *driver, "{device}");
    }
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
    let capture = report(directory.path(), "my.trace.zst", &file("trace")?)?;
    let translated = match guest.unit {
        Unit::Lazy | Unit::Strict => "yes",
        Unit::None => "no",
    };
    assert_eq!(capture["translated"], translated);
    agrees(&capture)?;
    if guest.typed == Typed::All {
        assert_eq!(one("readme").trim(), "ok");
        let typed = String::from_utf8(file("typed")?)?;
        for words in [
            "ioatlas doctor",
            "Next: ioatlas report",
            "ioatlas report: 1 capture",
        ] {
            assert!(typed.contains(words), "no {words} in {typed}");
        }
        let counted = report(directory.path(), "my.json", &file("counts")?)?;
        assert_eq!(counted["translated"], translated, "{counted}");
        agrees(&counted)?;
    }
    Ok(())
}

/// What `report` says of the one capture in a file of this content.
fn report(directory: &Path, name: &str, content: &[u8]) -> Result<Value, Failed> {
    let path = directory.join(name);
    fs::write(&path, content)?;
    let ran = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .arg("report")
        .arg(&path)
        .args(["--json", "--as", "linux", "--as", "linux-strict", "-o"])
        .arg(directory.join("report.html"))
        .output()?;
    assert!(ran.status.success(), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.stdout)?;
    Ok(report["captures"][0].clone())
}

/// The one of the devices that has this name.
fn named<'v>(of: &'v Value, field: &str, name: &str) -> Result<&'v Value, Failed> {
    let mut devices = of["devices"].as_array().ok_or("no devices")?.iter();
    let found = devices.find(|device| device[field] == name);
    Ok(found.ok_or_else(|| format!("{name} is not in {of}"))?)
}

fn number(value: &Value) -> f64 {
    value["value"].as_f64().unwrap_or(f64::NAN)
}

/// Compares what a report says of a capture with what the loads did: each request is a map of its
/// bytes, beside which there are others.
fn agrees(capture: &Value) -> Result<(), Failed> {
    let rate = number(&capture["costs"]["maps_per_second"]);
    assert!(rate > 0.0, "{capture}");
    for load in &DEVICES {
        let device = named(capture, "device", load.name)?;
        let (maps, mean) = (number(&device["maps"]), number(&device["mean_bytes"]));
        let requests = load.requests as f64;
        assert!(maps * mean >= requests * load.bytes as f64, "{device}");
        let up_to = load.bytes.next_power_of_two() as f64;
        let sizes = device["sizes"].as_array().ok_or("no sizes")?;
        let of_size = sizes.iter().find(|size| number(&size["up_to"]) == up_to);
        let of_size = of_size.map_or(0.0, |size| number(&size["maps"]));
        match load.bytes {
            // other maps may be of whole pages
            BLOCK_BYTES => assert!(of_size >= requests, "{device}"),
            _ => assert_eq!(of_size, requests, "{device}"),
        }
        let task = match load.bytes {
            BLOCK_BYTES => "dd",
            _ => "ping",
        };
        let tasks = device["tasks"].as_array().ok_or("no tasks")?;
        let task = tasks.iter().find(|of| of["name"] == task);
        let by_task = task.map_or(0.0, |task| number(&task["share"]) * maps / 100.0);
        match (load.driver, load.bytes) {
            // one map a request
            ("nvme", _) => assert_eq!(by_task.round(), requests, "{device}"),
            // and those of the rings
            (_, BLOCK_BYTES) => assert!(by_task.round() >= requests, "{device}"),
            // a ping may be sent within a softirq
            _ => assert!(by_task > 0.0, "{device}"),
        }
    }
    Ok(())
}

/// Boots the guest, and waits for its end; what it said.
fn boot(packages: &Path, directory: &Path, guest: Guest) -> Result<Lines, GuestError> {
    let write = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|source| GuestError::file(path, source))
    };
    let cache = Cache::open(packages)?;
    let kernel = cache.kernel_of(guest.kernel)?;
    let [libc, libgcc] = LIBRARIES;
    let mut wanted = vec![kernel.as_str(), "busybox-static", libc, libgcc];
    if guest.typed == Typed::All {
        wanted.push("bpftrace");
    }
    let tree = cache.tree(&wanted)?;
    let mut image = Image::new(&tree, include_str!("capture.sh"))?;
    for module in MODULES {
        image.module(module)?;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_ioatlas"));
    let bytes = fs::read(program).map_err(|source| GuestError::file(program, source))?;
    image.executable("ioatlas", &bytes)?;
    if guest.typed == Typed::All {
        image.program("bpftrace")?;
        image.file("readme", commands().as_bytes());
        // there is no compiler, and all are root
        image.file("programs/cargo", CARGO.as_bytes());
        image.file("programs/sudo", b"#!/bin/sh\nexec \"$@\"\n");
    }
    for (name, value) in [
        ("BLOCKS", BLOCKS),
        ("BLOCK_BYTES", BLOCK_BYTES),
        ("PINGS", PINGS),
        ("PING_BYTES", PING_BYTES),
    ] {
        image.variable(name, &value.to_string());
    }
    let initrd = directory.join("initrd");
    write(&initrd, &image.finish())?;
    let machine = qemu::Machine {
        cpus: 2,
        memory_mib: 2048,
        kernel: tree.only("vmlinuz")?,
        initrd: &initrd,
        command_line: match guest.unit {
            Unit::Lazy => "loglevel=1 intel_iommu=on iommu.strict=0",
            Unit::Strict => "loglevel=1 intel_iommu=on iommu.strict=1",
            Unit::None => "loglevel=1",
        },
        reboot: qemu::Reboot::Ends,
    };
    let mut arguments = machine.arguments();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(Into::into));
    add(&["-accel", "tcg"]);
    if guest.unit != Unit::None {
        add(&["-device", "intel-iommu,intremap=off"]);
    }
    // virtio devices that are to be mapped for as others are
    let virtio = "disable-legacy=on,iommu_platform=on";
    for (disk, device) in [
        ("nvme", "nvme,serial=1,addr=3".to_owned()),
        ("scsi", "scsi-hd".to_owned()),
    ] {
        let path = directory.join(disk);
        write(&path, &vec![0x5a; (BLOCKS * BLOCK_BYTES) as usize * 2])?;
        if disk == "scsi" {
            add(&["-device", &format!("virtio-scsi-pci,addr=6,{virtio}")]);
        }
        let file = qemu::comma_safe(&path);
        add(&[
            "-drive",
            &format!("if=none,id={disk},format=raw,file={file}"),
        ]);
        add(&["-device", &format!("{device},drive={disk}")]);
    }
    for (network, device) in [
        (2, "e1000,addr=4".to_owned()),
        (3, format!("virtio-net-pci,addr=5,{virtio}")),
    ] {
        let net = format!("user,id=net{network},net=10.0.{network}.0/24");
        add(&["-netdev", &net]);
        add(&["-device", &format!("{device},netdev=net{network}")]);
    }
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

/// What `cargo` is in the guest: the program has been built.
const CARGO: &str = r#"#!/bin/sh -e
case $1 in
run)
    shift 3
    exec ioatlas "$@"
    ;;
build)
    mkdir -p target/release
    ln -sf /programs/ioatlas target/release/ioatlas
    ;;
esac
"#;
