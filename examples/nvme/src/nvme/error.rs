// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong.

use super::{command::*, queue::QueueId};
use ioatlas_dma::{
    dma_api::{DmaMapError, DmaUnmapBatchError, DmaUnmapError, Lent, SyncError},
    domain::MapError,
    units::*,
};
use std::{fmt, io, sync::Arc, time::Duration};

/// The status of a command that failed (§3.3.3.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Type of the status (SCT).
    pub kind: u8,
    /// Which one of its kind (SC).
    pub code: u8,
}

impl Status {
    /// From the field; none where all went well.
    pub fn from_field(field: u16) -> Option<Self> {
        let (kind, code) = ((field >> 8 & 7) as u8, field as u8);
        (kind != 0 || code != 0).then_some(Status { kind, code })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = match (self.kind, self.code) {
            (0, 0x01) => "invalid opcode",
            (0, 0x02) => "invalid field in command",
            (0, 0x04) => "data transfer error",
            (0, 0x0b) => "invalid namespace",
            (0, 0x13) => "invalid PRP offset",
            (0, 0x80) => "block out of range",
            (1, 0x01) => "invalid queue number",
            (1, 0x08) => "invalid interrupt vector",
            _ => "see the specification",
        };
        write!(f, "type {}, code {:#04x}: {known}", self.kind, self.code)
    }
}

/// Why the driver gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum NvmeError {
    /// All registers read as ones.
    #[error("the controller is gone: its registers read as ones")]
    Gone,
    /// It reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal status (CSTS {0:#x}); it must be reset")]
    Fatal(u32),
    /// It did not become ready, or not idle.
    #[error("the controller was not {wanted} after {} ms (CSTS {status:#x})", .waited.as_millis())]
    NotReady {
        /// What it was to be.
        wanted: &'static str,
        /// For how long it was waited.
        waited: Duration,
        /// What it said last.
        status: u32,
    },
    /// It has larger pages.
    #[error("the controller's smallest page is 2^{0} bytes; this driver needs 2^12")]
    Pages(u32),
    /// Its namespace has blocks of another size than this driver can transfer.
    #[error("namespace {}: blocks of 2^{lg2} bytes; this driver needs 2^9 to 2^12", .namespace.0)]
    Blocks { namespace: NamespaceId, lg2: u32 },
    /// There is no such namespace, or it has no blocks.
    #[error("there is no namespace {}", .0.0)]
    NoNamespace(NamespaceId),
    /// A command failed with this status.
    #[error("{command}: {status}")]
    Command {
        command: &'static str,
        status: Status,
    },
    /// A command was not answered. What it may still do ends when the controller is disabled.
    #[error("queue {}: no completion after {} s", .queue.0, .waited.as_secs())]
    NoAnswer {
        queue: QueueId,
        /// For how long it was waited.
        waited: Duration,
    },
    /// A completion of nothing.
    #[error("queue {}: the controller completes command {}, which is not under way", .queue.0, .id.0)]
    Stray { queue: QueueId, id: CommandId },
    /// All entries are in use.
    #[error("queue {}: all {entries} commands are under way", .queue.0)]
    Full {
        queue: QueueId,
        /// How many it has.
        entries: u32,
    },
    /// More than one command can do.
    #[error("{len} in one command; the controller takes {most}")]
    TooLong {
        /// Length that was asked for.
        len: ByteCount,
        most: ByteCount,
    },
    /// Not a number of blocks.
    #[error("{len} are no whole number of blocks of {block}")]
    NotBlocks {
        /// Length of the buffer.
        len: ByteCount,
        /// Size of a block.
        block: ByteCount,
    },
    /// A list that PRPs cannot name.
    #[error("segment {segment} begins or ends inside a page: PRPs cannot name it")]
    InnerEdge {
        /// Its number in the list, from 0.
        segment: usize,
    },
    /// No memory for a buffer.
    #[error("no memory for {0}")]
    NoMemory(ByteCount),
    /// No memory or IOVAs for a queue.
    #[error("a queue: {0}")]
    Queue(#[from] MapError),
    /// Data were not mapped.
    #[error(transparent)]
    Map(#[from] DmaMapError),
    /// Data were not unmapped.
    #[error(transparent)]
    Unmap(#[from] DmaUnmapError),
    /// Not all data of a burst of completions were unmapped.
    #[error(transparent)]
    UnmapBurst(#[from] Box<DmaUnmapBatchError>),
    /// A list was not unmapped.
    #[error(transparent)]
    UnmapList(#[from] DmaUnmapError<Lent<Arc<[PhysRange]>>>),
    /// Bytes outside of a buffer.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// An interrupt could not be waited for.
    #[error("waiting for an interrupt: {0}")]
    Interrupt(#[from] io::Error),
}

impl NvmeError {
    /// Whether the controller has done with the command that this is the error of: it completed
    /// it, or never heard of it. Of any other error it may still touch the command's memory,
    /// until it is disabled.
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            NvmeError::Command { .. }
                | NvmeError::Full { .. }
                | NvmeError::TooLong { .. }
                | NvmeError::InnerEdge { .. }
        )
    }
}
