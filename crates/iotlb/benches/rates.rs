// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Rates of reading, planning and simulating, on one core: medians. Where the system tells it
//! (Linux), time is the time that this program had a core, so that a busy machine changes little;
//! else it is the clock's.
//!
//! *Simulating* starts from steps that are in memory: 10 million events of one device
//! with 100,000 live pages. *Planning* makes steps of events; sweeps do it once. The
//! optimal eviction's time has the search for next uses in it.

use ioatlas_iotlb::{Event, Laboratory, Limits, Setup, Trace};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const EVENTS: u64 = 10_000_000;
const LIVE_PAGES: u64 = 100_000;
const RUNS: usize = 5;
/// Simulations in a run.
const TIMES: usize = 5;

/// Seconds that the calling thread, the only one here, has had a core.
fn on_core() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds as f64 * 1e-9)
}

fn seconds_once(run: impl FnOnce()) -> f64 {
    let (start, before) = (Instant::now(), on_core());
    run();
    match (before, on_core()) {
        (Some(before), Some(after)) => after - before,
        _ => start.elapsed().as_secs_f64(),
    }
}

/// Seconds of each run, sorted.
fn seconds(mut run: impl FnMut()) -> Vec<f64> {
    let mut seconds: Vec<f64> = (0..RUNS).map(|_| seconds_once(&mut run)).collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

/// Prints a rate.
fn report(what: &str, count: u64, seconds: &[f64]) {
    let rate = |seconds: f64| count as f64 / seconds / 1e6;
    let median = rate(seconds[RUNS / 2]);
    println!(
        "{what:<44} {median:>8.1} M/s, best {:>8.1}",
        rate(seconds[0])
    );
}

/// A ring in use: descriptors that stay, and buffers that are mapped, accessed in order and
/// unmapped, oldest first.
fn ring() -> Trace {
    const RING_PAGES: u64 = 64;
    let mut text = String::from("# ioatlas-trace 1\nM d 0 64 rw - alloc\n");
    let buffers = LIVE_PAGES - RING_PAGES;
    let base = 1 << 20;
    for number in 0..buffers {
        text += &format!("M d {:x} 1 w - page\n", base + number);
    }
    let mut events = buffers + 1;
    let (mut turn, mut random) = (0u64, fastrand::Rng::with_seed(1));
    while events < EVENTS {
        // A buffer goes and comes back; six accesses to it, three to the descriptors, which
        // move on slowly, and one to any buffer.
        let page = base + turn % buffers;
        text += &format!("U d {page:x} 1\nM d {page:x} 1 w - page\n");
        for _ in 0..3 {
            let descriptor = turn / 64 % RING_PAGES;
            text += &format!("A d {descriptor:x} r\nA d {page:x} w\nA d {page:x} w\n");
        }
        text += &format!("A d {:x} w\n", base + random.u64(..buffers));
        turn += 1;
        events += 12;
    }
    Trace::read("ring", text.as_bytes(), Limits::default()).expect("well formed")
}

fn reading() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    for name in ["e1000-stream", "lsi-bonnie"] {
        let path = dir.join(format!("{name}.trace.zst"));
        // Many frames in a row are one file; the later headers are comments.
        let packed = std::fs::read(path).expect("bundled").repeat(100);
        let scan = |each: &mut dyn FnMut(usize)| {
            let limits = Limits::default();
            let batch = |events: &[Event]| each(black_box(events).len());
            Trace::scan("bundled.zst", packed.as_slice(), limits, batch).expect("bundled");
        };
        let mut lines = 0;
        scan(&mut |events| lines += events as u64);
        let took = seconds(|| scan(&mut |_| {}));
        report(&format!("read {name} (.zst), lines"), lines, &took);
    }
}

fn main() {
    reading();
    let trace = ring();
    let events = trace.events().len() as u64;
    let baseline = Setup::default();
    let took = seconds(|| Laboratory::new(&trace).prepare(&baseline));
    report("plan, events", events, &took);

    let laboratory = Laboratory::new(&trace);
    let time = |sum: &str| {
        let setup = Setup::of(sum.parse().expect("known"));
        let outcome = laboratory.simulate(&setup);
        let accesses = outcome.accesses;
        // Several at a time: the system counts time in steps of milliseconds.
        let mut took = seconds(|| {
            for _ in 0..TIMES {
                black_box(laboratory.simulate(&setup));
            }
        });
        took.iter_mut().for_each(|seconds| *seconds /= TIMES as f64);
        let percent = outcome.miss_rate * 100.0;
        let what = format!("simulate {sum} ({percent:.0} % miss)");
        report(&what, accesses, &took);
        took[RUNS / 2]
    };
    let reference = time("baseline");
    time("alh+mpre");
    time("eh");
    time("alh+mpre+of+8-prefetch");
    let warm = time("opt-ev");
    drop(laboratory);
    let optimal = Setup::of("opt-ev".parse().expect("known"));
    let mut searches = [0.0; RUNS];
    for search in &mut searches {
        let laboratory = Laboratory::new(&trace);
        laboratory.prepare(&baseline);
        *search = seconds_once(|| laboratory.prepare(&optimal));
    }
    searches.sort_by(f64::total_cmp);
    let ratio = (warm + searches[RUNS / 2]) / reference;
    println!("opt-ev and its search / baseline             {ratio:>7.1} times");
}
