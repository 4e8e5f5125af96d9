// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bounce buffers and the DMA API above them.

mod any;
mod api;
mod batches;
mod calls;
mod crowd;
mod failed;
mod fallback;
mod guarded;
pub mod heap;
mod lengths;
mod oracle;
mod owners;
pub mod patchy;
mod raw;
mod rig;
mod slots;
mod split;
mod typed;
