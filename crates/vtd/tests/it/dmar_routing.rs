// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whom the structures of a DMAR concern: paths through bridges, what is behind them, and the rest.

use ioatlas_dma::units::*;
use ioatlas_vtd::acpi::*;

const NOWHERE: fn(Segment, SourceId, u8) -> u32 = |_, _, _| u32::MAX;

/// Bus 0 with a root port 00:1c.0 to buses 1 to 3, whose switch has ports 02:00.0 to bus 3; 00:1d.0 is a root port to bus 4.
fn tree(_: Segment, function: SourceId, offset: u8) -> u32 {
    let buses = match function.0 {
        0x00e0 => 0x03_0100,
        0x0100 => 0x03_0201,
        0x0200 => 0x03_0302,
        0x00e8 => 0x04_0400,
        0x00c8 | 0x0300 | 0x0301 | 0x0400 => 0,
        _ => return u32::MAX,
    };
    match (offset, buses) {
        (0x0c, 0) => 0x0080_0000,
        (0x0c, _) => 0x0081_0000,
        (0x18, buses) => buses,
        _ => 0,
    }
}

fn unit(registers: u64, devices: Covers, scopes: Vec<Scope>) -> Drhd {
    Drhd {
        segment: Segment(0),
        registers: PhysAddr(registers),
        register_pages_lg2: 0,
        devices,
        scopes,
    }
}

#[test]
fn a_device_belongs_to_the_unit_that_names_it_else_to_the_one_for_the_rest() {
    let deep = Scope {
        path: [(0x1c, 0), (0, 0), (0, 0), (0, 1)]
            .map(|(device, function)| PathStep { device, function })
            .to_vec(),
        ..Scope::endpoint(SourceId(0))
    };
    let mut dmar = Dmar::new(48);
    dmar.units = vec![
        unit(0x1000, Covers::Rest, vec![]),
        unit(0x2000, Covers::Listed, vec![deep]),
        unit(
            0x3000,
            Covers::Listed,
            vec![
                Scope::bridge(SourceId(0xe0)),
                Scope::endpoint(SourceId(0xc8)),
            ],
        ),
    ];
    let of = |device| dmar.unit_for(Segment(0), SourceId(device), &tree);
    assert_eq!(of(0x301), Some(1), "by a path through three bridges");
    assert_eq!(of(0x300), Some(2), "behind the bridge");
    assert_eq!(of(0x0e0), Some(2), "the bridge itself");
    assert_eq!(of(0x0c8), Some(2), "by name");
    assert_eq!(of(0x0c9), Some(0), "another function of it");
    assert_eq!(of(0x400), Some(0), "behind another port");
    assert_eq!(dmar.unit_for(Segment(1), SourceId(0xc8), &tree), None);
    // an endpoint is not what is behind it, and a path through no bridge leads nowhere
    dmar.units.remove(0);
    let of = |device, pci: &fn(Segment, SourceId, u8) -> u32| {
        dmar.unit_for(Segment(0), SourceId(device), pci)
    };
    assert_eq!(of(0x400, &(tree as _)), None);
    assert_eq!(of(0x301, &NOWHERE), None);
    assert_eq!(of(0x0c8, &NOWHERE), Some(1));
}

#[test]
fn an_io_apic_of_the_same_numbers_is_not_the_device() {
    let mut dmar = Dmar::new(48);
    for kind in [
        ScopeKind::IoApic,
        ScopeKind::Timer,
        ScopeKind::AcpiDevice,
        ScopeKind::Other(9),
    ] {
        let scope = Scope {
            kind,
            ..Scope::endpoint(SourceId(0xc8))
        };
        dmar.units = vec![unit(0x1000, Covers::Listed, vec![scope])];
        assert_eq!(
            dmar.unit_for(Segment(0), SourceId(0xc8), &tree),
            None,
            "{kind:?}"
        );
    }
}

#[test]
fn reserved_memory_and_ats_follow_scopes_too() {
    let mut dmar = Dmar::new(48);
    let memory = |first| PhysRun::new(PhysPage(first), PageCount(2));
    let rmrr = |first, scope| Rmrr {
        segment: Segment(0),
        memory: memory(first),
        scopes: vec![scope],
    };
    dmar.reserved = vec![
        rmrr(0x10, Scope::endpoint(SourceId(0xc8))),
        rmrr(0x20, Scope::bridge(SourceId(0xe0))),
        rmrr(0x30, Scope::endpoint(SourceId(0xc8))),
    ];
    let of = |device| -> Vec<u64> {
        let all = dmar.reserved_for(Segment(0), SourceId(device), &tree);
        all.map(|r| r.memory.first.0).collect()
    };
    assert_eq!(of(0xc8), [0x10, 0x30]);
    assert_eq!(of(0x300), [0x20]);
    assert_eq!(of(0x400), [0; 0]);
    let may = |dmar: &Dmar, device| dmar.may_use_ats(Segment(0), SourceId(device), &tree);
    assert!(!may(&dmar, 0x300));
    dmar.ats = vec![Atsr {
        segment: Segment(0),
        ports: Covers::Listed,
        scopes: vec![Scope::bridge(SourceId(0xe0))],
    }];
    assert_eq!(
        [0x300, 0x400, 0xc8].map(|d| may(&dmar, d)),
        [true, false, false]
    );
    dmar.ats[0].ports = Covers::Rest;
    assert_eq!([0x300, 0x400, 0xc8].map(|d| may(&dmar, d)), [true; 3]);
}
