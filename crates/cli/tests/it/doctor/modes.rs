// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which mode devices are in, and what chose it.

use super::tree::{CAPTURE, commands, device, model, pci, says, silent, text, tree};
use serde_json::{Value, json};

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
