// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A network of our own, for cards with several queues.
//!
//! QEMU's user-mode network has one queue. A tap device has several, but only the privileged make one: so the whole command starts again
//! in a user and network name space of its own (`unshare`), in which it is, and in which nobody else's network is touched.

use super::RecordError;
use super::machine::{NET, tap};
use ioatlas_guest::GuestError;
use std::env;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set where the command has started again already.
const INSIDE: &str = "IOATLAS_RECORD_NETWORK";
const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--net"];

/// Where the peer listens.
#[must_use]
pub fn address(queues: u32) -> Ipv4Addr {
    match queues {
        1 => Ipv4Addr::LOCALHOST,
        _ => Ipv4Addr::UNSPECIFIED,
    }
}

/// Starts the command again inside, unless it is there.
///
/// # Errors
///
/// [`RecordError`], if there is no way inside. On success it does not return.
pub fn enter(command_line: &[OsString]) -> Result<(), RecordError> {
    if env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    said_by(Command::new("unshare").args(UNSHARE).arg("true"))?;
    let program = env::current_exe().map_err(|source| GuestError::tool("unshare", source))?;
    let source = Command::new("unshare")
        .args(UNSHARE)
        .arg(program)
        .args(command_line.iter().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(GuestError::tool("unshare", source).into())
}

/// Makes the hosts' ends of so many cards.
///
/// # Errors
///
/// [`RecordError::Network`], or that there is no `ip`.
pub fn connect(cards: usize) -> Result<(), RecordError> {
    let ip = |words: &[&str]| said_by(Command::new("ip").args(words));
    for card in 0..cards {
        let (tap, net) = (tap(card), 2 + card);
        ip(&["tuntap", "add", "dev", &tap, "mode", "tap", "multi_queue"])?;
        ip(&["addr", "add", &format!("{NET}{net}.2/24"), "dev", &tap])?;
        ip(&["link", "set", &tap, "up"])?;
    }
    Ok(())
}

fn said_by(command: &mut Command) -> Result<(), RecordError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| GuestError::tool(&tool, source))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(RecordError::Network {
        detail: format!("{tool}: {}", said.trim()),
    })
}
