// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Each bit of each entry, flipped: taken, refused as reserved, or ignored (VT-d 4.1 §9.1, §9.3,
//! §9.8).

use super::*;

/// Memory ends here; an address with such a bit leads nowhere.
const NO_MEMORY: u32 = 31;

const UNREADABLE_ROOT: Differs = Differs {
    which: Which::Qemu,
    what: "the fault recorded",
    got: "read of page 0x3456701 by 00:05.0, reason 0x3",
    clause: "7.1.3, 9.3",
    why: "a second-stage table that cannot be read is reason 7; QEMU blames the context entry where it is the first one",
};

const INTERRUPTS_INSIDE: Differs = Differs {
    which: Which::Qemu,
    what: "the fault recorded",
    got: "read of page 0x3450143 by 00:05.0, reason 0xe",
    clause: "3.14, 7.1.3",
    why: "an access that leads into the interrupts' range is blocked; QEMU blocks all of a leaf that has the range in it",
};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for width in WIDTHS {
        all.extend((0..64).map(|bit| leaf_bit(width, 1, bit)));
        all.extend((0..64).map(|bit| root_bit(width, bit)));
        all.extend((0..64).map(|bit| context_bit(width, bit)));
    }
    let width = AddressWidth::Bits48;
    for level in 2..=3 {
        all.extend((0..64).map(|bit| leaf_bit(width, level, bit)));
    }
    for level in 2..=4 {
        let address = GRANULE_LG2..NO_MEMORY;
        let bits = (0..64).filter(|bit| !address.contains(bit));
        all.extend(bits.map(|bit| table_bit(width, level, bit)));
    }
    all.extend((64..128).map(|bit| root_bit(width, bit)));
    all.extend((64..128).map(|bit| context_bit(width, bit)));
    all
}

/// What a flipped bit should come to.
enum Want {
    Same,
    /// To the page that differs in that bit.
    Elsewhere,
    /// Translated, to where nothing is.
    Nowhere,
    Fault(u8),
}

fn judge(run: &mut Run<'_>, page: IovaPage, to: PhysPage, bit: u32, want: Want) {
    match want {
        Want::Same => run.reads("the access", page, to),
        Want::Elsewhere => {
            let moved = PhysPage(to.0 ^ 1 << (bit - GRANULE_LG2));
            refill_one(run, moved);
            run.reads("the access", page, moved);
            run.store(moved, 0x128 / 8, 0);
        }
        Want::Nowhere | Want::Fault(_) => run.blocked("the access", page),
    }
    match want {
        Want::Fault(reason) => {
            let (source, kind) = (NIC, AccessKind::Read);
            run.fault(Expected {
                reason,
                source,
                page,
                kind,
            });
        }
        _ => run.no_fault(),
    }
}

/// Makes a page outside the targets tell where it is.
fn refill_one(run: &mut Run<'_>, page: PhysPage) {
    run.store(page, 0x128 / 8, fill(page, 0x128 / 8));
}

fn leaf_bit(width: AddressWidth, level: u32, bit: u32) -> Case {
    let name = format!("{} bits, leaf of level {level}, bit {bit}", width.bits());
    let case = Case::new(name, move |run| {
        let tables = begin(run);
        let span = VtdSecond48::span(level);
        let first = IovaPage(PAGE.0 & !(span - 1));
        let page = IovaPage(first.0 + (A_INSIDE.0 & (span - 1)));
        let to = PhysPage(A_INSIDE.0 & !(span - 1));
        let leaf = VtdSecond48::leaf(to, Perm::ReadWrite, LeafMarks::NONE, level);
        run.set_entry(tables, page, level, leaf ^ 1 << bit);
        let inside = GRANULE_LG2 + VtdSecond48::span_lg2(level);
        let want = match bit {
            0 => Want::Fault(6),
            // without the size bit it points to a table, which is the page of a target: not a table
            // that permits anything
            7 if level > 1 => return not_a_leaf(run, tables, page, level),
            11 | 62 => Want::Fault(0xc),
            12..52 if bit < inside || bit >= width.bits() => Want::Fault(0xc),
            12..NO_MEMORY => Want::Elsewhere,
            NO_MEMORY..52 => Want::Nowhere,
            _ => Want::Same,
        };
        judge(run, page, A_INSIDE, bit, want);
    })
    .of_width(width);
    // the GiB from 0xc0000000 on has the interrupts' range in it
    match (level, bit) {
        (3, NO_MEMORY) => case.differs(INTERRUPTS_INSIDE),
        _ => case,
    }
}

/// A table in the place of a large leaf: an empty one, so that the walk goes on and ends.
fn not_a_leaf(run: &mut Run<'_>, tables: Tables, page: IovaPage, level: u32) {
    let table = run.frame();
    run.set_entry(tables, page, level, table.addr().0 | 3);
    judge(run, page, A_INSIDE, 7, Want::Fault(6));
}

fn table_bit(width: AddressWidth, level: u32, bit: u32) -> Case {
    let name = format!(
        "{} bits, table's entry of level {level}, bit {bit}",
        width.bits()
    );
    Case::new(name, move |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::ReadWrite);
        let (at, index) = run.slot(tables, PAGE, level);
        let word = run.load(at, index);
        run.store(at, index, word ^ 1 << bit);
        let want = match bit {
            0 => Want::Fault(6),
            // a leaf of the table's frame: its address is not a multiple of such a leaf's size, or
            // there are none so large
            7 | 11 | 62 => Want::Fault(0xc),
            NO_MEMORY..52 if bit < width.bits() => Want::Fault(7),
            12..52 => Want::Fault(0xc),
            _ => Want::Same,
        };
        judge(run, PAGE, A, bit, want);
    })
    .of_width(width)
}

fn root_bit(width: AddressWidth, bit: u32) -> Case {
    Case::new(
        format!("{} bits, root entry, bit {bit}", width.bits()),
        move |run| {
            let tables = begin(run);
            run.map(tables, PAGE, A, Perm::ReadWrite);
            let contexts = run.contexts(0);
            let mut words = RootEntry { contexts }.encode();
            match bit {
                0..64 => words.low ^= 1 << bit,
                _ => words.high ^= 1 << (bit - 64),
            }
            if (GRANULE_LG2..NO_MEMORY).contains(&bit) {
                // another context table, with the entry in it
                let moved = PhysPage(contexts.0 ^ 1 << (bit - GRANULE_LG2));
                return root_elsewhere(run, tables, moved);
            }
            run.set_root_entry(0, words);
            let want = match bit {
                0 => Want::Fault(1),
                NO_MEMORY..64 if bit < width.bits() => Want::Fault(9),
                _ => Want::Fault(0xa),
            };
            judge(run, PAGE, A, bit, want);
        },
    )
    .of_width(width)
}

fn root_elsewhere(run: &mut Run<'_>, tables: Tables, contexts: PhysPage) {
    let at = usize::from(NIC.0) * 2;
    let held = (run.load(contexts, at), run.load(contexts, at + 1));
    let words = entry(tables, DOMAIN).encode();
    run.store(contexts, at, words.low);
    run.store(contexts, at + 1, words.high);
    run.set_root_entry(0, RootEntry { contexts }.encode());
    run.reads("the access", PAGE, A);
    run.store(contexts, at, held.0);
    run.store(contexts, at + 1, held.1);
}

fn context_bit(width: AddressWidth, bit: u32) -> Case {
    let name = format!("{} bits, context entry, bit {bit}", width.bits());
    let case = Case::new(name, move |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::ReadWrite);
        let mut words = entry(tables, DOMAIN).encode();
        match bit {
            0..64 => words.low ^= 1 << bit,
            _ => words.high ^= 1 << (bit - 64),
        }
        if (GRANULE_LG2..NO_MEMORY).contains(&bit) {
            let moved = PhysPage(tables.root.0 ^ 1 << (bit - GRANULE_LG2));
            return tables_elsewhere(run, tables, moved);
        }
        run.set_context(NIC, words);
        let want = match bit {
            0 => Want::Fault(2),
            // FPD: of faults, and there is none
            1 => Want::Same,
            // TT: device TLBs, which the unit does not have
            2 => Want::Fault(3),
            // TT: pass-through, to where no memory is
            3 => Want::Nowhere,
            NO_MEMORY..64 if bit < width.bits() => Want::Fault(7),
            4..64 => Want::Fault(0xb),
            // AW: another width, or none
            64..67 => Want::Fault(3),
            // for software
            67..71 => Want::Same,
            // DID: the tag of what is cached
            72..88 => Want::Same,
            71 | 88.. => Want::Fault(0xb),
        };
        judge(run, PAGE, A, bit, want);
    })
    .of_width(width);
    match (NO_MEMORY..width.bits()).contains(&bit) {
        true => case.differs(UNREADABLE_ROOT),
        false => case,
    }
}

fn tables_elsewhere(run: &mut Run<'_>, tables: Tables, root: PhysPage) {
    let index = VtdSecond48::index(PAGE, tables.width.levels());
    let held = run.load(root, index);
    let top = run.load(tables.root, index);
    run.store(root, index, top);
    run.attach(NIC, Tables { root, ..tables }, DOMAIN);
    run.reads("the access", PAGE, A);
    run.store(root, index, held);
}
