// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A network of our own, for cards with several queues: QEMU's user-mode network has one.

use super::machine::{NET, tap};
use ioatlas_guest::{GuestError, network};
use std::ffi::OsString;
use std::net::Ipv4Addr;

/// Where the peer listens.
#[must_use]
pub fn address(queues: u32) -> Ipv4Addr {
    match queues {
        1 => Ipv4Addr::LOCALHOST,
        _ => Ipv4Addr::UNSPECIFIED,
    }
}

/// Starts the command again inside, unless it is there, and makes the hosts' ends of so many cards.
///
/// # Errors
///
/// [`GuestError`], if there is no way inside, or no `ip`.
pub fn enter(command_line: &[OsString], cards: usize) -> Result<(), GuestError> {
    network::enter(command_line.iter().skip(1).cloned())?;
    for card in 0..cards {
        let address = format!("{NET}{}.2", 2 + card);
        let address: Ipv4Addr = address.parse().map_err(|_| GuestError::Network {
            detail: format!("{address} is no address"),
        })?;
        network::tap(&tap(card), address, network::Queues::Several)?;
    }
    Ok(())
}
