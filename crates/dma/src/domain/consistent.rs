// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Consistent memory: allocated, mapped both ways, shared with the device for long (rings,
//! mailboxes).

use super::{frames::zeroed_list, map::Place, *};
use crate::{
    iova::{IovaAlloc, Limits, Request},
    platform::room::{NoMemory, vec_of},
};
use core::ptr::NonNull;

/// Consistent memory and its mapping.
#[must_use = "dropped consistent memory stays allocated and mapped"]
#[derive(PartialEq, Eq, Debug)]
pub struct Consistent {
    mapping: Mapping,
    frames: Vec<TableFrame>,
}

impl Consistent {
    /// Where the device finds it.
    pub fn iova(&self) -> Iova {
        self.mapping.iova()
    }
    /// How much it is.
    pub fn len(&self) -> ByteCount {
        self.mapping.len()
    }
    /// Never: an empty allocation is refused.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// The frames, in the order of their IOVAs; not contiguous in physical memory.
    pub fn frames(&self) -> &[TableFrame] {
        &self.frames
    }
    /// The mapping, and the frames that were to be freed with it.
    pub fn into_parts(self) -> (Mapping, Vec<TableFrame>) {
        (self.mapping, self.frames)
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Allocates and maps `len` bytes of zeroed memory, a multiple of 4096. The CPU
    /// reaches it by [`Domain::words`].
    ///
    /// # Errors
    /// [`MapError`]; nothing is allocated then.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn alloc_consistent(&self, len: ByteCount) -> Result<Consistent, MapError> {
        if len.0 == 0 {
            return Err(BufferError::Empty { segment: 0 }.into());
        }
        if !len.0.is_multiple_of(GRANULE) {
            return Err(BufferError::NotGranules { len }.into());
        }
        let p = &*self.platform;
        let wanted = PageCount(len.0 / GRANULE);
        // IOVAs first: a length that no aperture has must not take every frame before it is refused
        let alloc = self.alloc(&Request::pages(wanted))?;
        let (fresh, list) = match zeroed_list(p, wanted, PhysRange::page) {
            Ok(made) => made,
            Err(error) => return Err(self.unused(alloc, error)),
        };
        self.share(alloc, fresh, &list)
    }

    /// As many frames that adjoin, and where the CPU finds them.
    pub(crate) fn alloc_contiguous(
        &self,
        wanted: PageCount,
        limits: Limits,
    ) -> Result<(Consistent, NonNull<u8>), MapError>
    where
        P: ContiguousMemory,
    {
        if wanted.0 == 0 {
            return Err(BufferError::Empty { segment: 0 }.into());
        }
        let p = &*self.platform;
        let request = Request {
            limits,
            ..Request::pages(wanted)
        };
        let alloc = self.alloc(&request)?;
        let (run, mut fresh) = match self.frame_run(wanted) {
            Ok(made) => made,
            Err(error) => return Err(self.unused(alloc, error)),
        };
        let (at, first) = (run.run().first.addr(), p.frames_ptr(&run));
        let list = [PhysRange::new(at, ByteCount(wanted.0 * GRANULE))];
        fresh.extend(run.into_frames());
        Ok((self.share(alloc, fresh, &list)?, first))
    }

    /// A run of frames, and room for all of them.
    fn frame_run(&self, wanted: PageCount) -> Result<(FreshRun, Vec<FreshFrame>), MapError>
    where
        P: ContiguousMemory,
    {
        let p = &*self.platform;
        let run = self.or_flushed(|| p.frames_alloc(wanted));
        let run = run.ok_or(MapError::NoFrameRun { wanted })?;
        // after the frames: a count from outside must not allocate before there are as many
        match vec_of(wanted.0 as usize) {
            Ok(room) => Ok((run, room)),
            Err(NoMemory) => {
                run.into_frames()
                    .for_each(|frame| p.frame_free(OURS, frame));
                Err(MapError::NoMemory)
            }
        }
    }

    /// Frees IOVAs for which there were no frames.
    fn unused(&self, alloc: IovaAlloc, error: MapError) -> MapError {
        let none = IovaRange::new(alloc.range().first, PageCount(0));
        self.undo(alloc, none).err().unwrap_or(error)
    }

    /// Maps frames of our own for both sides.
    fn share(
        &self,
        alloc: IovaAlloc,
        fresh: Vec<FreshFrame>,
        list: &[PhysRange],
    ) -> Result<Consistent, MapError> {
        let place = Place {
            order: ListOrder::Ascending,
            len: ByteCount(fresh.len() as u64 * GRANULE),
            direction: Direction::Bidirectional,
            lifetime: Lifetime::default(),
        };
        match self.install(alloc, list, place) {
            Ok(mapping) => {
                self.colour.allocated(mapping.alloc.range().pages);
                Ok(Consistent {
                    mapping,
                    frames: fresh.into_iter().map(FreshFrame::publish).collect(),
                })
            }
            Err(error @ MapError::Invalidate(_)) => {
                // undo could not flush: a cache may hold these frames, so they are as good as
                // quarantined
                self.quarantine.lose_frames(fresh.len() as u64);
                Err(error)
            }
            Err(error) => {
                self.give_back(fresh);
                Err(error)
            }
        }
    }

    /// Unmaps and frees consistent memory; the frames are freed with the IOVAs, after the flush.
    ///
    /// # Errors
    /// [`UnmapError`], as from [`Domain::unmap`].
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn free_consistent(&self, memory: Consistent) -> Result<(), UnmapError> {
        if memory.mapping.key != self.key {
            return Err(UnmapError::ForeignMemory(memory));
        }
        let Consistent { mapping, frames } = memory;
        let range = mapping.range();
        self.end(mapping.alloc, range, frames)
    }

    /// Ends a mapping, and frees `frames` once no translation leads there: at once under `strict`,
    /// with the next flush under a deferred policy, in a quarantine never. For those who map memory
    /// of the platform, and would have to [flush](Self::flush) before they free it.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, platform::*, translator::*, units::*};
    /// # use ioatlas_host::*;
    /// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Domain::new(p.clone(), table, DomainConfig::default())?;
    /// let frame = p.frame_alloc().expect("a frame").publish();
    /// let mapping = domain.map(PhysRange::page(frame.page()), Direction::FromDevice)?;
    /// // ... when the device is done
    /// // SAFETY: the frame is of this platform, and only this mapping led there.
    /// unsafe { domain.unmap_then(mapping, vec![frame])? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`UnmapError::ForeignMemory`], from which `Consistent::into_parts` brings both back;
    /// others as from [`unmap`](Self::unmap): after [`UnmapError::Invalidate`] the frames are
    /// quarantined.
    ///
    /// # Safety
    /// The frames are of this domain's platform; nothing else has them mapped, in this domain or
    /// another, and no table or device leads to them but by this mapping.
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn unmap_then(
        &self,
        mapping: Mapping,
        frames: Vec<TableFrame>,
    ) -> Result<(), UnmapError> {
        self.free_consistent(Consistent { mapping, frames })
    }

    /// The 512 words of frame `index` of consistent memory. They are there as long
    /// as the memory is:
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, platform::*, translator::*, units::*};
    /// # use ioatlas_host::*;
    /// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Domain::new(p, table, DomainConfig::default())?;
    /// let ring = domain.alloc_consistent(ByteCount(GRANULE))?;
    /// let words = domain.words(&ring, 0);
    /// words[0].store(1, Ordering::Relaxed);
    /// domain.free_consistent(ring)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Used after it was freed they would be other memory, perhaps a live page table:
    ///
    /// ```compile_fail,E0505
    /// # use ioatlas_dma::{domain::*, platform::*, translator::*, units::*};
    /// # use ioatlas_host::*;
    /// # let p = std::sync::Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Domain::new(p, table, DomainConfig::default())?;
    /// let ring = domain.alloc_consistent(ByteCount(GRANULE))?;
    /// let words = domain.words(&ring, 0);
    /// domain.free_consistent(ring)?;
    /// words[0].store(1, Ordering::Relaxed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such frame, or the memory is another domain's.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn words<'m>(&'m self, memory: &'m Consistent, index: usize) -> &'m [P::A64] {
        assert!(memory.mapping.key == self.key, "another domain's memory");
        self.platform.entries(OURS, memory.frames[index].by_ref())
    }

    /// What `frames` gives, or gives behind a flush where it gives nothing and frames of what was
    /// freed wait for one.
    pub(crate) fn or_flushed<F>(&self, frames: impl Fn() -> Option<F>) -> Option<F> {
        frames().or_else(|| {
            let waits = self.stats().retired.frames > 0;
            (waits && self.flush().is_ok()).then(&frames)?
        })
    }

    /// Frees frames of a map that was undone. Under a deferred policy the device may still reach
    /// the part that was written, so they are retired like any other.
    pub(crate) fn give_back(&self, fresh: Vec<FreshFrame>) {
        let engine = self.engine();
        let mut batch = self.policy.begin(None);
        for frame in fresh {
            batch.add_frame(&engine, frame.publish());
        }
        batch.finish_frames(&engine);
    }
}
