// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device IOTLB costs: lookups, insertions, readers together, readers beside a writer.
//!
//! Contenders of one row take turns, slice by slice, so that a busy machine meets them alike; what
//! is printed is the median of the slices, in nanoseconds of the thread's own CPU time. Lookups are
//! of 64 bytes at random places, in bursts of 32 where there are bursts, whose begin and end are in
//! the figure.

mod beside;
mod lookup;
mod time;
mod update;

use std::io::Write;

fn main() {
    println!(
        "device IOTLB; ns, medians of {} slices that take turns",
        time::SLICES
    );
    if let Ok(load) = std::fs::read_to_string("/proc/loadavg") {
        println!("load average at the start: {}", load.trim());
    }
    println!();
    println!(
        "{:<46} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "list", "interval", "vm-mem", "bare vm", "radix"
    );
    lookup::table();
    update::table();
    println!();
    beside::table();
    println!();
    println!(
        "vm-mem: vm-memory 0.18 behind our trait, locked once a burst. bare vm: its Iotlb in a RwLock, locked for each access, as its example does."
    );
    let _ = std::io::stdout().flush();
}

/// One row: a figure or a dash for each contender.
fn row(what: &str, figures: [Option<f64>; 5]) {
    let show = |figure: Option<f64>| figure.map_or("-".into(), |ns| format!("{ns:.1}"));
    let [list, interval, vm, bare, radix] = figures.map(show);
    println!("{what:<46} {list:>8} {interval:>8} {vm:>8} {bare:>8} {radix:>8}");
}
