// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Three, four and five levels: what the unit says of itself, walks, and the edge of the aperture.

use crate::unit::rig::*;
use ioatlas_dma::{
    domain::DomainConfig,
    invalidation::{Combining, CombiningConfig},
    table::{
        Format, TableShape,
        fmt::{Toy, VtdSecond39, VtdSecond48, VtdSecond57},
    },
    translator::{PagedError, RemappingUnit},
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{
    config::*,
    fault::FaultReason,
    machine::{Machine, SoftDomainError},
    mmio::MmioWindow,
    observe::From,
};
use ioatlas_vtd::registers::{self as offset, Registers};
use std::sync::Arc;

const ALL: [(Geometry, u64); 3] = [
    (Geometry::VTD_39, 39),
    (Geometry::VTD_48, 48),
    (Geometry::VTD_57, 57),
];

#[test]
fn the_capability_register_names_the_width_and_nothing_else() {
    for (sagaw, (geometry, bits)) in [0b0010, 0b0100, 0b1000].into_iter().zip(ALL) {
        let unit = Rig::new(&UnitConfig::new(geometry)).unit;
        let cap = unit.read64(offset::CAP);
        assert_eq!((cap >> 8 & 0x1f, (cap >> 16 & 0x3f) + 1), (sagaw, bits));
        assert_eq!(u64::from(geometry.address_bits()), bits);
    }
}

#[test]
fn walks_read_one_entry_a_level_with_another_index_at_each() {
    for (geometry, bits) in ALL {
        let rig = Rig::new(&UnitConfig::new(geometry));
        let page = 0x1234_5678_9abc & ((1 << (bits - 12)) - 1);
        let (table, index) = rig.map_here(page, 0xabcd);
        let walk = rig.read(page);
        assert_eq!(
            (target(&walk), walk.from, walk.reads),
            (Some(0xabcd), From::Walk, 2 + geometry.levels)
        );
        // a neighbour in the leaf table, and one below the root only
        rig.map_here(page ^ 1, 0xabce);
        assert_eq!(rig.get(page ^ 1), (Some(0xabce), From::WalkCache(2)));
        let far = page ^ 1 << (bits - 13);
        assert_eq!(rig.get(far), (None, From::Walk));
        rig.poke(table, index, 0);
        assert_eq!(rig.get(page), (Some(0xabcd), From::Iotlb));
        rig.send(&[flush_pages(DOMAIN, page, 0, 1)]);
        assert_eq!(rig.get(page), (None, From::WalkCache(2)));
        rig.check();
    }
}

#[test]
fn the_first_page_beyond_the_aperture_faults() {
    for (geometry, bits) in ALL {
        let rig = Rig::new(&UnitConfig::new(geometry));
        let last = (1 << (bits - 12)) - 1;
        rig.map_here(last, 100);
        assert_eq!(rig.get(last).0, Some(100));
        assert_eq!(fault(&rig.read(last + 1)), FaultReason::BeyondAperture);
    }
}

#[test]
fn a_context_entry_of_another_width_faults() {
    for (geometry, _) in ALL {
        for width in 0..8 {
            let rig = Rig::new(&UnitConfig::new(geometry));
            rig.map_here(0, 100);
            let at = usize::from(DEVICE.0 & 0xff) * 2 + 1;
            rig.poke(rig.context_table, at, u64::from(DOMAIN) << 8 | width);
            let access = rig.read(0);
            if width + 2 == u64::from(geometry.levels) {
                assert_eq!(target(&access), Some(100));
            } else {
                assert_eq!(fault(&access), FaultReason::ContextInvalid, "AW {width}");
            }
        }
    }
}

/// A device attached to tables of another shape would be translated by what is no entry.
#[test]
fn a_machine_makes_no_domain_with_tables_that_its_unit_does_not_walk() {
    fn domain<F: Format>(unit: Geometry) -> Result<(), SoftDomainError> {
        let host = Arc::new(Host::new(HostConfig::default().frames(64).slots(1)));
        let machine = Machine::new(host.clone(), &UnitConfig::new(unit)).unwrap();
        let before = host.frames_in_use();
        let made = machine.domain::<F>(DomainConfig::default()).map(drop);
        assert_eq!(host.frames_in_use(), before);
        made
    }
    let shape = |levels| {
        let shape = TableShape {
            levels,
            ..TableShape::of::<VtdSecond48>()
        };
        Err(PagedError::Shape(shape).into())
    };
    for (unit, _) in ALL {
        let made = [
            domain::<VtdSecond39>(unit),
            domain::<VtdSecond48>(unit),
            domain::<VtdSecond57>(unit),
        ];
        for (levels, made) in (3..).zip(made) {
            let wanted = match levels == unit.levels {
                true => Ok(()),
                false => shape(levels),
            };
            assert_eq!(made, wanted, "P14: {levels} levels on {unit:?}");
        }
    }
}

#[test]
fn what_stands_before_a_unit_says_as_it_does_what_is_walked() {
    type Small = Toy<2, 3>;
    let host = Arc::new(Host::new(HostConfig::default().frames(64).slots(1)));
    let unit = UnitConfig::new(Geometry::of::<Small>());
    let machine = Machine::new(host.clone(), &unit).unwrap();
    let window = MmioWindow::new(machine.unit().clone());
    assert_eq!(window.table_entries_lg2(), 2);
    assert_eq!(Arc::new(window).table_entries_lg2(), 2);
    let driver = machine.driver();
    let combined = Combining::new(host, driver.clone(), CombiningConfig::default());
    for (shape, walked) in [
        (TableShape::of::<Small>(), true),
        (TableShape::of::<VtdSecond39>(), false),
        (TableShape::of::<Toy<3, 3>>(), false),
    ] {
        assert_eq!((**driver).walks(shape), walked, "P14: {shape}");
        assert_eq!(driver.walks(shape), walked, "P14: {shape}");
        assert_eq!(combined.walks(shape), walked, "P14: {shape}");
    }
}
