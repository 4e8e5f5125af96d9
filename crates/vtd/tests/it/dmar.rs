// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The ACPI table DMAR: what firmware wrote, read; what we build, read back; whatever is malformed,
//! an error that says where.

use ioatlas_dma::units::*;
use ioatlas_vtd::acpi::*;
use proptest::prelude::*;

/// What QEMU 7.2 (`q35`, `intel-iommu,device-iotlb=on,intremap=on`, a root port) gives its firmware
/// in `etc/acpi/tables`, read over its test socket. The checksum is firmware's to fill in, and is
/// here.
const QEMU: [u8; 120] = [
    0x44, 0x4d, 0x41, 0x52, 0x78, 0x00, 0x00, 0x00, 0x01, 0x14, 0x42, 0x4f, 0x43, 0x48, 0x53, 0x20,
    0x42, 0x58, 0x50, 0x43, 0x20, 0x20, 0x20, 0x20, 0x01, 0x00, 0x00, 0x00, 0x42, 0x58, 0x50, 0x43,
    0x01, 0x00, 0x00, 0x00, 0x26, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xd9, 0xfe, 0x00, 0x00, 0x00, 0x00,
    0x03, 0x08, 0x00, 0x00, 0x00, 0xff, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x02, 0x08, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x1f, 0x00,
    0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x1f, 0x02, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x1f, 0x03,
    0x02, 0x00, 0x08, 0x00, 0x01, 0x00, 0x00, 0x00,
];

const NOWHERE: fn(Segment, SourceId, u16) -> u32 = |_, _, _| u32::MAX;

#[test]
fn the_table_of_qemu_says_what_qemu_has_and_is_built_again_byte_for_byte() {
    let dmar = Dmar::parse(&QEMU).unwrap();
    assert_eq!(dmar.maker.oem, *b"BOCHS ");
    assert_eq!(
        (dmar.host_address_bits, dmar.interrupt_remapping),
        (39, true)
    );
    let [unit] = &dmar.units[..] else {
        panic!("{dmar:?}")
    };
    assert_eq!(unit.registers, PhysAddr(0xfed9_0000));
    assert_eq!(
        (unit.register_bytes(), unit.devices),
        (ByteCount(4096), Covers::Listed)
    );
    let named: Vec<_> = unit
        .scopes
        .iter()
        .map(|s| (s.kind, s.start_bus, s.path[0].device))
        .collect();
    let expected = [
        (ScopeKind::IoApic, 0xff, 0),
        (ScopeKind::Endpoint, 0, 0),
        (ScopeKind::Bridge, 0, 1),
        (ScopeKind::Endpoint, 0, 0x1f),
        (ScopeKind::Endpoint, 0, 0x1f),
        (ScopeKind::Endpoint, 0, 0x1f),
    ];
    assert_eq!(named, expected);
    let [ats] = &dmar.ats[..] else {
        panic!("{dmar:?}")
    };
    assert_eq!(ats.ports, Covers::Rest);
    assert!(dmar.may_use_ats(Segment(0), SourceId(0xfa), &NOWHERE));
    assert_eq!(dmar.unit_for(Segment(0), SourceId(0xfa), &NOWHERE), Some(0));
    assert_eq!(dmar.unit_for(Segment(0), SourceId(0x20), &NOWHERE), None);
    assert_eq!((dmar.skipped, dmar.build().unwrap()), (0, QEMU.to_vec()));
}

/// Around `structures`, a header with the right length and checksum.
fn table(structures: &[u8]) -> Vec<u8> {
    let mut table = QEMU[..48].to_vec();
    table.extend(structures);
    sealed(table)
}

fn sealed(mut table: Vec<u8>) -> Vec<u8> {
    let length = table.len() as u32;
    table[4..8].copy_from_slice(&length.to_le_bytes());
    table[9] = 0;
    let sum = table.iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
    table[9] = sum.wrapping_neg();
    table
}

/// One of each kind, by the offsets of the specification (§8.3 to §8.9), not by our builder.
#[rustfmt::skip]
fn one_of_each() -> Vec<u8> {
    table(&[
        // DRHD: size 2^2 pages, segment 0x102, registers 0x9_1234_5000; behind bridges 1.0 and 2.3
        // the function 4.5
        0, 0, 26, 0,  0, 2, 2, 1,  0, 0x50, 0x34, 0x12, 9, 0, 0, 0,  1, 10, 0, 0, 0, 7, 1, 0, 4, 5,
        // DRHD: the rest of segment 0x102
        0, 0, 16, 0,  1, 0, 2, 1,  0, 0x60, 0x34, 0x12, 9, 0, 0, 0,
        // RMRR: segment 0x102, 0x7f00_0000 to 0x7f01_ffff, endpoint 0x1a.0
        1, 0, 32, 0,  0, 0, 2, 1,  0, 0, 0, 0x7f, 0, 0, 0, 0,  0xff, 0xff, 1, 0x7f, 0, 0, 0, 0,
        1, 8, 0, 0, 0, 0, 0x1a, 0,
        // ATSR: bridge 0x1c.0
        2, 0, 16, 0,  0, 0, 2, 1,  2, 8, 0, 0, 0, 0, 0x1c, 0,
        // RHSA: proximity 0x403
        3, 0, 20, 0,  0, 0, 0, 0,  0, 0x50, 0x34, 0x12, 9, 0, 0, 0,  3, 4, 0, 0,
        // ANDD: device 6, "\\_A"
        4, 0, 12, 0,  0, 0, 0, 6,  b'\\', b'_', b'A', 0,
        // SATC, SIDP, and a kind of the future
        5, 0, 8, 0, 0, 0, 0, 0,  6, 0, 8, 0, 0, 0, 0, 0,  0xfe, 0xca, 4, 0,
    ])
}

#[test]
fn every_field_is_where_the_specification_has_it() {
    let dmar = Dmar::parse(&one_of_each()).unwrap();
    let segment = Segment(0x102);
    let step = |device, function| PathStep { device, function };
    let unit = Drhd {
        segment,
        registers: PhysAddr(0x9_1234_5000),
        register_pages_lg2: 2,
        devices: Covers::Listed,
        scopes: vec![Scope {
            kind: ScopeKind::Endpoint,
            enumeration_id: 0,
            start_bus: 7,
            path: vec![step(1, 0), step(4, 5)],
        }],
    };
    assert_eq!(dmar.units[0], unit);
    assert_eq!((dmar.units[1].devices, dmar.units.len()), (Covers::Rest, 2));
    let memory = PhysRun::new(PhysPage(0x7f000), PageCount(0x20));
    let scopes = vec![Scope::endpoint(SourceId(0xd0))];
    let rmrr = Rmrr {
        segment,
        memory,
        scopes,
    };
    assert_eq!(dmar.reserved, [rmrr]);
    let scopes = vec![Scope::bridge(SourceId(0xe0))];
    let ports = Covers::Listed;
    assert_eq!(
        dmar.ats,
        [Atsr {
            segment,
            ports,
            scopes
        }]
    );
    let registers = PhysAddr(0x9_1234_5000);
    assert_eq!(
        dmar.affinity,
        [Rhsa {
            registers,
            proximity: 0x403
        }]
    );
    assert_eq!(
        dmar.names,
        [Andd {
            number: 6,
            name: "\\_A".into()
        }]
    );
    assert_eq!(dmar.skipped, 3);
}

/// Each way in which a table can be malformed: bytes put at an offset of the table above, and the
/// error.
#[test]
fn what_is_malformed_is_an_error_that_says_where() {
    let segment = Segment(0x102);
    let cases: &[(usize, &[u8], DmarError)] = &[
        (0, b"APIC", DmarError::Signature { found: *b"APIC" }),
        // a unit shorter than one, and one that is longer than the table
        (
            0x32,
            &[15, 0],
            DmarError::Structure {
                offset: 0x30,
                kind: 0,
                says: 15,
                least: 16,
                left: 142,
            },
        ),
        (
            0x32,
            &[143, 0],
            DmarError::Structure {
                offset: 0x30,
                kind: 0,
                says: 143,
                least: 16,
                left: 142,
            },
        ),
        (
            0x32,
            &[0, 0],
            DmarError::Structure {
                offset: 0x30,
                kind: 0,
                says: 0,
                least: 16,
                left: 142,
            },
        ),
        // a scope of an odd length, of none, of no step, and beyond its unit
        (
            0x41,
            &[9],
            DmarError::Scope {
                offset: 0x40,
                says: 9,
                left: 10,
            },
        ),
        (
            0x41,
            &[0],
            DmarError::Scope {
                offset: 0x40,
                says: 0,
                left: 10,
            },
        ),
        (
            0x41,
            &[6],
            DmarError::Scope {
                offset: 0x40,
                says: 6,
                left: 10,
            },
        ),
        (
            0x41,
            &[12],
            DmarError::Scope {
                offset: 0x40,
                says: 12,
                left: 10,
            },
        ),
        // one that leaves too little for another
        (
            0x41,
            &[8],
            DmarError::Tail {
                offset: 0x48,
                left: 2,
            },
        ),
        (
            0x48,
            &[32, 5],
            DmarError::Path {
                offset: 0x48,
                device: 32,
                function: 5,
            },
        ),
        (
            0x48,
            &[4, 8],
            DmarError::Path {
                offset: 0x48,
                device: 4,
                function: 8,
            },
        ),
        // registers at 0, inside a page, beyond 52 bits, and those of the other unit
        (
            0x38,
            &[0; 8],
            DmarError::Registers {
                offset: 0x30,
                registers: PhysAddr(0),
            },
        ),
        (
            0x38,
            &[1],
            DmarError::Registers {
                offset: 0x30,
                registers: PhysAddr(0x9_1234_5001),
            },
        ),
        (
            0x38,
            &[0, 0, 0, 0, 0, 0, 16],
            DmarError::Registers {
                offset: 0x30,
                registers: PhysAddr(16 << 48),
            },
        ),
        (
            0x53,
            &[0x50],
            DmarError::SameRegisters {
                offset: 0x4a,
                registers: PhysAddr(0x9_1234_5000),
            },
        ),
        (
            0x34,
            &[1],
            DmarError::TwoRests {
                offset: 0x4a,
                segment,
            },
        ),
        // memory that begins or ends inside a page, ends before it begins, or is all there is
        (
            0x62,
            &[1],
            DmarError::Reserved {
                offset: 0x5a,
                base: PhysAddr(0x7f00_0001),
                limit: PhysAddr(0x7f01_ffff),
            },
        ),
        (
            0x6a,
            &[0xfe],
            DmarError::Reserved {
                offset: 0x5a,
                base: PhysAddr(0x7f00_0000),
                limit: PhysAddr(0x7f01_fffe),
            },
        ),
        (
            0x6d,
            &[0x7e],
            DmarError::Reserved {
                offset: 0x5a,
                base: PhysAddr(0x7f00_0000),
                limit: PhysAddr(0x7e01_ffff),
            },
        ),
        (
            0x6a,
            &[0xff; 8],
            DmarError::Reserved {
                offset: 0x5a,
                base: PhysAddr(0x7f00_0000),
                limit: PhysAddr(u64::MAX),
            },
        ),
        // a name that does not end, and one that is no text
        (0xa9, b"x", DmarError::Name { offset: 0xa6 }),
        (0xa6, &[0xc3], DmarError::Name { offset: 0xa6 }),
        // the last structure but one leaves too little for another
        (
            0xb4,
            &[9, 0],
            DmarError::Tail {
                offset: 0xbb,
                left: 3,
            },
        ),
    ];
    let good = one_of_each();
    assert!(Dmar::parse(&good).is_ok());
    for (at, bytes, error) in cases {
        let mut bad = good.clone();
        bad[*at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(
            Dmar::parse(&sealed(bad)),
            Err(*error),
            "{bytes:02x?} at {at:#x}"
        );
    }
}

#[test]
fn a_header_that_lies_is_refused() {
    let good = one_of_each();
    let bytes = good.len();
    for cut in 0..48 {
        assert_eq!(
            Dmar::parse(&good[..cut]),
            Err(DmarError::Short { bytes: cut })
        );
    }
    let (says, bytes) = (bytes as u32, bytes - 1);
    assert_eq!(
        Dmar::parse(&good[..bytes]),
        Err(DmarError::Length { says, bytes })
    );
    let mut small = good.clone();
    small[4..8].copy_from_slice(&47u32.to_le_bytes());
    let bytes = small.len();
    assert_eq!(
        Dmar::parse(&small),
        Err(DmarError::Length { says: 47, bytes })
    );
    // what follows the table is not read
    let mut long = good.clone();
    long.extend([1, 2, 3]);
    assert_eq!(Dmar::parse(&long), Dmar::parse(&good));
    // of every byte, one bit
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(Dmar::parse(&bad).is_err(), "byte {at:#x}");
    }
}

proptest! {
    /// Bytes anywhere changed, lengths and checksum of the table made right again: a value or an
    /// error, and a value can be built again.
    #[test]
    fn changed_bytes_are_a_table_or_an_error(changes in prop::collection::vec((0x30usize..0xbe, any::<u8>()), 1..4), cut in 0usize..0x8e) {
        let mut bytes = one_of_each();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - cut);
        if let Ok(dmar) = Dmar::parse(&sealed(bytes)) {
            let mut again = dmar.clone();
            again.skipped = 0;
            again.units.sort_by_key(|u| u.devices == Covers::Rest);
            prop_assert_eq!(Dmar::parse(&dmar.build().unwrap()), Ok(again));
        }
    }
}
