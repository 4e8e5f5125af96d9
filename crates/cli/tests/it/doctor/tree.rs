// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Trees of files that machines have below /sys, /proc and /boot, and what `doctor` says of them.

use crate::common::ioatlas;
use ioatlas_cli::Status;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// A tree, a line each: `PATH = CONTENT` is a file, `PATH -> TARGET` a link, `PATH/` a folder.
/// Spaces around are left out, and so are empty lines.
pub fn tree(lines: &str) -> TempDir {
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
pub fn pci(address: &str, driver: &str, group: &str, unit: &str) -> String {
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

pub fn root(tree: &TempDir) -> &str {
    tree.path().to_str().unwrap()
}

/// What `doctor` prints of a tree.
#[track_caller]
pub fn text(tree: &TempDir) -> String {
    let ran = ioatlas(&["doctor", "--root", root(tree)]);
    assert_eq!((ran.status, ran.err.as_str()), (Status::Success, ""));
    ran.out
}

#[track_caller]
pub fn model(tree: &TempDir) -> Value {
    crate::common::json(&["doctor", "--json", "--root", root(tree)])
}

/// The text has each of these.
#[track_caller]
pub fn says(text: &str, parts: &[&str]) {
    // Paragraphs are wrapped.
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&part), "no {part:?} in:\n{text}");
    }
}

#[track_caller]
pub fn silent(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?} in:\n{text}");
    }
}

/// The device of that name in the JSON.
pub fn device<'j>(model: &'j Value, name: &str) -> &'j Value {
    let mut devices = model["devices"].as_array().unwrap().iter();
    devices.find(|device| device["name"] == name).unwrap()
}

pub fn commands(model: &Value) -> Vec<&str> {
    let next = model["next"].as_array().unwrap().iter();
    next.map(|step| step["command"].as_str().unwrap()).collect()
}

pub const CAPTURE: [&str; 2] = [
    "ioatlas capture --seconds 5 -o my.trace.zst",
    "ioatlas report my.trace.zst",
];
