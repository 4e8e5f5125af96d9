// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a queue pair has done.

/// Counters of one queue pair, from when the device was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PairStats {
    /// Frames that the guest sent, taken from the transmit queue.
    pub transmitted: u64,
    /// Frames that the guest was given.
    pub received: u64,
    /// Bytes of the latter, without headers.
    pub received_bytes: u64,
    /// Frames dropped: no room for them in a buffer or in all buffers there may be, or longer than
    /// a frame can be.
    pub too_long: u64,
    /// Frames dropped: not even a header.
    pub too_short: u64,
    /// Frames dropped by TAP, or for want of a receive buffer under it.
    pub tap_dropped: u64,
    /// Buffers whose translations were there when they were looked up.
    pub hits: u64,
    /// Buffers of which something was missing.
    pub missed: u64,
    /// Frames from and to the guest since something was missing last; all, if nothing ever was.
    pub since_miss: u64,
    /// Bursts that moved something.
    pub bursts: u64,
    /// Times that the driver was called.
    pub calls: u64,
    /// Queues that stopped because of an error.
    pub stopped: u64,
}

impl std::ops::AddAssign for PairStats {
    fn add_assign(&mut self, other: PairStats) {
        self.transmitted += other.transmitted;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.too_long += other.too_long;
        self.too_short += other.too_short;
        self.tap_dropped += other.tap_dropped;
        self.hits += other.hits;
        self.missed += other.missed;
        self.since_miss += other.since_miss;
        self.bursts += other.bursts;
        self.calls += other.calls;
        self.stopped += other.stopped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_added_each_to_its_own() {
        let of = |factor: u64| PairStats {
            transmitted: factor,
            received: 2 * factor,
            received_bytes: 3 * factor,
            too_long: 4 * factor,
            too_short: 5 * factor,
            tap_dropped: 6 * factor,
            hits: 7 * factor,
            missed: 8 * factor,
            since_miss: 9 * factor,
            bursts: 10 * factor,
            calls: 11 * factor,
            stopped: 12 * factor,
        };
        let mut sum = of(100);
        sum += of(1);
        assert_eq!(sum, of(101));
        sum += PairStats::default();
        assert_eq!(sum, of(101));
    }
}
