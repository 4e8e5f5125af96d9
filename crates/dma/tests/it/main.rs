// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The integration tests of this crate, in one program: each is a module.

mod assigners;
mod bounce;
mod doors;
mod identity;
mod kept_off;
mod kmalloc;
mod loom;
mod options;
mod policies;
mod raw_door;
mod sim;
mod suspect;
mod tables;
mod warm_path;
