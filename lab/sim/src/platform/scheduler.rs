// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The seam between the agents' code and what decides which of them goes on.
//!
//! Words, locks, frames, pinning and coroutines are the same whether a run is a schedule drawn from
//! a seed ([`World`](super::World)) or virtual time with costs ([`timing`](crate::timing)). They
//! ask a [`Scheduler`] at each point.

use core::{ops::Range, panic::Location};
use ioatlas_dma::units::PhysPage;

/// What an agent is about to do at a switch point.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum YieldPoint {
    Load,
    Store,
    Swap,
    FetchAdd,
    CompareExchange,
    Fence,
    Acquire,
    /// Acquire a lock if it is free.
    TryAcquire,
    /// Try again for a lock that is held.
    Contend,
    Release,
    /// A turn of waiting.
    Relax,
    /// Pin itself to the CPU.
    Pin,
    /// End being pinned (interrupts are delivered here; no other agent is switched to).
    Unpin,
    FrameAlloc,
    /// Give back a frame.
    FrameFree,
    /// Something of its own that must be in order with what others do.
    Turn,
}

/// What a point touches.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Nothing that is shared.
    Nothing,
    /// The word at this address of the host.
    Word(usize),
    /// A lock, with the data in it.
    Lock(LockPlace),
    Frame(PhysPage),
}

/// Where a lock and its data are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockPlace {
    /// Its address on the host. A lock begins a cache line.
    pub address: usize,
    /// Bytes of lock and data together, in whole cache lines.
    pub bytes: usize,
    /// The type of the data.
    pub data: &'static str,
}

/// Some bytes of a block of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Where the block begins on the host.
    pub block: usize,
    /// Which bytes, from its beginning.
    pub bytes: Range<usize>,
    /// The type of what is touched.
    pub of: &'static str,
}

/// One agent at one point.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerEvent {
    /// Which agent, by the order in which they were added.
    pub agent: usize,
    /// What it is about to do.
    pub point: YieldPoint,
    /// What it does that with.
    pub subject: Subject,
    /// Which line does it.
    pub location: &'static Location<'static>,
}

/// What an agent at a point does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// What it was about to do.
    Go,
    /// The same, once it is resumed.
    Switch,
    /// Asks again, once it is resumed.
    SwitchAndAsk,
    /// Something else: the lock that it would acquire if it is free is not.
    Refused,
}

/// Decides which agent goes on, and sees every point. Agents are known by index.
///
/// No method is called while another one runs. A method must not touch words or locks of the
/// simulation, except by [`SimWord::peek`](super::SimWord::peek).
pub trait Scheduler {
    /// The agent reaches a point. Interrupts that are due are delivered after this.
    fn arrive(&self, _: &SchedulerEvent) {}
    /// Whether it goes on.
    fn pass(&self, _: &SchedulerEvent) -> Then;
    /// An interrupt that is due for the agent, which masks none: the index of a handler that the
    /// task set was given. It is being delivered.
    fn due(&self, _: &SchedulerEvent) -> Option<usize>;
    /// A shared word got another value.
    fn changed(&self) {}
    /// A lock was released; the next may have it.
    fn released(&self) {}
    /// The agent was given this frame, zeroed.
    fn got_frame(&self, _agent: usize, _: PhysPage) {}
    /// The agent is about to call the machine's heap. It is no point: what goes on in there is not
    /// the code under test.
    fn heap_called(&self, _agent: usize, _: &'static Location<'static>) {}
    /// The holder of a lock looked at so many nodes of what the lock guards.
    fn visited(&self, _agent: usize, _nodes: u64) {}
    /// The holder of a lock reads or writes memory that the lock guards behind a pointer.
    /// It is no point.
    fn touched(&self, _agent: usize, _: &Touch, _: &'static Location<'static>) {}
    /// The block at this address of the host is about to be freed.
    fn freed(&self, _block: usize) {}
    /// Points passed so far by all.
    fn steps(&self) -> u64;
    /// What to call an agent.
    fn name(&self, agent: usize) -> String;
}
