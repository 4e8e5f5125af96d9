// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's arguments, as far as all guests share them.

use crate::GuestError;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The emulator's program, looked for in `PATH`.
pub const QEMU: &str = "qemu-system-x86_64";

/// What a guest's reboot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reboot {
    /// Ends QEMU, and so the run.
    Ends,
    /// Boots the guest again, in the same QEMU.
    Boots,
}

/// A machine without devices (q35), whose console is QEMU's standard output.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Machine<'a> {
    pub cpus: u32,
    pub memory_mib: u32,
    pub kernel: &'a Path,
    /// Its first file system.
    pub initrd: &'a Path,
    /// What the kernel is told beside where its console is.
    pub command_line: &'a str,
    /// What a reboot does.
    pub reboot: Reboot,
}

impl Machine<'_> {
    /// The arguments, to which those of an accelerator and of devices are to be added.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-M", "q35"]);
        add(&["-nodefaults", "-display", "none", "-vga", "none"]);
        add(&["-m", &self.memory_mib.to_string()]);
        add(&["-smp", &self.cpus.to_string()]);
        add(&["-chardev", "stdio,id=console,signal=off"]);
        add(&["-serial", "chardev:console"]);
        if self.reboot == Reboot::Ends {
            add(&["-no-reboot"]);
        }
        // no_timer_check: on a loaded machine the check of the timer fails, and the boot with it
        let line = format!(
            "console=ttyS0 panic=-1 loglevel=4 no_timer_check {}",
            self.command_line
        );
        add(&["-append", line.trim_end()]);
        let mut path = |option: &str, path: &Path| {
            arguments.extend([option.into(), path.into()]);
        };
        path("-kernel", self.kernel);
        path("-initrd", self.initrd);
        arguments
    }
}

/// What QEMU says of its version.
///
/// # Errors
///
/// [`GuestError::Tool`], if there is none.
pub fn version() -> Result<String, GuestError> {
    let told = Command::new(QEMU).arg("--version").output();
    let told = told.map_err(|source| GuestError::tool(QEMU, source))?;
    let told = String::from_utf8_lossy(&told.stdout);
    Ok(told.lines().next().unwrap_or_default().into())
}

/// A path as part of an option: in those a comma is doubled.
#[must_use]
pub fn comma_safe(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_that_is_to_end_at_its_reboot_does() {
        for (reboot, ends) in [(Reboot::Ends, true), (Reboot::Boots, false)] {
            let machine = Machine {
                cpus: 1,
                memory_mib: 64,
                kernel: Path::new("vmlinuz"),
                initrd: Path::new("initrd"),
                command_line: "",
                reboot,
            };
            assert_eq!(machine.arguments().contains(&"-no-reboot".into()), ends);
        }
    }

    #[test]
    fn a_comma_in_a_path_is_not_the_end_of_it() {
        assert_eq!(comma_safe(Path::new("a,b/disk")), "a,,b/disk");
    }
}
