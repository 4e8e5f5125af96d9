// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `doctor` on trees made here of files that machines have below /sys, /proc and /boot.

mod events;
mod hostile;
mod modes;
mod server;
mod tree;
mod units;
mod virtio;
