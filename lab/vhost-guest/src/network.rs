// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The network with the TAP interface in it, at which the back end and this machine's stack meet.

use ioatlas_guest::{GuestError, network};
use std::env;
use std::net::Ipv4Addr;

/// Name of the TAP interface.
pub const TAP: &str = "ioatlas0";
/// Address of the interface, on this machine's side.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Address of the guest's card.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Starts the command again in it, unless it is there, and makes the interface.
pub fn enter() -> Result<(), GuestError> {
    network::enter(env::args_os().skip(1))?;
    network::loopback()?;
    network::tap(TAP, PEER, network::Queues::One)
}
