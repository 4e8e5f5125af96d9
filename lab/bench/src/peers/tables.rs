// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Page tables of x86, which have as many levels and entries as VT-d's of 48 bits.
//!
//! They are written with plain stores, for one thread at a time, and nothing is flushed: their TLB
//! flushes are left out. "Physical" addresses of tables are those of this process, so that no
//! arithmetic but theirs is measured; nothing walks the tables but the peers themselves.

use super::{Exclusive, Peer, Rival};
use crate::{Failure, stack::Stacks, subjects::Buffers};
use ioatlas_dma::units::{GRANULE, GRANULE_LG2, IovaRange, PageCount};
use page_table_entry::{MappingFlags, x86_64::X64PTE};
use page_table_multiarch::{PageSize, PageTable64, PagingHandler, PagingMetaData};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame, Size4KiB,
};

pub(super) const PEERS: [Peer; 2] = [
    Peer {
        name: "page_table_multiarch",
        rival: Rival::Table,
        doc: "x86 tables with plain stores, for one thread; flushes left out",
        make: || Ok(Box::new(Multiarch::new()?)),
    },
    Peer {
        name: "x86_64",
        rival: Rival::Table,
        doc: "OffsetPageTable with plain stores, for one thread; flushes left out",
        make: || Ok(Box::new(Offset::new()?)),
    },
];

/// A zeroed page of this process.
fn page(pages: usize) -> Option<*mut u8> {
    let layout = Layout::from_size_align(pages << GRANULE_LG2, GRANULE as usize).ok()?;
    if layout.size() == 0 {
        return None;
    }
    // SAFETY: the layout's size is not zero
    let page = unsafe { alloc_zeroed(layout) };
    (!page.is_null()).then_some(page)
}

/// Gives the memory of [`page`] back.
///
/// # Safety
/// `at` came from [`page`] with the same number, and is not used any more.
unsafe fn free(at: *mut u8, pages: usize) {
    if let Ok(layout) = Layout::from_size_align(pages << GRANULE_LG2, GRANULE as usize) {
        // SAFETY: the caller's promise
        unsafe { dealloc(at, layout) }
    }
}

fn no_page() -> Failure {
    Failure::new("no memory for a page table")
}

/// Where a table peer maps, and what.
struct Places {
    free: Stacks,
    buffers: Buffers,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            free: Stacks::of_thread(0),
            buffers: Buffers::new(0),
        }
    }
}

impl Places {
    /// Pages to map, each with what to map there, as addresses.
    #[inline]
    fn take(
        &mut self,
        pages: PageCount,
    ) -> Result<(IovaRange, impl Iterator<Item = (u64, u64)> + use<>), Failure> {
        let range = IovaRange::new(self.free.pop(pages)?, pages);
        let buffer = self.buffers.next(pages);
        let at = move |nth| (range.first.0 + nth) << GRANULE_LG2;
        let to = move |nth| (buffer.0 + nth) << GRANULE_LG2;
        Ok((range, (0..pages.0).map(move |nth| (at(nth), to(nth)))))
    }
}

/// The pages of a range, as addresses.
#[inline]
fn addresses(range: IovaRange) -> impl Iterator<Item = u64> {
    (0..range.pages.0).map(move |nth| (range.first.0 + nth) << GRANULE_LG2)
}

/// As x86, without the instructions that flush TLBs, which a process may not execute.
struct Unflushed;

impl PagingMetaData for Unflushed {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 52;
    const VA_MAX_BITS: usize = 48;
    type VirtAddr = memory_addr::VirtAddr;
    #[inline]
    fn flush_tlb(_: Option<memory_addr::VirtAddr>) {}
}

/// Frames from this process.
struct Frames;

impl PagingHandler for Frames {
    fn alloc_frames(num: usize, align: usize) -> Option<memory_addr::PhysAddr> {
        let page = page(num).filter(|_| align <= GRANULE as usize)?;
        Some(memory_addr::PhysAddr::from_usize(page as usize))
    }
    fn dealloc_frames(at: memory_addr::PhysAddr, num: usize) {
        // SAFETY: the table gives back what `alloc_frames` gave it, once
        unsafe { free(at.as_usize() as *mut u8, num) }
    }
    #[inline]
    fn phys_to_virt(at: memory_addr::PhysAddr) -> memory_addr::VirtAddr {
        memory_addr::VirtAddr::from_usize(at.as_usize())
    }
}

struct Multiarch {
    table: PageTable64<Unflushed, X64PTE, Frames>,
    places: Places,
}

impl Multiarch {
    fn new() -> Result<Self, Failure> {
        let table = PageTable64::try_new();
        Ok(Multiarch {
            table: table.map_err(|_| no_page())?,
            places: Places::default(),
        })
    }
}

impl Exclusive for Multiarch {
    type Token = IovaRange;
    #[inline]
    fn take(&mut self, pages: PageCount) -> Result<IovaRange, Failure> {
        let (range, each) = self.places.take(pages)?;
        let mut cursor = self.table.cursor();
        for (at, to) in each {
            let (at, to) = (at as usize, to as usize);
            let mapped = cursor.map(at.into(), to.into(), PageSize::Size4K, MappingFlags::WRITE);
            mapped.map_err(|e| Failure::new(format!("{range}: {e:?}")))?;
        }
        Ok(range)
    }
    #[inline]
    fn give(&mut self, range: IovaRange) -> Result<(), Failure> {
        let mut cursor = self.table.cursor();
        for at in addresses(range) {
            let unmapped = cursor.unmap((at as usize).into());
            unmapped.map_err(|e| Failure::new(format!("{range}: {e:?}")))?;
        }
        self.places.free.push(range)
    }
}

/// All pages of one `x86_64` table, given back together.
#[derive(Default)]
struct Arena(Vec<*mut u8>);

// SAFETY: the pages are this arena's alone
unsafe impl Send for Arena {}

impl Drop for Arena {
    fn drop(&mut self) {
        for at in self.0.drain(..) {
            // SAFETY: each came from `page(1)`, and the table is not used after its arena
            unsafe { free(at, 1) }
        }
    }
}

// SAFETY: each frame is fresh, and has no other owner
unsafe impl FrameAllocator<Size4KiB> for Arena {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let page = page(1)?;
        self.0.push(page);
        let at = x86_64::PhysAddr::new(page as u64);
        PhysFrame::from_start_address(at).ok()
    }
}

struct Offset {
    table: OffsetPageTable<'static>,
    /// After the table, so that it is dropped after it.
    arena: Arena,
    places: Places,
}

impl Offset {
    fn new() -> Result<Self, Failure> {
        let mut arena = Arena::default();
        let root = page(1).ok_or_else(no_page)?;
        arena.0.push(root);
        // SAFETY: a zeroed page, aligned, is an empty table; it lives as long as the arena, which
        // outlives the only reference; and all frames lie at their own addresses
        let table = unsafe {
            let root = &mut *root.cast::<PageTable>();
            OffsetPageTable::new(root, x86_64::VirtAddr::zero())
        };
        Ok(Offset {
            table,
            arena,
            places: Places::default(),
        })
    }
}

#[inline]
fn page_at(at: u64) -> Page<Size4KiB> {
    Page::containing_address(x86_64::VirtAddr::new_truncate(at))
}

impl Exclusive for Offset {
    type Token = IovaRange;
    #[inline]
    fn take(&mut self, pages: PageCount) -> Result<IovaRange, Failure> {
        let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
        let (range, each) = self.places.take(pages)?;
        for (at, to) in each {
            let frame = PhysFrame::containing_address(x86_64::PhysAddr::new_truncate(to));
            // SAFETY: no processor walks this table
            let mapped = unsafe {
                let (page, arena) = (page_at(at), &mut self.arena);
                self.table.map_to(page, frame, flags, arena)
            };
            mapped
                .map_err(|e| Failure::new(format!("{range}: {e:?}")))?
                .ignore();
        }
        Ok(range)
    }
    #[inline]
    fn give(&mut self, range: IovaRange) -> Result<(), Failure> {
        for at in addresses(range) {
            let unmapped = self.table.unmap(page_at(at));
            let (_, flush) = unmapped.map_err(|e| Failure::new(format!("{range}: {e:?}")))?;
            flush.ignore();
        }
        self.places.free.push(range)
    }
}
