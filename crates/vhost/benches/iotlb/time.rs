// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Slices, in turns, by the thread's own CPU time.

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
    slices.map(|slices| (!slices.is_empty()).then(|| median(slices)))
}

/// The middle one.
pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
    pub fn shuffle<T>(&mut self, what: &mut [T]) {
        for last in (1..what.len()).rev() {
            what.swap(last, self.below(last + 1));
        }
    }
}
