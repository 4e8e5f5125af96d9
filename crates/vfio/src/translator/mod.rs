// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The translator over a space that a kernel keeps: `Domain` works above it as above tables of our
//! own.
//!
//! # Theory
//!
//! ```text
//! install(range, runs)                clear(range)              submit(scope)
//!   runs that adjoin become one         the record goes;          take all that is pending,
//!   one call a run; where the kernel    its range is pending      sort it,
//!   is full, end what is pending                                  one call for each stretch
//!   and try once more                                             without a gap
//!   record the mapping                                            what fails stays pending, and
//!                                                                 fails the invalidations that
//!                                                                 should cover it
//! ```
//!
//! **An unmap is an invalidation.** The kernel removes a translation and flushes it in one call,
//! and returns when both are done. So `clear` only notes what must go, and the call is made when
//! the domain's policy starts an invalidation: at once under `strict`; under the deferred policies
//! for a batch at a time, where neighbours, which need not have been mapped together, go by one
//! call. Until then the device still reaches them, as it would reach what a cache holds: exposure,
//! P2's bounds and quarantine are the core's own, and nothing is said twice. If the kernel does not
//! remove something, no IOVA of it is handed out again, since its invalidation failed.
//!
//! **Mappings end whole.** Type 1, version 2, does not split a mapping, and iommufd neither. The
//! core ends what it mapped, so what is pending are whole mappings, and a stretch of them has no
//! mapping across its edges.
//!
//! **The limit of mappings** (65,535 in a container by default) counts runs, not pages. Runs of a
//! list that adjoin in memory are one; what is pending is ended before the kernel's `ENOSPC` is
//! believed. Neighbours that are mapped at different times are not merged: to replace two mappings
//! by one, both would have to go first, and a device that uses them would fault (P14).
//!
//! **Shared pages** (`identity`) are counted beside the kernel's tables, which do not count: see
//! `shared.rs`.
//!
//! **Records.** One for each mapping: its pages, for the address API's check and the audit. A
//! domain's memory beyond that is the kernel's.
//!
//! Locking: `turn -> pending`, `turn -> shared`; `records` alone. `turn` is held across the calls
//! that end mappings: a thread that finds its range taken by another waits for that one's call, and
//! then knows that it is done. `shared` is held across calls, `records` never. These are locks of
//! the process, not the platform's: threads sleep in them, as they do in the kernel's own.
//!
//! Not handled: signal handlers that map or unmap; large pages by choice (the kernel uses them
//! where memory is contiguous); dirty tracking; `IOMMU_IOAS_COPY`.

mod ending;
mod records;
mod refused;
mod shared;

pub use ending::Ending;
pub use refused::Refused;

use crate::{
    kernel::{Errno, MapCall},
    platform::DeviceMemory,
    space::AddressSpace,
};
use ioatlas_dma::{
    domain::{Domain, DomainConfig, DomainError, ReserveError},
    iova::AllocKind,
    platform::{Authority, TableFrame},
    table::{Census, Cleared, InstallCause, InstallError, LeafAttrs, RawError},
    translator::{AttachError, FastPath, Translator},
    units::*,
};
use records::{Record, Records};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A panic elsewhere is reported there; a mutex of ours guards nothing that is broken half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A space as a translator.
pub struct Vfio<S: AddressSpace> {
    id: DomainId,
    ending: Ending<S>,
    records: Mutex<Records>,
    calls: Mutex<MapCalls>,
}

#[derive(Clone, Copy, Default)]
struct MapCalls {
    made: u64,
    refused: u64,
}

/// What was asked of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls {
    /// Calls that map, also those that were refused.
    pub maps: u64,
    /// Of those, the refused.
    pub maps_refused: u64,
    /// Calls that unmap, also those that were refused.
    pub unmaps: u64,
    /// Of those, the refused.
    pub unmaps_refused: u64,
    /// Mappings that the kernel holds for us: what its limit counts.
    pub held: u64,
}

/// Why a domain over a space cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields and messages say it
pub enum VfioDomainError {
    /// The space's IOVAs are not those wanted, or the allocator cannot work there.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// What the host reserves could not be reserved.
    #[error("IOVA pages {hole}, which the host reserves: {cause}")]
    Hole {
        hole: IovaRange,
        cause: ReserveError,
    },
}

impl<S: AddressSpace> Vfio<S> {
    /// A translator over a space in which nothing is mapped yet.
    pub fn new<P: DeviceMemory>(p: &P, space: S) -> Self {
        Vfio {
            // the kernel tells domains apart by itself
            id: DomainId(p.unique() as u16),
            ending: Ending::new(space),
            records: Mutex::default(),
            calls: Mutex::default(),
        }
    }

    /// A domain over `space`, with what the host reserves reserved.
    ///
    /// # Errors
    /// [`VfioDomainError`]; the space is closed then.
    pub fn domain<P: DeviceMemory>(
        p: Arc<P>,
        space: S,
        config: DomainConfig,
    ) -> Result<Domain<P, Self>, VfioDomainError> {
        let translator = Vfio::new(&*p, space);
        let holes = translator.space().limits().holes();
        let whole = translator.space().limits().whole();
        let used = config.aperture.unwrap_or(whole);
        let domain = Domain::new(p, translator, config)?;
        for hole in holes {
            let first = hole.first.max(used.first);
            let end = hole.end().min(used.end());
            if first < end {
                let hole = IovaRange::new(first, PageCount(end.0 - first.0));
                let kept = domain.reserve(hole);
                kept.map_err(|cause| VfioDomainError::Hole { hole, cause })?;
            }
        }
        Ok(domain)
    }

    /// The space that mappings are made in.
    pub fn space(&self) -> &S {
        &self.ending.space
    }

    /// What was asked of the kernel. Exact when no other thread is active.
    pub fn calls(&self) -> Calls {
        let MapCalls { made, refused } = *locked(&self.calls);
        let unmaps = self.ending.calls();
        Calls {
            maps: made,
            maps_refused: refused,
            unmaps: unmaps.made,
            unmaps_refused: unmaps.refused,
            held: (made - refused).saturating_sub(unmaps.ended),
        }
    }

    /// One call; where the kernel is full, what is pending is ended first.
    fn map(&self, call: &MapCall) -> Result<(), Errno> {
        let once = || {
            // SAFETY: the memory is what the platform says devices may have (`DeviceMemory`).
            let mapped = unsafe { self.space().map(call) };
            let mut calls = locked(&self.calls);
            calls.made += 1;
            calls.refused += u64::from(mapped.is_err());
            mapped
        };
        match once() {
            // of mappings, or of memory that may be pinned; also if another thread ended it all
            // just now: then nothing is left to us, but there is room
            Err(Errno::NOSPC | Errno::NOMEM) => {
                self.ending.end_all();
                once()
            }
            mapped => mapped,
        }
    }

    /// Maps the run of memory at `at`.
    fn map_run<P: DeviceMemory>(
        &self,
        p: &P,
        at: IovaPage,
        run: PhysRun,
        perm: Perm,
    ) -> Result<(), InstallCause> {
        let memory = p.address(run).ok_or(InstallCause::NotMemory(run.first))?;
        let call = MapCall {
            iova: at.addr(),
            memory,
            len: ByteCount(run.pages.0 << GRANULE_LG2),
            perm,
        };
        self.map(&call).map_err(|errno| match errno {
            Errno::EXIST => InstallCause::AlreadyMapped(at),
            errno => InstallCause::Host(errno.0),
        })
    }
}

/// Joins runs that adjoin, and ends after `pages`.
struct Joined<I: Iterator<Item = PhysRun>> {
    runs: std::iter::Peekable<I>,
    left: u64,
}

impl<I: Iterator<Item = PhysRun>> Iterator for Joined<I> {
    type Item = PhysRun;
    fn next(&mut self) -> Option<PhysRun> {
        let mut run = self.runs.next().filter(|_| self.left > 0)?;
        let adjoins = |run: PhysRun| {
            move |next: &PhysRun| next.first.0 == run.first.0.wrapping_add(run.pages.0)
        };
        while let Some(next) = self.runs.next_if(adjoins(run)) {
            run.pages.0 = run.pages.0.saturating_add(next.pages.0);
        }
        run.pages.0 = run.pages.0.min(self.left);
        self.left -= run.pages.0;
        Some(run)
    }
}

fn joined<I: Iterator<Item = PhysRun>>(runs: I, pages: PageCount) -> Joined<I> {
    Joined {
        runs: runs.peekable(),
        left: pages.0,
    }
}

// SAFETY: nothing is done.
unsafe impl<P: DeviceMemory, S: AddressSpace> FastPath<P> for Vfio<S> {}

// SAFETY: the kernel maps what it is told, and its translations end by the calls of `Ending`; what
// stays in it is pending there until then. No frame comes out.
unsafe impl<P: DeviceMemory, S: AddressSpace> Translator<P> for Vfio<S> {
    fn platform(&self) -> Option<&Arc<P>> {
        None // the kernel has the tables
    }
    type Unit = Ending<S>;

    fn unit(&self) -> &Ending<S> {
        &self.ending
    }
    fn id(&self) -> DomainId {
        self.id
    }
    fn aperture(&self) -> IovaRange {
        self.space().limits().whole()
    }

    fn install(
        &self,
        _: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError> {
        let mut done = 0;
        let mut calls = 0;
        let failed = |done, cause| InstallError {
            done: PageCount(done),
            wanted: range.pages,
            cause,
        };
        if !self.space().limits().has(&range) {
            return Err(failed(0, InstallCause::Reserved(range.first)));
        }
        let mut result = Ok(());
        for run in joined(runs, range.pages) {
            let at = IovaPage(range.first.0 + done);
            let mapped = match leaf.kind {
                AllocKind::Shared => {
                    let part = IovaRange::new(at, run.pages);
                    let map =
                        |at, page| self.map_run(p, at, PhysRun::new(page, PageCount(1)), leaf.perm);
                    self.ending.share(part, run.first, map)
                }
                AllocKind::Dynamic | AllocKind::Fixed | AllocKind::Piece => self
                    .map_run(p, at, run, leaf.perm)
                    .map_err(|cause| (PageCount(0), cause)),
            };
            match mapped {
                Ok(()) => done += run.pages.0,
                Err((taken, cause)) => {
                    done += taken.0;
                    result = Err(cause);
                    break;
                }
            }
            calls += 1;
        }
        if done < range.pages.0 && result.is_ok() {
            result = Err(InstallCause::TooFewPages(IovaPage(range.first.0 + done)));
        }
        if leaf.kind != AllocKind::Shared && done > 0 {
            let record = Record::new(PageCount(done), leaf.kind, calls);
            locked(&self.records).insert(range.first, record);
        }
        result.map_err(|cause| failed(done, cause))
    }

    fn clear(
        &self,
        _: Authority,
        _p: &P,
        range: IovaRange,
        kind: AllocKind,
        _detached: impl FnMut(TableFrame),
    ) -> Cleared {
        if kind == AllocKind::Shared {
            return self.ending.unshare(range);
        }
        let whole = locked(&self.records).take_exactly(range);
        if let Some(record) = whole {
            self.ending.pend([(range, record)]);
            return Cleared {
                found: range.pages,
                gone: range.pages,
            };
        }
        let gone = locked(&self.records).take_within(range);
        let pages = gone.iter().map(|(range, _)| range.pages.0).sum();
        self.ending.pend(gone);
        Cleared {
            found: PageCount(pages),
            gone: PageCount(pages),
        }
    }

    fn give_up(&self, _: Authority, _p: &P, page: IovaPage) {
        locked(&self.records).give_up(page);
    }
    fn claim(&self, _: Authority, _p: &P, range: IovaRange) -> Result<AllocKind, RawError> {
        let whole = self.space().limits().whole();
        if range.pages.0 == 0 || !whole.contains(&range) {
            return Err(RawError::Outside(range, whole));
        }
        locked(&self.records).claim(range)
    }

    fn attach(&self, _: Authority, _p: &P, device: SourceId) -> Result<(), AttachError> {
        self.space().attach(device)
    }
    fn detach(&self, _: Authority, _p: &P, device: SourceId) -> Result<(), AttachError> {
        self.space().detach(device)
    }

    fn mappings(&self, _p: &P, within: IovaRange, mut each: impl FnMut(IovaRange, AllocKind)) {
        for (range, record) in locked(&self.records).all() {
            if within.contains(&IovaRange::new(range.first, PageCount(1))) {
                each(range, record.kind());
            }
        }
    }
    /// The kernel has the tables: what is mapped is pending, for the flush that follows.
    fn dismantle(&mut self, _: Authority, _p: &P, _detached: impl FnMut(TableFrame)) {
        let whole = IovaRange::new(IovaPage(0), PageCount(u64::MAX));
        let gone = locked(&self.records).take_within(whole);
        self.ending.pend(gone);
        self.ending.unshare_all();
    }
    fn retire_id(&self, _: Authority, _p: &P) {}

    fn audit(&self, _p: &P, _shared: Option<IovaRange>) -> Result<Census, String> {
        let limits = self.space().limits();
        let own = locked(&self.records).audit(limits)?;
        let (pages, references) = self.ending.shared_pages();
        self.ending.audit()?;
        Ok(Census {
            pages: PageCount(own.0 + pages.0),
            references: PageCount(own.0 + references.0),
            frames: 0,
        })
    }
}
