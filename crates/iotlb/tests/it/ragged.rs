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

/// What a CPU did: so many events, one in so many microseconds, the last of them just before the
/// capture was read.
#[derive(Clone, Copy)]
struct Cpu {
    events: u64,
    period_us: u64,
}

/// One that makes 100,000 events in two seconds.
const fn busy(events: u64) -> Cpu {
    Cpu {
        events,
        period_us: 20,
    }
}

/// One that makes a third of that.
const fn slow(events: u64) -> Cpu {
    Cpu {
        events,
        period_us: 60,
    }
}

impl Cpu {
    /// Its events with their times, a map and an unmap in turns.
    fn lines(self, cpu: u64) -> impl Iterator<Item = (u64, String)> {
        (0..self.events).map(move |number| {
            let time = 2_000_000 - (self.events - number) * self.period_us;
            let address = (cpu << 24) + ((number / 2) << 12);
            let (event, phys) = match number % 2 {
                0 => ("map", format!("phys_addr={address:x} ")),
                _ => ("unmap", String::new()),
            };
            let text = format!(
                "dma_{event}_page: d dir=TO_DEVICE dma_addr={:x} size=4096 {phys}attrs=\n",
                0xf000_0000 + address,
            );
            (time, line(cpu, time, &text))
        })
    }
}

/// A line of the tracer.
fn line(cpu: u64, time_us: u64, text: &str) -> String {
    let (seconds, us) = (time_us / 1_000_000, time_us % 1_000_000);
    format!("  task-{cpu} [{cpu:03}] ..... {seconds}.{us:06}: {text}")
}

/// What the tracer prints of such CPUs.
fn capture(written: u64, cpus: &[Cpu]) -> String {
    let of = |(number, cpu): (usize, &Cpu)| cpu.lines(number as u64);
    printed(written, cpus.iter().enumerate().flat_map(of).collect())
}

/// What the tracer prints of such events.
fn printed(written: u64, mut all: Vec<(u64, String)>) -> String {
    all.sort();
    let header = format!(
        "# tracer: nop\n#\n# entries-in-buffer/entries-written: {}/{written}   #P:16\n#\n",
        all.len(),
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

/// Maps a second of eight busy CPUs and eight slow ones.
const RATE: f64 = 8.0 / 40e-6 + 8.0 / 120e-6;

/// Entries that were written, where most were overwritten.
const MANY: u64 = 5_000_000;

#[test]
fn rates_are_those_of_the_time_that_all_cpus_have() {
    let cpus = [[slow(900); 8], [busy(900); 8]].concat();
    let ragged = trace(&capture(MANY, &cpus));
    assert_eq!(trimmed(&ragged), 8 * 600);
    assert_eq!(ragged.events().len(), 8 * 300 + 8 * 900);
    assert!(
        (rate(&ragged) / RATE - 1.0).abs() < 0.01,
        "{}",
        rate(&ragged)
    );
    assert!(ragged.info().anomalies.is_empty());
    // as the rate would be otherwise
    let whole = trace(&capture(16 * 900, &cpus));
    assert_eq!((trimmed(&whole), whole.events().len()), (0, 16 * 900));
    assert!(rate(&whole) < 0.7 * RATE, "{}", rate(&whole));
    // a map before the beginning, and its unmap behind it
    let odd = trace(&capture(MANY, &[[busy(899); 8], [slow(900); 8]].concat()));
    assert!((rate(&odd) / RATE - 1.0).abs() < 0.01, "{}", rate(&odd));
    let notes: Vec<Topic> = odd.notes().iter().map(|note| note.topic).collect();
    assert!(notes.contains(&Topic::MappedBefore), "{notes:?}");
}

#[test]
fn a_cpu_that_is_busy_only_late_takes_nothing_from_the_others() {
    for late in [20, 300, 600] {
        let cpus = [&[slow(900); 8][..], &[busy(late); 8]].concat();
        let trace = trace(&capture(MANY, &cpus));
        let all = 8 * 900 + 8 * late as usize;
        assert_eq!((trimmed(&trace), trace.events().len()), (0, all));
    }
}

#[test]
fn a_buffer_full_of_lists_has_few_of_them() {
    // lists of 64 pages, 180 of which fill as many pages of a buffer as 4,000 single maps and unmaps
    let list = |number: u64| {
        let of = |first: u64| {
            let address = |n: u64| format!("{:#x}", first + ((64 * number + n) << 12));
            (0..64).map(address).collect::<Vec<_>>().join(",")
        };
        let sizes = ["0x1000"; 64].join(",");
        let text = format!(
            "dma_map_sg: d dir=TO_DEVICE dma_addrs={{{}}} sizes={{{sizes}}} phys_addrs={{{}}} attrs=\n",
            of(0xe000_0000),
            of(0x1000_0000),
        );
        let time = 2_000_000 - (180 - number) * 50;
        (time, line(1, time, &text))
    };
    let singles = slow(4000).lines(0).collect::<Vec<_>>();
    let all = [singles, (0..180).map(list).collect()].concat();
    let text = printed(MANY, all);
    // from the first list on there are both
    assert_eq!(trimmed(&trace(&text)), 4000 - 150);
    let half = text.lines().filter(|line| !line.contains("dma_map_sg"));
    let lists = text.lines().filter(|line| line.contains("dma_map_sg"));
    let late: Vec<&str> = half.chain(lists.skip(90)).collect();
    assert_eq!(trimmed(&trace(&(late.join("\n") + "\n"))), 0);
}

#[test]
fn statistics_of_buffers_say_which_were_overwritten() {
    let text = capture(MANY, &[slow(900), busy(900), busy(800)]);
    let with = |overruns: [u64; 3]| {
        let line = |(cpu, overrun)| {
            format!(
                "per_cpu/cpu{cpu}/stats:entries: 900\nper_cpu/cpu{cpu}/stats:overrun: {overrun}\n"
            )
        };
        let lines: String = overruns.into_iter().enumerate().map(line).collect();
        trace(&format!("{text}{lines}"))
    };
    // by themselves all three look full
    assert_eq!(trimmed(&trace(&text)), (900 - 266) + 100);
    assert_eq!(trimmed(&with([7, 7, 7])), (900 - 266) + 100);
    assert_eq!(trimmed(&with([7, 7, 0])), 900 - 300);
    assert_eq!(trimmed(&with([7, 0, 0])), 0);
    let unknown: Vec<Topic> = with([7, 0, 0]).notes().iter().map(|n| n.topic).collect();
    assert!(!unknown.contains(&Topic::UnknownLines), "{unknown:?}");
}

#[test]
fn a_capture_without_its_header_is_ragged_by_the_lines_between() {
    let cpus = [slow(900), busy(900)];
    let whole = capture(MANY, &cpus);
    let events: Vec<&str> = whole
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let (one, others) = events.split_at(events.len() / 2);
    let marked = [one, &["##### CPU 1 buffer started ####"], others].concat();
    assert_eq!(trimmed(&trace(&(marked.join("\n") + "\n"))), 600);
    assert_eq!(trimmed(&trace(&(events.join("\n") + "\n"))), 0);
}

#[test]
fn a_ragged_capture_is_converted_as_it_is_loaded() {
    let text = capture(MANY, &[slow(900), busy(900), busy(20)]);
    let loaded = trace(&text);
    assert_eq!(trimmed(&loaded), 600);
    let mut converted = String::new();
    let bytes = text.as_bytes();
    let mut capture = Capture::new("t", &bytes, OPTIONS, Limits::default()).unwrap();
    capture.read_to_string(&mut converted).unwrap();
    let read = Trace::read("t", converted.as_bytes(), Limits::default()).unwrap();
    assert!(read == loaded);
    // without times there is nothing to go by
    let counted = text.replace("1.9", "19");
    assert!(counted.len() < text.len());
    assert_eq!(trimmed(&trace(&counted)), 0);
}

#[test]
fn what_would_leave_nothing_is_not_left_out() {
    // the CPU that begins last has other events only, later than all of the others
    let dma = capture(MANY, &[busy(300)]);
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
