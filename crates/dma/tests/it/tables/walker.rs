// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A small remapping unit with an IOTLB and a walk cache that forget nothing by themselves.

use crate::BY;
use ioatlas_dma::{
    domain::*,
    invalidation::{Caches, Invalidate, InvalidateError, Scope},
    platform::{Authority, Ordering, PhysMemory},
    table::{Entry, Format, TableConfig, TableShape},
    translator::{AttachError, Paged, RemappingUnit},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub struct Walker<F: Format> {
    host: Arc<Host>,
    state: Mutex<State>,
    _format: PhantomData<fn() -> F>,
}

#[derive(Default)]
struct State {
    root: Option<PhysPage>,
    /// What IOVA pages translate to.
    leaves: BTreeMap<u64, PhysPage>,
    /// The table at a level that covers pages from there on.
    tables: BTreeMap<(u32, u64), PhysPage>,
    /// Every invalidation from now on fails.
    broken: bool,
}

impl<F: Format> Walker<F> {
    pub fn new(host: Arc<Host>) -> Self {
        Walker {
            host,
            state: Mutex::default(),
            _format: PhantomData,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_broken(&self, broken: bool) {
        self.state().broken = broken;
    }

    /// Where a device's access to `page` goes.
    pub fn access(&self, page: u64) -> Option<PhysPage> {
        let state = &mut *self.state();
        if let Some(to) = state.leaves.get(&page) {
            return Some(*to);
        }
        let from = |level: u32| (level, page & !(F::span(level + 1) - 1));
        let cached = (1..F::LEVELS).find(|level| state.tables.contains_key(&from(*level)));
        let (mut level, mut table) = match cached {
            Some(level) => (level, state.tables[&from(level)]),
            None => (F::LEVELS, state.root?),
        };
        loop {
            let index = F::index(IovaPage(page), level);
            let word = self.host.word(BY, table, index).expect("in the arena");
            match F::decode(word.load(Ordering::Acquire), level) {
                Entry::Absent => return None,
                Entry::Table(next) => {
                    (level, table) = (level - 1, next);
                    state.tables.insert(from(level), table);
                }
                Entry::Leaf(to, ..) => {
                    let to = PhysPage(to.0 + (page & (F::span(level) - 1)));
                    state.leaves.insert(page, to);
                    return Some(to);
                }
            }
        }
    }
}

// SAFETY: what is asked for is forgotten before it returns, or it fails.
unsafe impl<F: Format> Invalidate for Walker<F> {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, _: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        let state = &mut *self.state();
        if state.broken {
            return Err(InvalidateError::OutOfService);
        }
        let touched = |range: IovaRange| scope.pages.is_none_or(|pages| pages.overlaps(&range));
        let of = |first: u64, pages| IovaRange::new(IovaPage(first), PageCount(pages));
        state.leaves.retain(|page, _| !touched(of(*page, 1)));
        if scope.caches == Caches::LeavesAndWalks {
            let tables = &mut state.tables;
            tables.retain(|(level, first), _| !touched(of(*first, F::span(level + 1))));
        }
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

// SAFETY: one device, by the root that it was told; one id.
unsafe impl<F: Format> RemappingUnit<Host> for Walker<F> {
    fn walks(&self, shape: TableShape) -> bool {
        shape == TableShape::of::<F>()
    }
    fn platform(&self) -> Option<&Arc<Host>> {
        None
    }
    fn attach(
        &self,
        _: Authority,
        _: &Host,
        _: SourceId,
        _: DomainId,
        root: PhysPage,
        _: u32,
    ) -> Result<(), AttachError> {
        self.state().root = Some(root);
        Ok(())
    }
    fn detach(&self, _: Authority, _: &Host, _: SourceId, _: DomainId) -> Result<(), AttachError> {
        *self.state() = State::default();
        Ok(())
    }
    fn largest_leaf(&self) -> u32 {
        F::LARGEST_LEAF
    }
    fn domain_id(&self, _: &Host) -> Option<DomainId> {
        Some(DomainId(1))
    }
    fn release_domain_id(&self, _: Authority, _: &Host, _: DomainId) {}
}

/// A domain over such a unit.
pub type Dom<F> = Domain<Host, Paged<Host, F, Arc<Walker<F>>>>;

/// A domain of `design`, in so many frames, with a device attached.
pub fn walked<F: Format>(
    frames: usize,
    design: DomainConfig,
    config: TableConfig,
) -> (Dom<F>, Arc<Walker<F>>) {
    let host = Arc::new(Host::new(HostConfig::default().frames(frames).slots(2)));
    let unit = Arc::new(Walker::new(host.clone()));
    let tables = Paged::new(&host, unit.clone(), config).expect("a root");
    let domain = Domain::new(host, tables, design).expect("within the aperture");
    domain.attach(SourceId(8)).expect("this unit takes any");
    (domain, unit)
}

/// Its audit; nothing is lost.
pub fn sound<F: Format>(dom: &Dom<F>) -> DomainAudit {
    let audit = dom.audit().unwrap_or_else(|why| panic!("{why} (P3, P10)"));
    let stats = audit.stats;
    let held =
        audit.census.frames + stats.retired.frames + stats.quarantined.frames + stats.chunk_frames;
    let in_use = dom.platform().frames_in_use() as u64;
    assert_eq!(held, in_use, "a frame is lost (P10)");
    audit
}
