// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A network of our own, in which a guest's cards have their other ends.
//!
//! Only the privileged make a TAP interface: so the whole command starts again in a user and
//! network name space of its own (`unshare`), in which it is, and in which no other network is
//! touched. An interface stays when the program that serves it ends, with its address.

use crate::GuestError;
use std::env;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set where the command has started again already.
const INSIDE: &str = "IOATLAS_GUEST_NETWORK";
const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--net"];

/// Queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// A single queue, which one program opens.
    One,
    /// One for each that opens it.
    Several,
}

/// Starts this program again inside, with these arguments, unless it is there. On success
/// it does not return.
///
/// # Errors
///
/// [`GuestError::Network`], or [`GuestError::Tool`]: there is no way inside.
pub fn enter(arguments: impl IntoIterator<Item = OsString>) -> Result<(), GuestError> {
    if env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    said_by(Command::new("unshare").args(UNSHARE).arg("true"))?;
    let failed = |source| GuestError::tool("unshare", source);
    let source = Command::new("unshare")
        .args(UNSHARE)
        .arg(env::current_exe().map_err(failed)?)
        .args(arguments)
        .env(INSIDE, "1")
        .exec();
    Err(failed(source))
}

/// Brings the loopback interface up.
pub fn loopback() -> Result<(), GuestError> {
    ip(&["link", "set", "lo", "up"])
}

/// Makes an interface that has this address, in a network of 256.
pub fn tap(name: &str, address: Ipv4Addr, queues: Queues) -> Result<(), GuestError> {
    let make = ["tuntap", "add", "dev", name, "mode", "tap", "multi_queue"];
    ip(match queues {
        Queues::One => &make[..6],
        Queues::Several => &make,
    })?;
    ip(&["addr", "add", &format!("{address}/24"), "dev", name])?;
    ip(&["link", "set", name, "up"])
}

fn ip(words: &[&str]) -> Result<(), GuestError> {
    said_by(Command::new("ip").args(words))
}

fn said_by(command: &mut Command) -> Result<(), GuestError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| GuestError::tool(&tool, source))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(GuestError::Network {
        detail: format!("{tool}: {}", said.trim()),
    })
}

#[cfg(test)]
mod tests {
    use super::said_by;
    use crate::GuestError;
    use std::process::Command;

    #[test]
    fn what_a_tool_says_is_told_and_one_that_is_not_there_named() {
        let failed = said_by(Command::new("ls").args(["--", "/nowhere at all"]));
        let Err(GuestError::Network { detail }) = failed else {
            panic!("{failed:?}");
        };
        assert!(detail.starts_with("ls: ") && detail.contains("/nowhere"));
        let missing = said_by(&mut Command::new("no such tool"));
        assert!(
            matches!(missing, Err(GuestError::Tool { .. })),
            "{missing:?}"
        );
    }
}
