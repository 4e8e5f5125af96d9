// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Typed buffers: memory whose CPU view cannot be had while the device owns it.
//!
//! A [`CpuBuffer`] owns frames of the platform, and the CPU may read and write it. [`Client::give`]
//! consumes it and returns a [`DeviceBuffer`], which has an address for the device and no view at
//! all; [`Client::take_back`] consumes that and gives the `CpuBuffer` back. In between,
//! [`Client::with_cpu`] lends a [`CpuView`] of some bytes, synchronised before and after; the
//! direction of the buffer is a type, so what may be done with the view is checked when it is
//! compiled.
//!
//! Views copy bytes out and in. They never make a `&[u8]` or `&mut [u8]` of the memory itself: a
//! device that is not trusted, or that an invalidation has not reached yet, may write there at any
//! time, and a reference to memory that changes is undefined behaviour. What was read out is
//! stable.
//!
//! A buffer that a device has reached in its own place may stay in translation caches for as long
//! as the policy defers invalidations. The CPU may use it meanwhile, but its frames must not become
//! anything else. So it remembers the domain: dropping it retires its frames there, and the
//! platform has them back after a flush. Dropping it may wait for an invalidation then, as an unmap
//! may, and keeps the domain alive until then. What was never given, or only to a client that
//! always bounces, or was taken back under a policy that flushes in each unmap, is free at once.
//!
//! ```
//! use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::Uncached, units::*};
//! use ioatlas_host::*;
//! # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
//! # use ioatlas_dma::translator::Paged;
//! # use std::sync::Arc;
//! # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
//! # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
//! # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
//! # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
//! # let nic = dma.client(ClientConfig::default().placement(Placement::Always))?;
//! let packet: CpuBuffer<_, ToDevice> = nic.buffer(ByteCount(1500)).expect("memory");
//! packet.write(ByteCount(0), b"hello")?;
//! let sent = nic.give(packet)?;
//! // ... tell the device sent.iova() ...
//! let packet = nic.take_back(sent)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! While the device owns it there is nothing to write to:
//!
//! ```compile_fail,E0599
//! use ioatlas_dma::{dma_api::*, units::*};
//! use ioatlas_host::Host;
//! fn rewrite(sent: &DeviceBuffer<Host, ToDevice>) {
//!     sent.write(ByteCount(0), b"jello").unwrap();
//! }
//! ```
//!
//! What was given away is gone:
//!
//! ```compile_fail,E0382
//! use ioatlas_dma::{dma_api::*, translator::Translator, units::*};
//! use ioatlas_host::Host;
//! fn send<T: Translator<Host>>(nic: &Client<Host, T>, packet: CpuBuffer<Host, ToDevice>) {
//!     let sent = nic.give(packet).unwrap();
//!     packet.write(ByteCount(0), b"jello").unwrap();
//! }
//! ```
//!
//! And what the device only reads is not there to be looked at for an answer:
//!
//! ```compile_fail,E0599
//! use ioatlas_dma::{dma_api::*, units::*};
//! use ioatlas_host::Host;
//! fn answer(view: &CpuView<'_, Host, ToDevice>) {
//!     view.read(ByteCount(0), &mut [0; 4]).unwrap();
//! }
//! ```

use super::*;
use crate::{
    domain::{MapError, zeroed_frames},
    invalidation::{DomainKey, InvalidateError},
    units::*,
};
use core::{marker::PhantomData, mem::ManuallyDrop};

/// A direction, as a type.
pub trait Way: sealed::Sealed {
    /// The direction that the type stands for.
    const DIRECTION: Direction;
}
/// A direction in which the device writes.
pub trait DeviceWrites: Way {}
/// A direction in which the device reads.
pub trait DeviceReads: Way {}

/// The device reads ([`Direction::ToDevice`]).
#[derive(Debug)]
pub enum ToDevice {}
/// The device writes ([`Direction::FromDevice`]).
#[derive(Debug)]
pub enum FromDevice {}
/// The device reads and writes ([`Direction::Bidirectional`]).
#[derive(Debug)]
pub enum BothWays {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ToDevice {}
    impl Sealed for super::FromDevice {}
    impl Sealed for super::BothWays {}
}
impl Way for ToDevice {
    const DIRECTION: Direction = Direction::ToDevice;
}
impl Way for FromDevice {
    const DIRECTION: Direction = Direction::FromDevice;
}
impl Way for BothWays {
    const DIRECTION: Direction = Direction::Bidirectional;
}
impl DeviceReads for ToDevice {}
impl DeviceReads for BothWays {}
impl DeviceWrites for FromDevice {}
impl DeviceWrites for BothWays {}

/// What is mapped of a buffer.
type Segments = Lent<Arc<[PhysRange]>>;

/// Frames that are freed once nothing uses them any more.
struct Memory<P: CopyMemory> {
    platform: Arc<P>,
    frames: Vec<FreshFrame>,
    list: Arc<[PhysRange]>,
    len: ByteCount,
    /// The domain by which devices may still reach the frames, though they are unmapped.
    seen: Option<Arc<dyn Seen>>,
}

/// A domain, whatever its translator is.
trait Seen: Send + Sync {
    fn key(&self) -> DomainKey;
    /// Flushes whatever was unmapped before.
    fn forget(&self) -> Result<(), InvalidateError>;
    /// Takes unmapped frames, which are free once they are flushed.
    fn take(&self, frames: Vec<FreshFrame>);
}

impl<P: Platform, T: Translator<P>> Seen for Domain<P, T> {
    fn key(&self) -> DomainKey {
        Domain::key(self)
    }
    fn forget(&self) -> Result<(), InvalidateError> {
        self.flush_unmapped()
    }
    fn take(&self, frames: Vec<FreshFrame>) {
        self.give_back(frames);
    }
}

impl<P: CopyMemory> Drop for Memory<P> {
    fn drop(&mut self) {
        let frames = core::mem::take(&mut self.frames);
        match self.seen.take() {
            Some(domain) => domain.take(frames),
            None => frames
                .into_iter()
                .for_each(|frame| self.platform.frame_free(OURS, frame)),
        }
    }
}

/// Memory that the CPU owns.
pub struct CpuBuffer<P: CopyMemory, W> {
    memory: Memory<P>,
    way: PhantomData<W>,
}

/// The same memory while the device owns it. Dropping it leaves it mapped, and its memory
/// allocated, until the domain ends.
#[must_use = "a dropped buffer stays mapped, and its memory is lost"]
pub struct DeviceBuffer<P: CopyMemory, W> {
    memory: ManuallyDrop<Memory<P>>,
    mapping: Option<DmaMapping<Segments>>,
    /// Whether it is mapped where it is, or that was tried first: the client that takes it back may
    /// be another than the one that gave it.
    was_direct: bool,
    way: PhantomData<W>,
}

/// Some bytes of a buffer that the device owns, lent to the CPU between two synchronisations.
pub struct CpuView<'b, P: CopyMemory, W> {
    memory: &'b Memory<P>,
    span: Span,
    way: PhantomData<W>,
}

impl<P: CopyMemory> Memory<P> {
    /// Each piece of `span` that is contiguous: where it is, and which of the bytes.
    fn pieces(
        &self,
        span: Span,
    ) -> Result<impl Iterator<Item = (PhysAddr, core::ops::Range<usize>)>, SyncError> {
        let len = self.len;
        match span.end() {
            Some(end) if end <= len => {}
            _ => return Err(SyncError::Outside { span, len }),
        }
        let (mut at, end) = (span.at.0, span.at.0 + span.len.0);
        Ok(core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let inside = at & (GRANULE - 1);
            let here = (end - at).min(GRANULE - inside);
            let frame = self.frames.get((at >> GRANULE_LG2) as usize)?;
            let from = (at - span.at.0) as usize;
            at += here;
            let to = PhysAddr(frame.page().addr().0 + inside);
            Some((to, from..from + here as usize))
        }))
    }
    fn read(&self, at: ByteCount, into: &mut [u8]) -> Result<(), SyncError> {
        let span = Span::new(at, ByteCount(into.len() as u64));
        for (from, part) in self.pieces(span)? {
            self.platform.read(OURS, from, &mut into[part])?;
        }
        Ok(())
    }
    fn write(&self, at: ByteCount, from: &[u8]) -> Result<(), SyncError> {
        let span = Span::new(at, ByteCount(from.len() as u64));
        for (to, part) in self.pieces(span)? {
            self.platform.write(OURS, &from[part], to)?;
        }
        Ok(())
    }
}

impl<P: CopyMemory, W> CpuBuffer<P, W> {
    /// Where its bytes are in physical memory, each 4 KiB a segment, in order. They stay there
    /// while a device owns it.
    pub fn list(&self) -> &Arc<[PhysRange]> {
        &self.memory.list
    }
    /// How many bytes it is.
    pub fn len(&self) -> ByteCount {
        self.memory.len
    }
    /// Never: an empty buffer cannot be made.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Copies bytes out, from byte `at` on.
    ///
    /// # Errors
    /// [`SyncError::Outside`]; nothing is read then.
    pub fn read(&self, at: ByteCount, into: &mut [u8]) -> Result<(), SyncError> {
        self.memory.read(at, into)
    }
    /// Copies bytes in, from byte `at` on.
    ///
    /// # Errors
    /// [`SyncError::Outside`]; nothing is written then.
    pub fn write(&self, at: ByteCount, from: &[u8]) -> Result<(), SyncError> {
        self.memory.write(at, from)
    }
    /// The same memory for another direction.
    pub fn turned<V: Way>(self) -> CpuBuffer<P, V> {
        CpuBuffer {
            memory: self.memory,
            way: PhantomData,
        }
    }
}

impl<P: CopyMemory, W> DeviceBuffer<P, W> {
    /// The address of the first byte. The others follow it, unless the client's placement maps
    /// segments by themselves ([`Placement::SingleUse`]) or its domain lays lists out
    /// downwards: then [`segments`](Self::segments) tells.
    pub fn iova(&self) -> Iova {
        let mapping = self.mapping.as_ref();
        mapping.map_or(Iova(0), DmaMapping::iova) // it has one for as long as anybody has it
    }
    /// Whether the device reaches a copy, at least of some of it.
    pub fn is_bounced(&self) -> bool {
        self.mapping.as_ref().is_some_and(DmaMapping::is_bounced)
    }
    /// Where the device finds each 4 KiB of it, in order.
    pub fn segments(&self) -> impl Iterator<Item = Iova> + '_ {
        self.mapping.iter().flat_map(DmaMapping::segments)
    }
    /// How many bytes it is.
    pub fn len(&self) -> ByteCount {
        self.memory.len
    }
    /// Always false: no buffer of length 0 is allocated.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl<P: CopyMemory, W: DeviceWrites> CpuView<'_, P, W> {
    /// Copies out what the device wrote, from byte `at` of the view on.
    ///
    /// # Errors
    /// [`SyncError::Outside`], if the bytes do not all lie within the view.
    pub fn read(&self, at: ByteCount, into: &mut [u8]) -> Result<(), SyncError> {
        let at = self.within(at, into.len())?;
        self.memory.read(at, into)
    }
}

impl<P: CopyMemory, W: DeviceReads> CpuView<'_, P, W> {
    /// Copies in what the device is to read, from byte `at` of the view on.
    ///
    /// # Errors
    /// [`SyncError::Outside`], if the bytes do not all lie within the view.
    pub fn write(&self, at: ByteCount, from: &[u8]) -> Result<(), SyncError> {
        let at = self.within(at, from.len())?;
        self.memory.write(at, from)
    }
}

impl<P: CopyMemory, W> CpuView<'_, P, W> {
    fn within(&self, at: ByteCount, len: usize) -> Result<ByteCount, SyncError> {
        let span = Span::new(at, ByteCount(len as u64));
        match span.end() {
            Some(end) if end <= self.span.len => Ok(ByteCount(self.span.at.0 + at.0)),
            _ => Err(SyncError::Outside {
                span,
                len: self.span.len,
            }),
        }
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// A zeroed buffer, or nothing where there is no memory for it, it is longer than all addresses
    /// that the device could be given, or nothing is asked for. Its frames need not be contiguous.
    /// Where none are left and some of the domain wait for a flush, it flushes them.
    pub fn buffer<W: Way>(&self, len: ByteCount) -> Option<CpuBuffer<P, W>> {
        if len.0 == 0 || len.0 > 1 << PHYS_BITS {
            return None;
        }
        let domain = self.dma().domain();
        let platform = domain.platform().clone();
        let pages = PageCount(len.0.div_ceil(GRANULE));
        // what no range of IOVAs could hold must not take every frame before it is refused
        let end = self.config().limits.end.unwrap_or(IovaPage(u64::MAX));
        if pages > domain.aperture().pages || pages.0 > end.0 {
            return None;
        }
        let frames = domain.or_flushed(|| zeroed_frames(&*platform, pages).ok())?;
        let mut left = len.0;
        let list = frames.iter().map(|frame| {
            let here = left.min(GRANULE);
            left -= here;
            PhysRange::new(frame.page().addr(), ByteCount(here))
        });
        let list = list.collect();
        Some(CpuBuffer {
            memory: Memory {
                platform,
                frames,
                list,
                len,
                seen: None,
            },
            way: PhantomData,
        })
    }

    /// Lets the device have it. If a device of another domain may still reach it, that
    /// domain is flushed first.
    ///
    /// # Errors
    /// [`DmaMapError`]; the buffer's memory is freed, once no translation cache leads there.
    pub fn give<W: Way>(&self, buffer: CpuBuffer<P, W>) -> Result<DeviceBuffer<P, W>, DmaMapError> {
        let mut memory = buffer.memory;
        let domain = self.dma().domain();
        // the same page may be a live table there
        if !same(&memory.platform, domain.platform()) {
            return Err(DmaMapError::OtherPlatform);
        }
        // what this domain has seen, it still has where the buffer is bounced now
        if let Some(other) = memory.seen.take_if(|other| other.key() != domain.key())
            && let Err(cause) = other.forget()
        {
            memory.seen = Some(other);
            return Err(DmaMapError::Direct(MapError::Invalidate(cause)));
        }
        // a watch or clock that panics must not free what is mapped already
        let mut memory = ManuallyDrop::new(memory);
        match self.map_sg(Lent::ours(memory.list.clone()), W::DIRECTION) {
            Ok(mapping) => Ok(DeviceBuffer {
                memory,
                mapping: Some(mapping),
                was_direct: self.config().placement != Placement::Always,
                way: PhantomData,
            }),
            Err(error) => {
                // part of it may have been mapped and undone, which is flushed when the policy says
                domain.give_back(core::mem::take(&mut memory.frames));
                memory.seen = None;
                drop(ManuallyDrop::into_inner(memory));
                Err(error)
            }
        }
    }

    /// Takes it from the device, with what the device wrote.
    ///
    /// Under a deferred invalidation policy a device may write to memory that was mapped directly
    /// for as long as that policy's [exposure](crate::policy::PolicyConfig::exposure); the frames
    /// stay this buffer's, and are freed after a flush.
    ///
    /// # Errors
    /// [`DmaUnmapError`]. As the device may reach the memory still, it is lost.
    pub fn take_back<W: Way>(
        &self,
        mut buffer: DeviceBuffer<P, W>,
    ) -> Result<CpuBuffer<P, W>, DmaUnmapError<Segments>> {
        let domain = self.dma().domain();
        if let Some(mapping) = buffer.mapping.take() {
            self.unmap(mapping)?;
        }
        let mut memory = ManuallyDrop::into_inner(buffer.memory);
        if buffer.was_direct && domain.may_be_cached() {
            memory.seen = Some(domain.clone());
        }
        Ok(CpuBuffer {
            memory,
            way: PhantomData,
        })
    }

    /// Lends `span` of a buffer that the device owns to the CPU: what the device wrote there is
    /// brought first, what the CPU wrote is shown to the device after.
    ///
    /// # Errors
    /// [`SyncError`]. `work` has run if it was showing its bytes to the device that failed.
    pub fn with_cpu<W: Way, R>(
        &self,
        buffer: &mut DeviceBuffer<P, W>,
        span: Span,
        work: impl FnOnce(&CpuView<'_, P, W>) -> R,
    ) -> Result<R, SyncError> {
        let Some(mapping) = &buffer.mapping else {
            return Err(SyncError::Outside {
                span,
                len: ByteCount(0),
            });
        };
        self.sync_for_cpu(mapping, span)?;
        let view = CpuView {
            memory: &buffer.memory,
            span,
            way: PhantomData,
        };
        let result = work(&view);
        self.sync_for_device(mapping, span)?;
        Ok(result)
    }
}
