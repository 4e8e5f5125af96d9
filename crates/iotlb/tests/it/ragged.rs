// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Captures whose CPUs begin at different times, because their buffers were overwritten.

use ioatlas_iotlb::import::{Assume, Capture, Identity, Options, load};
use ioatlas_iotlb::{Limits, Topic, Trace};
use std::io::Read;

const OPTIONS: Options = Options {
    from: None,
    assume: Assume::None,
    assign: ioatlas_iotlb::import::AssignIovas::Auto,
    identity: Identity::Kept,
};

/// The events of a CPU, one in 20 us, a map and an unmap in turns: the last `count` of 1,000.
fn events(cpu: u64, count: u64) -> impl Iterator<Item = (u64, String)> {
    (1000 - count..1000).map(move |number| {
        let time = 1_000_000 + 20 * number;
        let address = (cpu << 24) + ((number / 2) << 12);
        let (event, phys) = match number % 2 {
            0 => ("map", format!("phys_addr={address:x} ")),
            _ => ("unmap", String::new()),
        };
        let line = format!(
            "  task-{cpu} [{cpu:03}] ..... {}.{:06}: dma_{event}_page: d dir=TO_DEVICE \
             dma_addr={:x} size=4096 {phys}attrs=\n",
            time / 1_000_000,
            time % 1_000_000,
            0xf000_0000 + address,
        );
        (time, line)
    })
}

/// What the tracer prints of such CPUs.
fn capture(written: u64, cpus: &[u64]) -> String {
    let of = |(cpu, count): (usize, &u64)| events(cpu as u64, *count);
    let mut all: Vec<(u64, String)> = cpus.iter().enumerate().flat_map(of).collect();
    all.sort();
    let header = format!(
        "# tracer: nop\n#\n# entries-in-buffer/entries-written: {}/{written}   #P:{}\n#\n",
        all.len(),
        cpus.len()
    );
    let lines: String = all.into_iter().map(|(_, line)| line).collect();
    header + &lines
}

fn trace(text: &str) -> Trace {
    load("t", &text.as_bytes(), OPTIONS, Limits::default()).unwrap()
}

fn trimmed(trace: &Trace) -> u64 {
    let mut notes = trace.notes().iter();
    let note = notes.find(|note| note.topic == Topic::Trimmed);
    note.map_or(0, |note| note.count)
}

fn rate(trace: &Trace) -> f64 {
    trace.info().clock.unwrap().maps_per_second
}

/// Maps a second of 16 CPUs, one in 40 us on each.
const RATE: f64 = 16.0 / 40e-6;

#[test]
fn rates_are_those_of_the_time_that_all_cpus_have() {
    let cpus = [[300; 8], [900; 8]].concat();
    let ragged = trace(&capture(5_000_000, &cpus));
    assert_eq!(trimmed(&ragged), 8 * 600);
    assert_eq!(ragged.events().len(), 16 * 300);
    assert!(
        (rate(&ragged) / RATE - 1.0).abs() < 0.01,
        "{}",
        rate(&ragged)
    );
    assert!(ragged.info().anomalies.is_empty());
    // as the rate would be otherwise
    let whole = trace(&capture(16 * 600, &cpus));
    assert_eq!((trimmed(&whole), whole.events().len()), (0, 16 * 600));
    assert!(rate(&whole) < 0.7 * RATE, "{}", rate(&whole));
    // a map before the beginning, and its unmap behind it
    let odd = trace(&capture(5_000_000, &[[299; 8], [900; 8]].concat()));
    assert!((rate(&odd) / RATE - 1.0).abs() < 0.01, "{}", rate(&odd));
    let notes: Vec<Topic> = odd.notes().iter().map(|note| note.topic).collect();
    assert!(notes.contains(&Topic::MappedBefore), "{notes:?}");
}

#[test]
fn an_idle_cpu_takes_nothing_from_the_others() {
    let cpus = [&[300; 8][..], &[20; 8]].concat();
    let idle = trace(&capture(5_000_000, &cpus));
    assert_eq!((trimmed(&idle), idle.events().len()), (0, 8 * 300 + 8 * 20));
}

#[test]
fn a_ragged_capture_is_converted_as_it_is_loaded() {
    let text = capture(5_000_000, &[300, 900, 20]);
    let loaded = trace(&text);
    assert_eq!(trimmed(&loaded), 600);
    let mut converted = String::new();
    let bytes = text.as_bytes();
    let mut capture = Capture::new("t", &bytes, OPTIONS, Limits::default()).unwrap();
    capture.read_to_string(&mut converted).unwrap();
    let read = Trace::read("t", converted.as_bytes(), Limits::default()).unwrap();
    assert!(read == loaded);
    // without times there is nothing to go by
    let counted = text.replace("1.0", "10");
    assert!(counted.len() < text.len());
    assert_eq!(trimmed(&trace(&counted)), 0);
}

#[test]
fn what_would_leave_nothing_is_not_left_out() {
    // the CPU that begins last has other events only, later than all of the others
    let dma = capture(5_000_000, &[300]);
    let other = |n: u64| {
        let ns = 900_000_000_000 + n;
        let (s, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
        format!(
            "  x-1 [001] ..... {s}.{ns:09}: sched_switch: prev_comm=x {}\n",
            "y".repeat(80)
        )
    };
    let text = dma + &(0..300).map(other).collect::<String>();
    let all = trace(&text);
    assert_eq!((trimmed(&all), all.events().len()), (0, 300));
}
