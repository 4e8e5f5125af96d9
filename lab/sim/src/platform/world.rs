// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A world: virtual CPUs, agents and interrupts, run to the end under one schedule.

use super::{
    Cause, DeliveryPoint, Failure, Schedule,
    schedule::Chooser,
    state::{Agent, Armed, Limits, Scheduled, State},
    tasks::{Body, Handler, Stop, Tasks},
};
use ioatlas_dma::units::CpuIndex;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Points a run may pass by default: hundreds of times what a test needs, and over within seconds.
const STEP_LIMIT: u64 = 10_000_000;
/// Turns of waiting with no change that count as no progress, by default.
const PATIENCE: u64 = 100_000;

/// An interrupt of one CPU.
pub struct Interrupt<'a> {
    /// The CPU, by order of [`World::cpu`].
    pub cpu: CpuIndex,
    /// It comes in at this point of the CPU, counted from 1.
    pub at_access: u64,
    /// Runs on that CPU with interrupts masked.
    pub handler: Box<dyn FnOnce() + 'a>,
}

/// What was run, when it ended well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The schedule that replays it.
    pub schedule: Schedule,
    /// Points passed by all agents.
    pub accesses: u64,
    /// Times another went on.
    pub switches: u64,
    /// A digest of which agent passed which point, in order: equal for equal interleavings.
    pub trace: u64,
    /// Where interrupts were delivered, in order. One that came in after the CPU's
    /// last point is missing.
    pub deliveries: Vec<DeliveryPoint>,
}

impl Outcome {
    /// Where the first interrupt was delivered.
    pub fn delivered_at(&self) -> Option<DeliveryPoint> {
        self.deliveries.first().copied()
    }
}

/// Builds a run; bodies may borrow from the caller.
#[must_use = "nothing happens before `run`"]
pub struct World<'a> {
    schedule: Schedule,
    length: Option<u64>,
    limits: Limits,
    bodies: Vec<(Body<'a>, Option<String>)>,
    interrupts: Vec<Interrupt<'a>>,
}

impl<'a> World<'a> {
    /// A world with nothing in it.
    pub fn new(schedule: Schedule) -> Self {
        World {
            schedule,
            length: None,
            limits: Limits {
                steps: STEP_LIMIT,
                patience: PATIENCE,
            },
            bodies: Vec::new(),
            interrupts: Vec::new(),
        }
    }
    /// Adds the next virtual CPU, from 0; it runs `body` and stops.
    pub fn cpu(mut self, body: impl FnOnce() + 'a) -> Self {
        self.bodies.push((Box::new(body), None));
        self
    }
    /// Adds an agent that is no CPU. At each turn of a wait it must call
    /// [`relax`](ioatlas_dma::platform::Platform::relax).
    pub fn agent(mut self, name: &str, body: impl FnOnce() + 'a) -> Self {
        self.bodies.push((Box::new(body), Some(name.into())));
        self
    }
    /// Adds an interrupt. Several that are due at once are delivered in the order they were added.
    pub fn interrupt(mut self, interrupt: Interrupt<'a>) -> Self {
        self.interrupts.push(interrupt);
        self
    }
    /// Says how many points such a run has ([`Outcome::accesses`] of another one), so
    /// that [`Schedule::Bounded`] spreads its preemptions evenly; otherwise they lie
    /// denser towards the start.
    pub fn expect_accesses(mut self, accesses: u64) -> Self {
        self.length = Some(accesses);
        self
    }
    /// Fails with [`Cause::StepLimit`] after that many points instead of 10,000,000.
    pub fn step_limit(mut self, points: u64) -> Self {
        self.limits.steps = points;
        self
    }
    /// Fails with [`Cause::NoProgress`] after that many turns of waiting, over all
    /// agents, instead of 100,000.
    pub fn patience(mut self, turns: u64) -> Self {
        self.limits.patience = turns;
        self
    }

    /// Runs all to the end.
    ///
    /// # Panics
    /// With the text of the [`Failure`], which names seed and step.
    #[track_caller]
    pub fn run(self) -> Outcome {
        self.try_run().unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Runs all to the end.
    ///
    /// # Errors
    /// The [`Failure`]. Agents still alive were unwound: their destructors have
    /// run, with plain accesses.
    ///
    /// # Panics
    /// On an interrupt for a CPU that is not there, and inside another run.
    pub fn try_run(self) -> Result<Outcome, Failure> {
        let chooser = Chooser::new(self.schedule, self.length);
        let cpus = self.bodies.iter().filter(|(_, name)| name.is_none());
        let mut armed: Vec<Vec<Armed>> = cpus.map(|_| Vec::new()).collect();
        let mut handlers = Vec::new();
        for Interrupt {
            cpu,
            at_access,
            handler,
        } in self.interrupts
        {
            let cpus = armed.len();
            assert!(cpu.0 < cpus, "an interrupt for CPU {} of {cpus}", cpu.0);
            armed[cpu.0].push(Armed {
                at_access,
                handler: handlers.len(),
            });
            handlers.push(once(handler));
        }
        let mut armed = armed.into_iter().enumerate();
        let mut agents = Vec::new();
        let mut bodies: Vec<(Option<CpuIndex>, Body<'a>)> = Vec::new();
        for (body, name) in self.bodies {
            let (agent, cpu) = match name {
                Some(name) => (Agent::new(name, Vec::new()), None),
                None => {
                    let (cpu, armed) = armed.next().unwrap_or_default();
                    (Agent::new(format!("CPU {cpu}"), armed), Some(CpuIndex(cpu)))
                }
            };
            agents.push(agent);
            bodies.push((cpu, body));
        }
        let state = State::new(agents, chooser, self.limits);
        let run = Rc::new(Scheduled(RefCell::new(state)));
        let ended = Tasks::run(run.clone(), bodies, handlers, |tasks| drive(tasks, &run));
        let state = run.0.borrow();
        match ended {
            Ok(()) => Ok(Outcome {
                schedule: self.schedule,
                accesses: state.step,
                switches: state.switches,
                trace: state.trace,
                deliveries: state.delivered.clone(),
            }),
            Err(cause) => Err(Failure {
                schedule: self.schedule,
                step: state.step,
                cause,
                recent: state.recent(),
            }),
        }
    }
}

/// A handler that runs once: its interrupt comes in once.
fn once<'a>(handler: Box<dyn FnOnce() + 'a>) -> Handler<'a> {
    let handler = Cell::new(Some(handler));
    Box::new(move || {
        if let Some(handler) = handler.take() {
            handler();
        }
    })
}

fn drive(tasks: &mut Tasks<'_>, run: &Scheduled) -> Result<(), Cause> {
    if !run.0.borrow_mut().choose(None) {
        return Ok(());
    }
    loop {
        let current = run.0.borrow().current;
        let stop = tasks.resume(current);
        let mut state = run.0.borrow_mut();
        match stop {
            Stop::Switched => {
                if let Some(cause) = state.failed.take() {
                    return Err(cause);
                }
            }
            Stop::Ended => {
                state.end();
                if !state.choose(None) {
                    return Ok(());
                }
            }
            Stop::Panicked(message) => {
                let agent = state.name(current);
                return Err(Cause::Panicked { agent, message });
            }
        }
    }
}
