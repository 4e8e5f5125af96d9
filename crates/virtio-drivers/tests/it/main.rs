// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Drivers of virtio-drivers with software devices that reach memory through the software unit
//! only, by the addresses that they were given.

mod disk;
mod failures;
mod platform;
mod port;
mod protection;
mod requests;
mod setup;
mod soft;
mod window;
mod wire;
