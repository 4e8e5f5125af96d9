// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A simulated multiprocessor: the real code on virtual CPUs, one schedule a seed.
//!
//! # Theory
//!
//! A [`World`] holds *virtual CPUs* and *agents* that are no CPU (a device, a remapping unit's own
//! work), each a coroutine on the one host thread. A *point* ([`YieldPoint`]) is a place where
//! another may go on instead: before each atomic operation and fence, before a lock is acquired and
//! before it is released, at each turn of a wait, before pinning, and before a frame is allocated
//! or freed. What lies between two points happens at once. A [`Schedule`] decides at each point,
//! from its seed alone, so a failing seed replays.
//!
//! **Waiting.** An agent that relaxes, or finds a lock held, is not run again before a shared word
//! changed, a lock was released, an agent ended, or all others wait as well: a spinning agent
//! starves no other, and spinning costs no steps. When all wait for locks there is a dead-lock;
//! when nothing changes for many turns there is no progress; both are reported with seed and step
//! ([`Failure`]), and every coroutine is unwound.
//!
//! **Interrupts** are masked inside `pinned`, inside `Lock::with` (waiting for the lock included)
//! and inside a handler. One that comes in meanwhile is delivered on unmasking. The
//! [`DeliveryPoint`] says where: which source line came next.
//!
//! **Contract checks.** Nested `pinned`, `pinned` outside a CPU, `relax` while pinned or with a
//! lock held, and freeing a frame that is free are panics of the agent that does it.
//!
//! **Two schedulers.** What decides at a point is a [`Scheduler`](scheduler::Scheduler). A world's
//! is its schedule, and counts time in points: nothing costs anything. The module
//! [`timing`](crate::timing) has another one, with virtual time and a cost for everything. Words,
//! locks, frames, masks and coroutines ([`Tasks`]) are these for both.
//!
//! **Where things lie.** Words have the size of real ones, and a lock begins a cache line of 64
//! bytes; so does everything that holds a lock, a [`PerCpu`](ioatlas_dma::platform::PerCpu) or a
//! frame. Which of the core's words share a line follows from types alone then, and not from the
//! host's allocator. A word that is in none of these should be in a
//! [`CachePadded`](ioatlas_dma::platform::CachePadded).
//!
//! **Not handled.** Memory is sequentially consistent here: orderings are ignored, so a missing
//! fence is invisible. That is what the loom models of `ioatlas-dma` are for.
//!
//! Outside [`World::run`] accesses are plain, for setting up and looking; so they are inside
//! [`inspect`].

#![allow(clippy::disallowed_types)] // a platform: here the atomics are made

mod copy;
mod engine;
mod failure;
mod memory;
mod schedule;
pub mod scheduler;
mod shared;
mod slabs;
mod state;
mod tasks;
mod world;

pub use engine::{inspect, steps};
pub use failure::{Cause, Event, Failure};
pub use memory::{Sim, SimConfig, WORDS};
pub use schedule::Schedule;
pub use scheduler::YieldPoint;
pub use shared::{SimLock, SimWord};
pub use state::DeliveryPoint;
pub use tasks::{Body, Handler, Stop, Tasks};
pub use world::{Interrupt, Outcome, World};
