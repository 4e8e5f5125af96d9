// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Drivers of virtio-drivers with a software disk that reaches memory through the software unit
//! only, by the addresses that it was given.

mod disk;
mod failures;
mod platform;
mod protection;
mod requests;
mod setup;
mod window;
