// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every number of the model, in one place: its value, where the value comes from, and whether it
//! was fitted.
//!
//! Cycles are those of the paper's machine, 2.4 GHz (ATC'15 §6). "Baselines" are this project's
//! measurements of a Zen 4 machine, section "physical limits", in nanoseconds, times 2.4. A
//! parameter that is *fitted* was chosen once, by figure 2's baseline bar, by request-response on
//! one CPU, and (the work of a memcached request) by where figure 5 has no IOMMU near line rate;
//! then all are frozen, and every other figure is a prediction.

use crate::random::Random;
use ioatlas_vtd::plan::InvalidationCosts;
use serde::Serialize;

/// Cycles of a second: 2.4 GHz (ATC'15 §6, Xeon E5-2630 v3).
pub const HZ: u64 = 2_400_000_000;

/// A length or a moment of virtual time, in cycles of [`HZ`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct Cycles(pub u64);

impl Cycles {
    /// So many cycles as `ms` milliseconds have.
    pub const fn from_ms(ms: u64) -> Self {
        Cycles(ms * (HZ / 1000))
    }
    /// So many cycles as `us` microseconds have.
    pub const fn from_us(us: u64) -> Self {
        Cycles(us * (HZ / 1_000_000))
    }
    /// In nanoseconds, rounded down.
    pub const fn ns(self) -> u64 {
        (self.0 as u128 * 1_000_000_000 / HZ as u128) as u64
    }
    /// In seconds, with fractions.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / HZ as f64
    }
}

/// How a parameter came by its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A publication states it.
    Published,
    /// This project measured it.
    Measured,
    /// Chosen once so that the fitted figures come out.
    Fitted,
    /// No source says; a round number of the right magnitude.
    Free,
}

/// One parameter, for reports.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Listed {
    pub name: &'static str,
    pub value: u64,
    /// Of what: cycles, lines, thousandths.
    pub unit: &'static str,
    /// How it came by its value.
    pub origin: Origin,
    pub source: &'static str,
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident = $value:literal $unit:ident, $origin:ident, $source:literal;)*) => {
        /// All parameters. See the module for what their values rest on.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize)]
        pub struct Params {
            /// How CPUs wait for a lock that is held. Fitted: with tickets, as Linux 3.17 has them,
            /// the model's locks collapse beyond figure 2.
            pub lock_model: LockModel,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for Params {
            fn default() -> Self {
                Params { lock_model: LockModel::Queue, $($name: $value,)* }
            }
        }

        impl Params {
            /// All numbers, in order.
            pub fn list(&self) -> Vec<Listed> {
                vec![$(Listed {
                    name: stringify!($name),
                    value: self.$name,
                    unit: stringify!($unit),
                    origin: Origin::$origin,
                    source: $source,
                },)*]
            }
            /// The number called `name`, to be changed.
            pub fn by_name(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
            fn numbers(&mut self) -> Vec<&mut u64> {
                vec![$(&mut self.$name,)*]
            }
        }
    };
}

params! {
    /// A load or store of a line that the CPU holds.
    hit = 4 cycles, Published, "first-level cache latency of the paper's CPU, 4 cycles";
    /// A line from another CPU of the same socket.
    transfer_near = 100 cycles, Fitted, "figure 2, baseline; this project measured 65 on another machine (baselines: ping-pong, near)";
    /// A line from a CPU of another socket.
    transfer_far = 250 cycles, Fitted, "figure 2, baseline; this project measured 390 on another machine (baselines: ping-pong, far)";
    /// A line from memory.
    memory = 144 cycles, Measured, "baselines: memcpy of 64 bytes, cold less hot, 60 ns";
    /// A line that a device has written.
    from_device = 65 cycles, Free, "as from a CPU of the socket: devices write into the last-level cache";
    /// What an atomic read-modify-write costs beyond the access.
    atomic = 6 cycles, Measured, "baselines: uncontended compare-and-swap, 2.44 ns";
    /// A full fence of one CPU.
    fence = 40 cycles, Measured, "baselines: mfence, 16.5 ns";
    /// A fence on every CPU, on the CPU that asks. Nothing in the core asks for one any more; it
    /// stays so that seeds draw the numbers below as they did ([`Params::jittered`]).
    heavy_fence = 2400 cycles, Free, "an interrupt to every CPU and back, 1 us";
    /// One pause of a wait loop.
    pause = 65 cycles, Measured, "baselines: pause, 27.2 ns";
    /// Pinning oneself to a CPU, and the end of it.
    pin = 4 cycles, Free, "a per-CPU counter up and down";

    /// Instructions before each shared access in the allocator.
    step_iova = 5 cycles, Fitted, "one CPU, request-response";
    /// Instructions before each shared access in page tables.
    step_tables = 7 cycles, Fitted, "one CPU, request-response";
    /// Instructions before each shared access of policies, invalidation and the unit's driver.
    step_invalidation = 5 cycles, Fitted, "one CPU, request-response";
    /// Instructions before each other shared access.
    step_other = 5 cycles, Fitted, "one CPU, request-response";
    /// Instructions under a lock of the allocator.
    section_iova = 60 cycles, Fitted, "figure 2, baseline: 31.9 % wait for the IOVA lock";
    /// Instructions under a lock of policies, invalidation and the unit's driver.
    section_invalidation = 20 cycles, Fitted, "figure 2, baseline: 21.7 % wait for the invalidation lock";
    /// Instructions under any other lock.
    section_other = 20 cycles, Free, "such locks are not contended";
    /// One node that a search looks at.
    node = 12 cycles, Published, "a dependent load from the second-level cache of the paper's CPU, 12 cycles";
    /// Lines behind pointers that a lock guards and that every holder touches: the top of a list,
    /// the head of a queue.
    guarded_lines = 5 lines, Fitted, "figure 2, baseline: list heads and ends, counters, the range's own node";

    /// Taking a frame from the page allocator, zeroed.
    frame_alloc = 400 cycles, Measured, "baselines: memcpy of 4 KiB, hot, 137 ns, and a list";
    /// Giving a frame back.
    frame_free = 100 cycles, Free, "a list";
    /// One call of the heap.
    heap_call = 11 cycles, Measured, "baselines: malloc and free of 64 bytes, 9.12 ns, is two calls";

    /// An invalidation of one page from its descriptor's fetch to its status write: d + p + w.
    invalidation = 2127 cycles, Published, "rIOMMU, ASPLOS'15: 2,127 cycles an invalidation";
    /// Of that, d: the fetch of the descriptor.
    fetch = 100 cycles, Free, "a read of memory by the unit";
    /// Of p + w, the thousandths that are p; to be shown at 100, 500 and 900.
    page_share = 500 thousandths, Free, "no source says";
    /// g : p, a domain-wide invalidation as thousandths of a page's.
    domain_cost = 1000 thousandths, Free, "no source says; as long as a page";
    /// A write of a register of the unit.
    register_write = 100 cycles, Free, "a posted write";
    /// A read of a register of the unit.
    register_read = 700 cycles, Free, "a round trip over the bus, 300 ns";

    /// A transaction of request-response, outside of the mapping code.
    rr_work = 13500 cycles, Fitted, "figure 2, baseline, and one CPU, request-response";
    /// Pairs of map and unmap of a transaction.
    rr_pairs = 2 pairs, Free, "one packet received, one sent";
    /// A request of memcached, outside of the mapping code.
    memcached_work = 19300 cycles, Fitted, "figure 5: no IOMMU nears line rate at nine cores";
    /// Pairs of map and unmap of a memcached request: one received, the others sent.
    memcached_pairs = 5 pairs, Free, "a header, a value in pieces, acknowledgements";
    /// What the wire takes for a value: 1,220 bytes at 10 Gb/s.
    value_wire = 2342 cycles, Published, "ATC'15 6: 10 Gb/s, values of 1 KiB";
    /// What a wire of 40 Gb/s takes for a full frame.
    frame_wire = 738 cycles, Published, "1,538 bytes with preamble and gap";
    /// How far CPUs run ahead of the wire.
    wire_backlog = 48000 cycles, Free, "20 us, a ring of small packets";
    /// A packet of the ring workload, outside of the mapping code.
    packet_work = 5000 cycles, Free, "2 us";
    /// A list of the lists workload, outside of the mapping code.
    list_work = 12000 cycles, Free, "5 us";
    /// Pages of a list at most.
    list_segments = 32 pages, Free, "128 KiB";
    /// What a round trip takes outside of the server's CPU.
    away = 56100 cycles, Published, "figure 4: 29 us on one core without an IOMMU, less the transaction's work";
    /// By how much longer for each other connection.
    away_growth = 1920 cycles, Published, "figure 4: 41 us on 16 cores without an IOMMU";
    /// Room of a buffer: at least a page, or buffers share pages, and identity mapping then
    /// invalidates only with the last of a page.
    buffer = 4096 bytes, Free, "one buffer a page, as page-based receive rings have";
    /// Buffers of a receive ring.
    receive_ring = 256 buffers, Free, "a common size";
    /// Packet parts under way out.
    send_lag = 16 buffers, Free, "completions come in batches";
    /// Blocks that others hold of the heap, for each CPU.
    background = 1024 blocks, Free, "as many as ATC'15's machine has for the work of one CPU: no source says";
    /// Operations to each block that others replace.
    background_pace = 4 operations, Free, "what is allocated lives long and is replaced slowly";
    /// Blocks more that others hold, for each CPU, after an iteration of figure 6.
    background_growth = 10 blocks, Free, "1 %: the caches of a running system fill";

    /// Between two timer interrupts.
    tick_period = 24000000 cycles, Published, "ATC'15 3.2: 10 ms";
    /// Entry and end of a timer interrupt.
    interrupt = 2400 cycles, Free, "1 us";
}

/// How CPUs wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockModel {
    /// All spin on the lock's line, and the nearest gets it.
    TestAndSet,
    /// All spin on the lock's line, and get it in the order in which they came (Linux 3.17).
    Ticket,
    /// Each spins on a line of its own, and is handed the lock in the order in
    /// which they came (MCS).
    Queue,
}

impl LockModel {
    /// All of them.
    pub const ALL: [Self; 3] = [LockModel::Ticket, LockModel::Queue, LockModel::TestAndSet];

    /// The word for it, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            LockModel::TestAndSet => "test-and-set",
            LockModel::Ticket => "ticket",
            LockModel::Queue => "queue",
        }
    }
}

/// How far parameters are drawn from their values, to either side.
const JITTER_PERCENT: u64 = 30;

impl Params {
    /// All numbers drawn anew, independently and evenly, from within 30 % of what they are. The
    /// same seed draws the same.
    pub fn jittered(&self, seed: u64) -> Params {
        let mut drawn = self.clone();
        let mut random = Random::new(seed);
        for number in drawn.numbers() {
            // in thousandths, 700 to 1300
            let factor = 1000 - 10 * JITTER_PERCENT + random.below(20 * JITTER_PERCENT + 1);
            *number = (*number * factor + 500) / 1000;
        }
        drawn.page_share = drawn.page_share.min(1000);
        drawn.fetch = drawn.fetch.min(drawn.invalidation);
        drawn
    }

    /// The same with invalidations `factor` times as long.
    pub fn slower_invalidation(&self, factor: u64) -> Params {
        Params {
            invalidation: self.invalidation.saturating_mul(factor),
            fetch: self.fetch.saturating_mul(factor),
            ..self.clone()
        }
    }

    /// p: what the unit does for one page.
    pub fn page(&self) -> Cycles {
        Cycles(self.invalidation.saturating_sub(self.fetch) * self.page_share.min(1000) / 1000)
    }
    /// g: what the unit does for a domain.
    pub fn domain(&self) -> Cycles {
        Cycles(self.page().0 * self.domain_cost / 1000)
    }
    /// What the unit's driver is told where it is told the truth.
    pub fn costs(&self) -> InvalidationCosts {
        let cost = |cycles: u64| u32::try_from(cycles).unwrap_or(u32::MAX);
        InvalidationCosts {
            descriptor: cost(self.fetch),
            pages: cost(self.page().0),
            domain: cost(self.domain().0),
        }
    }
    /// w: the wait descriptor and its status write.
    pub fn status(&self) -> Cycles {
        Cycles(self.invalidation.saturating_sub(self.fetch) - self.page().0)
    }
}
