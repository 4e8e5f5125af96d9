// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The state of a run on virtual time: clocks, which CPU waits for what, and what
//! each point is charged.

use crate::{
    platform::{Sim, YieldPoint, scheduler::*},
    timing::{
        account::{Account, Categories, Category, Way},
        lines::{LineId, Lines, Place, Taken, Want},
        locks::{LockState, Locks},
        params::{LockModel, Params},
        topology::{CpuSet, Topology},
        turns::{Turn, Turns},
    },
};
use core::{cmp::Reverse, panic::Location};
use ioatlas_dma::units::PhysPage;
use std::collections::BinaryHeap;

/// Lines that a waiting CPU watches at most. Wait loops of the core read two; that of a CPU which
/// leads a round of combined invalidations five, locks included.
pub(crate) const WATCHED: usize = 8;
/// A sleeping CPU looks again after so long, whatever happens.
const OVERSLEPT: u64 = 1_000_000;
/// The slot of devices in [`Turns`]; CPU `n` has slot `n + 1`.
pub(crate) const DEVICES: usize = 0;

/// What a CPU is in the middle of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Runs,
    /// It was not its turn when it came to a point.
    Due,
    /// Waits for a lock.
    Queued,
    /// Was handed the lock that it waited for.
    Handed,
    /// Sleeps in a wait loop, since then.
    Asleep {
        since: u64,
    },
}

pub(crate) struct CpuState {
    pub(crate) now: u64,
    pub(crate) phase: Phase,
    pub(crate) scope: Category,
    pub(crate) account: Account,
    pub(crate) next_tick: u64,
    pub(crate) watched: [Option<LineId>; WATCHED],
    /// More lines were read than are watched, or one of them has changed.
    pub(crate) restless: bool,
}

/// A device writes a word of memory at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceWrite {
    pub(crate) time: u64,
    /// Of writes at one time, the one asked for first is first.
    order: u64,
    page: PhysPage,
    index: usize,
    value: u64,
}

pub(crate) struct State {
    pub(crate) params: Params,
    pub(crate) topology: Topology,
    pub(crate) cpus: Vec<CpuState>,
    pub(crate) turns: Turns,
    /// No other CPU or device has a turn before this.
    pub(crate) horizon: Turn,
    pub(crate) asleep: CpuSet,
    pub(crate) lines: Lines,
    pub(crate) locks: Locks,
    pub(crate) categories: Categories,
    pub(crate) writes: BinaryHeap<Reverse<DeviceWrite>>,
    pub(crate) writes_asked: u64,
    pub(crate) tick_period: u64,
    pub(crate) points: u64,
    pub(crate) switches: u64,
}

impl State {
    /// All CPUs at time 0; `tick` is the CPU that has a timer, and its period.
    pub(crate) fn new(
        params: Params,
        topology: Topology,
        lines: Lines,
        tick: Option<(usize, u64)>,
    ) -> Self {
        let mut turns = Turns::new(topology.cpus + 1);
        let cpus = (0..topology.cpus).map(|cpu| {
            turns.set(cpu + 1, 0);
            let ticks = tick.filter(|(on, _)| *on == cpu);
            CpuState {
                now: 0,
                phase: Phase::Runs,
                scope: Category::Outside,
                account: Account::default(),
                next_tick: ticks.map_or(u64::MAX, |(_, period)| period),
                watched: [None; WATCHED],
                restless: false,
            }
        });
        State {
            cpus: cpus.collect(),
            turns,
            horizon: Turn::NEVER,
            asleep: CpuSet::EMPTY,
            lines,
            locks: Locks::new(),
            categories: Categories::new(),
            writes: BinaryHeap::new(),
            writes_asked: 0,
            tick_period: tick.map_or(0, |(_, period)| period),
            points: 0,
            switches: 0,
            params,
            topology,
        }
    }
    pub(crate) fn spend(&mut self, cpu: usize, category: Category, way: Way, cycles: u64) {
        let me = &mut self.cpus[cpu];
        me.now += cycles;
        me.account.add(category, way, cycles);
    }

    /// What an access at `location` is for.
    pub(crate) fn category(
        &mut self,
        cpu: usize,
        location: &'static Location<'static>,
    ) -> Category {
        let scope = self.cpus[cpu].scope;
        self.categories.of(location).unwrap_or(scope)
    }

    pub(crate) fn devices_turn(&mut self) {
        match self.writes.peek() {
            Some(Reverse(next)) => self.turns.set(DEVICES, next.time),
            None => self.turns.clear(DEVICES),
        }
    }

    /// Lets a device write word `index` of page `page` at time `time`.
    pub(crate) fn write_at(&mut self, time: u64, page: PhysPage, index: usize, value: u64) {
        self.writes_asked += 1;
        self.writes.push(Reverse(DeviceWrite {
            time,
            order: self.writes_asked,
            page,
            index,
            value,
        }));
        self.devices_turn();
        self.horizon = self.horizon.min(Turn::new(time, DEVICES));
    }

    /// A device writes what is next.
    pub(crate) fn device_write(&mut self, memory: &Sim) {
        let next = self.writes.pop();
        self.devices_turn();
        let Some(Reverse(write)) = next else { return };
        // what is no memory takes no write
        let Some(word) = memory.word_at(write.page, write.index) else {
            return;
        };
        word.poke(write.value);
        let address = core::ptr::from_ref(word).addr();
        let line = self.lines.at(address, Location::caller());
        let lost = self.lines.device_writes(line);
        self.disturb(lost, line, write.time);
    }

    /// CPUs that wait and watch `line`, which changed at time `now`, look again.
    pub(crate) fn disturb(&mut self, lost: CpuSet, line: LineId, now: u64) {
        for cpu in lost.iter() {
            let asleep = self.asleep.has(cpu);
            let other = &mut self.cpus[cpu];
            if !other.watched.contains(&Some(line)) {
                continue;
            }
            other.restless = true;
            if asleep {
                self.asleep.remove(cpu);
                let wakes = other.now.max(now);
                self.turns.set(cpu + 1, wakes);
                self.horizon = self.horizon.min(Turn::new(wakes, cpu + 1));
            }
        }
    }

    /// What instructions before a point cost.
    pub(crate) fn step(&self, category: Category) -> u64 {
        match category {
            Category::Iova => self.params.step_iova,
            Category::Tables => self.params.step_tables,
            Category::Invalidation => self.params.step_invalidation,
            Category::Other | Category::Outside => self.params.step_other,
        }
    }
    pub(crate) fn section(&self, category: Category) -> u64 {
        match category {
            Category::Iova => self.params.section_iova,
            Category::Invalidation => self.params.section_invalidation,
            Category::Tables | Category::Other | Category::Outside => self.params.section_other,
        }
    }

    pub(crate) fn access(&mut self, cpu: usize, category: Category, line: LineId, want: Want) {
        let now = self.cpus[cpu].now;
        let Taken { cycles, hit, lost } = self.lines.access(cpu, line, want, now);
        let way = if hit { Way::Compute } else { Way::Transfer };
        self.spend(cpu, category, way, cycles);
        if !lost.is_empty() {
            let now = self.cpus[cpu].now;
            self.disturb(lost, line, now);
        }
    }

    pub(crate) fn watch(&mut self, cpu: usize, line: LineId) {
        let me = &mut self.cpus[cpu];
        if me.watched.contains(&Some(line)) {
            return;
        }
        match me.watched.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(line),
            None => me.restless = true,
        }
    }

    pub(crate) fn word(&mut self, p: &SchedulerEvent, category: Category, address: usize) {
        let line = self.lines.at(address, p.location);
        let want = match p.point {
            YieldPoint::Load => Want::Read,
            _ => Want::Write,
        };
        self.access(p.agent, category, line, want);
        match p.point {
            YieldPoint::Load => self.watch(p.agent, line),
            YieldPoint::Store => {}
            _ => self.spend(p.agent, category, Way::Compute, self.params.atomic),
        }
    }

    pub(crate) fn lock(
        &mut self,
        p: &SchedulerEvent,
        category: Category,
        place: LockPlace,
    ) -> usize {
        let lines = &mut self.lines;
        self.locks.at(place.address, |lock| {
            let parts = 0..place.bytes.div_ceil(64);
            let parts = parts.map(|part| {
                let called = Place::Lock {
                    lock: lock as u32,
                    part: part as u32,
                };
                lines.object(place.address + 64 * part, called, p.location)
            });
            LockState::new(parts.collect(), place.data, p.location, category)
        })
    }

    /// Returns whether the CPU has the lock; if not, it waits for it, unless it only tries.
    pub(crate) fn acquire(
        &mut self,
        p: &SchedulerEvent,
        category: Category,
        place: LockPlace,
    ) -> Then {
        let cpu = p.agent;
        let lock = self.lock(p, category, place);
        let own = self.locks.all[lock].lines[0];
        let held = self.locks.all[lock].holder.is_some();
        let want = match (held, self.params.lock_model) {
            (true, LockModel::TestAndSet) => Want::Read,
            _ => Want::Write,
        };
        self.access(cpu, category, own, want);
        // what it guards changes by a holder only, which writes the lock's line first
        self.watch(cpu, own);
        self.spend(cpu, category, Way::Compute, self.params.atomic);
        let now = self.cpus[cpu].now;
        let state = &mut self.locks.all[lock];
        if held && p.point == YieldPoint::TryAcquire {
            return Then::Refused;
        }
        state.use_.taken += 1;
        if held {
            state.use_.contended += 1;
            state.wait(cpu, now);
            self.cpus[cpu].phase = Phase::Queued;
            return Then::SwitchAndAsk;
        }
        state.holder = Some(cpu);
        self.enter(cpu, category, lock);
        Then::Go
    }

    /// CPU `cpu` has got the lock: what it guards comes along.
    pub(crate) fn enter(&mut self, cpu: usize, category: Category, lock: usize) {
        // none of these lines waits for another, so their transfers overlap
        let (now, mut longest) = (self.cpus[cpu].now, 0);
        for part in 1..self.locks.all[lock].lines.len() {
            let line = self.locks.all[lock].lines[part];
            let taken = self.lines.access(cpu, line, Want::Write, now);
            longest = longest.max(taken.cycles);
        }
        self.spend(cpu, category, Way::Transfer, longest);
        if let Some(last) = self.locks.all[lock].last_holder.filter(|last| *last != cpu) {
            let moved = self.params.guarded_lines * self.lines.distance(last, cpu);
            self.spend(cpu, category, Way::Transfer, moved);
        }
        self.spend(cpu, category, Way::Compute, self.section(category));
    }

    pub(crate) fn release(&mut self, p: &SchedulerEvent, category: Category, place: LockPlace) {
        let cpu = p.agent;
        let lock = self.lock(p, category, place);
        let model = self.params.lock_model;
        let wanted = self.locks.all[lock].is_wanted();
        // a queue's holder writes to the next waiter, not to the lock
        if !(wanted && model == LockModel::Queue) {
            let own = self.locks.all[lock].lines[0];
            self.access(cpu, category, own, Want::Write);
        }
        let now = self.cpus[cpu].now;
        let state = &mut self.locks.all[lock];
        let Some(next) = state.hand_over(model, &mut self.lines, self.topology, now) else {
            return;
        };
        let category = state.category;
        let other = &mut self.cpus[next.to];
        other.account.add(category, Way::Lock, next.waited);
        other.now = next.at;
        other.phase = Phase::Handed;
        self.turns.set(next.to + 1, next.at);
        self.horizon = self.horizon.min(Turn::new(next.at, next.to + 1));
    }

    pub(crate) fn relax(&mut self, cpu: usize, category: Category) -> Then {
        self.spend(cpu, category, Way::Wait, self.params.pause);
        let me = &mut self.cpus[cpu];
        let awake = core::mem::take(&mut me.restless) || me.watched[0].is_none();
        if awake {
            me.watched = [None; WATCHED];
            return Then::Go;
        }
        let since = me.now;
        me.phase = Phase::Asleep { since };
        let until = me.next_tick.min(since + OVERSLEPT).max(since);
        self.asleep.insert(cpu);
        self.turns.set(cpu + 1, until);
        Then::SwitchAndAsk
    }

    pub(crate) fn wake(&mut self, cpu: usize, category: Category, way: Way, since: u64) {
        self.asleep.remove(cpu);
        let me = &mut self.cpus[cpu];
        me.phase = Phase::Runs;
        me.restless = false;
        me.watched = [None; WATCHED];
        let slept = me.now - since;
        me.account.add(category, way, slept);
    }

    /// What the CPU does is done, but for the access itself.
    pub(crate) fn act(&mut self, p: &SchedulerEvent, category: Category) -> Then {
        let (cpu, params) = (p.agent, &self.params);
        let plain = match (p.point, p.subject) {
            (_, Subject::Word(address)) => {
                self.word(p, category, address);
                return Then::Go;
            }
            (YieldPoint::Acquire | YieldPoint::TryAcquire, Subject::Lock(place)) => {
                return self.acquire(p, category, place);
            }
            (YieldPoint::Release, Subject::Lock(place)) => {
                self.release(p, category, place);
                return Then::Go;
            }
            (YieldPoint::Relax, _) => return self.relax(cpu, category),
            (YieldPoint::Fence, _) => params.fence,
            (YieldPoint::Pin, _) => params.pin,
            (YieldPoint::Contend, _) => panic!(
                "the lock at {} is held, and was free by all that was seen",
                p.location
            ),
            (YieldPoint::FrameAlloc, _) => params.frame_alloc,
            (YieldPoint::FrameFree, _) => params.frame_free,
            _ => 0,
        };
        self.spend(cpu, category, Way::Compute, plain);
        Then::Go
    }
}
