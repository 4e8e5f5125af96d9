// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What every policy works with: things that can be retired, how to flush them, where they go.

use super::*;

/// What can be retired. One list serves them all.
#[derive(Debug)]
pub(crate) enum Resource {
    Iova(IovaAlloc),
    Frame(TableFrame),
}

/// How much of each resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Held {
    pub pages: PageCount,
    pub frames: u64,
}

impl Held {
    pub(crate) fn add(&mut self, what: &Resource) {
        match what {
            Resource::Iova(alloc) => self.pages.0 += alloc.owned().0,
            Resource::Frame(_) => self.frames += 1,
        }
    }
    pub(crate) fn and(self, other: Held) -> Held {
        Held {
            pages: PageCount(self.pages.0 + other.pages.0),
            frames: self.frames + other.frames,
        }
    }
}

/// What policies need of a domain: how to flush, and where things go.
pub(crate) struct Engine<'d, P: Platform, I: Invalidate> {
    pub p: &'d P,
    pub sequence: &'d FlushSequence<P>,
    pub unit: &'d I,
    pub id: DomainId,
    pub allocator: &'d Chunked<P>,
    pub quarantine: &'d Quarantine<P>,
    pub suspect: &'d Suspect<P, I::Token>,
    pub limit: WaitLimit,
}

impl<P: Platform, I: Invalidate> Engine<'_, P, I> {
    /// Starts an invalidation, and waits for it.
    pub fn flush(&self, scope: Scope) -> Result<Completion, Failed> {
        let patience = self.patience();
        self.sequence
            .flush_with(self.p, self.unit, self.id, scope, &patience)
    }

    /// Waits for what was started.
    pub fn wait(&self, started: Started<I::Token>) -> Result<Completion, Failed> {
        let patience = self.patience();
        self.sequence
            .wait_with(self.p, self.unit, started, &patience)
    }

    #[inline]
    pub(super) fn patience(&self) -> Patience<'_, P, I::Token> {
        Patience {
            limit: self.limit,
            suspect: Some(self.suspect),
        }
    }

    /// Retires `what`, whose entries the caller has just cleared, and flushes it at once.
    ///
    /// # Errors
    /// The invalidation failed; the thing is quarantined.
    #[inline]
    pub fn flush_retired(&self, what: Resource, need: Scope) -> Result<Flushed<Resource>, Failed> {
        let (p, sequence) = (self.p, self.sequence);
        let flushed = sequence.flush_retired(p, self.unit, self.id, what, need, &self.patience());
        flushed.map_err(|(retired, failed)| {
            self.quarantine.put(retired);
            failed
        })
    }

    /// One invalidation for each page, each waited for. The proof is of
    /// all pages: see [`Completion::join`].
    pub fn flush_page_by_page(&self, scope: Scope) -> Result<Completion, Failed> {
        let mut pages = scope.pages.into_iter().flat_map(IovaRange::iter);
        let flush = |page| {
            let pages = Some(IovaRange::new(page, PageCount(1)));
            self.flush(Scope { pages, ..scope })
        };
        let Some(first) = pages.next() else {
            return self.flush(scope); // no pages are named: the domain
        };
        let mut whole = flush(first)?;
        for page in pages {
            whole = match whole.join(flush(page)?) {
                Some(joined) => joined,
                // never: they adjoin, and are this domain's
                None => return self.flush(scope),
            };
        }
        Ok(whole)
    }

    /// Starts an invalidation that may be waited for at any later time, or polled.
    pub fn start(&self, scope: Scope) -> Result<Started<I::Token>, Failed> {
        self.sequence.start(self.p, self.unit, self.id, scope)
    }

    /// Completes an allocation by `completion`, for its next holder.
    pub fn complete_alloc(&self, retired: Retired<Resource>, by: &Completion) -> Option<IovaAlloc> {
        match retired.complete(by).map(Flushed::split) {
            Ok(Split::Iova(alloc)) => Some(alloc.into_inner()),
            Ok(Split::Frame(frame)) => {
                debug_assert!(false, "a frame is no allocation");
                self.p.frame_free(OURS, frame.into_fresh());
                None
            }
            Err((retired, why)) => {
                debug_assert!(false, "{why}");
                self.quarantine.put(retired);
                None
            }
        }
    }

    /// Completes `retired` by `completion` and frees it.
    pub fn complete(&self, origin: CpuIndex, retired: Retired<Resource>, completion: &Completion) {
        if let Some(flushed) = self.completed(retired, completion) {
            self.free(origin, flushed);
        }
    }

    /// Completes `retired` by `completion`.
    #[inline]
    pub fn completed(
        &self,
        retired: Retired<Resource>,
        completion: &Completion,
    ) -> Option<Flushed<Resource>> {
        match retired.complete(completion) {
            Ok(flushed) => Some(flushed),
            Err((retired, why)) => {
                self.unsettled(retired, why);
                None
            }
        }
    }

    /// Callers pair things with completions that cover them, so this is a bug; losing
    /// the resource is safe.
    #[cold]
    #[inline(never)]
    fn unsettled(&self, retired: Retired<Resource>, why: CompleteError) {
        debug_assert!(false, "{why}");
        self.quarantine.put(retired);
    }

    pub fn free(&self, origin: CpuIndex, flushed: Flushed<Resource>) {
        match flushed.split() {
            Split::Iova(alloc) => self.allocator.free(self.p, origin, alloc),
            Split::Frame(frame) => self.p.frame_free(OURS, frame.into_fresh()),
        }
    }
}

enum Split {
    Iova(Flushed<IovaAlloc>),
    Frame(Flushed<TableFrame>),
}

impl Flushed<Resource> {
    /// Keeps the proof while taking the variant apart.
    fn split(self) -> Split {
        match self.get() {
            Resource::Iova(_) => Split::Iova(self.map(|what| match what {
                Resource::Iova(alloc) => alloc,
                Resource::Frame(_) => unreachable!("just looked"),
            })),
            Resource::Frame(_) => Split::Frame(self.map(|what| match what {
                Resource::Frame(frame) => frame,
                Resource::Iova(_) => unreachable!("just looked"),
            })),
        }
    }
}

/// What failed invalidations should have freed. It is counted and never used again.
pub(crate) struct Quarantine<P: Platform> {
    pages: P::A64,
    frames: P::A64,
}

impl<P: Platform> Quarantine<P> {
    pub fn new() -> Self {
        Quarantine {
            pages: P::A64::new(0),
            frames: P::A64::new(0),
        }
    }
    pub fn put(&self, retired: Retired<Resource>) {
        let mut held = Held::default();
        held.add(&retired.quarantine());
        self.lose(held);
    }
    /// Frames that no `Retired` stands for.
    pub fn lose_frames(&self, frames: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
    }
    /// What has been given up already.
    pub fn lose(&self, held: Held) {
        self.pages.fetch_add(held.pages.0, Ordering::Relaxed);
        self.lose_frames(held.frames);
    }
    pub fn held(&self) -> Held {
        Held {
            pages: PageCount(self.pages.load(Ordering::Relaxed)),
            frames: self.frames.load(Ordering::Relaxed),
        }
    }
}
