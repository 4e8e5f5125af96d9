// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a driver does: operations of one size and direction, so many in flight.

use super::cost::Preset;
use ioatlas_dma::units::{ByteCount, Direction, GRANULE, PageCount};
use std::fmt;

/// One cell of the measurement: a translator, and what is asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Load {
    /// What map and unmap cost.
    pub preset: Preset,
    /// Bytes of an operation, whole granules, one physically contiguous buffer.
    pub block: Block,
    /// Which way they go.
    pub direction: Way,
    /// Operations in flight on each thread.
    pub depth: usize,
    /// Threads, which share a domain and its pools.
    pub threads: usize,
}

/// The size of an operation, in KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block(pub u64);

impl Block {
    /// Those that are measured: 4 to 128 KiB.
    pub const ALL: [Self; 6] = [
        Block(4),
        Block(8),
        Block(16),
        Block(32),
        Block(64),
        Block(128),
    ];
    /// The size in bytes, 1,024 a KiB.
    pub fn bytes(&self) -> ByteCount {
        ByteCount(self.0 << 10)
    }
    /// The size in granules, 4 KiB each.
    pub fn pages(&self) -> PageCount {
        PageCount(self.bytes().0 / GRANULE)
    }
}

/// Which way data go, as disks have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// From the device: the copy is at unmap.
    Read,
    /// To the device: the copy is at map.
    Write,
}

impl Way {
    /// Both ways, reads first.
    pub const ALL: [Self; 2] = [Way::Read, Way::Write];
    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Way::Read => "read",
            Way::Write => "write",
        }
    }
    /// As the DMA API has it.
    pub fn direction(&self) -> Direction {
        match self {
            Way::Read => Direction::FromDevice,
            Way::Write => Direction::ToDevice,
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load {
            preset,
            block,
            direction,
            depth,
            threads,
        } = self;
        let way = direction.name();
        write!(f, "{preset}/{}k/{way}/{depth}/{threads}", block.0)
    }
}
