// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a process was told of signals when it began.

use std::fs;

/// Whether this process was started with the signal ignored, as under `nohup` a hangup is.
pub(crate) fn ignores(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored(&status) & (1 << (signal - 1)) != 0
}

/// The signals that a process ignores, from bit 0 for signal 1.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn the_set_of_ignored_signals_is_read() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!((ignored(status), ignored("")), (0x1001, 0));
    }
}
