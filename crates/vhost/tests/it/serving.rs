// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A runner against what is wrong around it: connections that say nothing, threads that panic, descriptors that run out or
//! must not be kept.

use crate::common::{raw::*, *};
use std::{fs::File, os::fd::OwnedFd};

/// As many as there may be regions, each would be a descriptor less for everybody.
#[test]
fn files_of_guest_memory_are_not_kept_open() {
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let name = "kept-or-not";
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create(name, flags).unwrap());
    file.set_len(0x10000).unwrap();
    let file = OwnedFd::from(file);
    let table = Raw::table(&[[0, 0x10000, 0x7000_0000, 0]]);
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&file]), 0);
    let shown = format!("/memfd:{name} (deleted)");
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = fds.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let open = links.filter(|link| link.to_string_lossy() == shown).count();
    assert_eq!(open, 1, "a descriptor for each region");
}
