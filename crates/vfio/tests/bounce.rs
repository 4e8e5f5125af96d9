// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The core's suite of bounce buffers and the DMA API, as it is, over VFIO on a simulated kernel. What is left out looks at page tables, or counts their frames.

#[path = "../../dma/tests/bounce/api.rs"]
mod api;
#[path = "../../dma/tests/bounce/calls.rs"]
mod calls;
#[path = "../../dma/tests/bounce/crowd.rs"]
mod crowd;
#[path = "../../dma/tests/bounce/oracle.rs"]
mod oracle;
#[path = "bounce/rig.rs"]
mod rig;
#[path = "../../dma/tests/bounce/slots.rs"]
mod slots;
#[path = "../../dma/tests/bounce/split.rs"]
mod split;
