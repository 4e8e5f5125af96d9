// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Faults: why an access is blocked, and what is recorded of it (VT-d 4.1 §7.1.3).

mod recorder;

pub(crate) use recorder::FaultRecorder;

use core::fmt;
use ioatlas_dma::units::*;

/// Why an access does not get through; the numbers are those of VT-d 4.1 §7.1.3, legacy mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultReason {
    /// 1h: the bus has no root entry.
    RootNotPresent,
    /// 2h: the device has no context entry.
    ContextNotPresent,
    /// 3h: address width, translation type or domain id of the context entry are not supported.
    ContextInvalid,
    /// 4h: the address is beyond what the tables can translate.
    BeyondAperture,
    /// 5h or 6h by kind: the entry at `level` permits neither reads nor writes.
    NotPresent {
        /// What the access was.
        kind: AccessKind,
        /// Where the walk ended; leaves are at level 1.
        level: u32,
    },
    /// 5h or 6h by kind: the page is mapped for the other kind only.
    NotPermitted {
        /// What the access was.
        kind: AccessKind,
    },
    /// 7h: the table at `level` is not in memory.
    TableUnreachable {
        /// Level of the table.
        level: u32,
    },
    /// 8h: the root table is not in memory, or none was ever set.
    RootUnreachable,
    /// 9h: the context table is not in memory.
    ContextUnreachable,
    /// Ah: a reserved bit of the root entry is set.
    RootReserved,
    /// Bh: a reserved bit of the context entry is set.
    ContextReserved,
    /// Dh: the device is not allowed to ask for translations, or to use them (TT is not 01b).
    TranslationBlocked,
    /// Ch: a reserved bit of the entry at `level` is set.
    EntryReserved {
        /// Level of the entry.
        level: u32,
    },
}

impl FaultReason {
    /// The number that hardware records (VT-d 4.1 §7.1.3).
    pub fn code(self) -> u8 {
        use FaultReason::*;
        match self {
            RootNotPresent => 0x1,
            ContextNotPresent => 0x2,
            ContextInvalid => 0x3,
            BeyondAperture => 0x4,
            NotPresent { kind, .. } | NotPermitted { kind } => match kind {
                AccessKind::Write => 0x5,
                AccessKind::Read => 0x6,
            },
            TableUnreachable { .. } => 0x7,
            RootUnreachable => 0x8,
            ContextUnreachable => 0x9,
            RootReserved => 0xa,
            ContextReserved => 0xb,
            EntryReserved { .. } => 0xc,
            TranslationBlocked => 0xd,
        }
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FaultReason::*;
        match self {
            RootNotPresent => write!(f, "no root entry"),
            ContextNotPresent => write!(f, "no context entry"),
            ContextInvalid => write!(f, "unsupported context entry"),
            BeyondAperture => write!(f, "address beyond the aperture"),
            NotPresent { level, .. } => write!(f, "no entry at level {level}"),
            NotPermitted {
                kind: AccessKind::Read,
            } => write!(f, "reads are not permitted"),
            NotPermitted {
                kind: AccessKind::Write,
            } => write!(f, "writes are not permitted"),
            TableUnreachable { level } => write!(f, "no memory at the table of level {level}"),
            RootUnreachable => write!(f, "no memory at the root table"),
            ContextUnreachable => write!(f, "no memory at the context table"),
            RootReserved => write!(f, "reserved bit in the root entry"),
            ContextReserved => write!(f, "reserved bit in the context entry"),
            TranslationBlocked => write!(f, "the device may not ask for translations"),
            EntryReserved { level } => write!(f, "reserved bit in the entry of level {level}"),
        }?;
        write!(f, " (fault reason {:x}h)", self.code())
    }
}

/// A fault as the unit records it.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRecord {
    pub source: SourceId,
    pub page: IovaPage,
    pub kind: AccessKind,
    pub reason: FaultReason,
}

impl fmt::Display for FaultRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, page, reason) = (self.source, self.page, self.reason);
        let kind = match self.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
        };
        write!(f, "{source}: {kind} of page {page}: {reason}")
    }
}

/// What was recorded since the records were last cleared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// The records, oldest first.
    pub records: Vec<FaultRecord>,
    /// Whether at least one more fault found no room (FSTS.PFO).
    pub overflowed: bool,
}
