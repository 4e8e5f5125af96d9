// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The software unit, by behaviour: what it translates and blocks, what it keeps and drops,
//! what it waits for.

mod caching_mode;
mod commands;
mod device_tlbs;
mod drains;
mod driven;
mod events;
mod faults;
mod flushes;
mod geometries;
mod large_leaves;
mod messages;
mod mmio;
mod queue;
mod recording;
mod registers;
mod requests;
mod rig;
mod simulated;
mod walks;
mod write_buffers;
