// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What every implementation keeps beside its translations: pins, the order of invalidations, what
//! is evicted, the hook, counters.

use super::*;
use ioatlas_dma::units::*;
use std::collections::VecDeque;

/// Invalidations that are remembered for [`DeviceIotlb::update_since`]. Questions older than that
/// are answered in vain.
const REMEMBERED: usize = 64;
/// Runs that are looked at for one eviction, or fewer where one of a single page is found. The one
/// of fewest pages goes: what a storm of misses brings are single pages, so that it throws out its
/// own before the long runs of static mappings. As many, since draws need not be even: of runs a
/// third of which are long, 16 draws find long ones alone once in 43 million evictions,
/// four once in 81.
const CANDIDATES: usize = 16;
/// Draws for one eviction, as some are pinned.
const DRAWS: usize = 64;

pub(crate) struct Upkeep {
    pins: Vec<Span>,
    limits: Limits,
    /// Invalidations begun so far; the last [`REMEMBERED`] of them, newest last.
    begun: u64,
    last: VecDeque<Span>,
    random: u64,
    pub hook: Option<Box<dyn Fn(Removed) + Send + Sync>>,
    pub stats: Stats,
}

impl Upkeep {
    pub fn new(limits: Limits) -> Self {
        Upkeep {
            pins: Vec::new(),
            limits,
            begun: 0,
            last: VecDeque::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            hook: None,
            stats: Stats::default(),
        }
    }

    pub fn now(&self) -> Moment {
        Moment(self.begun)
    }
    /// Counts an invalidation as begun, and remembers it for [`beats`](Self::beats).
    pub fn invalidated(&mut self, span: Span) {
        self.begun += 1;
        self.stats.invalidations += 1;
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(span);
    }
    /// Whether an invalidation that began since `asked` names any of `span`, as
    /// far as is remembered.
    pub fn beats(&self, span: Span, asked: Moment) -> bool {
        let since = self.begun.saturating_sub(asked.0);
        since > self.last.len() as u64
            || self
                .last
                .iter()
                .rev()
                .take(since as usize)
                .any(|gone| gone.and(span).is_some())
    }

    pub fn tell(&self, span: Span, cause: RemovalCause) {
        if let Some(hook) = &self.hook {
            let (iova, len) = (span.iova(), span.len());
            hook(Removed { iova, len, cause });
        }
    }

    pub fn pin(&mut self, iova: Iova, len: ByteCount) -> Result<(), PinError> {
        let span = Span::touched(iova, len).map_err(|why| PinError::Range { iova, len, why })?;
        if self.pins.len() >= self.limits.pins as usize {
            let limit = self.limits.pins;
            return Err(PinError::TooMany { limit });
        }
        self.pins.push(span);
        Ok(())
    }
    pub fn unpin(&mut self, iova: Iova, len: ByteCount) {
        let Ok(span) = Span::touched(iova, len) else {
            return;
        };
        if let Some(at) = self.pins.iter().position(|pin| *pin == span) {
            self.pins.swap_remove(at);
        }
    }

    /// Chooses the run that is evicted: of some drawn at random, neither pinned nor touching
    /// `keep`, the smallest. Where draws find none, the first that will do. Both are asked for
    /// numbers below `count`: `near` for draws, which may answer for a number near by,
    /// and `nth` for all.
    pub fn victim(
        &mut self,
        keep: Span,
        count: usize,
        near: impl Fn(usize) -> Option<Span>,
        nth: impl Fn(usize) -> Option<Span>,
    ) -> Option<Span> {
        let mut best: Option<Span> = None;
        let mut candidates = 0;
        for _ in 0..DRAWS {
            let drawn = near(self.draw(count)?);
            let Some(span) = drawn.filter(|span| self.may_go(*span, keep)) else {
                continue;
            };
            if best.is_none_or(|best| span.pages() < best.pages()) {
                best = Some(span);
            }
            candidates += 1;
            if candidates == CANDIDATES || span.pages() == 1 {
                break;
            }
        }
        best.or_else(|| {
            let mut all = (0..count).filter_map(&nth);
            all.find(|span| self.may_go(*span, keep))
        })
    }
    fn may_go(&self, span: Span, keep: Span) -> bool {
        let pinned = |span: Span| self.pins.iter().any(|pin| pin.and(span).is_some());
        span.and(keep).is_none() && !pinned(span)
    }
    /// Below `end`; `None` if that is 0. xorshift64* (Vigna, ACM TOMS 42, 2016): a few lines that
    /// are not worth a dependency.
    fn draw(&mut self, end: usize) -> Option<usize> {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let word = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (end > 0).then(|| ((word * end as u64) >> 32) as usize)
    }
}
