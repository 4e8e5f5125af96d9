// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a warm domain keeps in memory for each CPU.

use crate::{Contestant, Failure, Pattern, Sizes, platform::host, subjects::Whole};
use ioatlas_dma::{design::Design, table::fmt::VtdSecond48, translator::Paged, units::ByteCount};
use ioatlas_host::register;
use std::sync::Arc;

/// CPUs of the domain that is looked at.
pub const CPUS: usize = 2;
/// Pairs on each, beyond filling the pattern.
const PAIRS: u32 = 50_000;
/// Frames for its tables.
const FRAMES: usize = 1 << 12;

/// Bytes of magazines and depots of a domain under `design` for each of [`CPUS`] CPUs, after both
/// have mapped and unmapped all sizes, 1,024 outstanding on each. What the platform's shared slot
/// has is counted as theirs.
///
/// # Errors
/// The design failed; or other threads of this process hold the slots.
pub fn per_cpu(design: Design) -> Result<ByteCount, Failure> {
    let platform = Arc::new(host(FRAMES, CPUS + 1)?);
    let domain = Whole::<_, Paged<_, VtdSecond48, _>>::uncached(platform, design)?;
    let contestant = Contestant::new(&domain, Pattern::Ring(1024), Sizes::Mixed, CPUS);
    let warm = |thread: usize| -> Result<(), Failure> {
        let slot = register();
        if slot.0 > CPUS {
            return Err(Failure::new(format!(
                "slot {} is beyond the {CPUS} of the domain: other threads hold theirs",
                slot.0
            )));
        }
        let mut worker = contestant.worker(thread)?;
        worker.fill(&mut || true)?;
        worker.run(PAIRS)?;
        worker.finish()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CPUS)
            .map(|thread| {
                let warm = &warm;
                scope.spawn(move || warm(thread))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
        })
    })?;
    Ok(ByteCount(domain.0.magazine_bytes().0 / CPUS as u64))
}
