// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Virtual time: the core's real code on virtual CPUs, with a cost for everything that is shared.
//!
//! # Theory
//!
//! A [`Machine`] has CPUs on sockets, memory, and a remapping unit. [`Machine::run`] runs a body on
//! each CPU, on *virtual time*: cycles of a machine that is described by [`Params`], and nothing
//! else. The bodies call domains, drivers and locks as they are; what they touch that is shared
//! goes through the platform's associated types, so every access is seen by construction, has a
//! cost, and happens in the order of virtual time. A [`Run`] says how much was done, where the time
//! of each CPU went ([`Account`]), which CPUs waited for which lock, and which cache lines moved.
//!
//! **One platform, two schedulers.** Words, locks, frames and coroutines are those of
//! [`platform`](crate::platform), on which schedules are explored and the software unit runs
//! under the oracle; this module is another *scheduler* of them. So what is timed is the code
//! that is checked, there is one place where coroutines are unwound, and this module needs no
//! unsafe code. A scheduler of its own it is, and not an observer of the other one, because
//! time *is* the schedule: which CPU runs next, which gets a lock and when a waiting CPU looks
//! again are the model.
//!
//! **What a cycle is charged for** (`state`, `lines`, `locks`, `unit`): an access that hits, or a
//! transfer of a line, one at a time for each line; atomic operations, fences, pins, frames, heap
//! calls; a number of instructions before each access and under each lock, by what they are for;
//! nodes that a search looks at; the unit's descriptors and registers; a timer's interrupts. All
//! else is free, and so is memory bandwidth.
//!
//! **Determinism.** A run depends on its parameters and bodies alone. Lines and locks are known by
//! the order of their first use; the host's addresses find them, and say what shares a line. For
//! that everything shared must begin a line of the host: what holds a lock, a frame or a `PerCpu`
//! does by its type; a word of a body's own belongs in a `CachePadded`. Objects with shared words
//! are made before the run and live through it.
//!
//! **Not handled.** Out-of-order execution, but that the lines of one lock come together; store
//! buffers (a store waits for its line); prefetching; caches that are full; bandwidth of sockets
//! and memory; migration; locks inside the page allocator and the heap; what devices' accesses cost
//! and the lines they take (that they happen a [`CacheLog`] tells). Real instructions are not
//! counted.
//!
//! # Example
//!
//! ```
//! use ioatlas_dma::{domain::*, table::{TableConfig, fmt::VtdSecond48}, translator::Paged, units::*};
//! use ioatlas_sim::{platform::Sim, timing::*};
//!
//! let config = MachineConfig { topology: Topology::of_eights(4), frames: 64, heap: None };
//! let machine = Machine::new(config, Params::default())?;
//! let p = machine.platform().clone();
//! let translator = Paged::<Sim, VtdSecond48, _>::new(&p, machine.bring_up()?, TableConfig::default())?;
//! let domain = Domain::new(p, translator, DomainConfig::default())?;
//! let span = Span::fixed(Cycles::from_us(20), Cycles::from_us(100));
//! let run = machine.run(span, None, |cpu| {
//!     let buffer = PhysRange::new(PhysPage(0x1000 + cpu.index().0 as u64).addr(), ByteCount(1500));
//!     while cpu.running() {
//!         cpu.work(Cycles::from_us(2));
//!         let mapping = domain.map(buffer, Direction::ToDevice).expect("room");
//!         domain.unmap(mapping).expect("this unit does not fail");
//!         cpu.operation();
//!     }
//! })?;
//! println!("{} operations a second", run.throughput());
//! for line in run.hottest(3) {
//!     println!("{}: {} transfers", line.name, line.transfers());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)] // but for a promise

mod account;
mod cpu;
mod devices;
mod lines;
mod locks;
mod machine;
pub mod params;
mod run;
mod span;
mod state;
mod timed;
mod topology;
mod turns;
mod unit;
pub mod workload;

pub use account::{Account, Category, Way};
pub use cpu::{VirtualCpu, now, work};
pub use devices::{CacheEvent, CacheLog};
pub use machine::{Machine, MachineConfig, MachineError, MachineUnit, RunError, Timer};
pub use params::{Cycles, LockModel, Params};
pub use run::{CpuRun, LineRun, LockRun, Run};
pub use span::{DOUBLINGS, Precision, SLICES, Span};
pub use topology::{CPUS_MAX, Topology};
pub use unit::{UnitRegisters, UnitUse};
