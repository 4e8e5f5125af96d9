// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Several unmaps by one call: what that puts into the queue, by its tail, and that all of them are
//! blocked then.

use super::{driver::*, *};

pub fn cases() -> Vec<Case> {
    WIDTHS.into_iter().map(chunk).collect()
}

fn chunk(width: AddressWidth) -> Case {
    let name = format!(
        "{} bits, batches of 1 to 64 pages of one chunk",
        width.bits()
    );
    Case::new(name, move |run| match width {
        AddressWidth::Bits39 => batches::<3>(run),
        _ => batches::<4>(run),
    })
    .of_width(width)
}

fn batches<const L: u32>(run: &mut Run<'_>) {
    let frames = run.host().frames_in_use();
    let Some(driver) = brought_up(run) else {
        return;
    };
    let domain = plain::<L>(run, &driver);
    let attached = domain.attach(NIC).is_ok();
    run.see("attached", attached, true);
    for size in 1..=64 {
        let Ok(mut chunk) = domain.chunk(PageCount(64)) else {
            run.see(format!("{size}: a chunk"), false, true);
            return;
        };
        // as they lie in a chunk that others have begun to use
        let skipped = (64 - size) / 2;
        let all = (0..skipped + size).map_while(|_| {
            let piece = chunk.map(PhysRange::page(A), Direction::ToDevice);
            piece.ok()
        });
        let mut all: Vec<_> = all.collect();
        run.see(format!("{size}: mapped"), all.len(), skipped + size);
        let first = IovaPage(chunk.range().first.0 + skipped as u64);
        let ends = [first, IovaPage(first.0 + size as u64 - 1)];
        let others = all.drain(..skipped.min(all.len()));
        let unmapped = domain.unmap_batch(&mut others.into_iter());
        run.see(format!("{size}: others"), unmapped.is_ok(), true);
        for page in ends {
            let label = format!("{size}: P14: mapped");
            run.reach(label, NIC, page, AccessKind::Read, Reach::Page(A));
        }
        let tail = |run: &Run<'_>| run.registers().read64(IQT) >> IQ_INDEX_SHIFT;
        let before = tail(run);
        let unmapped = domain.unmap_batch(&mut all.into_iter());
        let put = (tail(run) + 256 - before) % 256;
        run.see(format!("{size}: unmapped"), unmapped.is_ok(), true);
        run.see(format!("{size}: descriptors"), put, 2);
        for page in ends {
            let label = format!("{size}: P1: unmapped");
            run.reach(label, NIC, page, AccessKind::Read, Reach::Blocked);
        }
    }
    let closed = domain.close().map_err(|error| error.to_string());
    run.see("closed", format!("{closed:?}"), "Ok(())");
    shut_down(run, driver, frames);
}
