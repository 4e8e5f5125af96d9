// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel, call by call: one method for each system call that this crate makes.
//!
//! Everything above is written against [`Kernel`], so it runs as well over a kernel simulated in
//! the process (feature `simulated`), which has the semantics of the real one and can fail any
//! call. [`Linux`] is the real one; nothing else in this crate makes a system call for a device or
//! an address space.
//!
//! A method returns the kernel's own error number: what it means depends on the caller, and is said
//! there.

mod errno;
mod ioctls;
mod linux;

pub use errno::Errno;
pub use linux::{Linux, MappedRegion};

use ioatlas_dma::units::{ByteCount, Iova, Perm};
use std::{fmt, os::fd::BorrowedFd};

/// An address of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VirtAddr(pub u64);

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What one mapping is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct MapCall {
    /// Where the device finds it.
    pub iova: Iova,
    /// Where it is in this process.
    pub memory: VirtAddr,
    pub len: ByteCount,
    /// What the device may do.
    pub perm: Perm,
}

/// What IOVAs an address space has, and how many mappings: as the kernel said,
/// not as anybody thinks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceInfo {
    /// First and last byte of each range that can be mapped, ascending.
    pub ranges: Vec<(Iova, Iova)>,
    /// The smallest page: what addresses and lengths must be multiples of.
    pub granule: ByteCount,
    /// All sizes of pages, where the kernel tells them.
    pub page_sizes: Option<PageSizes>,
    /// How many mappings can be made yet, where the kernel has a limit and tells it.
    pub mappings: Option<u64>,
}

/// Sizes of pages as a mask: bit n stands for 2^n bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageSizes(pub u64);

impl PageSizes {
    /// The sizes, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = ByteCount> {
        let bytes = (0..u64::BITS).map(|bit| 1u64 << bit);
        bytes.filter(move |size| self.0 & size != 0).map(ByteCount)
    }
    /// The smallest, if there is any.
    pub fn smallest(self) -> Option<ByteCount> {
        self.iter().next()
    }
}

/// What a group says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupStatus {
    /// All its devices are bound to VFIO drivers, or to none.
    Viable,
    /// Some device of it is bound to another driver.
    NotViable,
}

/// What the kernel lets one do with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Whether it can be reset.
    pub reset: Reset,
    /// How many regions it has.
    pub regions: u32,
    /// How many kinds of interrupts.
    pub irqs: u32,
}

/// Whether a device can be reset alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum Reset {
    Supported,
    /// It has no such reset.
    Unsupported,
}

/// A region of a device: a BAR, or configuration space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// Where it begins in the device's file.
    pub offset: u64,
    /// How long it is; 0 if there is none.
    pub len: ByteCount,
    /// Its parts that can be mapped, as offsets in it.
    pub mappable: Vec<(u64, ByteCount)>,
}

/// A kind of interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct IrqInfo {
    pub vectors: u32,
}

/// The calls. `Fd` closes itself.
///
/// # Safety
/// Memory that devices reached is used again on the word of these calls. When one that unmaps
/// returns, no device reaches what it says was unmapped, nor memory that was mapped there; one that
/// makes a device quiet, or detaches it, returns when it is. A mapped part of a region is as long
/// as was asked for.
pub unsafe trait Kernel: Send + Sync + Sized + 'static {
    /// An open file, which is closed when it is dropped.
    type Fd: Send + Sync + 'static;
    /// A mapped part of a device's region. It unmaps itself.
    type Mapped: AsRegion;

    /// Opens a device file for reading and writing.
    ///
    /// # Errors
    /// The kernel's; as in all that follow.
    fn open(&self, path: &str) -> Result<Self::Fd, Errno>;
    /// The last part of what a symbolic link names.
    fn link(&self, path: &str) -> Result<String, Errno>;
    /// The names in a directory.
    fn list(&self, path: &str) -> Result<Vec<String>, Errno>;
    /// How much memory this process may pin, where there is a limit.
    fn pin_limit(&self) -> Option<ByteCount>;

    /// `VFIO_GET_API_VERSION`: the version of the API.
    fn api_version(&self, container: &Self::Fd) -> Result<u32, Errno>;
    /// `VFIO_CHECK_EXTENSION` of type 1, version 2.
    fn has_type1_v2(&self, container: &Self::Fd) -> Result<bool, Errno>;
    /// `VFIO_GROUP_GET_STATUS`: whether the group's devices can be used.
    fn group_status(&self, group: &Self::Fd) -> Result<GroupStatus, Errno>;
    /// `VFIO_GROUP_SET_CONTAINER`: puts the group into the container.
    fn set_container(&self, group: &Self::Fd, container: &Self::Fd) -> Result<(), Errno>;
    /// `VFIO_SET_IOMMU` to type 1, version 2.
    fn set_iommu(&self, container: &Self::Fd) -> Result<(), Errno>;
    /// `VFIO_IOMMU_GET_INFO`: the container's IOVAs, page sizes and limit of mappings.
    fn type1_info(&self, container: &Self::Fd) -> Result<SpaceInfo, Errno>;
    /// `VFIO_IOMMU_MAP_DMA`: makes one mapping, and pins its memory.
    ///
    /// # Errors
    /// `EEXIST` where something of it is mapped, `ENOSPC` at the limit of mappings, `EINVAL`
    /// outside the ranges, `ENOMEM` where memory cannot be pinned, `EFAULT` where there is none.
    ///
    /// # Safety
    /// Until it is unmapped, a device may read and, where `perm` says so, write the memory at any
    /// time: no code may have a reference to it.
    unsafe fn type1_map(&self, container: &Self::Fd, call: &MapCall) -> Result<(), Errno>;
    /// `VFIO_IOMMU_UNMAP_DMA`; returns how much was unmapped.
    ///
    /// # Errors
    /// `EINVAL` where a mapping lies across an edge of the range.
    fn type1_unmap(
        &self,
        container: &Self::Fd,
        iova: Iova,
        len: ByteCount,
    ) -> Result<ByteCount, Errno>;
    /// `VFIO_GROUP_GET_DEVICE_FD`: opens the device called `name`.
    fn device_of_group(&self, group: &Self::Fd, name: &str) -> Result<Self::Fd, Errno>;

    /// `IOMMU_IOAS_ALLOC`: makes an address space without mappings.
    fn ioas_alloc(&self, iommufd: &Self::Fd) -> Result<ObjectId, Errno>;
    /// `IOMMU_DESTROY`: ends an object of the iommufd.
    ///
    /// # Errors
    /// `EBUSY` where something uses it.
    fn destroy(&self, iommufd: &Self::Fd, object: ObjectId) -> Result<(), Errno>;
    /// `IOMMU_IOAS_IOVA_RANGES`: the IOVAs that can be mapped.
    fn ioas_info(&self, iommufd: &Self::Fd, ioas: ObjectId) -> Result<SpaceInfo, Errno>;
    /// `IOMMU_IOAS_ALLOW_IOVAS`: from now on a device whose own ranges do not have
    /// these cannot be attached.
    ///
    /// # Errors
    /// `EADDRINUSE` where a device reserves some of them.
    fn ioas_allow(
        &self,
        iommufd: &Self::Fd,
        ioas: ObjectId,
        ranges: &[(Iova, Iova)],
    ) -> Result<(), Errno>;
    /// `IOMMU_IOAS_MAP` at a fixed address.
    ///
    /// # Errors
    /// `EEXIST` where something of it is mapped, `EINVAL` outside the ranges, `ENOMEM` where memory
    /// cannot be pinned, `EFAULT` where there is none.
    ///
    /// # Safety
    /// The same as of [`type1_map`](Self::type1_map).
    unsafe fn ioas_map(
        &self,
        iommufd: &Self::Fd,
        ioas: ObjectId,
        call: &MapCall,
    ) -> Result<(), Errno>;
    /// `IOMMU_IOAS_UNMAP`; returns how much was unmapped.
    ///
    /// # Errors
    /// `ENOENT` where nothing is mapped, or a mapping lies across an edge of the range.
    fn ioas_unmap(
        &self,
        iommufd: &Self::Fd,
        ioas: ObjectId,
        iova: Iova,
        len: ByteCount,
    ) -> Result<ByteCount, Errno>;
    /// `VFIO_DEVICE_BIND_IOMMUFD`: gives the device to the iommufd, as an object of it.
    fn bind_iommufd(&self, device: &Self::Fd, iommufd: &Self::Fd) -> Result<ObjectId, Errno>;
    /// `VFIO_DEVICE_ATTACH_IOMMUFD_PT`: lets the device reach what is mapped in `ioas`.
    fn attach_ioas(&self, device: &Self::Fd, ioas: ObjectId) -> Result<(), Errno>;
    /// `VFIO_DEVICE_DETACH_IOMMUFD_PT`: takes the device out of its address space.
    fn detach_ioas(&self, device: &Self::Fd) -> Result<(), Errno>;

    /// `VFIO_DEVICE_GET_INFO`: what the device has, and whether it can be reset.
    fn device_info(&self, device: &Self::Fd) -> Result<DeviceInfo, Errno>;
    /// `VFIO_DEVICE_GET_REGION_INFO`: where a region is in the device's file.
    fn region_info(&self, device: &Self::Fd, region: u32) -> Result<RegionInfo, Errno>;
    /// `VFIO_DEVICE_GET_IRQ_INFO`: how many vectors of a kind there are.
    fn irq_info(&self, device: &Self::Fd, irq: u32) -> Result<IrqInfo, Errno>;
    /// `VFIO_DEVICE_SET_IRQS`: vector n from 0 triggers `events[n]`; none turns all of them off.
    fn set_irqs(&self, device: &Self::Fd, irq: u32, events: &[BorrowedFd<'_>])
    -> Result<(), Errno>;
    /// `VFIO_DEVICE_RESET`: resets the device alone.
    fn reset(&self, device: &Self::Fd) -> Result<(), Errno>;
    /// `pread`; all of it, or an error.
    ///
    /// # Errors
    /// See [`open`](Self::open); `EIO` where it was less.
    fn read_at(&self, device: &Self::Fd, offset: u64, into: &mut [u8]) -> Result<(), Errno>;
    /// `pwrite`; all of it, or an error.
    ///
    /// # Errors
    /// The same as of [`read_at`](Self::read_at).
    fn write_at(&self, device: &Self::Fd, offset: u64, from: &[u8]) -> Result<(), Errno>;
    /// `mmap` of a part of a region.
    fn map_region(
        &self,
        device: &Self::Fd,
        offset: u64,
        len: ByteCount,
    ) -> Result<Self::Mapped, Errno>;
}

/// The number by which an iommufd knows an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectId(pub u32);

/// Device registers that are in this process's address space.
///
/// # Safety
/// What [`bytes`](Self::bytes) says is so: safe code accesses registers there (`Bar::read`).
///
/// ```compile_fail,E0200
/// struct Nowhere;
/// impl ioatlas_vfio::kernel::AsRegion for Nowhere {
///     fn bytes(&self) -> *mut [u8] {
///         std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 4096)
///     }
/// }
/// ```
pub unsafe trait AsRegion: Send + Sync + 'static {
    /// Where, and how many bytes. They stay there as long as `self` lives, and may be accessed by
    /// volatile loads and stores of 1, 2, 4 or 8 aligned bytes.
    fn bytes(&self) -> *mut [u8];
}
