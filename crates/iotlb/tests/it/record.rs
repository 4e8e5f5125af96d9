// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A run on the software unit, recorded, and read back by the reader of traces.

use ioatlas_dma::{
    domain::{DomainConfig, PolicyConfig},
    policy::DeferredConfig,
    table::fmt::VtdSecond48,
    units::*,
};
use ioatlas_host::Host;
use ioatlas_iotlb::{
    Event, Limits, Trace,
    record::{LogLimits, Mappings, TraceLog},
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::{Machine, SoftDomain},
};
use std::sync::Arc;

const NIC: SourceId = SourceId(0x20);
const DISK: SourceId = SourceId(0x28);

struct Bench {
    machine: Machine<Host>,
    domain: SoftDomain<Host, VtdSecond48>,
    log: Arc<TraceLog>,
}

impl Bench {
    fn new(mappings: Mappings, policy: PolicyConfig, limits: LogLimits) -> Bench {
        let log = Arc::new(TraceLog::new(mappings, limits));
        let config = UnitConfig::new(Geometry::VTD_48);
        let memory = Arc::new(Host::new(Default::default()));
        let machine = Machine::observed(memory, &config, log.clone(), Default::default()).unwrap();
        let config = DomainConfig::default().policy(policy);
        let domain = machine.domain::<VtdSecond48>(config).unwrap();
        domain.attach(NIC).unwrap();
        Bench {
            machine,
            domain,
            log,
        }
    }
    fn strict(mappings: Mappings) -> Bench {
        Self::new(mappings, PolicyConfig::Strict, LogLimits::default())
    }
    fn access(&self, device: SourceId, page: IovaPage, kind: AccessKind) {
        self.machine.unit().access(device, page, kind);
    }
    fn read(&self, page: IovaPage) {
        self.access(NIC, page, AccessKind::Read);
    }
    /// What was recorded, as lines again: `event device page/pages/phys`.
    fn told(&self) -> Vec<String> {
        let trace = self.trace();
        let text = |event: &Event| {
            let device = trace.device_name(event.device());
            match event {
                Event::Map {
                    range,
                    phys,
                    permission,
                    ..
                } => {
                    let phys = phys.map_or("-".into(), |p| p.to_string());
                    let first = range.first();
                    format!(
                        "M {device} {first}+{} {permission:?} {phys}",
                        range.pages().0
                    )
                }
                Event::Unmap { range, .. } => {
                    format!("U {device} {}+{}", range.first(), range.pages().0)
                }
                Event::Access {
                    page, direction, ..
                } => {
                    format!("A {device} {page} {:?}", direction.unwrap())
                }
            }
        };
        trace.events().iter().map(text).collect()
    }
    fn trace(&self) -> Trace {
        let text = self.log.take();
        Trace::read("recorded", text.as_bytes(), Limits::default()).unwrap()
    }
}

fn buffer(page: u64, pages: u64) -> PhysRange {
    PhysRange::new(PhysPage(page).addr(), ByteCount(pages << 12))
}

#[test]
fn what_is_told_and_every_access_are_read_back_in_order() {
    let b = Bench::strict(Mappings::Told);
    let mapping = b.domain.map(buffer(0x700, 2), Direction::ToDevice).unwrap();
    let range = mapping.range();
    let first = range.first;
    let second = IovaPage(first.0 + 1);
    b.log.mapped(NIC, range, Perm::Read, Some(PhysPage(0x700)));
    b.read(second);
    b.access(NIC, first, AccessKind::Write); // blocked, and an access all the same
    b.domain.unmap(mapping).unwrap();
    b.log.unmapped(NIC, range);
    b.read(first);
    let (one, two) = (format!("{:x}", first.0), format!("{:x}", second.0));
    let expected = [
        format!("M 00:04.0 {one}+2 Read 700"),
        format!("A 00:04.0 {two} Read"),
        format!("A 00:04.0 {one} Write"),
        format!("U 00:04.0 {one}+2"),
        format!("A 00:04.0 {one} Read"),
    ];
    assert_eq!((b.told(), b.log.lost()), (expected.to_vec(), 0));
}

#[test]
fn derived_under_strict_it_is_what_happened_to_the_pages_used() {
    let b = Bench::strict(Mappings::Derived);
    b.domain.attach(DISK).unwrap();
    b.log.take();
    let mapping = b
        .domain
        .map(buffer(0x700, 4), Direction::Bidirectional)
        .unwrap();
    let first = mapping.range().first.0;
    let page = |n: u64| IovaPage(first + n);
    let x = |n: u64| format!("{:x}", first + n);
    for n in [0, 1, 0, 3] {
        b.read(page(n));
    }
    b.access(DISK, page(1), AccessKind::Write);
    b.domain.unmap(mapping).unwrap();
    b.read(page(0));
    let text = b.log.take();
    let expected = [
        format!("M 00:04.0 {} 1 rw 700", x(0)),
        format!("A 00:04.0 {} r", x(0)),
        format!("M 00:04.0 {} 1 rw 701", x(1)),
        format!("A 00:04.0 {} r", x(1)),
        format!("A 00:04.0 {} r", x(0)),
        format!("M 00:04.0 {} 1 rw 703", x(3)),
        format!("A 00:04.0 {} r", x(3)),
        format!("M 00:05.0 {} 1 rw 701", x(1)),
        format!("A 00:05.0 {} w", x(1)),
        // page 2 was never used, so the trace does not know of it
        format!("U 00:04.0 {} 2", x(0)),
        format!("U 00:04.0 {} 1", x(3)),
        format!("U 00:05.0 {} 1", x(1)),
        format!("A 00:04.0 {} r", x(0)),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_wide_flush_is_a_doubt_that_the_next_access_settles() {
    let batch = DeferredConfig::DEFAULT.batch(1);
    let b = Bench::new(
        Mappings::Derived,
        PolicyConfig::DeferredPerCpu(batch),
        LogLimits::default(),
    );
    let stays = b
        .domain
        .map(buffer(0x700, 1), Direction::Bidirectional)
        .unwrap();
    let goes = b
        .domain
        .map(buffer(0x701, 1), Direction::Bidirectional)
        .unwrap();
    let (kept, gone) = (stays.range().first, goes.range().first);
    b.read(kept);
    b.read(gone);
    b.domain.unmap(goes).unwrap();
    b.domain.flush().unwrap();
    let lines = |b: &Bench| {
        b.told()
            .into_iter()
            .filter(|l| !l.starts_with('A'))
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(&b).len(), 2, "maps, and no unmap yet");
    b.log.take();
    b.read(kept);
    b.read(gone);
    let text = b.log.take();
    let expected = [
        format!("A 00:04.0 {:x} r", kept.0),
        format!("U 00:04.0 {:x} 1", gone.0),
        format!("A 00:04.0 {:x} r", gone.0),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn what_does_not_fit_is_counted_and_the_rest_is_a_trace() {
    let limits = LogLimits::default().text_bytes(100).pages(1);
    let b = Bench::new(Mappings::Derived, PolicyConfig::Strict, limits);
    let mapping = b
        .domain
        .map(buffer(0x700, 2), Direction::Bidirectional)
        .unwrap();
    let range = mapping.range();
    for page in range.iter() {
        b.read(page);
    }
    assert_eq!(b.log.lost(), 1, "the map of the second page");
    for _ in 0..100 {
        b.read(range.first);
    }
    let lost = b.log.lost();
    let kept = b.trace().events().len() as u64;
    assert!(kept > 0);
    assert_eq!(kept + lost, 2 + 2 + 100);
    // room again; a page that no trace can name is lost
    b.access(NIC, IovaPage(1 << 52), AccessKind::Read);
    b.read(range.first);
    assert_eq!(b.log.lost(), lost + 1);
    assert_eq!(b.log.take().lines().count(), 1);
}
