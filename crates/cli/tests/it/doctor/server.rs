// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A whole server, as text and as JSON; and many devices.

use super::tree::{CAPTURE, commands, device, model, pci, root, says, silent, text, tree};
use crate::common::ioatlas;
use serde_json::{Value, json};
use tempfile::TempDir;

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
