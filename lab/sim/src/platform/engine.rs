// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What happens at a point, whichever scheduler decides.
//!
//! Words and locks carry no handle to the run, so it is found by a thread-local. No borrow of its
//! state is held while a handler runs or another coroutine does.

use super::scheduler::{Scheduler, SchedulerEvent, Subject, Then, Touch, YieldPoint};
use core::panic::Location;
use corosensei::Yielder;
use ioatlas_dma::units::{CpuIndex, PhysPage};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// What keeps interrupts out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    Lock,
    Pinned,
    Handler,
}

/// What is known of an agent, whichever scheduler decides.
pub(super) struct Agent {
    cpu: Option<CpuIndex>,
    /// How many locks it holds or waits for.
    pub(super) locks: Cell<u32>,
    pinned: Cell<bool>,
    handling: Cell<bool>,
    yielder: Cell<*const Yielder<(), ()>>,
}

impl Agent {
    pub(super) fn new(cpu: Option<CpuIndex>) -> Self {
        Agent {
            cpu,
            locks: Cell::new(0),
            pinned: Cell::new(false),
            handling: Cell::new(false),
            yielder: Cell::new(core::ptr::null()),
        }
    }
    fn masked(&self) -> bool {
        self.locks.get() > 0 || self.pinned.get() || self.handling.get()
    }
}

/// A run under way.
pub(super) struct Engine {
    pub(super) agents: Box<[Agent]>,
    pub(super) current: Cell<usize>,
    /// Whether the current agent runs; else the code that runs is outside.
    pub(super) running: Cell<bool>,
    pub(super) handlers: RefCell<Vec<Rc<dyn Fn()>>>,
    scheduler: Rc<dyn Scheduler>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
    /// Accesses are plain: in [`inspect`], and while coroutines are unwound.
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// The run whose agent calls, unless it is none, or accesses are plain now. A
/// panic unwinds without switching.
fn seen() -> Option<Rc<Engine>> {
    if PLAIN.get() || std::thread::panicking() {
        return None;
    }
    CURRENT.with_borrow(|run| run.as_ref().filter(|e| e.running.get()).cloned())
}

/// Makes `engine` the run of this thread.
///
/// # Panics
/// If there is one already.
pub(super) fn enter(engine: Rc<Engine>) {
    CURRENT.with_borrow_mut(|slot| {
        assert!(slot.is_none(), "a world is run inside another");
        *slot = Some(engine);
    });
}

/// Ends the run of this thread.
pub(super) fn leave() {
    drop(CURRENT.take());
}

/// Runs `f` with accesses plain: no points, no switches. For looking at the state from inside an
/// agent or a handler.
///
/// # Panics
/// If `f` needs a lock that an agent holds.
pub fn inspect<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLAIN.set(self.0);
        }
    }
    let _restore = Restore(PLAIN.replace(true));
    f()
}

/// Points passed so far in this thread's run. 0 outside a run.
pub fn steps() -> u64 {
    CURRENT.with_borrow(|run| run.as_ref().map_or(0, |e| e.scheduler.steps()))
}

/// Passes a point; whether the agent does what it was about to do.
pub(super) fn point(
    point: YieldPoint,
    subject: Subject,
    location: &'static Location<'static>,
) -> bool {
    match seen() {
        Some(engine) => engine.pass(point, subject, location),
        None => true,
    }
}

/// Says that a shared word changed: agents that wait look again.
pub(super) fn changed() {
    if let Some(engine) = seen() {
        engine.scheduler.changed();
    }
}

/// Says which frame was allocated.
pub(super) fn got_frame(page: PhysPage) {
    if let Some(engine) = seen() {
        engine.scheduler.got_frame(engine.current.get(), page);
    }
}

/// Says that the heap is about to be called.
pub(super) fn heap_called(location: &'static Location<'static>) {
    if let Some(engine) = seen() {
        engine.scheduler.heap_called(engine.current.get(), location);
    }
}

/// Says how much the holder of a lock looked at.
pub(super) fn visited(nodes: u64) {
    if let Some(engine) = seen() {
        engine.scheduler.visited(engine.current.get(), nodes);
    }
}

/// Says what the holder of a lock touches behind a pointer.
pub(super) fn touched(location: &'static Location<'static>, what: impl FnOnce() -> Option<Touch>) {
    if let Some(engine) = seen()
        && let Some(touch) = what()
    {
        let agent = engine.current.get();
        engine.scheduler.touched(agent, &touch, location);
    }
}

/// Says that a block is about to be freed. Also outside a run: what comes to lie
/// there is another one.
pub(super) fn freed(block: usize) {
    CURRENT.with_borrow(|run| {
        if let Some(engine) = run {
            engine.scheduler.freed(block);
        }
    });
}

/// Whether a run sees what is done now.
pub(super) fn is_seen() -> bool {
    seen().is_some()
}

/// The CPU that the caller runs on: 0 outside a run.
///
/// # Panics
/// If it is an agent that is no CPU.
pub(super) fn cpu() -> CpuIndex {
    CURRENT.with_borrow(|run| {
        let run = run.as_ref().filter(|engine| engine.running.get());
        run.map_or(CpuIndex(0), |engine| {
            let me = engine.current.get();
            engine.agents[me]
                .cpu
                .unwrap_or_else(|| panic!("{} is no CPU and cannot be pinned", engine.name(me)))
        })
    })
}

/// A turn of waiting.
///
/// # Panics
/// If the caller is pinned or holds a lock.
pub(super) fn relax(location: &'static Location<'static>) {
    let Some(engine) = seen() else { return };
    let me = engine.current.get();
    let agent = &engine.agents[me];
    if agent.pinned.get() {
        panic!("{} waits while pinned, at {location}", engine.name(me));
    }
    if agent.locks.get() > 0 {
        panic!("{} waits with a lock held, at {location}", engine.name(me));
    }
    engine.pass(YieldPoint::Relax, Subject::Nothing, location);
}

/// Interrupts are kept out until it is dropped.
pub(super) struct Masked {
    run: Option<Rc<Engine>>,
    agent: usize,
    mask: Mask,
}

/// Keeps interrupts out until the result is dropped.
///
/// # Panics
/// If the agent is pinned already.
pub(super) fn mask(mask: Mask) -> Masked {
    let run = seen();
    let mut agent = 0;
    if let Some(engine) = &run {
        agent = engine.current.get();
        let me = &engine.agents[agent];
        match mask {
            Mask::Lock => me.locks.set(me.locks.get() + 1),
            Mask::Handler => me.handling.set(true),
            Mask::Pinned => {
                if me.pinned.replace(true) {
                    panic!("{} is pinned already", engine.name(agent));
                }
            }
        }
    }
    Masked { run, agent, mask }
}

impl Masked {
    /// Lets interrupts in, and delivers what came in meanwhile.
    pub(super) fn end(self, point: YieldPoint, location: &'static Location<'static>) {
        drop(self);
        if let Some(engine) = seen() {
            if point == YieldPoint::Release {
                engine.scheduler.released();
            }
            engine.deliver(&SchedulerEvent {
                agent: engine.current.get(),
                point,
                subject: Subject::Nothing,
                location,
            });
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        let Some(engine) = &self.run else { return };
        let me = &engine.agents[self.agent];
        match self.mask {
            Mask::Lock => me.locks.set(me.locks.get() - 1),
            Mask::Pinned => me.pinned.set(false),
            Mask::Handler => me.handling.set(false),
        }
    }
}

impl Engine {
    pub(super) fn new(
        agents: impl Iterator<Item = Agent>,
        handlers: Vec<Rc<dyn Fn()>>,
        scheduler: Rc<dyn Scheduler>,
    ) -> Self {
        Engine {
            agents: agents.collect(),
            current: Cell::new(0),
            running: Cell::new(false),
            handlers: RefCell::new(handlers),
            scheduler,
        }
    }

    /// Called first thing by the coroutine of `agent`.
    pub(super) fn begin(&self, agent: usize, yielder: &Yielder<(), ()>) {
        self.agents[agent].yielder.set(yielder);
    }

    fn name(&self, agent: usize) -> String {
        self.scheduler.name(agent)
    }

    fn pass(
        &self,
        point: YieldPoint,
        subject: Subject,
        location: &'static Location<'static>,
    ) -> bool {
        let agent = self.current.get();
        let event = SchedulerEvent {
            agent,
            point,
            subject,
            location,
        };
        self.scheduler.arrive(&event);
        self.deliver(&event);
        loop {
            let then = self.scheduler.pass(&event);
            match then {
                Then::Go => return true,
                Then::Refused => return false,
                Then::Switch | Then::SwitchAndAsk => {}
            }
            // SAFETY: `begin` stored it from the reference that this agent's coroutine was given,
            // which is good until the coroutine's body returns. `agent` is the one that runs
            // (`seen` has looked), so we are inside that body.
            unsafe { (*self.agents[agent].yielder.get()).suspend(()) }
            if then == Then::Switch {
                return true;
            }
            // an agent that waits for a lock has masked interrupts before
            if point == YieldPoint::Relax && self.deliver(&event) {
                return true; // it looks again, whatever the handler has read
            }
        }
    }

    /// Runs handlers of interrupts that are due; whether any was.
    fn deliver(&self, event: &SchedulerEvent) -> bool {
        let mut any = false;
        while !self.agents[event.agent].masked()
            && let Some(handler) = self.scheduler.due(event)
        {
            any = true;
            let handler = self.handlers.borrow()[handler].clone();
            let mask = mask(Mask::Handler);
            handler();
            drop(mask);
        }
        any
    }
}
