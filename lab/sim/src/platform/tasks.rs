// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The agents of a run as coroutines, and their end.

use super::{
    engine::{self, Agent, Engine},
    scheduler::Scheduler,
};
use core::{any::Any, marker::PhantomData};
use corosensei::{Coroutine, CoroutineResult, stack::DefaultStack};
use ioatlas_dma::units::CpuIndex;
use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

/// Bytes of a coroutine's stack; debug builds of the core need a few tens of KiB.
const STACK: usize = 1 << 20;

/// What an agent does. It may borrow from the caller.
pub type Body<'a> = Box<dyn FnOnce() + 'a>;
/// What an interrupt does, on the CPU that it hits, with interrupts masked.
pub type Handler<'a> = Box<dyn Fn() + 'a>;
type Running = Coroutine<(), (), (), DefaultStack>;

/// The agents of a run.
pub struct Tasks<'a> {
    engine: Rc<Engine>,
    coroutines: Vec<Option<Running>>,
    _bodies: PhantomData<Body<'a>>,
}

/// Why a resumed agent stopped.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The scheduler said so.
    Switched,
    Ended,
    /// Its body panicked, with these words.
    Panicked(String),
}

impl<'a> Tasks<'a> {
    /// Calls `drive` with one agent for each of `bodies`, in order, on the CPU named if it is one.
    /// While one is resumed, the words and locks that this thread touches are the run's. An agent
    /// that has not ended when `drive` returns is unwound, with plain accesses.
    ///
    /// # Panics
    /// If this thread has a run already.
    pub fn run<R>(
        scheduler: Rc<dyn Scheduler>,
        bodies: Vec<(Option<CpuIndex>, Body<'a>)>,
        handlers: Vec<Handler<'a>>,
        drive: impl FnOnce(&mut Tasks<'a>) -> R,
    ) -> R {
        drive(&mut Self::new(scheduler, bodies, handlers))
    }

    /// Never given away: only its destructor ends the bodies, and what is owned may be forgotten.
    fn new(
        scheduler: Rc<dyn Scheduler>,
        bodies: Vec<(Option<CpuIndex>, Body<'a>)>,
        handlers: Vec<Handler<'a>>,
    ) -> Self {
        let agents = bodies.iter().map(|(cpu, _)| Agent::new(*cpu));
        let handlers = handlers.into_iter().map(erase_handler).collect();
        let engine = Rc::new(Engine::new(agents, handlers, scheduler));
        engine::enter(engine.clone());
        let mut tasks = Tasks {
            engine,
            coroutines: Vec::new(),
            _bodies: PhantomData,
        };
        for (agent, (_, body)) in bodies.into_iter().enumerate() {
            let (engine, body) = (tasks.engine.clone(), erase(body));
            let coroutine = Coroutine::with_stack(stack(), move |yielder, ()| {
                engine.begin(agent, yielder);
                drop(engine);
                body();
            });
            tasks.coroutines.push(Some(coroutine));
        }
        tasks
    }

    /// Lets `agent` go on until the scheduler stops it.
    ///
    /// # Panics
    /// If it has ended.
    pub fn resume(&mut self, agent: usize) -> Stop {
        let Some(coroutine) = &mut self.coroutines[agent] else {
            panic!("agent {agent} has ended")
        };
        self.engine.current.set(agent);
        self.engine.running.set(true);
        let resumed = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
        self.engine.running.set(false);
        match resumed {
            Ok(CoroutineResult::Yield(())) => Stop::Switched,
            Ok(CoroutineResult::Return(())) => {
                if let Some(ended) = self.coroutines[agent].take() {
                    keep_stack(ended);
                }
                Stop::Ended
            }
            Err(payload) => Stop::Panicked(message(&*payload)),
        }
    }
}

impl Drop for Tasks<'_> {
    fn drop(&mut self) {
        let locks = |i: usize| self.engine.agents[i].locks.get();
        let mut left: Vec<(u32, Running)> = (0..self.coroutines.len())
            .filter_map(|i| Some((locks(i), self.coroutines[i].take()?)))
            .collect();
        // a holder of locks goes first, in case a destructor of another one needs them
        left.sort_by_key(|(locks, _)| core::cmp::Reverse(*locks));
        let handlers = self.engine.handlers.take();
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
    // SAFETY: the two types differ in the lifetime alone. The result goes into a coroutine of a
    // `Tasks<'a>`, which is a temporary of `Tasks::run`; its destructor drops all coroutines, so
    // nothing of `body` is left when 'a ends.
    unsafe { core::mem::transmute::<Body<'a>, Body<'static>>(body) }
}

/// Forgets how long `handler` may live.
fn erase_handler<'a>(handler: Handler<'a>) -> Rc<dyn Fn()> {
    // SAFETY: as in `erase`: the destructor takes all handlers out of the engine, and drops them
    // once every coroutine that may be inside one was unwound. Other holders of the engine never
    // call a handler: only its agents do.
    let handler = unsafe { core::mem::transmute::<Handler<'a>, Handler<'static>>(handler) };
    Rc::from(handler)
}

/// What a panic said.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".to_owned())
}

thread_local! {
    /// Stacks for the next runs: making one costs system calls, and an explorer
    /// makes thousands of runs.
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
