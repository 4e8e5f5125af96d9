// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every strategy against a second implementation written from the model, on the bundled
//! traces and on random ones; and what the model says must hold on any.

use crate::naive::model::{self, Options, Result};
use ioatlas_iotlb::{
    BufferSize, Ending, Geometry, InvalidationHint, Laboratory, Limits, Named, Outcome, PageSize,
    Setup, Toward, Trace, Trigger, Walks, WorkingSet, simulate_file, simulate_many,
};
use proptest::prelude::*;
use std::num::NonZeroUsize;
use std::path::Path;

fn open(name: &str) -> Trace {
    let path = format!("../../traces/{name}.trace.zst");
    Trace::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of all bundled traces.
fn bundled() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let files = std::fs::read_dir(directory).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let traces = names.filter_map(|name| Some(name.strip_suffix(".trace.zst")?.to_owned()));
    let mut traces: Vec<String> = traces.collect();
    traces.sort();
    assert!(!traces.is_empty());
    traces
}

fn setup(options: &Options) -> Setup {
    let mut walks = Walks::default().with_levels(options.levels).unwrap();
    for (level, &entries) in (2..).zip(&options.walk) {
        walks = walks.with_cache(level, entries).unwrap();
    }
    walks.hint = match options.ih {
        0 => InvalidationHint::WalkCachesToo,
        _ => InvalidationHint::LeavesOnly,
    };
    Setup {
        strategy: options.parts.join("+").parse().unwrap(),
        geometry: Geometry::new(options.entries, options.ways).unwrap(),
        buffer: BufferSize::new(options.buffer).unwrap(),
        trigger: if options.after_misses_only {
            Trigger::Miss
        } else {
            Trigger::MissOrPrefetchHit
        },
        toward: if options.up { Toward::Up } else { Toward::Down },
        walks,
    }
}

fn ours(laboratory: &Laboratory<'_>, options: &Options) -> Result {
    let setup = setup(options);
    let mut endings = String::new();
    let mut before = None;
    let outcome = laboratory.simulate_with(&setup, |time, ending| {
        assert!(before < Some(time), "in order of time");
        before = Some(time);
        endings.push(match ending {
            Ending::Hit => 'h',
            Ending::PrefetchHit => 'p',
            Ending::Miss => 'm',
            Ending::Fault => 'f',
        });
    });
    assert_eq!(laboratory.simulate(&setup), outcome, "watched or not");
    assert_eq!(outcome.strategy, options.parts.join("+"));
    assert_eq!(outcome.useful_prefetches, outcome.prefetch_hits);
    assert_eq!(outcome.anomalies.faults, outcome.faults);
    adds_up(&outcome, &setup);
    Result {
        accesses: outcome.accesses,
        hits: outcome.hits,
        prefetch_hits: outcome.prefetch_hits,
        misses: outcome.misses,
        faults: outcome.faults,
        prefetches: outcome.prefetches,
        evictions: outcome.evictions,
        invalidations: outcome.invalidations,
        memory_reads: outcome.memory_reads,
        prefetch_reads: outcome.prefetch_reads,
        mapped_over: outcome.anomalies.map_over_mapped_pages.0,
        not_mapped: outcome.anomalies.unmap_not_mapped_pages.0,
        endings,
    }
}

/// What holds of every outcome.
fn adds_up(outcome: &Outcome, setup: &Setup) {
    let translated = outcome.hits + outcome.prefetch_hits + outcome.misses;
    assert_eq!(outcome.accesses, translated + outcome.faults);
    let rate = if translated == 0 {
        0.0
    } else {
        outcome.misses as f64 / translated as f64
    };
    assert_eq!(outcome.miss_rate, rate);
    assert!(outcome.prefetch_hits <= outcome.prefetches);
    if !setup.strategy.prefetches() {
        assert_eq!(outcome.prefetches, 0);
    }
    // Every filled entry is evicted, invalidated or still there.
    let filled = outcome.misses + outcome.prefetch_hits;
    let left = filled - outcome.evictions - outcome.invalidations;
    assert!(left <= setup.geometry.entries() as u64);
    let longest = setup.walks.levels() as u64;
    assert!(outcome.memory_reads <= outcome.misses * longest);
    assert!(outcome.misses <= outcome.memory_reads);
}

fn reference(parts: &[&'static str]) -> Options {
    Options {
        parts: parts.to_vec(),
        entries: 32,
        ways: 2,
        buffer: 4,
        after_misses_only: false,
        up: false,
        levels: 4,
        walk: [0; 3],
        ih: 1,
    }
}

#[test]
fn bundled_traces_agree_with_the_naive_simulator() {
    let sums: [&[&str]; 12] = [
        &["baseline"],
        &["eh"],
        &["alh"],
        &["sd-alh"],
        &["mpre"],
        &["of"],
        &["superpage"],
        &["alh", "mpre", "of", "8-prefetch"],
        &["sd-alh", "mpre", "descending"],
        &["eh", "descending", "mpre"],
        &["superpage", "alh", "mpre", "descending", "eh"],
        &["of", "sd-alh", "8-prefetch", "eh"],
    ];
    for name in bundled() {
        let trace = open(&name);
        let laboratory = Laboratory::new(&trace);
        for (turn, parts) in sums.iter().enumerate() {
            let mut options = reference(parts);
            // Each sum once as the reference has it, once in another shape.
            for other in [false, true] {
                if other {
                    (options.entries, options.ways) = [(63, 3), (8, 8), (30, 2)][turn % 3];
                    options.buffer = turn % 3;
                    options.after_misses_only = turn % 2 == 0;
                    options.up = turn % 4 > 1;
                    options.walk = [4, 2, 1];
                    options.ih = (turn % 2) as u8;
                }
                let expected = model::run(&trace, &options);
                assert!(
                    ours(&laboratory, &options) == expected,
                    "{name} {options:?}"
                );
            }
        }
    }
}

#[test]
fn optimal_eviction_of_bundled_traces_agrees_with_the_naive_simulator() {
    let sums: [&[&str]; 3] = [&["opt-ev"], &["opt-ev", "of"], &["opt-ev", "descending"]];
    for (name, parts) in [
        ("2xe1000-stream", sums[1]),
        ("lsi-bonnie", sums[0]),
        ("lsi-bonnie-norcache", sums[2]),
    ] {
        let trace = open(name);
        let options = reference(parts);
        let expected = model::run(&trace, &options);
        assert!(
            ours(&Laboratory::new(&trace), &options) == expected,
            "{name} {options:?}"
        );
    }
}

const LAST_PAGE: u64 = (1 << 52) - 1;

/// Pages that meet each other, at the ends of blocks, superpages and the address space.
fn page() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..24,
        2 => 56u64..70,
        2 => 500u64..530,
        1 => 1015u64..1030,
        1 => LAST_PAGE - 12..=LAST_PAGE,
    ]
}

fn pages() -> impl Strategy<Value = u64> {
    prop_oneof![30 => 1u64..6, 2 => 60u64..70, 1 => 500u64..520, 1 => 1020u64..2500]
}

/// A few lines that belong together.
fn block(kinds: bool) -> impl Strategy<Value = String> {
    let device = || prop_oneof![3 => Just("a"), 2 => Just("b"), 1 => Just("c")];
    let kind = move || match kinds {
        true => prop_oneof![
            Just(""),
            Just(" - alloc"),
            Just(" 7 page"),
            Just(" 7 -"),
            Just(" - sg")
        ]
        .boxed(),
        false => prop_oneof![Just(""), Just(" 7")].boxed(),
    };
    let fit = |page: u64, pages: u64| pages.min(LAST_PAGE - page + 1);
    let map = (device(), page(), pages(), kind())
        .prop_map(move |(d, p, n, k)| format!("M {d} {p:x} {} rw{k}\n", fit(p, n)));
    let unmap = (device(), page(), pages())
        .prop_map(move |(d, p, n)| format!("U {d} {p:x} {}\n", fit(p, n)));
    let access = (device(), page()).prop_map(|(d, p)| format!("A {d} {p:x} ?\n"));
    // A scatter-gather list: mapped piece by piece, used, and perhaps unmapped.
    let list = (
        device(),
        0u64..30,
        prop::collection::vec(1u64..4, 1..5),
        kind(),
        any::<[bool; 3]>(),
    );
    let list = list.prop_map(|(device, first, pieces, kind, [across, used, unmapped])| {
        let mut text = String::new();
        let mut page = first;
        for &piece in &pieces {
            text += &format!("M {device} {page:x} {piece} w{kind}\n");
            page += piece;
            if across {
                let other = if device == "a" { "b" } else { "a" };
                text += &format!("A {other} {page:x} w\n");
            }
        }
        for page in (first..page).filter(|_| used) {
            text += &format!("A {device} {page:x} w\n");
        }
        if unmapped {
            text += &format!("U {device} {first:x} {}\n", page - first);
        }
        text
    });
    prop_oneof![3 => map, 3 => unmap, 12 => access, 3 => list]
}

fn random_trace() -> impl Strategy<Value = Trace> {
    let blocks = any::<bool>().prop_flat_map(|kinds| prop::collection::vec(block(kinds), 0..120));
    blocks.prop_map(|blocks| {
        let text = format!("# ioatlas-trace 1\n{}", blocks.concat());
        Trace::read("random", text.as_bytes(), Limits::default()).unwrap()
    })
}

/// A trace as a well-behaved driver makes it: pages are mapped while they are not, unmapped
/// and accessed while they are.
fn random_clean_trace() -> impl Strategy<Value = Trace> {
    let step = (0usize..2, 0u64..40, 1u64..4, 0u8..8);
    prop::collection::vec(step, 0..300).prop_map(|steps| {
        let mut mapped = [[false; 48]; 2];
        let mut text = String::from("# ioatlas-trace 1\n");
        for (device, page, pages, what) in steps {
            let of = &mut mapped[device];
            let range = page as usize..(page + pages) as usize;
            if of[range.clone()].iter().all(|&m| !m) {
                of[range].fill(true);
                text += &format!("M {device} {page:x} {pages} rw\n");
            } else if what == 0 && of[range.clone()].iter().all(|&m| m) {
                of[range].fill(false);
                text += &format!("U {device} {page:x} {pages}\n");
            } else if of[page as usize] {
                text += &format!("A {device} {page:x} ?\n");
            }
        }
        Trace::read("clean", text.as_bytes(), Limits::default()).unwrap()
    })
}

fn options() -> impl Strategy<Value = Options> {
    let optimal =
        prop::sample::subsequence(vec!["of", "descending"], 0..=2).prop_map(|mut parts| {
            parts.push("opt-ev");
            parts
        });
    let parts = [
        "eh",
        "alh",
        "sd-alh",
        "mpre",
        "of",
        "8-prefetch",
        "descending",
        "superpage",
    ];
    let others = prop::sample::subsequence(parts.to_vec(), 0..=parts.len());
    let others = others.prop_map(|mut parts| {
        if parts.is_empty() {
            parts.push("baseline");
        }
        parts
    });
    let parts = prop_oneof![1 => optimal, 5 => others].prop_shuffle();
    let shape = prop_oneof![
        8 => (1usize..6, 1usize..5),
        1 => (1usize..3, 65usize..70),
    ];
    let buffer = prop_oneof![8 => 0usize..6, 1 => 65usize..67];
    let walk = prop::array::uniform3(0usize..4);
    (parts, shape, buffer, any::<[bool; 3]>(), 2usize..=5, walk).prop_map(
        |(parts, (sets, ways), buffer, [after_misses_only, up, ih], levels, walk)| Options {
            parts,
            entries: sets * ways,
            ways,
            buffer,
            after_misses_only,
            up,
            levels,
            walk,
            ih: u8::from(ih),
        },
    )
}

fn quietly(_: u64, _: u64) {}

/// Several jobs, and a file that is read in passes, change nothing.
#[test]
fn many_simulations_at_once_give_what_each_gives_alone() {
    let sums = [
        "baseline",
        "alh+mpre",
        "opt-ev",
        "sd-alh+descending",
        "eh+superpage+mpre",
    ];
    let mut setups: Vec<Setup> = sums.map(|sum| Setup::of(sum.parse().unwrap())).into();
    setups.extend(setups.clone().into_iter().map(|setup| {
        let geometry = Geometry::new(64, 4).unwrap();
        setup.with_geometry(geometry)
    }));
    for name in ["2xe1000-stream", "lsi-bonnie-norcache"] {
        let trace = open(name);
        let laboratory = Laboratory::new(&trace);
        let alone: Vec<Outcome> = setups.iter().map(|s| laboratory.simulate(s)).collect();
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../traces/{name}.trace.zst"));
        for jobs in [1, 3].map(|jobs| NonZeroUsize::new(jobs).unwrap()) {
            assert_eq!(simulate_many(&trace, &setups, jobs, &mut quietly), alone);
            let mut last = (0, 1);
            let mut progress = |done, total| {
                assert!(done >= last.0);
                last = (done, total);
            };
            let from_file = simulate_file(&path, &setups, jobs, &mut progress);
            assert_eq!(from_file.unwrap().0, alone, "{name}");
            assert_eq!(last.0, last.1, "all is done");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_traces_agree_with_the_naive_simulator(
        trace in random_trace(),
        options in prop::collection::vec(options(), 6),
    ) {
        let laboratory = Laboratory::new(&trace);
        for options in options {
            let expected = model::run(&trace, &options);
            prop_assert_eq!(ours(&laboratory, &options), expected, "{:?}", options);
        }
    }

    #[test]
    fn prefetching_leaves_the_contents_alone_where_nothing_is_anomalous(
        trace in random_clean_trace(),
        options in options(),
    ) {
        let laboratory = Laboratory::new(&trace);
        let with = |sum: &str| {
            let strategy: Named = sum.parse().unwrap();
            laboratory.simulate(&Setup { strategy, ..setup(&options) })
        };
        let baseline = with("baseline");
        prop_assert!(baseline.anomalies.is_empty());
        for sum in ["alh", "sd-alh", "mpre", "alh+mpre", "sd-alh+mpre+8-prefetch", "alh+sd-alh"] {
            let outcome = with(sum);
            prop_assert_eq!(
                (outcome.hits, outcome.evictions, outcome.invalidations),
                (baseline.hits, baseline.evictions, baseline.invalidations)
            );
            prop_assert_eq!(outcome.misses + outcome.prefetch_hits, baseline.misses);
        }
        prop_assert!(with("opt-ev").misses <= baseline.misses, "none is better than the optimum");
        prop_assert!(with("opt-ev").misses <= with("eh").misses);
    }

    #[test]
    fn working_sets_agree_with_the_naive_count(trace in random_trace(), window in 1usize..20) {
        for (size, superpages) in [(PageSize::Page, false), (PageSize::Superpage, true)] {
            let set = WorkingSet::of(&trace, size, NonZeroUsize::new(window).unwrap());
            let expected = model::working_set(&trace, window, superpages);
            let windows: Vec<usize> = set.windows.iter().map(|&pages| pages as usize).collect();
            prop_assert_eq!(&windows, &expected);
            prop_assert_eq!(set.maximum as usize, expected.iter().copied().max().unwrap_or(0));
            let mean = expected.iter().sum::<usize>() as f64 / expected.len().max(1) as f64;
            prop_assert_eq!(set.mean, mean);
        }
    }
}
