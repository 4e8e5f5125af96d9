// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why a unit cannot be brought up or shut down.

use crate::registers::*;
use core::fmt;
use ioatlas_dma::{
    invalidation::{InvalidateError, WaitLimit},
    units::{DomainId, PhysAddr, SourceId},
};

/// A global command and what it waits for (VT-d 4.1 §11.4.4.1, §11.4.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// SRTP, until RTPS is 1.
    SetRootTable,
    /// QIE = 1, until QIES is 1.
    EnableQueue,
    /// QIE = 0, until QIES is 0.
    DisableQueue,
    /// TE = 1, until TES is 1.
    EnableTranslation,
    /// TE = 0, until TES is 0.
    DisableTranslation,
    /// WBF, until WBFS is 0.
    FlushWriteBuffers,
}

impl Command {
    /// Its bit of GCMD and GSTS, and whether the command sets it.
    pub(super) fn bit(self) -> (u32, bool) {
        match self {
            Command::SetRootTable => (GCMD_SRTP, true),
            Command::EnableQueue => (GCMD_QIE, true),
            Command::DisableQueue => (GCMD_QIE, false),
            Command::EnableTranslation => (GCMD_TE, true),
            Command::DisableTranslation => (GCMD_TE, false),
            Command::FlushWriteBuffers => (GCMD_WBF, true),
        }
    }
    /// Whether `status`, read after the command was given, says that it is carried out.
    pub(super) fn is_done(self, status: u32) -> bool {
        match self {
            // the only one whose bit falls again
            Command::FlushWriteBuffers => status & GCMD_WBF == 0,
            _ => {
                let (bit, set) = self.bit();
                (status & bit != 0) == set
            }
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Command::SetRootTable => "set the root table",
            Command::EnableQueue => "enable the invalidation queue",
            Command::EnableTranslation => "enable translation",
            Command::DisableTranslation => "disable translation",
            Command::DisableQueue => "disable the invalidation queue",
            Command::FlushWriteBuffers => "flush its write buffers",
        })
    }
}

/// A command that the unit did not carry out in time.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the unit did not {command} in {turns} turns of waiting (global status {status:#010x})", turns = .limit.0)]
pub struct Stuck {
    pub command: Command,
    /// GSTS at the end (VT-d 4.1 §11.4.4.2).
    pub status: u32,
    /// How long it was waited for.
    pub limit: WaitLimit,
}

/// Registers that lie where a capability says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterGroup {
    /// The fault records, by CAP.FRO.
    FaultRecords,
    /// The invalidate address and the IOTLB register, by ECAP.IRO.
    Iotlb,
}

impl fmt::Display for RegisterGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegisterGroup::FaultRecords => "fault records (FRO)",
            RegisterGroup::Iotlb => "IOTLB registers (IRO)",
        })
    }
}

/// Why a unit cannot be brought up.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// The registers read as nothing does.
    #[error("there is no unit: its capability register reads {cap:#x}")]
    Absent {
        /// The value of CAP.
        cap: u64,
    },
    /// Neither a queue (ECAP.QI) nor a place for the IOTLB registers (ECAP.IRO).
    #[error("the unit has no invalidation queue, and no registers instead (ECAP {ecap:#x})")]
    NoInvalidation {
        /// The value of ECAP.
        ecap: u64,
    },
    /// No table width that exists (CAP.SAGAW).
    #[error("the unit supports second-stage tables of no width that exists (CAP {cap:#x})")]
    NoWidth {
        /// The value of CAP.
        cap: u64,
    },
    /// Every table width that it walks (CAP.SAGAW) translates more than it lets through (CAP.MGAW).
    #[error(
        "the unit takes addresses of {bits} bits, fewer than any table that it walks has (MGAW, SAGAW of CAP {cap:#x})"
    )]
    NarrowAddresses {
        /// The width that MGAW says.
        bits: u32,
        /// The value of CAP.
        cap: u64,
    },
    /// It offers what only a queue can invalidate, and has none (ECAP.QI).
    #[error("the unit offers {field} and no invalidation queue (QI of ECAP {ecap:#x})")]
    NeedsQueue {
        /// `DT` or `IR`, of ECAP.
        field: &'static str,
        /// The value of ECAP.
        ecap: u64,
    },
    /// Registers that a capability places (CAP.FRO, ECAP.IRO) would lie on fixed ones,
    /// which end at 0xc0.
    #[error(
        "the unit places its {group} at {offset:#x}, among other registers (CAP {cap:#x}, ECAP {ecap:#x})"
    )]
    RegisterPlace {
        group: RegisterGroup,
        /// Where, in bytes from the start of the block.
        offset: u32,
        /// The value of CAP.
        cap: u64,
        /// The value of ECAP.
        ecap: u64,
    },
    /// Fault records (CAP.FRO, CAP.NFR) and IOTLB registers (ECAP.IRO) lie on each other.
    #[error(
        "the unit's {records} fault records at {faults:#x} (FRO) overlap its IOTLB registers at {iotlb:#x} (IRO)"
    )]
    RegistersOverlap {
        /// Where the records begin, in bytes.
        faults: u32,
        /// How many there are, of 16 bytes each.
        records: u32,
        /// Where the IOTLB registers begin, in bytes; they have 16.
        iotlb: u32,
    },
    /// A reserved number of domain ids (CAP.ND).
    #[error("the unit's number of domain ids has the reserved code 7 (CAP {cap:#x})")]
    DomainIds {
        /// The value of CAP.
        cap: u64,
    },
    /// Firmware left translation or the queue enabled, and the host did not say to
    /// take the unit over.
    #[error("the unit is in use already (global status {status:#010x})")]
    Live {
        /// The value of GSTS (VT-d 4.1 §11.4.4.2).
        status: u32,
    },
    /// Firmware left translation enabled in scalable mode, and the table mode cannot
    /// change while it is.
    #[error(
        "the unit translates in scalable mode (root table {root:#x}): it cannot be taken over without a window"
    )]
    TableMode {
        /// The value of RTADDR (VT-d 4.1 §11.4.5).
        root: u64,
    },
    /// No frame for the root table, the queue or the status word.
    #[error("no frame for the unit's root table, queue or status word (at most 3 are needed)")]
    NoFrame,
    /// A command was not carried out.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The caches could not be emptied.
    #[error("emptying the caches at the start: {0}")]
    Invalidate(#[from] InvalidateError),
}

/// Why it is not known which domain ids firmware's contexts use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FirmwareIdsError {
    /// Not all of a table is memory that can be read.
    #[error(
        "firmware's root or context table at {table} cannot be read: no domain id is given before activation"
    )]
    Unreadable {
        /// Where the table is.
        table: PhysAddr,
    },
    /// The caches could not be emptied.
    #[error("emptying the caches before the take-over: {0}")]
    Invalidate(#[from] InvalidateError),
}

/// Why a unit cannot be shut down.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutDownError {
    /// Devices are attached, and would reach all of memory. (One whose detaching failed
    /// counts.) Nothing was done.
    #[error("{devices} devices are attached")]
    Attached { devices: u32 },
    /// A command was not carried out; `lost` frames are never used again.
    #[error("{cause}; {lost} frames are lost")]
    Stuck { cause: Stuck, lost: usize },
    /// The caches could not be emptied, or the queue not be disabled; `lost` frames
    /// are never used again.
    #[error(
        "emptying the caches and disabling the queue at the end: {cause}; {lost} frames are lost"
    )]
    Invalidate { cause: InvalidateError, lost: usize },
}

/// Why a device's own TLB cannot be declared or withdrawn.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceTlbError {
    /// The unit does not serve them (ECAP.DT, and ECAP.QI to invalidate them by).
    #[error("the unit serves no device TLBs (ECAP {ecap:#x})")]
    Unsupported {
        /// The value of ECAP.
        ecap: u64,
    },
    /// It is attached; its context entry says what it said when it was made.
    #[error("device {device} is attached to domain {domain}")]
    Attached { device: SourceId, domain: DomainId },
}

/// Why a device cannot have its fence taken away.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnfenceError {
    /// It is not detached yet.
    #[error("device {device} still belongs to domain {domain}")]
    Attached { device: SourceId, domain: DomainId },
    /// The device is not fenced.
    #[error("device {device} is not fenced")]
    NotFenced { device: SourceId },
}
