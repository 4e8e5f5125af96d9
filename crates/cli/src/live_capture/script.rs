// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The capture as commands for a shell, to be read before they are run as root.

use super::arguments::{Device, LiveCaptureArguments};
use super::{kept_text, tracefs};
use std::path::Path;
use std::thread;

/// What a shell does the same with.
///
/// `dd` reads without waiting, and ends where there is nothing to be read: so nothing that reads is
/// killed, and what was read was written. Its directory has the name of an instance of ours, so
/// that a capture removes it where the shell was killed. Names of tasks are saved while events
/// come, so they are read last, and put first, where the importer needs them.
pub(super) fn script(arguments: &LiveCaptureArguments) -> String {
    let asked = arguments.tracefs.as_deref();
    let tracefs_root = asked.unwrap_or(Path::new("/sys/kernel/tracing"));
    let instance = path(&tracefs_root.join("instances/ioatlas-"));
    let saved = path(&tracefs_root.join("saved_cmdlines"));
    let text = path(&kept_text(&arguments.output).with_extension("")); // without .zst
    let output = path(&arguments.output);
    let usable = || thread::available_parallelism().map_or(1, usize::from);
    let kib = arguments.kib(tracefs::online(tracefs_root).map_or_else(usable, |cpus| cpus.len()));
    let seconds = arguments.seconds.as_secs_f64();
    let filter = match arguments.device.as_slice() {
        [] => String::new(),
        devices => format!(
            "for f in \"$i\"/events/dma/*/filter; do echo {} >\"$f\"; done\n",
            quoted(&Device::filter(devices))
        ),
    };
    format!(
        r#"set -e # as root, on Linux 6.12 or later
umask 077; i={instance}$$ text={text}
(set -C; : >"$text") # a file that is there stays
mkdir "$i"; trap 'exit 130' INT TERM HUP
trap 'echo 0 >"$i/events/enable"; rmdir "$i"' EXIT
echo 0 >"$i/tracing_on"; echo 0 >"$i/options/overwrite"
echo {kib} >"$i/buffer_size_kb"; echo mono >"$i/trace_clock"
{filter}echo 1 >"$i/events/dma/enable"; echo 1 >"$i/tracing_on"
(sleep {seconds}; echo 0 >"$i/tracing_on") >/dev/null 2>&1 &
pull() {{ LC_ALL=C dd if="$i/trace_pipe" bs=64k iflag=nonblock status=none 2>&1 >>"$text" |
    grep -v 'temporarily unavailable' >&2 || :; }}
while [ "$(cat "$i/tracing_on")" = 1 ]; do pull; sleep 0.05; done; pull
awk '/^(dropped events|commit overrun):/ {{ n += $NF }}
    END {{ if (n) printf "CPU:0 [LOST %.0f EVENTS]\n", n }}' "$i"/per_cpu/cpu*/stats >>"$text"
(set -C; {{ grep -sH '' {saved} || :; cat "$text"; }} >"$text.named"); mv "$text.named" "$text"
ioatlas trace convert "$text" --assume none -o {output}
[ -z "${{SUDO_UID-}}" ] || chown "$SUDO_UID:$SUDO_GID" "$text" {output}
"#
    )
}

/// A path that no command takes for an option.
fn path(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.starts_with('-') {
        true => quoted(&format!("./{text}")),
        false => quoted(&text),
    }
}

/// One word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
