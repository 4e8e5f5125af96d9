// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The capture as commands for a shell, to be read before they are run as root.

use super::arguments::{Device, LiveCaptureArguments};
use super::kept_text;
use std::path::Path;
use std::thread;

/// What a shell does the same with.
pub(super) fn script(arguments: &LiveCaptureArguments) -> String {
    let tracefs = arguments.tracefs.as_deref();
    let tracefs = tracefs.unwrap_or(Path::new("/sys/kernel/tracing"));
    let instance = path(&tracefs.join("instances/ioatlas"));
    let text = path(&kept_text(&arguments.output).with_extension("")); // without .zst
    let output = path(&arguments.output);
    let kib = arguments.kib(thread::available_parallelism().map_or(1, usize::from));
    let seconds = arguments.seconds.as_secs_f64();
    let filter = match arguments.device.as_slice() {
        [] => String::new(),
        devices => format!(
            "for f in \"$i\"/events/dma/*/filter; do echo {} >\"$f\"; done\n",
            quoted(&Device::filter(devices))
        ),
    };
    format!(
        r#"set -e # as root, on Linux 6.12 or later; the last line needs no root
i={instance} text={text}
mkdir "$i"; trap 'exit 130' INT TERM HUP
trap 'echo 0 >"$i/events/enable"; rmdir "$i"' EXIT
echo 0 >"$i/tracing_on"; echo 0 >"$i/options/overwrite"
echo {kib} >"$i/buffer_size_kb"; echo mono >"$i/trace_clock"
{filter}echo 1 >"$i/events/dma/enable"; echo 1 >"$i/tracing_on"
timeout {seconds} cat "$i/trace_pipe" >"$text" || [ $? = 124 ]
echo 0 >"$i/tracing_on"; timeout 1 cat "$i/trace_pipe" >>"$text" || [ $? = 124 ]
sed -n 's/^dropped events: \([1-9].*\)/CPU:0 [LOST \1 EVENTS]/p' "$i"/per_cpu/cpu*/stats >>"$text"
ioatlas trace convert "$text" -o {output}
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
