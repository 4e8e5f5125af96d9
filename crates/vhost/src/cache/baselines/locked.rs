// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The seed's way of meeting readers (KVM'17, "IOTLB cache implementation"): a cache for each
//! queue, under a reader-writer lock that a guard takes once.
//!
//! # Theory
//!
//! The writer keeps a copy of its own, and makes every change there first, then in each reader's
//! copy, for which it waits until the reader's guard is over. So an invalidation is done when the
//! call returns. Lock order: `writer -> copy`; a reader takes its copy's lock alone. What is
//! evicted is chosen in the writer's copy, so all copies stay alike.
//!
//! Not handled: a reader that goes from guard to guard without a break may keep the writer waiting,
//! as long as the standard library's lock lets it.

use super::*;
use ioatlas_dma::units::*;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

/// A store for each reader, under a lock.
pub struct Locked<S> {
    writer: Mutex<Writer<S>>,
    limits: Limits,
}

struct Writer<S> {
    own: S,
    readers: Vec<Weak<RwLock<Copied<S>>>>,
    generation: u64,
    upkeep: Upkeep,
}

/// What one reader looks at.
struct Copied<S> {
    store: S,
    generation: u64,
}

/// One reader of a [`Locked`].
pub struct LockedReader<S> {
    copy: Arc<RwLock<Copied<S>>>,
}

/// Its guard: the lock, held.
pub struct LockedGuard<'r, S> {
    copy: RwLockReadGuard<'r, Copied<S>>,
}

/// A panic elsewhere is reported there; every change is made whole before a lock is given back.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
fn written<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Store> Locked<S> {
    /// An empty cache. It has no use for [`Limits::tables`].
    pub fn new(mut limits: Limits) -> Arc<Self> {
        limits.runs = limits.runs_held();
        Arc::new(Locked {
            writer: Mutex::new(Writer {
                own: S::empty(),
                readers: Vec::new(),
                generation: 0,
                upkeep: Upkeep::new(limits),
            }),
            limits,
        })
    }
}

impl<S: Store> Writer<S> {
    /// The same change in every copy, the writer's first; hooks hear of the first only.
    fn change(&mut self, out: Option<(Span, RemovalCause)>, run: Option<Run>) -> u64 {
        let mut gone = 0;
        if let Some((span, cause)) = out {
            let upkeep = &self.upkeep;
            self.own.remove(span, &mut |run| {
                gone += 1;
                upkeep.tell(run.span, cause);
            });
            if gone > 0 || cause == RemovalCause::Invalidated {
                self.generation += 1;
            }
        }
        if let Some(run) = run {
            self.own.insert(run);
        }
        self.readers.retain(|copy| {
            let Some(copy) = copy.upgrade() else {
                return false;
            };
            let mut copy = written(&copy);
            if let Some((span, _)) = out {
                copy.store.remove(span, &mut |_| ());
            }
            if let Some(run) = run {
                copy.store.insert(run);
            }
            copy.generation = self.generation;
            true
        });
        gone
    }

    /// Whether there is room for an update of `keep`: for two more runs (a split and a new one),
    /// once others are evicted; or for one in the place of those that it replaces.
    fn make_room(&mut self, limit: u32, keep: Span) -> bool {
        while self.own.count() as u64 + 2 > u64::from(limit) {
            let (own, upkeep) = (&self.own, &mut self.upkeep);
            let nth = |place| own.nth(place).map(|run| run.span);
            let victim = upkeep.victim(keep, own.places(), nth, nth);
            let Some(victim) = victim else {
                // a run inside goes with the update, and then nothing is to be split
                return (0..own.places())
                    .filter_map(nth)
                    .any(|run| keep.contains(run));
            };
            self.change(Some((victim, RemovalCause::Evicted)), None);
            self.upkeep.stats.evictions += 1;
        }
        true
    }
}

impl<S: Store> private::Sealed for Locked<S> {}
impl<S: Store> private::Sealed for LockedReader<S> {}
impl<S: Store> private::Sealed for LockedGuard<'_, S> {}

impl<S: Store> DeviceIotlb for Locked<S> {
    type Reader = LockedReader<S>;
    const NAME: &'static str = S::NAME;

    fn reader(self: &Arc<Self>) -> Result<LockedReader<S>, ReaderError> {
        let mut writer = locked(&self.writer);
        writer.readers.retain(|copy| copy.strong_count() > 0);
        if writer.readers.len() >= self.limits.readers as usize {
            return Err(ReaderError {
                limit: self.limits.readers,
            });
        }
        let copy = Arc::new(RwLock::new(Copied {
            store: writer.own.clone(),
            generation: writer.generation,
        }));
        writer.readers.push(Arc::downgrade(&copy));
        Ok(LockedReader { copy })
    }

    fn update_since(&self, entry: Entry, asked: Moment) -> Result<Updated, UpdateError> {
        let run = entry.run()?;
        let mut writer = locked(&self.writer);
        if writer.upkeep.beats(run.span, asked) {
            writer.upkeep.stats.beaten += 1;
            return Ok(Updated::Beaten);
        }
        if writer
            .own
            .find(run.span.first)
            .and_then(|old| old.part(run.span))
            == Some(run)
        {
            return Ok(Updated::Unchanged);
        }
        if !writer.make_room(self.limits.runs, run.span) {
            writer.upkeep.stats.refused += 1;
            return Err(UpdateError::NoRoom { iova: entry.iova });
        }
        writer.change(Some((run.span, RemovalCause::Replaced)), Some(run));
        writer.upkeep.stats.updates += 1;
        Ok(Updated::Done)
    }

    fn now(&self) -> Moment {
        locked(&self.writer).upkeep.now()
    }

    fn start_invalidate(&self, iova: Iova, len: ByteCount) -> Invalidation {
        let mut writer = locked(&self.writer);
        if let Some(mut span) = Span::invalidated(iova, len) {
            let halved = writer.own.find(span.end);
            let halved = halved.filter(|run| run.span.first < span.first);
            if let Some(run) = halved
                && writer.own.count() >= self.limits.runs as usize
            {
                span.end = run.span.end; // there is no room for its two halves
            }
            writer.change(Some((span, RemovalCause::Invalidated)), None);
            writer.upkeep.invalidated(span);
        }
        Invalidation { number: 0 }
    }

    fn start_clear(&self) -> Invalidation {
        let mut writer = locked(&self.writer);
        writer.change(Some((Span::ALL, RemovalCause::Invalidated)), None);
        writer.upkeep.invalidated(Span::ALL);
        Invalidation { number: 0 }
    }

    fn is_done(&self, _: Invalidation) -> bool {
        true // the locks were waited for
    }

    fn pin(&self, iova: Iova, len: ByteCount) -> Result<(), PinError> {
        locked(&self.writer).upkeep.pin(iova, len)
    }

    fn unpin(&self, iova: Iova, len: ByteCount) {
        locked(&self.writer).upkeep.unpin(iova, len)
    }

    fn on_remove(&self, hook: Box<dyn Fn(Removed) + Send + Sync>) {
        locked(&self.writer).upkeep.hook = Some(hook);
    }

    fn stats(&self) -> Stats {
        let writer = locked(&self.writer);
        Stats {
            runs: writer.own.count() as u64,
            ..writer.upkeep.stats
        }
    }

    fn audit(&self) -> Result<Census, String> {
        let writer = locked(&self.writer);
        let mut census = census(&writer.own)?;
        for copy in writer.readers.iter().filter_map(Weak::upgrade) {
            let copy = copy.read().unwrap_or_else(PoisonError::into_inner);
            let theirs = self::census(&copy.store)?;
            if (theirs.runs, theirs.pages) != (census.runs, census.pages) {
                return Err(format!("a reader has {theirs}, the writer {census}"));
            }
            census.bytes += theirs.bytes;
        }
        Ok(census)
    }
}

/// Counts a store; its runs must not overlap, and must be found where they are.
fn census<S: Store>(store: &S) -> Result<Census, String> {
    let mut census = Census {
        bytes: store.bytes() as u64,
        ..Census::default()
    };
    for run in (0..store.places()).filter_map(|place| store.nth(place)) {
        for page in [run.span.first, run.span.end - 1] {
            if store.find(page) != Some(run) {
                return Err(format!("page {page:#x} of {} is not found in it", run.span));
            }
        }
        census.runs += 1;
        census.pages += run.span.pages();
    }
    if census.runs != store.count() as u64 {
        return Err(format!("{} runs are {}", store.count(), census.runs));
    }
    Ok(census)
}

impl<S: Store> IotlbReader for LockedReader<S> {
    type Guard<'r> = LockedGuard<'r, S>;
    #[inline]
    fn pin(&mut self) -> LockedGuard<'_, S> {
        let copy = self.copy.read().unwrap_or_else(PoisonError::into_inner);
        LockedGuard { copy }
    }
}

impl<S: Store> Guard for LockedGuard<'_, S> {
    #[inline]
    fn lookup(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError> {
        Span::touched(iova, len).map_err(|why| LookupError::Range { iova, len, why })?;
        match self.copy.store.piece(iova, len, need) {
            Some(piece) => piece,
            None => Err(LookupError::Miss(Miss {
                iova,
                len,
                need,
                cause: MissCause::Absent,
            })),
        }
    }
    fn generation(&self) -> Generation {
        Generation(self.copy.generation)
    }
}
