// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bounce buffers and the DMA API above them.

#[path = "bounce/api.rs"]
mod api;
#[path = "bounce/calls.rs"]
mod calls;
#[path = "bounce/crowd.rs"]
mod crowd;
#[path = "bounce/ladder.rs"]
mod ladder;
#[path = "bounce/oracle.rs"]
mod oracle;
#[path = "bounce/rig.rs"]
mod rig;
#[path = "bounce/slots.rs"]
mod slots;
#[path = "bounce/split.rs"]
mod split;
