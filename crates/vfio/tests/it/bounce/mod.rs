// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The core's suite of bounce buffers and the DMA API, as it is, over VFIO on a simulated kernel.
//! What is left out looks at page tables, or counts their frames.

#[path = "../../../../dma/tests/it/bounce/api.rs"]
mod api;
#[path = "../../../../dma/tests/it/bounce/calls.rs"]
mod calls;
#[path = "../../../../dma/tests/it/bounce/crowd.rs"]
mod crowd;
#[path = "../../../../dma/tests/it/bounce/oracle.rs"]
mod oracle;
mod rig;
#[path = "../../../../dma/tests/it/bounce/slots.rs"]
mod slots;
#[path = "../../../../dma/tests/it/bounce/split.rs"]
mod split;
