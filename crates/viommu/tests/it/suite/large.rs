// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Large leaves under a unit that walks them, in the place of tables that its walk caches remember,
//! and back (P14).

use crate::suite::rig::*;
use ioatlas_dma::{
    design::Design,
    domain::Domain,
    platform::Platform,
    table::{Format, TableConfig},
    translator::{Paged, RemappingUnit},
    units::*,
};

on_every_machine! {
    large::a_large_leaf_and_a_table_take_turns_in_one_place,
    large::a_unit_without_large_leaves_gets_none,
}

on_every_width! {
    large::a_large_leaf_and_a_table_take_turns_in_one_place,
}

/// How many leaves above level 1 there are.
fn large_leaves<P, F, U>(domain: &Domain<P, Paged<P, F, U>>) -> usize
where
    P: Platform,
    F: Format,
    U: RemappingUnit<P>,
{
    let shown = domain.translator().table().show(&**domain.platform());
    shown.to_string().matches(" pages").count()
}

pub fn a_large_leaf_and_a_table_take_turns_in_one_place<B: Base, F: Format>() {
    for design in designs() {
        for tables in all_tables() {
            let rig = Rig::<B>::with::<F>(64, |config| config.features.largest_leaf = 3);
            let domain = rig.machine.domain::<F>(Design {
                domain: design,
                tables,
            });
            let domain = domain.expect("a domain");
            domain.attach(NIC).expect("attached");
            let span = span::<F>();
            let whole = IovaRange::new(IovaPage(2 * span), PageCount(span));
            let one = whole.first.addr();
            for round in 1..4 {
                let to = 16 * span * round;
                let small = domain.map_at(one, buffer(to + 1, 1), Direction::ToDevice);
                let small = small.expect("room");
                let reached = rig.access(whole.first, AccessKind::Read);
                assert_eq!(reached, Some(PhysPage(to + 1)), "mapped (P14)");
                domain.unmap(small).expect("a live mapping");
                let large = domain.map_at(one, buffer(to, span), Direction::ToDevice);
                let large = large.expect("room");
                let expected = usize::from(tables.largest_leaf > 1);
                assert_eq!(large_leaves(domain.domain()), expected);
                for (at, to) in whole.iter().zip(to..).step_by(span as usize / 4) {
                    let reached = rig.access(at, AccessKind::Read);
                    assert_eq!(reached, Some(PhysPage(to)), "mapped (P14), {tables:?}");
                    assert_eq!(rig.access(at, AccessKind::Write), None, "(P6)");
                }
                let beside = [whole.first.0 - 1, whole.end().0].map(IovaPage);
                for at in beside {
                    assert_eq!(rig.access(at, AccessKind::Read), None);
                }
                domain.unmap(large).expect("a live mapping");
                if is_strict(&design) {
                    for at in whole.iter().step_by(span as usize / 4) {
                        let reached = rig.access(at, AccessKind::Read);
                        assert_eq!(reached, None, "unmapped (P1)");
                    }
                }
                domain.domain().audit().expect("it adds up");
            }
            rig.close(domain, &[NIC]);
            rig.end();
        }
    }
}

/// What the table may have is held at what the unit says that it walks.
pub fn a_unit_without_large_leaves_gets_none<B: Base, F: Format>() {
    let rig = Rig::<B>::new::<F>(64);
    let tables = TableConfig::default().largest_leaf(3);
    let domain = rig.machine.domain::<F>(Design {
        tables,
        ..Design::default()
    });
    let domain = domain.expect("a domain");
    domain.attach(NIC).expect("attached");
    let span = span::<F>();
    let whole = domain.map_at(
        IovaPage(span).addr(),
        buffer(4 * span, span),
        Direction::ToDevice,
    );
    let whole = whole.expect("room");
    assert_eq!(large_leaves(domain.domain()), 0);
    let last = IovaPage(2 * span - 1);
    let reached = rig.access(last, AccessKind::Read);
    assert_eq!(reached, Some(PhysPage(5 * span - 1)), "mapped (P14)");
    domain.unmap(whole).expect("a live mapping");
    rig.close(domain, &[NIC]);
    rig.end();
}
