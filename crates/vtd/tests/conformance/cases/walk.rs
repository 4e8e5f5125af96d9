// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Walks: widths, leaves of three sizes, permissions, each address bit (VT-d 4.1 §3.7, §9.8).

use super::*;

const PERMS: [Perm; 3] = [Perm::Read, Perm::Write, Perm::ReadWrite];

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for width in WIDTHS {
        for level in 1..=3 {
            for perm in PERMS {
                for kind in KINDS {
                    all.push(leaf(width, level, perm, kind));
                }
            }
        }
        for level in 2..=width.levels() {
            for perm in PERMS {
                for kind in KINDS {
                    all.push(narrowed(width, level, perm, kind));
                }
            }
        }
        for bit in 12..width.bits() {
            all.push(index_bit(width, bit));
        }
        for bit in (width.bits()..64).filter(|bit| *bit != 62) {
            all.push(beyond(width, bit));
        }
        all.push(absent_levels(width));
    }
    all
}

/// The reason for a lack of permission.
fn reason(kind: AccessKind) -> u8 {
    match kind {
        AccessKind::Read => 6,
        AccessKind::Write => 5,
    }
}

fn judge(run: &mut Run<'_>, page: IovaPage, kind: AccessKind, allowed: bool, to: PhysPage) {
    if allowed {
        run.reach("the access", NIC, page, kind, Reach::Page(to));
        return run.no_fault();
    }
    run.reach("the access", NIC, page, kind, Reach::Blocked);
    let source = NIC;
    let reason = reason(kind);
    run.fault(Expected {
        reason,
        source,
        page,
        kind,
    });
}

fn leaf(width: AddressWidth, level: u32, perm: Perm, kind: AccessKind) -> Case {
    let name = format!(
        "{} bits, leaf of level {level}, {perm:?}: {kind:?}",
        width.bits()
    );
    Case::new(name, move |run| {
        let tables = begin(run);
        // a page inside the leaf, and the leaf that puts it on A_INSIDE
        let span = VtdSecond48::span(level);
        let to = PhysPage(A_INSIDE.0 & !(span - 1));
        let page = IovaPage((PAGE.0 & !(span - 1)) + (A_INSIDE.0 & (span - 1)));
        let leaf = VtdSecond48::leaf(to, perm, LeafMarks::NONE, level);
        run.set_entry(tables, page, level, leaf);
        judge(run, page, kind, perm.allows(kind), A_INSIDE);
    })
    .of_width(width)
}

/// Rights are those of every entry on the way (§3.7.1).
fn narrowed(width: AddressWidth, level: u32, perm: Perm, kind: AccessKind) -> Case {
    let name = format!(
        "{} bits, table at level {level} gives {perm:?}: {kind:?}",
        width.bits()
    );
    Case::new(name, move |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::ReadWrite);
        let (at, index) = run.slot(tables, PAGE, level);
        let rights = match perm {
            Perm::Read => 1,
            Perm::Write => 2,
            Perm::ReadWrite => 3,
        };
        let word = run.load(at, index);
        run.store(at, index, word & !3 | rights);
        judge(run, PAGE, kind, perm.allows(kind), A);
    })
    .of_width(width)
}

fn index_bit(width: AddressWidth, bit: u32) -> Case {
    Case::new(
        format!("{} bits, IOVA bit {bit}", width.bits()),
        move |run| {
            let tables = begin(run);
            let other = IovaPage(PAGE.0 ^ 1 << (bit - GRANULE_LG2));
            run.map(tables, PAGE, A, Perm::ReadWrite);
            run.map(tables, other, B, Perm::Read);
            run.reads("the page", PAGE, A);
            run.reads("the page that differs in this bit", other, B);
            run.reach(
                "a write there",
                NIC,
                other,
                AccessKind::Write,
                Reach::Blocked,
            );
        },
    )
    .of_width(width)
}

fn beyond(width: AddressWidth, bit: u32) -> Case {
    let name = format!("{} bits, an IOVA with bit {bit}", width.bits());
    Case::new(name, move |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::ReadWrite);
        let page = IovaPage(PAGE.0 | 1 << (bit - GRANULE_LG2));
        for kind in KINDS {
            run.reach("the access", NIC, page, kind, Reach::Blocked);
            let (reason, source) = (4, NIC);
            run.fault(Expected {
                reason,
                source,
                page,
                kind,
            });
        }
        run.reads("the page without it", PAGE, A);
    })
    .of_width(width)
}

fn absent_levels(width: AddressWidth) -> Case {
    Case::new(
        format!("{} bits, an absent entry at each level", width.bits()),
        move |run| {
            let tables = begin(run);
            for level in (1..=width.levels()).rev() {
                run.slot(tables, PAGE, level);
                run.blocked(format!("nothing at level {level}"), PAGE);
                let (reason, source, page, kind) = (6, NIC, PAGE, AccessKind::Read);
                run.fault(Expected {
                    reason,
                    source,
                    page,
                    kind,
                });
            }
            run.map(tables, PAGE, A, Perm::Read);
            // what is absent is not cached
            run.reads("mapped now", PAGE, A);
        },
    )
    .of_width(width)
}
