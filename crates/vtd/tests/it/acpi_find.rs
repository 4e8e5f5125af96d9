// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From the root pointer to the table: both versions, both root tables, and every step at which
//! firmware can be wrong.

use ioatlas_dma::units::PhysAddr;
use ioatlas_vtd::acpi::find::{self, FindError, PhysRead, Unreadable};
use std::collections::BTreeMap;

/// Pieces of memory by address; between them is nothing that can be read.
#[derive(Default)]
struct Pieces(BTreeMap<u64, Vec<u8>>);

impl PhysRead for Pieces {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Result<(), Unreadable> {
        let (start, bytes) = self.0.range(..=at.0).next_back().ok_or(Unreadable)?;
        let from = (at.0 - start) as usize;
        let found = bytes.get(from..).and_then(|b| b.get(..into.len()));
        into.copy_from_slice(found.ok_or(Unreadable)?);
        Ok(())
    }
}

fn seal(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    let sum = bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
    bytes[at] = sum.wrapping_neg();
}

fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut table = vec![0; 36];
    table[..4].copy_from_slice(signature);
    table[4..8].copy_from_slice(&(36 + body.len() as u32).to_le_bytes());
    table.extend(body);
    seal(&mut table, 9);
    table
}

/// Where things are here.
const POINTER: u64 = 0xf_5ad0;
const RSDT: u64 = 0x7fe_2000;
const XSDT: u64 = 0x7fe_3000;
const FADT: u64 = 0x7fe_4000;
const DMAR: u64 = 0x7fe_5000;
const HIGH_DMAR: u64 = 0x12_3456_7000;

fn pointer(revision: u8) -> Vec<u8> {
    let mut pointer = b"RSD PTR ".to_vec();
    pointer.extend([0; 7]);
    pointer.push(revision);
    pointer.extend((RSDT as u32).to_le_bytes());
    seal(&mut pointer, 8);
    if revision >= 2 {
        pointer.extend(36u32.to_le_bytes());
        pointer.extend(XSDT.to_le_bytes());
        pointer.extend([0; 4]);
        seal(&mut pointer, 32);
    }
    pointer
}

/// A machine whose old and new root tables name different tables.
fn machine(revision: u8) -> Pieces {
    let old: Vec<u8> = [FADT, DMAR]
        .iter()
        .flat_map(|a| (*a as u32).to_le_bytes())
        .collect();
    let new: Vec<u8> = [FADT, HIGH_DMAR]
        .iter()
        .flat_map(|a| a.to_le_bytes())
        .collect();
    let mut bios = vec![0; 0x2_0000];
    let pointer = pointer(revision);
    bios[(POINTER - 0xe_0000) as usize..][..pointer.len()].copy_from_slice(&pointer);
    Pieces(BTreeMap::from([
        (0xe_0000, bios),
        (RSDT, table(b"RSDT", &old)),
        (XSDT, table(b"XSDT", &new)),
        (FADT, table(b"FACP", &[7; 100])),
        (DMAR, table(b"DMAR", &[1; 12])),
        (HIGH_DMAR, table(b"DMAR", &[2; 12])),
    ]))
}

/// A machine whose firmware announces units by this table.
pub fn announcing(dmar: Vec<u8>) -> impl PhysRead {
    let mut machine = machine(2);
    machine.0.insert(HIGH_DMAR, dmar);
    machine
}
/// One whose firmware announces none.
pub fn without_units() -> impl PhysRead {
    announcing(table(b"FACP", &[7; 100]))
}

fn found(machine: &Pieces) -> Result<Vec<u8>, FindError> {
    find::dmar(machine, find::root_pointer(machine)?)
}

#[test]
fn each_version_leads_to_its_table() {
    for (revision, at) in [(0, DMAR), (2, HIGH_DMAR)] {
        let machine = machine(revision);
        assert_eq!(find::root_pointer(&machine), Ok(PhysAddr(POINTER)));
        assert_eq!(
            found(&machine),
            Ok(machine.0[&at].clone()),
            "revision {revision}"
        );
    }
    // a new pointer without a new table
    let mut machine = machine(2);
    let bios = machine.0.get_mut(&0xe_0000).unwrap();
    let pointer = &mut bios[(POINTER - 0xe_0000) as usize..][..36];
    pointer[24..32].fill(0);
    seal(pointer, 32);
    assert_eq!(found(&machine), Ok(machine.0[&DMAR].clone()));
}

#[test]
fn the_data_area_is_looked_at_too() {
    let mut machine = machine(2);
    machine.0.insert(0xe_0000, vec![0; 0x2_0000]);
    assert_eq!(find::root_pointer(&machine), Err(FindError::NoRootPointer));
    machine.0.insert(0x40e, vec![0xc0, 0x9f]);
    assert_eq!(find::root_pointer(&machine), Err(FindError::NoRootPointer));
    let mut area = vec![0; 1024];
    area[1024 - 48..][..36].copy_from_slice(&pointer(2));
    machine.0.insert(0x9_fc00, area);
    assert_eq!(
        find::root_pointer(&machine),
        Ok(PhysAddr(0x9_fc00 + 1024 - 48))
    );
    assert_eq!(found(&machine), Ok(machine.0[&HIGH_DMAR].clone()));
}

#[test]
fn each_wrong_step_is_named() {
    type Case = (fn(&mut Pieces), FindError);
    let (root, rest) = (PhysAddr(POINTER), PhysAddr(POINTER));
    let cases: [Case; 8] = [
        (
            |m| m.0.get_mut(&0xe_0000).unwrap()[0x1_5ad0 + 9] += 1,
            FindError::NotRootPointer { at: root },
        ),
        // only the long sum is wrong
        (
            |m| m.0.get_mut(&0xe_0000).unwrap()[0x1_5ad0 + 33] += 1,
            FindError::NotRootPointer { at: rest },
        ),
        (
            |m| m.0.get_mut(&XSDT).unwrap()[40] += 1,
            FindError::NotRootTable { at: PhysAddr(XSDT) },
        ),
        (
            |m| drop(m.0.insert(XSDT, table(b"RSDT", &[0; 8]))),
            FindError::NotRootTable { at: PhysAddr(XSDT) },
        ),
        (
            |m| m.0.get_mut(&XSDT).unwrap()[4..8].copy_from_slice(&35u32.to_le_bytes()),
            FindError::Length {
                at: PhysAddr(XSDT),
                bytes: 35,
            },
        ),
        (
            |m| m.0.get_mut(&HIGH_DMAR).unwrap()[4..8].fill(0xff),
            FindError::Length {
                at: PhysAddr(HIGH_DMAR),
                bytes: u32::MAX,
            },
        ),
        (
            |m| m.0.get_mut(&HIGH_DMAR).unwrap()[4..8].copy_from_slice(&49u32.to_le_bytes()),
            FindError::Unreadable {
                at: PhysAddr(HIGH_DMAR),
                bytes: 49,
            },
        ),
        (
            |m| drop(m.0.remove(&HIGH_DMAR)),
            FindError::NoDmar { tables: 2 },
        ),
    ];
    for (change, error) in cases {
        let mut machine = machine(2);
        change(&mut machine);
        assert_eq!(find::dmar(&machine, PhysAddr(POINTER)), Err(error));
    }
}

#[test]
fn nothing_that_can_be_read_is_an_error() {
    let nothing = Pieces::default();
    assert_eq!(found(&nothing), Err(FindError::NoRootPointer));
    let error = FindError::Unreadable {
        at: PhysAddr(u64::MAX),
        bytes: 20,
    };
    assert_eq!(find::dmar(&nothing, PhysAddr(u64::MAX)), Err(error));
}
