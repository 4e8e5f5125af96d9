// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! iommufd's address space, with devices opened by their own files.

use super::*;
use crate::{device::PciAddress, error::*, kernel::ObjectId};
use std::sync::Arc;

const IOMMUFD: &str = "/dev/iommu";

/// An I/O address space of an iommufd.
pub struct Ioas<K: Kernel> {
    // in this order they are closed
    devices: Vec<Device<K>>,
    fd: K::Fd,
    id: ObjectId,
    kernel: Arc<K>,
    limits: SpaceLimits,
}

impl<K: Kernel> Ioas<K> {
    /// Opens the devices at `addresses`.
    ///
    /// # Errors
    /// [`OpenError`], with what to do; nothing stays open.
    pub fn open(kernel: Arc<K>, addresses: &[PciAddress]) -> Result<Self, OpenError> {
        let k = &*kernel;
        if addresses.is_empty() {
            return Err(OpenError::NoDevices);
        }
        distinct(addresses)?;
        let mut files = Vec::new();
        for address in addresses {
            let group = group_of(k, *address)?;
            files.push((*address, group, open_device(k, *address)?));
        }
        let fd = k.open(IOMMUFD).map_err(|e| no_file(IOMMUFD, e))?;
        let id = k.ioas_alloc(&fd).map_err(at("IOMMU_IOAS_ALLOC"))?;
        let mut devices = Vec::new();
        for (address, group, file) in files {
            let bound = k.bind_iommufd(&file, &fd);
            bound.map_err(|errno| not_taken(k, address, group, errno))?;
            k.attach_ioas(&file, id)
                .map_err(at("VFIO_DEVICE_ATTACH_IOMMUFD_PT"))?;
            devices.push(Device::new(kernel.clone(), file, address)?);
        }
        let info = k.ioas_info(&fd, id).map_err(at("IOMMU_IOAS_IOVA_RANGES"))?;
        // so no device that comes later takes any of them away
        k.ioas_allow(&fd, id, &info.ranges)
            .map_err(at("IOMMU_IOAS_ALLOW_IOVAS"))?;
        Ok(Ioas {
            limits: SpaceLimits::new(&info)?,
            devices,
            fd,
            id,
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
}

/// Opens a device's own file.
fn open_device<K: Kernel>(k: &K, address: PciAddress) -> Result<K::Fd, OpenError> {
    let names = k.list(&format!("/sys/bus/pci/devices/{address}/vfio-dev"));
    let name = names.ok().and_then(|names| names.into_iter().next());
    let name = name.ok_or_else(|| match driver(k, address) {
        Some(name) if name.contains("vfio") => OpenError::NoDeviceFile { device: address },
        _ => not_bound(k, address, Errno::NOENT),
    })?;
    let path = format!("/dev/vfio/devices/{name}");
    k.open(&path).map_err(|errno| match errno {
        // the directory names it since Linux 6.1, whether or not there is a file
        Errno::NOENT => OpenError::NoDeviceFile { device: address },
        Errno::BUSY => OpenError::Busy { path: path.clone() },
        errno => no_file(&path, errno),
    })
}

/// What it means that an iommufd does not take a device.
fn not_taken<K: Kernel>(k: &K, address: PciAddress, group: u32, errno: Errno) -> OpenError {
    match errno {
        Errno::BUSY => OpenError::Busy {
            path: address.to_string(),
        },
        // a group that others use; the kernel has no better word for it here
        Errno::INVAL | Errno::PERM if others(k, group).iter().any(|o| o.is_in_the_way()) => {
            OpenError::NotViable {
                group,
                others: others(k, group),
            }
        }
        errno => no_iommu("VFIO_DEVICE_BIND_IOMMUFD")(errno),
    }
}

// SAFETY: one call of the kernel each, whose word it is; detaching makes the device quiet.
unsafe impl<K: Kernel> AddressSpace for Ioas<K> {
    fn limits(&self) -> &SpaceLimits {
        &self.limits
    }
    fn pin_limit(&self) -> Option<ByteCount> {
        self.kernel.pin_limit()
    }
    unsafe fn map(&self, call: &MapCall) -> Result<(), Errno> {
        // SAFETY: the caller's.
        unsafe { self.kernel.ioas_map(&self.fd, self.id, call) }
    }
    fn unmap(&self, iova: Iova, len: ByteCount) -> Result<ByteCount, Errno> {
        self.kernel.ioas_unmap(&self.fd, self.id, iova, len)
    }
    /// The first time it is attached already, since a space has its devices' ranges only then.
    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        let found = find(&self.devices, device)?;
        let again = |file: &K::Fd| self.kernel.attach_ioas(file, self.id);
        found.let_go_after(again).map_err(refused(device))
    }
    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        let found = find(&self.devices, device)?;
        let away = |file: &K::Fd| self.kernel.detach_ioas(file);
        found.quiesce_before(away).map_err(refused(device))
    }
}
