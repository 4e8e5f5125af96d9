// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A driver of NVMe controllers in user space, made to be read: how a driver uses ioatlas's DMA
//! API, from the first register to a measured table.
//!
//! # In which order to read
//!
//! | module | concept |
//! |---|---|
//! | [`window`] | what a driver needs of a bus: registers, and what tells of interrupts |
//! | [`edu`] | the smallest device that moves data by itself; every idea of DMA protection in six registers |
//! | [`round_trip`] | a domain, the same over whatever is below it |
//! | [`nvme::registers`] | a controller's registers |
//! | [`nvme::command`] | the 64 bytes of a command, the 16 of a completion |
//! | [`nvme::queue`] | a pair of rings in memory that both sides use at once |
//! | [`nvme::prp`] | how a command names its data: physical region pages |
//! | [`nvme::controller`] | bring-up, administration, shut-down |
//! | [`nvme::namespace`] | blocks, read into typed buffers: the whole DMA API in one function |
//! | [`policy`] | what a driver's mappings cost and protect is no decision of the driver's code |
//! | [`pattern`] | data that prove where they come from |
//! | [`load`] | many reads at once: what is measured |
//! | [`lists`] | scatter-gather lists |
//! | [`memory`] | where buffers lie, and why that matters |
//! | [`verify`], [`revoke`], [`cost`] | the three questions: is it right, is it safe, what does it cost |
//! | [`vfio`] | what is below: a device that the kernel gave to this process |
//! | [`session`] | all of it, in order |
//!
//! # Words
//!
//! *Controller*: the device. *Namespace*: one of its disks. *Submission queue*: the ring that the
//! driver writes commands to; *completion queue*: the one that the controller writes answers to;
//! *doorbell*: the register that tells of it. *PRP*: an entry of a command's list of pages.
//! *Policy*: how buffers are made reachable for the device and taken away again.
//!
//! # Invariants
//!
//! * Nothing that the controller may still write to is freed or unmapped: a queue's memory lives in
//!   its controller, which is disabled before that goes; a command's data are unmapped after its
//!   completion was seen, or after the controller was disabled.
//! * What the device says is checked before it is used: a completion names a command that is under
//!   way, or is an error.
//!
//! # Memory ordering
//!
//! Rings are words of coherent memory. A doorbell is written after a fence that orders it behind
//! the command; a completion's other words are read after its phase, which is loaded with acquire.
//!
//! Not handled: more than one thread to a queue; queues in the controller's own memory;
//! scatter-gather lists in place of PRPs; namespaces with metadata.
#![deny(unsafe_code)] // but for a promise

pub mod cost;
pub mod edu;
pub mod lists;
pub mod load;
pub mod memory;
pub mod nvme;
pub mod pattern;
pub mod policy;
pub mod revoke;
pub mod round_trip;
pub mod session;
pub mod verify;
pub mod vfio;
pub mod window;
