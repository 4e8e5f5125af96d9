// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The memory table: what the front end shares, under the three names that it has.
//!
//! A *region* is a piece of a file that `SET_MEM_TABLE` or `ADD_MEM_REG` brings; it has a
//! guest-physical address, a front-end address (what updates of the device IOTLB name), and, once
//! mapped here, a host address.
//!
//! # Invariants
//! * No two regions overlap, in guest-physical or in front-end addresses; none wraps around.
//! * Every byte of a region lay in its file when it was mapped (`fstat`). Its loss is survived
//!   (`sigbus`), whatever seals the file has: `F_SEAL_SHRINK` keeps a file as long as it is, but a
//!   page of it that does not exist yet can still fail to come (a hugetlb pool that is empty).
//! * A region begins and ends at huge pages of its file, if that consists of such: a mapping of
//!   them can neither be replaced nor unmapped in parts.
//! * A host address leaves this module only for a range that lies in one region.
//!
//! Two regions that are neighbours for the front end need not be here: a range that spans both
//! comes back in pieces.
//!
//! Not handled: regions of character devices (device DAX), dirty logging, postcopy.

use super::{
    foreign::{Foreign, is_in_memory},
    mapping::Mapping,
    message::FrontAddr,
    sigbus::{Watch, WatchError},
};
use ioatlas_dma::units::*;
use rustix::fs::{FileType, SealFlags};
use std::{fs::File, io, sync::Arc};

/// A guest-physical address: what descriptors hold where no IOMMU was negotiated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GuestPhys(pub u64);

/// What is done about files that could be truncated while they are mapped. Either way a
/// process-wide `SIGBUS` handler watches what is mapped: pages can also be
/// missing for other reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shrink {
    /// Also files that could be truncated are taken; the device stops when that happens.
    #[default]
    Survive,
    /// Only files with `F_SEAL_SHRINK` are taken.
    DemandSeal,
}

/// Which files may hold guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Files {
    /// Those of memory itself (`memfd`, tmpfs, hugetlbfs), in which the kernel
    /// answers a fault alone.
    #[default]
    InMemory,
    /// Any regular file, for instance one of an NVDIMM. A fault in it waits for its file system,
    /// also for one whose server is the front end's own and never answers; until it does, the
    /// queue's thread, and with it the runner, can neither go on nor stop.
    Any,
}

/// Where a region is, as its owner says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct RegionInfo {
    /// Guest-physical address of its first byte.
    pub guest: GuestPhys,
    /// Front-end address of its first byte.
    pub front: FrontAddr,
    pub len: ByteCount,
    /// Where it begins in its file.
    pub file_offset: ByteCount,
}

/// Why a memory table is refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// It has no bytes, or its end is beyond the last address.
    #[error("region of {:#x} bytes at guest address {:#x} is empty or wraps around", .0.len.0, .0.guest.0)]
    Range(RegionInfo),
    /// It shares addresses with another one.
    #[error("region of {:#x} bytes at guest address {:#x} overlaps another", .0.len.0, .0.guest.0)]
    Overlap(RegionInfo),
    /// The file descriptor is not of a regular file.
    #[error("region at guest address {:#x} is not of a regular file", .0.guest.0)]
    NotAFile(RegionInfo),
    /// The file ends before the region does.
    #[error("region of {:#x} bytes at offset {:#x} of a file of {:#x} bytes", .0.len.0, .0.file_offset.0, .1.0)]
    TooShort(RegionInfo, ByteCount),
    /// It may be of a file system that never answers, and [`Files::InMemory`] does not have that.
    #[error("the region at guest address {:#x} is not of a regular file in memory (memfd, tmpfs, hugetlbfs)", .0.guest.0)]
    NotInMemory(RegionInfo),
    /// The file could be truncated, and [`Shrink::DemandSeal`] does not have that.
    #[error("the file of the region at guest address {:#x} has no F_SEAL_SHRINK", .0.guest.0)]
    Unsealed(RegionInfo),
    /// The region does not consist of whole huge pages of its file.
    #[error("region of {:#x} bytes at offset {:#x} is not of whole pages of its file, {:#x} bytes each", .0.len.0, .0.file_offset.0, .1.0)]
    HugePages(RegionInfo, ByteCount),
    /// The loss of its pages could not be survived.
    #[error("the region at guest address {:#x} cannot be watched: {}", .0.guest.0, .1)]
    Unwatched(RegionInfo, #[source] WatchError),
    /// The file cannot be looked at.
    #[error("region at guest address {:#x}: {}", .0.guest.0, .1)]
    Stat(RegionInfo, #[source] io::Error),
    /// The file cannot be mapped.
    #[error("region of {:#x} bytes at offset {:#x} cannot be mapped: {}", .0.len.0, .0.file_offset.0, .1)]
    Map(RegionInfo, #[source] io::Error),
    /// `REM_MEM_REG` of what is not there.
    #[error("no region of {:#x} bytes at guest address {:#x}", .0.len.0, .0.guest.0)]
    NotThere(RegionInfo),
}

/// A range of front-end or guest addresses that no region holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{:#x} bytes at {addr:#x} are not in the memory table", .len.0)]
pub struct Outside {
    /// The first address that was asked for.
    pub addr: u64,
    /// How many bytes were asked for.
    pub len: ByteCount,
}

/// A region of guest memory, mapped and watched.
#[derive(Debug)]
pub struct Region {
    info: RegionInfo,
    /// Withdrawn before `mapping` goes: fields are dropped in order.
    watch: Watch,
    mapping: Mapping,
}

/// A run of host memory that is part of a longer range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Piece {
    /// Where in the range it begins.
    pub offset: ByteCount,
    /// Its first byte, here.
    pub host: *mut u8,
    pub len: ByteCount,
}

impl Region {
    /// Maps what `info` says of `file`, and closes it. Where it is not in memory, and `files` does
    /// not have that, its file system is not waited for.
    ///
    /// # Errors
    /// See [`MemoryError`]; nothing stays mapped.
    pub fn map(
        info: RegionInfo,
        file: Foreign,
        shrink: Shrink,
        files: Files,
    ) -> Result<Self, MemoryError> {
        let ends = |first: u64| first.checked_add(info.len.0);
        let (true, Some(_), Some(_), Some(file_end)) = (
            info.len.0 > 0,
            ends(info.guest.0),
            ends(info.front.0),
            ends(info.file_offset.0),
        ) else {
            return Err(MemoryError::Range(info));
        };
        // The first question, since the next ones are the file system's to answer.
        let file = file.known_if(|file| files == Files::Any || is_in_memory(file));
        let file = file.ok_or(MemoryError::NotInMemory(info))?;
        let stat = rustix::fs::fstat(&file).map_err(|e| MemoryError::Stat(info, e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MemoryError::NotAFile(info));
        }
        let size = stat.st_size.max(0) as u64;
        if size < file_end {
            return Err(MemoryError::TooShort(info, ByteCount(size)));
        }
        // A file that knows no seals cannot have one.
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let sealed = seals.contains(SealFlags::SHRINK);
        if !sealed && shrink == Shrink::DemandSeal {
            return Err(MemoryError::Unsealed(info));
        }
        let page = huge_page_of(&file).map_err(|e| MemoryError::Stat(info, e))?;
        if let Some(page) = page
            && !(info.file_offset.0 | info.len.0).is_multiple_of(page.0)
        {
            return Err(MemoryError::HugePages(info, page));
        }
        let mapping = Mapping::new(&file, info.file_offset, info.len)
            .map_err(|e| MemoryError::Map(info, e))?;
        // SAFETY: exactly the mapping made above, unmapped by `mapping`'s drop, after the watch's;
        // guest memory is anybody's to write.
        let watch = unsafe { Watch::new(mapping.start(), mapping.len()) }
            .map_err(|e| MemoryError::Unwatched(info, e))?;
        Ok(Region {
            info,
            watch,
            mapping,
        })
    }

    /// Where it is, as its owner says.
    pub fn info(&self) -> RegionInfo {
        self.info
    }

    /// Its first byte, here.
    pub fn host(&self) -> *mut u8 {
        self.mapping.start()
    }

    /// Whether a page of it was lost, and with it its content.
    pub fn is_dead(&self) -> bool {
        self.watch.is_dead()
    }

    fn overlaps(&self, other: &RegionInfo) -> bool {
        let meet = |a: u64, b: u64| a < b + other.len.0 && b < a + self.info.len.0;
        meet(self.info.guest.0, other.guest.0) || meet(self.info.front.0, other.front.0)
    }
}

/// The size of the pages of a file on hugetlbfs; none elsewhere.
fn huge_page_of(file: &File) -> io::Result<Option<ByteCount>> {
    /// `HUGETLBFS_MAGIC` of `linux/magic.h`, as `statfs` gives it.
    const HUGETLBFS: u32 = 0x9584_58f6;
    let of = rustix::fs::fstatfs(file)?;
    let page = ByteCount(of.f_bsize.max(1) as u64);
    Ok((of.f_type as u32 == HUGETLBFS).then_some(page))
}

/// What the front end shares at one time. Cloning shares the mappings.
#[derive(Clone, Debug, Default)]
pub struct MemoryTable {
    regions: Vec<Arc<Region>>,
}

impl MemoryTable {
    /// Adds a region, which must not overlap the others.
    ///
    /// # Errors
    /// It overlaps one that is there.
    pub fn add(&mut self, region: Region) -> Result<(), MemoryError> {
        if self.regions.iter().any(|r| r.overlaps(&region.info)) {
            return Err(MemoryError::Overlap(region.info));
        }
        self.regions.push(Arc::new(region));
        Ok(())
    }

    /// Takes out the region that `info` names; its file offset does not matter.
    ///
    /// # Errors
    /// There is no such region.
    pub fn remove(&mut self, info: RegionInfo) -> Result<(), MemoryError> {
        let same = |r: &Arc<Region>| {
            (r.info.guest, r.info.front, r.info.len) == (info.guest, info.front, info.len)
        };
        let at = self.regions.iter().position(same);
        let at = at.ok_or(MemoryError::NotThere(info))?;
        self.regions.swap_remove(at);
        Ok(())
    }

    /// The regions, in no order.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().map(|r| &**r)
    }

    /// Whether the content of any region is lost.
    pub fn is_dead(&self) -> bool {
        self.regions().any(Region::is_dead)
    }

    /// The guest-physical address of a front-end address (rings, where no IOMMU was negotiated).
    ///
    /// # Errors
    /// No region holds it.
    pub fn guest_of(&self, front: FrontAddr) -> Result<GuestPhys, Outside> {
        let (region, offset) = self.find(front.0, |info| info.front.0).ok_or(Outside {
            addr: front.0,
            len: ByteCount(1),
        })?;
        Ok(GuestPhys(region.info.guest.0 + offset))
    }

    /// The host memory behind `len` bytes at `front`, in pieces: all of it, or an error.
    ///
    /// # Errors
    /// A byte of it is in no region.
    pub fn pieces(&self, front: FrontAddr, len: ByteCount) -> Result<Vec<Piece>, Outside> {
        let outside = Outside { addr: front.0, len };
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len.0 {
            let at = front.0.checked_add(done).ok_or(outside)?;
            let (region, offset) = self.find(at, |info| info.front.0).ok_or(outside)?;
            let here = (region.info.len.0 - offset).min(len.0 - done);
            pieces.push(Piece {
                offset: ByteCount(done),
                // SAFETY: `find` gives an offset below the region's length, which is the mapping's.
                host: unsafe { region.host().add(offset as usize) },
                len: ByteCount(here),
            });
            done += here;
        }
        Ok(pieces)
    }

    /// The region in which `addr` is by the name that `first` tells, and the offset in it.
    fn find(&self, addr: u64, first: impl Fn(&RegionInfo) -> u64) -> Option<(&Region, u64)> {
        self.regions().find_map(|region| {
            let offset = addr.checked_sub(first(&region.info))?;
            (offset < region.info.len.0).then_some((region, offset))
        })
    }
}
