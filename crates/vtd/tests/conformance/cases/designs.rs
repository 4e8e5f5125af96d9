// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every allocator with every policy, on the driver: what is mapped is reached, and what is
//! unmapped is reached no longer than the policy says.
//!
//! Both units keep what they have cached until it is flushed, and flush at once when asked. So what
//! a design leaves exposed is seen in full: under `strict`, `freebsd` and, since the flush is
//! started in unmap, `macos` nothing; under the others the page until the flush.

use super::{driver::*, *};
use ioatlas_dma::{
    design::{self, Design},
    domain::PolicyConfig,
    iova::AllocatorConfig,
};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for design in design::all() {
        for width in WIDTHS {
            for (pages, kind) in [(1, AccessKind::Read), (3, AccessKind::Write)] {
                all.push(case(design, width, pages, kind));
            }
        }
    }
    all
}

/// Whether a page that the device has used can still be reached when unmap has returned.
pub fn exposes(design: &Design) -> bool {
    let shared = matches!(design.domain.allocator, AllocatorConfig::Identity(_));
    match design.domain.policy {
        PolicyConfig::Strict | PolicyConfig::FreeBsd | PolicyConfig::MacOs(_) => false,
        PolicyConfig::DeferredPerCpu(_) | PolicyConfig::DeferredGlobal(_) => true,
        // a shared range belongs to no one mapping that could keep it until it is mapped again
        PolicyConfig::Solaris => !shared,
        new => panic!("{new:?} is new here"),
    }
}

fn case(design: Design, width: AddressWidth, pages: u64, kind: AccessKind) -> Case {
    let name = format!("{} bits, {design}: {pages} pages, {kind:?}", width.bits());
    Case::new(name, move |run| match width {
        AddressWidth::Bits39 => life::<3>(run, design, pages, kind),
        _ => life::<4>(run, design, pages, kind),
    })
    .of_width(width)
}

fn life<const L: u32>(run: &mut Run<'_>, design: Design, pages: u64, kind: AccessKind) {
    let frames = run.host().frames_in_use();
    let Some(driver) = brought_up(run) else {
        return;
    };
    let domain = domain::<L>(run, &driver, design.domain);
    let attached = domain.attach(NIC).is_ok();
    run.see("attached", attached, true);
    let direction = match kind {
        AccessKind::Read => Direction::ToDevice,
        AccessKind::Write => Direction::FromDevice,
    };
    for (round, first) in [A, B, A].into_iter().enumerate() {
        // the target is the last page of the buffer
        let start = PhysPage(first.0 + 1 - pages).addr();
        let buffer = PhysRange::new(start, ByteCount(pages << GRANULE_LG2));
        let mapped = domain.map(buffer, direction);
        let Ok(mapping) = mapped else {
            let why = mapped.map(drop).map_err(|error| error.to_string());
            return run.see("mapped", format!("{why:?}"), "Ok");
        };
        let page = IovaPage(mapping.range().end().0 - 1);
        let label = |what| format!("round {round}: {what}");
        run.reach(label("P14: mapped"), NIC, page, kind, Reach::Page(first));
        let unmapped = domain.unmap(mapping).is_ok();
        run.see(label("unmapped"), unmapped, true);
        let want = match exposes(&design) {
            true => Reach::Page(first),
            false => Reach::Blocked,
        };
        run.reach(label("P1 or P2: after unmap"), NIC, page, kind, want);
        let flushed = domain.flush().is_ok();
        run.see(label("flushed"), flushed, true);
        run.reach(
            label("P1: after the flush"),
            NIC,
            page,
            kind,
            Reach::Blocked,
        );
    }
    let closed = domain.close().map_err(|error| error.to_string());
    run.see("closed", format!("{closed:?}"), "Ok(())");
    shut_down(run, driver, frames);
}
