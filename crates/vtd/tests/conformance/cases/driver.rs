// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver on both units: bring-up, devices attached and detached, faults as it reads them, a
//! live unit taken over, shut-down.

use super::*;
use crate::BY;
use ioatlas_dma::{
    domain::{Domain, DomainConfig, PolicyConfig},
    invalidation::WaitLimit,
    iova::AllocatorConfig,
    table::{TableConfig, fmt::VtdSecond},
    translator::{Paged, RemappingUnit},
};
use ioatlas_host::Host;
use ioatlas_viommu::{config::*, device::Ats};
use ioatlas_vtd::driver::{Config, Live, Unit};
use std::{sync::Arc, time::Instant};

pub type Driver = Arc<Unit<Host, Arc<dyn Registers>>>;
pub type TestDomain<const L: u32> = Domain<Host, Paged<Host, VtdSecond<L>, Driver>>;

/// A unit that is not done after so many looks never will be.
pub const LIMIT: WaitLimit = WaitLimit(1_000);
const HOST: Config = Config::DEFAULT.limit(LIMIT);
const TAKE_OVER: Config = Config::DEFAULT.limit(LIMIT).live(Live::TakeOver);

type Make = (&'static str, fn(&mut UnitConfig), &'static str);
/// Units that ask more of a driver than QEMU's.
const MAKES: &[Make] = &[
    (
        "asynchronous",
        |c| c.processing = Processing::Asynchronous,
        "6.5.2.8",
    ),
    ("walk caches", |c| c.caches.walk = vec![8; 3], "6.2.4"),
    ("caching mode", caching_mode, "6.1"),
    (
        "write buffers",
        |c| c.features.write_buffers = WriteBuffers::FlushedByCommand,
        "6.8",
    ),
    (
        "by registers",
        |c| c.registers.interface = InvalidationInterface::Registers,
        "6.5.1",
    ),
    (
        "device TLBs",
        other_units::with_answering_devices,
        "6.5.2.5",
    ),
    (
        "device TLBs that ask again",
        other_units::with_asking_devices,
        "6.5.2.5",
    ),
];

/// Absent entries are remembered, those of tables too.
fn caching_mode(config: &mut UnitConfig) {
    config.features.caching_mode = true;
    config.caches.walk = vec![8; 3];
}

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for width in WIDTHS {
        all.extend((0..5).map(|n| bring_up(width, n)));
        all.push(attach(width).of_width(width));
        all.push(live(width).of_width(width));
        all.push(refused().of_width(width));
        all.push(told().of_width(width));
    }
    all.push(too_wide());
    let why = "QEMU's unit is of another make";
    for (name, made, clause) in MAKES {
        let case = Case::new(
            format!("domains attached in turn: {name}"),
            attach_in_turn::<4>,
        );
        all.push(case.made(*made, clause, why));
    }
    all
}

/// Brought up from off, or `None` and an observation that says why not.
pub fn brought_up(run: &mut Run<'_>) -> Option<Driver> {
    run.off();
    let begun = Instant::now();
    let unit = Unit::bring_up(run.host(), run.registers(), HOST);
    run.note_bring_up(begun.elapsed());
    match unit {
        Ok(unit) => Some(Arc::new(unit)),
        Err(error) => {
            run.see("bring-up", error, "done");
            None
        }
    }
}

pub fn domain<const L: u32>(run: &Run<'_>, driver: &Driver, config: DomainConfig) -> TestDomain<L> {
    let mut config = config.wait_limit(LIMIT);
    if let AllocatorConfig::Identity(identity) = &mut config.allocator {
        identity.phys_bits = MEMORY.ilog2(); // all that this machine has, for the sake of 39 bits
    }
    let tables = Paged::new(&run.host(), driver.clone(), TableConfig::default());
    Domain::new(run.host(), tables.expect("frames and an id"), config).expect("a domain")
}

pub fn plain<const L: u32>(run: &Run<'_>, driver: &Driver) -> TestDomain<L> {
    let config = DomainConfig::new(AllocatorConfig::RBTREE, PolicyConfig::Strict);
    domain(run, driver, config)
}

/// Nothing is left: the driver's frames, translation, the queue.
pub fn shut_down(run: &mut Run<'_>, driver: Driver, frames_before: usize) {
    let unit = Arc::into_inner(driver);
    // SAFETY: its devices reach the memory of this case.
    let down = unit.map(|unit| unsafe { unit.shut_down() }.map_err(|(error, _)| error.to_string()));
    run.see("shut down", format!("{down:?}"), "Some(Ok(()))");
    let status = run.registers().read32(GSTS) & (GCMD_TE | GCMD_QIE);
    run.see("translation and queue", status, 0);
    let lost = run.host().frames_in_use() - frames_before;
    run.see("frames lost", lost, 0);
}

/// How long a bring-up takes with one device behind the unit: QEMU lays out the address space of
/// each device anew when translation is switched.
pub fn alone() -> Case {
    Case::new("bring-up with one device", |run| {
        for _ in 0..20 {
            let frames = run.host().frames_in_use();
            let Some(driver) = brought_up(run) else {
                return;
            };
            run.reach("blocked", NIC, PAGE, AccessKind::Write, Reach::Blocked);
            let _ = run.take_fault();
            shut_down(run, driver, frames);
        }
    })
}

fn bring_up(width: AddressWidth, n: u32) -> Case {
    let name = format!("{} bits, bring-up and shut-down, {n}", width.bits());
    Case::new(name, move |run| {
        let frames = run.host().frames_in_use();
        let Some(driver) = brought_up(run) else {
            return;
        };
        let status = run.registers().read32(GSTS);
        let all = GCMD_TE | GCMD_SRTP | GCMD_QIE;
        run.see("status", format!("{status:#x}"), format!("{all:#x}"));
        for source in DEVICES {
            run.reach("blocked", source, PAGE, AccessKind::Write, Reach::Blocked);
            let (reason, page, kind) = (1, PAGE, AccessKind::Write);
            run.fault(Expected {
                reason,
                source,
                page,
                kind,
            });
        }
        shut_down(run, driver, frames);
        run.reads("passed through", IovaPage(A.0), A);
    })
    .of_width(width)
}

fn attach(width: AddressWidth) -> Case {
    let name = format!("{} bits, domains attached in turn", width.bits());
    Case::new(name, move |run| match width {
        AddressWidth::Bits39 => attach_in_turn::<3>(run),
        _ => attach_in_turn::<4>(run),
    })
}

fn attach_in_turn<const L: u32>(run: &mut Run<'_>) {
    let frames = run.host().frames_in_use();
    let Some(driver) = brought_up(run) else {
        return;
    };
    for source in [NIC, DISK] {
        // refused, as it should be, where the unit serves no device TLBs
        let _ = driver.declare_device_tlb(source, QueueDepth::ONE);
        // its ATS stays on: one whose ATS is off does not answer the invalidation of a detach
        let _ = run.soft().map(|soft| soft.switch_ats(source, Ats::On));
    }
    let (mine, theirs) = (plain::<L>(run, &driver), plain::<L>(run, &driver));
    let map = |domain: &TestDomain<L>, to| domain.map(PhysRange::page(to), Direction::ToDevice);
    let (Ok(ours), Ok(other)) = (map(&mine, A), map(&theirs, B)) else {
        return run.see("mapped", false, true);
    };
    let at = ours.iova().page();
    run.see(
        "both domains begin at the same page",
        at,
        other.iova().page(),
    );
    for round in 0..3 {
        run.blocked(format!("P8: round {round}, attached to nothing"), at);
        for (domain, to) in [(&mine, A), (&theirs, B)] {
            let attached = domain.attach(NIC).is_ok();
            run.see("attached", attached, true);
            run.reads("P14: its own page", at, to);
            run.reach(
                "P6: not writable",
                NIC,
                at,
                AccessKind::Write,
                Reach::Blocked,
            );
            let detached = domain.detach(NIC).is_ok();
            run.see("detached", detached, true);
            run.blocked("P1: detached", at);
        }
    }
    let both = (mine.attach(NIC).is_ok(), theirs.attach(DISK).is_ok());
    run.see("one each", format!("{both:?}"), "(true, true)");
    run.reads("P14: mine", at, A);
    let unmapped = mine.unmap(ours).is_ok();
    run.see("unmapped", unmapped, true);
    run.blocked("P1: mine", at);
    // the last page of its table is gone, and the table with it
    let again = mine.map(PhysRange::page(C), Direction::ToDevice);
    let at = again.as_ref().map_or(at, |mapping| mapping.iova().page());
    run.reads("P14: mapped again", at, C);
    run.reach("P8: theirs", DISK, at, AccessKind::Read, Reach::Page(B));
    let kept = whole_table(run, &mine);
    drop(other);
    let closed = mine.close().is_ok() && theirs.close().is_ok();
    run.see("closed", closed, true);
    run.reach(
        "P1: theirs, closed",
        DISK,
        at,
        AccessKind::Read,
        Reach::Blocked,
    );
    shut_down(run, driver, frames + kept);
}

/// A mapping that fills a table of its own: unmapped, the table goes, and the unit must not walk by
/// it again. Returns how many frames it keeps.
fn whole_table<const L: u32>(run: &mut Run<'_>, domain: &TestDomain<L>) -> usize {
    for (first, inside) in [(A, A_INSIDE), (PhysPage(B.0 - 1), B)] {
        let buffer = PhysRange::new(first.addr(), ByteCount(2 << 20));
        let Ok(mapping) = domain.map(buffer, Direction::ToDevice) else {
            run.see("2 MiB mapped", false, true);
            return 0;
        };
        let page = IovaPage(mapping.iova().page().0 + (inside.0 - first.0));
        run.reads("P14: inside", page, inside);
        let unmapped = domain.unmap(mapping).is_ok();
        run.see("2 MiB unmapped", unmapped, true);
        run.blocked("P1: inside", page);
        // or the same frame would be the next one's table
        run.frame();
    }
    2
}

/// Firmware translates for NIC; NIC reaches its memory at any moment of the take-over, and no
/// other device reaches anything.
fn live(width: AddressWidth) -> Case {
    Case::new(
        format!("{} bits, a live unit is taken over", width.bits()),
        move |run| {
            let theirs = begin(run);
            run.map(theirs, PAGE, A, Perm::ReadWrite);
            run.invalidate(&[CONTEXTS, iotlb(IotlbTarget::Global)]);
            run.reads("firmware's", PAGE, A);
            let Ok(unit) = Unit::prepare(run.host(), run.registers(), TAKE_OVER) else {
                return run.see("prepared", false, true);
            };
            run.reads("prepared", PAGE, A);
            let ours = run.tables();
            run.map(ours, PAGE, B, Perm::Read);
            let (host, id) = (run.host(), DomainId(7));
            let attached = unit.attach(BY, &host, NIC, id, ours.root, width.levels());
            run.see("attached", attached.is_ok(), true);
            run.reads("attached to ours, not active", PAGE, A);
            let active = unit.activate();
            run.see("active", active.is_ok(), true);
            run.reads("ours", PAGE, B);
            run.reach(
                "not writable now",
                NIC,
                PAGE,
                AccessKind::Write,
                Reach::Blocked,
            );
            run.reach(
                "another device",
                DISK,
                PAGE,
                AccessKind::Read,
                Reach::Blocked,
            );
            let detached = unit.detach(BY, &host, NIC, id);
            run.see("detached", detached.is_ok(), true);
            run.blocked("detached", PAGE);
            // SAFETY: its devices reach the memory of this case.
            let down = unsafe { unit.shut_down() }.is_ok();
            run.see("shut down", down, true);
        },
    )
}

fn refused() -> Case {
    Case::new("a live unit is refused", |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::Read);
        let unit = Unit::bring_up(run.host(), run.registers(), HOST);
        let refused = unit.map(drop).map_err(|error| error.to_string());
        let want = "Err(\"the unit is in use already (global status 0xc4000000)\")";
        run.see("refused", format!("{refused:?}"), want);
        run.reads("and goes on as it was", PAGE, A);
    })
}

fn told() -> Case {
    Case::new("a fault, told by the driver", |run| {
        let Some(driver) = brought_up(run) else {
            return;
        };
        run.reach("blocked", DISK, OTHER, AccessKind::Write, Reach::Blocked);
        let (faults, _) = driver.faults();
        let told: Vec<String> = faults.iter().map(|fault| fault.to_string()).collect();
        let want = "device 00:06.0 tried to write page 0x3456733000, and was blocked: no device on its bus is attached to a domain (reason 0x1)";
        run.see("told", told.join("; "), want);
        let again = driver.faults().0.len();
        run.see("once", again, 0);
    })
}

fn too_wide() -> Case {
    Case::new("five levels on a unit of four", |run| {
        let Some(driver) = brought_up(run) else {
            return;
        };
        let root = run.frame();
        let host = run.host();
        let error = driver.attach(BY, &host, NIC, DomainId(3), root, 5);
        let refused = error.map_err(|error| error.to_string());
        let want = "Err(\"the unit does not support 5-level tables\")";
        run.see("refused", format!("{refused:?}"), want);
        run.blocked("and blocked", PAGE);
    })
}
