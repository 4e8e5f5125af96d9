// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's arguments.

use crate::arguments::Mode;
use ioatlas_guest::qemu::{Machine, Reboot, comma_safe};
use std::ffi::OsString;
use std::path::Path;

/// MiB of a guest.
const MEMORY_MIB: u32 = 512;

/// What the guest's kernel is told.
const fn command_line(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "",
        Mode::Pt => "intel_iommu=on iommu=pt",
        Mode::Strict => "intel_iommu=on iommu.strict=1",
    }
}

/// All arguments of a guest whose network card is served at `socket`.
pub fn arguments(mode: Mode, kernel: &Path, initrd: &Path, socket: &Path) -> Vec<OsString> {
    let machine = Machine {
        cpus: 1,
        memory_mib: MEMORY_MIB,
        kernel,
        initrd,
        command_line: command_line(mode),
        reboot: Reboot::Boots,
    };
    let mut arguments = machine.arguments();
    let mut add = |option: &str, value: &str| arguments.extend([option.into(), value.into()]);
    add("-accel", "tcg");
    // the back end maps the guest's memory
    let memory = format!("memory-backend-memfd,id=ram,size={MEMORY_MIB}M,share=on");
    add("-object", &memory);
    add("-numa", "node,memdev=ram");
    let mut card = String::from("virtio-net-pci,netdev=n0,disable-legacy=on,vectors=0");
    if mode != Mode::Off {
        // first: devices are behind the unit only from then on
        add("-device", "intel-iommu,intremap=off,device-iotlb=on");
        card += ",iommu_platform=on,ats=on";
    }
    // QEMU connects, and again each second, for as long as it takes
    let socket = comma_safe(socket);
    add(
        "-chardev",
        &format!("socket,id=c0,path={socket},reconnect=1"),
    );
    add("-netdev", "vhost-user,id=n0,chardev=c0");
    add("-device", &card);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_behind_a_unit_where_there_is_one() {
        for mode in Mode::ALL {
            let words = arguments(mode, Path::new("k"), Path::new("i"), Path::new("s"));
            let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
            let line = words.join(" ");
            let unit = line.find("-device intel-iommu");
            let card = line.find("-device virtio-net-pci");
            match mode {
                Mode::Off => assert!(unit.is_none() && !line.contains("iommu"), "{line}"),
                _ => assert!(unit < card && unit.is_some(), "{line}"),
            }
            assert_eq!(line.contains("iommu_platform=on"), mode != Mode::Off);
            assert_eq!(line.contains("iommu.strict=1"), mode == Mode::Strict);
            assert!(line.contains("vectors=0"), "{line}");
        }
    }
}
