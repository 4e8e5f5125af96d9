// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What fuzzers call, as plain functions: each takes bytes, makes of them what its module says, and
//! panics where the code breaks a promise. `corpus/TARGET` has their inputs; `cargo test` replays
//! and mutates these without a fuzzer, and `fuzz` is the harness for one.

pub mod cache;
mod cache_oracle;
pub mod capture;
pub mod chains;
pub mod corpus;
pub mod dmar;
pub mod stream;
pub mod unit;
