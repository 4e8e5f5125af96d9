// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod bench;
mod bounce;
mod common;
mod papers;
mod scale;
