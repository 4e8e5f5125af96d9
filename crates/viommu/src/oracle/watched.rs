// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A domain whose calls are reported to the oracle, before and after.

use super::{Bounds, DomainSerial, Oracle, Property, ledger::Stage};
use ioatlas_dma::{
    domain::*,
    invalidation::InvalidateError,
    platform::{DedicatedMemory, Platform, TableFrame},
    translator::{AttachError, Translator},
    units::*,
};
use std::sync::Arc;

/// `Domain`, watched. The calls are those of the domain.
pub struct Watched<P: Platform, T: Translator<P>> {
    pub(super) domain: Arc<Domain<P, T>>,
    pub(super) oracle: Arc<Oracle>,
    pub(super) serial: DomainSerial,
    pub(super) bounds: Bounds,
}

impl<P: Platform, T: Translator<P>> Watched<P, T> {
    /// Watches `domain`, in which nothing is mapped yet. `bounds` is what its policy promises.
    pub fn new(domain: Domain<P, T>, oracle: Arc<Oracle>, bounds: Bounds) -> Self {
        let shared = domain.shared();
        let serial = oracle.ledger().add_domain(domain.id(), bounds, shared);
        Watched {
            domain: Arc::new(domain),
            oracle,
            serial,
            bounds,
        }
    }

    /// The domain itself, for calls that change no mapping.
    pub fn domain(&self) -> &Domain<P, T> {
        &self.domain
    }
}

impl<P: DedicatedMemory, T: Translator<P>> Watched<P, T> {
    /// [`Domain::map`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::map`], unchanged.
    pub fn map(&self, buffer: PhysRange, direction: Direction) -> Result<Mapping, MapError> {
        self.mapping(&[buffer], direction, |d| d.map(buffer, direction))
    }

    /// [`Domain::map_list`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::map_list`], unchanged.
    pub fn map_list(&self, list: &[PhysRange], direction: Direction) -> Result<Mapping, MapError> {
        self.mapping(list, direction, |d| d.map_list(list, direction))
    }

    /// [`Domain::map_at`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::map_at`], unchanged.
    pub fn map_at(
        &self,
        iova: Iova,
        buffer: PhysRange,
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        self.mapping(&[buffer], direction, |d| d.map_at(iova, buffer, direction))
    }
}

impl<P: Platform, T: Translator<P>> Watched<P, T> {
    pub(super) fn mapping(
        &self,
        list: &[PhysRange],
        direction: Direction,
        call: impl FnOnce(&Domain<P, T>) -> Result<Mapping, MapError>,
    ) -> Result<Mapping, MapError> {
        let perm = direction.perm();
        let called = self.oracle.ledger().map_called(self.serial, perm, list);
        let result = call(&self.domain);
        let mut ledger = self.oracle.ledger();
        match &result {
            Ok(mapping) => {
                let first = mapping.range().first;
                let pages = self.pages_of(list);
                ledger.map_returned(self.serial, called, first, pages, perm);
                if self.was_diverted(mapping, list) {
                    let pages = self.pages_of(list).collect();
                    ledger.map_failed(self.serial, called, Some(pages), perm);
                }
            }
            Err(error) => {
                let pages = match error {
                    MapError::Install(stopped) => {
                        let written = stopped.done.0 as usize;
                        Some(self.pages_of(list).take(written).collect())
                    }
                    // how much was written is not known
                    MapError::Invalidate(_) => {
                        ledger.lost(self.serial);
                        None
                    }
                    // nothing was; and a list that was refused may be of any length
                    _ => Some(Vec::new()),
                };
                ledger.map_failed(self.serial, called, pages, perm);
            }
        }
        result
    }

    /// Whether the buffer was perhaps mapped at its own address at first, and that was undone.
    fn was_diverted(&self, mapping: &Mapping, list: &[PhysRange]) -> bool {
        let shared = self.domain.shared();
        let elsewhere = shared.is_some_and(|shared| !shared.overlaps(&mapping.range()));
        let follows = |pair: &[PhysRange]| pair[0].end() == Some(pair[1].addr);
        elsewhere && list.windows(2).all(follows)
    }

    /// [`Domain::alloc_consistent`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::alloc_consistent`], unchanged.
    pub fn alloc_consistent(&self, len: ByteCount) -> Result<Consistent, MapError> {
        let perm = Perm::ReadWrite;
        let called = self.oracle.ledger().map_called(self.serial, perm, &[]);
        let result = self.domain.alloc_consistent(len);
        let made = result.as_ref().ok().map(|memory| {
            let frames = memory.frames().iter().map(TableFrame::page);
            (memory.iova().page(), frames.collect())
        });
        self.oracle
            .ledger()
            .memory_returned(self.serial, called, made);
        result
    }

    /// [`Domain::free_consistent`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::free_consistent`], unchanged.
    pub fn free_consistent(&self, memory: Consistent) -> Result<(), UnmapError> {
        let pages = PageCount(memory.frames().len() as u64);
        let range = IovaRange::new(memory.iova().page(), pages);
        self.unmapping(range, |d| d.free_consistent(memory))
    }

    /// [`Domain::unmap`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::unmap`], unchanged.
    pub fn unmap(&self, mapping: Mapping) -> Result<(), UnmapError> {
        let range = mapping.range();
        self.unmapping(range, |d| d.unmap(mapping))
    }

    /// [`Domain::unmap_then`], reported to the oracle; the frames are those that are mapped, in the
    /// order of their IOVAs.
    ///
    /// # Errors
    /// Those of [`Domain::unmap_then`], unchanged.
    ///
    /// # Safety
    /// That of [`Domain::unmap_then`].
    #[allow(unsafe_code)] // a promise of its caller's
    pub unsafe fn unmap_then(
        &self,
        mapping: Mapping,
        frames: Vec<TableFrame>,
    ) -> Result<(), UnmapError> {
        let range = mapping.range();
        let pages = frames.iter().map(TableFrame::page);
        self.oracle
            .ledger()
            .led_from_on(self.serial, range.first, pages);
        // SAFETY: our caller has promised it.
        self.unmapping(range, |d| unsafe { d.unmap_then(mapping, frames) })
    }

    /// [`Domain::unmap_batch`], reported to the oracle: each mapping is in its unmap from when it
    /// is taken until the call returns.
    ///
    /// # Errors
    /// Those of [`Domain::unmap_batch`], unchanged.
    #[allow(clippy::result_large_err)] // the domain's
    pub fn unmap_batch(
        &self,
        mappings: &mut impl Iterator<Item = Mapping>,
    ) -> Result<(), UnmapBatchError> {
        let mut taken = Vec::new();
        let mut mappings = mappings.inspect(|mapping| taken.push(self.unmap_called(mapping)));
        let result = self.domain.unmap_batch(&mut mappings);
        self.batch_returned(taken, result.as_ref().err());
        result
    }

    /// A mapping is taken by a call that unmaps several.
    pub(super) fn unmap_called(&self, mapping: &Mapping) -> (IovaRange, u64) {
        let range = mapping.range();
        (range, self.oracle.ledger().unmap_called(self.serial, range))
    }

    /// That call has said what became of those that were `taken`.
    pub(super) fn batch_returned(
        &self,
        taken: Vec<(IovaRange, u64)>,
        error: Option<&UnmapBatchError>,
    ) {
        let mut ledger = self.oracle.ledger();
        let (mut ended, mut lost, mut foreign) = (taken.len(), 0, false);
        if let Some(error) = error {
            ended = error.ended;
            lost = error.lost.map_or(0, |lost| lost.mappings);
            foreign = matches!(error.stopped, Some(UnmapError::Foreign(_)));
        }
        for (nth, (range, called)) in taken.into_iter().enumerate() {
            if nth < ended {
                ledger.unmap_returned(self.serial, range, called);
            } else if nth >= ended + lost && foreign {
                ledger.unmap_refused(self.serial, range, called);
            } else {
                ledger.unmap_failed(self.serial); // as of one mapping
            }
        }
    }

    /// [`Domain::unmap_raw`] of a whole mapping.
    ///
    /// # Errors
    /// Those of [`Domain::unmap_raw`], unchanged.
    pub fn unmap_raw(&self, mapping: Mapping) -> Result<(), UnmapError> {
        let range = mapping.range();
        self.unmapping(range, |d| {
            let (iova, len) = d.into_raw(mapping)?;
            d.unmap_raw(iova, len)
        })
    }

    fn unmapping(
        &self,
        range: IovaRange,
        call: impl FnOnce(&Domain<P, T>) -> Result<(), UnmapError>,
    ) -> Result<(), UnmapError> {
        let called = self.oracle.ledger().unmap_called(self.serial, range);
        let result = call(&self.domain);
        let mut ledger = self.oracle.ledger();
        match &result {
            Ok(()) => ledger.unmap_returned(self.serial, range, called),
            Err(
                UnmapError::Foreign(_)
                | UnmapError::SharedLeaves(_)
                | UnmapError::Piece(_)
                | UnmapError::ForeignMemory(_)
                | UnmapError::NotAMapping { .. },
            ) => ledger.unmap_refused(self.serial, range, called),
            // after a failed invalidation nothing is promised: the pages are quarantined, and stay
            // "in the call"
            Err(_) => ledger.unmap_failed(self.serial),
        }
        drop(ledger);
        result
    }

    /// [`Domain::attach`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::attach`], unchanged.
    pub fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        let stage = |stage| self.oracle.ledger().attaching(device, self.serial, stage);
        stage(Stage::Changing);
        match self.domain.attach(device) {
            Ok(()) => {
                stage(Stage::Attached);
                Ok(())
            }
            Err(error) => {
                self.oracle.ledger().detached(device);
                Err(error)
            }
        }
    }

    /// [`Domain::detach`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::detach`], unchanged.
    pub fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        let mut ledger = self.oracle.ledger();
        ledger.attaching(device, self.serial, Stage::Changing);
        drop(ledger);
        self.domain.detach(device)?;
        self.oracle.ledger().detached(device);
        Ok(())
    }

    /// [`Domain::tick`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::tick`], unchanged.
    pub fn tick(&self, now: TimeNs) -> Result<TickReport, InvalidateError> {
        let called = self.oracle.ledger().tick_called(self.serial, now);
        let result = self.domain.tick(now);
        let mut ledger = self.oracle.ledger();
        if result.is_err() {
            ledger.lost(self.serial);
        }
        let missed = ledger.tick_returned(self.serial, called, now);
        drop(ledger);
        // what a failed flush quarantined is flushed by none
        if !missed.is_empty() && self.domain.stats().quarantined.pages == PageCount(0) {
            for (page, window) in missed {
                let text = format!(
                    "{page} was unmapped, and not flushed by the tick at {} ns, {} ns later or more",
                    now.0, window.0
                );
                self.oracle.report(Property::P2, text);
            }
        }
        result
    }

    /// [`Domain::set_mode`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Domain::set_mode`], unchanged.
    pub fn set_mode(&self, mode: InvalidationMode) -> Result<(), SwitchError> {
        let mut ledger = self.oracle.ledger();
        ledger.retiring(self.serial);
        let called = ledger.now();
        if mode == InvalidationMode::Deferred {
            ledger.defer_called(self.serial);
        }
        drop(ledger);
        let result = self.domain.set_mode(mode);
        let mut ledger = self.oracle.ledger();
        match (mode, &result) {
            (InvalidationMode::Deferred, _) => ledger.defer_returned(self.serial),
            (InvalidationMode::Strict, Ok(())) => ledger.made_strict(self.serial, called),
            (InvalidationMode::Strict, Err(SwitchError::Invalidate(_))) => ledger.lost(self.serial),
            (InvalidationMode::Strict, Err(_)) => {}
        }
        ledger.retired(self.serial);
        drop(ledger);
        result
    }

    /// Ends the domain; its devices are detached first, watched.
    ///
    /// # Errors
    /// Those of [`Domain::close`], and of detaching.
    ///
    /// # Panics
    /// If a [`WatchedDma`](super::WatchedDma) of it is alive.
    pub fn close(self, devices: &[SourceId]) -> Result<(), CloseError> {
        for device in devices {
            self.detach(*device)?;
        }
        let domain = Arc::into_inner(self.domain);
        domain
            .expect("no other owner of the domain is left")
            .close()
    }

    /// The granules of a list that was mapped, at least in part, from its lowest IOVA up.
    fn pages_of<'l>(
        &self,
        list: &'l [PhysRange],
    ) -> impl Iterator<Item = PhysPage> + use<'l, P, T> {
        let runs = self.domain.in_iova_order(list);
        runs.flat_map(PhysRun::iter)
    }
}
