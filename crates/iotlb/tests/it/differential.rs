// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The simulator against a naive second implementation, on random traces and on
//! the bundled real ones, and properties that hold on any trace.

use crate::naive::{self, Counts};
use ioatlas_iotlb::{Geometry, Limits, Outcome, Setup, Trace, diagnose, simulate, sweep};
use proptest::prelude::*;
use std::path::Path;

fn bundled() -> Vec<Trace> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "zst"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .iter()
        .map(|path| Trace::open(path).unwrap())
        .collect()
}

fn baseline(trace: &Trace, geometry: Geometry) -> Outcome {
    simulate(trace, &Setup::default().with_geometry(geometry))
}

fn ours(trace: &Trace, geometry: Geometry) -> Counts {
    let outcome = baseline(trace, geometry);
    let causes = diagnose(trace, geometry).total;
    assert_eq!(causes.misses(), outcome.misses);
    assert_eq!(
        (causes.accesses, causes.hits, causes.faults),
        (outcome.accesses, outcome.hits, outcome.faults)
    );
    Counts {
        accesses: outcome.accesses,
        hits: outcome.hits,
        misses: outcome.misses,
        faults: outcome.faults,
        evictions: outcome.evictions,
        invalidations: outcome.invalidations,
        first_touch: causes.first_touch,
        capacity: causes.capacity,
        conflict: causes.conflict,
        map_over_mapped_pages: outcome.anomalies.map_over_mapped_pages.0,
        unmap_not_mapped_pages: outcome.anomalies.unmap_not_mapped_pages.0,
        peak_live_pages: trace.info().peak_live_pages.0,
    }
}

#[test]
fn bundled_traces_agree_with_the_naive_simulator() {
    for trace in bundled() {
        for (entries, ways) in [(32, 2), (8, 8), (63, 3)] {
            let geometry = Geometry::new(entries, ways).unwrap();
            let expected = naive::run(&trace, geometry);
            assert_eq!(
                ours(&trace, geometry),
                expected,
                "{} {geometry:?}",
                trace.name()
            );
        }
    }
}

/// One random line: few pages and two devices, so that events meet.
fn line() -> impl Strategy<Value = String> {
    let device = prop_oneof![Just("a"), Just("b")];
    prop_oneof![
        3 => (device.clone(), 0u64..40, 1u64..5)
            .prop_map(|(d, p, n)| format!("M {d} {p:x} {n} rw\n")),
        2 => (device.clone(), 0u64..40, 1u64..5).prop_map(|(d, p, n)| format!("U {d} {p:x} {n}\n")),
        8 => (device, 0u64..44).prop_map(|(d, p)| format!("A {d} {p:x} ?\n")),
    ]
}

fn random_trace() -> impl Strategy<Value = Trace> {
    prop::collection::vec(line(), 0..200).prop_map(|lines| {
        let text = format!("# ioatlas-trace 1\n{}", lines.concat());
        Trace::read("random", text.as_bytes(), Limits::default()).unwrap()
    })
}

fn geometry() -> impl Strategy<Value = Geometry> {
    (1usize..6, 1usize..5).prop_map(|(sets, ways)| Geometry::new(sets * ways, ways).unwrap())
}

proptest! {
    #[test]
    fn random_traces_agree_with_the_naive_simulator(trace in random_trace(), g in geometry()) {
        prop_assert_eq!(ours(&trace, g), naive::run(&trace, g));
    }

    #[test]
    fn counts_add_up(trace in random_trace(), g in geometry()) {
        let outcome = baseline(&trace, g);
        prop_assert_eq!(outcome.accesses, outcome.hits + outcome.misses + outcome.faults);
        // Every filled entry is evicted, invalidated or still there.
        let left = outcome.misses - outcome.evictions - outcome.invalidations;
        prop_assert!(left <= g.entries() as u64);
        prop_assert!((0.0..=1.0).contains(&outcome.miss_rate));
    }

    #[test]
    fn first_touches_do_not_depend_on_the_iotlb(trace in random_trace(), a in geometry(), b in geometry()) {
        let (a, b) = (diagnose(&trace, a), diagnose(&trace, b));
        prop_assert_eq!(a.total.first_touch, b.total.first_touch);
        let per_device: u64 = a.per_device.iter().map(|d| d.misses()).sum();
        prop_assert_eq!(per_device, a.total.misses());
    }

    #[test]
    fn a_larger_fully_associative_iotlb_never_misses_more(trace in random_trace()) {
        let misses: Vec<u64> = (1..12)
            .map(|entries| {
                let points = sweep(&trace, &[entries], entries).unwrap();
                points[0].diagnosis.total.misses()
            })
            .collect();
        prop_assert!(misses.is_sorted_by(|a, b| a >= b), "{:?}", misses);
    }
}
