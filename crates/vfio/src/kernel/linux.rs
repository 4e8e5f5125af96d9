// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The real kernel: ioctls over the bindings' structures.
//!
//! Not over `vfio-ioctls` and `iommufd-ioctls`: those fold error numbers into a few variants, and
//! have no call for IOVA ranges of an IOAS.

use super::{ioctls::*, *};
use iommufd_bindings as fd;
use rustix::{
    fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ioctl::Opcode,
    mm::{MapFlags, ProtFlags, mmap, munmap},
    process::{Resource, getrlimit},
};
use std::{
    ffi::{CString, c_void},
    fs,
    os::unix::fs::FileExt,
    ptr::NonNull,
};
use vfio_bindings::bindings::vfio as b;

/// The kernel that this process runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Linux;

/// Makes a call whose argument is a structure.
///
/// # Safety
/// `T` is the structure of that call, of fixed length, as its first field says.
unsafe fn with<T>(fd: &fs::File, number: Opcode, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: by the caller; the borrow makes it readable and writable.
    unsafe { call(fd.as_fd(), number, (&raw mut *argument).cast()) }
}

const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// A structure that says its length in its first word, with capabilities behind it.
struct Blob(Vec<u64>);

impl Blob {
    /// Asks, and asks again with the room that the kernel says it needs. `words` are the
    /// structure's own, the first one aside.
    ///
    /// # Safety
    /// `number` is a call whose argument is at least `len` bytes, begins with its length, and has
    /// its offset of capabilities where `caps` says, for longer ones.
    unsafe fn ask(
        fd: &fs::File,
        number: Opcode,
        len: usize,
        set: impl Fn(&mut Blob),
    ) -> Result<Self, Errno> {
        let mut bytes = len;
        // the needed length may grow between two calls, if devices come; it does not do so for ever
        for _ in 0..8 {
            let mut blob = Blob(vec![0; bytes.div_ceil(8)]);
            set(&mut blob);
            blob.set_u32(0, bytes as u32);
            // SAFETY: as many bytes are there as the first word says.
            unsafe { call(fd.as_fd(), number, blob.0.as_mut_ptr().cast()) }?;
            let needed = blob.u32(0) as usize;
            if needed <= bytes {
                return Ok(blob);
            }
            bytes = needed;
        }
        Err(Errno::MSGSIZE)
    }
    fn u32(&self, at: usize) -> u32 {
        let word = self.0.get(at / 8).copied().unwrap_or(0);
        (word >> (at % 8 * 8)) as u32
    }
    /// At a multiple of 4: before Linux 6.6 a capability begins where the one before it ends, which
    /// may be 12 bytes long.
    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }
    fn set_u32(&mut self, at: usize, to: u32) {
        let shift = at % 8 * 8;
        let word = &mut self.0[at / 8];
        *word = *word & !(0xffff_ffff << shift) | u64::from(to) << shift;
    }
    /// Where the capability `id` begins, along the chain from `first`.
    fn capability(&self, first: u32, id: u32) -> Option<usize> {
        let mut at = first as usize;
        // each is behind the structure and has a header of 8 bytes, so there are not more than this
        for _ in 0..self.0.len() {
            if at == 0 || !at.is_multiple_of(4) {
                return None;
            }
            let header = self.u32(at);
            if header & 0xffff == id {
                return Some(at);
            }
            at = self.u32(at + 4) as usize;
        }
        None
    }
}

/// What the answer to `VFIO_IOMMU_GET_INFO` says.
fn space_info(info: &Blob) -> SpaceInfo {
    let flags = info.u32(4);
    let sizes = match flags & b::VFIO_IOMMU_INFO_PGSIZES {
        0 => None,
        _ => Some(PageSizes(info.u64(8))),
    };
    let caps = match flags & b::VFIO_IOMMU_INFO_CAPS {
        0 => 0,
        _ => info.u32(16),
    };
    let mut ranges = Vec::new();
    if let Some(at) = info.capability(caps, b::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
        for nth in 0..info.u32(at + 8) as usize {
            let range = at + 16 + nth * 16;
            ranges.push((Iova(info.u64(range)), Iova(info.u64(range + 8))));
        }
    }
    let avail = info.capability(caps, b::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL);
    SpaceInfo {
        ranges,
        // 4 KiB where it does not say; none at all is as good as too large a one
        granule: sizes.map_or(ByteCount(4096), |sizes| {
            sizes.smallest().unwrap_or(ByteCount(1 << 63))
        }),
        page_sizes: sizes,
        mappings: avail.map(|at| u64::from(info.u32(at + 8))),
    }
}

fn check_id(id: u32) -> Result<ObjectId, Errno> {
    Ok(ObjectId(id))
}

fn type1_flags(perm: Perm) -> u32 {
    match perm {
        Perm::Read => b::VFIO_DMA_MAP_FLAG_READ,
        Perm::Write => b::VFIO_DMA_MAP_FLAG_WRITE,
        Perm::ReadWrite => b::VFIO_DMA_MAP_FLAG_READ | b::VFIO_DMA_MAP_FLAG_WRITE,
    }
}

fn ioas_flags(perm: Perm) -> u32 {
    let (read, write) = (
        fd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE,
        fd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE,
    );
    let perm = match perm {
        Perm::Read => read,
        Perm::Write => write,
        Perm::ReadWrite => read | write,
    };
    perm | fd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA
}

// SAFETY: the kernel removes and flushes translations before its calls return, and says how much it
// removed; a mapping is as long as `mmap` was asked for.
unsafe impl Kernel for Linux {
    type Fd = fs::File;
    type Mapped = MappedRegion;

    fn open(&self, path: &str) -> Result<fs::File, Errno> {
        Ok(fs::File::options().read(true).write(true).open(path)?)
    }
    fn link(&self, path: &str) -> Result<String, Errno> {
        let target = fs::read_link(path)?;
        let name = target.file_name().ok_or(Errno::INVAL)?;
        Ok(name.to_string_lossy().into_owned())
    }
    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
    fn pin_limit(&self) -> Option<ByteCount> {
        getrlimit(Resource::Memlock).current.map(ByteCount)
    }

    fn api_version(&self, container: &fs::File) -> Result<u32, Errno> {
        // SAFETY: the call takes no argument.
        let version = unsafe { call(container.as_fd(), GET_API_VERSION, std::ptr::null_mut()) }?;
        u32::try_from(version).map_err(|_| Errno::INVAL)
    }
    fn has_type1_v2(&self, container: &fs::File) -> Result<bool, Errno> {
        let which = std::ptr::without_provenance_mut(b::VFIO_TYPE1v2_IOMMU as usize);
        // SAFETY: the argument is a number.
        Ok(unsafe { call(container.as_fd(), CHECK_EXTENSION, which) }? > 0)
    }
    fn group_status(&self, group: &fs::File) -> Result<GroupStatus, Errno> {
        let mut status = b::vfio_group_status {
            argsz: size::<b::vfio_group_status>(),
            flags: 0,
        };
        // SAFETY: the structure of this call.
        unsafe { with(group, GROUP_GET_STATUS, &mut status) }?;
        Ok(match status.flags & b::VFIO_GROUP_FLAGS_VIABLE {
            0 => GroupStatus::NotViable,
            _ => GroupStatus::Viable,
        })
    }
    fn set_container(&self, group: &fs::File, container: &fs::File) -> Result<(), Errno> {
        let mut number = container.as_raw_fd();
        // SAFETY: the argument points to a file number.
        unsafe { with(group, GROUP_SET_CONTAINER, &mut number) }.map(drop)
    }
    fn set_iommu(&self, container: &fs::File) -> Result<(), Errno> {
        let which = std::ptr::without_provenance_mut(b::VFIO_TYPE1v2_IOMMU as usize);
        // SAFETY: the argument is a number.
        unsafe { call(container.as_fd(), SET_IOMMU, which) }.map(drop)
    }
    fn type1_info(&self, container: &fs::File) -> Result<SpaceInfo, Errno> {
        const LEN: usize = size_of::<b::vfio_iommu_type1_info>();
        // SAFETY: the structure of this call; it may be longer.
        let info = unsafe { Blob::ask(container, IOMMU_GET_INFO, LEN, |_| {}) }?;
        Ok(space_info(&info))
    }
    unsafe fn type1_map(&self, container: &fs::File, call: &MapCall) -> Result<(), Errno> {
        let mut map = b::vfio_iommu_type1_dma_map {
            argsz: size::<b::vfio_iommu_type1_dma_map>(),
            flags: type1_flags(call.perm),
            vaddr: call.memory.0,
            iova: call.iova.0,
            size: call.len.0,
        };
        // SAFETY: the structure of this call; as to the memory, the caller's.
        unsafe { with(container, IOMMU_MAP_DMA, &mut map) }.map(drop)
    }
    fn type1_unmap(
        &self,
        container: &fs::File,
        iova: Iova,
        len: ByteCount,
    ) -> Result<ByteCount, Errno> {
        // without the list at its end
        let mut unmap = [0u64; 3];
        unmap[0] = u64::from(size::<[u64; 3]>());
        (unmap[1], unmap[2]) = (iova.0, len.0);
        const {
            assert!(size_of::<b::vfio_iommu_type1_dma_unmap>() == 24);
            assert!(std::mem::offset_of!(b::vfio_iommu_type1_dma_unmap, iova) == 8);
            assert!(std::mem::offset_of!(b::vfio_iommu_type1_dma_unmap, size) == 16);
        };
        // SAFETY: laid out as the structure of this call, which was checked; it says its length.
        unsafe { with(container, IOMMU_UNMAP_DMA, &mut unmap) }?;
        Ok(ByteCount(unmap[2]))
    }
    fn device_of_group(&self, group: &fs::File, name: &str) -> Result<fs::File, Errno> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let argument: *mut c_void = name.as_ptr().cast_mut().cast();
        // SAFETY: the argument is a string that ends with a zero, and is read only.
        let device = unsafe { call(group.as_fd(), GROUP_GET_DEVICE_FD, argument) }?;
        // SAFETY: a new file, which is ours.
        Ok(unsafe { OwnedFd::from_raw_fd(device) }.into())
    }

    fn ioas_alloc(&self, iommufd: &fs::File) -> Result<ObjectId, Errno> {
        let mut alloc = fd::iommu_ioas_alloc {
            size: size::<fd::iommu_ioas_alloc>(),
            flags: 0,
            out_ioas_id: 0,
        };
        let number = super::ioctls::iommufd(fd::IOMMUFD_CMD_IOAS_ALLOC);
        // SAFETY: the structure of this call.
        unsafe { with(iommufd, number, &mut alloc) }?;
        check_id(alloc.out_ioas_id)
    }
    fn destroy(&self, iommufd: &fs::File, object: ObjectId) -> Result<(), Errno> {
        let mut destroy = fd::iommu_destroy {
            size: size::<fd::iommu_destroy>(),
            id: object.0,
        };
        let number = super::ioctls::iommufd(fd::IOMMUFD_CMD_DESTROY);
        // SAFETY: the structure of this call.
        unsafe { with(iommufd, number, &mut destroy) }.map(drop)
    }
    fn ioas_info(&self, iommufd: &fs::File, ioas: ObjectId) -> Result<SpaceInfo, Errno> {
        let number = super::ioctls::iommufd(fd::IOMMUFD_CMD_IOAS_IOVA_RANGES);
        let mut room = 16;
        for _ in 0..8 {
            let none = fd::iommu_iova_range { start: 0, last: 0 };
            let mut list = vec![none; room];
            let mut ask = fd::iommu_ioas_iova_ranges {
                size: size::<fd::iommu_ioas_iova_ranges>(),
                ioas_id: ioas.0,
                num_iovas: room as u32,
                __reserved: 0,
                allowed_iovas: list.as_mut_ptr().expose_provenance() as u64,
                out_iova_alignment: 0,
            };
            // SAFETY: the structure of this call, with a list of as many ranges as it says.
            let asked = unsafe { with(iommufd, number, &mut ask) };
            match asked {
                Err(Errno::MSGSIZE) => room = (ask.num_iovas as usize).max(room * 2),
                Err(errno) => return Err(errno),
                Ok(_) => {
                    list.truncate(ask.num_iovas as usize);
                    let ranges = list.iter().map(|r| (Iova(r.start), Iova(r.last)));
                    return Ok(SpaceInfo {
                        ranges: ranges.collect(),
                        granule: ByteCount(ask.out_iova_alignment.max(1)),
                        page_sizes: None,
                        mappings: None,
                    });
                }
            }
        }
        Err(Errno::MSGSIZE)
    }
    fn ioas_allow(
        &self,
        iommufd: &fs::File,
        ioas: ObjectId,
        ranges: &[(Iova, Iova)],
    ) -> Result<(), Errno> {
        let range = |(first, last): &(Iova, Iova)| fd::iommu_iova_range {
            start: first.0,
            last: last.0,
        };
        let list: Vec<_> = ranges.iter().map(range).collect();
        let mut allow = fd::iommu_ioas_allow_iovas {
            size: size::<fd::iommu_ioas_allow_iovas>(),
            ioas_id: ioas.0,
            num_iovas: list.len() as u32,
            __reserved: 0,
            allowed_iovas: list.as_ptr().expose_provenance() as u64,
        };
        let number = super::ioctls::iommufd(fd::IOMMUFD_CMD_IOAS_ALLOW_IOVAS);
        // SAFETY: the structure of this call, with a list of as many ranges as it says, which is
        // read only.
        unsafe { with(iommufd, number, &mut allow) }.map(drop)
    }
    unsafe fn ioas_map(
        &self,
        iommufd: &fs::File,
        ioas: ObjectId,
        call: &MapCall,
    ) -> Result<(), Errno> {
        let mut map = fd::iommu_ioas_map {
            size: size::<fd::iommu_ioas_map>(),
            flags: ioas_flags(call.perm),
            ioas_id: ioas.0,
            __reserved: 0,
            user_va: call.memory.0,
            length: call.len.0,
            iova: call.iova.0,
        };
        let number = super::ioctls::iommufd(fd::IOMMUFD_CMD_IOAS_MAP);
        // SAFETY: the structure of this call; as to the memory, the caller's.
        unsafe { with(iommufd, number, &mut map) }.map(drop)
    }
    fn ioas_unmap(
        &self,
        iommufd: &fs::File,
        ioas: ObjectId,
        iova: Iova,
        len: ByteCount,
    ) -> Result<ByteCount, Errno> {
        let mut unmap = fd::iommu_ioas_unmap {
            size: size::<fd::iommu_ioas_unmap>(),
            ioas_id: ioas.0,
            iova: iova.0,
            length: len.0,
        };
        let number = super::ioctls::iommufd(fd::IOMMUFD_CMD_IOAS_UNMAP);
        // SAFETY: the structure of this call.
        unsafe { with(iommufd, number, &mut unmap) }?;
        Ok(ByteCount(unmap.length))
    }
    fn bind_iommufd(&self, device: &fs::File, iommufd: &fs::File) -> Result<ObjectId, Errno> {
        // without the token that newer kernels know
        let mut bind = [0u32; 4];
        bind[0] = size::<[u32; 4]>();
        bind[2] = iommufd.as_raw_fd() as u32;
        const {
            assert!(std::mem::offset_of!(b::vfio_device_bind_iommufd, iommufd) == 8);
            assert!(std::mem::offset_of!(b::vfio_device_bind_iommufd, out_devid) == 12);
        };
        // SAFETY: laid out as the first fields of this call's structure, which was checked; it says
        // its length.
        unsafe { with(device, DEVICE_BIND_IOMMUFD, &mut bind) }?;
        check_id(bind[3])
    }
    fn attach_ioas(&self, device: &fs::File, ioas: ObjectId) -> Result<(), Errno> {
        // without the PASID that newer kernels know
        let mut attach = [size::<[u32; 3]>(), 0, ioas.0];
        const { assert!(std::mem::offset_of!(b::vfio_device_attach_iommufd_pt, pt_id) == 8) };
        // SAFETY: laid out as the first fields of this call's structure, which was checked; it says
        // its length.
        unsafe { with(device, DEVICE_ATTACH_IOMMUFD_PT, &mut attach) }.map(drop)
    }
    fn detach_ioas(&self, device: &fs::File) -> Result<(), Errno> {
        let mut detach = [size::<[u32; 2]>(), 0];
        // SAFETY: the first fields of this call's structure, which says its length.
        unsafe { with(device, DEVICE_DETACH_IOMMUFD_PT, &mut detach) }.map(drop)
    }

    fn device_info(&self, device: &fs::File) -> Result<DeviceInfo, Errno> {
        let mut info = b::vfio_device_info {
            argsz: size::<b::vfio_device_info>(),
            flags: 0,
            num_regions: 0,
            num_irqs: 0,
            cap_offset: 0,
            pad: 0,
        };
        // SAFETY: the structure of this call.
        unsafe { with(device, DEVICE_GET_INFO, &mut info) }?;
        Ok(DeviceInfo {
            reset: match info.flags & b::VFIO_DEVICE_FLAGS_RESET {
                0 => Reset::Unsupported,
                _ => Reset::Supported,
            },
            regions: info.num_regions,
            irqs: info.num_irqs,
        })
    }
    fn region_info(&self, device: &fs::File, region: u32) -> Result<RegionInfo, Errno> {
        const LEN: usize = size_of::<b::vfio_region_info>();
        let set = |info: &mut Blob| info.set_u32(8, region);
        // SAFETY: the structure of this call; it may be longer.
        let info = unsafe { Blob::ask(device, DEVICE_GET_REGION_INFO, LEN, set) }?;
        let (flags, len) = (info.u32(4), info.u64(16));
        let caps = match flags & b::VFIO_REGION_INFO_FLAG_CAPS {
            0 => 0,
            _ => info.u32(12),
        };
        let mut mappable = Vec::new();
        if flags & b::VFIO_REGION_INFO_FLAG_MMAP != 0 {
            match info.capability(caps, b::VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
                Some(at) => {
                    for nth in 0..info.u32(at + 8) as usize {
                        let area = at + 16 + nth * 16;
                        mappable.push((info.u64(area), ByteCount(info.u64(area + 8))));
                    }
                }
                None => mappable.push((0, ByteCount(len))),
            }
        }
        Ok(RegionInfo {
            offset: info.u64(24),
            len: ByteCount(len),
            mappable,
        })
    }
    fn irq_info(&self, device: &fs::File, irq: u32) -> Result<IrqInfo, Errno> {
        let mut info = b::vfio_irq_info {
            argsz: size::<b::vfio_irq_info>(),
            flags: 0,
            index: irq,
            count: 0,
        };
        // SAFETY: the structure of this call.
        unsafe { with(device, DEVICE_GET_IRQ_INFO, &mut info) }?;
        Ok(IrqInfo {
            vectors: info.count,
        })
    }
    fn set_irqs(
        &self,
        device: &fs::File,
        irq: u32,
        events: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        const HEAD: usize = size_of::<b::vfio_irq_set>();
        let data = match events {
            [] => b::VFIO_IRQ_SET_DATA_NONE,
            _ => b::VFIO_IRQ_SET_DATA_EVENTFD,
        };
        let len = HEAD + 4 * events.len();
        let mut set = Blob(vec![0; len.div_ceil(8)]);
        let count = events.len() as u32;
        let head = [
            len as u32,
            data | b::VFIO_IRQ_SET_ACTION_TRIGGER,
            irq,
            0,
            count,
        ];
        const { assert!(HEAD == 20) };
        let numbers = events.iter().map(|event| event.as_raw_fd() as u32);
        for (nth, word) in head.into_iter().chain(numbers).enumerate() {
            set.set_u32(4 * nth, word);
        }
        // SAFETY: the structure of this call, with as many file numbers behind it as it says.
        unsafe { call(device.as_fd(), DEVICE_SET_IRQS, set.0.as_mut_ptr().cast()) }.map(drop)
    }
    fn reset(&self, device: &fs::File) -> Result<(), Errno> {
        // SAFETY: the call takes no argument.
        unsafe { call(device.as_fd(), DEVICE_RESET, std::ptr::null_mut()) }.map(drop)
    }
    fn read_at(&self, device: &fs::File, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        Ok(device.read_exact_at(into, offset)?)
    }
    fn write_at(&self, device: &fs::File, offset: u64, from: &[u8]) -> Result<(), Errno> {
        Ok(device.write_all_at(from, offset)?)
    }
    fn map_region(
        &self,
        device: &fs::File,
        offset: u64,
        len: ByteCount,
    ) -> Result<MappedRegion, Errno> {
        let len = usize::try_from(len.0).map_err(|_| Errno::NOMEM)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place that the kernel chooses changes nothing that exists.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, device, offset) }?;
        let at = NonNull::new(at.cast()).ok_or(Errno::FAULT)?;
        Ok(MappedRegion(NonNull::slice_from_raw_parts(at, len)))
    }
}

/// Registers in this process's address space.
#[derive(Debug)]
pub struct MappedRegion(NonNull<[u8]>);

// SAFETY: it owns the mapping, which any thread may use; accesses are volatile.
unsafe impl Send for MappedRegion {}
// SAFETY: as above.
unsafe impl Sync for MappedRegion {}

// SAFETY: its own mapping, which it unmaps when it is dropped.
unsafe impl AsRegion for MappedRegion {
    fn bytes(&self) -> *mut [u8] {
        self.0.as_ptr()
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whose users borrowed `self`. It cannot fail then.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), self.0.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer whose capabilities begin at these places, each pointing to the next: 16 bytes of
    /// ranges and then the limit, or the other way round.
    fn answer(len: usize, words: &[(usize, u32)]) -> Blob {
        let mut blob = Blob(vec![0; len.div_ceil(8)]);
        for (at, word) in words {
            blob.set_u32(*at, *word);
        }
        blob
    }

    #[test]
    fn capabilities_are_found_where_they_begin_also_between_words() {
        // before Linux 6.6: the limit takes 12 bytes, the ranges begin right behind it
        let info = answer(
            84,
            &[
                (4, 3),
                (8, 0x1000),
                (16, 24),
                (24, 3),
                (28, 36),
                (32, 65_535),
                (36, 1),
                (40, 0),
                (44, 2),
                (60, 0xfedf_ffff),
                (68, 0xfef0_0000),
                (76, u32::MAX),
                (80, 0x7f),
            ],
        );
        let found = space_info(&info);
        let ranges = vec![
            (Iova(0), Iova(0xfedf_ffff)),
            (Iova(0xfef0_0000), Iova((1 << 39) - 1)),
        ];
        let expected = SpaceInfo {
            ranges,
            granule: ByteCount(4096),
            page_sizes: Some(PageSizes(0x1000)),
            mappings: Some(65_535),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_not_there_is_not_found_and_chains_end() {
        let none = space_info(&answer(24, &[(4, 1), (8, 0x20_1000)]));
        assert_eq!((none.ranges.len(), none.mappings), (0, None));
        assert_eq!(none.granule, ByteCount(4096));
        for next in [24, 26, 4000, u32::MAX] {
            let looped = answer(40, &[(4, 2), (16, 24), (24, 7), (28, next)]);
            assert_eq!(looped.capability(24, 1), None, "{next}");
        }
    }
}
