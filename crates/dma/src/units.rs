// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Units. Addresses are bytes, pages are granules of 4 KiB, ranges are half open.
//!
//! No raw `u64` crosses a public API of the core; what a number counts is its type.

use core::fmt;

/// Log2 of the granule, the smallest mappable unit (4 KiB).
pub const GRANULE_LG2: u32 = 12;
/// The granule in bytes.
pub const GRANULE: u64 = 1 << GRANULE_LG2;
/// Physical addresses have at most this many bits (VT-d 4.1 §9.8: HAW is at most 52).
pub const PHYS_BITS: u32 = 52;

/// A device-visible address in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Iova(pub u64);

/// The number of an IOVA granule: address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IovaPage(pub u64);

/// A physical address in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PhysAddr(pub u64);

/// The number of a physical granule: address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PhysPage(pub u64);

/// A number of granules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageCount(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteCount(pub u64);

/// A point in time of the host's monotonic clock, in nanoseconds. The core never reads a
/// clock; it is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TimeNs(pub u64);

/// The number of a CPU (or of a registered thread), from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuIndex(pub usize);

/// The identifier by which hardware tags cached translations of one domain (VT-d 4.1 §9.3, DID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DomainId(pub u16);

/// A requester: bus in bits 15..8, device in 7..3, function in 2..0 (VT-d 4.1 §3.4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceId(pub u16);

impl SourceId {
    /// A PCI function.
    ///
    /// ```
    /// # use ioatlas_dma::units::SourceId;
    /// assert_eq!(SourceId::pci(0, 4, 0).to_string(), "00:04.0");
    /// ```
    ///
    /// # Panics
    /// If `device` is over 31, or `function` over 7.
    pub const fn pci(bus: u8, device: u8, function: u8) -> Self {
        assert!(device < 32 && function < 8, "no PCI function");
        SourceId((bus as u16) << 8 | (device as u16) << 3 | function as u16)
    }
}

/// Which way data flows, as a driver says it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The device reads (transmit, write to disk).
    ToDevice,
    /// The device writes (receive, read from disk).
    FromDevice,
    /// Both, and every consistent allocation.
    Bidirectional,
}

/// What a translation lets the device do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Perm {
    /// The device may read memory.
    Read,
    /// The device may write memory.
    Write,
    /// The device may read and write memory.
    ReadWrite,
}

/// What one device access does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    /// The device reads memory.
    Read,
    /// The device writes memory.
    Write,
}

impl Direction {
    /// The least permission that serves this direction.
    pub fn perm(self) -> Perm {
        match self {
            Direction::ToDevice => Perm::Read,
            Direction::FromDevice => Perm::Write,
            Direction::Bidirectional => Perm::ReadWrite,
        }
    }
}

impl Perm {
    /// Whether an access of `kind` is permitted.
    pub fn allows(self, kind: AccessKind) -> bool {
        matches!(
            (self, kind),
            (Perm::ReadWrite, _)
                | (Perm::Read, AccessKind::Read)
                | (Perm::Write, AccessKind::Write)
        )
    }
}

impl Iova {
    /// The granule this address lies in.
    pub fn page(self) -> IovaPage {
        IovaPage(self.0 >> GRANULE_LG2)
    }
    /// Bytes from the start of the granule.
    pub fn offset(self) -> u64 {
        self.0 & (GRANULE - 1)
    }
}

impl IovaPage {
    /// The address of the granule's first byte.
    pub fn addr(self) -> Iova {
        Iova(self.0 << GRANULE_LG2)
    }
}

impl PhysAddr {
    /// The granule this address lies in.
    pub fn page(self) -> PhysPage {
        PhysPage(self.0 >> GRANULE_LG2)
    }
    /// Bytes from the start of the granule.
    pub fn offset(self) -> u64 {
        self.0 & (GRANULE - 1)
    }
}

impl PhysPage {
    /// The address of the granule's first byte.
    pub fn addr(self) -> PhysAddr {
        PhysAddr(self.0 << GRANULE_LG2)
    }
}

/// A buffer: `len` physically contiguous bytes from `addr`. It may begin and end inside a granule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct PhysRange {
    pub addr: PhysAddr,
    pub len: ByteCount,
}

impl PhysRange {
    /// The buffer of `len` bytes at `addr`.
    pub fn new(addr: PhysAddr, len: ByteCount) -> Self {
        PhysRange { addr, len }
    }
    /// The one whole granule `page`.
    pub fn page(page: PhysPage) -> Self {
        PhysRange::new(page.addr(), ByteCount(GRANULE))
    }
    /// The address just past the last byte, or `None` where it is past the physical address width.
    pub fn end(&self) -> Option<PhysAddr> {
        let end = self.addr.0.checked_add(self.len.0)?;
        (end <= 1 << PHYS_BITS).then_some(PhysAddr(end))
    }
    /// How many granules the buffer touches. Meaningful only where [`end`](Self::end) is some.
    pub fn pages(&self) -> PageCount {
        pages_touched(self.addr.offset(), self.len)
    }
}

/// `pages` physically contiguous granules from `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct PhysRun {
    pub first: PhysPage,
    pub pages: PageCount,
}

impl PhysRun {
    /// `pages` granules from `first`.
    pub fn new(first: PhysPage, pages: PageCount) -> Self {
        PhysRun { first, pages }
    }
    /// Each of its granules, in order.
    pub fn iter(self) -> impl Iterator<Item = PhysPage> + Clone {
        (self.first.0..self.first.0 + self.pages.0).map(PhysPage)
    }
}

impl PhysRange {
    /// The granules that the buffer touches.
    pub fn run(&self) -> PhysRun {
        PhysRun::new(self.addr.page(), self.pages())
    }
}

/// Granules touched by `len` bytes that begin `offset` bytes into a granule; `len` must
/// not overflow with it.
pub(crate) fn pages_touched(offset: u64, len: ByteCount) -> PageCount {
    PageCount((offset + len.0).div_ceil(GRANULE))
}

/// `pages` granules from `first`, half open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct IovaRange {
    pub first: IovaPage,
    pub pages: PageCount,
}

impl IovaRange {
    /// `pages` granules from `first`.
    pub fn new(first: IovaPage, pages: PageCount) -> Self {
        IovaRange { first, pages }
    }
    /// The granule just past the last; held at the largest number where it would wrap, so such
    /// a range fits nowhere.
    pub fn end(&self) -> IovaPage {
        IovaPage(self.first.0.saturating_add(self.pages.0))
    }
    /// Whether all of `other` lies inside.
    pub fn contains(&self, other: &IovaRange) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }
    /// Whether any granule is in both.
    pub fn overlaps(&self, other: &IovaRange) -> bool {
        self.first < other.end() && other.first < self.end()
    }
    /// The smallest range that contains both.
    #[must_use]
    pub fn around(&self, other: &IovaRange) -> IovaRange {
        let first = self.first.min(other.first);
        let end = self.end().max(other.end());
        IovaRange::new(first, PageCount(end.0 - first.0))
    }
    /// The granules of the range, in ascending order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = IovaPage> {
        (self.first.0..self.end().0).map(IovaPage)
    }
}

macro_rules! hex_display {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )*};
}
hex_display!(Iova, IovaPage, PhysAddr, PhysPage);

macro_rules! count_display {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}
count_display!(PageCount, ByteCount, DomainId);

impl fmt::Display for IovaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.first.0, self.pages.0)
    }
}

impl fmt::Display for PhysRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{} bytes", self.addr.0, self.len.0)
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bus, dev, func) = (self.0 >> 8, self.0 >> 3 & 31, self.0 & 7);
        write!(f, "{bus:02x}:{dev:02x}.{func}")
    }
}

/// A list of one.
impl AsRef<[PhysRange]> for PhysRange {
    #[inline]
    fn as_ref(&self) -> &[PhysRange] {
        core::slice::from_ref(self)
    }
}
