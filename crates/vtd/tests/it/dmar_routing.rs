// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which devices the structures of a DMAR concern: paths through bridges, what is behind
//! them, and the rest.

use ioatlas_dma::units::*;
use ioatlas_vtd::acpi::*;

const NOWHERE: fn(Segment, SourceId, u16) -> u32 = |_, _, _| u32::MAX;

/// Bus 0 with a root port 00:1c.0 to buses 1 to 3, whose switch has ports 02:00.0 to bus 3; 00:1d.0
/// is a root port to bus 4.
fn tree(_: Segment, function: SourceId, offset: u16) -> u32 {
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
    let of = |device, pci: &fn(Segment, SourceId, u16) -> u32| {
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

/// What a PCI segment with virtual functions looks like: PFs at 01:00.0 (bus 1) and 02:00.0, each
/// with an SR-IOV capability, and nothing to be read of their VFs.
#[derive(Clone, Copy)]
struct SrIov {
    enabled: bool,
    count: u16,
    first: u16,
    stride: u16,
    /// A capability ahead of it, and where that one says the next is.
    ahead: Option<u16>,
}

/// 01:00.0, behind the root port 00:1c.0.
const PF: u16 = 0x100;

impl PciConfig for SrIov {
    fn read32(&self, segment: Segment, function: SourceId, offset: u16) -> u32 {
        let capability = match (self.ahead, offset) {
            (Some(next), 0x100) => return 0x0001_0001 | u32::from(next) << 20,
            (Some(next), _) => next & !3,
            (None, _) => 0x100,
        };
        match (function.0, offset) {
            (PF | 0x200, 0) => 0x1572_8086,
            (PF | 0x200, 0x0c) => 0,
            // another PF, without any VF
            (0x200, _) => 0,
            (PF, at) if at < capability => u32::MAX,
            (PF, at) => match at - capability {
                0x00 => 0x0001_0010,
                0x08 => u32::from(self.enabled),
                0x0c => 0x0040_0040,
                0x10 => u32::from(self.count),
                0x14 => u32::from(self.stride) << 16 | u32::from(self.first),
                _ => 0,
            },
            _ if offset == 0 && tree(segment, function, 0x0c) != u32::MAX => 0x1234_8086,
            _ if offset < 0x100 => tree(segment, function, offset),
            _ => u32::MAX,
        }
    }
}

const PLAIN: SrIov = SrIov {
    enabled: true,
    count: 4,
    first: 0x80,
    stride: 2,
    ahead: None,
};

/// The unit that lists the PF, the unit for the rest, and what else names the PF alone.
fn of_pf() -> Dmar {
    let mut dmar = Dmar::new(48);
    let pf = || Scope {
        path: [(0x1c, 0), (0, 0)]
            .map(|(device, function)| PathStep { device, function })
            .to_vec(),
        ..Scope::endpoint(SourceId(0))
    };
    dmar.units = vec![
        unit(0x1000, Covers::Listed, vec![pf()]),
        unit(0x2000, Covers::Rest, vec![]),
    ];
    let rmrr = |first, scope| Rmrr {
        segment: Segment(0),
        memory: PhysRun::new(PhysPage(first), PageCount(2)),
        scopes: vec![scope],
    };
    dmar.reserved = vec![rmrr(0x10, pf()), rmrr(0x20, Scope::bridge(SourceId(0xe0)))];
    dmar.ats = vec![Atsr {
        segment: Segment(0),
        ports: Covers::Listed,
        scopes: vec![pf()],
    }];
    dmar
}

#[test]
fn virtual_functions_are_under_the_unit_of_their_physical_function() {
    let dmar = of_pf();
    let of = |pci: &SrIov, device| dmar.unit_for(Segment(0), SourceId(device), pci);
    assert_eq!(of(&PLAIN, PF), Some(0));
    for vf in [PF + 0x80, PF + 0x82, PF + 0x84, PF + 0x86] {
        let told = "the unit of a VF never sees what the VF does";
        assert_eq!(of(&PLAIN, vf), Some(0), "{told}: {vf:#x}");
        assert!(dmar.may_use_ats(Segment(0), SourceId(vf), &PLAIN));
    }
    for other in [PF + 0x7e, PF + 0x7f, PF + 0x81, PF + 0x88, PF - 1, 0x200] {
        assert_eq!(of(&PLAIN, other), Some(1), "no VF of it: {other:#x}");
    }
}

/// Firmware never used a function that the operating system enabled: what is reserved for the PF by
/// name would only let whatever gets the VF reach firmware's memory.
#[test]
fn virtual_functions_are_not_given_what_is_reserved_for_their_physical_function() {
    let dmar = of_pf();
    let far = SrIov {
        count: 300,
        stride: 1,
        ..PLAIN
    };
    let of = |device| -> Vec<u64> {
        let all = dmar.reserved_for(Segment(0), SourceId(device), &far);
        all.map(|r| r.memory.first.0).collect()
    };
    assert_eq!(of(PF), [0x10, 0x20]);
    for vf in [PF + 0x80, PF + 0xff, PF + 0x101] {
        assert_eq!(
            far.physical_function_of(Segment(0), SourceId(vf)),
            Some(SourceId(PF))
        );
        let told = "a VF reaches memory that is reserved for its PF";
        assert_eq!(
            of(vf),
            [0x20],
            "{told}, or not what its bridge lists: {vf:#x}"
        );
    }
}

/// More VFs than a bus has room for are on the next ones.
#[test]
fn virtual_functions_on_other_buses_and_odd_layouts() {
    let owner = |pci: SrIov, device| pci.physical_function_of(Segment(0), SourceId(device));
    let found = Some(SourceId(PF));
    let far = SrIov {
        count: 300,
        stride: 1,
        ..PLAIN
    };
    for vf in [PF + 0x80, PF + 0xff, PF + 0x101, PF + 0x80 + 299] {
        assert_eq!(owner(far, vf), found, "{vf:#x}");
    }
    assert_eq!(owner(far, PF + 0x80 + 300), None);
    assert_eq!(owner(far, 0x200), None, "a function of its own");
    let top = SrIov {
        count: u16::MAX,
        first: 1,
        stride: u16::MAX,
        ..PLAIN
    };
    assert_eq!([PF + 1, PF + 2].map(|d| owner(top, d)), [found, None]);
    let one = SrIov {
        count: 1,
        stride: 0,
        ..PLAIN
    };
    assert_eq!([PF + 0x80, PF + 0x81].map(|d| owner(one, d)), [found, None]);
    for none in [
        SrIov { count: 0, ..PLAIN },
        SrIov { first: 0, ..PLAIN },
        SrIov {
            enabled: false,
            ..PLAIN
        },
    ] {
        let all = (PF + 1..PF + 0x200).map(|d| owner(none, d));
        assert!(all.into_iter().all(|owner| owner.is_none()));
    }
}

#[test]
fn a_list_of_capabilities_is_followed_and_one_without_end_is_left() {
    let owner = |next: u16| {
        let pci = SrIov {
            ahead: Some(next),
            ..PLAIN
        };
        pci.physical_function_of(Segment(0), SourceId(PF + 0x80))
    };
    assert_eq!(owner(0x140), Some(SourceId(PF)), "behind another one");
    assert_eq!(
        owner(0x142),
        Some(SourceId(PF)),
        "bits 1 and 0 are reserved"
    );
    assert_eq!(owner(0xfd0), Some(SourceId(PF)), "the last that fits");
    assert_eq!(owner(0xff0), None, "beyond the end of the space");
    assert_eq!(owner(0x100), None, "a circle");
    assert_eq!(owner(0x0fc), None, "outside the extended space");
    assert_eq!(owner(0), None, "the end");
}

/// Access by port reaches no extended capability: what knows the machine answers itself.
#[test]
fn an_embedder_may_know_physical_functions_from_elsewhere() {
    struct ByPort;
    impl PciConfig for ByPort {
        fn read32(&self, segment: Segment, function: SourceId, offset: u16) -> u32 {
            match offset {
                0..0x100 => PLAIN.read32(segment, function, offset),
                _ => u32::MAX,
            }
        }
        fn physical_function_of(&self, _: Segment, function: SourceId) -> Option<SourceId> {
            (function.0 == PF + 0x80).then_some(SourceId(PF))
        }
    }
    let dmar = of_pf();
    let of = |device| dmar.unit_for(Segment(0), SourceId(device), &ByPort);
    assert_eq!([PF + 0x80, PF + 0x82].map(of), [Some(0), Some(1)]);
}
