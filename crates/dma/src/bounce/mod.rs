// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bounce buffers: copying into memory that is mapped already, where that is cheaper than mapping,
//! or where mapping would show too much.
//!
//! # Theory
//!
//! (BOUNCE'21: D. Stevens, "Add dynamic iommu backed bounce buffers", v2.) A *pool* belongs to one
//! domain and one address limit; all devices of the domain share it. It has size *classes* of
//! power-of-two *slots*; each class has one IOVA range, in which each slot has its place for good.
//! A slot that has memory is mapped once, with one permission, and stays mapped from user to user;
//! so an operation costs a push and a pop of a per-CPU magazine ([`crate::magazine`]), and the
//! copy. What the classes cannot serve goes down a fallback chain ([`Step`]), so that there is no
//! cliff.
//!
//! # What a device can see (P7)
//!
//! A device reaches slots at any time, also between two users: what it may read there is what it
//! was given before, until the next user's data replace it. Before an address is given out, all
//! that the device could read and that is not this user's is zero (the table in `window`). What it
//! wrote where it should not is never copied: copy-back covers exactly the bytes that were mapped,
//! once, and what the CPU sees after that is its own memory.
//!
//! *Bytes that a device was to write and did not write come back as zero.* The other way (copy the
//! buffer in, so that they come back as they were, as swiotlb does since CVE-2022-0854) reads the
//! buffer before each receive. Zeroing is done at unmap, to lines that the copy-back has just read;
//! map then touches no byte in this direction. A driver that relies on bytes it put there itself
//! must say [`Bidirectional`](crate::units::Direction::Bidirectional).
//!
//! # Conservation (P10)
//!
//! Slots are empty, kept, taken or lost; chunk pages are taken or kept; frames of both are their
//! owner's until a flush has been waited for. `audit` checks it.
//!
//! # Locking
//!
//! `CPU cache -> depot` of the magazines, and alone: each class's list of empty and of lost slots,
//! each list of chunks, the idle clock. None is held while memory is allocated, mapped, or flushed.
//!
//! # Not handled
//!
//! Translators that let a device read where it was given write permission only; memory that must be
//! contiguous beyond a granule.
//!
//! [`crate::dma_api`] is the way in.

mod chunks;
mod class;
mod config;
mod cost_model;
mod fallback;
mod fast_path;
mod frame_table;
mod pieces;
mod pool;
mod single_use;
mod split;
mod stats;
mod usage;
mod window;
mod zeroed;

pub use chunks::ChunkUsage;
pub use class::SlotUsage;
pub use config::{
    CHUNK_PAGES, CHUNKS_MAX, ClassConfig, Growth, PoolConfig, PoolConfigError, SLOT_PAGES_LG2_MAX,
    SLOTS_MAX, SingleUse,
};
pub use cost_model::{Clock, Learned, Route};
pub use pieces::Span;
pub use pool::PoolError;
pub use stats::{BounceError, Lack, Step, StepCounts};
pub use usage::PoolUsage;

pub(crate) use class::Slot;
pub(crate) use cost_model::{Advice, CellIndex};
pub(crate) use pieces::{Data, Move};
pub(crate) use pool::{Buffer, Need, Pool};
pub(crate) use single_use::{SingleUseBuffer, map_own};
pub(crate) use split::Split;
pub(crate) use stats::ReturnError;
