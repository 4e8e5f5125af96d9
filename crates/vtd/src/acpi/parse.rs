// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From bytes to values. Every length is checked against its container before anything in it is
//! read.

use super::{layout::*, *};
use ioatlas_dma::units::{PHYS_BITS, PageCount};

/// Bytes, and where they lie in the table.
#[derive(Clone, Copy)]
struct Bytes<'t> {
    all: &'t [u8],
    offset: usize,
}

impl<'t> Bytes<'t> {
    /// `N` bytes at `at`; zeros where there are none, which the callers' length checks rule out.
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let bytes = self.all.get(at..at + N);
        bytes.and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }
    fn u8(self, at: usize) -> u8 {
        u8::from_le_bytes(self.array(at))
    }
    fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }
    fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }
    fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }
    fn len(self) -> usize {
        self.all.len()
    }
    /// The first `len` bytes and the rest; no rest where there are fewer.
    fn split(self, len: usize) -> (Self, Self) {
        let (first, rest) = self.all.split_at(len.min(self.all.len()));
        let offset = self.offset + first.len();
        let rest = Bytes { all: rest, offset };
        (Bytes { all: first, ..self }, rest)
    }
}

impl Dmar {
    /// Reads a table. Bytes beyond the length that its header states are ignored.
    ///
    /// # Errors
    /// [`DmarError`]: the table is malformed.
    pub fn parse(table: &[u8]) -> Result<Dmar, DmarError> {
        let bytes = table.len();
        let table = Bytes {
            all: table,
            offset: 0,
        };
        if bytes < HEADER {
            return Err(DmarError::Short { bytes });
        }
        let found = table.array(0);
        if found != SIGNATURE {
            return Err(DmarError::Signature { found });
        }
        let says = table.u32(LENGTH_AT);
        if (says as usize) < HEADER || says as usize > bytes {
            return Err(DmarError::Length { says, bytes });
        }
        let (table, _) = table.split(says as usize);
        match sum(table.all) {
            0 => {}
            sum => return Err(DmarError::Checksum { sum }),
        }
        let (header, mut rest) = table.split(HEADER);
        let mut dmar = Dmar::of_header(header);
        while rest.len() > 0 {
            let structure;
            (structure, rest) = next_structure(rest)?;
            dmar.take_in(structure)?;
        }
        Ok(dmar)
    }

    fn of_header(header: Bytes<'_>) -> Dmar {
        let flags = header.u8(37);
        Dmar {
            maker: Maker {
                revision: header.u8(8),
                oem: header.array(10),
                oem_table: header.array(16),
                oem_revision: header.u32(24),
                creator: header.array(28),
                creator_revision: header.u32(32),
            },
            host_address_bits: u16::from(header.u8(36)) + 1,
            interrupt_remapping: flags & 1 != 0,
            x2apic_opt_out: flags >> 1 & 1 != 0,
            dma_opt_in: flags >> 2 & 1 != 0,
            units: Vec::new(),
            reserved: Vec::new(),
            ats: Vec::new(),
            affinity: Vec::new(),
            names: Vec::new(),
            skipped: 0,
        }
    }

    fn take_in(&mut self, structure: Bytes<'_>) -> Result<(), DmarError> {
        match structure.u16(0) {
            DRHD => {
                let (offset, unit) = (structure.offset, unit(structure)?);
                let (registers, segment) = (unit.registers, unit.segment);
                match unit.conflict(&self.units) {
                    None => self.units.push(unit),
                    Some(Conflict::Registers) => {
                        return Err(DmarError::SameRegisters { offset, registers });
                    }
                    Some(Conflict::Rest) => return Err(DmarError::TwoRests { offset, segment }),
                }
            }
            RMRR => self.reserved.push(reserved(structure)?),
            ATSR => self.ats.push(Atsr {
                segment: Segment(structure.u16(6)),
                ports: covers(structure.u8(4)),
                scopes: scopes(structure.split(ATSR_BYTES).1)?,
            }),
            RHSA => self.affinity.push(Rhsa {
                registers: PhysAddr(structure.u64(8)),
                proximity: structure.u32(16),
            }),
            ANDD => self.names.push(name(structure)?),
            _ => self.skipped += 1,
        }
        Ok(())
    }
}

/// Cuts the next structure off.
fn next_structure(rest: Bytes<'_>) -> Result<(Bytes<'_>, Bytes<'_>), DmarError> {
    let (offset, left) = (rest.offset, rest.len());
    if left < STRUCTURE_HEADER {
        return Err(DmarError::Tail { offset, left });
    }
    let (kind, says) = (rest.u16(0), usize::from(rest.u16(2)));
    let least = match kind {
        DRHD => DRHD_BYTES,
        RMRR => RMRR_BYTES,
        ATSR => ATSR_BYTES,
        RHSA => RHSA_BYTES,
        ANDD => ANDD_BYTES,
        _ => STRUCTURE_HEADER,
    };
    match says < least || says > left {
        true => Err(DmarError::Structure {
            offset,
            kind,
            says,
            least,
            left,
        }),
        false => Ok(rest.split(says)),
    }
}

/// INCLUDE_PCI_ALL and ALL_PORTS are bit 0.
fn covers(flags: u8) -> Covers {
    match flags & 1 {
        0 => Covers::Listed,
        _ => Covers::Rest,
    }
}

fn unit(structure: Bytes<'_>) -> Result<Drhd, DmarError> {
    let (offset, registers) = (structure.offset, PhysAddr(structure.u64(8)));
    let unit = Drhd {
        segment: Segment(structure.u16(6)),
        registers,
        register_pages_lg2: structure.u8(5) & 0xf,
        devices: covers(structure.u8(4)),
        scopes: scopes(structure.split(DRHD_BYTES).1)?,
    };
    match unit.has_a_place() {
        true => Ok(unit),
        false => Err(DmarError::Registers { offset, registers }),
    }
}

fn reserved(structure: Bytes<'_>) -> Result<Rmrr, DmarError> {
    let (base, limit) = (PhysAddr(structure.u64(8)), PhysAddr(structure.u64(16)));
    let end = PhysAddr(limit.0.wrapping_add(1));
    let whole = base.offset() == 0 && end.offset() == 0;
    if !whole || end <= base || limit.0 >> PHYS_BITS != 0 {
        let offset = structure.offset;
        return Err(DmarError::Reserved {
            offset,
            base,
            limit,
        });
    }
    let pages = PageCount(end.page().0 - base.page().0);
    Ok(Rmrr {
        segment: Segment(structure.u16(6)),
        memory: PhysRun::new(base.page(), pages),
        scopes: scopes(structure.split(RMRR_BYTES).1)?,
    })
}

fn name(structure: Bytes<'_>) -> Result<Andd, DmarError> {
    let (_, text) = structure.split(ANDD_BYTES);
    let wrong = DmarError::Name {
        offset: text.offset,
    };
    let end = text.all.iter().position(|b| *b == 0).ok_or(wrong)?;
    let name = core::str::from_utf8(&text.all[..end]);
    let name = name.ok().filter(|name| name.is_ascii()).ok_or(wrong)?;
    Ok(Andd {
        number: structure.u8(7),
        name: name.into(),
    })
}

fn scopes(mut rest: Bytes<'_>) -> Result<Vec<Scope>, DmarError> {
    let mut all = Vec::new();
    while rest.len() > 0 {
        let (offset, left) = (rest.offset, rest.len());
        if left < SCOPE_HEADER + STEP {
            return Err(DmarError::Tail { offset, left });
        }
        let says = usize::from(rest.u8(1));
        if says < SCOPE_HEADER + STEP || !says.is_multiple_of(STEP) || says > left {
            return Err(DmarError::Scope { offset, says, left });
        }
        let scope;
        (scope, rest) = rest.split(says);
        all.push(Scope {
            kind: ScopeKind::of(scope.u8(0)),
            enumeration_id: scope.u8(4),
            start_bus: scope.u8(5),
            path: path(scope.split(SCOPE_HEADER).1)?,
        });
    }
    Ok(all)
}

fn path(bytes: Bytes<'_>) -> Result<Vec<PathStep>, DmarError> {
    let steps = bytes.all.chunks_exact(STEP).enumerate();
    steps
        .map(|(n, step)| {
            let (device, function) = (step[0], step[1]);
            match device < 32 && function < 8 {
                true => Ok(PathStep { device, function }),
                false => Err(DmarError::Path {
                    offset: bytes.offset + n * STEP,
                    device,
                    function,
                }),
            }
        })
        .collect()
}
