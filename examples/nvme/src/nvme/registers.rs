// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A controller's registers (§3.1.3), as far as this driver uses them.

use super::queue::QueueId;
use std::time::Duration;

/// Controller capabilities, 8 bytes.
pub const CAP: u64 = 0x00;
/// Version of the specification.
pub const VS: u64 = 0x08;
/// Controller configuration (`CC_` bits below).
pub const CC: u64 = 0x14;
/// Controller status (`CSTS_` bits below).
pub const CSTS: u64 = 0x1c;
/// Lengths of the admin queues.
pub const AQA: u64 = 0x24;
/// Address of the admin submission queue, 8 bytes.
pub const ASQ: u64 = 0x28;
/// Address of the admin completion queue, 8 bytes.
pub const ACQ: u64 = 0x30;
const DOORBELLS: u64 = 0x1000;

/// CC: the controller is enabled.
pub const CC_ENABLE: u32 = 1 << 0;
/// CC: entries of 64 bytes in submission queues and of 16 in completion queues, as powers of two.
pub const CC_ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// CC: how to shut down (SHN).
pub const CC_SHUTDOWN: u32 = 3 << 14;
/// CC: shut down, with time to keep what is not on the disk yet.
pub const CC_SHUTDOWN_NORMAL: u32 = 1 << 14;
/// CSTS: how far a shutdown is (SHST).
pub const CSTS_SHUTDOWN: u32 = 3 << 2;
/// CSTS: it is complete.
pub const CSTS_SHUTDOWN_COMPLETE: u32 = 2 << 2;
/// CSTS: the controller is ready.
pub const CSTS_READY: u32 = 1 << 0;
/// CSTS: the controller has failed.
pub const CSTS_FATAL: u32 = 1 << 1;
/// What every register of a device that is gone reads as.
pub const GONE: u32 = u32::MAX;

/// What a controller can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// The most entries of an I/O queue (MQES, which is one less).
    pub fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }
    /// How long it may take to become ready (TO, in units of 500 ms). At least half a second.
    pub fn ready_limit(self) -> Duration {
        let halves = (self.0 >> 24 & 0xff).max(1) as u32;
        Duration::from_millis(500) * halves
    }
    /// Bytes from one doorbell to the next (DSTRD).
    pub fn doorbell_stride(self) -> u64 {
        4 << (self.0 >> 32 & 0xf)
    }
    /// Its smallest page as a power of two (MPSMIN); 12 is what this driver needs.
    pub fn page_lg2_min(self) -> u32 {
        12 + (self.0 >> 48 & 0xf) as u32
    }
    /// The doorbell that tells of commands.
    pub fn submission_doorbell(self, queue: QueueId) -> u64 {
        DOORBELLS + 2 * u64::from(queue.0) * self.doorbell_stride()
    }
    /// The doorbell that tells of completions that were seen.
    pub fn completion_doorbell(self, queue: QueueId) -> u64 {
        DOORBELLS + (2 * u64::from(queue.0) + 1) * self.doorbell_stride()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_follow_each_other_at_the_stride() {
        let dense = Capabilities(0);
        let wide = Capabilities(2 << 32);
        assert_eq!(dense.submission_doorbell(QueueId(0)), 0x1000);
        assert_eq!(dense.completion_doorbell(QueueId(3)), 0x101c);
        assert_eq!(wide.completion_doorbell(QueueId(1)), 0x1030);
    }
}
