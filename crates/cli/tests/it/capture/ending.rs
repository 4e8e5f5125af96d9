// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How a capture ends: by signals, or killed, which the next one clears up.

use super::kernel::{DMA, Kernel, counts, mappings, put};
use rustix::process::Signal;
use std::fs;

/// A number that no process has: Linux gives none above 2^22.
const UNUSED_PID: u32 = (1 << 22) + 1;

#[test]
fn a_signal_ends_it_early_and_keeps_what_there_is() {
    // more than a pipe holds: it is read while it is written
    let text = mappings(4000, 3000);
    let signals = [Signal::INT, Signal::TERM, Signal::HUP];
    // where the tests themselves run under nohup, a hangup ends nothing
    let asked = signals
        .into_iter()
        .filter(|signal| *signal != Signal::HUP || !ignores_hangup());
    for signal in asked {
        let mut kernel = Kernel::new(&DMA, &text);
        kernel.signal = Some(signal);
        let ran = kernel.run(&["--seconds", "3600", "--json"]);
        let said = ran.json();
        assert_eq!(said["ended"], "signal", "{said}");
        assert!(said["seconds"].as_f64().unwrap() < 3600.0, "{said}");
        assert_eq!(counts(&kernel.path("capture.trace.zst")), (4000, 3000));
        assert_eq!(
            (kernel.instances(), ran.setting("tracing_on")),
            (vec![], "0")
        );
        assert_eq!(kernel.files(), ["capture.trace.zst"]);
    }
}

/// Whether a program that is started here ignores SIGHUP, signal 1.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(set.unwrap().trim(), 16).unwrap() & 1 != 0
}

#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    let mut kernel = Kernel::new(&DMA, &mappings(12, 9));
    kernel.signal = Some(Signal::HUP);
    let mut command = kernel.under(&["nohup"]);
    command.args(["--seconds", "1", "--json"]);
    let ran = kernel.finish(command.spawn().unwrap());
    assert_eq!(ran.json()["ended"], "time");
    assert_eq!(counts(&kernel.path("capture.trace.zst")), (12, 9));
}

#[test]
fn what_a_killed_capture_left_is_removed() {
    let kernel = Kernel::new(&DMA, &mappings(2, 1));
    let living = format!("ioatlas-{}", std::process::id());
    let dead = format!("ioatlas-{UNUSED_PID}");
    let full = format!("ioatlas-{}", UNUSED_PID + 1);
    for name in [&living, &dead, "ioatlas-x", "others"] {
        fs::create_dir(kernel.path("tracing/instances").join(name)).unwrap();
    }
    // one that cannot be removed, as if a program had a file of it open
    put(
        &kernel.path("tracing/instances").join(&full).join("file"),
        "",
    );
    let ran = kernel.run(&["--seconds", "0.1", "--json"]);
    assert_eq!(ran.json()["events"], 3);
    let said = ran.err();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains(&full) && lines[0].contains("stays: "),
        "{said}"
    );
    assert!(
        lines[1].starts_with("removed ") && lines[1].contains(&dead),
        "{said}"
    );
    let mut left = vec![living, full, "ioatlas-x".into(), "others".into()];
    left.sort();
    assert_eq!(kernel.instances(), left);
}
