// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Counting in the kernel, by a script of bpftrace.

use super::arguments::LiveCaptureArguments;

/// The script, which counts for five seconds of all devices.
const SCRIPT: &str = include_str!("capture.bt");

/// The time in it, in nanoseconds.
const TIME: &str = ">= 5000000000/";

/// The line in it after which the device of an event is known.
const DEVICE: &str = "    $device = str(args->device);\n";

/// Rows of each table: mappings at a time, or tasks on CPUs by device. What is beyond is not
/// counted.
const ROWS: u32 = 65_536;

/// The script as a shell runs it. Older and newer bpftrace call the number of rows differently.
pub(super) fn script(arguments: &LiveCaptureArguments) -> String {
    let time = format!(">= {}/", arguments.seconds.as_nanos());
    let mut script = SCRIPT.replace(TIME, &time);
    if !arguments.device.is_empty() {
        let devices = arguments.device.iter();
        let others: Vec<String> = devices
            .map(|name| format!("$device != \"{name}\""))
            .collect();
        let filter = format!("{DEVICE}    if ({}) {{ return; }}\n", others.join(" && "));
        script = script.replace(DEVICE, &filter);
    }
    format!(
        "#!/bin/sh\n\
         # As root, on Linux 6.12 or later with bpftrace: sh THIS >my.json; then ioatlas report my.json\n\
         # Ctrl-C ends it early.\n\
         export BPFTRACE_MAP_KEYS_MAX={ROWS} BPFTRACE_MAX_MAP_KEYS={ROWS}\n\
         exec bpftrace -f json -e '\n{script}'\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_can_stand_between_quotes_and_has_what_is_replaced() {
        assert!(!SCRIPT.contains('\''));
        assert_eq!(SCRIPT.matches(TIME).count(), 1);
        assert_eq!(SCRIPT.matches(DEVICE).count(), 4);
    }
}
