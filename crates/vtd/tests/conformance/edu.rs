// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A transfer that is under way while its mapping is taken away: QEMU's `edu` device, which moves
//! data a tenth of a second of the machine's time after it was told to. The machine's clock stands,
//! so there is all the time in the world to revoke; then it runs.
//!
//! Avoided by name: a transfer of the whole buffer of 4096 bytes, on which QEMU 7.2 aborts; the
//! interrupts' range as a target while the CPU runs.

use crate::{
    bench::*,
    bench_qemu::QemuBench,
    cases::{driver::*, *},
    qemu::{Gone, Qemu},
};
use libtest_mimic::Failed;
use std::{sync::Arc, thread, time::Duration};

const EDU: SourceId = SourceId(0x20);
const ARGUMENT: &str = "edu,addr=04.0,dma_mask=0xffffffffffffffff";
const REGISTERS: u64 = 0xfd00_0000;
/// Where its buffer is, in its own addresses. It holds zeros.
const BUFFER: u64 = 0x4_0000;
const BYTES: u64 = 8;
/// Looks, a millisecond apart, before the device counts as stuck.
const LOOKS: usize = 60_000;

/// What happens between the command and the transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    Nothing,
    Unmapped,
    Detached,
}

fn begin_transfer(qemu: &Qemu, to: Iova) -> Result<(), Gone> {
    qemu.write64(REGISTERS + 0x80, BUFFER)?;
    qemu.write64(REGISTERS + 0x88, to.0)?;
    qemu.write64(REGISTERS + 0x90, BYTES)?;
    // start, to memory
    qemu.write64(REGISTERS + 0x98, 3)
}

/// Lets the machine's time pass until the transfer is over.
fn end_transfer(qemu: &Qemu) -> Result<bool, Gone> {
    qemu.monitor("cont")?;
    let mut over = false;
    for _ in 0..LOOKS {
        over = qemu.read64(REGISTERS + 0x98)? & 1 == 0;
        if over {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    qemu.monitor("stop")?;
    Ok(over)
}

fn case(qemu: Arc<Qemu>, meanwhile: Meanwhile) -> Case {
    Case::new(
        format!("a transfer under way; meanwhile {meanwhile:?}"),
        move |run| {
            let frames = run.host().frames_in_use();
            let Some(driver) = brought_up(run) else {
                return;
            };
            let domain = plain::<4>(run, &driver);
            let attached = domain.attach(EDU).is_ok();
            run.see("attached", attached, true);
            let Ok(mapping) = domain.map(PhysRange::page(A), Direction::FromDevice) else {
                return run.see("mapped", false, true);
            };
            let page = mapping.iova().page();
            let at = Iova(page.addr().0 + 0x128);
            let begun = begin_transfer(&qemu, at).is_ok();
            run.see("begun", begun, true);
            let word = 0x128 / 8;
            let untouched = run.load(A, word) == fill(A, word);
            run.see("nothing has moved yet", untouched, true);
            let (revoked, reason) = match meanwhile {
                Meanwhile::Nothing => (true, None),
                Meanwhile::Unmapped => (domain.unmap(mapping).is_ok(), Some(5)),
                Meanwhile::Detached => (domain.detach(EDU).is_ok(), Some(2)),
            };
            run.see("revoked", revoked, true);
            let over = end_transfer(&qemu).map_err(|gone| gone.to_string());
            run.see("over", format!("{over:?}"), "Ok(true)");
            let moved = run.load(A, word) != fill(A, word);
            run.see("P1: data moved", moved, meanwhile == Meanwhile::Nothing);
            match reason {
                Some(reason) => {
                    let (source, kind) = (EDU, AccessKind::Write);
                    run.fault(Expected {
                        reason,
                        source,
                        page,
                        kind,
                    });
                }
                None => run.no_fault(),
            }
            refill(&run.host());
            let closed = domain.close().is_ok();
            run.see("closed", closed, true);
            shut_down(run, driver, frames);
        },
    )
}

/// All of them, on one machine.
pub fn under_way() -> Result<(), Failed> {
    let mut bench = QemuBench::start_with(AddressWidth::Bits48, &[NIC], &[ARGUMENT])?;
    let qemu = bench.qemu();
    qemu.configure(EDU, 0x10, REGISTERS as u32)?;
    qemu.configure(EDU, 0x04, 6)?;
    let mut wrong = Vec::new();
    for meanwhile in [
        Meanwhile::Nothing,
        Meanwhile::Unmapped,
        Meanwhile::Detached,
        Meanwhile::Nothing,
    ] {
        let case = case(qemu.clone(), meanwhile);
        let seen = case.run(&mut bench, None);
        wrong.extend(case.wrong(Which::Qemu, &seen));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}
