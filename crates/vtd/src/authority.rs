// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit's right to the frames that are its own.

use ioatlas_dma::platform::Authority;

/// Over the frames of a unit's root table, context tables and queue.
// SAFETY: they are of the platform that the unit was brought up on, and the unit's own until it is
// shut down.
#[allow(unsafe_code)]
pub(crate) const OURS: Authority = unsafe { Authority::assume() };
