// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The bundled traces give the numbers that independent simulators agreed on.

use ioatlas_iotlb::{Laboratory, Setup, Trace, simulate};
use std::path::Path;

fn open(name: &str) -> Trace {
    let path = format!("../../traces/{name}.trace.zst");
    Trace::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn baseline_of_the_reference_iotlb() {
    for (name, accesses, hits, misses) in [
        ("e1000-stream", 35959, 26467, 9492),
        ("2xe1000-stream-norcache", 36246, 26291, 9955),
        ("lsi-bonnie", 42777, 26831, 15946),
    ] {
        let outcome = simulate(&open(name), &Setup::default());
        assert_eq!(
            (outcome.accesses, outcome.hits, outcome.misses),
            (accesses, hits, misses)
        );
        assert!(
            outcome.anomalies.is_empty(),
            "{name}: {:?}",
            outcome.anomalies
        );
        assert_eq!(
            (outcome.faults, outcome.prefetch_hits, outcome.prefetches),
            (0, 0, 0)
        );
    }
}

#[test]
fn info_counts_events_and_peaks() {
    for (name, maps, unmaps, accesses, peak, marks) in [
        ("e1000-stream", 3438, 3436, 35959, 415, 2),
        ("lsi-bonnie", 1262, 1009, 42777, 1467, 3),
    ] {
        let info = open(name).info();
        let device = &info.devices[0];
        assert_eq!(
            (device.maps, device.unmaps, device.accesses),
            (maps, unmaps, accesses)
        );
        assert_eq!(
            (info.peak_live_pages.0, info.marks),
            (peak, marks),
            "{name}"
        );
        assert_eq!(device.consistent_maps + device.streaming_maps, device.maps);
        assert_eq!(info.events as u64, maps + unmaps + accesses);
    }
}

/// Misses of the reference IOTLB by strategy.
fn misses(name: &str, strategies: &[&str]) -> Vec<u64> {
    let trace = open(name);
    let laboratory = Laboratory::new(&trace);
    let misses = |&sum: &&str| {
        let setup = Setup::of(sum.parse().unwrap());
        laboratory.simulate(&setup).misses
    };
    strategies.iter().map(misses).collect()
}

#[test]
fn strategies_on_the_reference_iotlb() {
    let strategies = ["baseline", "alh", "sd-alh", "mpre", "alh+mpre+8-prefetch"];
    assert_eq!(
        misses("e1000-stream", &strategies),
        [9492, 4197, 5103, 7674, 2806]
    );
    let strategies = ["baseline", "sd-alh", "sd-alh+mpre+descending"];
    assert_eq!(
        misses("lsi-bonnie-norcache", &strategies),
        [16138, 15671, 542]
    );
}
