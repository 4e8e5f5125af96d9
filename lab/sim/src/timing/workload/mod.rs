// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Workloads as drivers do them, on a simulated multiprocessor.
//!
//! # Theory
//!
//! Every CPU has rings of its own, as the paper's NIC has one for each (ATC'15 §6): receive
//! buffers, each replaced when it is filled, and packets under way out, taken back a little later.
//! An *operation* is what the paper counts, a transaction or a request. How many maps and unmaps it
//! makes, and how long the work outside of the mapping code takes, are parameters
//! ([`Params`](crate::timing::Params)): the paper gives neither.
//!
//! Buffers are blocks of the heap, from which a *background* allocates as well: it holds blocks of
//! all sizes and replaces them slowly, so that addresses wander as a running system's do. Without
//! one figure 6 is flat.
//!
//! **Bounds.** A wire serves one packet at a time, in order of virtual time; a CPU that is too far
//! ahead of it idles. A round trip spends a time outside of the server, which grows with the
//! connections at once: the paper's own measurement without an IOMMU, an input here.
//!
//! **Not handled.** Contention outside of the mapping code (sockets, the heap's own lines),
//! interrupts of devices; batches, but where a [`Driver`] is said to reap some; what the device's
//! accesses take: static identity mapping is no IOMMU, by construction.

mod background;
mod mapper;
mod rings;
mod scenario;

pub use mapper::Requests;
pub use scenario::{
    Driver, Iovas, Iterations, Outcome, Reaps, Scenario, System, Workload, WorkloadError,
};
