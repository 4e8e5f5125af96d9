// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The state of a run, and what happens at a point.
//!
//! Words and locks carry no handle to the world, so the run is found by a thread-local. No borrow of the state is
//! held while a handler runs or another coroutine does.

use super::{Cause, Event, schedule::Chooser};
use crate::units::CpuIndex;
use core::panic::Location;
use corosensei::Yielder;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
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

/// What keeps interrupts out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    Lock,
    Pinned,
    Handler,
}

pub(super) struct Armed {
    pub(super) at_access: u64,
    pub(super) handler: Box<dyn FnOnce()>,
}

pub(super) struct Agent {
    name: String,
    cpu: Option<CpuIndex>,
    accesses: u64,
    ended: bool,
    wait: Wait,
    locks: u32,
    pinned: bool,
    handling: bool,
    armed: Vec<Armed>,
    yielder: *const Yielder<(), ()>,
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
    agents: Vec<Agent>,
    current: usize,
    chooser: Chooser,
    limits: Limits,
    pub(super) step: u64,
    pub(super) switches: u64,
    pub(super) trace: u64,
    pub(super) delivered: Vec<DeliveryPoint>,
    pub(super) failed: Option<Cause>,
    /// Turns of waiting since a shared word changed.
    idle_turns: u64,
    recent: VecDeque<(usize, Point, &'static Location<'static>)>,
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
        Engine(RefCell::new(State {
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
        }))
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

impl State {
    fn record(&mut self, point: Point, location: &'static Location<'static>) {
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
    fn due(&mut self, point: Point, location: &'static Location<'static>) -> Option<Armed> {
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
    fn decide(&mut self, point: Point, location: &'static Location<'static>) -> bool {
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

    /// Who runs now.
    pub(super) fn current(&self) -> usize {
        self.current
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
