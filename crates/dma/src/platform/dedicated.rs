// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Platforms whose memory is all there for devices.

use super::Platform;

/// A platform of whose memory devices may have all: a user-space driver's arena, or that of a test.
/// A kernel is none, and neither is a virtual machine monitor whose guest's memory holds its own.
///
/// # Safety
/// Whatever a program maps, by whatever tables, a device reaches only memory to which no code has
/// a reference, but for such that atomic words and other interior mutability allow; and none counts
/// on what it holds. That is so for as long as a device may reach it. So a mistake of a driver
/// breaks what devices see, and nothing else: [`Domain`](crate::domain::Domain) maps any address.
#[allow(unsafe_code)]
pub unsafe trait DedicatedMemory: Platform {}
