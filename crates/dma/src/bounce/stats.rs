// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which step served each operation, what was lacking where none did, and what went wrong at its
//! end.

use crate::{
    domain::{MapError, UnmapError},
    invalidation::InvalidateError,
    iova::AllocErrorCause,
    platform::{room::NoMemory, *},
    units::*,
};
use core::fmt;

/// The steps, from the best to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(usize)]
#[non_exhaustive]
pub enum Step {
    /// A slot that was kept with the right permission.
    Kept,
    /// A slot that had no memory and was given some.
    Populated,
    /// A slot kept in the magazines of another CPU.
    Elsewhere,
    /// A slot kept with another permission.
    Converted,
    /// A slot of a larger class than would do.
    Larger,
    /// A slot that no share of a fixed budget has for itself.
    Borrowed,
    /// Pages of a chunk.
    Chunk,
    /// A buffer mapped for one use.
    SingleUse,
    /// The edges in frames of their own, the rest mapped directly.
    Split,
    /// Mapped directly, because the placement says so.
    Direct,
    /// Mapped directly, because nothing else was left.
    DirectAtLast,
    /// Not served at all.
    NoSpace,
}

impl Step {
    /// All steps, from the best to the worst.
    pub const ALL: [Step; 12] = [
        Step::Kept,
        Step::Populated,
        Step::Elsewhere,
        Step::Converted,
        Step::Larger,
        Step::Borrowed,
        Step::Chunk,
        Step::SingleUse,
        Step::Split,
        Step::Direct,
        Step::DirectAtLast,
        Step::NoSpace,
    ];
    /// A short name, as tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Step::Kept => "kept",
            Step::Populated => "populated",
            Step::Elsewhere => "elsewhere",
            Step::Converted => "converted",
            Step::Larger => "larger",
            Step::Borrowed => "borrowed",
            Step::Chunk => "chunk",
            Step::SingleUse => "single-use",
            Step::Split => "split",
            Step::Direct => "direct",
            Step::DirectAtLast => "direct-at-last",
            Step::NoSpace => "no-space",
        }
    }
}

const STEPS: usize = Step::ALL.len();

/// How many operations each step served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepCounts([u64; STEPS]);

impl StepCounts {
    /// Those of one step.
    pub fn of(&self, step: Step) -> u64 {
        self.0[step as usize]
    }
    /// All but those that failed.
    pub fn served(&self) -> u64 {
        self.0.iter().sum::<u64>() - self.of(Step::NoSpace)
    }
}

impl fmt::Display for StepCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for step in Step::ALL {
            if self.of(step) > 0 {
                write!(f, "{comma}{} {}", self.of(step), step.name())?;
                comma = ", ";
            }
        }
        match comma {
            "" => f.write_str("nothing yet"),
            _ => Ok(()),
        }
    }
}

/// Counts by CPU, so that counting writes no word that another CPU writes.
pub(crate) struct StepStats<P: Platform>(PerCpu<[P::A64; STEPS]>);

impl<P: Platform> StepStats<P> {
    pub fn new(p: &P) -> Self {
        StepStats(PerCpu::new(p, || core::array::from_fn(|_| P::A64::new(0))))
    }
    /// The CPU is pinned, and the words are its own.
    #[inline]
    pub fn count(&self, cpu: &Cpu<'_>, step: Step) {
        if let Some(words) = self.0.try_get(cpu) {
            let word = &words[step as usize];
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
    /// It was counted here a moment ago, and then it was not so.
    #[cold]
    pub fn take_back(&self, cpu: &Cpu<'_>, step: Step) {
        if let Some(words) = self.0.try_get(cpu) {
            let word = &words[step as usize];
            word.store(
                word.load(Ordering::Relaxed).wrapping_sub(1),
                Ordering::Relaxed,
            );
        }
    }
    pub fn bytes(&self) -> u64 {
        (self.0.cpus() * size_of::<CachePadded<[P::A64; STEPS]>>()) as u64
    }
    pub fn sum(&self) -> StepCounts {
        let mut counts = StepCounts::default();
        for (_, words) in self.0.iter() {
            for (sum, word) in counts.0.iter_mut().zip(words) {
                // taken back on another CPU than it was counted on, perhaps
                *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
            }
        }
        counts
    }
}

/// What a step lacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Lack {
    /// The operation is larger than anything that it has.
    #[error("nothing so large")]
    TooLarge,
    /// All of it is in use.
    #[error("all in use")]
    Full,
    /// The platform has no frame.
    #[error("no frame")]
    NoFrame,
    /// The heap has no memory.
    #[error("no heap memory")]
    NoMemory,
    /// There are no IOVAs for it.
    #[error("no IOVAs")]
    NoIova,
    /// The translation could not be installed: most likely there is no frame for a table.
    #[error("no table")]
    NoTable,
    /// It took an invalidation, and that failed.
    #[error("{0}")]
    Invalidate(InvalidateError),
    /// It is switched off.
    #[error("switched off")]
    Off,
}

impl From<MapError> for Lack {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Invalidate(cause) => Lack::Invalidate(cause),
            MapError::Install(_) => Lack::NoTable,
            MapError::NoFrame { .. } => Lack::NoFrame,
            MapError::NoMemory => Lack::NoMemory,
            MapError::NoIova(why) if why.cause == AllocErrorCause::NoMemory => Lack::NoMemory,
            _ => Lack::NoIova,
        }
    }
}

impl From<NoMemory> for Lack {
    fn from(NoMemory: NoMemory) -> Self {
        Lack::NoMemory
    }
}

/// No bounce buffer, and what each step lacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no bounce buffer for {len} bytes: slots: {slots}; chunks: {chunks}; single use: {single_use}"
)]
pub struct BounceError {
    /// Bytes wanted, with those before them in their granule where address bits are kept.
    pub len: ByteCount,
    /// The size classes: the best that was left to try.
    pub slots: Lack,
    /// The second tier: pages of chunks.
    pub chunks: Lack,
    /// A mapping for one use.
    pub single_use: Lack,
}

impl BounceError {
    /// Of `len` bytes for which a buffer for this one use was the only way.
    pub(crate) fn once(len: ByteCount, lack: Lack) -> Self {
        BounceError {
            len,
            slots: Lack::Off,
            chunks: Lack::Off,
            single_use: lack,
        }
    }
    /// Whether memory would have helped.
    pub(crate) fn lacks_memory(&self) -> bool {
        let lacks = [self.slots, self.chunks, self.single_use];
        lacks.contains(&Lack::NoFrame) || lacks.contains(&Lack::NoMemory)
    }
}

/// Why a buffer's end went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReturnError {
    #[error(transparent)]
    NotMemory(#[from] NotMemoryError),
    #[error(transparent)]
    Unmap(#[from] UnmapError),
}
