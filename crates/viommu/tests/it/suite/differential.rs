// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lists of operations against a naive model: a map of pages, and the allocations in a list.
//!
//! Under strict every access does just what the model says. Under a deferred policy a page that is
//! not mapped may still lead where it led, if it was unmapped since the last flush; what is mapped
//! is exact there too.

use crate::suite::{operations::*, rig::*};
use ioatlas_dma::{
    design::Design,
    domain::*,
    platform::HeapBlock,
    table::{
        Format,
        fmt::{VtdSecond39, VtdSecond57},
    },
    units::*,
};
use ioatlas_host::Host;
use ioatlas_sim::platform::Sim;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What a device is to find.
#[derive(Default)]
struct Model {
    pages: BTreeMap<u64, (PhysPage, Perm)>,
    /// How many mappings share a page, beyond the first.
    more: BTreeMap<u64, u64>,
    /// Unmapped since the last flush, and where it led.
    stale: BTreeMap<u64, (PhysPage, Perm)>,
}

enum Held {
    Mapping(Mapping),
    Memory(Consistent),
}

/// A live mapping: the domain's token, its pages, and the pages allocated for it.
struct Live {
    held: Held,
    range: IovaRange,
    alloc: IovaRange,
}

/// Where physical pages begin that are mapped here.
const FIRST_PAGE: u64 = 0x100;

/// An unmap that is begun: what the device may find of it still, and the pages that it holds.
struct Started<'r, B: Base, F: Format> {
    pending: Pending<'r, B, F>,
    gone: BTreeMap<u64, (PhysPage, Perm)>,
    allocs: Vec<IovaRange>,
}

struct Run<'r, B: Base, F: Format> {
    rig: &'r Rig<B>,
    design: DomainConfig,
    domain: &'r Dom<B, F>,
    after: Afterwards,
    model: Model,
    live: Vec<Live>,
    started: Vec<Started<'r, B, F>>,
    next_page: u64,
    now: u64,
}

impl<B: Base, F: Format> Run<'_, B, F> {
    /// Physical pages that were not used before, so that a wrong one is told from a right one;
    /// where buffers share pages, some of a few.
    fn fresh(&mut self, pages: u64) -> u64 {
        if self.domain.domain().shared().is_some() {
            self.next_page = FIRST_PAGE + (self.next_page + 3) % 8;
            return self.next_page;
        }
        let first = self.next_page;
        self.next_page += pages + 1;
        first
    }

    /// Whether no retired things are left but those of unmaps that are begun, which are under
    /// strict alone; and invalidations so far.
    fn flushes(&self) -> (bool, u64) {
        let stats = self.domain.domain().stats();
        let none = stats.retired == Default::default() || !self.started.is_empty();
        (none, stats.invalidations)
    }

    fn allocated(&self, range: IovaRange) -> bool {
        let held = self.started.iter().flat_map(|started| &started.allocs);
        let live = self.live.iter().map(|live| &live.alloc);
        live.chain(held).any(|alloc| alloc.overlaps(&range))
    }

    fn shares(&self, range: IovaRange) -> bool {
        let shared = self.domain.domain().shared();
        shared.is_some_and(|shared| shared.overlaps(&range))
    }

    /// How many pages an allocation has.
    fn granted(&self, pages: u64) -> u64 {
        match self.design.allocator {
            AllocatorConfig::Kmalloc(_) => pages.max(HeapBlock::MIN.0).next_power_of_two(),
            _ => pages.next_power_of_two(),
        }
    }

    /// Whether an aligned range of so many pages is free. Page 0 is given only to callers
    /// that ask for it.
    fn fits(&self, granted: u64) -> bool {
        let end = F::aperture().end().0;
        if end > 1 << 10 {
            return true; // the larger formats never fill up here
        }
        (0..end / granted)
            .map(|n| IovaRange::new(IovaPage(n * granted), PageCount(granted)))
            .any(|range| range.first.0 > 0 && !self.allocated(range))
    }

    fn mapped(&mut self, held: Held, range: IovaRange, fixed: bool, to: Vec<PhysPage>, perm: Perm) {
        let granted = self.granted(range.pages.0);
        let shares = self.shares(range);
        let alloc = if shares {
            // its own address, by its permission (ATC'15 §4.1)
            let quarter = F::aperture().pages.0 / 4;
            let region = [(Perm::Read, 1), (Perm::Write, 2), (Perm::ReadWrite, 3)];
            let region = region.iter().find(|(p, _)| *p == perm).map_or(0, |r| r.1);
            assert_eq!(range.first.0, region * quarter + to[0].0);
            range
        } else if fixed {
            range
        } else {
            assert_eq!(range.first.0 % granted, 0, "{range} is aligned");
            IovaRange::new(range.first, PageCount(granted))
        };
        assert!(F::aperture().contains(&alloc), "{alloc}");
        assert!(
            shares || !self.allocated(alloc),
            "{alloc} is allocated already"
        );
        assert_eq!(to.len() as u64, range.pages.0);
        for (page, to) in range.iter().zip(to) {
            if let Some(there) = self.model.pages.insert(page.0, (to, perm)) {
                assert_eq!(there, (to, perm), "P6, P9: shared as it is");
                *self.model.more.entry(page.0).or_default() += 1;
            }
        }
        self.live.push(Live { held, range, alloc });
    }

    /// A map that was tried: the mapping, or no room, if there is none indeed.
    fn placed(&self, result: Result<Mapping, MapError>, pages: u64) -> Option<Mapping> {
        let granted = self.granted(pages);
        match result {
            Ok(mapping) => Some(mapping),
            Err(MapError::NoIova(_)) if !self.fits(granted) => None,
            Err(error) => panic!("{pages} pages: {error}"),
        }
    }

    /// Takes its pages out of the model; those that no other mapping has, and where they led.
    fn forget(&mut self, range: IovaRange) -> Vec<(u64, (PhysPage, Perm))> {
        let mut retired = Vec::new();
        for page in range.iter().map(|page| page.0) {
            match self.model.more.get_mut(&page).filter(|more| **more > 0) {
                Some(more) => *more -= 1,
                None => {
                    let was = self.model.pages.remove(&page).expect("it was mapped");
                    retired.push((page, was));
                }
            }
        }
        retired
    }

    /// By one call, that is perhaps only begun. Consistent memory among them is left as it is.
    fn unmap_batch(&mut self, batch: Vec<Live>, starts: bool) {
        let (mut mappings, mut retired) = (Vec::new(), Vec::new());
        let mut allocs = Vec::new();
        for live in batch {
            match live.held {
                Held::Mapping(mapping) => {
                    retired.extend(self.forget(live.range));
                    mappings.push(mapping);
                    allocs.extend((!self.shares(live.range)).then_some(live.alloc));
                }
                Held::Memory(_) => self.live.push(live),
            }
        }
        let (_, before) = self.flushes();
        let (domain, mut mappings) = (self.domain, mappings.into_iter());
        if starts {
            let pending = domain.unmap_start(&mut mappings);
            if self.design.policy == PolicyConfig::Strict {
                self.started.push(Started {
                    pending,
                    gone: retired.into_iter().collect(),
                    allocs,
                });
                return;
            }
            pending.finish().expect("all are this domain's");
        } else {
            let ended = domain.unmap_batch(&mut mappings);
            ended.expect("all are this domain's");
        }
        if self.flushes().1 != before && self.after != Afterwards::Kept {
            self.model.stale.clear(); // what was there before this call is flushed
        }
        self.model.stale.extend(retired);
    }

    /// The unit answers at once, so that what was begun is over when it is asked for.
    fn finish(&mut self, which: usize, asks: bool) {
        if self.started.is_empty() {
            return;
        }
        let mut started = self.started.swap_remove(which % self.started.len());
        assert!(!asks || started.pending.is_done());
        started.pending.finish().expect("all are this domain's");
    }

    fn unmap(&mut self, live: Live, raw: bool) {
        let retired = self.forget(live.range);
        let raw = raw && !self.shares(live.range);
        let (_, before) = self.flushes();
        match live.held {
            Held::Mapping(mapping) if raw => self.domain.unmap_raw(mapping).unwrap(),
            Held::Mapping(mapping) => self.domain.unmap(mapping).unwrap(),
            Held::Memory(memory) => self.domain.free_consistent(memory).unwrap(),
        }
        if self.flushes().1 != before && self.after != Afterwards::Kept {
            self.model.stale.clear(); // what was there before this call is flushed
        }
        self.model.stale.extend(retired);
    }

    fn access(&self, page: u64, kind: AccessKind) {
        let reached = self.rig.access(IovaPage(page), kind);
        let expected = |pages: &BTreeMap<u64, (PhysPage, Perm)>| {
            let entry = pages.get(&page).filter(|(_, perm)| perm.allows(kind));
            entry.map(|(to, _)| *to)
        };
        let exact = expected(&self.model.pages);
        let may = if self.model.pages.contains_key(&page) {
            None
        } else {
            let mut begun = self.started.iter();
            let begun = begun.find_map(|started| expected(&started.gone));
            expected(&self.model.stale).or(begun)
        };
        assert!(
            reached == exact || reached == may,
            "{kind:?} of {page:#x}: {reached:?}, not {exact:?} (stale: {may:?})"
        );
        // (None is among what a stale page may do; a mapped one has no choice)
        if exact.is_some() || may.is_none() {
            assert_eq!(reached, exact, "{kind:?} of {page:#x}");
        }
    }

    fn apply(&mut self, op: Op) {
        let before = self.flushes().1;
        let mut retires = false;
        let maps = matches!(
            op,
            Op::Map { .. } | Op::List { .. } | Op::MapAt { .. } | Op::Consistent { .. }
        );
        match op {
            Op::Map {
                pages,
                offset,
                direction,
            } => {
                let first = self.fresh(pages + 1);
                let addr = PhysAddr(PhysPage(first).addr().0 + offset);
                let len = ByteCount(pages * GRANULE - GRANULE / 2);
                let touched = (offset + len.0).div_ceil(GRANULE);
                let result = self.domain.map(PhysRange::new(addr, len), direction);
                if let Some(mapping) = self.placed(result, touched) {
                    let range = mapping.range();
                    let to = (first..first + touched).map(PhysPage).collect();
                    self.mapped(Held::Mapping(mapping), range, false, to, direction.perm());
                }
            }
            Op::List {
                segments,
                direction,
            } => {
                let list: Vec<_> = segments
                    .iter()
                    .map(|pages| buffer(self.fresh(*pages), *pages))
                    .collect();
                let to: Vec<_> = list
                    .iter()
                    .flat_map(|b| (b.addr.page().0..b.addr.page().0 + b.pages().0).map(PhysPage))
                    .collect();
                let result = self.domain.map_list(&list, direction);
                if let Some(mapping) = self.placed(result, to.len() as u64) {
                    let range = mapping.range();
                    self.mapped(Held::Mapping(mapping), range, false, to, direction.perm());
                }
            }
            Op::MapAt {
                page,
                pages,
                direction,
            } => {
                let range = IovaRange::new(IovaPage(page), PageCount(pages));
                let free = F::aperture().contains(&range) && !self.allocated(range);
                // a heap says nothing of a range, so it can be had while nothing in the arena is
                // allocated
                let heap = matches!(self.design.allocator, AllocatorConfig::Kmalloc(_));
                let first = self.fresh(pages);
                let result =
                    self.domain
                        .map_at(range.first.addr(), buffer(first, pages), direction);
                match result {
                    Ok(mapping) => {
                        assert!(free, "{range} was not free");
                        let to = (first..first + pages).map(PhysPage).collect();
                        self.mapped(Held::Mapping(mapping), range, true, to, direction.perm());
                    }
                    Err(error) => {
                        assert!(matches!(error, MapError::NoReserve(_)), "{error}");
                        assert!(!free || heap, "{range} was free: {error}");
                    }
                }
            }
            Op::Consistent { pages } => {
                match self.domain.alloc_consistent(ByteCount(pages * GRANULE)) {
                    Ok(memory) => {
                        let range = IovaRange::new(memory.iova().page(), PageCount(pages));
                        let to = memory.frames().iter().map(|f| f.page()).collect();
                        let held = Held::Memory(memory);
                        self.mapped(held, range, false, to, Perm::ReadWrite);
                    }
                    Err(error) => {
                        assert!(matches!(error, MapError::NoIova(_)), "{error}");
                        assert!(!self.fits(self.granted(pages)), "{error}");
                    }
                }
            }
            Op::Unmap(which) | Op::Raw(which) if !self.live.is_empty() => {
                let live = self.live.swap_remove(which % self.live.len());
                // there is no address API for consistent memory's frames
                let raw = matches!(op, Op::Raw(_));
                self.unmap(live, raw);
                retires = true;
            }
            Op::Unmap(_) | Op::Raw(_) => {}
            Op::Batch(which, most) => {
                let from = which % (self.live.len() + 1);
                let to = self.live.len().min(from + most);
                let batch = self.live.drain(from..to).collect();
                self.unmap_batch(batch, false);
                retires = true;
            }
            Op::Start(which, most) => {
                let from = which % (self.live.len() + 1);
                let to = self.live.len().min(from + most);
                let batch = self.live.drain(from..to).collect();
                self.unmap_batch(batch, true);
                retires = true;
            }
            Op::Finish(which, asks) => self.finish(which, asks),
            Op::Access(page, kind) => self.access(page, kind),
            Op::AccessMapped(which, page, kind) => {
                if let Some(live) = self.live.get(which % self.live.len().max(1)) {
                    self.access((live.range.first.0 + page).saturating_sub(1), kind);
                }
            }
            Op::Flush => self.domain.domain().flush().unwrap(),
            Op::Tick(ms) => {
                self.now += ms * 1_000_000;
                self.domain.tick(TimeNs(self.now)).unwrap();
            }
            Op::Shrink => {
                self.domain.domain().shrink();
            }
        }
        // A flush ends all that was stale before it. Unmap may flush in the middle, and knows what
        // is its own.
        let (nothing_retired, after) = self.flushes();
        // what is shared is not counted while it is retired
        let shares = self.domain.domain().shared().is_some() && self.after != Afterwards::Never;
        let nothing_retired = nothing_retired && !shares;
        // (Where maps flush, they flush their own pages, which are no longer stale as they are
        // mapped: under solaris, and in the place of an empty table. Or they drain all, and nothing
        // is retired then.)
        let of_all = after != before && !retires && !maps && self.after != Afterwards::Kept;
        if nothing_retired || of_all {
            self.model.stale.clear();
        }
        let strict = self.after == Afterwards::Never;
        assert!(!strict || self.model.stale.is_empty(), "strict");
        let audit = self.domain.domain().audit().unwrap();
        assert_eq!(audit.census.pages.0, self.model.pages.len() as u64);
    }
}

/// Which design and which tables, of all that there are under a format.
type Choice = (prop::sample::Index, prop::sample::Index);

fn run<B: Base, F: Format>(ops: Vec<Op>, (design, tables): Choice, variant: Variant) {
    let domain = *design.get(&core_designs::<F>());
    let tables = *tables.get(&all_tables());
    let design = Design { domain, tables };
    let rig = Rig::<B>::with::<F>(512, |config| {
        config.features.largest_leaf = 3;
        variant.apply(config);
    });
    let watched = rig.domain::<F>(design);
    let mut run = Run {
        domain: &watched,
        rig: &rig,
        design: domain,
        after: afterwards(&domain),
        model: Model::default(),
        live: Vec::new(),
        started: Vec::new(),
        next_page: FIRST_PAGE,
        now: 0,
    };
    for op in ops {
        run.apply(op);
    }
    let pages: Vec<u64> = run
        .model
        .pages
        .keys()
        .chain(run.model.stale.keys())
        .copied()
        .collect();
    for page in &pages {
        run.access(*page, AccessKind::Read);
        run.access(*page, AccessKind::Write);
    }
    while let Some(live) = run.live.pop() {
        run.unmap(live, false);
    }
    while !run.started.is_empty() {
        run.finish(0, false);
    }
    run.domain.domain().flush().unwrap();
    run.model.stale.clear();
    for page in pages.into_iter().chain(0..64) {
        run.access(page, AccessKind::Read);
    }
    drop(run);
    rig.close(watched, &[NIC]);
    rig.end();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn host_toy(ops in ops(), choice: Choice, variant in variant()) {
        run::<Host, Small>(ops, choice, variant);
    }
    #[test]
    fn host_vtd39(ops in ops(), choice: Choice, variant in variant()) {
        run::<Host, VtdSecond39>(ops, choice, variant);
    }
    #[test]
    fn host_vtd(ops in ops(), choice: Choice, variant in variant()) {
        run::<Host, Vtd>(ops, choice, variant);
    }
    #[test]
    fn host_wide(ops in ops(), choice: Choice, variant in variant()) {
        run::<Host, Wide>(ops, choice, variant);
    }
    #[test]
    fn sim_toy(ops in ops(), choice: Choice, variant in variant()) {
        run::<Sim, Small>(ops, choice, variant);
    }
    #[test]
    fn sim_vtd(ops in ops(), choice: Choice, variant in variant()) {
        run::<Sim, Vtd>(ops, choice, variant);
    }
    #[test]
    fn sim_vtd57(ops in ops(), choice: Choice, variant in variant()) {
        run::<Sim, VtdSecond57>(ops, choice, variant);
    }
    #[test]
    fn sim_wide(ops in ops(), choice: Choice, variant in variant()) {
        run::<Sim, Wide>(ops, choice, variant);
    }
}
