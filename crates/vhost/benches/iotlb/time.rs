// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Slices, in turns, by the thread's own CPU time.

use ioatlas_present::median;
use rustix::time::{ClockId, clock_gettime};

/// Slices of a contender.
pub const SLICES: usize = 25;
/// How long a slice is to take, ns.
const SLICE_NS: f64 = 2e6;

/// Nanoseconds that this thread has had a CPU.
pub fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Something that can do a number of operations.
pub type Contender<'c> = Box<dyn FnMut(usize) + 'c>;

/// Nanoseconds an operation takes, for each contender.
pub fn contest<const N: usize>(contenders: [Option<Contender<'_>>; N]) -> [Option<f64>; N] {
    contest_warm(contenders, 0)
}

/// The same; before each slice the contender makes `warm_up` operations off the clock. For
/// structures that together are larger than the CPU's caches, so that a slice meets what its own
/// contender left there, as a data path would, and not what the others did.
pub fn contest_warm<const N: usize>(
    mut contenders: [Option<Contender<'_>>; N],
    warm_up: usize,
) -> [Option<f64>; N] {
    let time = |contender: &mut Contender<'_>, ops: usize| {
        let start = cpu_ns();
        contender(ops);
        (cpu_ns() - start) / ops as f64
    };
    let ops = contenders.each_mut().map(|contender| {
        let contender = contender.as_mut()?;
        let first = time(contender, 256); // warms up, too
        let second = time(contender, (SLICE_NS / 4.0 / first) as usize + 64);
        Some((SLICE_NS / second) as usize + 64)
    });
    let mut slices: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..SLICES {
        for ((contender, ops), slices) in contenders.iter_mut().zip(ops).zip(&mut slices) {
            if let (Some(contender), Some(ops)) = (contender, ops) {
                contender(warm_up);
                slices.push(time(contender, ops));
            }
        }
    }
    slices.map(median)
}
