// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The DMA API of a watched domain, whose calls are reported to the oracle, before and after.

use super::{
    DomainSerial, Oracle, Property, Watched,
    ledger::{Slots, Whose},
};
use ioatlas_dma::{
    dma_api::*,
    domain::{MapError, UnmapError},
    platform::{ContiguousMemory, CopyMemory},
    table::Format,
    translator::{Paged, RemappingUnit},
    units::*,
};
use std::{collections::BTreeMap, sync::Arc};
use zerocopy::{FromBytes, IntoBytes};

/// `Dma`, watched. It must go before its domain is closed.
pub struct WatchedDma<P: CopyMemory, F: Format, U: RemappingUnit<P>> {
    dma: Arc<Dma<P, Paged<P, F, U>>>,
    oracle: Arc<Oracle>,
    serial: DomainSerial,
}

/// `Client`, watched. The calls are those of the client.
pub struct WatchedClient<P: CopyMemory, F: Format, U: RemappingUnit<P>> {
    client: Client<P, Paged<P, F, U>>,
    oracle: Arc<Oracle>,
    serial: DomainSerial,
}

/// What is mapped, which is looked at beside its mapping.
type List = Lent<Arc<[PhysRange]>>;

/// A mapping, and which pages it has.
#[derive(Debug)]
pub struct WatchedMapping {
    mapping: DmaMapping<List>,
    runs: Vec<IovaRange>,
}

/// A typed buffer that the device owns, and which pages it has.
pub struct WatchedBuffer<P: CopyMemory, W> {
    buffer: DeviceBuffer<P, W>,
    runs: Vec<IovaRange>,
}

impl<P: CopyMemory, W> WatchedBuffer<P, W> {
    /// Its pages, as runs that need not adjoin.
    pub fn runs(&self) -> &[IovaRange] {
        &self.runs
    }
}

/// Where pages lead, and whose memory that is.
type Shown = BTreeMap<IovaPage, (PhysPage, Whose)>;

impl WatchedMapping {
    /// Its pages; those of a list that was mapped segment by segment need not adjoin.
    pub fn runs(&self) -> &[IovaRange] {
        &self.runs
    }
    /// Whether a device reaches a copy, at least of some of it.
    pub fn is_bounced(&self) -> bool {
        self.mapping.is_bounced()
    }
}

impl<P: CopyMemory, F: Format, U: RemappingUnit<P>> Watched<P, Paged<P, F, U>> {
    /// The domain's DMA API. From now on it may have bounce buffers.
    pub fn dma(&self, config: DmaConfig) -> WatchedDma<P, F, U> {
        let slots = match config.pool.growth {
            Growth::OnDemand { .. } => Slots::AsUsed,
            Growth::Fixed => Slots::BothWays,
        };
        self.oracle.ledger().bounces(self.serial, slots);
        WatchedDma {
            dma: Arc::new(Dma::new(self.domain.clone(), config)),
            oracle: self.oracle.clone(),
            serial: self.serial,
        }
    }
}

impl<P: CopyMemory, F: Format, U: RemappingUnit<P>> WatchedDma<P, F, U> {
    /// The API itself, for calls that change no mapping.
    pub fn dma(&self) -> &Arc<Dma<P, Paged<P, F, U>>> {
        &self.dma
    }

    /// [`Dma::tick`], reported to the oracle: what pools give up is retired by it, so it may be
    /// what fills a batch, and be held up before it flushes.
    pub fn tick(&self, now: TimeNs) {
        self.oracle.retiring(self.serial, || self.dma.tick(now));
    }

    /// [`Dma::client`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Dma::client`], unchanged.
    pub fn client(&self, config: ClientConfig) -> Result<WatchedClient<P, F, U>, PoolError> {
        Ok(WatchedClient {
            client: self.dma.client(config)?,
            oracle: self.oracle.clone(),
            serial: self.serial,
        })
    }
}

impl<P: CopyMemory, F: Format, U: RemappingUnit<P>> WatchedClient<P, F, U> {
    /// [`Client::map_sg`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Client::map_sg`], unchanged.
    pub fn map_sg(&self, list: List, direction: Direction) -> Result<WatchedMapping, DmaMapError> {
        let perm = direction.perm();
        let called = self.oracle.ledger().map_called(self.serial, perm, &list);
        let named = Arc::clone(&list);
        let result = self.client.map_sg(list, direction);
        // outside the oracle's lock: what a live mapping leads to stays as it is
        let shown = result.as_ref().ok().map(|mapping| {
            let segments = mapping.segments().zip(named.iter());
            (
                mapping.is_bounced(),
                self.shown(segments, mapping.is_bounced()),
            )
        });
        let runs = self.mapped(called, &named, shown, perm);
        result.map(|mapping| WatchedMapping { mapping, runs })
    }

    /// A map has returned: whether it is bounced, and what it shows, unless it failed.
    fn mapped(
        &self,
        called: u64,
        list: &[PhysRange],
        shown: Option<(bool, Shown)>,
        perm: Perm,
    ) -> Vec<IovaRange> {
        let mut ledger = self.oracle.ledger();
        let direct = shown.as_ref().is_some_and(|(bounced, _)| !bounced);
        let pages = shown.map_or_else(Shown::new, |(_, pages)| {
            let shown = pages.iter();
            let shown = shown.map(|(page, (to, whose))| (*page, *to, *whose));
            ledger.map_returned_of(self.serial, called, shown, perm);
            pages
        });
        if !direct {
            // it may have been tried where it is, in part, and undone
            let pages = list.iter().flat_map(|part| part.run().iter()).collect();
            ledger.map_failed(self.serial, called, Some(pages), perm);
        }
        runs(pages.into_keys())
    }

    /// Where each page of a mapping leads: to the list itself, or else to what the tables say.
    fn shown<'l>(
        &self,
        segments: impl Iterator<Item = (Iova, &'l PhysRange)>,
        bounced: bool,
    ) -> Shown {
        let mut shown = BTreeMap::new();
        let domain = self.client.dma().domain();
        let table = domain.translator().table();
        for (at, segment) in segments {
            let offset = at.offset();
            let theirs = segment.run().iter();
            // a copy may begin anywhere, and so have a page more or less
            let last = Iova(at.0 + segment.len.0 - 1).page();
            for (nth, page) in (at.page().0..=last.0).map(IovaPage).enumerate() {
                let its = theirs.clone().nth(nth);
                let its = its.filter(|_| offset == segment.addr.offset());
                let led = match bounced {
                    true => table.walk(domain.platform(), page).map(|(to, _)| to),
                    false => its,
                };
                let Some(to) = led else {
                    let text = format!("map returned, and {page} leads nowhere");
                    self.oracle.report(Property::P14, text);
                    continue;
                };
                let whose = if its == Some(to) {
                    Whose::Theirs
                } else {
                    Whose::Own
                };
                shown.insert(page, (to, whose));
            }
        }
        shown
    }

    /// [`Client::unmap`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Client::unmap`], unchanged.
    pub fn unmap(&self, mapping: WatchedMapping) -> Result<List, DmaUnmapError<List>> {
        let WatchedMapping { mapping, runs } = mapping;
        self.unmapping(runs, || self.client.unmap(mapping))
    }

    /// [`Client::unmap_batch`], reported to the oracle: each mapping is in its unmap from when it
    /// is taken until the call returns.
    ///
    /// # Errors
    /// Those of [`Client::unmap_batch`], unchanged.
    #[allow(clippy::result_large_err)] // the client's
    pub fn unmap_batch(
        &self,
        mappings: &mut impl Iterator<Item = WatchedMapping>,
    ) -> Result<(), DmaUnmapBatchError<List>> {
        let mut called = Vec::new();
        let mut taken = mappings.map(|WatchedMapping { mapping, runs }| {
            called.extend(self.unmap_called(runs));
            mapping
        });
        let result = self.client.unmap_batch(&mut taken, drop);
        self.unmap_returned(called, result.is_ok());
        result
    }

    /// [`Client::buffer`], reported to the oracle.
    pub fn buffer<W: Way>(&self, len: ByteCount) -> Option<CpuBuffer<P, W>> {
        let buffer = self.client.buffer(len)?;
        let mut ledger = self.oracle.ledger();
        let frames = buffer.list().iter().flat_map(|part| part.run().iter());
        frames.for_each(|frame| ledger.buffer_made(frame));
        drop(ledger);
        Some(buffer)
    }

    /// [`Client::give`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Client::give`], unchanged.
    pub fn give<W: Way>(
        &self,
        buffer: CpuBuffer<P, W>,
    ) -> Result<WatchedBuffer<P, W>, DmaMapError> {
        let list = buffer.list().clone();
        let perm = W::DIRECTION.perm();
        let called = self.oracle.ledger().map_called(self.serial, perm, &list);
        let result = self.client.give(buffer);
        let shown = result.as_ref().ok().map(|given| {
            let segments = given.segments().zip(list.iter());
            (given.is_bounced(), self.shown(segments, given.is_bounced()))
        });
        let runs = self.mapped(called, &list, shown, perm);
        result.map(|buffer| WatchedBuffer { buffer, runs })
    }

    /// [`Client::take_back`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Client::take_back`], unchanged.
    pub fn take_back<W: Way>(
        &self,
        buffer: WatchedBuffer<P, W>,
    ) -> Result<CpuBuffer<P, W>, DmaUnmapError<List>> {
        let WatchedBuffer { buffer, runs } = buffer;
        self.unmapping(runs, || self.client.take_back(buffer))
    }

    /// Drops a buffer, reported to the oracle: it retires what a device has seen.
    pub fn free<W: Way>(&self, buffer: CpuBuffer<P, W>) {
        self.oracle.retiring(self.serial, || drop(buffer));
    }

    /// [`Client::alloc_coherent`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Client::alloc_coherent`], unchanged.
    pub fn alloc_coherent<E: FromBytes + IntoBytes>(
        &self,
        count: usize,
    ) -> Result<Coherent<[E]>, MapError>
    where
        P: ContiguousMemory,
    {
        let perm = Perm::ReadWrite;
        let called = self.oracle.ledger().map_called(self.serial, perm, &[]);
        let result = self.client.alloc_coherent(count);
        let made = result.as_ref().ok();
        let made = made.map(|array| (array.iova().page(), array.frames().iter().collect()));
        self.oracle
            .ledger()
            .memory_returned(self.serial, called, made);
        result
    }

    /// [`Coherent::free`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Coherent::free`], unchanged.
    pub fn free_coherent<E: FromBytes + IntoBytes>(
        &self,
        array: Coherent<[E]>,
    ) -> Result<(), UnmapError> {
        self.unmapping(pages_of_array(&array), || array.free())
    }

    /// Drops an array, reported to the oracle.
    pub fn drop_coherent<E: FromBytes + IntoBytes>(&self, array: Coherent<[E]>) {
        let failed = || self.client.dma().drop_errors();
        let before = failed();
        let _ = self.unmapping(pages_of_array(&array), || {
            drop(array);
            if failed() == before { Ok(()) } else { Err(()) }
        });
    }

    /// [`Client::unmap_raw`] of a whole mapping.
    ///
    /// # Errors
    /// Those of [`Client::unmap_raw`], unchanged.
    pub fn unmap_raw(&self, mapping: WatchedMapping) -> Result<(), RawDmaError> {
        let WatchedMapping { mapping, runs } = mapping;
        let direction = mapping.direction();
        self.unmapping(runs, || match self.client.into_raw(mapping) {
            Ok((iova, len)) => self.client.unmap_raw(iova, len, direction),
            // by its token, then
            Err(IntoRawError(mapping)) => Ok(self.client.unmap(mapping).map(drop)?),
        })
    }

    fn unmapping<R, E>(
        &self,
        runs: Vec<IovaRange>,
        call: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let called = self.unmap_called(runs).collect();
        let result = call();
        self.unmap_returned(called, result.is_ok());
        result
    }

    fn unmap_called(&self, runs: Vec<IovaRange>) -> impl Iterator<Item = (IovaRange, u64)> + '_ {
        let begin = |run: IovaRange| (run, self.oracle.ledger().unmap_called(self.serial, run));
        runs.into_iter().map(begin)
    }

    fn unmap_returned(&self, called: Vec<(IovaRange, u64)>, succeeded: bool) {
        let mut ledger = self.oracle.ledger();
        for (run, called) in called {
            match succeeded {
                true => ledger.unmap_returned(self.serial, run, called),
                // nothing is promised: the pages stay "in the call"
                false => ledger.unmap_failed(self.serial),
            }
        }
    }
}

/// The pages of an array, which adjoin.
fn pages_of_array<S: ?Sized>(array: &Coherent<S>) -> Vec<IovaRange> {
    vec![IovaRange::new(array.iova().page(), array.frames().pages)]
}

/// Ascending pages as ranges.
fn runs(pages: impl Iterator<Item = IovaPage>) -> Vec<IovaRange> {
    let mut runs: Vec<IovaRange> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.end() == page => last.pages.0 += 1,
            _ => runs.push(IovaRange::new(page, PageCount(1))),
        }
    }
    runs
}
