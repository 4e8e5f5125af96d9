// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several units, announced by a VMM as the guest sees it: the table's bytes, and register windows
//! at the addresses that it names.

mod device;

use ioatlas_dma::{
    domain::{Domain, DomainConfig, Mapping, PolicyConfig},
    invalidation::{InvalidateError, WaitLimit},
    iova::AllocatorConfig,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Translator},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{
    announce::{Announcement, UnitPlace},
    config::*,
    mmio::MmioWindow,
    observe::Outcome,
    unit::SoftUnit,
};
use ioatlas_vtd::{
    acpi::*,
    driver::{BringUpError, Config, DeviceTlbError, Live},
    layout::QueueDepth,
    registers::*,
    units::*,
};
use std::sync::Arc;

const LIMIT: WaitLimit = WaitLimit(1000);
const CONFIG: Config = Config::DEFAULT.limit(LIMIT);
const SEGMENT: Segment = Segment(0);
/// Behind the root port 00:1c.0, which has bus 1; beside it; and in a segment without a unit.
const NIC: Requester = here(0x0100);
const DISK: Requester = here(0x00c8);
const PORT: SourceId = SourceId(0x00e0);
const ELSEWHERE: Requester = Requester {
    segment: Segment(1),
    device: SourceId(0x0100),
};
const FIRST: PhysAddr = PhysAddr(0xfed9_0000);
const SECOND: PhysAddr = PhysAddr(0xfed9_8000);

const fn here(device: u16) -> Requester {
    Requester {
        segment: SEGMENT,
        device: SourceId(device),
    }
}

/// The root port is all the PCI that there is to read.
fn pci(_: Segment, function: SourceId, offset: u16) -> u32 {
    match (function, offset) {
        (PORT, 0x0c) => 1 << 16,
        (PORT, 0x18) => 0x01_0100,
        _ => u32::MAX,
    }
}

type Window = Arc<MmioWindow<Host, Host>>;
type All = Units<Host, Window>;
type Tables = Paged<Host, VtdSecond48, SharedUnit<Host, Window>>;

/// A machine with a unit for what is behind the root port, and one for the rest.
struct Machine {
    host: Arc<Host>,
    windows: [(PhysAddr, Window); 2],
    table: Vec<u8>,
}

impl Machine {
    fn new(change: impl Fn(usize, &mut UnitConfig)) -> Self {
        let host = Arc::new(Host::new(HostConfig::default().frames(64).slots(2)));
        let window = |n| {
            let mut config = UnitConfig::new(Geometry::VTD_48);
            change(n, &mut config);
            let unit = SoftUnit::new(host.clone(), &config).unwrap();
            Arc::new(MmioWindow::new(Arc::new(unit)))
        };
        let windows = [(FIRST, window(0)), (SECOND, window(1))];
        let place = |registers, devices, scopes| UnitPlace {
            segment: SEGMENT,
            registers,
            devices,
            scopes,
        };
        let port = vec![Scope::bridge(PORT)];
        let memory = |first, device: Requester| Rmrr {
            segment: SEGMENT,
            memory: PhysRun::new(PhysPage(first), PageCount(3)),
            scopes: vec![Scope::endpoint(device.device)],
        };
        let table = Announcement::new(48)
            .unit(&windows[0].1, place(FIRST, Covers::Listed, port))
            .unit(&windows[1].1, place(SECOND, Covers::Rest, vec![]))
            .reserved(memory(0x500, DISK))
            .reserved(memory(0x502, DISK))
            .build()
            .unwrap();
        Machine {
            host,
            windows,
            table,
        }
    }
    fn map(&self, at: PhysAddr, bytes: ByteCount) -> Option<Window> {
        let (_, window) = self.windows.iter().find(|(base, _)| *base == at)?;
        (bytes.0 <= window.len()).then(|| window.clone())
    }
    fn dmar(&self) -> Dmar {
        Dmar::parse(&self.table).unwrap()
    }
    fn prepare(&self, config: Config) -> All {
        Units::prepare(&self.host, self.dmar(), config, |at, n| self.map(at, n))
    }
    fn bring_up(&self) -> All {
        Units::bring_up(&self.host, self.dmar(), CONFIG, |at, n| self.map(at, n))
    }
    fn domain(&self, unit: &SharedUnit<Host, Window>) -> Domain<Host, Tables> {
        let design =
            DomainConfig::new(AllocatorConfig::RBTREE, PolicyConfig::Strict).wait_limit(LIMIT);
        let tables = Tables::new(&self.host, unit.clone(), TableConfig::default());
        Domain::new(self.host.clone(), tables.unwrap(), design).unwrap()
    }
    /// What an access through unit `n` reaches.
    fn reach(&self, n: usize, requester: Requester, page: IovaPage) -> Outcome {
        let unit = self.windows[n].1.unit();
        unit.access(requester.device, page, AccessKind::Write)
            .outcome
    }
    fn end(self, units: All) {
        drop(units);
        for (_, window) in &self.windows {
            window.unit().audit().unwrap();
        }
    }
}

fn page_of(outcome: Outcome) -> Option<PhysPage> {
    match outcome {
        Outcome::Translated { page, .. } => Some(page),
        _ => None,
    }
}

#[test]
fn the_software_units_announce_what_they_are() {
    let machine = Machine::new(|n, config| {
        config.features.device_tlbs = n == 0;
        config.registers.interrupts = InterruptRemapping::Compatible;
        // the second unit's registers fill more than one page
        config.registers.fault_offset = [0x220, 0x3000][n];
    });
    let dmar = machine.dmar();
    let places: Vec<_> = dmar
        .units
        .iter()
        .map(|u| (u.registers, u.devices))
        .collect();
    assert_eq!(places, [(FIRST, Covers::Listed), (SECOND, Covers::Rest)]);
    let bytes: Vec<_> = dmar.units.iter().map(|u| u.register_bytes().0).collect();
    assert_eq!(bytes, [0x1000, 0x4000]);
    assert!(dmar.interrupt_remapping);
    let ats = dmar.ats.iter().map(|a| (a.ports, &a.scopes[..]));
    let ports: Vec<_> = ats.collect();
    assert_eq!(ports, [(Covers::Listed, &[Scope::bridge(PORT)][..])]);
    assert_eq!((dmar.reserved.len(), dmar.skipped), (2, 0));
    let one_cannot = Machine::new(|n, config| {
        config.registers.interrupts = [InterruptRemapping::Extended, InterruptRemapping::Absent][n];
    });
    assert!(!one_cannot.dmar().interrupt_remapping);
    assert!(!Announcement::new(48).dmar().interrupt_remapping);
}

#[test]
fn every_unit_translates_and_each_device_by_its_own() {
    let machine = Machine::new(|_, _| {});
    let units = machine.bring_up();
    assert_eq!(units.failures().count(), 0, "{units:?}");
    for (_, window) in &machine.windows {
        assert_eq!(window.read32(GSTS) & GCMD_TE, GCMD_TE, "not only the last");
    }
    let [nic, disk] = [NIC, DISK].map(|requester| units.unit_of(requester, &pci).unwrap());
    assert!(!Arc::ptr_eq(nic, disk));
    let (its, theirs) = (machine.domain(nic), machine.domain(disk));
    units.attach(NIC, &pci, &its).unwrap();
    units.attach(DISK, &pci, &theirs).unwrap();
    let map = |domain: &Domain<_, _>, page| {
        let buffer = PhysRange::page(PhysPage(page));
        domain
            .map_at(Iova(0x7000), buffer, Direction::Bidirectional)
            .unwrap()
    };
    let (a, b) = (map(&its, 0x111), map(&theirs, 0x222));
    let at = IovaPage(7);
    let reached = [machine.reach(0, NIC, at), machine.reach(1, DISK, at)].map(page_of);
    assert_eq!(reached, [Some(PhysPage(0x111)), Some(PhysPage(0x222))]);
    // where the device is not, it is blocked
    for (n, requester) in [(1, NIC), (0, DISK)] {
        assert!(
            matches!(machine.reach(n, requester, at), Outcome::Fault(_)),
            "P8: {requester}"
        );
    }
    // flushing one unit is enough for its domain, and the other keeps its own
    its.unmap(a).unwrap();
    let reached = [machine.reach(0, NIC, at), machine.reach(1, DISK, at)].map(page_of);
    assert_eq!(reached, [None, Some(PhysPage(0x222))], "P1");
    theirs.unmap(b).unwrap();
    its.close().map_err(|e| e.to_string()).unwrap();
    theirs.close().map_err(|e| e.to_string()).unwrap();
    machine.end(units);
}

#[test]
fn a_domain_takes_only_devices_of_its_unit() {
    let machine = Machine::new(|_, _| {});
    let units = machine.bring_up();
    let domain = machine.domain(units.unit_of(NIC, &pci).unwrap());
    let error = UnitAttachError::OtherUnit { requester: DISK };
    assert_eq!(units.attach(DISK, &pci, &domain), Err(error));
    let error = RouteError::NoUnit {
        requester: ELSEWHERE,
    };
    assert_eq!(units.attach(ELSEWHERE, &pci, &domain), Err(error.into()));
    assert_eq!(
        error.to_string(),
        "no remapping unit covers 0001:01:00.0: it reaches all of memory"
    );
    units.attach(NIC, &pci, &domain).unwrap();
    domain.close().map_err(|e| e.to_string()).unwrap();
    machine.end(units);
}

#[test]
fn a_unit_that_fails_fails_alone() {
    // one never completes; one contradicts itself; both would be fatal alone
    let stuck = |n: usize, config: &mut UnitConfig| {
        if n == 0 {
            config.processing = Processing::Stuck;
        }
    };
    let contradicts = |n: usize, config: &mut UnitConfig| {
        if n == 0 {
            config.features.device_tlbs = true;
            config.registers.interface = InvalidationInterface::Registers;
        }
    };
    let turns = LIMIT.0;
    let timed_out = BringUpError::Invalidate(InvalidateError::TimedOut { turns });
    for (machine, name) in [
        (Machine::new(stuck), "stuck"),
        (Machine::new(contradicts), "DT"),
    ] {
        let units = machine.bring_up();
        let failures: Vec<_> = units.failures().collect();
        let [(0, failure)] = failures[..] else {
            panic!("{name}: {failures:?}")
        };
        assert_eq!(
            (failure.registers, failure.devices),
            (FIRST, DeviceIs::Free),
            "{name}"
        );
        match (name, failure.cause) {
            ("stuck", FailureCause::BringUp(cause)) => assert_eq!(cause, timed_out),
            (_, FailureCause::BringUp(BringUpError::NeedsQueue { field, .. })) => {
                assert_eq!(field, "DT");
            }
            other => panic!("{other:?}"),
        }
        let failure = *failure;
        let refused = units.unit_of(NIC, &pci).err();
        assert_eq!(
            refused,
            Some(RouteError::Failed {
                requester: NIC,
                failure
            })
        );
        let domain = machine.domain(units.unit_of(DISK, &pci).unwrap());
        units.attach(DISK, &pci, &domain).unwrap();
        let mapping = domain.map(PhysRange::page(PhysPage(9)), Direction::Bidirectional);
        let mapping = mapping.unwrap();
        let reached = page_of(machine.reach(1, DISK, mapping.iova().page()));
        assert_eq!(reached, Some(PhysPage(9)), "{name}: the other goes on");
        domain.unmap(mapping).unwrap();
        domain.close().map_err(|e| e.to_string()).unwrap();
        machine.end(units);
    }
}

#[test]
fn what_a_failure_leaves_to_devices_is_told() {
    let machine = Machine::new(|_, _| {});
    let units = machine.bring_up();
    // another driver comes, and does not take over
    let second = machine.prepare(CONFIG);
    let failures: Vec<_> = second
        .failures()
        .map(|(_, f)| (f.registers, f.devices))
        .collect();
    assert_eq!(
        failures,
        [(FIRST, DeviceIs::AsBefore), (SECOND, DeviceIs::AsBefore)]
    );
    let none = Units::<Host, Window>::prepare(&machine.host, machine.dmar(), CONFIG, |_, _| None);
    for (_, failure) in none.failures() {
        assert_eq!(failure.cause, FailureCause::NoRegisters);
        assert_eq!(failure.devices, DeviceIs::Unknown);
        assert!(
            failure.to_string().contains("may reach anything"),
            "{failure}"
        );
    }
    assert_eq!(none.failures().count(), 2);
    machine.end(units);
}

/// Older firmware says nothing of the size.
#[test]
fn registers_beyond_what_the_table_says_are_asked_for() {
    let machine = Machine::new(|_, config| config.registers.fault_offset = 0x3000);
    let mut dmar = machine.dmar();
    dmar.units.iter_mut().for_each(|u| u.register_pages_lg2 = 0);
    let mut asked = Vec::new();
    let units = Units::bring_up(&machine.host, dmar, CONFIG, |at, bytes| {
        asked.push((at, bytes.0));
        machine.map(at, bytes)
    });
    assert_eq!(units.working().count(), 2);
    // 16 records of 16 bytes
    assert_eq!(
        asked,
        [
            (FIRST, 0x1000),
            (FIRST, 0x3100),
            (SECOND, 0x1000),
            (SECOND, 0x3100)
        ]
    );
    machine.end(units);
}

fn reserve<T: Translator<Host>>(
    domain: &Domain<Host, T>,
    runs: &[PhysRun],
) -> Result<Vec<Mapping>, ReservedError> {
    // SAFETY: devices may have all memory of a host.
    unsafe { map_reserved(domain, runs) }
}

#[test]
fn reserved_memory_is_reached_from_the_first_moment_of_translation() {
    let machine = Machine::new(|_, _| {});
    let mut units = machine.prepare(CONFIG);
    let runs = units.reserved_for(DISK, &pci);
    assert_eq!(
        runs,
        [PhysRun::new(PhysPage(0x500), PageCount(5))],
        "two that overlap"
    );
    assert_eq!(units.reserved_for(NIC, &pci), []);
    let domain = machine.domain(units.unit_of(DISK, &pci).unwrap());
    let mut kept = reserve(&domain, &runs).unwrap();
    units.attach(DISK, &pci, &domain).unwrap();
    units.activate();
    for page in 0x500..0x505 {
        let reached = page_of(machine.reach(1, DISK, IovaPage(page)));
        assert_eq!(reached, Some(PhysPage(page)), "P14");
    }
    for page in [0x4ff, 0x505] {
        assert_eq!(page_of(machine.reach(1, DISK, IovaPage(page))), None);
    }
    // a second time it is taken; what comes before is undone
    let before = domain.stats();
    let twice = [PhysRun::new(PhysPage(0x700), PageCount(1)), runs[0]];
    let error = reserve(&domain, &twice).unwrap_err();
    assert_eq!(error.run, runs[0]);
    assert_eq!(page_of(machine.reach(1, DISK, IovaPage(0x700))), None);
    assert_eq!(domain.stats().reserved, before.reserved);
    let huge = [PhysRun::new(PhysPage(0), PageCount(u64::MAX))];
    assert!(reserve(&domain, &huge).is_err());
    domain.unmap(kept.pop().unwrap()).unwrap();
    assert_eq!(page_of(machine.reach(1, DISK, IovaPage(0x500))), None, "P1");
    domain.close().map_err(|e| e.to_string()).unwrap();
    machine.end(units);
}

#[test]
fn a_device_keeps_translations_only_where_firmware_lets_its_port() {
    let machine = Machine::new(|n, config| config.features.device_tlbs = n == 0);
    let units = machine.bring_up();
    let depth = QueueDepth::from_capability(32);
    assert_eq!(units.declare_device_tlb(NIC, &pci, depth), Ok(()));
    let refused = units.declare_device_tlb(DISK, &pci, depth);
    assert_eq!(refused, Err(AtsError::Port { requester: DISK }));
    // firmware that promises more than the unit has
    let mut dmar = machine.dmar();
    dmar.ats[0].ports = Covers::Rest;
    let live = Live::TakeOver;
    let config = CONFIG.live(live);
    let units = Units::bring_up(&machine.host, dmar, config, |at, n| machine.map(at, n));
    let refused = units.declare_device_tlb(DISK, &pci, depth);
    assert!(matches!(
        refused,
        Err(AtsError::Unit(DeviceTlbError::Unsupported { .. }))
    ));
    machine.end(units);
}
