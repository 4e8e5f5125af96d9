// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Either kind of space, chosen when a program runs.

use super::*;
use crate::{device::PciAddress, error::OpenError};
use std::{fmt, sync::Arc};

/// Which interface of the kernel a space is made by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SpaceKind {
    /// VFIO's own: a container of type 1.
    Type1,
    /// An address space of iommufd.
    Iommufd,
}

impl SpaceKind {
    /// A word for it: `type1`, `iommufd`.
    pub fn name(self) -> &'static str {
        match self {
            SpaceKind::Type1 => "type1",
            SpaceKind::Iommufd => "iommufd",
        }
    }
}

/// Either kind of space.
pub enum AnySpace<K: Kernel> {
    /// VFIO's own: a container of type 1.
    Type1(Container<K>),
    /// An address space of iommufd.
    Iommufd(Ioas<K>),
}

impl<K: Kernel> AnySpace<K> {
    /// By iommufd where the kernel has one and the devices their own files, else by type 1.
    ///
    /// # Errors
    /// Of type 1, where iommufd is not there; else of iommufd.
    pub fn open(kernel: Arc<K>, addresses: &[PciAddress]) -> Result<Self, OpenError> {
        match Ioas::open(kernel.clone(), addresses) {
            Ok(ioas) => Ok(AnySpace::Iommufd(ioas)),
            Err(OpenError::NoFile { .. } | OpenError::NoDeviceFile { .. }) => {
                Ok(AnySpace::Type1(Container::open(kernel, addresses)?))
            }
            Err(error) => Err(error),
        }
    }
    /// By this kind and no other.
    ///
    /// # Errors
    /// [`OpenError`], of that kind.
    pub fn open_as(
        kind: SpaceKind,
        kernel: Arc<K>,
        addresses: &[PciAddress],
    ) -> Result<Self, OpenError> {
        Ok(match kind {
            SpaceKind::Type1 => AnySpace::Type1(Container::open(kernel, addresses)?),
            SpaceKind::Iommufd => AnySpace::Iommufd(Ioas::open(kernel, addresses)?),
        })
    }
    /// Which kind it is.
    pub fn kind(&self) -> SpaceKind {
        match self {
            AnySpace::Type1(_) => SpaceKind::Type1,
            AnySpace::Iommufd(_) => SpaceKind::Iommufd,
        }
    }
    /// Its devices, in the order in which they were named.
    pub fn devices(&self) -> &[Device<K>] {
        match self {
            AnySpace::Type1(space) => space.devices(),
            AnySpace::Iommufd(space) => space.devices(),
        }
    }
}

impl<K: Kernel> fmt::Display for AnySpace<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind() {
            SpaceKind::Type1 => "VFIO type 1",
            SpaceKind::Iommufd => "iommufd",
        })
    }
}

// SAFETY: that of either space inside.
unsafe impl<K: Kernel> AddressSpace for AnySpace<K> {
    fn limits(&self) -> &SpaceLimits {
        match self {
            AnySpace::Type1(space) => space.limits(),
            AnySpace::Iommufd(space) => space.limits(),
        }
    }
    fn pin_limit(&self) -> Option<ByteCount> {
        match self {
            AnySpace::Type1(space) => space.pin_limit(),
            AnySpace::Iommufd(space) => space.pin_limit(),
        }
    }
    unsafe fn map(&self, call: &MapCall) -> Result<(), Errno> {
        match self {
            // SAFETY: the caller's.
            AnySpace::Type1(space) => unsafe { space.map(call) },
            // SAFETY: the caller's.
            AnySpace::Iommufd(space) => unsafe { space.map(call) },
        }
    }
    fn unmap(&self, iova: Iova, len: ByteCount) -> Result<ByteCount, Errno> {
        match self {
            AnySpace::Type1(space) => space.unmap(iova, len),
            AnySpace::Iommufd(space) => space.unmap(iova, len),
        }
    }
    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        match self {
            AnySpace::Type1(space) => space.attach(device),
            AnySpace::Iommufd(space) => space.attach(device),
        }
    }
    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        match self {
            AnySpace::Type1(space) => space.detach(device),
            AnySpace::Iommufd(space) => space.detach(device),
        }
    }
}
