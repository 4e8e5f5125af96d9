// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a replay does and counts.

use super::*;
use crate::report::bundled_traces;
use ioatlas_dma::{
    design::{self, allocators, policies},
    domain::{AllocatorConfig, DomainConfig, PolicyConfig},
};
use ioatlas_iotlb::Limits;

const IOTLB: SetGeometry = SetGeometry {
    entries: 32,
    ways: 2,
};

fn trace(lines: &str) -> Trace {
    let text = format!("# ioatlas-trace 1\n{lines}");
    Trace::read("t", text.as_bytes(), Limits::default()).unwrap()
}

/// Every design.
fn designs() -> Vec<Design> {
    design::all().collect()
}

/// Whether mappings share pages.
fn shares(design: &Design) -> bool {
    matches!(design.domain.allocator, AllocatorConfig::Identity(_))
}

/// Every allocator with a strict policy and with a deferred one, and every policy, for long traces.
fn some() -> Vec<Design> {
    let first = allocators().next().unwrap().config;
    let with = |policy| allocators().map(move |a| DomainConfig::new(a.config, policy));
    let mut some: Vec<_> = with(PolicyConfig::Strict).collect();
    some.extend(with(PolicyConfig::DeferredPerCpu(Default::default())));
    some.extend(policies().map(|p| DomainConfig::new(first, p.config)));
    some.into_iter().map(Design::from).collect()
}

#[test]
fn every_access_moves_to_where_its_mapping_went() {
    let trace = trace(
        "M a 100 2 r 5\nM b 100 1 w 5\nA a 100 r\nA a 101 r\nA b 100 w\nA a 101 r\n\
         U a 100 2\nU b 100 1\nM a 100 1 rw\nA a 100 ?\n",
    );
    for design in designs() {
        let replayed = replay(&trace, design, IOTLB, Probe::Off).unwrap();
        assert_eq!(
            (replayed.maps, replayed.anomalies, replayed.limited),
            (3, 0, 0)
        );
        assert_eq!(replayed.oracle.accesses, 5);
        assert_eq!(replayed.oracle.succeeded, 5, "none is blocked");
        assert_eq!(replayed.oracle.violation_count, 0, "{}", replayed.oracle);
        // two pages of a, one of b, and after the unmap a's new page, whatever its IOVA
        assert_eq!(replayed.misses, 4);
    }
}

#[test]
fn what_does_not_fit_is_skipped_and_counted() {
    let trace = trace(
        "M a 100 4 rw\nM a 103 2 rw\nU a 100 2\nU a 200 1\nA a 104 r\nA b 100 r\nU b 1 1\n\
         M a 1000 3000000 rw\nA a 1005 r\nU a 1000 3000000\nA a 1005 r\nM a 9000 1 rw fffffffffffff\nU a 100 4\n",
    );
    for design in designs() {
        let replayed = replay(&trace, design, IOTLB, Probe::Off).unwrap();
        // the last map's physical page is above any physical address
        assert_eq!((replayed.maps, replayed.anomalies), (1, 8));
        // the map of 12 GB, its access and its unmap; the access after that is an anomaly
        assert_eq!(replayed.limited, 3);
        assert_eq!(replayed.oracle.accesses, 0);
    }
}

#[test]
fn one_unmap_may_end_several_whole_mappings() {
    let trace = trace("M a 100 2 r\nM a 102 1 r\nM a 103 1 w\nU a 100 4\nA a 101 r\n");
    for design in designs() {
        let replayed = replay(&trace, design, IOTLB, Probe::Off).unwrap();
        assert_eq!((replayed.maps, replayed.anomalies), (3, 1));
    }
}

#[test]
fn each_policy_invalidates_as_often_as_it_says() {
    let pairs: String = (0..1000).map(|_| "M a 100 1 r\nU a 100 1\n").collect();
    // under `identity` the next map has the very page that was unmapped, to the same memory:
    // nothing is exposed
    for design in designs().into_iter().filter(|design| !shares(design)) {
        let replayed = replay(&trace(&pairs), design, IOTLB, Probe::Off).unwrap();
        let (expected, exposed) = match design.domain.policy {
            PolicyConfig::Strict | PolicyConfig::FreeBsd => (1000, 0),
            // the unit is done with what unmap starts before unmap returns
            PolicyConfig::MacOs(_) => (1000, 0),
            // the map that comes next takes the very page
            PolicyConfig::Solaris => (1000, 0),
            // the first of a batch stays while 248 more return; the 250th flushes before it does
            PolicyConfig::DeferredPerCpu(_) | PolicyConfig::DeferredGlobal(_) => (4, 248),
            new => panic!("{new:?} is new here"),
        };
        assert_eq!(replayed.invalidations, expected, "{design:?}");
        assert_eq!(replayed.oracle.exposure.unmaps, exposed, "{design:?}");
    }
}

#[test]
fn table_memory_counts_tables_alone() {
    // one page: root and three levels
    let replayed = replay(&trace("M a 100 1 r\n"), designs()[0], IOTLB, Probe::Off).unwrap();
    assert_eq!(replayed.table_kib, 4 * 4);
}

#[test]
fn a_design_with_large_leaves_gets_them() {
    // 2 MiB, aligned: one leaf instead of a table, and one walk instead of one a page
    let trace =
        trace("M a 200 512 rw 400\nA a 200 r\nA a 201 r\nA a 3ff w\nU a 200 512\nA a 200 r\n");
    let of = |words: &str| {
        let design = Design::parse(words).unwrap();
        let replayed = replay(&trace, design, IOTLB, Probe::UnmappedPages).unwrap();
        assert_eq!(replayed.oracle.violation_count, 0, "{words}");
        assert_eq!((replayed.maps, replayed.anomalies), (1, 1), "{words}");
        (replayed.table_kib, replayed.oracle.succeeded)
    };
    for design in ["magazine,strict", "rbtree,strict"] {
        assert_eq!(of(design), (4 * 4, 3));
        assert_eq!(of(&format!("{design},leaf=2m")), (3 * 4, 3));
    }
}

#[test]
fn bundled_traces_are_replayed_whole_and_clean() {
    for sample in &crate::bundled::BASE {
        let loaded = sample.load().unwrap();
        for design in some() {
            let replayed = replay(&loaded.trace, design, IOTLB, Probe::Off).unwrap();
            let events = loaded.trace.events().len() as u64;
            assert!(
                replayed.anomalies * 100 < events && replayed.limited == 0,
                "{} skipped",
                replayed.anomalies
            );
            assert_eq!(replayed.oracle.violation_count, 0, "{}", replayed.oracle);
            assert!(replayed.misses > 0 && replayed.oracle.accesses > replayed.misses);
        }
    }
}

#[test]
fn short_traces_of_huge_mappings_are_limited() {
    let pairs = "M d 0 400000 rw\nU d 0 400000\n".repeat(20);
    let replayed = replay(&trace(&pairs), designs()[3], IOTLB, Probe::Off).unwrap();
    let fit = MAX_PAGES / 400_000;
    assert_eq!((replayed.maps, replayed.unmaps), (fit, fit));
    assert_eq!((replayed.limited, replayed.anomalies), (2 * (20 - fit), 0));
}

#[test]
fn the_unmap_of_a_list_is_one_invalidation() {
    let sample = &crate::bundled::BASE[1];
    let loaded = sample.load().unwrap();
    for design in some() {
        if design.domain.policy != PolicyConfig::Strict {
            continue;
        }
        let replayed = replay(&loaded.trace, design, IOTLB, Probe::Off).unwrap();
        assert!(replayed.maps > replayed.unmaps + 200, "it has lists");
        assert_eq!(replayed.invalidations, replayed.unmaps, "{design:?}");
    }
}

#[test]
fn accesses_to_a_list_reach_each_segment() {
    let trace = trace(
        "M a 100 2 r 5\nM a 102 1 r 77\nM a 103 3 r 1\nA a 100 r\nA a 102 r\nA a 105 r\nU a 100 6\nA a 102 r\n",
    );
    for design in designs() {
        let replayed = replay(&trace, design, IOTLB, Probe::Off).unwrap();
        assert_eq!(
            (replayed.maps, replayed.unmaps, replayed.anomalies),
            (3, 1, 1)
        );
        assert_eq!(
            (replayed.oracle.accesses, replayed.oracle.succeeded),
            (3, 3)
        );
        assert_eq!(replayed.oracle.violation_count, 0, "{}", replayed.oracle);
    }
}

#[test]
fn unmapped_pages_are_blocked_by_strict_and_stale_for_a_while_under_deferred() {
    let loaded = crate::bundled::BASE[0].load().unwrap();
    for design in some() {
        let plain = replay(&loaded.trace, design, IOTLB, Probe::Off).unwrap();
        assert_eq!(plain.attempts, Attempts::default());
        let tried = replay(&loaded.trace, design, IOTLB, Probe::UnmappedPages).unwrap();
        let Attempts { blocked, stale } = tried.attempts;
        // a page that another mapping shares is not tried
        assert!(shares(&design) || blocked + stale >= tried.unmaps);
        assert_eq!(
            tried.oracle.accesses,
            plain.oracle.accesses + blocked + stale
        );
        assert_eq!(tried.oracle.violation_count, 0, "{}", tried.oracle);
        match design.domain.policy {
            PolicyConfig::Strict | PolicyConfig::FreeBsd => assert_eq!(stale, 0),
            // what unmap starts is done at once
            PolicyConfig::MacOs(_) => assert_eq!(stale, 0),
            PolicyConfig::DeferredPerCpu(_)
            | PolicyConfig::DeferredGlobal(_)
            | PolicyConfig::Solaris => assert!(stale > 0 && blocked > 0),
            new => panic!("{new:?} is new here"),
        }
    }
}

#[test]
fn a_driver_that_unmaps_in_bursts_is_as_strict_with_fewer_invalidations() {
    let traces = bundled_traces().unwrap().traces;
    let design = Design::parse("linux-strict").unwrap();
    for loaded in traces {
        let run = |unmaps, probe| {
            let driver = Driver { design, unmaps };
            replay(&loaded.trace, driver, IOTLB, probe).unwrap()
        };
        let one_by_one = run(Unmaps::OneByOne, Probe::Off);
        let in_bursts = run(Unmaps::InBursts, Probe::Off);
        assert_eq!(
            (one_by_one.maps, one_by_one.unmaps, one_by_one.anomalies),
            (in_bursts.maps, in_bursts.unmaps, in_bursts.anomalies)
        );
        // one of each burst at least, and of its 16 at most as many
        let (single, burst) = (one_by_one.invalidations, in_bursts.invalidations);
        assert!(
            burst * 16 >= single && burst * 2 < single,
            "{burst} of {single}"
        );
        let probed = run(Unmaps::InBursts, Probe::UnmappedPages);
        assert_eq!(probed.oracle.violation_count, 0);
        assert!(
            probed.attempts.blocked > 1000 && probed.attempts.stale == 0,
            "P1"
        );
    }
}
