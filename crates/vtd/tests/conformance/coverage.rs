// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every register bit, descriptor field and entry field that the driver writes, and how many cases
//! fail without it.
//!
//! An item is dropped on its way (see [`crate::item`]) and the cases are run again: all of a
//! selection on the software unit, and those of them that failed there, up to a few, on QEMU. An
//! item that no case sees fails the test, unless it cannot be seen.

use crate::{
    bench::*,
    bench_qemu::QemuBench,
    bench_soft::SoftBench,
    case::Case,
    cases,
    item::{Class::*, Item, Place::*, Spoil},
};
use ioatlas_vtd::layout::AddressWidth;
use libtest_mimic::Failed;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// Of the largest families every so many cases are taken: each of them sees what the encoders do.
const ONE_IN: usize = 23;
const ONE_WALK_IN: usize = 5;
/// Cases tried on QEMU for one item.
const TRIES: usize = 6;

/// What cannot be seen, and why.
const UNSEEN: &[(&str, &str)] = &[
    (
        "wait FN",
        "both units take descriptors one after the other, fence or not (6.5.2.8)",
    ),
    (
        "interrupt invalidate G, IM, IIDX",
        "neither unit caches interrupt-remapping entries (6.5.2.7)",
    ),
    (
        "device TLB invalidate MIP",
        "the software unit's devices take any number of invalidations at once (6.5.2.5)",
    ),
];

const fn dropped(name: &'static str, place: crate::item::Place) -> Item {
    let spoil = Spoil::Dropped;
    Item { name, place, spoil }
}
const fn set(name: &'static str, place: crate::item::Place) -> Item {
    let spoil = Spoil::Set;
    Item { name, place, spoil }
}
const fn flipped(name: &'static str, place: crate::item::Place) -> Item {
    let spoil = Spoil::Flipped;
    Item { name, place, spoil }
}

const PAGE_BITS: u64 = !0xfff;

static ITEMS: &[Item] = &[
    dropped("GCMD TE", Register(0x18, 1 << 31)),
    dropped("GCMD SRTP", Register(0x18, 1 << 30)),
    dropped("GCMD WBF", Register(0x18, 1 << 27)),
    dropped("GCMD QIE", Register(0x18, 1 << 26)),
    dropped("RTADDR RTA", Register(0x20, PAGE_BITS)),
    set("RTADDR TTM set", Register(0x20, 3 << 10)),
    dropped("CCMD ICC", Register(0x28, 1 << 63)),
    dropped("CCMD CIRG", Register(0x28, 3 << 61)),
    flipped("CCMD CIRG, device for all", Register(0x28, 1 << 62)),
    dropped("CCMD FM", Register(0x28, 3 << 32)),
    dropped("CCMD SID", Register(0x28, 0xffff << 16)),
    dropped("FSTS PFO", Register(0x34, 1 << 0)),
    dropped("FSTS IQE", Register(0x34, 1 << 4)),
    dropped("FSTS ICE", Register(0x34, 1 << 5)),
    dropped("FSTS ITE", Register(0x34, 1 << 6)),
    dropped("FRCD F", Register(0x228, 1 << 63)),
    dropped("IQT QT", Register(0x88, 0x7_fff0)),
    dropped("IQA IQA", Register(0x90, PAGE_BITS)),
    set("IQA QS set", Register(0x90, 7)),
    set("IQA DW set", Register(0x90, 1 << 11)),
    dropped("IVA ADDR", Register(0xf0, PAGE_BITS)),
    dropped("IVA IH", Register(0xf0, 1 << 6)),
    set("IVA IH set", Register(0xf0, 1 << 6)),
    dropped("IVA AM", Register(0xf0, 0x3f)),
    dropped("IOTLB IVT", Register(0xf8, 1 << 63)),
    dropped("IOTLB IIRG", Register(0xf8, 3 << 60)),
    dropped("IOTLB DR", Register(0xf8, 1 << 49)),
    dropped("IOTLB DW", Register(0xf8, 1 << 48)),
    dropped("IOTLB DID", Register(0xf8, 0xffff << 32)),
    dropped("root P", Memory(Root, 1, 0)),
    dropped("root CTP", Memory(Root, PAGE_BITS, 0)),
    set("root reserved set", Memory(Root, 1 << 1, 0)),
    dropped("context P", Memory(Context, 1, 0)),
    dropped("context FPD", Memory(Context, 1 << 1, 0)),
    set("context FPD set", Memory(Context, 1 << 1, 0)),
    dropped("context TT", Memory(Context, 3 << 2, 0)),
    dropped("context SSPTPTR", Memory(Context, PAGE_BITS, 0)),
    dropped("context AW", Memory(Context, 0, 7)),
    dropped("context DID", Memory(Context, 0, 0xff_ff00)),
    dropped("table R", Memory(Table, 1, 0)),
    dropped("table W", Memory(Table, 2, 0)),
    dropped("table address", Memory(Table, PAGE_BITS, 0)),
    dropped("leaf R", Memory(Leaf, 1, 0)),
    set("leaf R set", Memory(Leaf, 1, 0)),
    dropped("leaf W", Memory(Leaf, 2, 0)),
    set("leaf W set", Memory(Leaf, 2, 0)),
    dropped("leaf address", Memory(Leaf, PAGE_BITS & ((1 << 52) - 1), 0)),
    dropped("large leaf R", Memory(LargeLeaf, 1, 0)),
    dropped("large leaf W", Memory(LargeLeaf, 2, 0)),
    dropped("large leaf PS", Memory(LargeLeaf, 1 << 7, 0)),
    dropped("large leaf address", Memory(LargeLeaf, PAGE_BITS, 0)),
    dropped("context invalidate type", Memory(ContextInvalidate, 0xf, 0)),
    dropped("context invalidate G", Memory(ContextInvalidate, 3 << 4, 0)),
    dropped(
        "context invalidate DID",
        Memory(ContextInvalidate, 0xffff << 16, 0),
    ),
    dropped(
        "context invalidate SID",
        Memory(ContextInvalidate, 0xffff << 32, 0),
    ),
    dropped(
        "context invalidate FM",
        Memory(ContextInvalidate, 3 << 48, 0),
    ),
    dropped("IOTLB invalidate type", Memory(IotlbInvalidate, 0xf, 0)),
    dropped("IOTLB invalidate G", Memory(IotlbInvalidate, 3 << 4, 0)),
    dropped("IOTLB invalidate DW", Memory(IotlbInvalidate, 1 << 6, 0)),
    dropped("IOTLB invalidate DR", Memory(IotlbInvalidate, 1 << 7, 0)),
    dropped(
        "IOTLB invalidate DID",
        Memory(IotlbInvalidate, 0xffff << 16, 0),
    ),
    dropped("IOTLB invalidate AM", Memory(IotlbInvalidate, 0, 0x3f)),
    dropped("IOTLB invalidate IH", Memory(IotlbInvalidate, 0, 1 << 6)),
    set(
        "IOTLB invalidate IH set",
        Memory(IotlbInvalidate, 0, 1 << 6),
    ),
    dropped(
        "IOTLB invalidate ADDR",
        Memory(IotlbInvalidate, 0, PAGE_BITS),
    ),
    dropped("wait type", Memory(Wait, 0xf, 0)),
    dropped("wait SW", Memory(Wait, 1 << 5, 0)),
    dropped("wait FN", Memory(Wait, 1 << 6, 0)),
    dropped("wait status data", Memory(Wait, 0xffff_ffff << 32, 0)),
    dropped("wait status address", Memory(Wait, 0, !3)),
    dropped(
        "interrupt invalidate type",
        Memory(InterruptInvalidate, 0xf, 0),
    ),
    dropped(
        "interrupt invalidate G, IM, IIDX",
        Memory(InterruptInvalidate, !0xf, 0),
    ),
    dropped(
        "device TLB invalidate MIP",
        Memory(DeviceTlbInvalidate, 0x1f << 16, 0),
    ),
    dropped(
        "device TLB invalidate type",
        Memory(DeviceTlbInvalidate, 0xf, 0),
    ),
    dropped(
        "device TLB invalidate SID",
        Memory(DeviceTlbInvalidate, 0xffff << 32, 0),
    ),
    dropped("device TLB invalidate S", Memory(DeviceTlbInvalidate, 0, 1)),
    dropped(
        "device TLB invalidate address",
        Memory(DeviceTlbInvalidate, 0, PAGE_BITS),
    ),
];

/// One row of the table.
struct Row {
    item: &'static Item,
    software: usize,
    qemu: usize,
    tried: usize,
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// The cases that are run for each item.
fn selection() -> Vec<Case> {
    let mut all = Vec::new();
    for (family, cases) in cases::FAMILIES {
        let step = match *family {
            "walks" => ONE_WALK_IN,
            "every bit of every entry" | "every design" | "sequences" => ONE_IN,
            _ => 1,
        };
        all.extend(cases().into_iter().step_by(step));
    }
    all
}

/// Whether the case notices. A driver that is led astray by what is spoilt may well stop at an
/// assertion.
fn notices(case: &Case, bench: &mut dyn Bench, item: &'static Item) -> bool {
    let which = bench.which();
    let run = AssertUnwindSafe(|| case.run(bench, Some(item)));
    catch_unwind(run).map_or(true, |seen| !case.wrong(which, &seen).is_empty())
}

/// Every item, on both units.
pub fn every_item() -> Result<(), Failed> {
    let cases = selection();
    let width = AddressWidth::Bits48;
    let mut narrow = SoftBench::new(AddressWidth::Bits39, |_| {});
    let mut wide = SoftBench::new(width, |_| {});
    let mut special: Vec<Option<SoftBench>> = cases
        .iter()
        .map(|case| case.made.map(|made| SoftBench::new(case.width, made)))
        .collect();
    let mut qemu = QemuBench::start(width)?;
    let mut wrong = Vec::new();
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for item in ITEMS {
        let mut noticed = Vec::new();
        for (case, special) in cases.iter().zip(&mut special) {
            let bench = match (special, case.width) {
                (Some(bench), _) => bench,
                (None, AddressWidth::Bits39) => &mut narrow,
                (None, _) => &mut wide,
            };
            if case.is_for(Which::Software) && notices(case, bench, item) {
                noticed.push(case);
            }
        }
        let on_qemu: Vec<&&Case> = noticed
            .iter()
            .filter(|case| case.is_for(Which::Qemu) && case.width == width)
            .collect();
        // spread over the list, so that one family does not speak for all
        let step = on_qemu.len().div_ceil(TRIES).max(1);
        let tried: Vec<bool> = on_qemu
            .iter()
            .step_by(step)
            .map(|case| notices(case, &mut qemu, item))
            .collect();
        if qemu.trouble().is_some() {
            qemu = QemuBench::start(width)?;
        }
        let row = Row {
            item,
            software: noticed.len(),
            qemu: tried.iter().filter(|noticed| **noticed).count(),
            tried: tried.len(),
        };
        let excused = UNSEEN.iter().any(|(name, _)| *name == item.name);
        match (row.software + row.qemu > 0, excused) {
            (false, false) => wrong.push(format!("no case fails without {}", item.name)),
            (true, true) => wrong.push(format!("{} is seen, and excused", item.name)),
            _ => {}
        }
        rows().push(row);
    }
    std::panic::set_hook(quiet);
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

fn rows() -> std::sync::MutexGuard<'static, Vec<Row>> {
    ROWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The table.
pub fn report() {
    let rows = rows();
    if rows.is_empty() {
        return;
    }
    println!(
        "cases that fail without it{:>23}{:>16}",
        "software", "QEMU, of tried"
    );
    for row in rows.iter() {
        let (name, software, qemu, tried) = (row.item.name, row.software, row.qemu, row.tried);
        let excuse = UNSEEN
            .iter()
            .find(|(of, _)| *of == name && software + qemu == 0);
        let excuse = excuse.map_or("", |(_, why)| why);
        println!("  {name:36}{software:11}{qemu:9} of {tried:<3} {excuse}");
    }
}
