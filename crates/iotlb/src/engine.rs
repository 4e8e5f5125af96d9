// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs steps through an IOTLB and counts.
//!
//! An unmap removes its pages from the IOTLB and from the prefetch buffer (strict,
//! page-selective invalidation). A map touches neither, except that a strategy may
//! prefetch once the mapping is installed. An access is looked for in the IOTLB, then in
//! the buffer; unless it hit, it is filled into the IOTLB, and after that (and the
//! eviction) the strategy may prefetch.
//!
//! Generic over cache, strategy and observer, so that the loop of each is compiled for
//! it alone.

use crate::buffer::Buffer;
use crate::cache::{Cache, Found, Span, Tag};
use crate::classify::Class;
use crate::event::DeviceId;
use crate::runs::Runs;
use crate::setup::{Setup, Trigger};
use crate::step::{Operation, Step, flag};
use crate::strategy::{Ending, Filled, Mapped, Prefetch, Ranked, Strategy};
use crate::units::IovaPage;
use crate::walk::WalkCaches;

/// Sees how each access ends; accesses (faults included) are numbered from 0.
pub(crate) trait Observer {
    fn access(&mut self, number: u64, ending: Ending);
}

/// Observes nothing, at no cost.
impl Observer for () {
    #[inline]
    fn access(&mut self, _: u64, _: Ending) {}
}

impl<F: FnMut(u64, Ending)> Observer for F {
    #[inline]
    fn access(&mut self, number: u64, ending: Ending) {
        self(number, ending);
    }
}

/// What a run counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub accesses: u64,
    pub hits: u64,
    pub prefetch_hits: u64,
    pub misses: u64,
    pub faults: u64,
    pub prefetches: u64,
    pub evictions: u64,
    pub invalidations: u64,
    pub memory_reads: u64,
    pub prefetch_reads: u64,
}

/// A simulation on its way.
pub(crate) struct Engine<C, S, O> {
    iotlb: C,
    buffer: Buffer,
    walks: WalkCaches,
    strategy: S,
    observer: O,
    trigger: Trigger,
    /// By device: what its pages are moved by to find their sets.
    offsets: Vec<u64>,
    /// By device, for strategies that ask for any page: what is mapped.
    mapped: Vec<Runs<()>>,
    steps: u64,
    counts: Counts,
}

impl<C: Cache, S: Strategy, O: Observer> Engine<C, S, O> {
    /// `offsets` has an element a device, each below the number of sets.
    pub fn new(setup: &Setup, strategy: S, offsets: Vec<u64>, observer: O) -> Self {
        let asked = if S::ASKS_ANY_PAGE { offsets.len() } else { 0 };
        let entries = if S::PREFETCHES {
            setup.buffer_entries()
        } else {
            0
        };
        Self {
            iotlb: C::with_shape(setup.geometry),
            buffer: Buffer::new(entries),
            walks: WalkCaches::new(&setup.walks, setup.view()),
            strategy,
            observer,
            trigger: setup.trigger,
            mapped: vec![Runs::default(); asked],
            offsets,
            steps: 0,
            counts: Counts::default(),
        }
    }

    /// Runs the next steps.
    pub fn run(&mut self, steps: &[Step]) {
        for &step in steps {
            self.steps += 1;
            match step.operation() {
                Operation::Access => self.access(step),
                Operation::Fault => {
                    self.counts.faults += 1;
                    self.end(Ending::Fault);
                }
                Operation::Map => self.map(step),
                Operation::Unmap => self.unmap(step),
            }
        }
    }

    /// The counts so far, with the walks' memory reads and those for prefetches filled in.
    pub fn finish(&self) -> Counts {
        Counts {
            memory_reads: self.walks.reads(),
            prefetch_reads: self.counts.prefetches * self.walks.longest(),
            ..self.counts
        }
    }

    #[inline]
    fn end(&mut self, ending: Ending) {
        self.observer.access(self.counts.accesses, ending);
        self.counts.accesses += 1;
    }

    #[inline]
    fn access(&mut self, step: Step) {
        let tag = step.tag();
        let offset = self.offsets[tag.device as usize];
        let rank = if S::RANKS {
            self.strategy.rank(&Ranked {
                device: DeviceId(tag.device),
                page: IovaPage::known(tag.page),
                class: class(step),
                step: (self.steps - 1) as usize,
                mapped_over: false,
            })
        } else {
            0
        };
        let home = tag.page + offset;
        let evicted = match self.iotlb.access(tag, home, self.steps, rank) {
            Found::Hit => {
                self.counts.hits += 1;
                return self.end(Ending::Hit);
            }
            Found::Filled { evicted } => evicted,
        };
        self.counts.evictions += u64::from(evicted);
        let ending = if S::PREFETCHES && self.buffer.take(tag) {
            self.counts.prefetch_hits += 1;
            Ending::PrefetchHit
        } else {
            self.counts.misses += 1;
            self.walks.walk(tag);
            Ending::Miss
        };
        let asked = ending == Ending::Miss || self.trigger == Trigger::MissOrPrefetchHit;
        if S::PREFETCHES && asked {
            let filled = Filled {
                device: DeviceId(tag.device),
                page: IovaPage::known(tag.page),
                class: class(step),
                ending,
            };
            let next = step.has(flag::NEXT).then(|| tag.page + 1);
            let previous = step.has(flag::PREVIOUS).then(|| tag.page - 1);
            let mut inserter = Inserter {
                iotlb: &self.iotlb,
                buffer: &mut self.buffer,
                device: tag.device,
                offset,
                mapped: self.mapped.get(tag.device as usize),
                next,
                previous,
                inserted: &mut self.counts.prefetches,
            };
            self.strategy.after_fill(&filled, &mut inserter);
        }
        self.end(ending);
    }

    #[inline]
    fn map(&mut self, step: Step) {
        let span = step.span();
        let Span {
            device,
            first,
            last,
        } = span;
        if S::ASKS_ANY_PAGE {
            self.mapped[device as usize].insert(first, last, ());
        }
        let offset = self.offsets[device as usize];
        if S::RANKS && step.has(flag::REPLACES) {
            let (strategy, steps) = (&mut self.strategy, self.steps);
            self.iotlb.rerank(span, offset, |page| {
                strategy.rank(&Ranked {
                    device: DeviceId(device),
                    page: IovaPage::known(page),
                    class: class(step),
                    step: (steps - 1) as usize,
                    mapped_over: true,
                })
            });
        }
        if S::PREFETCHES {
            let opens_first = step.has(flag::OPENS_FIRST).then_some(first);
            let opens_last = step.has(flag::OPENS_LAST).then_some(last);
            let mapped = Mapped {
                device: DeviceId(device),
                first: IovaPage::known(first),
                last: IovaPage::known(last),
                class: class(step),
                opens_group_at: opens_first.or(opens_last).map(IovaPage::known),
            };
            let mut inserter = Inserter {
                iotlb: &self.iotlb,
                buffer: &mut self.buffer,
                device,
                offset,
                mapped: self.mapped.get(device as usize),
                next: None,
                previous: None,
                inserted: &mut self.counts.prefetches,
            };
            self.strategy.after_map(&mapped, &mut inserter);
        }
    }

    #[inline]
    fn unmap(&mut self, step: Step) {
        let span = step.span();
        if S::ASKS_ANY_PAGE {
            self.mapped[span.device as usize].take(span.first, span.last, |_, _, _| {});
        }
        let offset = self.offsets[span.device as usize];
        self.counts.invalidations += self.iotlb.remove(span, offset);
        if S::PREFETCHES {
            self.buffer.remove(span);
        }
        if step.has(flag::REMOVES) {
            self.walks.unmapped(span.device);
        }
    }
}

#[inline]
fn class(step: Step) -> Class {
    if step.has(flag::STREAMING) {
        Class::Streaming
    } else {
        Class::Consistent
    }
}

/// Puts what a strategy prefetches into the buffer, unless it is there or in the IOTLB.
struct Inserter<'a, C> {
    iotlb: &'a C,
    buffer: &'a mut Buffer,
    device: u32,
    offset: u64,
    /// `None` where the strategy asks only for what it knows to be mapped.
    mapped: Option<&'a Runs<()>>,
    next: Option<u64>,
    previous: Option<u64>,
    inserted: &'a mut u64,
}

impl<C: Cache> Inserter<'_, C> {
    #[inline]
    fn insert(&mut self, page: u64) {
        let tag = Tag {
            device: self.device,
            page,
        };
        if self.buffer.is_none()
            || self.buffer.contains(tag)
            || self.iotlb.contains(tag, page + self.offset)
        {
            return;
        }
        self.buffer.insert(tag);
        *self.inserted += 1;
    }
}

impl<C: Cache> Prefetch for Inserter<'_, C> {
    #[inline]
    fn next(&mut self) {
        if let Some(page) = self.next {
            self.insert(page);
        }
    }

    #[inline]
    fn previous(&mut self) {
        if let Some(page) = self.previous {
            self.insert(page);
        }
    }

    #[inline]
    fn page(&mut self, page: IovaPage) {
        let page = page.number();
        if self.mapped.is_none_or(|mapped| mapped.get(page).is_some()) {
            self.insert(page);
        }
    }
}
