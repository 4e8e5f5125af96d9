// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can be recorded: devices, workloads, which go together, and what each needs.
//!
//! A network card moves bytes over TCP, a disk moves blocks; neither does the other's work.
//! Everything that differs between devices is a row here: QEMU's options, the guest's kernel
//! modules, and the packages that have the programs.

use clap::ValueEnum;
use serde::Serialize;
use std::fmt;

/// A device that QEMU emulates and the guest's kernel drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub enum Device {
    /// Intel e1000 network card
    #[value(name = "e1000")]
    #[serde(rename = "e1000")]
    E1000,
    /// Two of them, at work at the same time
    #[value(name = "2xe1000")]
    #[serde(rename = "2xe1000")]
    TwoE1000,
    /// LSI 53C895A SCSI controller with a disk
    #[value(name = "lsi")]
    #[serde(rename = "lsi")]
    Lsi,
    /// The chip set's own controller of ATA disks (AHCI) with a disk
    #[value(name = "ide")]
    #[serde(rename = "ide")]
    Ide,
    /// NVMe disk
    #[value(name = "nvme")]
    #[serde(rename = "nvme")]
    Nvme,
    /// virtio network card
    #[value(name = "virtio-net")]
    #[serde(rename = "virtio-net")]
    VirtioNet,
    /// Two of them, at work at the same time
    #[value(name = "2xvirtio-net")]
    #[serde(rename = "2xvirtio-net")]
    TwoVirtioNet,
    /// virtio SCSI controller with a disk
    #[value(name = "virtio-scsi")]
    #[serde(rename = "virtio-scsi")]
    VirtioScsi,
}

/// What the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Network cards: sends over TCP, in writes of 16 KiB
    Stream,
    /// Network cards: one byte there and back, over and over
    Rr,
    /// Network cards: sends, receives, then round trips
    Mix,
    /// Disks: bonnie++ on a new ext4: block writes, rewrites and reads
    Bonnie,
    /// Disks: dd writes a file on a new ext4, 16 KiB at a time, and syncs it
    Dd,
    /// Disks: fio reads and writes 4 KiB at random places, several at a time
    Fio,
}

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Moves bytes over TCP.
    Network,
    /// Moves blocks of a disk.
    Disk,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 2] = [Self::Network, Self::Disk];

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Disk => "disk",
        }
    }
}

/// The device cannot do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} cannot do {workload}; e1000, 2xe1000, virtio-net and 2xvirtio-net do stream, rr and mix; lsi, ide, nvme and virtio-scsi do bonnie, dd and fio"
)]
pub struct Mismatch {
    pub device: Device,
    pub workload: Workload,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(self, f)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(self, f)
    }
}

/// As on the command line.
fn name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value.to_possible_value() {
        Some(value) => f.write_str(value.get_name()),
        None => Err(fmt::Error), // no variant is skipped
    }
}

impl Device {
    /// What it is for.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            Device::E1000 | Device::TwoE1000 | Device::VirtioNet | Device::TwoVirtioNet => {
                Class::Network
            }
            Device::Lsi | Device::Ide | Device::Nvme | Device::VirtioScsi => Class::Disk,
        }
    }

    /// Number of network cards.
    #[must_use]
    pub const fn cards(self) -> usize {
        match self {
            Device::E1000 | Device::VirtioNet => 1,
            Device::TwoE1000 | Device::TwoVirtioNet => 2,
            _ => 0,
        }
    }

    /// Whether it can have several pairs of queues.
    #[must_use]
    pub const fn has_queues(self) -> bool {
        matches!(
            self,
            Device::VirtioNet | Device::TwoVirtioNet | Device::VirtioScsi | Device::Nvme
        )
    }

    /// Whether it is a virtio network card, whose receive ring has a size.
    #[must_use]
    pub const fn has_rings(self) -> bool {
        matches!(self, Device::VirtioNet | Device::TwoVirtioNet)
    }

    /// Modules of the guest's kernel, without those that they need.
    #[must_use]
    pub const fn modules(self) -> &'static [&'static str] {
        match self {
            Device::E1000 | Device::TwoE1000 => &["e1000"],
            Device::VirtioNet | Device::TwoVirtioNet => &["virtio_pci", "virtio_net"],
            Device::Lsi => &["sd_mod", "sym53c8xx"],
            Device::Ide => &["sd_mod", "ahci"],
            Device::Nvme => &["nvme"],
            Device::VirtioScsi => &["sd_mod", "virtio_pci", "virtio_scsi"],
        }
    }

    /// The disk's name in the guest.
    #[must_use]
    pub const fn disk(self) -> &'static str {
        match self {
            Device::Nvme => "/dev/nvme0n1",
            _ => "/dev/sda",
        }
    }
}

impl Workload {
    /// Refuses a device that cannot do it.
    ///
    /// # Errors
    ///
    /// [`Mismatch`], with all that go together.
    pub fn on(self, device: Device) -> Result<(), Mismatch> {
        let class = match self {
            Workload::Stream | Workload::Rr | Workload::Mix => Class::Network,
            Workload::Bonnie | Workload::Dd | Workload::Fio => Class::Disk,
        };
        if device.class() == class {
            return Ok(());
        }
        Err(Mismatch {
            device,
            workload: self,
        })
    }

    /// Packages with the guest's programs, beside `busybox-static`, without those that they need.
    #[must_use]
    pub const fn packages(self) -> &'static [&'static str] {
        match self {
            Workload::Rr => &[],
            Workload::Stream | Workload::Mix => &["netcat-openbsd"],
            Workload::Bonnie => &["e2fsprogs", "bonnie++"],
            Workload::Dd => &["e2fsprogs"],
            Workload::Fio => &["fio"],
        }
    }

    /// The programs, by their names as files.
    #[must_use]
    pub const fn programs(self) -> &'static [&'static str] {
        match self {
            Workload::Rr => &[],
            Workload::Stream | Workload::Mix => &["nc.openbsd"],
            Workload::Bonnie => &["mke2fs", "bonnie++"],
            Workload::Dd => &["mke2fs"],
            Workload::Fio => &["fio"],
        }
    }

    /// Modules of the guest's kernel, without those that they need.
    #[must_use]
    pub const fn modules(self) -> &'static [&'static str] {
        match self {
            Workload::Bonnie | Workload::Dd => &["crc32c_generic", "ext4"],
            _ => &[],
        }
    }

    /// Megabytes (2^20) to move, unless told otherwise; in both directions each for `mix`.
    #[must_use]
    pub const fn default_mib(self) -> u32 {
        match self {
            Workload::Stream => 8,
            Workload::Mix => 3,
            Workload::Rr => 0,
            Workload::Bonnie | Workload::Dd => 24,
            Workload::Fio => 8,
        }
    }

    /// Memory of the guest in MiB, unless told otherwise. bonnie++ is to write more than
    /// the page cache holds.
    #[must_use]
    pub const fn default_memory_mib(self) -> u32 {
        match self {
            Workload::Bonnie => 192,
            _ => 512,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_is_refused_with_the_list() {
        let error = Workload::Bonnie.on(Device::E1000).unwrap_err().to_string();
        assert!(error.starts_with("e1000 cannot do bonnie;"), "{error}");
        for device in Device::value_variants() {
            assert!(error.contains(&format!("{device}")), "{error}");
            let can: Vec<_> = Workload::value_variants()
                .iter()
                .filter(|workload| workload.on(*device).is_ok())
                .collect();
            assert_eq!(can.len(), 3, "{device}");
            assert_eq!(device.cards() > 0, Workload::Stream.on(*device).is_ok());
        }
        for workload in Workload::value_variants() {
            assert!(error.contains(&format!("{workload}")), "{error}");
        }
    }
}
