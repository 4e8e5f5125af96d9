// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The scheduler by virtual time.
//!
//! # Theory
//!
//! Each CPU has a clock. The one whose clock is least runs, of equals the one with the lowest
//! number, and runs ahead for as long as that is so; what is private to it (instructions, work)
//! only moves its clock. At a point it first pays for the instructions before it; if another one is
//! then earlier, that one goes first. So accesses to anything shared happen in the order of virtual
//! time, and a run depends on nothing else.
//!
//! **Waiting** in a loop: a CPU that relaxes sleeps until a line changes that it has read since it
//! relaxed last, as one does that spins on lines in its cache, or until its timer is due; the line
//! of a lock that it has taken counts as read. One that has read more lines than are watched, or
//! none, just pauses. So looks that find nothing new are not made one by one, and what counts looks
//! counts fewer than on hardware.
//!
//! **Devices** write memory at set times ([`Timed::at`]); they are no agents.

use crate::{
    platform::{Sim, YieldPoint, scheduler::*},
    timing::{
        account::{Account, Category, Way},
        lines::{LINE, Lines},
        params::Params,
        state::{CpuState, DEVICES, Phase, State},
        topology::Topology,
        turns::Turn,
    },
};
use core::{ops::Range, panic::Location};
use ioatlas_dma::units::PhysPage;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

/// A run on virtual time.
pub(crate) struct Timed {
    state: RefCell<State>,
    memory: Arc<Sim>,
    /// Whether the running CPU's timer is due: asked at each point.
    tick_due: Cell<bool>,
    running: Cell<usize>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Timed>>> = const { RefCell::new(None) };
}

/// The run of this thread, for callers without a handle to it: `None` outside of one.
pub(crate) fn current() -> Option<Rc<Timed>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Sets the run of this thread until it is dropped.
pub(crate) struct Entered;

impl Entered {
    pub(crate) fn new(run: Rc<Timed>) -> Self {
        CURRENT.set(Some(run));
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// What comes next in a run.
pub(crate) enum Next {
    /// This CPU goes on.
    Cpu(usize),
    /// All have ended, or wait for locks that no CPU will release.
    NoCpu,
}

impl Timed {
    pub(crate) fn new(
        params: Params,
        topology: Topology,
        memory: Arc<Sim>,
        frames: usize,
        tick: Option<(usize, u64)>,
    ) -> Self {
        let lines = Lines::new(&params, topology, memory.host_address(), frames);
        Timed {
            state: RefCell::new(State::new(params, topology, lines, tick)),
            memory,
            tick_due: Cell::new(false),
            running: Cell::new(0),
        }
    }

    pub(crate) fn state(&self) -> core::cell::RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Which CPU goes on. Devices whose time has come have written.
    pub(crate) fn next(&self) -> Next {
        loop {
            let mut state = self.state.borrow_mut();
            let first = state.turns.first();
            if first == Turn::NEVER {
                return Next::NoCpu;
            }
            if first.slot() == DEVICES {
                state.device_write(&self.memory);
                continue;
            }
            let cpu = first.slot() - 1;
            state.turns.clear(cpu + 1);
            state.horizon = state.turns.first();
            state.switches += 1;
            let me = &mut state.cpus[cpu];
            me.now = me.now.max(first.time());
            self.tick_due.set(me.now >= me.next_tick);
            self.running.set(cpu);
            return Next::Cpu(cpu);
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.get()
    }
    pub(crate) fn now(&self, cpu: usize) -> u64 {
        self.state.borrow().cpus[cpu].now
    }
    /// Work that touches nothing shared.
    pub(crate) fn work(&self, cpu: usize, category: Option<Category>, cycles: u64) {
        let mut state = self.state.borrow_mut();
        let category = category.unwrap_or(state.cpus[cpu].scope);
        state.spend(cpu, category, Way::Compute, cycles);
        self.look_at_timer(&state.cpus[cpu]);
    }
    /// Does nothing until time `until`.
    pub(crate) fn idle(&self, cpu: usize, until: u64) {
        let mut state = self.state.borrow_mut();
        let left = until.saturating_sub(state.cpus[cpu].now);
        let category = state.cpus[cpu].scope;
        state.spend(cpu, category, Way::Wait, left);
        self.look_at_timer(&state.cpus[cpu]);
    }
    /// Sets what time is spent for where the source file does not say; returns what it was.
    pub(crate) fn scope(&self, cpu: usize, category: Category) -> Category {
        core::mem::replace(&mut self.state.borrow_mut().cpus[cpu].scope, category)
    }
    pub(crate) fn account(&self, cpu: usize) -> Account {
        self.state.borrow().cpus[cpu].account
    }
    /// Lets a device write word `index` of physical page `page` at time `time`.
    pub(crate) fn at(&self, time: u64, page: PhysPage, index: usize, value: u64) {
        self.state.borrow_mut().write_at(time, page, index, value);
    }

    fn look_at_timer(&self, cpu: &CpuState) {
        self.tick_due.set(cpu.now >= cpu.next_tick);
    }
}

impl Scheduler for Timed {
    fn pass(&self, p: &SchedulerEvent) -> Then {
        let state = &mut *self.state.borrow_mut();
        let cpu = p.agent;
        let category = state.category(cpu, p.location);
        match state.cpus[cpu].phase {
            Phase::Runs => {
                state.points += 1;
                if p.point != YieldPoint::Turn {
                    state.spend(cpu, category, Way::Compute, state.step(category));
                }
                let now = state.cpus[cpu].now;
                if Turn::new(now, cpu + 1) > state.horizon {
                    state.cpus[cpu].phase = Phase::Due;
                    state.turns.set(cpu + 1, now);
                    return Then::SwitchAndAsk;
                }
            }
            Phase::Due => state.cpus[cpu].phase = Phase::Runs,
            Phase::Handed => {
                state.cpus[cpu].phase = Phase::Runs;
                if let Subject::Lock(place) = p.subject {
                    let lock = state.lock(p, category, place);
                    state.enter(cpu, category, lock);
                }
                self.look_at_timer(&state.cpus[cpu]);
                return Then::Go;
            }
            Phase::Asleep { since } => {
                state.wake(cpu, category, Way::of_wait(p.location), since);
                self.look_at_timer(&state.cpus[cpu]);
                return Then::Go;
            }
            Phase::Queued => unreachable!("a CPU that waits for a lock is not resumed"),
        }
        let then = state.act(p, category);
        self.look_at_timer(&state.cpus[cpu]);
        then
    }

    fn due(&self, p: &SchedulerEvent) -> Option<usize> {
        if !self.tick_due.get() {
            return None;
        }
        let state = &mut *self.state.borrow_mut();
        let cpu = p.agent;
        let (now, period) = (state.cpus[cpu].now, state.tick_period);
        if now < state.cpus[cpu].next_tick {
            return None;
        }
        // or the handler's first point would be taken for the end of the sleep
        if let Phase::Asleep { since } = state.cpus[cpu].phase {
            let category = state.category(cpu, p.location);
            state.wake(cpu, category, Way::of_wait(p.location), since);
        }
        // a tick that was missed is not made up for
        while state.cpus[cpu].next_tick <= now {
            state.cpus[cpu].next_tick += period;
        }
        state.spend(cpu, Category::Other, Way::Compute, state.params.interrupt);
        self.look_at_timer(&state.cpus[cpu]);
        Some(0)
    }

    fn got_frame(&self, agent: usize, page: PhysPage) {
        let zeroed = page.0 as usize - 1; // frames are numbered from 1
        self.state.borrow_mut().lines.zeroed(agent, zeroed);
    }
    fn heap_called(&self, agent: usize, location: &'static Location<'static>) {
        let state = &mut *self.state.borrow_mut();
        let category = state.category(agent, location);
        state.spend(agent, category, Way::Compute, state.params.heap_call);
    }
    fn visited(&self, agent: usize, nodes: u64) {
        let state = &mut *self.state.borrow_mut();
        let cost = nodes * state.params.node;
        state.spend(agent, Category::Iova, Way::Compute, cost);
    }
    fn touched(&self, agent: usize, touch: &Touch, by: &'static Location<'static>) {
        let lines = &mut self.state.borrow_mut().lines;
        let Range { start, end } = touch.bytes;
        for line in start / LINE..end.div_ceil(LINE) {
            lines.note(agent, (touch.block, line), touch.of, by);
        }
    }
    fn freed(&self, block: usize) {
        self.state.borrow_mut().lines.freed(block);
    }
    fn steps(&self) -> u64 {
        self.state.borrow().points
    }
    fn name(&self, agent: usize) -> String {
        format!("CPU {agent}")
    }
}
