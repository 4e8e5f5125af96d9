// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Does a recording add up?
//!
//! The guest's kernel counts maps and unmaps itself, at its own tracepoints, with their sizes; the
//! importer counted calls in QEMU's log; the unit counted invalidations, one an unmap in strict
//! mode. All three must agree, and the trace must make sense: each access to a page that is mapped,
//! no page mapped or unmapped twice.

use super::console::Said;
use ioatlas_iotlb::TraceInfo;
use ioatlas_iotlb::import::qemu::Counts;
use serde::Serialize;

/// Two numbers that should be one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub what: &'static str,
    /// What the trace or the log says.
    pub found: u64,
    /// What it should be, from elsewhere.
    pub wanted: u64,
}

impl Check {
    /// Whether they are one.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.found == self.wanted
    }

    /// Both numbers in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("{}: {}, not {}", self.what, self.found, self.wanted)
    }
}

/// All checks of a recording.
#[must_use]
pub fn checks(log: &Counts, said: &Said, trace: &TraceInfo) -> Vec<Check> {
    let check = |what, found, wanted| Check {
        what,
        found,
        wanted,
    };
    let (maps, unmaps) = (&said.maps, &said.unmaps);
    let accesses: u64 = trace.devices.iter().map(|device| device.accesses).sum();
    let anomalies = &trace.anomalies;
    vec![
        check(
            "maps, by the guest's tracepoint",
            log.maps - log.direct_maps,
            maps.events,
        ),
        check(
            "mapped pages, by the guest's tracepoint",
            log.mapped_pages - log.direct_pages,
            maps.pages,
        ),
        check(
            "unmaps, by the guest's tracepoint",
            log.unmaps,
            unmaps.events,
        ),
        check(
            "unmapped pages, by the guest's tracepoint",
            log.unmapped_pages,
            unmaps.pages,
        ),
        check(
            "maps and unmaps that the guest counted and listed",
            maps.listed + unmaps.listed,
            maps.events + unmaps.events,
        ),
        check(
            "maps and unmaps that the guest had no room to count",
            maps.dropped + unmaps.dropped,
            0,
        ),
        check("invalidations, one an unmap", log.invalidations, log.unmaps),
        check(
            "accesses, by the log",
            accesses,
            log.accesses - log.direct_accesses,
        ),
        check("faults that the unit reported", log.faults, 0),
        check("accesses outside what is mapped", anomalies.faults, 0),
        check(
            "pages mapped that were mapped",
            anomalies.map_over_mapped_pages.0,
            0,
        ),
        check(
            "pages unmapped that were not mapped",
            anomalies.unmap_not_mapped_pages.0,
            0,
        ),
        check(
            "programs of the guest in trouble",
            said.troubles.len() as u64,
            0,
        ),
        check(
            "a workload that makes the device access memory",
            u64::from(accesses > 0 && log.maps > log.direct_maps),
            1,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::console::Counted;
    use ioatlas_iotlb::{Limits, Trace};

    const TRACE: &str = "# ioatlas-trace 1\nM d fff 1 rw 1 alloc\nM d ffd 2 r 5 page\nA d fff ?\nA d ffe r\nU d ffd 2\n";

    /// What the log and the guest say of that trace, with one direct map and an access to it.
    fn said() -> (Counts, Said) {
        let log = Counts {
            maps: 3,
            mapped_pages: 3 + 4096,
            unmaps: 1,
            unmapped_pages: 2,
            accesses: 3,
            invalidations: 1,
            direct_maps: 1,
            direct_pages: 4096,
            direct_accesses: 1,
            ..Counts::default()
        };
        let counted = |events, pages| Counted {
            events,
            pages,
            listed: events,
            dropped: 0,
        };
        let said = Said {
            maps: counted(2, 3),
            unmaps: counted(1, 2),
            ..Said::default()
        };
        (log, said)
    }

    fn failing(log: &Counts, said: &Said, trace: &str) -> Vec<String> {
        let trace = Trace::read("t", trace.as_bytes(), Limits::default()).unwrap();
        let all = checks(log, said, &trace.info());
        let failing = all.iter().filter(|check| !check.holds());
        failing.map(Check::sentence).collect()
    }

    #[test]
    fn a_recording_in_order_adds_up() {
        let (log, said) = said();
        assert_eq!(failing(&log, &said, TRACE), [""; 0]);
    }

    #[test]
    fn whatever_is_wrong_is_named_with_both_numbers() {
        let (log, said) = said();
        let with = |change: &dyn Fn(&mut Counts, &mut Said)| {
            let (mut log, mut said) = (log, said.clone());
            change(&mut log, &mut said);
            failing(&log, &said, TRACE).join("; ")
        };
        let lost = with(&|_, said| said.maps.events += 1);
        assert!(
            lost.contains("maps, by the guest's tracepoint: 2, not 3"),
            "{lost}"
        );
        let short = with(&|log, _| log.mapped_pages -= 1);
        assert_eq!(short, "mapped pages, by the guest's tracepoint: 2, not 3");
        let pages = with(&|_, said| said.unmaps.pages = 9);
        assert_eq!(pages, "unmapped pages, by the guest's tracepoint: 2, not 9");
        let lazy = with(&|log, _| log.invalidations = 0);
        assert_eq!(lazy, "invalidations, one an unmap: 0, not 1");
        let fault = with(&|log, _| log.faults = 2);
        assert_eq!(fault, "faults that the unit reported: 2, not 0");
        let full = with(&|_, said| said.maps.dropped = 1);
        assert!(full.contains("no room to count: 1, not 0"), "{full}");
        let trouble = with(&|_, said| said.troubles.push("send".into()));
        assert_eq!(trouble, "programs of the guest in trouble: 1, not 0");
        let access = with(&|log, _| log.accesses += 1);
        assert_eq!(access, "accesses, by the log: 2, not 3");
        let stray = TRACE.replace("A d ffe r", "A d 7 r");
        let said_of_stray = failing(&log, &said, &stray);
        assert_eq!(said_of_stray, ["accesses outside what is mapped: 1, not 0"]);
        let twice = TRACE.replace("A d ffe r\n", "A d ffe r\nM d fff 1 rw 1 alloc\n");
        let said_of_twice = failing(&log, &said, &twice);
        assert_eq!(said_of_twice, ["pages mapped that were mapped: 1, not 0"]);
    }

    #[test]
    fn an_idle_device_is_no_recording() {
        let idle = failing(&Counts::default(), &Said::default(), "# ioatlas-trace 1\n");
        assert_eq!(
            idle,
            ["a workload that makes the device access memory: 0, not 1"]
        );
    }
}
