// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `doctor` on trees made here of files that machines have below /sys, /proc and /boot.

use crate::common::ioatlas;
use ioatlas::Status;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// A tree, a line each: `PATH = CONTENT` is a file, `PATH -> TARGET` a link, `PATH/` a folder.
/// Spaces around are left out, and so are empty lines.
fn tree(lines: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let place = |path: &str| {
            let path = folder.path().join(path.trim());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        if let Some((path, content)) = line.split_once(" = ") {
            fs::write(
                place(path),
                content.replace("\\n", "\n").replace("\\t", "\t") + "\n",
            )
            .unwrap();
        } else if let Some((path, target)) = line.split_once(" -> ") {
            symlink(target.trim(), place(path)).unwrap();
        } else {
            assert!(line.ends_with('/'), "{line}");
            fs::create_dir_all(place(line)).unwrap();
        }
    }
    folder
}

/// The lines of a device on the PCI bus, as sysfs has them: the folder below `devices`, links to it
/// and from it. Empty names are left out.
fn pci(address: &str, driver: &str, group: &str, unit: &str) -> String {
    let real = format!("sys/devices/pci0000:00/{address}");
    let mut lines = format!(
        "{real}/vendor = 0x8086
         {real}/dma_mask_bits = 64
         {real}/numa_node = -1
         sys/bus/pci/devices/{address} -> ../../../devices/pci0000:00/{address}\n"
    );
    if !driver.is_empty() {
        lines += &format!("{real}/driver -> ../../../bus/pci/drivers/{driver}\n");
    }
    if !group.is_empty() {
        lines += &format!(
            "{real}/iommu_group -> ../../../kernel/iommu_groups/{group}
             sys/kernel/iommu_groups/{group}/devices/{address} -> ../../../../devices/pci0000:00/{address}\n"
        );
    }
    if !unit.is_empty() {
        lines += &format!("{real}/iommu -> ../../virtual/iommu/{unit}\n");
    }
    lines
}

fn root(tree: &TempDir) -> &str {
    tree.path().to_str().unwrap()
}

/// What `doctor` prints of a tree.
#[track_caller]
fn text(tree: &TempDir) -> String {
    let ran = ioatlas(&["doctor", "--root", root(tree)]);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    ran.out
}

#[track_caller]
fn model(tree: &TempDir) -> Value {
    crate::common::json(&["doctor", "--json", "--root", root(tree)])
}

/// The text has each of these.
#[track_caller]
fn says(text: &str, parts: &[&str]) {
    // Paragraphs are wrapped.
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&part), "no {part:?} in:\n{text}");
    }
}

#[track_caller]
fn silent(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?} in:\n{text}");
    }
}

/// The device of that name in the JSON.
fn device<'j>(model: &'j Value, name: &str) -> &'j Value {
    let mut devices = model["devices"].as_array().unwrap().iter();
    devices.find(|device| device["name"] == name).unwrap()
}

fn commands(model: &Value) -> Vec<&str> {
    let next = model["next"].as_array().unwrap().iter();
    next.map(|step| step["command"].as_str().unwrap()).collect()
}

const CAPTURE: [&str; 2] = [
    "ioatlas capture --seconds 5 -o my.trace.zst",
    "ioatlas report my.trace.zst",
];

/// A server of two units, lazy by its kernel's configuration.
fn intel() -> TempDir {
    let unit = "sys/devices/virtual/iommu";
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 6.12.8-amd64
         proc/cmdline = BOOT_IMAGE=/vmlinuz-6.12.8-amd64 root=/dev/nvme0n1p2 intel_iommu=on quiet
         proc/cpuinfo = processor\\t: 0\\nvendor_id\\t: GenuineIntel\\nflags\\t: fpu vme
         boot/config-6.12.8-amd64 = # A comment\\nCONFIG_IOMMU_DEFAULT_DMA_LAZY=y\\n# CONFIG_IOMMU_DEFAULT_PASSTHROUGH is not set\\nCONFIG_PAGE_POOL_STATS=y
         sys/class/iommu/dmar0 -> ../../devices/virtual/iommu/dmar0
         sys/class/iommu/dmar1 -> ../../devices/virtual/iommu/dmar1
         sys/kernel/mm/transparent_hugepage/enabled = always [madvise] never
         sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 1024
         sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages = 0
         sys/kernel/tracing/events/dma/enable = 0
         sys/kernel/tracing/events/dma/dma_map_phys/id = 1
         sys/kernel/tracing/events/dma/dma_unmap_phys/id = 2
         sys/kernel/tracing/events/iommu/filter = none
         sys/kernel/tracing/events/iommu/map/id = 3
         sys/kernel/iommu_groups/7/type = DMA
         sys/kernel/iommu_groups/12/type = DMA-FQ
         sys/kernel/iommu_groups/13/type = DMA-FQ
         sys/kernel/iommu_groups/14/type = identity
         sys/kernel/iommu_groups/15/type = DMA\n"
    );
    for name in ["dmar0", "dmar1"] {
        // Of a Xeon: 57 bits of MGAW, large leaves, no caching mode.
        lines += &format!(
            "{unit}/{name}/intel-iommu/cap = 19ed008c40780c66
             {unit}/{name}/intel-iommu/ecap = 3ee9e86f050df
             {unit}/{name}/intel-iommu/version = 5:0
             {unit}/{name}/intel-iommu/address = d0ffc000
             {unit}/{name}/intel-iommu/domains_supported = 65536\n"
        );
    }
    lines += &pci("0000:5e:00.0", "mlx5_core", "12", "dmar0");
    lines += &pci("0000:5e:00.1", "vfio-pci", "13", "dmar0");
    lines += &pci("0000:5e:00.2", "", "13", "dmar0");
    lines += &pci("0000:03:00.0", "nvme", "7", "dmar1");
    lines += &pci("0000:00:02.0", "i915", "14", "dmar1");
    lines += &pci("0000:3a:00.0", "xhci_hcd", "15", "dmar1");
    lines += &pci("0000:00:1f.0", "", "", "");
    let real = "sys/devices/pci0000:00";
    lines += &format!(
        "{real}/0000:5e:00.0/net/eth0/
         {real}/0000:03:00.0/nvme/nvme0/
         {real}/0000:3a:00.0/removable = removable
         {real}/0000:5e:00.0/removable = fixed\n"
    );
    tree(&lines)
}

#[test]
fn a_server_is_lazy_by_its_configuration() {
    let tree = intel();
    let out = text(&tree);
    says(
        &out,
        &[
            "ioatlas doctor: Linux 6.12.8-amd64, Intel CPU: 2 IOMMU units",
            "unit dmar0, dmar1: VT-d 5.0, IOVAs of 57 bits, leaves up to 1 GiB, 65,536 domains",
            "command line intel_iommu=on",
            "default lazy, by the kernel's configuration: CONFIG_IOMMU_DEFAULT_DMA_LAZY=y",
            "groups 5: 2 lazy, 2 strict, 1 passthrough",
            "0000:5e:00.0 mlx5_core lazy (DMA-FQ) group 12, dmar0 net eth0",
            "0000:5e:00.1 vfio-pci VFIO (else DMA-FQ) group 13, dmar0 shares its group with 1 other",
            "0000:03:00.0 nvme strict (DMA) group 7, dmar1 nvme0",
            "0000:00:02.0 i915 passthrough (identity) group 14, dmar1",
            "0000:3a:00.0 xhci_hcd strict (DMA) group 15, dmar1 removable, so probably untrusted",
            // VFIO takes the group as a whole.
            "0000:5e:00.2 - VFIO (else DMA-FQ) group 13, dmar0 shares its group with 1 other",
            "lazy unmaps wait in a queue",
            "strict every unmap waits",
            "passthrough addresses are not translated",
            "VFIO a program or guest may map for itself",
            "huge pages reserved: 1,024 of 2 MiB, 0 of 1 GiB; transparent: madvise",
            "events 2 dma:*, 1 iommu:*, which this user can read",
            "note CONFIG_PAGE_POOL_STATS is on",
            "# as root: the DMA mappings of 5 seconds, under your load ioatlas capture --seconds 5 -o \
             my.trace.zst # what strict costs here, and what lazy would save ioatlas report \
             my.trace.zst",
            "# as root: to compare: group 7 (0000:03:00.0 alone) becomes lazy, so less protected \
             echo DMA-FQ >/sys/kernel/iommu_groups/7/type",
        ],
    );
    // Neither bound nor in a group; and no legend for what does not occur.
    silent(&out, &["0000:00:1f.0", "blocked", "not read"]);
    for line in out.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn the_json_has_all_of_a_server() {
    let tree = intel();
    let model = model(&tree);
    assert_eq!(model["kernel"]["version"], json!([6, 12]));
    assert_eq!(
        model["cpu"],
        json!({"vendor": "Intel", "hypervisor": false})
    );
    assert_eq!(model["default_mode"]["mode"], "lazy");
    assert_eq!(model["default_mode"]["source"], "kernel-config");
    assert_eq!(model["no_iommu_because"], Value::Null);
    let unit = &model["units"][0];
    assert_eq!(unit["kind"], "VT-d");
    assert_eq!(unit["iova_bits"], 57);
    assert_eq!(unit["caching_mode"], false);
    assert_eq!(model["groups"].as_array().unwrap().len(), 5);
    let card = device(&model, "0000:5e:00.0");
    assert_eq!(card["driver"], "mlx5_core");
    assert_eq!(card["mode"], "lazy");
    assert_eq!(card["group_type"], "DMA-FQ");
    assert_eq!(card["group"], 12);
    assert_eq!(card["unit"], "dmar0");
    assert_eq!(card["net"], json!(["eth0"]));
    assert_eq!(card["dma_mask_bits"], 64);
    // No nodes here.
    assert_eq!(card["numa_node"], Value::Null);
    let passed = device(&model, "0000:5e:00.1");
    assert_eq!(
        (&passed["mode"], &passed["vfio"], &passed["shares_with"]),
        (&json!("vfio"), &json!(true), &json!(1))
    );
    let mate = device(&model, "0000:5e:00.2");
    assert_eq!(
        (&mate["mode"], &mate["vfio"]),
        (&json!("vfio"), &json!(false))
    );
    assert_eq!(device(&model, "0000:3a:00.0")["removable"], true);
    assert_eq!(card["removable"], false);
    assert_eq!(device(&model, "0000:00:1f.0")["mode"], "no-iommu");
    assert_eq!(commands(&model)[..2], CAPTURE);
    assert_eq!(model["unread"]["count"], 0);
}

#[test]
fn passthrough_is_from_the_command_line() {
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 6.14.0
         proc/cmdline = intel_iommu=on iommu=pt iommu.strict=0 swiotlb=65536,force -- iommu=nopt
         proc/cpuinfo = vendor_id : GenuineIntel
         sys/class/iommu/dmar0/intel-iommu/version = 1:0
         sys/kernel/iommu_groups/1/type = identity\n",
    );
    lines += &pci("0000:01:00.0", "ixgbe", "1", "dmar0");
    let tree = tree(&lines);
    let out = text(&tree);
    says(
        &out,
        &[
            "default passthrough, by the command line: iommu=pt",
            "0000:01:00.0 ixgbe passthrough (identity) group 1, dmar0",
            "note swiotlb=force on the command line: where addresses are not translated, every map \
             is copied",
            "what strict and lazy would cost here",
        ],
    );
    // What follows -- is for init, and a strict that no device has needs no remedy.
    silent(&out, &["nopt", "DMA-FQ"]);
    let model = model(&tree);
    assert_eq!(model["default_mode"]["by"], json!(["iommu=pt"]));
    assert_eq!(model["config"], Value::Null);
    assert_eq!(commands(&model), CAPTURE);
}

#[test]
fn a_later_option_is_stronger_and_strict_of_a_driver_strongest() {
    for (line, mode, by) in [
        (
            "iommu=pt iommu.passthrough=0 iommu.strict=1",
            "strict",
            "iommu.passthrough=0 iommu.strict=1",
        ),
        ("iommu.strict=1 iommu.strict=0", "lazy", "iommu.strict=0"),
        (
            "intel_iommu=on,strict iommu.strict=0",
            "strict",
            "intel_iommu=on,strict",
        ),
        (
            "iommu.passthrough=2 iommu.strict=on",
            "strict",
            "iommu.strict=on",
        ),
        (
            "iommu.strict=0 iommu.passthrough=Y",
            "passthrough",
            "iommu.passthrough=Y",
        ),
    ] {
        let tree = tree(&format!("proc/cmdline = {line}"));
        let default = &model(&tree)["default_mode"];
        let found: Vec<_> = default["by"].as_array().unwrap().iter().collect();
        let found: Vec<_> = found.iter().map(|by| by.as_str().unwrap()).collect();
        assert_eq!(
            (&default["mode"], found.join(" ")),
            (&json!(mode), by.into()),
            "{line}"
        );
    }
    // On Arm iommu=pt is no option.
    let arm = tree("proc/cmdline = iommu=pt\nproc/cpuinfo = CPU implementer : 0x41");
    assert_eq!(model(&arm)["default_mode"]["mode"], Value::Null);
}

#[test]
fn amd_is_strict_and_nothing_says_why() {
    let mut lines = String::from(
        "proc/version = Linux version 6.8.0-50-generic (builder) #51 SMP
         proc/cmdline = quiet
         proc/cpuinfo = vendor_id : AuthenticAMD
         sys/class/iommu/ivhd0/amd-iommu/cap = 190b640f
         sys/class/iommu/ivhd0/amd-iommu/features = 246577efa2254afa:0
         sys/kernel/iommu_groups/0/type = DMA
         sys/kernel/iommu_groups/0/devices/AMDI0020:00 -> ../../../../devices/platform/AMDI0020:00
         sys/devices/platform/AMDI0020:00/driver -> ../../../bus/platform/drivers/dw-apb-uart\n",
    );
    lines += &pci("0000:c1:00.0", "bnxt_en", "0", "ivhd0");
    lines += "sys/devices/pci0000:00/0000:c1:00.0/net/eno1/\n";
    let tree = tree(&lines);
    let out = text(&tree);
    says(
        &out,
        &[
            "Linux 6.8.0-50-generic, AMD CPU: 1 IOMMU unit",
            "unit ivhd0: AMD-Vi",
            "command line says nothing of IOMMUs",
            "default strict, as every group is; what chose it is unknown: the command line does not say \
             it, and the kernel's configuration cannot be read",
            "0000:c1:00.0 bnxt_en strict (DMA) group 0, ivhd0 net eno1, shares its group with 1 other",
            // Not on the PCI bus, but in a group.
            "AMDI0020:00 dw-apb-uart strict (DMA) group 0",
            // 6.8 has no dma:* unless its vendor added them.
            "note dma:* events came with Linux 6.12, and some vendors' older kernels have them",
        ],
    );
    // Older kernels refuse another mode for one of several devices.
    silent(&out, &["caching mode", "echo DMA-FQ", "perf "]);
    let model = model(&tree);
    assert_eq!(commands(&model), CAPTURE);
    assert_eq!(model["default_mode"]["source"], "groups");
    assert_eq!(model["units"][0]["caching_mode"], false);
    assert_eq!(device(&model, "AMDI0020:00")["pci"], false);
}

#[test]
fn an_arm_guest_has_a_virtio_iommu() {
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 6.12.0-arm64
         proc/cmdline = root=/dev/vda1
         proc/cpuinfo = processor : 0\\nCPU implementer : 0xc0\\nCPU part : 0xac3
         boot/config-6.12.0-arm64 = CONFIG_IOMMU_DEFAULT_DMA_STRICT=y
         sys/class/iommu/0000:00:01.0 -> ../../devices/pci0000:00/0000:00:01.0/virtio0/iommu/0000:00:01.0
         sys/devices/pci0000:00/0000:00:01.0/virtio0/iommu/0000:00:01.0/
         sys/kernel/iommu_groups/0/type = DMA-FQ\n",
    );
    lines += &pci("0000:00:01.0", "virtio-pci", "", "");
    lines += &pci("0000:00:02.0", "virtio-pci", "0", "0000:00:01.0");
    // The unit is virtio's device 23.
    let lines = lines.replace(
        "0000:00:01.0/vendor = 0x8086",
        "0000:00:01.0/vendor = 0x1af4\nsys/devices/pci0000:00/0000:00:01.0/device = 0x1057",
    ) + "sys/devices/pci0000:00/0000:00:02.0/virtio1/net/enp0s2/\n
         sys/devices/pci0000:00/0000:00:02.0/virtio1/driver -> ../../../bus/virtio/drivers/virtio_net\n";
    let tree = tree(&lines);
    let out = text(&tree);
    says(
        &out,
        &[
            "Ampere CPU: 1 IOMMU unit",
            "unit 0000:00:01.0: virtio-iommu",
            "default strict, by the kernel's configuration",
            "groups 1: 1 lazy",
            "0000:00:02.0 virtio-pci lazy (DMA-FQ) group 0, 0000:00:01.0 virtio_net, net enp0s2",
            "0000:00:01.0 virtio-pci no IOMMU",
        ],
    );
    assert_eq!(model(&tree)["units"][0]["kind"], "virtio-iommu");
}

#[test]
fn a_unit_in_caching_mode_is_always_strict() {
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 6.12.1
         proc/cmdline = intel_iommu=on iommu.strict=0
         proc/cpuinfo = vendor_id : GenuineIntel\\nflags : fpu hypervisor sse
         sys/class/iommu/dmar0/intel-iommu/cap = d2008c222f0686
         sys/class/iommu/dmar0/intel-iommu/ecap = f00f4a
         sys/kernel/iommu_groups/2/type = DMA\n",
    );
    lines += &pci("0000:00:04.0", "e1000", "2", "dmar0");
    lines += "sys/devices/pci0000:00/0000:00:04.0/net/eth0/\n";
    let tree = tree(&lines);
    let out = text(&tree);
    says(
        &out,
        &[
            "Intel CPU, in a virtual machine: 1 IOMMU unit",
            "IOVAs of 48 bits, leaves up to 1 GiB, caching mode, so always strict",
            "default lazy, by the command line: iommu.strict=0; but the unit is one of a virtual \
             machine, for which Linux is always strict",
        ],
    );
    // The kernel would refuse it.
    silent(&out, &["echo DMA-FQ"]);
    assert_eq!(commands(&model(&tree)), CAPTURE);
}

#[test]
fn without_an_iommu_the_probable_reason_is_said() {
    let common = "proc/sys/kernel/osrelease = 6.18.1\nsys/class/iommu/\nsys/kernel/tracing/\n";
    let intel = "proc/cpuinfo = vendor_id : GenuineIntel";
    let guest = "proc/cpuinfo = vendor_id : GenuineIntel\\nflags : hypervisor";
    let acpi = "sys/firmware/acpi/tables";
    let off = "CONFIG_INTEL_IOMMU_DEFAULT_ON is off in this kernel: boot with intel_iommu=on";
    for (lines, reason) in [
        (
            format!("proc/cmdline = quiet intel_iommu=off\n{intel}\n{acpi}/DMAR = x"),
            "switched off by intel_iommu=off on the command line",
        ),
        (
            format!("proc/cmdline = iommu=off\n{intel}"),
            "switched off by iommu=off",
        ),
        (
            format!("proc/cmdline = quiet\n{intel}\n{acpi}/DMAR = x"),
            "boot with intel_iommu=on",
        ),
        (
            format!(
                "proc/cmdline = quiet\n{intel}\n{acpi}/DMAR = x\nboot/config-6.18.1 = CONFIG_INTEL_IOMMU=y"
            ),
            off,
        ),
        (
            format!("proc/cmdline = intel_iommu=off intel_iommu=on\n{intel}\n{acpi}/DMAR = x"),
            "its log says why",
        ),
        (
            format!(
                "proc/cmdline = quiet\n{intel}\n{acpi}/DMAR = x\nboot/config-6.18.1 = CONFIG_AMD_IOMMU=y"
            ),
            "announces one (table DMAR), but this kernel was built without its driver \
             (CONFIG_INTEL_IOMMU)",
        ),
        (
            format!("{acpi}/IVRS = x\nboot/config-6.18.1 = CONFIG_INTEL_IOMMU=y"),
            "built without its driver (CONFIG_AMD_IOMMU)",
        ),
        (
            format!("proc/cmdline = quiet\n{acpi}/IVRS = x"),
            "announces one (table IVRS)",
        ),
        (
            format!("proc/cmdline = quiet\n{guest}\n{acpi}/APIC = x"),
            "this is a virtual machine that was given none",
        ),
        (
            format!("proc/cmdline = quiet\n{intel}\n{acpi}/APIC = x"),
            "its setup may have a switch",
        ),
        (
            format!("proc/cmdline = amd_iommu=off\n{intel}\n{acpi}/DMAR = x"),
            "boot with intel_iommu=on",
        ),
        (String::new(), "as far as can be seen"),
    ] {
        let mut lines = format!("{common}{lines}\n");
        lines += &pci("0000:00:03.0", "virtio-pci", "", "");
        let tree = tree(&lines);
        let out = text(&tree);
        says(
            &out,
            &[
                "no IOMMU is in use",
                reason,
                "0000:00:03.0 virtio-pci no IOMMU",
                "no IOMMU addresses are physical",
                // dma:* events occur all the same, but nothing shows them.
                "the file system of events is not mounted",
                "# as root: the kernel's trace events mount -t tracefs nodev /sys/kernel/tracing",
                "ioatlas capture --seconds 5 -o my.trace.zst",
                "what strict and lazy would cost here",
            ],
        );
        silent(&out, &["default  "]);
        let because = model(&tree)["no_iommu_because"].to_string();
        assert!(because.contains(reason), "{because}");
    }
}

#[test]
fn an_old_kernel_has_no_dma_events_and_says_less_of_modes() {
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 5.10.0-30-amd64
         sys/class/iommu/dmar0/intel-iommu/version = 1:0
         sys/kernel/tracing/events/iommu/map/id = 3
         sys/kernel/iommu_groups/3/type = DMA\n",
    );
    lines += &pci("0000:03:00.0", "mpt3sas", "3", "dmar0");
    let old = tree(&lines);
    assert_eq!(commands(&model(&old)), CAPTURE);
    says(
        &text(&old),
        &[
            "0000:03:00.0 mpt3sas translated (DMA) group 3, dmar0",
            "translated lazy or strict: kernels before 5.15 do not say which",
            "note dma:* events came with Linux 6.12. Here iommu:* events have to do",
            "# as root: mappings of 5 seconds under your load, without names of devices",
        ],
    );
    // 6.1, and nothing is translated: then nothing can be recorded, if its events are seen.
    let release = "proc/sys/kernel/osrelease = 6.1.0-28-amd64";
    let unseen = tree(release);
    assert_eq!(commands(&model(&unseen)), CAPTURE);
    silent(&text(&unseen), &["nothing can be recorded"]);
    let bare = tree(&format!(
        "{release}\nsys/kernel/tracing/events/iommu/map/id = 3"
    ));
    let out = text(&bare);
    says(
        &out,
        &[
            "here nothing can be recorded",
            "# the bundled traces, as here nothing can be recorded ioatlas report",
        ],
    );
    silent(&out, &["capture", "perf"]);
    assert_eq!(commands(&model(&bare)), ["ioatlas report"]);
}

#[test]
fn events_that_are_seen_count_more_than_the_version() {
    let lines = "proc/sys/kernel/osrelease = 6.12.0\nsys/kernel/tracing/events/sched/enable = 0";
    let without = tree(lines);
    says(&text(&without), &["events no dma:*, no iommu:*"]);
    assert_eq!(commands(&model(&without)), ["ioatlas report"]);
    // A vendor's kernel with dma:* of a later one, below the older path.
    let lines =
        "proc/sys/kernel/osrelease = 5.14.0\nsys/kernel/debug/tracing/events/dma/dma_map_sg/id = 1";
    let with = tree(lines);
    let model = model(&with);
    assert_eq!(commands(&model), CAPTURE);
    assert_eq!(model["events"]["folder"], "sys/kernel/debug/tracing");
}

/// A guest whose disk was offered ACCESS_PLATFORM, feature 33, or was not.
fn guest(mapped: bool) -> TempDir {
    guest_with(mapped, "")
}

/// The same, with more.
fn guest_with(mapped: bool, more: &str) -> TempDir {
    let features = format!("{:0<33}{}{:030}", "11", u8::from(mapped), 0);
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 6.12.0
         sys/class/iommu/dmar0/intel-iommu/version = 1:0
         sys/kernel/iommu_groups/3/type = DMA\n",
    );
    lines += &pci("0000:00:02.0", "virtio-pci", "3", "dmar0");
    lines += &format!(
        "sys/devices/pci0000:00/0000:00:02.0/virtio0/features = {features}
         sys/devices/pci0000:00/0000:00:02.0/virtio0/driver -> ../../../../bus/virtio/drivers/virtio_blk
         sys/devices/pci0000:00/0000:00:02.0/virtio0/block/vda/\n"
    );
    lines += more;
    tree(&lines)
}

#[test]
fn virtio_without_access_platform_is_not_mapped() {
    let tree = guest(false);
    let out = text(&tree);
    says(
        &out,
        &[
            "0000:00:02.0 virtio-pci strict (DMA) group 3, dmar0 virtio_blk, not mapped, disk vda",
            "not mapped virtio without the feature ACCESS_PLATFORM",
            "note no device here is mapped for",
        ],
    );
    let found = model(&tree);
    let virtio = json!({"driver": "virtio_blk", "access_platform": false});
    assert_eq!(device(&found, "0000:00:02.0")["virtio"], virtio);
    assert_eq!(commands(&found), ["ioatlas report"]);
    // A device of another kind beside it is mapped for.
    let more = guest_with(false, &pci("0000:00:1f.2", "ahci", "", ""));
    assert_eq!(commands(&model(&more))[..2], CAPTURE);
    silent(&text(&more), &["no device here is mapped"]);
    let tree = guest(true);
    silent(&text(&tree), &["not mapped"]);
    let found = model(&tree);
    assert_eq!(
        device(&found, "0000:00:02.0")["virtio"]["access_platform"],
        true
    );
    assert_eq!(commands(&found)[..2], CAPTURE);
}

#[test]
fn vfio_without_an_iommu_is_no_iommu() {
    let mut lines = String::from(
        "proc/sys/kernel/osrelease = 6.12.0
         sys/kernel/iommu_groups/0/name = vfio-noiommu
         sys/kernel/iommu_groups/0/type = unknown\n",
    );
    lines += &pci("0000:00:05.0", "vfio-pci", "0", "");
    let tree = tree(&lines);
    says(
        &text(&tree),
        &[
            "no IOMMU is in use",
            "0000:00:05.0 vfio-pci no IOMMU (unknown) group 0 under VFIO without an IOMMU",
        ],
    );
    assert!(model(&tree)["no_iommu_because"].is_string());
}

#[test]
fn many_devices_without_a_driver_are_counted() {
    let mut lines = String::from("proc/sys/kernel/osrelease = 6.12.0\n");
    for number in 0..40 {
        lines += &pci(
            &format!("0000:7f:{number:02x}.0"),
            "",
            &number.to_string(),
            "dmar0",
        );
        lines += &format!("sys/kernel/iommu_groups/{number}/type = DMA-FQ\n");
    }
    lines += &pci("0000:01:00.0", "nvme", "99", "dmar0");
    let tree = tree(&lines);
    let out = text(&tree);
    says(
        &out,
        &[
            "and 40 without a driver: lazy (--all)",
            "0000:01:00.0 nvme unknown group 99",
        ],
    );
    silent(&out, &["0000:7f:05.0"]);
    // The group of the disk is not there.
    assert_eq!(device(&model(&tree), "0000:01:00.0")["mode"], Value::Null);
    let all = ioatlas(&["doctor", "--all", "--root", root(&tree)]).out;
    says(&all, &["0000:7f:05.0 - lazy (DMA-FQ) group 5, dmar0"]);
    assert_eq!(model(&tree)["devices"].as_array().unwrap().len(), 41);
}

/// Writes what `doctor` shall not stumble over.
fn hostile(root: &Path) {
    let secret = root.parent().unwrap().join("secret-of-doctor");
    fs::write(&secret, "0xsecret").unwrap();
    let device = root.join("sys/bus/pci/devices/0000:01:00.0");
    // A link out of the root, a circle, and a link by name and by way of ..
    symlink(&secret, device.join("vendor")).unwrap();
    symlink("class", device.join("class")).unwrap();
    symlink("../../../../../../secret-of-doctor", device.join("device")).unwrap();
    symlink("a/\u{1b}[2Jdriver", device.join("driver")).unwrap();
    symlink("/", device.join("net")).unwrap();
    fs::write(device.join("dma_mask_bits"), [0xff, 0xfe]).unwrap();
    fs::write(device.join("numa_node"), vec![b'1'; 100_000]).unwrap();
    let status = std::process::Command::new("mkfifo")
        .arg(device.join("removable"))
        .status()
        .unwrap();
    assert!(status.success());
    // A name that is not UTF-8, and a folder where a file should be.
    let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"0000:\xff");
    fs::create_dir(root.join("sys/bus/pci/devices").join(name)).unwrap();
    fs::create_dir_all(root.join("sys/kernel/iommu_groups/1/type")).unwrap();
}

#[test]
fn a_hostile_tree_does_no_harm() {
    let outer = tempfile::tempdir().unwrap();
    let made = tree(
        "proc/sys/kernel/osrelease = ../../6\u{1b}]0;x\u{7}.99999999999999
         proc/cmdline = iommu.strict=\u{202e}0 iommu=pt\u{1b}[31m intel_iommu=on\u{7}
         proc/cpuinfo = vendor_id : \u{1b}[2J
         proc/config.gz = not packed
         sys/class/iommu/dmar0/intel-iommu/cap = ffffffffffffffff
         sys/class/iommu/dmar0/intel-iommu/ecap = ffffffffffffffff
         sys/class/iommu/dmar1/intel-iommu/cap = fffffffffffffffff
         sys/class/iommu/dmar1/intel-iommu/version = \u{1b}c\\n\\n
         sys/class/iommu/dmar2 -> ../../class/iommu/dmar2
         sys/class/iommu/\u{1b}[0m/intel-iommu/domains_supported = -1
         sys/kernel/iommu_groups/1/devices/0000:01:00.0/
         sys/kernel/iommu_groups/2/type = \u{9b}2J
         sys/kernel/iommu_groups/2/devices/\u{1b}[5m/
         sys/kernel/iommu_groups/99999999999999999999999/type = DMA
         sys/kernel/iommu_groups/x/type = DMA
         sys/kernel/mm/transparent_hugepage/enabled = ]always[
         sys/kernel/mm/hugepages/hugepages-18446744073709551615kB/nr_hugepages = 99999999999999999999
         sys/kernel/mm/hugepages/hugepages-kB/nr_hugepages = 1
         sys/kernel/tracing = a file
         sys/bus/pci/devices/0000:01:00.0/",
    );
    let root_folder = outer.path().join("root");
    fs::rename(made.path(), &root_folder).unwrap();
    hostile(&root_folder);
    let path = root_folder.to_str().unwrap();
    let ran = ioatlas(&["doctor", "--root", path]);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    let steers = |c: char| c != '\n' && ioatlas_present::steers(c);
    assert!(!ran.out.contains(steers), "{:?}", ran.out);
    says(
        &ran.out,
        &[
            "0000:01:00.0 ?[2Jdriver",
            "?[5m - unknown (?2J) group 2",
            "not read sys/bus/pci/devices/",
            "too many links",
            "more",
        ],
    );
    let json = crate::common::json(&["doctor", "--json", "--root", path]);
    assert!(!json.to_string().contains("secret"), "{json}");
    // As JSON they do not steer a terminal either, and are what they are.
    let raw = ioatlas(&["doctor", "--json", "--root", path]).out;
    assert!(!raw.contains(steers), "{raw:?}");
    assert!(raw.contains("\\u009b2J"), "{raw}");
    let groups = json["groups"].as_array().unwrap().iter();
    let kinds: Vec<_> = groups.filter_map(|group| group["type"].as_str()).collect();
    assert!(kinds.contains(&"\u{9b}2J"), "{kinds:?}");
    let device = device(&json, "0000:01:00.0");
    assert_eq!(
        [
            &device["vendor"],
            &device["class"],
            &device["device"],
            &device["dma_mask_bits"]
        ],
        [&Value::Null; 4]
    );
    assert_eq!(
        (&device["numa_node"], &device["removable"]),
        (&Value::Null, &json!(false))
    );
    let reasons: Vec<&str> = json["unread"]["first"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trouble| trouble["reason"].as_str().unwrap())
        .collect();
    for reason in [
        "too many links",
        "not UTF-8",
        "its name is not UTF-8",
        "larger than 64 KiB",
        "not a regular file",
        "cannot be unpacked",
    ] {
        assert!(reasons.contains(&reason), "no {reason} in {reasons:?}");
    }
}

#[test]
fn a_root_that_is_none_is_said() {
    let ran = ioatlas(&["doctor", "--root", "/nonexistent"]);
    assert_eq!((ran.status, ran.out.as_str()), (Status::Failure, ""));
    says(
        &ran.err,
        &["error: /nonexistent: cannot read: No such file or directory"],
    );
}

/// Whatever machine this is.
#[test]
fn this_machine_has_an_answer() {
    let ran = ioatlas(&["doctor"]);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    assert!(ran.out.starts_with("ioatlas doctor: Linux "), "{}", ran.out);
    let model = crate::common::json(&["doctor", "--json", "--root", "/"]);
    assert!(!model["next"].as_array().unwrap().is_empty());
}
