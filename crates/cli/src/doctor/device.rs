// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices and their IOMMU groups.

use super::machine::Kernel;
use super::mode::Mode;
use super::tree::{Folder, Tree};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Devices and groups that are looked at, each.
const MOST: usize = 65_536;
/// The number of virtio's feature VIRTIO_F_ACCESS_PLATFORM.
const ACCESS_PLATFORM: usize = 33;
/// Names of interfaces that are kept of one device.
const INTERFACES: usize = 64;

/// A group: what the IOMMU cannot tell apart, and so has one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Group {
    pub number: u64,
    /// What its file `type` has.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub mode: Mode,
    pub devices: Vec<String>,
    /// Whether VFIO made it, without an IOMMU.
    pub vfio_without_iommu: bool,
}

/// A device on the PCI bus, or in a group.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    pub name: String,
    pub pci: bool,
    pub driver: Option<String>,
    pub vendor: Option<String>,
    pub device: Option<String>,
    pub class: Option<String>,
    pub mode: Mode,
    pub group: Option<u64>,
    pub group_type: Option<String>,
    /// Other devices in its group.
    pub shares_with: usize,
    /// The unit that it is behind.
    pub unit: Option<String>,
    pub net: Vec<String>,
    pub block: Vec<String>,
    pub nvme: Vec<String>,
    pub dma_mask_bits: Option<u32>,
    pub numa_node: Option<u32>,
    pub vfio: bool,
    /// Whether it is behind a port to the outside, as Thunderbolt's. Linux distrusts most such
    /// devices, and does not show which.
    pub removable: bool,
    pub virtio: Option<Virtio>,
}

/// What is known of a virtio device, which is one below the device on the bus.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Virtio {
    pub driver: Option<String>,
    /// Whether it was offered the feature ACCESS_PLATFORM, and so takes mapped addresses. Without,
    /// Linux gives it physical ones, past the DMA API and any IOMMU.
    pub access_platform: Option<bool>,
}

/// The groups, by number.
pub(super) fn groups(tree: &Tree, kernel: &Kernel) -> Vec<Group> {
    let Some(folder) = tree.folder("sys/kernel/iommu_groups") else {
        return Vec::new();
    };
    let numbers = folder.names().into_iter();
    let mut numbers: Vec<u64> = numbers.filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.truncate(MOST);
    let mut groups = Vec::new();
    for number in numbers {
        let Some(here) = folder.folder(&number.to_string()) else {
            continue;
        };
        let name = here.text("name");
        groups.push(Group {
            number,
            kind: here.text("type"),
            mode: Mode::Unknown,
            devices: here
                .folder("devices")
                .map_or_else(Vec::new, |of| of.names()),
            vfio_without_iommu: name.is_some_and(|name| name == "vfio-noiommu"),
        });
    }
    // Linux 5.15 gave lazy a type of its own; some vendors' older kernels have it as well.
    let lazy = groups.iter().any(|of| of.kind.as_deref() == Some("DMA-FQ"));
    let splits = lazy || kernel.since(5, 15) != Some(false);
    for group in &mut groups {
        group.mode = match &group.kind {
            _ if group.vfio_without_iommu => Mode::NoIommu,
            Some(kind) => Mode::of_type(kind, splits),
            None => Mode::Unknown,
        };
    }
    groups
}

/// The devices on the PCI bus, then others that are in groups.
pub(super) fn devices(tree: &Tree, groups: &[Group]) -> Vec<Device> {
    let by_number: BTreeMap<u64, &Group> = groups.iter().map(|of| (of.number, of)).collect();
    let mut member = BTreeMap::new();
    for group in groups {
        for name in &group.devices {
            member.insert(name.as_str(), group.number);
        }
    }
    let bus = tree.folder("sys/bus/pci/devices");
    let mut names = bus.as_ref().map(|bus| bus.names()).unwrap_or_default();
    names.truncate(MOST);
    let on_bus: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut devices = Vec::new();
    for name in &names {
        let here = bus.as_ref().and_then(|bus| bus.folder(name));
        let number = here.as_ref().and_then(|here| here.link("iommu_group"));
        let number = number.and_then(|number| number.parse().ok());
        let number = number.or_else(|| member.get(name.as_str()).copied());
        let group = number.and_then(|number| by_number.get(&number).copied());
        devices.push(Device::read(name, true, here.as_ref(), number, group));
    }
    let others = member.iter().filter(|(name, _)| !on_bus.contains(*name));
    for (name, number) in others.take(MOST) {
        let path = format!("sys/kernel/iommu_groups/{number}/devices");
        let here = tree.folder(&path).and_then(|of| of.folder(name));
        let group = by_number.get(number).copied();
        devices.push(Device::read(
            name,
            false,
            here.as_ref(),
            Some(*number),
            group,
        ));
    }
    // VFIO takes a group as a whole.
    let held = devices.iter().filter(|of| of.mode == Mode::Vfio);
    let held: BTreeSet<u64> = held.filter_map(|of| of.group).collect();
    for device in &mut devices {
        if device.group.is_some_and(|group| held.contains(&group)) {
            device.mode = Mode::Vfio;
        }
    }
    devices
}

impl Device {
    fn read(
        name: &str,
        pci: bool,
        here: Option<&Folder<'_>>,
        number: Option<u64>,
        group: Option<&Group>,
    ) -> Self {
        let text = |file: &str| here?.text(file);
        let driver = here.and_then(|here| here.link("driver"));
        // vfio-pci, vfio-platform, and variants for one device, as mlx5_vfio_pci.
        let vfio = driver
            .as_ref()
            .is_some_and(|driver| driver.contains("vfio"));
        let mode = match (group, number) {
            (Some(group), _) if group.vfio_without_iommu => Mode::NoIommu,
            (Some(_), _) if vfio => Mode::Vfio,
            (Some(group), _) => group.mode,
            (None, Some(_)) => Mode::Unknown,
            (None, None) => Mode::NoIommu,
        };
        let mut device = Device {
            name: name.into(),
            pci,
            vendor: text("vendor"),
            device: text("device"),
            class: text("class"),
            mode,
            group: number,
            group_type: group.and_then(|group| group.kind.clone()),
            shares_with: group.map_or(0, |group| group.devices.len().saturating_sub(1)),
            unit: here.and_then(|here| here.link("iommu")),
            net: Vec::new(),
            block: Vec::new(),
            nvme: Vec::new(),
            dma_mask_bits: text("dma_mask_bits").and_then(|bits| bits.parse().ok()),
            // -1 where the machine has no nodes
            numa_node: text("numa_node").and_then(|node| node.parse().ok()),
            vfio,
            removable: text("removable").as_deref() == Some("removable"),
            virtio: None,
            driver,
        };
        if let Some(here) = here.filter(|_| device.driver.is_some()) {
            device.interfaces(here);
            let below = here.names().into_iter();
            let mut virtio = below.filter(|name| name.starts_with("virtio"));
            if let Some(here) = virtio.find_map(|name| here.folder(&name)) {
                device.interfaces(&here);
                // A digit for each feature, from bit 0.
                let features = here
                    .text("features")
                    .filter(|text| text.len() > ACCESS_PLATFORM);
                device.virtio = Some(Virtio {
                    driver: here.link("driver"),
                    access_platform: features
                        .map(|digits| digits.as_bytes()[ACCESS_PLATFORM] == b'1'),
                });
            }
        }
        device
    }

    /// Whether it is a virtio device whose addresses are not mapped.
    pub fn is_unmapped(&self) -> bool {
        let virtio = self.virtio.as_ref();
        virtio.is_some_and(|virtio| virtio.access_platform == Some(false))
    }

    /// Whether it is a network card or a disk, for which much is mapped.
    pub fn is_fast(&self) -> bool {
        !(self.net.is_empty() && self.block.is_empty() && self.nvme.is_empty())
    }

    /// Adds the interfaces whose folders are in `here`.
    fn interfaces(&mut self, here: &Folder<'_>) {
        for (folder, names) in [
            ("net", &mut self.net),
            ("block", &mut self.block),
            ("nvme", &mut self.nvme),
        ] {
            if let Some(found) = here.folder(folder) {
                let left = INTERFACES - names.len().min(INTERFACES);
                names.extend(found.names().into_iter().take(left));
            }
        }
    }
}
