// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where mappings end: what is pending, and the calls that end it. To the core this is the
//! invalidation engine.
//!
//! Invariants: a range is in `records`, in `pending`, with the thread that holds `turn`, or
//! nowhere. So a thread that has held `turn` and found its range nowhere knows that the kernel has
//! ended it. What the kernel refused to end is pending again before `turn` is free.
//!
//! What went wrong with a range fails one invalidation: the first that covers it and comes after.
//! Each range has one to come when it becomes pending. It may fail since the kernel refuses to end
//! the range; then what becomes of the range later fails no other (`Told`), since those that it
//! would fail have other ranges to free, all of which would be lost.

use super::{
    locked,
    records::Record,
    shared::{Shared, Taken},
};
use crate::{kernel::Errno, space::AddressSpace};
use ioatlas_dma::{
    invalidation::{Caches, Invalidate, InvalidateError, Scope},
    table::{Cleared, InstallCause},
    units::*,
};
use std::sync::{Condvar, Mutex, PoisonError};

/// Ends mappings. See the module's theory.
pub struct Ending<S: AddressSpace> {
    pub(super) space: S,
    pending: Mutex<Vec<Pending>>,
    shared: Mutex<Shared>,
    /// A page of `shared` is mapped now, or could not be.
    changed: Condvar,
    turn: Mutex<Turn>,
}

/// A mapping whose record is gone, and which the kernel still has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    range: IovaRange,
    /// How many mappings it is to the kernel.
    calls: u64,
    told: Told,
}

/// Whether an invalidation that covers a range has failed since the kernel refused to end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    No,
    Yes,
}

/// What only the holder of `turn` sees.
#[derive(Default)]
struct Turn {
    counts: Unmaps,
    /// What the kernel did not have, or not all of it: told to the first invalidation that covers
    /// it, which takes all that it covers.
    missing: Vec<(IovaRange, InvalidateError)>,
    /// Why what is pending still could not be ended.
    stuck: Option<Errno>,
    /// Empty: the room of the list that was pending before.
    spare: Vec<Pending>,
}

/// What was asked of the kernel.
#[derive(Clone, Copy, Default)]
pub(super) struct Unmaps {
    pub made: u64,
    pub refused: u64,
    /// Mappings that it ended.
    pub ended: u64,
}

/// Neighbours in one stretch.
struct Stretch {
    range: IovaRange,
    calls: u64,
    told: Told,
    parts: std::ops::Range<usize>,
}

/// Puts neighbours of a sorted list together, those that were told of apart from the others.
fn stretches(sorted: &[Pending]) -> impl Iterator<Item = Stretch> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = sorted.get(at)?;
        let mut stretch = Stretch {
            range: first.range,
            calls: first.calls,
            told: first.told,
            parts: at..at + 1,
        };
        while let Some(next) = sorted.get(stretch.parts.end)
            && next.told == stretch.told
            && next.range.first == stretch.range.end()
        {
            stretch.range.pages.0 = next.range.end().0 - stretch.range.first.0;
            stretch.calls += next.calls;
            stretch.parts.end += 1;
        }
        at = stretch.parts.end;
        Some(stretch)
    })
}

impl<S: AddressSpace> Ending<S> {
    pub(super) fn new(space: S) -> Self {
        Ending {
            space,
            pending: Mutex::default(),
            shared: Mutex::default(),
            changed: Condvar::new(),
            turn: Mutex::default(),
        }
    }

    pub(super) fn calls(&self) -> Unmaps {
        locked(&self.turn).counts
    }

    /// Notes mappings that are to end.
    pub(super) fn pend(&self, gone: impl IntoIterator<Item = (IovaRange, Record)>) {
        let pending = gone.into_iter().map(|(range, record)| Pending {
            range,
            calls: record.calls(),
            told: Told::No,
        });
        locked(&self.pending).extend(pending);
    }

    /// Ends everything that is pending, or has waited for the thread that did.
    pub(super) fn end_all(&self) {
        let mut turn = locked(&self.turn);
        self.end(&mut turn, |_| false);
    }

    /// Ends everything that is pending. `fails` says of a range that is refused whether an
    /// invalidation fails now that covers it.
    fn end(&self, turn: &mut Turn, fails: impl Fn(&IovaRange) -> bool) {
        turn.stuck = None;
        // the two lists change places, so that neither is made anew
        let mut sorted = std::mem::take(&mut turn.spare);
        std::mem::swap(&mut sorted, &mut *locked(&self.pending));
        sorted.sort_unstable_by_key(|part| part.range.first);
        for stretch in stretches(&sorted) {
            let Err(errno) = self.end_stretch(turn, stretch.range, stretch.calls, stretch.told)
            else {
                continue;
            };
            // one by one: what the kernel refuses is not to keep its neighbours
            let parts = &sorted[stretch.parts];
            for part in parts {
                let ended = match parts.len() {
                    1 => Err(errno),
                    _ => self.end_stretch(turn, part.range, part.calls, part.told),
                };
                if let Err(errno) = ended {
                    turn.stuck = Some(errno);
                    let told = match fails(&part.range) {
                        true => Told::Yes,
                        false => part.told,
                    };
                    locked(&self.pending).push(Pending { told, ..*part });
                }
            }
        }
        sorted.clear();
        turn.spare = sorted;
        // held across the calls: a new map of one of these pages must find it there or gone
        let mut shared = locked(&self.shared);
        let idle = shared.idle();
        let pages = idle.into_iter().map(|(page, told)| Pending {
            range: IovaRange::new(page, PageCount(1)),
            calls: 1,
            told,
        });
        for stretch in stretches(&pages.collect::<Vec<_>>()) {
            match self.end_stretch(turn, stretch.range, stretch.calls, stretch.told) {
                Ok(()) => shared.ended(stretch.range),
                Err(errno) => {
                    turn.stuck = Some(errno);
                    shared.refused(stretch.range, &fails);
                }
            }
        }
    }

    /// One call. An error is one after which the kernel still has the mappings.
    fn end_stretch(
        &self,
        turn: &mut Turn,
        range: IovaRange,
        calls: u64,
        told: Told,
    ) -> Result<(), Errno> {
        let len = ByteCount(range.pages.0 << GRANULE_LG2);
        let ended = self.space.unmap(range.first.addr(), len);
        turn.counts.made += 1;
        let ended = match ended {
            // how iommufd says that there was nothing
            Err(Errno::NOENT) => ByteCount(0),
            Err(errno) => {
                turn.counts.refused += 1;
                return Err(errno);
            }
            Ok(ended) => ended,
        };
        turn.counts.ended += calls;
        if ended != len && told == Told::No {
            let found = PageCount(ended.0 >> GRANULE_LG2);
            let missing = InvalidateError::Missing { range, found };
            turn.missing.push((range, missing));
        }
        Ok(())
    }

    /// Takes one more of each page of `range`, whose memory begins at `first`; `map` maps a page
    /// that no mapping has.
    pub(super) fn share(
        &self,
        range: IovaRange,
        first: PhysPage,
        map: impl Fn(IovaPage, PhysPage) -> Result<(), InstallCause>,
    ) -> Result<(), (PageCount, InstallCause)> {
        for (nth, at) in (0..).zip(range.iter()) {
            let page = PhysPage(first.0 + nth);
            let taken = self.share_page(at, page, || map(at, page));
            taken.map_err(|cause| (PageCount(nth), cause))?;
        }
        Ok(())
    }
    fn share_page(
        &self,
        at: IovaPage,
        page: PhysPage,
        map: impl FnOnce() -> Result<(), InstallCause>,
    ) -> Result<(), InstallCause> {
        let mut shared = locked(&self.shared);
        loop {
            match shared.take_one(at, page) {
                Taken::Yes => return Ok(()),
                Taken::No(cause) => return Err(cause),
                Taken::ByUs => break,
                Taken::ByAnother => {
                    let woken = self.changed.wait(shared);
                    shared = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        // not while we hold the lock: where the kernel is full, mapping ends what is pending, idle
        // pages of `shared` among it
        drop(shared);
        let mapped = map();
        locked(&self.shared).begun(at, mapped.is_ok());
        self.changed.notify_all();
        mapped
    }
    /// Takes one away of each page of `range`.
    pub(super) fn unshare(&self, range: IovaRange) -> Cleared {
        locked(&self.shared).give(range)
    }
    pub(super) fn unshare_all(&self) {
        locked(&self.shared).give_all();
    }
    /// Pages that are shared, and how often they are mapped.
    pub(super) fn shared_pages(&self) -> (PageCount, PageCount) {
        locked(&self.shared).census()
    }

    pub(super) fn audit(&self) -> Result<(), String> {
        let mut pending = locked(&self.pending).clone();
        pending.sort_unstable_by_key(|part| part.range.first);
        let overlaps = |pair: &[Pending]| pair[0].range.overlaps(&pair[1].range);
        if let Some(pair) = pending.windows(2).find(|pair| overlaps(pair)) {
            let (one, other) = (pair[0].range, pair[1].range);
            return Err(format!("{one} and {other} are both to be ended"));
        }
        locked(&self.shared).audit()
    }

    /// Ends everything that is pending; fails where something went wrong with a range `within` what
    /// is invalidated.
    fn invalidate(&self, within: impl Fn(&IovaRange) -> bool) -> Result<(), InvalidateError> {
        let mut turn = locked(&self.turn);
        self.end(&mut turn, &within);
        // all of it, whichever is told: nothing of it is to fail another invalidation
        let mut told = Ok(());
        turn.missing.retain(|(range, missing)| {
            let is_within = within(range);
            if is_within && told.is_ok() {
                told = Err(*missing);
            }
            !is_within
        });
        match turn.stuck {
            Some(errno) if self.is_stuck(within) => Err(InvalidateError::Host { errno: errno.0 }),
            _ => told,
        }
    }

    /// Whether something `within` what is invalidated could not be ended.
    fn is_stuck(&self, within: impl Fn(&IovaRange) -> bool) -> bool {
        let own = locked(&self.pending).iter().any(|p| within(&p.range));
        own || locked(&self.shared).has_idle(within)
    }
}

// SAFETY: by `AddressSpace`, nothing that was pending is reached any more when the calls that
// `submit` makes return; where one did not obey, that is said.
unsafe impl<S: AddressSpace> Invalidate for Ending<S> {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();

    /// Ends all that is pending, which is at least what was cleared before in `scope`.
    fn submit(&self, _domain: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        self.invalidate(|range| scope.pages.is_none_or(|pages| pages.overlaps(range)))
    }
    /// The same of ranges. What lies between them fails no invalidation of theirs.
    fn submit_ranges(
        &self,
        _domain: DomainId,
        ranges: &[IovaRange],
        _caches: Caches,
    ) -> Result<(), InvalidateError> {
        self.invalidate(|range| {
            ranges.is_empty() || ranges.iter().any(|pages| pages.overlaps(range))
        })
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}
