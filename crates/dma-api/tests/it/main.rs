// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Drivers on dma-api with devices that reach memory through the software unit only, by the
//! addresses that they were given.

mod arrays;
mod constraints;
mod driver;
mod failures;
#[path = "../../../virtio-drivers/tests/it/platform.rs"]
mod platform;
mod rig;
#[path = "../../../virtio-drivers/tests/it/soft.rs"]
mod soft;
mod streaming;
#[path = "../../../virtio-drivers/tests/it/window.rs"]
mod window;
