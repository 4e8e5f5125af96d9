// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! VFIO's own address space: a container under type 1, version 2, with the groups of its devices.
//!
//! Under version 2 a mapping ends whole, or with others that are whole; the older version, which
//! splits, is not used.

use super::*;
use crate::{device::PciAddress, error::*, kernel::GroupStatus};
use std::sync::Arc;

const CONTAINER: &str = "/dev/vfio/vfio";

/// A type 1 container.
pub struct Container<K: Kernel> {
    // in this order they are closed: devices, groups, container
    devices: Vec<Device<K>>,
    _groups: Vec<K::Fd>,
    fd: K::Fd,
    kernel: Arc<K>,
    limits: SpaceLimits,
}

impl<K: Kernel> Container<K> {
    /// Opens the devices at `addresses`, which their groups' other devices
    /// must leave alone meanwhile.
    ///
    /// # Errors
    /// [`OpenError`], with what to do; nothing stays open.
    pub fn open(kernel: Arc<K>, addresses: &[PciAddress]) -> Result<Self, OpenError> {
        let k = &*kernel;
        distinct(addresses)?;
        let mut numbers = Vec::new();
        for address in addresses {
            numbers.push(group_of(k, *address)?);
        }
        let fd = k.open(CONTAINER).map_err(|e| no_file(CONTAINER, e))?;
        let version = k.api_version(&fd).map_err(at("VFIO_GET_API_VERSION"))?;
        let type1 = k.has_type1_v2(&fd).map_err(at("VFIO_CHECK_EXTENSION"))?;
        if version != 0 || !type1 {
            return Err(OpenError::NoType1 { version });
        }
        let mut groups: Vec<(u32, K::Fd)> = Vec::new();
        for (address, number) in addresses.iter().zip(&numbers) {
            if groups.iter().all(|(known, _)| known != number) {
                let group = open_group(k, *address, *number)?;
                k.set_container(&group, &fd)
                    .map_err(at("VFIO_GROUP_SET_CONTAINER"))?;
                if groups.is_empty() {
                    k.set_iommu(&fd).map_err(no_iommu("VFIO_SET_IOMMU"))?;
                }
                groups.push((*number, group));
            }
        }
        if groups.is_empty() {
            return Err(OpenError::NoDevices);
        }
        let mut devices = Vec::new();
        for (address, number) in addresses.iter().zip(&numbers) {
            let Some((_, group)) = groups.iter().find(|(known, _)| known == number) else {
                continue; // never: each was opened above
            };
            let device = k.device_of_group(group, &address.to_string());
            let device = device.map_err(|errno| not_bound(k, *address, errno))?;
            devices.push(Device::new(kernel.clone(), device, *address)?);
        }
        let info = k.type1_info(&fd).map_err(at("VFIO_IOMMU_GET_INFO"))?;
        Ok(Container {
            limits: SpaceLimits::new(&info)?,
            devices,
            _groups: groups.into_iter().map(|(_, group)| group).collect(),
            fd,
            kernel,
        })
    }

    /// Its devices, in the order in which they were named.
    pub fn devices(&self) -> &[Device<K>] {
        &self.devices
    }
    /// The kernel that it is in.
    pub fn kernel(&self) -> &Arc<K> {
        &self.kernel
    }

    /// How many mappings can be made yet, as the kernel says now.
    pub fn mappings_left(&self) -> Result<Option<u64>, Errno> {
        Ok(self.kernel.type1_info(&self.fd)?.mappings)
    }
}

fn open_group<K: Kernel>(k: &K, address: PciAddress, number: u32) -> Result<K::Fd, OpenError> {
    let path = format!("/dev/vfio/{number}");
    let group = k.open(&path).map_err(|errno| match errno {
        Errno::NOENT => not_bound(k, address, errno),
        Errno::BUSY => OpenError::Busy { path: path.clone() },
        errno => no_file(&path, errno),
    })?;
    match k
        .group_status(&group)
        .map_err(at("VFIO_GROUP_GET_STATUS"))?
    {
        GroupStatus::Viable => Ok(group),
        GroupStatus::NotViable => Err(OpenError::NotViable {
            group: number,
            others: others(k, number),
        }),
    }
}

// SAFETY: one call of the kernel each, whose word it is; detaching makes the device quiet.
unsafe impl<K: Kernel> AddressSpace for Container<K> {
    fn limits(&self) -> &SpaceLimits {
        &self.limits
    }
    fn pin_limit(&self) -> Option<ByteCount> {
        self.kernel.pin_limit()
    }
    unsafe fn map(&self, call: &MapCall) -> Result<(), Errno> {
        // SAFETY: the caller's.
        unsafe { self.kernel.type1_map(&self.fd, call) }
    }
    fn unmap(&self, iova: Iova, len: ByteCount) -> Result<ByteCount, Errno> {
        self.kernel.type1_unmap(&self.fd, iova, len)
    }
    /// Its groups are in the container as long as it lives, so what lets a device reach memory is
    /// that it may be a bus master.
    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        let found = find(&self.devices, device)?;
        found.let_go().map_err(refused(device))
    }
    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        let found = find(&self.devices, device)?;
        found.quiesce().map_err(refused(device))
    }
}
