// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A small remapping unit: it walks the real tables and caches what it finds.

use crate::BY;
use crate::loom::platform::{Loom, Tiny};
use ioatlas_dma::{
    invalidation::{Invalidate, InvalidateError, Scope},
    platform::{Atomic64, Authority, Ordering, PhysMemory},
    table::{Entry, Format, TableShape},
    translator::{AttachError, RemappingUnit},
    units::*,
};
use loom::sync::Mutex;
use std::sync::Arc;

/// Pages of [`Tiny`].
pub const PAGES: u64 = 4;

/// What a unit does right after it removed what an invalidation names.
#[derive(Clone, Copy, PartialEq)]
pub enum After {
    /// Nothing.
    Idle,
    /// Walks all pages and caches them, which any unit may do at any time: the worst moment is this
    /// one.
    Prefetch,
}

/// One lock over the caches, held over a walk with its fill, and over an invalidation: so those are
/// drained.
pub struct Unit {
    p: Arc<Loom>,
    after: After,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    root: Option<PhysPage>,
    cached: [Option<PhysPage>; PAGES as usize],
}

impl Unit {
    pub fn new(p: Arc<Loom>, after: After) -> Self {
        Unit {
            p,
            after,
            state: Mutex::new(State::default()),
        }
    }

    /// Where a device's access to `page` goes.
    pub fn access(&self, page: IovaPage) -> Option<PhysPage> {
        let mut state = self.state.lock().unwrap();
        let at = page.0 as usize;
        if state.cached[at].is_none() {
            state.cached[at] = self.walk(state.root?, page);
        }
        state.cached[at]
    }

    /// What the caches hold of `page`.
    pub fn cached(&self, page: IovaPage) -> Option<PhysPage> {
        self.state.lock().unwrap().cached[page.0 as usize]
    }

    /// Reads the tables as hardware does: by address, with no order but that of dependence.
    fn walk(&self, root: PhysPage, page: IovaPage) -> Option<PhysPage> {
        let mut table = root;
        for level in (1..=Tiny::LEVELS).rev() {
            let word = self.p.word(BY, table, Tiny::index(page, level))?;
            match Tiny::decode(word.load(Ordering::Acquire), level) {
                Entry::Absent => return None,
                Entry::Table(next) => table = next,
                Entry::Leaf(to, ..) => return Some(to),
            }
        }
        None
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: what is asked for is forgotten before it returns; what it looks up then is what memory
// holds.
unsafe impl Invalidate for Unit {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, _: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        let mut state = self.state.lock().unwrap();
        for page in (0..PAGES).map(IovaPage) {
            let one = IovaRange::new(page, PageCount(1));
            if scope.pages.is_none_or(|pages| pages.contains(&one)) {
                state.cached[page.0 as usize] = None;
            }
        }
        if let (After::Prefetch, Some(root)) = (self.after, state.root) {
            for page in (0..PAGES).map(IovaPage) {
                state.cached[page.0 as usize] = self.walk(root, page);
            }
        }
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: one device, by the root that it was told; one id.
unsafe impl RemappingUnit<Loom> for Unit {
    fn walks(&self, _: TableShape) -> bool {
        true
    }
    fn platform(&self) -> Option<&Arc<Loom>> {
        None
    }
    fn attach(
        &self,
        _: Authority,
        _: &Loom,
        _: SourceId,
        _: DomainId,
        root: PhysPage,
        _: u32,
    ) -> Result<(), AttachError> {
        self.state.lock().unwrap().root = Some(root);
        Ok(())
    }
    fn detach(&self, _: Authority, _: &Loom, _: SourceId, _: DomainId) -> Result<(), AttachError> {
        *self.state.lock().unwrap() = State::default();
        Ok(())
    }
    fn domain_id(&self, _: &Loom) -> Option<DomainId> {
        Some(DomainId(1))
    }
    fn release_domain_id(&self, _: Authority, _: &Loom, _: DomainId) {}
}
