// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why a unit cannot be brought up or shut down.

use core::fmt;
use ioatlas_dma::grace::{InvalidateError, WaitLimit};

/// A global command and what it waits for (VT-d 4.1 §11.4.4.1, §11.4.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// SRTP, until RTPS is 1.
    SetRootTable,
    /// QIE = 1, until QIES is 1.
    EnableQueue,
    /// TE = 1, until TES is 1.
    EnableTranslation,
    /// TE = 0, until TES is 0.
    DisableTranslation,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Command::SetRootTable => "set the root table",
            Command::EnableQueue => "enable the invalidation queue",
            Command::EnableTranslation => "enable translation",
            Command::DisableTranslation => "disable translation",
        })
    }
}

/// A command that the unit did not carry out in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the unit did not {command} in {turns} turns of waiting (global status {status:#010x})", turns = .limit.0)]
pub struct Stuck {
    /// Which.
    pub command: Command,
    /// GSTS at the end (VT-d 4.1 §11.4.4.2).
    pub status: u32,
    /// How long it was waited for.
    pub limit: WaitLimit,
}

/// Why a unit cannot be brought up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// The registers read as nothing does.
    #[error("there is no unit: its capability register reads {cap:#x}")]
    Absent {
        /// The value of CAP.
        cap: u64,
    },
    /// No invalidation queue (ECAP.QI); the older way by registers is not used.
    #[error("the unit has no invalidation queue (ECAP {ecap:#x})")]
    NoQueue {
        /// The value of ECAP.
        ecap: u64,
    },
    /// No table width that exists (CAP.SAGAW).
    #[error("the unit supports second-stage tables of no width that exists (CAP {cap:#x})")]
    NoWidth {
        /// The value of CAP.
        cap: u64,
    },
    /// A reserved number of domain ids (CAP.ND).
    #[error("the unit's number of domain ids has the reserved code 7 (CAP {cap:#x})")]
    DomainIds {
        /// The value of CAP.
        cap: u64,
    },
    /// Changes must be followed by a write-buffer flush (CAP.RWBF), which nobody does yet.
    #[error("the unit needs write-buffer flushes, which are not supported (CAP {cap:#x})")]
    WriteBufferFlush {
        /// The value of CAP.
        cap: u64,
    },
    /// The unit caches absent entries (CAP.CM), and the host did not say that it flushes when it maps.
    #[error("the unit is in caching mode, and mapping does not flush (CAP {cap:#x})")]
    CachingMode {
        /// The value of CAP.
        cap: u64,
    },
    /// Somebody else is using the unit: translation or the queue is enabled.
    #[error("the unit is in use already (global status {status:#010x})")]
    Live {
        /// The value of GSTS (VT-d 4.1 §11.4.4.2).
        status: u32,
    },
    /// No frame for the root table, the queue or the status word.
    #[error("no frame for the unit's root table, queue and status word (3 are needed)")]
    NoFrame,
    /// A command was not carried out.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The caches could not be emptied.
    #[error("emptying the caches at the start: {0}")]
    Invalidate(#[from] InvalidateError),
}

/// Why a unit cannot be shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutDownError {
    /// Devices are attached, and would reach all of memory. (One whose detaching failed counts.) Nothing was done.
    #[error("{devices} devices are attached")]
    Attached {
        /// How many.
        devices: u32,
    },
    /// A command was not carried out; `lost` frames are never used again.
    #[error("{cause}; {lost} frames are lost")]
    Stuck {
        /// Which.
        cause: Stuck,
        /// Frames.
        lost: usize,
    },
    /// The caches could not be emptied, or the queue not be disabled; `lost` frames are never used again.
    #[error(
        "emptying the caches and disabling the queue at the end: {cause}; {lost} frames are lost"
    )]
    Invalidate {
        /// Why.
        cause: InvalidateError,
        /// Frames.
        lost: usize,
    },
}
