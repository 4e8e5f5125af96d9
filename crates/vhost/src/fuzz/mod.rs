// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Entry points for fuzzers.

mod cache;

pub use cache::{Findings, MAX_OPS, Op, cache, decode, replay};
