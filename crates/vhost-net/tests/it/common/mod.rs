// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the tests share.
#![allow(dead_code)] // not every test uses all of it

pub mod device;
pub mod driver;
pub mod front;
pub mod guest;
pub mod nic;
