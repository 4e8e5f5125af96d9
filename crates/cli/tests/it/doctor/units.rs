// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Machines whose IOMMU is none of a PC, is off, or is not there.

use super::tree::{model, pci, says, silent, text, tree};

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
