// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The DMA API of a watched domain, whose calls are reported to the oracle, before and after.

use super::{DomainSerial, Oracle, Property, Watched, ledger::Whose};
use ioatlas_dma::{
    dma_api::*,
    platform::CopyMemory,
    table::Format,
    translator::{Paged, RemappingUnit},
    units::*,
};
use std::{collections::BTreeMap, sync::Arc};

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

/// A mapping, and which pages it has.
#[derive(Debug)]
pub struct WatchedMapping {
    mapping: DmaMapping<Arc<[PhysRange]>>,
    runs: Vec<IovaRange>,
}

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
        self.oracle.ledger().bounces(self.serial);
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

    /// See [`Dma::client`].
    ///
    /// # Errors
    /// As there.
    pub fn client(&self, config: ClientConfig) -> Result<WatchedClient<P, F, U>, NoPool> {
        Ok(WatchedClient {
            client: self.dma.client(config)?,
            oracle: self.oracle.clone(),
            serial: self.serial,
        })
    }
}

impl<P: CopyMemory, F: Format, U: RemappingUnit<P>> WatchedClient<P, F, U> {
    /// See [`Client::map_sg`].
    ///
    /// # Errors
    /// As there.
    pub fn map_sg(
        &self,
        list: Arc<[PhysRange]>,
        direction: Direction,
    ) -> Result<WatchedMapping, DmaMapError> {
        let pages: Vec<_> = list.iter().flat_map(pages_of).collect();
        let called = self.oracle.ledger().map_called(self.serial);
        let result = self.client.map_sg(list, direction);
        // outside the oracle's lock: what a live mapping leads to stays as it is
        let shown = result.as_ref().map(|mapping| self.shown(mapping));
        let mut ledger = self.oracle.ledger();
        let perm = direction.perm();
        if let Ok(shown) = &shown {
            let shown = shown.iter();
            let shown = shown.map(|(page, (to, whose))| (*page, *to, *whose));
            ledger.map_returned_of(self.serial, called, shown, perm);
        }
        let runs = shown.map_or_else(|_| Vec::new(), |shown| runs(shown.into_keys()));
        match result {
            Ok(mapping) => {
                if mapping.is_bounced() {
                    // it may have been tried where it is, in part, and undone
                    ledger.map_failed(self.serial, called, Some(pages), perm);
                }
                Ok(WatchedMapping { mapping, runs })
            }
            Err(error) => {
                ledger.map_failed(self.serial, called, Some(pages), perm);
                Err(error)
            }
        }
    }

    /// Where each page of a mapping leads: to the list itself, or else to what the tables say.
    fn shown(
        &self,
        mapping: &DmaMapping<Arc<[PhysRange]>>,
    ) -> BTreeMap<IovaPage, (PhysPage, Whose)> {
        let mut shown = BTreeMap::new();
        let domain = self.client.dma().domain();
        let table = domain.translator().table();
        for (at, segment) in mapping.segments().zip(mapping.list().iter()) {
            let offset = at.offset();
            let theirs = pages_of(segment);
            // a copy may begin anywhere, and so have a page more or less
            let last = Iova(at.0 + segment.len.0 - 1).page();
            for (nth, page) in (at.page().0..=last.0).map(IovaPage).enumerate() {
                let its = theirs.clone().nth(nth);
                let its = its.filter(|_| offset == segment.addr.offset());
                let led = match mapping.is_bounced() {
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

    /// See [`Client::unmap`].
    ///
    /// # Errors
    /// As there.
    pub fn unmap(
        &self,
        mapping: WatchedMapping,
    ) -> Result<Arc<[PhysRange]>, DmaUnmapError<Arc<[PhysRange]>>> {
        let WatchedMapping { mapping, runs } = mapping;
        self.unmapping(runs, || self.client.unmap(mapping))
    }

    /// [`Client::unmap_raw`] of a whole mapping.
    ///
    /// # Errors
    /// As there.
    pub fn unmap_raw(&self, mapping: WatchedMapping) -> Result<(), RawDmaError> {
        let WatchedMapping { mapping, runs } = mapping;
        let direction = mapping.direction();
        self.unmapping(runs, || {
            let (iova, len) = self.client.into_raw(mapping);
            self.client.unmap_raw(iova, len, direction)
        })
    }

    fn unmapping<R, E>(
        &self,
        runs: Vec<IovaRange>,
        call: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let begin = |run: IovaRange| (run, self.oracle.ledger().unmap_called(self.serial, run));
        let called: Vec<_> = runs.into_iter().map(begin).collect();
        let result = call();
        // after an error nothing is promised: the pages stay "in the call"
        if result.is_ok() {
            let mut ledger = self.oracle.ledger();
            for (run, called) in called {
                ledger.unmap_returned(self.serial, run, called);
            }
        }
        result
    }
}

/// The granules of a buffer.
fn pages_of(buffer: &PhysRange) -> impl Iterator<Item = PhysPage> + Clone + use<> {
    let run = buffer.run();
    (run.first.0..run.first.0 + run.pages.0).map(PhysPage)
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
