// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a map and its unmap cost on this machine.
//!
//! # Theory
//!
//! A *subject* gives out ranges and takes them back ([`Subject`]): a whole domain, an
//! allocator alone, a table alone, an allocator of another project, or a control loop that
//! touches private memory only. A *pattern* ([`Pattern`]) says in which order; sizes come
//! from [`Sizes`]. One *pair* is one take and one give. A subject under a pattern is a
//! *worker* on each thread ([`Worker`]).
//!
//! To count instructions there is a program that runs pairs and nothing else (`pairs`, the binary
//! of this crate): so many of a case after a warm-up, the same every time, so that the difference
//! of two runs is exact.
#![deny(unsafe_code)] // peers and adapters are told promises, block by block

pub mod bounce;
pub mod budget;
pub mod case;
pub mod contest;
pub mod control;
pub mod figure;
pub mod latency;
pub mod memory;
pub mod pattern;
pub mod peers;
pub mod plan;
pub mod platform;
pub mod probe;
pub mod rows;
pub mod slices;
pub mod stack;
pub mod subject;
pub mod subjects;
pub mod summary;
pub mod worker;

pub use case::{Case, CaseError, Kind};
pub use contest::Contestant;
pub use control::Control;
pub use figure::{Figure, Unmeasured};
pub use ioatlas_present::Spread;
pub use pattern::{Pattern, Sizes};
pub use probe::Mode;
pub use rows::{Row, Spec, What, measure, measure_within, pair_time};
pub use slices::{Effort, Limit, alternate, alternate_within};
pub use subject::{Failure, Subject};
pub use worker::Worker;
