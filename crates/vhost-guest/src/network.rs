// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A network of our own with the TAP interface in it.
//!
//! Only the privileged make an interface: so the whole command starts again in a user and network name space of its own (`unshare`), in which
//! it is. The interface stays when the back end goes, with its address, and the connections at it.

use crate::error::Error;
use ioatlas_guest::GuestError;
use std::env;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set where the command has started again already.
const INSIDE: &str = "IOATLAS_VHOST_GUEST_NETWORK";
const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--net"];
/// The interface.
pub const TAP: &str = "ioatlas0";
/// Its address.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The guest's.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// Starts the command again inside, unless it is there. On success it does not return.
pub fn enter() -> Result<(), Error> {
    if env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    said_by(Command::new("unshare").args(UNSHARE).arg("true"))?;
    let program = env::current_exe().map_err(Error::io("the path of this program"))?;
    let source = Command::new("unshare")
        .args(UNSHARE)
        .arg(program)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(GuestError::tool("unshare", source).into())
}

/// Makes the interface.
pub fn make_tap() -> Result<(), Error> {
    let ip = |words: &[&str]| said_by(Command::new("ip").args(words));
    ip(&["link", "set", "lo", "up"])?;
    ip(&["tuntap", "add", "dev", TAP, "mode", "tap"])?;
    ip(&["addr", "add", &format!("{PEER}/24"), "dev", TAP])?;
    ip(&["link", "set", TAP, "up"])
}

fn said_by(command: &mut Command) -> Result<(), Error> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| GuestError::tool(&tool, source))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Network(format!("{tool}: {}", said.trim())))
}
