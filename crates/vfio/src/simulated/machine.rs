// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What there is: devices, groups, files; and the state of a kernel on it.

use super::{Event, Failure, space::Space};
use crate::{device::PciAddress, kernel::*};
use ioatlas_dma::units::*;
use std::collections::BTreeMap;

/// The command register's place and its bit (PCI Local Bus Specification 3.0, §6.2.2).
pub(super) const COMMAND: usize = 4;
const BUS_MASTER: u8 = 1 << 2;
pub(super) const CONFIG_LEN: usize = 256;

/// A device of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct SimDevice {
    pub address: PciAddress,
    /// Its IOMMU group, or none where no IOMMU stands before it.
    pub group: Option<u32>,
    /// What it is bound to.
    pub driver: Option<&'static str>,
    /// Whether it can be reset.
    pub reset: Reset,
    /// The length of BAR 0.
    pub bar: ByteCount,
    /// How many vectors of MSI-X it has.
    pub vectors: u32,
    /// Whether it is gone.
    pub removed: bool,
}

/// The devices, the IOMMU, files and memory that there are.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Machine {
    pub devices: Vec<SimDevice>,
    /// First and last byte of the IOVAs that the IOMMU has.
    pub ranges: Vec<(Iova, Iova)>,
    /// The IOMMU's smallest page.
    pub granule: ByteCount,
    /// How many mappings a container takes.
    pub mappings: u64,
    /// How much memory may be pinned.
    pub pin_limit: Option<ByteCount>,
    /// Files that there are not.
    pub missing: Vec<&'static str>,
    /// Files that this user may not open.
    pub forbidden: Vec<&'static str>,
    /// Whether interrupts are remapped.
    pub remapping: Remapping,
    /// First byte and end of addresses at which there is no memory.
    pub no_memory: Vec<(u64, u64)>,
}

/// Whether interrupts are remapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum Remapping {
    On,
    Off,
}

impl Machine {
    /// One device at 0000:00:04.0, alone in group 7, bound to vfio-pci; IOVAs of 39 bits with the
    /// interrupt window left out; the usual limit of mappings.
    pub fn usual() -> Self {
        let address = PciAddress {
            segment: 0,
            function: SourceId(4 << 3),
        };
        Machine {
            devices: vec![SimDevice::usual(address, 7)],
            ranges: vec![
                (Iova(0), Iova(0xfedf_ffff)),
                (Iova(0xfef0_0000), Iova((1 << 39) - 1)),
            ],
            granule: ByteCount(GRANULE),
            mappings: 65_535,
            pin_limit: None,
            missing: Vec::new(),
            forbidden: Vec::new(),
            remapping: Remapping::On,
            no_memory: Vec::new(),
        }
    }
    pub(super) fn device(&self, address: PciAddress) -> Option<&SimDevice> {
        self.devices.iter().find(|d| d.address == address)
    }
    pub(super) fn device_mut(&mut self, address: PciAddress) -> Option<&mut SimDevice> {
        self.devices.iter_mut().find(|d| d.address == address)
    }
}

impl SimDevice {
    /// A device that can be used.
    pub fn usual(address: PciAddress, group: u32) -> Self {
        SimDevice {
            address,
            group: Some(group),
            driver: Some("vfio-pci"),
            reset: Reset::Supported,
            bar: ByteCount(0x4000),
            vectors: 8,
            removed: false,
        }
    }
}

/// What a file is.
#[derive(Clone, Debug)]
pub(super) enum File {
    Container { space: Option<u64> },
    Group { number: u32, space: Option<u64> },
    Iommufd { spaces: Vec<u64> },
    Device(Box<OpenDevice>),
}

#[derive(Clone, Debug)]
pub(super) struct OpenDevice {
    pub address: PciAddress,
    /// Of a group's device, that of its group.
    pub space: Option<u64>,
    pub bound: bool,
    pub config: [u8; CONFIG_LEN],
}

/// What the simulated kernel knows.
pub(super) struct State {
    pub machine: Machine,
    pub files: BTreeMap<u64, File>,
    pub spaces: BTreeMap<u64, Space>,
    pub pinned: u64,
    pub events: Vec<Event>,
    pub calls: u64,
    pub failure: Option<Failure>,
    next: u64,
}

impl State {
    pub fn new(machine: Machine) -> Self {
        State {
            machine,
            files: BTreeMap::new(),
            spaces: BTreeMap::new(),
            pinned: 0,
            events: Vec::new(),
            calls: 0,
            failure: None,
            next: 1,
        }
    }

    /// Counts a call, which may be the one that fails.
    pub fn call(&mut self) -> Result<(), Errno> {
        self.calls += 1;
        match self.failure {
            Some(failure) if failure.after + 1 == self.calls => Err(failure.errno),
            _ => Ok(()),
        }
    }
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A space goes with the last file that holds it: container, groups in it, devices of those; an
    /// iommufd, and devices bound to it.
    pub fn close(&mut self, number: u64) {
        let file = self.files.remove(&number);
        if let Some(File::Device(device)) = &file
            && device.is_master()
        {
            self.events.push(Event::Stopped(device.address));
        }
        let files = &self.files;
        let held = |space: u64| {
            files.values().any(|file| match file {
                File::Container { space: own } | File::Group { space: own, .. } => {
                    *own == Some(space)
                }
                File::Device(device) => device.space == Some(space),
                File::Iommufd { spaces } => spaces.contains(&space),
            })
        };
        let gone: Vec<u64> = self.spaces.keys().copied().filter(|s| !held(*s)).collect();
        for space in gone {
            if let Some(space) = self.spaces.remove(&space) {
                self.pinned -= space.bytes();
            }
        }
    }

    pub fn device_file(&mut self, number: u64) -> Result<&mut OpenDevice, Errno> {
        match self.files.get_mut(&number) {
            Some(File::Device(device)) => match self.machine.device(device.address) {
                Some(there) if !there.removed => Ok(device),
                _ => Err(Errno::NODEV),
            },
            _ => Err(Errno::NOTTY),
        }
    }

    /// Where an access ends up, if it succeeds.
    pub fn reach(&self, device: PciAddress, iova: Iova, kind: AccessKind) -> Option<VirtAddr> {
        let there = self.machine.device(device).filter(|d| !d.removed)?;
        let open = self.files.values().find_map(|file| match file {
            File::Device(open) if open.address == there.address => Some(open),
            _ => None,
        })?;
        let space = self.spaces.get(&open.space?)?;
        space.reach(iova, kind).filter(|_| open.is_master())
    }

    pub fn mappings(&self) -> Vec<super::Mapped> {
        self.spaces.values().flat_map(Space::all).collect()
    }
    pub fn steal(&mut self, iova: Iova) {
        for space in self.spaces.values_mut() {
            self.pinned -= space.steal(iova);
        }
    }
}

impl OpenDevice {
    pub fn is_master(&self) -> bool {
        self.config[COMMAND] & BUS_MASTER != 0
    }
}
