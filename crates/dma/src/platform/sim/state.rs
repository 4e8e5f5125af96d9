// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The state of a run: who waits for what, who goes on, which interrupts are due.

use super::{Cause, Event, Point, schedule::Chooser};
use crate::units::CpuIndex;
use core::panic::Location;
use corosensei::Yielder;
use std::collections::VecDeque;

/// Where an interrupt was delivered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeliveryPoint {
    /// Points passed by all, this one included.
    pub step: u64,
    /// Points passed by the interrupted CPU, this one included.
    pub cpu_access: u64,
    /// What the CPU was about to do or, for `Release` and `Unpin`, had just done.
    pub point: Point,
    /// Which line does it.
    pub location: &'static Location<'static>,
}

/// Why an agent is passed over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Relaxes(&'static Location<'static>),
    Contends(&'static Location<'static>),
}

pub(super) struct Armed {
    pub(super) at_access: u64,
    pub(super) handler: Box<dyn FnOnce()>,
}

pub(super) struct Agent {
    pub(super) name: String,
    pub(super) cpu: Option<CpuIndex>,
    accesses: u64,
    ended: bool,
    wait: Wait,
    pub(super) locks: u32,
    pub(super) pinned: bool,
    pub(super) handling: bool,
    armed: Vec<Armed>,
    pub(super) yielder: *const Yielder<(), ()>,
}

impl Agent {
    pub(super) fn new(name: String, cpu: Option<CpuIndex>, armed: Vec<Armed>) -> Self {
        Agent {
            name,
            cpu,
            accesses: 0,
            ended: false,
            wait: Wait::No,
            locks: 0,
            pinned: false,
            handling: false,
            armed,
            yielder: core::ptr::null(),
        }
    }
    fn masked(&self) -> bool {
        self.locks > 0 || self.pinned || self.handling
    }
}

/// What a run may use up.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) steps: u64,
    pub(super) patience: u64,
}

/// How many points a failure lists.
const RECENT: usize = 24;

pub(super) struct State {
    pub(super) agents: Vec<Agent>,
    pub(super) current: usize,
    chooser: Chooser,
    limits: Limits,
    pub(super) step: u64,
    pub(super) switches: u64,
    pub(super) trace: u64,
    pub(super) delivered: Vec<DeliveryPoint>,
    pub(super) failed: Option<Cause>,
    /// Turns of waiting since a shared word changed.
    pub(super) idle_turns: u64,
    recent: VecDeque<(usize, Point, &'static Location<'static>)>,
}

impl State {
    pub(super) fn new(agents: Vec<Agent>, chooser: Chooser, limits: Limits) -> Self {
        State {
            agents,
            current: 0,
            chooser,
            limits,
            step: 0,
            switches: 0,
            trace: 0,
            delivered: Vec::new(),
            failed: None,
            idle_turns: 0,
            recent: VecDeque::with_capacity(RECENT),
        }
    }

    pub(super) fn record(&mut self, point: Point, location: &'static Location<'static>) {
        self.step += 1;
        let step = (self.current as u64) << 8 | point as u64;
        self.trace = (self.trace.rotate_left(5) ^ step).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.agents[self.current].accesses += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((self.current, point, location));
    }

    /// An interrupt that is due and not masked, on the record.
    pub(super) fn due(
        &mut self,
        point: Point,
        location: &'static Location<'static>,
    ) -> Option<Armed> {
        let me = &mut self.agents[self.current];
        if me.masked() {
            return None;
        }
        let next = me.armed.iter().position(|a| a.at_access <= me.accesses)?;
        let armed = me.armed.remove(next);
        self.delivered.push(DeliveryPoint {
            step: self.step,
            cpu_access: me.accesses,
            point,
            location,
        });
        Some(armed)
    }

    /// Whether to switch now; if so `current` is the next, unless the run has failed.
    pub(super) fn decide(&mut self, point: Point, location: &'static Location<'static>) -> bool {
        if self.step > self.limits.steps {
            self.failed = Some(Cause::StepLimit {
                limit: self.limits.steps,
            });
            return true;
        }
        let wait = match point {
            Point::Relax => Wait::Relaxes(location),
            Point::Contend => Wait::Contends(location),
            _ if self.chooser.preempts(self.step) => Wait::No,
            _ => return false,
        };
        let me = self.current;
        self.agents[me].wait = wait;
        self.idle_turns += u64::from(wait != Wait::No);
        if self.choose(Some(me)) {
            return true;
        }
        if wait == Wait::No {
            return false;
        }
        // nobody can go on as things are: a new round for all, unless it is hopeless
        self.failed = self.hopeless();
        if self.failed.is_some() {
            return true;
        }
        self.wake();
        self.choose(Some(me))
    }

    /// Makes one that can go on, other than `but`, the current one.
    pub(super) fn choose(&mut self, but: Option<usize>) -> bool {
        let able = |(i, a): &(usize, &Agent)| !a.ended && a.wait == Wait::No && Some(*i) != but;
        let count = self.agents.iter().enumerate().filter(able).count();
        if count == 0 {
            return false;
        }
        let pick = if count == 1 {
            0
        } else {
            self.chooser.pick(count)
        };
        let next = self.agents.iter().enumerate().filter(able).nth(pick);
        let Some((next, _)) = next else { return false };
        self.current = next;
        self.switches += 1;
        true
    }

    fn hopeless(&self) -> Option<Cause> {
        let mut live = self.agents.iter().filter(|a| !a.ended);
        if live.all(|a| matches!(a.wait, Wait::Contends(_))) {
            return Some(Cause::DeadLock {
                waiting: self.waiting(),
            });
        }
        (self.idle_turns > self.limits.patience).then(|| Cause::NoProgress {
            turns: self.idle_turns,
            waiting: self.waiting(),
        })
    }

    fn waiting(&self) -> String {
        let words = self.agents.iter().filter_map(|a| match a.wait {
            Wait::Relaxes(at) if !a.ended => Some(format!("{} waits at {at}", a.name)),
            Wait::Contends(at) if !a.ended => Some(format!("{} wants the lock at {at}", a.name)),
            _ => None,
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// Everybody looks again.
    pub(super) fn wake(&mut self) {
        self.agents.iter_mut().for_each(|a| a.wait = Wait::No);
    }

    /// The current agent ended; its interrupts never come.
    pub(super) fn end(&mut self) {
        let me = self.current;
        self.agents[me].ended = true;
        self.agents[me].armed.clear();
        self.idle_turns = 0;
        self.wake();
    }

    pub(super) fn name(&self, agent: usize) -> String {
        self.agents[agent].name.clone()
    }
    /// How many locks `agent` holds or waits for.
    pub(super) fn locks(&self, agent: usize) -> u32 {
        self.agents[agent].locks
    }
    /// Takes out all handlers that were not called.
    pub(super) fn disarm(&mut self) -> Vec<Armed> {
        self.agents
            .iter_mut()
            .flat_map(|a| core::mem::take(&mut a.armed))
            .collect()
    }
    pub(super) fn recent(&self) -> Vec<Event> {
        let event = |&(agent, point, location)| Event {
            agent: self.name(agent),
            point,
            location,
        };
        self.recent.iter().map(event).collect()
    }
}
