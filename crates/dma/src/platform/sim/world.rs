// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A world: virtual CPUs, agents and interrupts, run to the end under one schedule.

use super::{
    Cause, DeliveryPoint, Failure, Schedule,
    engine::{self, Engine},
    schedule::Chooser,
    state::{Agent, Armed, Limits},
};
use crate::units::CpuIndex;
use core::{any::Any, marker::PhantomData};
use corosensei::{Coroutine, CoroutineResult, stack::DefaultStack};
use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

/// Points a run may pass by default: hundreds of times what a test needs, and over within seconds.
const STEP_LIMIT: u64 = 10_000_000;
/// Turns of waiting with no change that count as no progress, by default.
const PATIENCE: u64 = 100_000;
/// Bytes of a coroutine's stack; debug builds of the core need a few tens of KiB.
const STACK: usize = 1 << 20;

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
    /// Replays it.
    pub schedule: Schedule,
    /// Points passed.
    pub accesses: u64,
    /// Times another went on.
    pub switches: u64,
    /// A digest of who passed which point, in order: equal for equal interleavings.
    pub trace: u64,
    /// Where interrupts were delivered, in order. One that came in after the CPU's last point is missing.
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

type Body<'a> = Box<dyn FnOnce() + 'a>;
type Running = Coroutine<(), (), (), DefaultStack>;

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
    /// Adds an agent that is no CPU. Where it waits it must call [`relax`](crate::platform::Platform::relax) each turn.
    pub fn agent(mut self, name: &str, body: impl FnOnce() + 'a) -> Self {
        self.bodies.push((Box::new(body), Some(name.into())));
        self
    }
    /// Adds an interrupt. Several that are due at once are delivered in the order they were added.
    pub fn interrupt(mut self, interrupt: Interrupt<'a>) -> Self {
        self.interrupts.push(interrupt);
        self
    }
    /// Says how many points such a run has ([`Outcome::accesses`] of another one), so that [`Schedule::Bounded`] spreads its
    /// preemptions evenly; otherwise they lie denser towards the start.
    pub fn expect_accesses(mut self, accesses: u64) -> Self {
        self.length = Some(accesses);
        self
    }
    /// Fails with [`Cause::StepLimit`] after that many points instead of 10,000,000.
    pub fn step_limit(mut self, points: u64) -> Self {
        self.limits.steps = points;
        self
    }
    /// Fails with [`Cause::NoProgress`] after that many turns of waiting, over all agents, instead of 100,000.
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
    /// The [`Failure`]. Agents still alive were unwound: their destructors have run, with plain accesses.
    ///
    /// # Panics
    /// On an interrupt for a CPU that is not there, and inside another run.
    pub fn try_run(self) -> Result<Outcome, Failure> {
        let chooser = Chooser::new(self.schedule, self.length);
        let mut run = Run::start(self.bodies, self.interrupts, chooser, self.limits);
        let ended = run.drive();
        let state = run.engine.0.borrow();
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

/// A run under way. Dropping it ends every coroutine and every handler, so no body outlives `'a`.
struct Run<'a> {
    engine: Rc<Engine>,
    coroutines: Vec<Option<Running>>,
    _bodies: PhantomData<Body<'a>>,
}

impl<'a> Run<'a> {
    fn start(
        bodies: Vec<(Body<'a>, Option<String>)>,
        interrupts: Vec<Interrupt<'a>>,
        chooser: Chooser,
        limits: Limits,
    ) -> Self {
        let cpus = bodies.iter().filter(|(_, name)| name.is_none()).count();
        let mut armed: Vec<Vec<Armed>> = (0..cpus).map(|_| Vec::new()).collect();
        for Interrupt {
            cpu,
            at_access,
            handler,
        } in interrupts
        {
            assert!(cpu.0 < cpus, "an interrupt for CPU {} of {cpus}", cpu.0);
            armed[cpu.0].push(Armed {
                at_access,
                handler: erase(handler),
            });
        }
        let mut armed = armed.into_iter().enumerate();
        let agents = bodies.iter().map(|(_, name)| match name {
            Some(name) => Agent::new(name.clone(), None, Vec::new()),
            None => {
                let (cpu, armed) = armed.next().unwrap_or_default();
                Agent::new(format!("CPU {cpu}"), Some(CpuIndex(cpu)), armed)
            }
        });
        let engine = Rc::new(Engine::new(agents.collect(), chooser, limits));
        engine::enter(engine.clone());
        let mut run = Run {
            engine,
            coroutines: Vec::new(),
            _bodies: PhantomData,
        };
        for (agent, (body, _)) in bodies.into_iter().enumerate() {
            let (engine, body) = (run.engine.clone(), erase(body));
            let coroutine = Coroutine::with_stack(stack(), move |yielder, ()| {
                engine.begin(agent, yielder);
                drop(engine);
                body();
            });
            run.coroutines.push(Some(coroutine));
        }
        run
    }

    fn drive(&mut self) -> Result<(), Cause> {
        if !self.engine.0.borrow_mut().choose(None) {
            return Ok(());
        }
        loop {
            let current = self.engine.0.borrow().current;
            let Some(coroutine) = &mut self.coroutines[current] else {
                unreachable!("an agent that has ended is never chosen")
            };
            let resumed = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
            let mut state = self.engine.0.borrow_mut();
            match resumed {
                Ok(CoroutineResult::Yield(())) => {
                    if let Some(cause) = state.failed.take() {
                        return Err(cause);
                    }
                }
                Ok(CoroutineResult::Return(())) => {
                    if let Some(ended) = self.coroutines[current].take() {
                        keep_stack(ended);
                    }
                    state.end();
                    if !state.choose(None) {
                        return Ok(());
                    }
                }
                Err(payload) => {
                    return Err(Cause::Panicked {
                        agent: state.name(current),
                        message: message(&*payload),
                    });
                }
            }
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let engine = self.engine.clone();
        let mut left: Vec<(u32, Running)> = (0..self.coroutines.len())
            .filter_map(|i| Some((engine.0.borrow().locks(i), self.coroutines[i].take()?)))
            .collect();
        // who holds locks goes first, in case a destructor of another one needs them
        left.sort_by_key(|(locks, _)| core::cmp::Reverse(*locks));
        let handlers = self.engine.0.borrow_mut().disarm();
        engine::inspect(|| {
            for (_, mut coroutine) in left {
                coroutine.force_unwind();
                keep_stack(coroutine);
            }
            drop(handlers);
        });
        engine::leave();
    }
}

/// Forgets how long `body` may live.
fn erase<'a>(body: Body<'a>) -> Body<'static> {
    // SAFETY: the two types differ in the lifetime alone. The result goes into a `Run<'a>` (into a coroutine, or among
    // the engine's handlers), which is a local variable of `try_run`; its destructor drops all coroutines and handlers, so
    // nothing of `body` is left when 'a ends. Who else holds the engine never calls a handler: only its agents do.
    unsafe { core::mem::transmute::<Body<'a>, Body<'static>>(body) }
}

/// What a panic said.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".to_owned())
}

thread_local! {
    /// Stacks for the next runs: making one costs system calls, and an explorer makes thousands of runs.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

fn stack() -> DefaultStack {
    STACKS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a coroutine's stack"))
}

fn keep_stack(ended: Running) {
    STACKS.with_borrow_mut(|stacks| stacks.push(ended.into_stack()));
}
