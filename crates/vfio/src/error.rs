// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong while devices are opened, and what to do about it.

use crate::{
    device::{DeviceError, PciAddress},
    kernel::{Errno, Kernel},
};
use ioatlas_dma::units::ByteCount;
use std::fmt;

/// Why devices cannot be opened. Each says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields and messages say it
pub enum OpenError {
    /// No device was named.
    #[error("no device was named")]
    NoDevices,
    /// A domain could not tell two of them apart.
    #[error(
        "{device} has the bus, device and function of {other}, by which a domain tells devices apart: name it once, or open it in a space of its own"
    )]
    Twice {
        device: PciAddress,
        /// The same, or one of another segment.
        other: PciAddress,
    },
    /// There is none at that address.
    #[error("there is no PCI device at {device}; `lspci -D` lists those that there are")]
    NoSuchDevice { device: PciAddress },
    /// No IOMMU stands before it.
    #[error(
        "no IOMMU stands before {device}, so nothing could protect memory from it: turn VT-d or AMD-Vi on in the firmware's set-up, \
         boot with `intel_iommu=on` where the kernel does not by default, and give a virtual machine one (QEMU: `-device intel-iommu,intremap=on`). \
         With virtio-iommu as a module the device's group is there only once it is bound: {}",
        Bind(*device)
    )]
    NoIommu { device: PciAddress },
    /// It belongs to another driver, or to none.
    #[error("{device} is not bound to vfio-pci but to {}; to bind it: {}", Named(driver), Bind(*device))]
    NotBound {
        device: PciAddress,
        /// What it is bound to.
        driver: Option<String>,
    },
    /// Other devices of its group belong to drivers.
    #[error(
        "IOMMU group {group} cannot be used, since drivers use other devices of it:{}",
        Others(others)
    )]
    NotViable {
        group: u32,
        others: Vec<GroupMember>,
    },
    /// There is no such file.
    #[error(
        "{path} does not exist: load the module that makes it (`modprobe vfio-pci`; /dev/iommu needs a kernel with CONFIG_IOMMUFD)"
    )]
    NoFile { path: String },
    /// This user may not.
    #[error(
        "{path}: no permission; run as root, or give the file to this user (`chown $USER {path}`)"
    )]
    NoPermission { path: String },
    /// Another process has it, or it is open here already.
    #[error(
        "{path} is in use by another process, or opened here already; `fuser -v {path}` tells by which"
    )]
    Busy {
        /// The file, or the device.
        path: String,
    },
    /// The kernel gives devices no files of their own.
    #[error(
        "{device} has no file below /dev/vfio/devices: that needs Linux 6.6 with CONFIG_VFIO_DEVICE_CDEV; use type 1 instead"
    )]
    NoDeviceFile { device: PciAddress },
    /// The container is not as we need it.
    #[error(
        "the kernel has no VFIO type 1, version 2 (its API is version {version}, we know 0): `modprobe vfio_iommu_type1`"
    )]
    NoType1 { version: u32 },
    /// Interrupts of devices are not held back.
    #[error(
        "{call} is not permitted: the IOMMU does not remap interrupts, so that a device could raise any. Turn interrupt remapping on (QEMU: \
         `intel-iommu,intremap=on`), or accept that by `allow_unsafe_interrupts=1` of the module vfio_iommu_type1, or iommufd"
    )]
    NoInterruptRemapping { call: &'static str },
    /// Its pages are larger than ours.
    #[error("the IOMMU's smallest page is of {bytes} bytes; 4096 are needed")]
    Granule {
        /// How large they are.
        bytes: ByteCount,
    },
    /// It has no IOVAs.
    #[error(
        "the kernel names no IOVA range that could be mapped; the kernel is older than 5.4, or the device's reserved regions leave nothing"
    )]
    NoRanges,
    /// An error of one of the devices.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What none of the above explains.
    #[error("{call}: {errno}")]
    Kernel { call: &'static str, errno: Errno },
    /// A file cannot be opened, for another reason.
    #[error("{path}: {errno}")]
    File { path: String, errno: Errno },
}

/// A device of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMember {
    /// Its address, as the kernel spells it.
    pub name: String,
    /// What it is bound to.
    pub driver: Option<String>,
}

impl GroupMember {
    /// Whether it keeps the group from being used.
    pub fn is_in_the_way(&self) -> bool {
        // bridges belong to pcieport, which VFIO puts up with
        let harmless =
            |name: &str| name.contains("vfio") || name == "pcieport" || name == "pci-stub";
        self.driver.as_deref().is_some_and(|name| !harmless(name))
    }
}

struct Named<'e>(&'e Option<String>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(driver) => write!(f, "{driver}, which must let go of it"),
            None => f.write_str("no driver"),
        }
    }
}

/// How to bind a device.
struct Bind<A>(A);

impl<A: fmt::Display> fmt::Display for Bind<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, at) = (&self.0, "/sys/bus/pci");
        write!(
            f,
            "`modprobe vfio-pci; echo vfio-pci > {at}/devices/{device}/driver_override; echo {device} > {at}/devices/{device}/driver/unbind; \
             echo {device} > {at}/drivers_probe`"
        )
    }
}

struct Others<'e>(&'e [GroupMember]);

impl fmt::Display for Others<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for member in self.0 {
            let driver = member.driver.as_deref().unwrap_or("no driver");
            write!(f, "\n  {}: {driver}", member.name)?;
            if member.is_in_the_way() {
                write!(f, "; to bind it: {}", Bind(&member.name))?;
            }
        }
        Ok(())
    }
}

/// That `call` failed, for a reason that it has no name for.
pub(crate) fn at(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::Kernel { call, errno }
}

/// That `call`, by which a device gets its translations, failed.
pub(crate) fn no_iommu(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| match errno {
        Errno::PERM => OpenError::NoInterruptRemapping { call },
        errno => OpenError::Kernel { call, errno },
    }
}

/// That `path` cannot be opened.
pub(crate) fn no_file(path: &str, errno: Errno) -> OpenError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => OpenError::NoFile { path },
        Errno::ACCES | Errno::PERM => OpenError::NoPermission { path },
        errno => OpenError::File { path, errno },
    }
}

/// That VFIO does not have the device, which is another's, or is bound already and cannot be
/// had for another reason.
pub(crate) fn not_bound<K: Kernel>(k: &K, device: PciAddress, errno: Errno) -> OpenError {
    match driver(k, device) {
        Some(name) if name.contains("vfio") => match errno {
            Errno::NOENT => OpenError::NoFile {
                path: "/dev/vfio".to_owned(),
            },
            Errno::BUSY => OpenError::Busy {
                path: device.to_string(),
            },
            errno => at("VFIO_GROUP_GET_DEVICE_FD")(errno),
        },
        driver => OpenError::NotBound { device, driver },
    }
}

/// That a domain can tell `devices` apart.
pub(crate) fn distinct(devices: &[PciAddress]) -> Result<(), OpenError> {
    for (nth, device) in devices.iter().enumerate() {
        let mut before = devices[..nth].iter();
        if let Some(other) = before.find(|other| other.source() == device.source()) {
            let (device, other) = (*device, *other);
            return Err(OpenError::Twice { device, other });
        }
    }
    Ok(())
}

/// What `device` is bound to.
pub(crate) fn driver<K: Kernel>(k: &K, device: impl fmt::Display) -> Option<String> {
    k.link(&format!("/sys/bus/pci/devices/{device}/driver"))
        .ok()
}

/// The number of the group of `device`.
pub(crate) fn group_of<K: Kernel>(k: &K, device: PciAddress) -> Result<u32, OpenError> {
    let at = format!("/sys/bus/pci/devices/{device}");
    match k.link(&format!("{at}/iommu_group")) {
        Ok(name) => name.parse().map_err(|_| OpenError::File {
            path: at,
            errno: Errno::INVAL,
        }),
        Err(_) => Err(match k.list(&at) {
            Ok(_) => OpenError::NoIommu { device },
            Err(_) => OpenError::NoSuchDevice { device },
        }),
    }
}

/// All devices of a group.
pub(crate) fn others<K: Kernel>(k: &K, group: u32) -> Vec<GroupMember> {
    let names = k.list(&format!("/sys/kernel/iommu_groups/{group}/devices"));
    let member = |name: String| GroupMember {
        driver: driver(k, &name),
        name,
    };
    names.unwrap_or_default().into_iter().map(member).collect()
}
