// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The state of a run, and what happens at a point.
//!
//! Words and locks carry no handle to the world, so the run is found by a thread-local. No borrow of the state is
//! held while a handler runs or another coroutine does.

use super::{
    schedule::Chooser,
    state::{Agent, Limits, State},
};
use crate::units::CpuIndex;
use core::panic::Location;
use corosensei::Yielder;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// What an agent is about to do at a switch point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Point {
    /// An atomic load.
    Load,
    /// An atomic store.
    Store,
    /// An atomic swap.
    Swap,
    /// An atomic addition.
    FetchAdd,
    /// A compare-and-swap.
    CompareExchange,
    /// A fence.
    Fence,
    /// A fence on every CPU.
    HeavyFence,
    /// Acquire a lock.
    Acquire,
    /// Try again for a lock that is held.
    Contend,
    /// Release a lock.
    Release,
    /// A turn of waiting.
    Relax,
    /// Pin itself to the CPU.
    Pin,
    /// End being pinned (interrupts are delivered here; nobody is switched to).
    Unpin,
    /// Take a frame.
    FrameAlloc,
    /// Give back a frame.
    FrameFree,
}

/// What keeps interrupts out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    Lock,
    Pinned,
    Handler,
}

/// A run under way.
pub(super) struct Engine(pub(super) RefCell<State>);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
    /// Accesses are plain: in [`inspect`], and while coroutines are unwound.
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// The run whose agent calls, unless accesses are plain now. A panic unwinds without switching.
fn seen() -> Option<Rc<Engine>> {
    if PLAIN.get() || std::thread::panicking() {
        return None;
    }
    CURRENT.with_borrow(Clone::clone)
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

/// Runs `f` with accesses plain: no points, no switches. For looking at the state from inside an agent or a handler.
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

/// Points passed so far in this thread's run: its virtual time. 0 outside a run.
pub fn steps() -> u64 {
    CURRENT.with_borrow(|run| run.as_ref().map_or(0, |e| e.0.borrow().step))
}

/// Passes a point.
pub(super) fn point(point: Point, location: &'static Location<'static>) {
    if let Some(engine) = seen() {
        engine.pass(point, location);
    }
}

/// Says that a shared word changed: whoever waits looks again.
pub(super) fn changed() {
    if let Some(engine) = seen() {
        let mut state = engine.0.borrow_mut();
        state.idle_turns = 0;
        state.wake();
    }
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
        run.as_ref().map_or(CpuIndex(0), |engine| {
            let state = engine.0.borrow();
            let me = &state.agents[state.current];
            me.cpu
                .unwrap_or_else(|| panic!("{} is no CPU and cannot be pinned", me.name))
        })
    })
}

/// A turn of waiting.
///
/// # Panics
/// If the caller is pinned or holds a lock.
pub(super) fn relax(location: &'static Location<'static>) {
    let Some(engine) = seen() else { return };
    {
        let state = engine.0.borrow();
        let me = &state.agents[state.current];
        assert!(!me.pinned, "{} waits while pinned, at {location}", me.name);
        assert!(
            me.locks == 0,
            "{} waits with a lock held, at {location}",
            me.name
        );
    }
    engine.pass(Point::Relax, location);
}

/// Interrupts are kept out until it is dropped.
pub(super) struct Masked {
    run: Option<Rc<Engine>>,
    agent: usize,
    mask: Mask,
}

/// Keeps interrupts out.
///
/// # Panics
/// On pinning twice.
pub(super) fn mask(mask: Mask) -> Masked {
    let run = seen();
    let mut agent = 0;
    if let Some(engine) = &run {
        let mut state = engine.0.borrow_mut();
        agent = state.current;
        let me = &mut state.agents[agent];
        match mask {
            Mask::Lock => me.locks += 1,
            Mask::Handler => me.handling = true,
            Mask::Pinned => {
                assert!(!me.pinned, "{} is pinned already", me.name);
                me.pinned = true;
            }
        }
    }
    Masked { run, agent, mask }
}

impl Masked {
    /// Lets interrupts in, and delivers what came in meanwhile.
    pub(super) fn end(self, point: Point, location: &'static Location<'static>) {
        drop(self);
        if let Some(engine) = seen() {
            if point == Point::Release {
                engine.0.borrow_mut().wake();
            }
            engine.deliver(point, location);
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        let Some(engine) = &self.run else { return };
        let mut state = engine.0.borrow_mut();
        let me = &mut state.agents[self.agent];
        match self.mask {
            Mask::Lock => me.locks -= 1,
            Mask::Pinned => me.pinned = false,
            Mask::Handler => me.handling = false,
        }
    }
}

impl Engine {
    pub(super) fn new(agents: Vec<Agent>, chooser: Chooser, limits: Limits) -> Self {
        Engine(RefCell::new(State::new(agents, chooser, limits)))
    }

    /// Called first thing by the coroutine of `agent`.
    pub(super) fn begin(&self, agent: usize, yielder: &Yielder<(), ()>) {
        self.0.borrow_mut().agents[agent].yielder = yielder;
    }

    fn pass(&self, point: Point, location: &'static Location<'static>) {
        self.0.borrow_mut().record(point, location);
        self.deliver(point, location);
        let mut state = self.0.borrow_mut();
        let me = state.current;
        let switch = state.decide(point, location);
        let yielder = state.agents[me].yielder;
        drop(state);
        if switch {
            // SAFETY: `begin` stored it from the reference that this agent's coroutine was given, which is good until
            // the coroutine's body returns. `me` was the current agent, the one that runs, so we are inside that body.
            unsafe { (*yielder).suspend(()) }
        }
    }

    fn deliver(&self, point: Point, location: &'static Location<'static>) {
        loop {
            let Some(armed) = self.0.borrow_mut().due(point, location) else {
                return;
            };
            let mask = mask(Mask::Handler);
            (armed.handler)();
            drop(mask);
        }
    }
}
