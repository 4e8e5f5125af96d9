// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The state of a run by schedule: what each agent waits for, which goes on,
//! which interrupts are due.

use super::{
    Cause, Event, YieldPoint,
    schedule::Chooser,
    scheduler::{Scheduler, SchedulerEvent, Then},
};
use core::panic::Location;
use std::{cell::RefCell, collections::VecDeque};

/// Where an interrupt was delivered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeliveryPoint {
    /// Points passed by all, this one included.
    pub step: u64,
    /// Points passed by the interrupted CPU, this one included.
    pub cpu_access: u64,
    /// What the CPU was about to do or, for `Release` and `Unpin`, had just done.
    pub point: YieldPoint,
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
    /// Which of the task set's handlers.
    pub(super) handler: usize,
}

pub(super) struct Agent {
    name: String,
    accesses: u64,
    ended: bool,
    wait: Wait,
    armed: Vec<Armed>,
}

impl Agent {
    pub(super) fn new(name: String, armed: Vec<Armed>) -> Self {
        Agent {
            name,
            accesses: 0,
            ended: false,
            wait: Wait::No,
            armed,
        }
    }
}

/// What a run may use up.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) steps: u64,
    pub(super) patience: u64,
}

/// Those of `agents` that can go on, other than `but`.
fn able(agents: &[Agent], but: Option<usize>) -> impl Iterator<Item = usize> + Clone {
    let able = move |(i, a): &(usize, &Agent)| !a.ended && a.wait == Wait::No && Some(*i) != but;
    agents.iter().enumerate().filter(able).map(|(i, _)| i)
}

/// How many points a failure lists.
const RECENT: usize = 24;

pub(super) struct State {
    agents: Vec<Agent>,
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
    recent: VecDeque<(usize, YieldPoint, &'static Location<'static>)>,
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

    fn record(&mut self, point: YieldPoint, location: &'static Location<'static>) {
        self.step += 1;
        let step = (self.current as u64) << 8 | point as u64;
        self.trace = (self.trace.rotate_left(5) ^ step).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.agents[self.current].accesses += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((self.current, point, location));
    }

    /// An interrupt that is due, on the record.
    fn due(&mut self, point: YieldPoint, location: &'static Location<'static>) -> Option<usize> {
        let me = &mut self.agents[self.current];
        let next = me.armed.iter().position(|a| a.at_access <= me.accesses)?;
        let armed = me.armed.remove(next);
        self.delivered.push(DeliveryPoint {
            step: self.step,
            cpu_access: me.accesses,
            point,
            location,
        });
        Some(armed.handler)
    }

    /// Whether to switch now; if so `current` is the next, unless the run has failed.
    fn decide(&mut self, point: YieldPoint, location: &'static Location<'static>) -> bool {
        if self.step > self.limits.steps {
            self.failed = Some(Cause::StepLimit {
                limit: self.limits.steps,
            });
            return true;
        }
        let me = self.current;
        let wait = match point {
            YieldPoint::Relax => {
                self.chooser.waits(me);
                Wait::Relaxes(location)
            }
            YieldPoint::Contend => Wait::Contends(location),
            _ => {
                let others = able(&self.agents, Some(me));
                if !self.chooser.preempts(self.step, me, others) {
                    return false;
                }
                Wait::No
            }
        };
        self.agents[me].wait = wait;
        self.idle_turns += u64::from(wait != Wait::No);
        if self.choose(Some(me)) {
            return true;
        }
        if wait == Wait::No {
            return false;
        }
        // no agent can go on as things are: a new round for all, unless it is hopeless
        self.failed = self.hopeless();
        if self.failed.is_some() {
            return true;
        }
        self.wake();
        self.choose(Some(me))
    }

    /// Makes one that can go on, other than `but`, the current one.
    pub(super) fn choose(&mut self, but: Option<usize>) -> bool {
        let able = able(&self.agents, but);
        let Some(next) = self.chooser.pick(able) else {
            return false;
        };
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

    /// All agents look again.
    fn wake(&mut self) {
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
    pub(super) fn recent(&self) -> Vec<Event> {
        let event = |&(agent, point, location)| Event {
            agent: self.name(agent),
            point,
            location,
        };
        self.recent.iter().map(event).collect()
    }
}

/// A run by schedule.
pub(super) struct Scheduled(pub(super) RefCell<State>);

impl Scheduler for Scheduled {
    fn arrive(&self, event: &SchedulerEvent) {
        self.0.borrow_mut().record(event.point, event.location);
    }
    fn pass(&self, event: &SchedulerEvent) -> Then {
        let mut state = self.0.borrow_mut();
        match state.decide(event.point, event.location) {
            true => Then::Switch,
            false => Then::Go,
        }
    }
    fn due(&self, event: &SchedulerEvent) -> Option<usize> {
        self.0.borrow_mut().due(event.point, event.location)
    }
    fn changed(&self) {
        let mut state = self.0.borrow_mut();
        state.idle_turns = 0;
        state.wake();
    }
    fn released(&self) {
        self.0.borrow_mut().wake();
    }
    fn steps(&self) -> u64 {
        self.0.borrow().step
    }
    fn name(&self, agent: usize) -> String {
        self.0.borrow().name(agent)
    }
}
