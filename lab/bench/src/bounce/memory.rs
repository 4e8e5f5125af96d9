// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What pools keep in memory while they are used, and when they are idle.

use super::{
    cells::Driver,
    cost::Preset,
    load::{Block, Load, Way},
    policy::Policy,
    served::Served,
};
use crate::Failure;
use ioatlas_dma::{
    dma_api::PoolConfig,
    units::{ByteCount, GRANULE_LG2, TimeNs},
};

/// Operations that are done once as many are in flight as the load says.
const TURNS: usize = 1_000;
/// Ticks after the last operation, each as far from the last as pools call idle.
const TICKS: u64 = 4_096;

/// Memory of a domain's pools, bookkeeping included where it says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Of slots and chunks, with 64 operations of 64 KiB in flight.
    pub in_flight: ByteCount,
    /// Of everything, after the timer has ticked on for long with nothing in flight: slots, chunks,
    /// page tables, and the bookkeeping.
    pub idle: ByteCount,
    /// Of it the bookkeeping.
    pub metadata: ByteCount,
}

/// Of pools of the default size, in virtual time, on a platform with as many CPUs as the machine:
/// each has its magazines, empty when idle.
///
/// # Errors
/// A map or unmap failed.
pub fn memory() -> Result<Memory, Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    memory_of(cpus + 1) // a host has one for threads without a CPU of their own
}

/// The same with so many CPUs.
pub fn memory_of(slots: usize) -> Result<Memory, Failure> {
    let load = Load {
        preset: Preset::Free,
        block: Block(64),
        direction: Way::Read,
        depth: 64,
        threads: 1,
    };
    let pool = PoolConfig::default();
    let step = pool.idle_ns;
    let served = Served::with_slots(load, Policy::Always, pool, slots)?;
    // the buffers, and what the domain has without a pool
    let before = served.frames_in_use();
    let mut driver = Driver::new(&served)?;
    for _ in 0..TURNS {
        driver.turn()?;
    }
    let dma = served.client.dma();
    let sum = |of: fn(&ioatlas_dma::dma_api::PoolUsage) -> u64| {
        ByteCount(dma.usage().iter().map(of).sum())
    };
    let in_flight = sum(|usage| usage.memory.0);
    driver.finish()?;
    for tick in 1..=TICKS {
        dma.tick(TimeNs(tick * step));
    }
    let metadata = sum(|usage| usage.metadata.0);
    let frames = served.frames_in_use().saturating_sub(before) as u64;
    Ok(Memory {
        in_flight,
        idle: ByteCount((frames << GRANULE_LG2) + metadata.0),
        metadata,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_has_memory_and_what_is_idle_has_little_on_sixteen_cpus() {
        // one for each CPU, and a host's shared one
        for slots in [2, 9, 17] {
            let memory = memory_of(slots).unwrap();
            println!("{slots}: {memory:?}");
            assert!(memory.in_flight.0 >= 64 * (64 << 10), "{memory:?}");
            assert!(memory.idle.0 < 64 << 10, "{slots} slots: {memory:?}");
        }
    }
}
