// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Files that are none of a kernel's, a root that is none, and this machine.

use super::tree::{device, says, tree};
use crate::common::ioatlas;
use ioatlas_cli::Status;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

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
