// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

#[macro_use]
mod common;

mod bounds;
mod contract;
mod data_path;
mod examples;
mod guest_memory;
mod hostile_events;
mod hostile_memory;
mod hostile_messages;
mod hostile_queues;
mod iotlb_protocol;
mod late_answers;
mod log_lines;
mod loom;
mod membarrier;
mod misses;
mod server;
mod serving;
mod session;
mod stress;
