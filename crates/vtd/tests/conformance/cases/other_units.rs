// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What QEMU's unit does not have or cannot show, on software units that can: walk caches, accesses
//! in flight, write buffers, device TLBs, interrupt remapping.

use super::*;
use ioatlas_viommu::{
    config::*, device as ats, observe::Outcome, queue::DeviceTlbError, unit::Injection,
};

pub fn cases() -> Vec<Case> {
    let hints = [LeafHint::Anything, LeafHint::LeavesOnly];
    let mut all: Vec<Case> = hints.into_iter().flat_map(hint).collect();
    for kind in KINDS {
        for queued in [true, false] {
            all.push(drained(kind, queued));
        }
    }
    all.extend([
        write_buffers(),
        interrupts(),
        device_tlb(),
        silent_device(),
        bad_completion(),
        lost_entries(),
    ]);
    all
}

fn walk_caches(config: &mut UnitConfig) {
    config.caches.walk = vec![8; 3];
}

/// IH: of leaves alone, or of the tables above, too.
fn hint(hint: LeafHint) -> Vec<Case> {
    let target = move || {
        let (domain, first) = (DomainId(DOMAIN), PAGE);
        let mask = AddressMask::new(0).expect("one page");
        IotlbTarget::Pages {
            domain,
            first,
            mask,
            hint,
        }
    };
    let body = move |run: &mut Run<'_>, by_queue: bool| {
        let tables = match by_queue {
            true => begin(run),
            false => registers::begin_without_queue(run),
        };
        run.map(tables, PAGE, A, Perm::Read);
        run.reads("mapped", PAGE, A);
        // another table of leaves
        let (at, index) = run.slot(tables, PAGE, 2);
        run.store(at, index, 0);
        run.map(tables, PAGE, B, Perm::Read);
        match by_queue {
            true => run.invalidate(&[iotlb(target())]),
            false => registers::by_registers(run, &[iotlb(target())]),
        }
        let want = match hint {
            LeafHint::Anything => B,
            LeafHint::LeavesOnly => A,
        };
        run.reads("flushed", PAGE, want);
    };
    [(true, "the queue"), (false, "registers")]
        .into_iter()
        .map(|(by_queue, name)| {
            let name = format!("walk caches, flushed by {name}: {hint:?}");
            let why = "QEMU's unit has no walk caches";
            Case::new(name, move |run| body(run, by_queue)).made(
                walk_caches,
                "6.2.4, 6.5.2.3 (IH)",
                why,
            )
        })
        .collect()
}

/// DR and DW: done means that what was in flight has ended.
fn drained(kind: AccessKind, queued: bool) -> Case {
    let by = if queued { "the queue" } else { "registers" };
    Case::new(
        format!("an access in flight, {kind:?}, by {by}"),
        move |run| {
            let tables = match queued {
                true => begin(run),
                false => registers::begin_without_queue(run),
            };
            run.map(tables, PAGE, A, Perm::ReadWrite);
            let Some(soft) = run.soft() else { return };
            let mut flight = soft.begin(NIC, PAGE, kind);
            // root, context, and half of the walk
            for _ in 0..4 {
                flight.step();
            }
            run.unmap(tables, PAGE);
            let done = match queued {
                true => run.submit(&[whole(DOMAIN).encode()]),
                false => {
                    let r = run.registers();
                    let both = IOTLB_DRAIN_READS | IOTLB_DRAIN_WRITES;
                    r.write64(
                        Reg64(0xf8),
                        IOTLB_IVT
                            | 2 << IOTLB_REQUEST_SHIFT
                            | both
                            | u64::from(DOMAIN) << IOTLB_DOMAIN_SHIFT,
                    );
                    r.read64(Reg64(0xf8)) & IOTLB_IVT == 0
                }
            };
            run.see("done while it is in flight", done, false);
            let ended = flight.finish();
            let through = matches!(ended.outcome, Outcome::Translated { .. });
            run.see("it got through", through, false);
            let done = match queued {
                true => run.arrived(),
                false => run.registers().read64(Reg64(0xf8)) & IOTLB_IVT == 0,
            };
            run.see("done", done, true);
            run.reach("after that", NIC, PAGE, kind, Reach::Blocked);
        },
    )
    .made(
        |_| {},
        "6.5.2.3, 11.4.6.2 (DR, DW)",
        "an access in QEMU is never in flight while the CPU's write is served",
    )
}

fn write_buffers() -> Case {
    Case::new("write buffers", |run| {
        let tables = begin(run);
        run.blocked("written, not flushed", PAGE);
        let _ = run.take_fault();
        run.map(tables, PAGE, A, Perm::Read);
        let flushed = run.flush_write_buffers();
        run.see("the flush is done", flushed, true);
        run.reads("flushed", PAGE, A);
    })
    .made(
        |c| c.features.write_buffers = WriteBuffers::FlushedByCommand,
        "6.8, 11.4.2 (RWBF)",
        "QEMU's unit has no write buffers",
    )
}

fn interrupts() -> Case {
    Case::new("interrupt entries", |run| {
        begin(run);
        let first = InterruptIndex(6);
        let all = [InterruptInvalidate::Global, InterruptInvalidate::covering(first, 2, 15)];
        for what in all {
            let done = run.submit(&[what.encode()]);
            run.see("done", done, true);
        }
        let Some(soft) = run.soft() else { return };
        let told = soft.stats().interrupt_invalidations;
        run.see("told", told, 2);
    })
    .made(
        |c| c.registers.interrupts = InterruptRemapping::Compatible,
        "6.5.2.7",
        "QEMU is run without interrupt remapping, and takes the descriptor all the same: see the queue's cases",
    )
}

fn with_ats(config: &mut UnitConfig) {
    config.features.device_tlbs = true;
    config.devices = [NIC, DISK]
        .map(|source| ats::AtsDevice {
            source,
            entries: 8,
            answer: match source {
                NIC => ats::Answer::WhenDrained,
                _ => ats::Answer::Never,
            },
            refetch: ats::Refetch::OnDemand,
        })
        .into();
}

/// Both of them answer.
pub fn with_answering_devices(config: &mut UnitConfig) {
    with_ats(config);
    for device in &mut config.devices {
        device.answer = ats::Answer::WhenDrained;
    }
}

/// And ask for what they have lost at once.
pub fn with_asking_devices(config: &mut UnitConfig) {
    with_answering_devices(config);
    for device in &mut config.devices {
        device.refetch = ats::Refetch::AtOnce;
    }
}

fn begin_ats(run: &mut Run<'_>, source: SourceId) -> Tables {
    run.start();
    let tables = run.tables();
    let translation = TranslationType::DeviceTlb;
    let allowed = ContextEntry {
        translation,
        ..entry(tables, DOMAIN)
    };
    run.set_context(source, allowed.encode());
    if let Some(soft) = run.soft() {
        let on = soft.switch_ats(source, ats::Ats::On).is_ok();
        run.see("ATS is on", on, true);
    }
    tables
}

fn of_device(device: SourceId, pages: DevicePages) -> Invalidation {
    let depth = QueueDepth::ONE;
    Invalidation::DeviceTlb(DeviceTlbInvalidate {
        device,
        depth,
        pages,
    })
}

const NO_ATS: &str = "no device of QEMU's keeps translations of its own";

fn device_tlb() -> Case {
    Case::new("a device's own TLB", |run| {
        let tables = begin_ats(run, NIC);
        let (none, one) = (AddressMask::new(0), AddressMask::new(1));
        let (none, one) = (none.expect("one page"), one.expect("two pages"));
        let block = |first, mask| of_device(NIC, DevicePages::Block { first, mask });
        let stale = |run: &mut Run<'_>| {
            run.map(tables, PAGE, A, Perm::Read);
            run.reads("mapped", PAGE, A);
            run.unmap(tables, PAGE);
            run.invalidate(&[whole(DOMAIN)]);
            run.reads("the IOTLB is flushed", PAGE, A);
        };
        stale(run);
        run.invalidate(&[block(OTHER, none)]);
        run.reads("another page is flushed", PAGE, A);
        run.invalidate(&[block(PAGE, none)]);
        run.blocked("the page is flushed", PAGE);
        stale(run);
        run.invalidate(&[block(IovaPage(PAGE.0 & !1), one)]);
        run.blocked("two pages are flushed", PAGE);
        stale(run);
        run.invalidate(&[of_device(NIC, DevicePages::All)]);
        run.blocked("all is flushed", PAGE);
    })
    .made(with_ats, "4, 6.5.2.5", NO_ATS)
}

/// ITE: it stops the queue until it is cleared.
fn silent_device() -> Case {
    Case::new("a device that does not answer", |run| {
        let tables = begin_ats(run, DISK);
        run.map(tables, PAGE, A, Perm::Read);
        let done = run.submit(&[of_device(DISK, DevicePages::All).encode()]);
        run.see("done", done, false);
        let r = run.registers();
        let error = r.read32(FSTS) & FSTS_QUEUE;
        run.see("the error", format!("{error:#x}"), format!("{FSTS_ITE:#x}"));
        let source = r.read64(IQERCD) >> IQERCD_TIMED_OUT_SHIFT & 0xffff;
        run.see("of", SourceId(source as u16), DISK);
        r.write32(FSTS, FSTS_ITE);
        let error = r.read32(FSTS) & FSTS_QUEUE;
        run.see("cleared", error, 0);
        let done = run.submit(&[whole(DOMAIN).encode()]);
        run.see("the queue goes on", done, true);
    })
    .made(with_ats, "6.5.2.10, 11.4.7.1 (ITE)", NO_ATS)
}

fn bad_completion() -> Case {
    Case::new("an answer to no question", |run| {
        begin(run);
        let Some(soft) = run.soft() else { return };
        soft.inject_device_tlb_error(DeviceTlbError::BadCompletion(DISK));
        let r = run.registers();
        let error = r.read32(FSTS) & FSTS_QUEUE;
        run.see("the error", format!("{error:#x}"), format!("{FSTS_ICE:#x}"));
        r.write32(FSTS, FSTS_ICE);
        let error = r.read32(FSTS) & FSTS_QUEUE;
        run.see("cleared", error, 0);
    })
    .made(|_| {}, "11.4.7.1 (ICE)", NO_ATS)
}

/// That the comparison would notice a unit which does not flush.
fn lost_entries() -> Case {
    Case::new("a unit that leaves an entry behind", |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::Read);
        run.reads("mapped", PAGE, A);
        run.unmap(tables, PAGE);
        let Some(soft) = run.soft() else { return };
        soft.inject(Injection::LeaveTranslations(1));
        run.invalidate(&[whole(DOMAIN)]);
        run.reads("left behind", PAGE, A);
        run.invalidate(&[whole(DOMAIN)]);
        run.blocked("flushed", PAGE);
    })
    .made(|_| {}, "6.5", "QEMU leaves nothing behind on request")
}
