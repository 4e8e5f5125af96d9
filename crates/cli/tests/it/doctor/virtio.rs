// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Virtio devices that are not mapped.

use super::tree::{CAPTURE, commands, device, model, pci, says, silent, text, tree};
use serde_json::json;
use tempfile::TempDir;

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
