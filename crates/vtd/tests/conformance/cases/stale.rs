// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What caches keep, and which invalidation removes it (VT-d 4.1 §6.2, §6.5): each is tried wrong
//! first, and then right.
//!
//! That a stale entry is served is no promise of the specification: a unit may forget at any time.
//! Both units here forget nothing by themselves, so that an invalidation which removes nothing is
//! seen.

use super::*;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for width in WIDTHS {
        for level in 1..=3 {
            for change in CHANGES {
                for (name, right) in right(level) {
                    all.push(removed(width, level, change, name, right));
                }
                for (name, wrong) in wrong(level) {
                    all.push(kept(width, level, change, name, wrong));
                }
            }
        }
    }
    all.extend((0..16).map(domain_bit));
    all.extend((0..8).map(masked));
    all.extend((12..48).filter(|bit| *bit < 20).map(address_bit));
    all.extend(contexts());
    all
}

/// How a translation is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Cleared,
    Moved,
    Narrowed,
}
const CHANGES: [Change; 3] = [Change::Cleared, Change::Moved, Change::Narrowed];

type Named = (&'static str, Invalidation);

fn right(level: u32) -> Vec<Named> {
    let span = VtdSecond48::span_lg2(level);
    let first = IovaPage(PAGE.0 >> span << span);
    let mut all = vec![
        ("the page", pages(DOMAIN, PAGE, 0)),
        ("the domain", whole(DOMAIN)),
        ("everything", iotlb(IotlbTarget::Global)),
    ];
    // QEMU 7.2 takes masks of 8 and more for the whole domain; too much is not wrong
    if level > 1 {
        all.push(("the whole leaf", pages(DOMAIN, first, span)));
    }
    all
}

fn wrong(level: u32) -> Vec<Named> {
    let mut all = vec![
        ("the page of another domain", pages(DOMAIN ^ 1, PAGE, 0)),
        ("another domain", whole(DOMAIN ^ 0x100)),
        ("the context of the device", context_of(NIC, DOMAIN)),
    ];
    if level == 1 {
        all.push(("another page", pages(DOMAIN, OTHER, 0)));
        all.push((
            "the pages next to it",
            pages(DOMAIN, IovaPage(PAGE.0 ^ 8), 3),
        ));
    }
    all
}

/// Maps, lets the device fill the caches, and changes the leaf in memory; how the page is then
/// reached by a unit that knows.
fn make_stale(run: &mut Run<'_>, level: u32, change: Change) -> (Tables, Reach) {
    let tables = begin(run);
    let span = VtdSecond48::span(level);
    // the page of PAGE's place in the leaf is what the accesses reach
    let inside = PAGE.0 & (span - 1);
    let (old, new) = homes(level);
    let leaf = |to: PhysPage, perm| VtdSecond48::leaf(to, perm, LeafMarks::NONE, level);
    let at = |to: PhysPage| PhysPage(to.0 + inside);
    for to in [old, new] {
        run.store(at(to), 0x128 / 8, fill(at(to), 0x128 / 8));
    }
    run.set_entry(tables, PAGE, level, leaf(old, Perm::ReadWrite));
    run.reads("mapped", PAGE, at(old));
    let (word, want) = match change {
        Change::Cleared => (0, Reach::Blocked),
        Change::Moved => (leaf(new, Perm::ReadWrite), Reach::Page(at(new))),
        Change::Narrowed => (leaf(old, Perm::Write), Reach::Blocked),
    };
    run.set_entry(tables, PAGE, level, word);
    run.reads("changed, not flushed", PAGE, at(old));
    (tables, want)
}

/// Two frames of a leaf's size.
fn homes(level: u32) -> (PhysPage, PhysPage) {
    match level {
        1 => (A, B),
        2 => (PhysPage(0x5_0000), PhysPage(0x5_0200)),
        _ => (PhysPage(0x4_0000), PhysPage(0)),
    }
}

fn removed(
    width: AddressWidth,
    level: u32,
    change: Change,
    name: &str,
    with: Invalidation,
) -> Case {
    let name = format!(
        "{} bits, level {level}, {change:?}: {name} is flushed",
        width.bits()
    );
    Case::new(name, move |run| {
        let (_, want) = make_stale(run, level, change);
        run.invalidate(&[with]);
        run.reach("flushed", NIC, PAGE, AccessKind::Read, want);
    })
    .of_width(width)
}

fn kept(width: AddressWidth, level: u32, change: Change, name: &str, with: Invalidation) -> Case {
    let name = format!(
        "{} bits, level {level}, {change:?}: {name} is flushed",
        width.bits()
    );
    Case::new(name, move |run| {
        let (_, want) = make_stale(run, level, change);
        let old = PhysPage(homes(level).0.0 + (PAGE.0 & (VtdSecond48::span(level) - 1)));
        run.invalidate(&[with]);
        run.reads("something else is flushed", PAGE, old);
        run.invalidate(&[pages(DOMAIN, PAGE, 0)]);
        run.reach("flushed", NIC, PAGE, AccessKind::Read, want);
    })
    .of_width(width)
}

/// Every bit of DID tells two domains apart.
fn domain_bit(bit: u32) -> Case {
    Case::new(format!("domain ids that differ in bit {bit}"), move |run| {
        run.start();
        let other = DOMAIN ^ 1 << bit;
        let (mine, theirs) = (run.tables(), run.tables());
        run.attach(NIC, mine, DOMAIN);
        run.attach(DISK, theirs, other);
        run.map(mine, PAGE, A, Perm::ReadWrite);
        run.map(theirs, PAGE, B, Perm::ReadWrite);
        run.reads("mine", PAGE, A);
        run.reach("theirs", DISK, PAGE, AccessKind::Read, Reach::Page(B));
        run.unmap(mine, PAGE);
        run.unmap(theirs, PAGE);
        run.invalidate(&[whole(other)]);
        run.reads("mine, stale", PAGE, A);
        run.reach(
            "theirs, flushed",
            DISK,
            PAGE,
            AccessKind::Read,
            Reach::Blocked,
        );
        run.invalidate(&[pages(DOMAIN, PAGE, 0)]);
        run.blocked("mine, flushed", PAGE);
    })
}

/// A mask of n removes 2^n pages and no more.
fn masked(pages_lg2: u32) -> Case {
    Case::new(format!("2^{pages_lg2} pages are flushed"), move |run| {
        let tables = begin(run);
        let first = IovaPage(PAGE.0 & !0xff);
        let inside = IovaPage(first.0 + (1 << pages_lg2) - 1);
        let outside = IovaPage(first.0 + (1 << pages_lg2));
        for page in [first, inside, outside] {
            run.map(tables, page, A, Perm::Read);
            run.reads("mapped", page, A);
            run.unmap(tables, page);
        }
        run.invalidate(&[pages(DOMAIN, first, pages_lg2)]);
        run.blocked("the first page", first);
        run.blocked("the last page", inside);
        run.reads("the page after", outside, A);
    })
}

/// Every bit of the low byte of ADDR; of higher ones QEMU 7.2 sees nothing.
fn address_bit(bit: u32) -> Case {
    Case::new(
        format!("pages that differ in bit {bit} of the address"),
        move |run| {
            let tables = begin(run);
            let other = IovaPage(PAGE.0 ^ 1 << (bit - GRANULE_LG2));
            for page in [PAGE, other] {
                run.map(tables, page, A, Perm::Read);
                run.reads("mapped", page, A);
                run.unmap(tables, page);
            }
            run.invalidate(&[pages(DOMAIN, other, 0)]);
            run.blocked("the page that is named", other);
            run.reads("the other", PAGE, A);
        },
    )
}

/// The context cache: what of it goes when.
fn contexts() -> Vec<Case> {
    let mut all = Vec::new();
    let device = |device, functions| {
        let domain = DomainId(DOMAIN);
        Invalidation::Context(ContextInvalidate::Device {
            domain,
            device,
            functions,
        })
    };
    use FunctionMask::*;
    let of_domain = Invalidation::Context(ContextInvalidate::Domain(DomainId(DOMAIN)));
    let all_of = |name, source, with, goes| (name, source, with, goes);
    let table: [(&str, SourceId, Invalidation, bool); 13] = [
        all_of("all", NIC, CONTEXTS, true),
        all_of("the domain", NIC, of_domain, true),
        all_of("the device", NIC, device(NIC, Exact), true),
        all_of("another device", NIC, device(DISK, All), false),
        all_of("function 0 of 1", FUNCTION_1, device(NIC, Exact), false),
        all_of(
            "function 0 of 1, without bits 2 and 1",
            FUNCTION_1,
            device(NIC, Bits21),
            false,
        ),
        all_of(
            "function 0 of 1, without any",
            FUNCTION_1,
            device(NIC, All),
            true,
        ),
        all_of(
            "function 0 of 4, with all",
            FUNCTION_4,
            device(NIC, Exact),
            false,
        ),
        all_of(
            "function 0 of 4, without bit 2",
            FUNCTION_4,
            device(NIC, Bit2),
            true,
        ),
        all_of(
            "function 0 of 2, without bit 2",
            FUNCTION_2,
            device(NIC, Bit2),
            false,
        ),
        all_of(
            "function 0 of 2, without bits 2 and 1",
            FUNCTION_2,
            device(NIC, Bits21),
            true,
        ),
        all_of(
            "function 0 of 2, without any",
            FUNCTION_2,
            device(NIC, All),
            true,
        ),
        all_of("the IOTLB only", NIC, iotlb(IotlbTarget::Global), false),
    ];
    for (name, source, with, goes) in table {
        for cold in [false, true] {
            all.push(context(name, source, with, goes, cold));
        }
    }
    all.push(gone());
    all.push(other_domain());
    all
}

/// DID of a context invalidation.
fn other_domain() -> Case {
    Case::new("contexts: another domain is flushed", |run| {
        run.start();
        let (old, new) = (run.tables(), run.tables());
        run.map(old, PAGE, A, Perm::Read);
        run.map(new, PAGE, B, Perm::Read);
        run.attach(NIC, old, DOMAIN);
        run.reads("attached", PAGE, A);
        run.attach(NIC, new, DOMAIN);
        let other = ContextInvalidate::Domain(DomainId(DOMAIN ^ 1));
        run.invalidate(&[Invalidation::Context(other), whole(DOMAIN)]);
        run.reads("flushed", PAGE, A);
        let right = ContextInvalidate::Domain(DomainId(DOMAIN));
        run.invalidate(&[Invalidation::Context(right), whole(DOMAIN)]);
        run.reads("the right one", PAGE, B);
    })
    .differs(Differs {
        which: Which::Qemu,
        what: "flushed",
        got: "page 0x50201",
        clause: "6.5.2.1",
        why: "a unit may remove more than it is asked; QEMU removes every context for a domain-selective one",
    })
}

/// A context entry is led to other tables; on a page that the IOTLB knows, and on one that it does
/// not.
fn context(name: &str, source: SourceId, with: Invalidation, goes: bool, cold: bool) -> Case {
    let which = if cold {
        "a new page"
    } else {
        "a page used before"
    };
    Case::new(
        format!("contexts: {name} is flushed; {which}"),
        move |run| {
            run.start();
            let (old, new) = (run.tables(), run.tables());
            for page in [PAGE, OTHER] {
                run.map(old, page, A, Perm::Read);
                run.map(new, page, B, Perm::Read);
            }
            let kind = AccessKind::Read;
            run.attach(source, old, DOMAIN);
            run.reach("attached", source, PAGE, kind, Reach::Page(A));
            run.attach(source, new, DOMAIN);
            let page = if cold { OTHER } else { PAGE };
            run.reach("changed, not flushed", source, page, kind, Reach::Page(A));
            run.invalidate(&[with, whole(DOMAIN)]);
            let want = if goes { B } else { A };
            run.reach("flushed", source, page, kind, Reach::Page(want));
            run.invalidate(&[CONTEXTS]);
            run.reach(
                "contexts flushed, the IOTLB not",
                source,
                page,
                kind,
                Reach::Page(want),
            );
            run.invalidate(&[whole(DOMAIN)]);
            run.reach("all flushed", source, page, kind, Reach::Page(B));
        },
    )
}

fn gone() -> Case {
    Case::new("contexts: an entry is cleared", |run| {
        let tables = begin(run);
        run.map(tables, PAGE, A, Perm::Read);
        run.map(tables, OTHER, B, Perm::Read);
        run.reads("attached", PAGE, A);
        run.set_context(NIC, Words { low: 0, high: 0 });
        run.reads("cleared, not flushed", OTHER, B);
        run.invalidate(&[context_of(NIC, DOMAIN), whole(DOMAIN)]);
        run.blocked("flushed", OTHER);
        let (reason, source, page, kind) = (2, NIC, OTHER, AccessKind::Read);
        run.fault(Expected {
            reason,
            source,
            page,
            kind,
        });
        run.attach(NIC, tables, DOMAIN);
        run.reads("made again: what is absent is not cached", OTHER, B);
    })
}
