// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Faults and their records (VT-d 4.1 §7.1 to §7.3): reason, address, source, type; overflow, FPD,
//! and what frees a record.

use super::*;

pub fn cases() -> Vec<Case> {
    let mut all = vec![
        overflow(),
        collapse(),
        freed(),
        pass_through(),
        bus(),
        widths(),
        upgrade(),
        interrupt_range(),
    ];
    for source in DEVICES {
        for kind in KINDS {
            all.push(of(source, kind));
        }
    }
    for kind in KINDS {
        for silent in [FaultRecording::On, FaultRecording::Off] {
            all.push(recording(kind, silent));
        }
    }
    all.extend((12..47).map(page_bit));
    all
}

fn absent(source: SourceId, page: IovaPage, kind: AccessKind) -> Expected {
    let reason = match kind {
        AccessKind::Read => 6,
        AccessKind::Write => 5,
    };
    Expected {
        reason,
        source,
        page,
        kind,
    }
}

/// Each device has a record of its own name, attached and not.
fn of(source: SourceId, kind: AccessKind) -> Case {
    Case::new(format!("a fault of {source}, {kind:?}"), move |run| {
        let tables = begin(run);
        run.set_context(source, Words { low: 0, high: 0 });
        run.reach("attached to nothing", source, PAGE, kind, Reach::Blocked);
        let page = PAGE;
        run.fault(Expected {
            reason: 2,
            source,
            page,
            kind,
        });
        run.attach(source, tables, DOMAIN);
        run.reach("nothing is mapped", source, PAGE, kind, Reach::Blocked);
        run.fault(absent(source, page, kind));
        run.no_fault();
    })
}

fn recording(kind: AccessKind, faults: FaultRecording) -> Case {
    Case::new(format!("recording {faults:?}, {kind:?}"), move |run| {
        let tables = begin(run);
        let entry = ContextEntry {
            faults,
            ..entry(tables, DOMAIN)
        };
        run.set_context(NIC, entry.encode());
        run.reach("nothing is mapped", NIC, PAGE, kind, Reach::Blocked);
        match faults {
            FaultRecording::On => run.fault(absent(NIC, PAGE, kind)),
            FaultRecording::Off => run.no_fault(),
        }
    })
}

fn page_bit(bit: u32) -> Case {
    Case::new(format!("a fault at a page with bit {bit}"), move |run| {
        begin(run);
        // far above memory, and in the interrupts' range never
        let page = IovaPage(1 << 35 | 1 << (bit - GRANULE_LG2));
        run.blocked("nothing is mapped", page);
        run.fault(absent(NIC, page, AccessKind::Read));
    })
}

/// One record: the fault of another device is lost, and told so, until software says
/// that it was seen.
fn overflow() -> Case {
    Case::new("a fault more than there are records", |run| {
        let tables = begin(run);
        run.attach(DISK, tables, DOMAIN);
        run.blocked("one", PAGE);
        run.reach("another", DISK, OTHER, AccessKind::Write, Reach::Blocked);
        let first = absent(NIC, PAGE, AccessKind::Read);
        run.fault_text(format!("{first}, more lost"));
        run.no_fault();
        run.reach(
            "another again",
            DISK,
            OTHER,
            AccessKind::Write,
            Reach::Blocked,
        );
        run.fault(absent(DISK, OTHER, AccessKind::Write));
    })
}

/// §7.3.1 lets hardware: faults of a device whose record is pending are not recorded again.
fn collapse() -> Case {
    Case::new("faults of one device while one is pending", |run| {
        begin(run);
        run.blocked("one", PAGE);
        run.blocked("two", OTHER);
        run.fault(absent(NIC, PAGE, AccessKind::Read));
        run.no_fault();
    })
}

/// F is cleared by writing 1 and by nothing else.
fn freed() -> Case {
    Case::new("a record is freed by writing 1", |run| {
        begin(run);
        run.blocked("one", PAGE);
        let r = run.registers();
        r.write64(Reg64(0x228), 0);
        r.write32(FSTS, FSTS_PPF);
        let pending = r.read32(FSTS) & FSTS_PPF;
        run.see("still pending", pending, FSTS_PPF);
        run.fault(absent(NIC, PAGE, AccessKind::Read));
        let pending = r.read32(FSTS) & FSTS_PPF;
        run.see("freed", pending, 0);
    })
}

/// TT = 10b, and that it is cached.
fn pass_through() -> Case {
    Case::new("pass-through", |run| {
        let tables = begin(run);
        let low = IovaPage(A.0);
        let translation = TranslationType::PassThrough;
        let through = ContextEntry {
            translation,
            ..entry(tables, DOMAIN)
        };
        run.set_context(NIC, through.encode());
        for kind in KINDS {
            run.reach("as it is", NIC, low, kind, Reach::Page(A));
        }
        run.attach(NIC, tables, DOMAIN);
        run.map(tables, low, B, Perm::ReadWrite);
        run.reads("changed, not flushed", low, A);
        run.invalidate(&[context_of(NIC, DOMAIN), whole(DOMAIN)]);
        run.reads("flushed", low, B);
    })
}

fn bus() -> Case {
    Case::new("a bus without a context table", |run| {
        let tables = begin(run);
        run.set_root_entry(0, Words { low: 0, high: 0 });
        run.blocked("no root entry", PAGE);
        let (reason, source, page, kind) = (1, NIC, PAGE, AccessKind::Read);
        run.fault(Expected {
            reason,
            source,
            page,
            kind,
        });
        let contexts = run.contexts(0);
        run.set_root_entry(0, RootEntry { contexts }.encode());
        run.map(tables, PAGE, A, Perm::Read);
        run.reads("there it is", PAGE, A);
    })
}

/// SAGAW: the software unit announces one width, QEMU two.
fn widths() -> Case {
    let case = Case::new("tables of 39 bits on a unit of 48", |run| {
        run.start();
        let tables = run.tables_of(AddressWidth::Bits39);
        run.attach(NIC, tables, DOMAIN);
        run.map(tables, PAGE, A, Perm::Read);
        let r = run.registers();
        let unit = Capabilities::new(r.read64(CAP), r.read64(ECAP));
        let offered = unit.supports_width(AddressWidth::Bits39);
        run.see("the unit offers that", offered, true);
        let got = run.access(NIC, PAGE, AccessKind::Read);
        run.see("the access", got, Reach::Page(A));
        let beyond = IovaPage(1 << 27);
        run.blocked("beyond 39 bits", beyond);
    });
    let differs = |what, got| Differs {
        which: Which::Software,
        what,
        got,
        clause: "11.4.2 (SAGAW), 9.3 (AW)",
        why: "hardware may support one width; the software unit announces the width that it walks, and no other",
    };
    case.differs(differs("the unit offers that", "false"))
        .differs(differs("the access", "blocked"))
}

/// More rights in memory than in the cache: software that widens rights need not flush
/// where absent entries are not cached, but a cached entry with fewer rights may fault
/// until it is flushed (§6.1, §6.2.5).
fn upgrade() -> Case {
    Case::new("a right is added to a cached page", |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::Read);
        run.reads("read only", PAGE, A);
        run.map(tables, PAGE, A, Perm::ReadWrite);
        run.invalidate(&[pages(DOMAIN, PAGE, 0)]);
        run.reach("flushed", NIC, PAGE, AccessKind::Write, Reach::Page(A));
        run.no_fault();
    })
}

fn interrupt_range() -> Case {
    Case::new("a page that leads to the interrupts", |run| {
        let tables = begin(run);
        run.map(tables, PAGE, PhysPage(0xf_ee00), Perm::ReadWrite);
        run.blocked("the access", PAGE);
        let (reason, source, page, kind) = (0xe, NIC, PAGE, AccessKind::Read);
        run.fault(Expected { reason, source, page, kind });
    })
    .differs(Differs {
        which: Which::Software,
        what: "the fault recorded",
        got: "none",
        clause: "3.14, 7.1.3 (reason Eh)",
        why: "the software unit does not model the interrupts' range; there is no memory, so nothing moves",
    })
}
