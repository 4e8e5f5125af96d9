// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What lies in memory between driver and unit, and what the capability registers say.
//!
//! Everything that the unit reads is a pair of little-endian 64-bit words, [`Words`]. Types here
//! only encode; the software unit decodes with its own code, so that one wrong bit is not wrong
//! twice.

pub(crate) mod capabilities;
pub mod context;
pub mod descriptor;
pub mod device_tlb;
pub mod interrupt;
pub mod root;
mod width;

pub use capabilities::Capabilities;
pub use context::{ContextEntry, FaultRecording, Slot, TranslationType};
pub use descriptor::{
    AddressMask, ContextInvalidate, Drain, FunctionMask, IotlbInvalidate, IotlbTarget, LeafHint,
    StatusWait, WaitOrder,
};
pub use device_tlb::{DevicePages, DeviceTlbInvalidate, QueueDepth};
pub use interrupt::{InterruptIndex, InterruptInvalidate};
pub use root::RootEntry;
pub use width::AddressWidth;

/// A 128-bit structure: bits 63..0, then bits 127..64.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words {
    pub low: u64,
    pub high: u64,
}

/// How many 64-bit words a 128-bit structure has.
pub const WORDS: usize = 2;
/// How many 128-bit structures a frame has: descriptors of a queue, entries of a
/// root or context table.
pub(crate) const PER_FRAME: usize = 256;
