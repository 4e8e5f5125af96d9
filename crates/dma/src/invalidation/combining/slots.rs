// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where requests are published: some slots a CPU, on lines of its own.

use super::*;

/// Slots of a CPU: a task's, and those of interrupts that nest, or of tasks that were moved away.
const OF_A_CPU: usize = 4;

/// Which slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotId(u32);

impl SlotId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
    /// Not 0.
    pub fn word(self) -> u64 {
        u64::from(self.0) + 1
    }
}

/// Of one request at a time.
pub(super) struct Slot<P: Platform> {
    /// A generation, and below it one of those that follow.
    state: P::A64,
    first: P::A64,
    /// The pages' count, and in the lowest bit whether walk caches are reached.
    pages_and_caches: P::A64,
    /// Looks in vain, of whoever waits.
    looks: P::A64,
    /// Which generations have failed: the one before this one in bit 0, the one before that in bit
    /// 1, and in [`OLDER`] whether any before those did.
    failures: P::A64,
}

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const PUBLISHED: u64 = 2;
const TAKEN: u64 = 3;
const BITS: u32 = 2;
const OLDER: u64 = 1 << 63;

fn word(generation: u64, state: u64) -> u64 {
    generation << BITS | state
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Waits,
    Done,
    /// Some request of the slot has failed; [`Slot::has_failed`] tells which.
    DoneOrFailed,
}

pub(super) struct Slots<P: Platform>(PerCpu<[Slot<P>; OF_A_CPU]>);

impl<P: Platform> Slots<P> {
    pub fn new(p: &P) -> Self {
        Slots(PerCpu::new(p, || core::array::from_fn(|_| Slot::new())))
    }
    pub fn count(&self) -> usize {
        self.0.cpus() * OF_A_CPU
    }
    pub fn ids(&self) -> impl Iterator<Item = SlotId> + use<P> {
        (0..self.count() as u32).map(SlotId)
    }
    pub fn at(&self, id: SlotId) -> &Slot<P> {
        let (cpu, nth) = (id.index() / OF_A_CPU, id.index() % OF_A_CPU);
        &self.0.at(CpuIndex(cpu))[nth]
    }

    /// Publishes a request in a slot of CPU `cpu`, unless none is free.
    pub fn publish(
        &self,
        cpu: CpuIndex,
        pages: IovaRange,
        caches: Caches,
    ) -> Option<(SlotId, u64)> {
        let of_cpu = self.0.at(cpu).iter().enumerate();
        let (nth, slot, generation) = of_cpu
            .into_iter()
            .find_map(|(nth, slot)| Some((nth, slot, slot.claim()?)))?;
        slot.fill(pages, caches);
        slot.state
            .store(word(generation, PUBLISHED), Ordering::Release);
        Some((SlotId((cpu.0 * OF_A_CPU + nth) as u32), generation))
    }
}

impl<P: Platform> Slot<P> {
    fn new() -> Self {
        Slot {
            state: P::A64::new(word(0, FREE)),
            first: P::A64::new(0),
            pages_and_caches: P::A64::new(0),
            looks: P::A64::new(0),
            failures: P::A64::new(0),
        }
    }

    /// The generation of whoever has it then, if it was free.
    fn claim(&self) -> Option<u64> {
        let now = self.state.load(Ordering::Relaxed);
        let generation = now >> BITS;
        let claimed = word(generation, CLAIMED);
        // acquire: what was read of it before comes before what is written now
        let (done, lost) = (Ordering::Acquire, Ordering::Relaxed);
        let won = now == word(generation, FREE)
            && self
                .state
                .compare_exchange(now, claimed, done, lost)
                .is_ok();
        won.then_some(generation)
    }
    fn fill(&self, pages: IovaRange, caches: Caches) {
        let walks = u64::from(caches == Caches::LeavesAndWalks);
        self.first.store(pages.first.0, Ordering::Relaxed);
        self.pages_and_caches
            .store(pages.pages.0 << 1 | walks, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
    }

    /// What became of the request of that generation.
    pub fn state(&self, generation: u64) -> State {
        let now = self.state.load(Ordering::Acquire) >> BITS;
        if now == generation {
            return State::Waits;
        }
        // at least as new as the generation that was read, as that was an acquire
        match self.failures.load(Ordering::Relaxed) {
            0 => State::Done,
            _ => State::DoneOrFailed,
        }
    }
    /// Whether the request of that generation, which is over, has failed. For whoever holds the
    /// rounds, under whose lock both words change.
    pub fn has_failed(&self, generation: u64) -> bool {
        let now = self.state.load(Ordering::Relaxed) >> BITS;
        let age = now - generation - 1;
        let bit = if age < 63 { 1 << age } else { OLDER };
        self.failures.load(Ordering::Relaxed) & bit != 0
    }
    /// Counts a look in vain.
    pub fn has_looked(&self) -> u64 {
        let looks = self.looks.load(Ordering::Relaxed) + 1;
        self.looks.store(looks, Ordering::Relaxed);
        looks
    }

    /// For whoever holds the round: takes the request, if one is published.
    pub fn take(&self) -> Option<(IovaRange, Caches)> {
        let now = self.state.load(Ordering::Acquire);
        let generation = now >> BITS;
        if now != word(generation, PUBLISHED) {
            return None;
        }
        // nobody else changes one that is published
        self.state.store(word(generation, TAKEN), Ordering::Relaxed);
        let first = IovaPage(self.first.load(Ordering::Relaxed));
        let pages = self.pages_and_caches.load(Ordering::Relaxed);
        let caches = match pages & 1 {
            0 => Caches::Leaves,
            _ => Caches::LeavesAndWalks,
        };
        Some((IovaRange::new(first, PageCount(pages >> 1)), caches))
    }
    /// For whoever holds the round: the request that was taken is done, or has failed.
    pub fn free(&self, failed: bool) {
        let generation = self.state.load(Ordering::Relaxed) >> BITS;
        let before = self.failures.load(Ordering::Relaxed);
        let older = (before | before << 1) & OLDER;
        let failures = (before << 1) & !OLDER | older | u64::from(failed);
        self.failures.store(failures, Ordering::Relaxed);
        self.state
            .store(word(generation + 1, FREE), Ordering::Release);
    }
}
