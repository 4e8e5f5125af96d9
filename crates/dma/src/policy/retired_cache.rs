// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! **solaris**: unmap invalidates nothing; map invalidates the range that it maps, before it
//! returns (ATC'15 §3.4).
//!
//! Where nothing is flushed at unmap, no allocation may go back to the allocator, and none does: a
//! retired allocation is kept here, and it is from here that maps are served first. A map takes the
//! newest allocation of its size (what was touched last is warm), flushes its pages, completes it
//! by that very completion, and only then has an [`IovaAlloc`] to install with. An allocation that
//! comes fresh from the allocator is flushed all the same: Solaris cannot tell. An exhausted
//! allocator, or [`crate::domain::Domain::flush`], completes and frees the whole cache by one flush
//! of the domain.
//!
//! Size classes are powers of two of pages, one stack and one lock each, shared by all CPUs: ATC'15
//! finds no system of its table 1 that does without a global lock here. A stack has room for what
//! it ever held, at most as many allocations as were mapped at once; it grows outside the lock, and
//! once warm allocates nothing.
//!
//! What is not kept is flushed at unmap, waited for, and is freed, as under `strict`: an unmap that
//! detaches tables or frees consistent memory (frames must not wait for a map that may never come,
//! and a table in a detached one's place needs the walk caches clean: P14); ranges that the caller
//! chose; shared allocations of `identity`, whose next map may be of another holder; ranges of no
//! class. They are less exposed than Solaris's, none more. A request with limits takes what lies
//! within them, and where it is preferred, among the newest [`LOOK`] of its class, or a fresh
//! allocation.
//!
//! Where the heap has no memory for a larger stack, the allocation is flushed at unmap too.
//!
//! Exposure: unbounded.

use super::{
    queue::{self, Item, Queues, RetiredQueue},
    *,
};
use crate::iova::{AllocKind, Request};

/// Size classes: 1 page to 2^20 pages, that is 4 GiB.
const CLASSES: u32 = 21;

/// Allocations of a class that a request with limits looks at.
const LOOK: usize = 16;

pub(crate) struct RetiredCache<P: Platform> {
    /// One a size class.
    classes: Queues<P, ()>,
}

impl<P: Platform> RetiredCache<P> {
    pub fn new() -> Self {
        let class = |_| CachePadded(RetiredQueue::new(0, usize::MAX));
        RetiredCache {
            classes: (0..CLASSES).map(class).collect(),
        }
    }

    fn class(&self, pages: PageCount) -> Option<&RetiredQueue<P, ()>> {
        let lg2 = pages.0.trailing_zeros();
        let class = self.classes.get(lg2 as usize)?;
        pages.0.is_power_of_two().then_some(&class.0)
    }

    /// Whether such an allocation is kept.
    pub fn takes(&self, alloc: &IovaAlloc) -> bool {
        alloc.kind() == AllocKind::Dynamic && self.class(alloc.range().pages).is_some()
    }

    /// Keeps an allocation that it [`takes`](Self::takes).
    ///
    /// # Errors
    /// It comes back: the heap has no memory to note it.
    pub fn keep<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        retired: Retired<Resource>,
    ) -> Result<(), Retired<Resource>> {
        let class = match retired.get() {
            Resource::Iova(alloc) => self.class(alloc.range().pages),
            Resource::Frame(_) => None,
        };
        let Some(class) = class else {
            return Err(retired);
        };
        let origin = engine.p.pinned(|cpu| cpu.index());
        let item = Item {
            origin,
            retired,
            beside: (),
        };
        class.push(item).map_err(|item| item.retired)
    }

    /// Gives memory back in which nothing is kept.
    pub fn shrink(&self) {
        self.classes.iter().for_each(|class| class.0.shrink(0));
    }

    /// An allocation that is kept, flushed; `None` where none serves.
    ///
    /// # Errors
    /// The invalidation failed; the allocation is quarantined.
    pub fn alloc<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        request: &Request,
    ) -> Result<Option<IovaAlloc>, Failed> {
        // a design that shares allocations chooses by what is mapped
        if request.contiguous.is_some() && engine.allocator.shared().is_some() {
            return Ok(None);
        }
        let granted = engine.allocator.granted(request.pages);
        let within = |what: &Resource| match what {
            Resource::Iova(alloc) => request.limits.prefer(alloc.range()),
            Resource::Frame(_) => false,
        };
        let class = self.class(granted);
        let Some(item) = class.and_then(|class| class.take_newest(LOOK, within)) else {
            return Ok(None);
        };
        let scope = Scope {
            pages: Some(IovaRange::new(first_page(item.retired.get()), granted)),
            caches: item.retired.need().caches,
        };
        match engine.flush(scope) {
            Ok(completion) => Ok(engine.complete_alloc(item.retired, &completion)),
            Err(failed) => {
                engine.quarantine.put(item.retired);
                Err(failed)
            }
        }
    }

    /// Flushes an allocation that comes from elsewhere.
    ///
    /// # Errors
    /// The invalidation failed; the allocation is quarantined.
    pub fn flush_fresh<I: Invalidate>(
        &self,
        engine: &Engine<'_, P, I>,
        alloc: IovaAlloc,
    ) -> Result<IovaAlloc, Failed> {
        let scope = Scope::leaves(alloc.range());
        match engine.flush(scope) {
            Ok(_) => Ok(alloc),
            Err(failed) => {
                let what = Resource::Iova(alloc);
                let retired = engine.sequence.retire(engine.p, what, scope);
                engine.quarantine.put(retired);
                Err(failed)
            }
        }
    }

    pub fn drain_all<I: Invalidate>(&self, engine: &Engine<'_, P, I>) -> Result<(), Failed> {
        queue::drain_all(&self.classes, engine)
    }

    pub fn retired(&self) -> Held {
        queue::held(&self.classes)
    }
}

/// The first page of an allocation; 0 for a frame.
fn first_page(what: &Resource) -> IovaPage {
    match what {
        Resource::Iova(alloc) => alloc.range().first,
        Resource::Frame(_) => IovaPage(0),
    }
}
