// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's arguments.

use crate::arguments::Mode;
use ioatlas_guest::qemu::{Machine, Reboot, comma_safe};
use std::ffi::OsString;
use std::path::Path;

/// MiB of a guest.
const MEMORY_MIB: u32 = 512;

/// What drives the card in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// The kernel's driver, with its IOMMU used so.
    Linux(Mode),
    /// A process, through VFIO.
    Vfio,
}

impl Card {
    /// What the guest's kernel is told.
    const fn command_line(self) -> &'static str {
        match self {
            Self::Linux(Mode::Off) => "",
            Self::Linux(Mode::Pt) => "intel_iommu=on iommu=pt",
            Self::Linux(Mode::Strict) => "intel_iommu=on iommu.strict=1",
            Self::Vfio => "intel_iommu=on",
        }
    }

    /// The unit that the card is behind.
    pub const fn unit(self) -> Option<&'static str> {
        match self {
            Self::Linux(Mode::Off) => None,
            Self::Linux(_) => Some("intel-iommu,intremap=off,device-iotlb=on"),
            // no process is given a device whose interrupts are not checked
            Self::Vfio => Some("intel-iommu,intremap=on,device-iotlb=on,caching-mode=on"),
        }
    }
}

/// The least that DPDK is built for.
const DPDK_CPU: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt";

/// All arguments of a guest whose network card is served at `socket`.
pub fn arguments(whose: Card, kernel: &Path, initrd: &Path, socket: &Path) -> Vec<OsString> {
    let machine = Machine {
        cpus: 1,
        memory_mib: MEMORY_MIB,
        kernel,
        initrd,
        command_line: whose.command_line(),
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
    if whose == Card::Vfio {
        add("-cpu", DPDK_CPU);
    }
    if let Some(unit) = whose.unit() {
        // first: devices are behind the unit only from then on
        add("-device", unit);
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
        let cards = Mode::ALL.map(Card::Linux).into_iter().chain([Card::Vfio]);
        for whose in cards {
            let words = arguments(whose, Path::new("k"), Path::new("i"), Path::new("s"));
            let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
            let line = words.join(" ");
            let unit = line.find("-device intel-iommu");
            let card = line.find("-device virtio-net-pci");
            match whose {
                Card::Linux(Mode::Off) => {
                    assert!(unit.is_none() && !line.contains("iommu"), "{line}")
                }
                _ => assert!(unit < card && unit.is_some(), "{line}"),
            }
            let off = whose == Card::Linux(Mode::Off);
            assert_eq!(line.contains("iommu_platform=on"), !off);
            let strict = whose == Card::Linux(Mode::Strict);
            assert_eq!(line.contains("iommu.strict=1"), strict);
            assert_eq!(line.contains("intremap=on"), whose == Card::Vfio);
            assert!(line.contains("vectors=0"), "{line}");
        }
    }
}
