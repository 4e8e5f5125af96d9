// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every format and every kind of table against a map of pages.

use crate::tables::rig::{Rig, range, run};
use ioatlas_dma::{
    iova::AllocKind,
    table::{
        Format, LeafAttrs, RawError, Reclaim, TableConfig,
        fmt::{Toy, VtdSecond39, VtdSecond48, VtdSecond57},
    },
    units::*,
};
use proptest::prelude::*;

/// Positions and lengths are in units, of which four are a span of level 2 where that has more than
/// four pages.
#[derive(Clone, Debug)]
enum Op {
    Install {
        at: u64,
        units: u64,
        /// The second run begins so many units later, if that is inside.
        cut: u64,
        to: u64,
        perm: u8,
        fixed: bool,
    },
    Clear {
        nth: usize,
    },
    Claim {
        at: u64,
        units: u64,
    },
}

/// Units that an op list is about.
const UNITS: u64 = 64;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // a multiple of 16 units, 4 or 1: so that large leaves fit often, and often do not
    let to = (0..1u64 << 24, 0..3u32).prop_map(|(to, shift)| to << (2 * shift));
    let at = (0..UNITS, 0..3u32).prop_map(|(at, shift)| (at << (2 * shift)) % UNITS);
    let op = prop_oneof![
        3 => (at, 1..=24u64, 1..=32u64, to, 0..3u8, any::<bool>())
            .prop_map(|(at, units, cut, to, perm, fixed)| Op::Install { at, units, cut, to, perm, fixed }),
        2 => (0..64usize).prop_map(|nth| Op::Clear { nth }),
        2 => (0..UNITS, 1..=16u64).prop_map(|(at, units)| Op::Claim { at, units }),
    ];
    proptest::collection::vec(op, 1..60)
}

fn config() -> impl Strategy<Value = TableConfig> {
    let reclaim = prop_oneof![Just(Reclaim::Covered), Just(Reclaim::Never)];
    (reclaim, 1..=4u32).prop_map(|(reclaim, largest_leaf)| {
        TableConfig::default()
            .reclaim(reclaim)
            .largest_leaf(largest_leaf)
    })
}

fn agrees_with_a_map<F: Format>(config: TableConfig, ops: &[Op]) {
    let mut rig = Rig::<F>::with(1024, config);
    let unit = (F::span(2) / 4).max(1);
    let limit = F::aperture().pages.0;
    // towards the aperture's end, where a leaf of 16 units can begin
    let base = limit.saturating_sub((UNITS + 16) * unit);
    for op in ops {
        match *op {
            Op::Install {
                at,
                units,
                cut,
                to,
                perm,
                fixed,
            } => {
                let perm = [Perm::Read, Perm::Write, Perm::ReadWrite][usize::from(perm)];
                let kind = if fixed {
                    AllocKind::Fixed
                } else {
                    AllocKind::Dynamic
                };
                let (first, pages, to) = (base + at * unit, units * unit, to * unit);
                let before = units.min(cut) * unit;
                let runs = [run(to, before), run(to ^ unit, pages - before)];
                if first + pages <= limit && rig.free(first, pages) {
                    rig.install_runs(first, &runs, LeafAttrs::new(perm, kind));
                }
            }
            Op::Clear { nth } => {
                let count = rig.mappings.len().max(1);
                let detached = rig.detached.len();
                if let Some((&first, &(pages, _))) = rig.mappings.iter().nth(nth % count) {
                    assert_eq!(rig.clear(first, pages), pages);
                }
                if config.reclaim == Reclaim::Never {
                    assert_eq!(rig.detached.len(), detached, "never is never");
                }
            }
            Op::Claim { at, units } => claim(&mut rig, base + at * unit, units * unit),
        }
        rig.check();
    }
    if config.largest_leaf == 1 && config.reclaim == Reclaim::Never {
        assert!(
            rig.detached.is_empty(),
            "there was nothing to make room for"
        );
    }
    for page in (base.saturating_sub(2)..limit).step_by(unit.div_ceil(3) as usize) {
        rig.agrees_at(page);
    }
}

/// The address API takes exactly what is one mapping.
fn claim<F: Format>(rig: &mut Rig<F>, first: u64, pages: u64) {
    let fits = first + pages <= F::aperture().pages.0;
    let range = range(first, pages);
    let exact = rig
        .mappings
        .get(&first)
        .filter(|(p, _)| *p == pages)
        .copied();
    if exact.is_some() {
        let held = rig.table.claim(crate::BY, &rig.host, range);
        assert_eq!(held, Err(RawError::NotGivenUp(IovaPage(first))));
        rig.table.give_up(crate::BY, &rig.host, IovaPage(first));
        rig.agrees_at(first);
    }
    match (
        fits.then(|| rig.table.claim(crate::BY, &rig.host, range)),
        exact,
    ) {
        (None, _) => {}
        (Some(Ok(kind)), Some((_, mapped))) => {
            assert_eq!(kind, mapped);
            let again = rig.table.claim(crate::BY, &rig.host, range);
            assert_eq!(again, Err(RawError::NotGivenUp(IovaPage(first))));
            assert_eq!(rig.clear(first, pages), pages);
        }
        (Some(Err(_)), None) => {}
        (Some(got), expected) => panic!("{range}: {got:?}, mapped: {expected:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn toy_agrees_with_a_map(config in config(), ops in ops()) {
        agrees_with_a_map::<Toy<2, 3>>(config, &ops);
    }
    #[test]
    fn wide_toy_agrees_with_a_map(config in config(), ops in ops()) {
        agrees_with_a_map::<Toy<2, 5>>(config, &ops);
    }
    #[test]
    fn tiny_toy_agrees_with_a_map(config in config(), ops in ops()) {
        agrees_with_a_map::<Toy<1, 6>>(config, &ops);
    }
}

proptest! {
    // their tables have 512 entries, and every step reads them all
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn vtd_39_agrees_with_a_map(config in config(), ops in ops()) {
        agrees_with_a_map::<VtdSecond39>(config, &ops);
    }
    #[test]
    fn vtd_48_agrees_with_a_map(config in config(), ops in ops()) {
        agrees_with_a_map::<VtdSecond48>(config, &ops);
    }
    #[test]
    fn vtd_57_agrees_with_a_map(config in config(), ops in ops()) {
        agrees_with_a_map::<VtdSecond57>(config, &ops);
    }
}
