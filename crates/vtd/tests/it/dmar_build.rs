// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is built is what was meant, or it is not built.

use ioatlas_dma::units::*;
use ioatlas_vtd::acpi::*;
use proptest::prelude::*;

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
fn what_has_no_encoding_is_not_built() {
    let build = |change: fn(&mut Dmar)| {
        let mut dmar = Dmar::new(48);
        dmar.units = vec![unit(
            0x1000,
            Covers::Rest,
            vec![Scope::endpoint(SourceId(0xc8))],
        )];
        change(&mut dmar);
        dmar.build().map(drop)
    };
    assert_eq!(build(|_| {}), Ok(()));
    let registers = PhysAddr(0x1000);
    type Case = (fn(&mut Dmar), BuildError);
    let cases: [Case; 11] = [
        (
            |d| d.host_address_bits = 0,
            BuildError::AddressBits { bits: 0 },
        ),
        (
            |d| d.host_address_bits = 257,
            BuildError::AddressBits { bits: 257 },
        ),
        (
            |d| d.units[0].scopes[0].path.clear(),
            BuildError::Path { steps: 0 },
        ),
        (
            |d| {
                d.units[0].scopes[0].path = vec![
                    PathStep {
                        device: 0,
                        function: 0
                    };
                    125
                ]
            },
            BuildError::Path { steps: 125 },
        ),
        (
            |d| d.units[0].scopes[0].path[0].device = 32,
            BuildError::Step {
                device: 32,
                function: 0,
            },
        ),
        (
            |d| d.units[0].scopes = vec![Scope::endpoint(SourceId(0)); 9000],
            BuildError::Structure {
                kind: 0,
                bytes: 72_016,
            },
        ),
        (
            |d| d.units[0].register_pages_lg2 = 16,
            BuildError::Registers {
                registers,
                pages_lg2: 16,
            },
        ),
        (
            |d| d.units[0].registers = PhysAddr((1 << 52) - 0x800),
            BuildError::Registers {
                registers: PhysAddr((1 << 52) - 0x800),
                pages_lg2: 0,
            },
        ),
        (
            |d| d.units.push(unit(0x1000, Covers::Listed, vec![])),
            BuildError::SameRegisters { registers },
        ),
        (
            |d| d.units.push(unit(0x2000, Covers::Rest, vec![])),
            BuildError::TwoRests {
                segment: Segment(0),
            },
        ),
        (
            |d| {
                d.names = vec![Andd {
                    number: 3,
                    name: "a\0b".into(),
                }]
            },
            BuildError::Name { number: 3 },
        ),
    ];
    for (change, error) in cases {
        assert_eq!(build(change), Err(error));
    }
    for (first, pages) in [(0x1000, 0), ((1 << 40) - 1, 2), (u64::MAX >> 12, u64::MAX)] {
        let mut dmar = Dmar::new(48);
        let memory = PhysRun::new(PhysPage(first), PageCount(pages));
        dmar.reserved = vec![Rmrr {
            segment: Segment(0),
            memory,
            scopes: vec![],
        }];
        let first = PhysPage(first).addr();
        assert_eq!(dmar.build(), Err(BuildError::Reserved { first, pages }));
    }
}

fn scopes() -> impl Strategy<Value = Vec<Scope>> {
    let step = (0u8..32, 0u8..8).prop_map(|(device, function)| PathStep { device, function });
    const KINDS: [ScopeKind; 7] = [
        ScopeKind::Endpoint,
        ScopeKind::Bridge,
        ScopeKind::IoApic,
        ScopeKind::Timer,
        ScopeKind::AcpiDevice,
        ScopeKind::Other(0),
        ScopeKind::Other(200),
    ];
    let scope = (
        prop::sample::select(&KINDS[..]),
        any::<u8>(),
        any::<u8>(),
        prop::collection::vec(step, 1..5),
    );
    let scope = scope.prop_map(|(kind, enumeration_id, start_bus, path)| Scope {
        kind,
        enumeration_id,
        start_bus,
        path,
    });
    prop::collection::vec(scope, 0..4)
}

fn covers() -> impl Strategy<Value = Covers> {
    prop_oneof![Just(Covers::Listed), Just(Covers::Rest)]
}

prop_compose! {
    fn some_dmar()(
        header in (1u16..=256, any::<[bool; 3]>(), any::<[u8; 6]>(), any::<[u8; 8]>(), any::<u32>(), any::<[u8; 4]>(), any::<u8>()),
        // places of their own, and segments of their own
        units in prop::collection::vec((0u64..1 << 20, 0u8..8, covers(), scopes()), 0..4),
        reserved in prop::collection::vec((any::<u16>(), 0u64..1 << 39, 1u64..1 << 39, scopes()), 0..3),
        ats in prop::collection::vec((any::<u16>(), covers(), scopes()), 0..3),
        affinity in prop::collection::vec((any::<u64>(), any::<u32>()), 0..3),
        names in prop::collection::vec((any::<u8>(), "[ -~]{0,20}"), 0..3),
    ) -> Dmar {
        let (host_address_bits, flags, oem, oem_table, number, creator, revision) = header;
        let [interrupt_remapping, x2apic_opt_out, dma_opt_in] = flags;
        let mut units: Vec<_> = units.into_iter().enumerate().map(|(n, (page, register_pages_lg2, devices, scopes))| Drhd {
            segment: Segment(n as u16),
            registers: PhysAddr(((n as u64 + 1) << 32) + (page << 12)),
            register_pages_lg2,
            devices,
            scopes,
        }).collect();
        units.sort_by_key(|u| u.devices == Covers::Rest);
        Dmar {
            maker: Maker { revision, oem, oem_table, oem_revision: number, creator, creator_revision: !number },
            host_address_bits,
            interrupt_remapping,
            x2apic_opt_out,
            dma_opt_in,
            units,
            reserved: reserved.into_iter().map(|(segment, first, pages, scopes)| Rmrr {
                segment: Segment(segment), memory: PhysRun::new(PhysPage(first), PageCount(pages)), scopes,
            }).collect(),
            ats: ats.into_iter().map(|(segment, ports, scopes)| Atsr { segment: Segment(segment), ports, scopes }).collect(),
            affinity: affinity.into_iter().map(|(at, proximity)| Rhsa { registers: PhysAddr(at), proximity }).collect(),
            names: names.into_iter().map(|(number, name)| Andd { number, name }).collect(),
            skipped: 0,
        }
    }
}

proptest! {
    #[test]
    fn what_was_built_parses_to_the_same(dmar in some_dmar()) {
        let table = dmar.build().unwrap();
        prop_assert_eq!(Dmar::parse(&table), Ok(dmar));
    }
}
