// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What maps and unmaps alone tell of a trace: by hand, and against a second implementation that
//! keeps a map of single pages, on random traces.

use ioatlas_iotlb::{
    ByteCounts, Class, CpuCount, DeviceId, DeviceTraffic, Event, Kind, Lifetimes, Limits,
    PageCount, SLOTS, SizeCount, Slot, Span, Stamp, TaskCount, TaskId, Trace, lists,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn read(lines: &str) -> Trace {
    let text = format!("# ioatlas-trace 2\n{lines}");
    Trace::read("test", text.as_bytes(), Limits::default()).unwrap()
}

/// The traffic of the only device.
fn of_one(lines: &str) -> DeviceTraffic {
    let mut devices = read(lines).traffic().devices;
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

/// Of mappings of a page with these lifetimes, one after the other.
fn lifetimes(ns: impl IntoIterator<Item = u64>) -> Option<Lifetimes> {
    let lines = ns
        .into_iter()
        .map(|ns| format!("# at 0 0\nM d 1 1 r\n# at {ns} 0\nU d 1 1\n"));
    of_one(&lines.collect::<String>()).lifetimes
}

fn only_lifetime(lines: &str) -> Option<u64> {
    of_one(lines).lifetimes.map(|found| {
        assert_eq!(found.count, 1);
        found.longest_ns
    })
}

#[test]
fn quantiles_are_those_of_the_nearest_rank() {
    let of = |count, median_ns, p90_ns, p99_ns, longest_ns| {
        Some(Lifetimes {
            count,
            median_ns,
            p90_ns,
            p99_ns,
            longest_ns,
        })
    };
    assert_eq!(lifetimes([7]), of(1, 7, 7, 7, 7));
    assert_eq!(lifetimes([9, 5]), of(2, 5, 9, 9, 9));
    // 1 to 200, the odd ones first
    let mixed = (1..=200).step_by(2).chain((2..=200).step_by(2));
    assert_eq!(lifetimes(mixed), of(200, 100, 180, 198, 200));
}

#[test]
fn a_mapping_lives_until_its_last_page_is_unmapped() {
    let begin = "# at 100 0\nM d 1 3 r\n";
    let parts = format!("{begin}# at 120 0\nU d 2 1\n# at 150 0\nU d 3 9\n");
    assert_eq!(only_lifetime(&parts), None);
    let all = format!("{parts}# at 190 0\nU d 1 1\n# at 200 0\nU d 1 1\n");
    assert_eq!(only_lifetime(&all), Some(90));
    // what another map covers ends there, and the rest with its unmap
    let covered = format!("{begin}# at 130 0\nM d 2 2 r\n# at 140 0\nU d 1 1\n");
    assert_eq!(only_lifetime(&covered), Some(40));
    // a mapping whose pages are all mapped again has ended unseen
    let replaced = format!("{begin}# at 130 0\nM d 1 3 r\n# at 140 0\nU d 1 3\n");
    assert_eq!(only_lifetime(&replaced), Some(10));
    // one unmap ends several mappings
    let several = of_one(&format!("{begin}M d 9 1 r\n# at 130 0\nU d 1 9\n"));
    assert_eq!(several.lifetimes.unwrap().count, 2);
    assert_eq!((several.maps, several.unmaps), (2, 1));
}

#[test]
fn lifetimes_are_those_of_streaming_mappings_with_times() {
    // of those made before the first stamp nothing is known
    assert_eq!(
        only_lifetime("M d 1 1 r\n# at 5 0\nM d 2 1 r\n# at 9 0\nU d 1 2\n"),
        Some(4)
    );
    let kinds = "# at 1 0\nM d 1 1 r - alloc\nM d 2 1 r - page\n# at 4 0\nU d 1 1\nU d 2 1\n";
    assert_eq!(only_lifetime(kinds), Some(3));
    // tracers disagree
    assert_eq!(
        only_lifetime("# at 9 0\nM d 1 1 r\n# at 4 1\nU d 1 1\n"),
        Some(0)
    );
    // a page of another device is another page
    let two = read("# at 1 0\nM a 1 1 r\nU b 1 1\nM b 1 1 r\n# at 4 0\nU a 1 1\n").traffic();
    assert_eq!(two.devices[0].lifetimes.unwrap().longest_ns, 3);
    assert_eq!(two.devices[1].lifetimes, None);
}

#[test]
fn without_stamps_counts_remain() {
    let trace = read("M d 1 2 r\nA d 1 r\nU d 1 1\nM d 9 5 r\n");
    let found = trace.traffic();
    let tasks = vec![TaskCount {
        task: None,
        maps: 2,
    }];
    let expected = DeviceTraffic {
        maps: 2,
        unmaps: 1,
        pages: PageCount(7),
        sizes: sizes([(13, 1), (15, 1)]),
        tasks,
        peak_live_pages: PageCount(6),
        ..DeviceTraffic::default()
    };
    assert_eq!((found.span, found.devices), (None, vec![expected]));
    assert_eq!(read("").traffic().devices, []);
}

fn sizes(counts: impl IntoIterator<Item = (u32, u64)>) -> Vec<SizeCount> {
    let size = |(up_to_bytes_lg2, maps)| SizeCount {
        up_to_bytes_lg2,
        maps,
    };
    counts.into_iter().map(size).collect()
}

#[test]
fn bytes_are_counted_where_recorded() {
    let found = of_one(
        "M d 1 1 r - page 0+4096\nM d 3 2 r - page 4095+2\nM d 5 1 r - - 7+1\nM d 7 3 r\n\
         M d a 1 r - - 0+2049\nM d b 1 r - - 0+2048\n",
    );
    let expected = ByteCounts {
        maps: 5,
        bytes: 8196,
        reachable: 6 * 4096,
        partial: 4,
    };
    assert_eq!(found.bytes, expected);
    assert_eq!(
        found.sizes,
        sizes([(0, 1), (1, 1), (11, 1), (12, 2), (14, 1)])
    );
}

#[test]
fn counts_stay_at_the_largest_number() {
    let all = 1u64 << 52;
    let bytes = u64::MAX;
    let map = format!("# at 1 0\nM d 0 {all} r - page 0+{bytes}\nM d 0 {all} r\n");
    let found = of_one(&map.repeat(4096));
    assert_eq!((found.maps, found.pages), (8192, PageCount(u64::MAX)));
    assert_eq!(found.peak_live_pages, PageCount(all));
    let expected = ByteCounts {
        maps: 4096,
        bytes: u64::MAX,
        reachable: u64::MAX,
        partial: 4096,
    };
    assert_eq!(found.bytes, expected);
    assert_eq!(found.sizes, sizes([(64, 8192)]));
    // time does not pass
    assert_eq!(found.timeline, []);
}

#[test]
fn maps_are_counted_by_task_and_cpu() {
    let trace = read(
        "M d 1 1 r\n# at 1 7 b\nM d 2 1 r\n# at 2 3 a\nM d 3 1 r\nU d 3 1\n# at 3 3\nM d 4 1 r\n\
         # at 4 5 a\nM d 5 1 r\n",
    );
    let found = trace.traffic().devices.remove(0);
    let name = |count: &TaskCount| (count.task.map(|task| trace.task_name(task)), count.maps);
    let tasks: Vec<_> = found.tasks.iter().map(name).collect();
    assert_eq!(tasks, [(None, 2), (Some("a"), 2), (Some("b"), 1)]);
    let cpus: Vec<_> = found.cpus.iter().map(|c| (c.cpu, c.maps)).collect();
    assert_eq!(cpus, [(3, 2), (5, 1), (7, 1)]);
}

#[test]
fn a_timeline_says_what_was_mapped_when() {
    // slots of 10 ns
    let lines = "M d 1 1 r\n# at 1000 0\nA idle 1 ?\nM d 2 2 r\n# at 1025 0\nM d 4 4 r\nU d 4 3\n\
                 # at 1015 1\nM d 9 1 r\n# at 1050 0\nU d 1 9\n# at 2200 0\nA d 1 r\n";
    let found = read(lines).traffic();
    let span = Span {
        first_ns: 1000,
        last_ns: 2200,
    };
    assert_eq!(found.span, Some(span));
    assert_eq!(span.seconds(), 1.2e-6);
    let slot = |maps, unmaps, live| Slot {
        maps,
        unmaps,
        live_pages: PageCount(live),
    };
    let d = &found.devices[0];
    let mut expected = vec![slot(0, 0, 0); SLOTS];
    expected[..6].copy_from_slice(&[
        slot(1, 0, 3),
        slot(1, 0, 5), // stepped back to
        slot(1, 1, 7),
        slot(0, 0, 5),
        slot(0, 0, 5),
        slot(0, 1, 5),
    ]);
    assert_eq!(d.timeline, expected);
    assert_eq!((d.maps, d.unmaps), (4, 2));
    assert_eq!(d.peak_live_pages, PageCount(7));
    // what is mapped at the end stays so
    let kept = of_one("# at 0 0\nM d 1 3 r\nU d 1 1\n# at 120 0\n");
    assert_eq!(kept.timeline[0], slot(1, 1, 3));
    assert_eq!(kept.timeline[1..], [slot(0, 0, 2); SLOTS - 1]);
    // a device that only accesses has none
    let idle = &found.devices[1];
    assert_eq!(*idle, DeviceTraffic::default());
}

/// What [`DeviceTraffic`] says, page by page and time by time.
fn naive(trace: &Trace, device: DeviceId) -> DeviceTraffic {
    struct Mapping {
        begin: Option<u64>,
        consistent: bool,
    }
    let mut found = DeviceTraffic::default();
    let mut pages: BTreeMap<u64, usize> = BTreeMap::new();
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut lifetimes = Vec::new();
    let (mut tasks, mut cpus, mut lg2s) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    // (time, whether it is a map, pages before, pages after)
    let mut timed: Vec<(u64, bool, u64, u64)> = Vec::new();
    let kinds_recorded = trace
        .events()
        .iter()
        .any(|event| event.device() == device && matches!(event, Event::Map { kind: Some(_), .. }));
    let (lists, classes) = (lists(trace), trace.classes());
    for (index, event) in trace.events().iter().enumerate() {
        if lists.members.contains(&index) {
            continue; // of the list whose first line stands before
        }
        let stamps = trace.stamps().iter().rev();
        let stamp: Option<Stamp> = stamps
            .clone()
            .find(|stamped| stamped.time.0 <= index)
            .map(|stamped| stamped.stamp);
        let ns = stamp.map(|stamp| stamp.nanoseconds);
        let before = pages.len() as u64;
        let is_map = match *event {
            Event::Map { range, kind, .. } if event.device() == device => {
                let alone = vec![index];
                let lines = lists.heads.get(&index).unwrap_or(&alone);
                let line = |at: &usize| match trace.events()[*at] {
                    Event::Map { range, .. } => range.pages().0,
                    _ => panic!("no map"),
                };
                let count: u64 = lines.iter().map(line).sum();
                let bytes = lines.iter().map(|at| trace.events()[*at].bytes());
                let bytes: Option<u64> = bytes.sum();
                found.maps += 1;
                found.pages.0 += count;
                let size = bytes.unwrap_or(4096 * count);
                let streaming = classes[index] == Some(Class::Streaming);
                if let Some(bytes) = bytes.filter(|_| streaming) {
                    found.bytes.maps += 1;
                    found.bytes.bytes += bytes;
                    found.bytes.reachable += 4096 * count;
                    found.bytes.partial += u64::from(bytes != 4096 * count);
                }
                let lg2 = (0..64).find(|&lg2| size <= 1 << lg2).unwrap();
                *lg2s.entry(lg2).or_insert(0) += 1;
                *tasks.entry(stamp.and_then(|s| s.task)).or_insert(0) += 1;
                if let Some(cpu) = stamp.and_then(|stamp| stamp.cpu) {
                    *cpus.entry(cpu).or_insert(0) += 1;
                }
                let first = range.first().number();
                for page in first..first + count {
                    pages.insert(page, mappings.len());
                }
                mappings.push(Mapping {
                    begin: ns,
                    consistent: kinds_recorded && kind == Some(Kind::Alloc),
                });
                true
            }
            Event::Unmap { range, .. } if event.device() == device => {
                found.unmaps += 1;
                for page in range.first().number()..=range.last().number() {
                    let Some(owner) = pages.remove(&page) else {
                        continue;
                    };
                    let ended = !pages.values().any(|&other| other == owner);
                    let Mapping { begin, consistent } = mappings[owner];
                    if let (true, false, Some(begin)) = (ended, consistent, begin) {
                        lifetimes.push(ns.unwrap().saturating_sub(begin));
                    }
                }
                false
            }
            _ => continue,
        };
        let now = pages.len() as u64;
        found.peak_live_pages.0 = found.peak_live_pages.0.max(now);
        timed.extend(ns.map(|ns| (ns, is_map, before, now)));
    }
    found.sizes = sizes(lg2s);
    found.lifetimes = naive_lifetimes(lifetimes);
    let mut of_tasks: Vec<(Option<TaskId>, u64)> = tasks.into_iter().collect();
    of_tasks.sort_by_key(|&(task, maps)| (u64::MAX - maps, task));
    let task = |(task, maps)| TaskCount { task, maps };
    found.tasks = of_tasks.into_iter().map(task).collect();
    let mut of_cpus: Vec<(u32, u64)> = cpus.into_iter().collect();
    of_cpus.sort_by_key(|&(cpu, maps)| (u64::MAX - maps, cpu));
    let cpu = |(cpu, maps)| CpuCount { cpu, maps };
    found.cpus = of_cpus.into_iter().map(cpu).collect();
    found.timeline = naive_timeline(trace, &timed, pages.len() as u64);
    found
}

fn naive_lifetimes(mut ns: Vec<u64>) -> Option<Lifetimes> {
    ns.sort_unstable();
    // the least that at least so many per cent do not pass
    let quantile = |percent: usize| {
        let mut ranks = 1..=ns.len();
        let rank = ranks.find(|rank| rank * 100 >= ns.len() * percent)?;
        Some(ns[rank - 1])
    };
    Some(Lifetimes {
        count: ns.len() as u64,
        median_ns: quantile(50)?,
        p90_ns: quantile(90)?,
        p99_ns: quantile(99)?,
        longest_ns: *ns.last()?,
    })
}

fn naive_timeline(trace: &Trace, timed: &[(u64, bool, u64, u64)], at_end: u64) -> Vec<Slot> {
    let times = trace.stamps().iter().map(|s| s.stamp.nanoseconds);
    let (Some(first), Some(last)) = (times.clone().min(), times.max()) else {
        return Vec::new();
    };
    if first == last || timed.is_empty() {
        return Vec::new();
    }
    // a time is in a slot if it is not before its begin, and before its end unless it is the last
    let not_before =
        |ns: u64, slot: usize| (ns - first) * SLOTS as u64 >= (last - first) * slot as u64;
    let slot = |slot: usize| {
        let inside = |ns| not_before(ns, slot) && (slot == SLOTS - 1 || !not_before(ns, slot + 1));
        let of_slot = || timed.iter().filter(|(ns, ..)| inside(*ns));
        let at_begin = timed
            .iter()
            .find(|(ns, ..)| not_before(*ns, slot))
            .map_or(at_end, |(_, _, before, _)| *before);
        let after = of_slot().map(|(.., now)| *now).max().unwrap_or(0);
        Slot {
            maps: of_slot().filter(|(_, is_map, ..)| *is_map).count() as u64,
            unmaps: of_slot().filter(|(_, is_map, ..)| !*is_map).count() as u64,
            live_pages: PageCount(after.max(at_begin)),
        }
    };
    (0..SLOTS).map(slot).collect()
}

#[test]
fn a_list_is_one_map_of_all_its_bytes_and_lives_once() {
    let found =
        of_one("# at 10 0\nM d 10 1 r 5 sg 4000+96\nM d 11 2 r 9 sg 0+4100\n# at 30 0\nU d 10 3\n");
    assert_eq!(
        (found.maps, found.unmaps, found.pages),
        (1, 1, PageCount(3))
    );
    assert_eq!(
        (found.bytes.maps, found.bytes.bytes, found.bytes.reachable),
        (1, 4196, 12288)
    );
    let lifetimes = found.lifetimes.unwrap();
    assert_eq!((lifetimes.count, lifetimes.median_ns), (1, 20));
    assert_eq!(found.peak_live_pages, PageCount(3));
    assert_eq!(found.sizes, sizes([(13, 1)]));
}

/// A line of a trace: few pages and two devices, so that events meet. Times step back at times.
fn line() -> impl Strategy<Value = String> {
    let device = || prop_oneof![Just("a"), Just("b")];
    let end = prop_oneof![
        6 => Just(String::new()),
        1 => Just(" - alloc".into()),
        2 => Just(" - sg".into()),
        4 => (0u64..4096).prop_map(|offset| format!(" - - {offset}+")),
    ];
    let map = (device(), 0u64..40, 1u64..5, end, 0u64..4096).prop_map(|(d, p, n, end, behind)| {
        let bytes = match end.strip_suffix('+').and_then(|end| end.rsplit_once(' ')) {
            Some((_, offset)) => {
                let before: u64 = offset.parse().unwrap();
                let most = 4096 * n - before;
                // the last byte is in the last page
                let least = (4096 * (n - 1) + 1).saturating_sub(before).max(1);
                (most - behind.min(most - least)).to_string()
            }
            None => String::new(),
        };
        format!("M {d} {p:x} {n} rw{end}{bytes}\n")
    });
    let task = prop_oneof![Just(""), Just(" fio"), Just(" kworker/0:1 x")];
    prop_oneof![
        3 => map,
        4 => (device(), 0u64..40, 1u64..7).prop_map(|(d, p, n)| format!("U {d} {p:x} {n}\n")),
        1 => (device(), 0u64..44).prop_map(|(d, p)| format!("A {d} {p:x} ?\n")),
        4 => (0u64..700, 0u32..3, task).prop_map(|(ns, cpu, task)| format!("# at {ns} {cpu}{task}\n")),
    ]
}

proptest! {
    #[test]
    fn traffic_is_that_of_the_naive_count(lines in prop::collection::vec(line(), 0..120)) {
        let trace = read(&lines.concat());
        let found = trace.traffic();
        prop_assert_eq!(found.devices.len(), trace.devices().len());
        for (device, found) in trace.devices().zip(&found.devices) {
            prop_assert_eq!(found, &naive(&trace, device));
        }
        // the older counts say the same
        let lists = lists(&trace);
        for (id, found) in trace.devices().zip(&found.devices) {
            let info = &trace.info().devices[id.index()];
            let members = lists.members.iter();
            let members = members.filter(|at| trace.events()[**at].device() == id).count() as u64;
            prop_assert_eq!(
                (info.maps, info.unmaps, info.peak_live_pages),
                (found.maps + members, found.unmaps, found.peak_live_pages)
            );
        }
        prop_assert_eq!(
            found.span.map(|span| span.seconds()),
            trace.clock().map(|clock| clock.seconds)
        );
    }

    #[test]
    fn parts_add_up(lines in prop::collection::vec(line(), 0..120)) {
        // all events have times, and time passes
        let trace = read(&format!("# at 0 0\n{}# at 700 0\n", lines.concat()));
        for found in trace.traffic().devices {
            let sum = |part: fn(&Slot) -> u64| found.timeline.iter().map(part).sum::<u64>();
            prop_assert_eq!(sum(|slot| slot.maps), found.maps);
            prop_assert_eq!(sum(|slot| slot.unmaps), found.unmaps);
            let most = found.timeline.iter().map(|slot| slot.live_pages).max();
            prop_assert_eq!(most.unwrap_or_default(), found.peak_live_pages);
            let any = found.maps + found.unmaps > 0;
            prop_assert_eq!(found.timeline.len(), if any { SLOTS } else { 0 });
            prop_assert_eq!(found.sizes.iter().map(|s| s.maps).sum::<u64>(), found.maps);
            prop_assert_eq!(found.tasks.iter().map(|t| t.maps).sum::<u64>(), found.maps);
            prop_assert_eq!(found.cpus.iter().map(|c| c.maps).sum::<u64>(), found.maps);
        }
    }

    #[test]
    fn accesses_change_nothing(lines in prop::collection::vec(line(), 0..60)) {
        // the device comes first, with or without accesses
        let lines: Vec<String> = ["U a 0 1\n".into(), "U b 0 1\n".into()]
            .into_iter()
            .chain(lines)
            // what the device does between two maps says whether they are of a list
            .map(|line: String| line.replace(" - sg", " - page"))
            .collect();
        let without = lines.iter().filter(|line| !line.starts_with('A')).cloned();
        let without = read(&without.collect::<String>());
        prop_assert_eq!(read(&lines.concat()).traffic(), without.traffic());
    }
}
