// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Invalidation by registers, in the words of [`ioatlas_vtd::direct`], and the commands (VT-d 4.1
//! §6.5.1, §11.4.4, §11.4.6).

use super::*;
use ioatlas_dma::invalidation::WaitLimit;
use ioatlas_vtd::direct::Direct;

const LIMIT: WaitLimit = WaitLimit(16);

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let wrong = [
        ("another page", pages(DOMAIN, OTHER, 0)),
        ("the page of another domain", pages(DOMAIN ^ 1, PAGE, 0)),
        ("another domain", whole(DOMAIN ^ 0x8000)),
        ("the device", context_of(NIC, DOMAIN)),
    ];
    let right = [
        ("the page", pages(DOMAIN, PAGE, 0)),
        ("16 pages", pages(DOMAIN, IovaPage(PAGE.0 & !15), 4)),
        ("the domain", whole(DOMAIN)),
        ("everything", iotlb(IotlbTarget::Global)),
    ];
    for width in WIDTHS {
        for (name, first) in wrong {
            for (last_name, last) in right {
                all.push(translation(width, name, first, last_name, last));
            }
        }
    }
    let devices = [
        ("all", CONTEXTS, NIC, true),
        ("the device", context_of(NIC, DOMAIN), NIC, true),
        ("another device", context_of(DISK, DOMAIN), NIC, false),
        (
            "another function",
            context_of(FUNCTION_2, DOMAIN),
            NIC,
            false,
        ),
        (
            "every function",
            functions(FunctionMask::All),
            FUNCTION_2,
            true,
        ),
        (
            "functions 0 and 4",
            functions(FunctionMask::Bit2),
            FUNCTION_2,
            false,
        ),
        (
            "functions 0 and 4",
            functions(FunctionMask::Bit2),
            FUNCTION_4,
            true,
        ),
    ];
    for (name, with, source, goes) in devices {
        all.push(context(name, with, source, goes));
    }
    all.push(not_beside_a_queue());
    all.push(root_pointer());
    all.push(root_latches());
    all.push(translation_off());
    all
}

fn functions(functions: FunctionMask) -> Invalidation {
    let (device, domain) = (NIC, DomainId(DOMAIN));
    Invalidation::Context(ContextInvalidate::Device {
        domain,
        device,
        functions,
    })
}

/// A unit that translates, without a queue.
pub(super) fn begin_without_queue(run: &mut Run<'_>) -> Tables {
    run.set_root();
    let on = run.command(GCMD_TE, true);
    run.see("translation is enabled", on, true);
    let tables = run.tables();
    run.attach(NIC, tables, DOMAIN);
    tables
}

pub(super) fn by_registers(run: &mut Run<'_>, all: &[Invalidation]) {
    let r = run.registers();
    let unit = Capabilities::new(r.read64(CAP), r.read64(ECAP));
    let (host, direct) = (run.host(), Direct::new(&unit));
    let ticket = direct.submit(&*host, &r, all.iter().copied(), LIMIT);
    let done = ticket.and_then(|ticket| {
        let mut looks = (0..LIMIT.0).map(|_| direct.done(&r, ticket));
        looks.find(|done| *done != Ok(false)).unwrap_or(Ok(false))
    });
    run.see("the invalidation is done", format!("{done:?}"), "Ok(true)");
}

fn translation(
    width: AddressWidth,
    name: &str,
    first: Invalidation,
    last_name: &str,
    last: Invalidation,
) -> Case {
    let name = format!(
        "{} bits, by registers: {name}, then {last_name}",
        width.bits()
    );
    Case::new(name, move |run| {
        let tables = begin_without_queue(run);
        run.map(tables, PAGE, A, Perm::Read);
        run.reads("mapped", PAGE, A);
        run.unmap(tables, PAGE);
        by_registers(run, &[first]);
        run.reads("stale", PAGE, A);
        by_registers(run, &[last]);
        run.blocked("flushed", PAGE);
    })
    .of_width(width)
}

fn context(name: &str, with: Invalidation, source: SourceId, goes: bool) -> Case {
    let name = format!("contexts by registers: {name}, of {source}");
    Case::new(name, move |run| {
        begin_without_queue(run);
        let (old, new) = (run.tables(), run.tables());
        run.map(old, PAGE, A, Perm::Read);
        run.map(new, PAGE, B, Perm::Read);
        run.attach(source, old, DOMAIN);
        run.reach("attached", source, PAGE, AccessKind::Read, Reach::Page(A));
        run.attach(source, new, DOMAIN);
        by_registers(run, &[with, whole(DOMAIN)]);
        let want = if goes { B } else { A };
        run.reach("flushed", source, PAGE, AccessKind::Read, Reach::Page(want));
    })
}

/// While the queue is on, the registers are not served (§6.5).
fn not_beside_a_queue() -> Case {
    Case::new("by registers while the queue is on", |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::Read);
        run.reads("mapped", PAGE, A);
        run.unmap(tables, PAGE);
        let r = run.registers();
        r.write64(Reg64(0xf8), 1 << 63 | 1 << 60);
        let busy = r.read64(Reg64(0xf8)) >> 63;
        run.see("still asked for", busy, 1);
        run.reads("stale", PAGE, A);
    })
}

/// Another root table counts from SRTP on; what is cached is flushed by the driver that gives it,
/// on a unit without ESRTPS.
fn root_pointer() -> Case {
    Case::new("another root table", |run| {
        let old = begin(run);
        run.map(old, PAGE, A, Perm::Read);
        run.reads("the old table", PAGE, A);
        run.new_root();
        let new = run.tables();
        run.map(new, PAGE, B, Perm::Read);
        run.attach(NIC, new, DOMAIN);
        run.set_root();
        run.invalidate(&[CONTEXTS, iotlb(IotlbTarget::Global)]);
        run.reads("the new table", PAGE, B);
    })
}

fn root_latches() -> Case {
    Case::new("a root table address without the command", |run| {
        let old = begin(run);
        run.map(old, PAGE, A, Perm::Read);
        run.map(old, OTHER, B, Perm::Read);
        run.reads("the old table", PAGE, A);
        run.new_root();
        let root = run.frame();
        run.registers().write64(RTADDR, root.addr().0);
        run.invalidate(&[CONTEXTS, iotlb(IotlbTarget::Global)]);
        run.reads("nothing has changed", OTHER, B);
    })
}

/// Without translation a device reaches memory as it is.
fn translation_off() -> Case {
    Case::new("translation off and on", |run| {
        let tables = begin(run);
        let low = IovaPage(A.0);
        run.blocked("on", low);
        let _ = run.take_fault();
        let off = run.command(GCMD_TE, false);
        run.see("off", off, true);
        run.reads("off", low, A);
        run.reach("off", NIC, low, AccessKind::Write, Reach::Page(A));
        let on = run.command(GCMD_TE, true);
        run.see("on again", on, true);
        run.blocked("on again", low);
        run.map(tables, low, B, Perm::ReadWrite);
        run.invalidate(&[whole(DOMAIN)]);
        run.reads("mapped", low, B);
    })
}
