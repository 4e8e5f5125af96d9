// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! In which order ranges are taken and given back, and how large they are.
//!
//! # Theory
//!
//! * *immediate*: each range is given back at once.
//! * *ring*: a driver's ring of N descriptors. The oldest range is given back, then one is taken in
//!   its place.
//! * *bursts*: such a ring, of which the oldest [`BURST`] are given back by one call, then one
//!   after the other is taken in their place: a driver that reaps completions in bursts.
//! * *replace*: N ranges are outstanding, and a random one of them is replaced. Before, 2 N are
//!   taken and a random half is given back, so that free ranges lie scattered among used ones.
//! * *producer-consumer*: one thread takes and hands over, another gives back.
//!
//! Sizes are 1 page, or drawn from 1, 2, 4, 8, 16, 17 and 32 with equal chance; 17 is granted 32 by
//! designs that round up. Draws are from a fixed sequence, so every run does the same.

use crate::{Failure, Subject};
use ioatlas_dma::units::PageCount;
use std::fmt;
use std::str::FromStr;

/// In which order ranges come and go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pattern {
    /// Given back at once.
    Immediate,
    /// First in, first out, so many outstanding: 256 or 1024.
    Ring(usize),
    /// The same with [`BURST_RING`] outstanding, given back [`BURST`] at a time.
    Bursts,
    /// One thread takes, another gives back.
    ProducerConsumer,
    /// A random one of so many is replaced.
    Replace(usize),
}

impl Pattern {
    /// Every pattern, with the numbers outstanding that are measured.
    pub const ALL: [Self; 8] = [
        Pattern::Immediate,
        Pattern::Ring(256),
        Pattern::Ring(1024),
        Pattern::Bursts,
        Pattern::ProducerConsumer,
        Pattern::Replace(1_000),
        Pattern::Replace(10_000),
        Pattern::Replace(100_000),
    ];

    /// The name used on command lines and in tables; how many are outstanding under
    /// `replace` is told apart.
    pub fn name(&self) -> &'static str {
        match self {
            Pattern::Immediate => "immediate",
            Pattern::Ring(256) => "ring256",
            Pattern::Ring(1024) => "ring1024",
            Pattern::Ring(_) => "ring",
            Pattern::Bursts => "bursts16",
            Pattern::ProducerConsumer => "producer-consumer",
            Pattern::Replace(_) => "replace",
        }
    }

    /// Ranges outstanding on each thread that takes, at most.
    pub fn outstanding(&self) -> usize {
        match *self {
            Pattern::Immediate => 1,
            Pattern::Ring(n) | Pattern::Replace(n) => n,
            Pattern::Bursts => BURST_RING,
            Pattern::ProducerConsumer => HANDOFF,
        }
    }
}

/// Ranges that [`Pattern::Bursts`] gives back at a time.
pub const BURST: usize = 16;
/// Ranges outstanding under [`Pattern::Bursts`], a multiple of [`BURST`].
pub const BURST_RING: usize = 256;

/// Places of the hand-off between producer and consumer.
pub const HANDOFF: usize = 256;

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Ring(n) => write!(f, "ring{n}"),
            Pattern::Replace(n) => write!(f, "replace{n}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// A word that names no pattern.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is no pattern (immediate, ring256, ring1024, bursts16, producer-consumer, replace1000, replace10000, replace100000)"
)]
pub struct PatternError(String);

impl FromStr for Pattern {
    type Err = PatternError;
    /// As `Display` writes them.
    fn from_str(word: &str) -> Result<Self, PatternError> {
        let named = Self::ALL.into_iter().find(|p| p.to_string() == word);
        named.ok_or_else(|| PatternError(word.into()))
    }
}

/// How large ranges are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sizes {
    /// Always a single page.
    One,
    /// 1, 2, 4, 8, 16, 17 or 32 pages.
    Mixed,
}

impl Sizes {
    /// All there are, smallest first.
    pub const ALL: [Self; 2] = [Sizes::One, Sizes::Mixed];
    /// The name used on command lines and in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Sizes::One => "1",
            Sizes::Mixed => "mixed",
        }
    }
}

/// A word that names no sizes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` names no sizes (1, mixed)")]
pub struct SizesError(String);

impl FromStr for Sizes {
    type Err = SizesError;
    fn from_str(word: &str) -> Result<Self, SizesError> {
        let named = Self::ALL.into_iter().find(|s| s.name() == word);
        named.ok_or_else(|| SizesError(word.into()))
    }
}

/// A source of sizes, one for each thread.
pub trait Draw: Send {
    /// The size of the next range to take.
    fn draw(&mut self) -> PageCount;
}

/// Draws [`Sizes::One`]: always one page.
#[derive(Clone, Copy, Default, Debug)]
pub struct One;

impl Draw for One {
    #[inline]
    fn draw(&mut self) -> PageCount {
        PageCount(1)
    }
}

/// The sizes of [`Sizes::Mixed`].
pub const MIXED: [u8; 7] = [1, 2, 4, 8, 16, 17, 32];
/// Draws before they repeat: no multiple of any ring's length, so that a place does not see the
/// same size each time round.
const DRAWS: usize = 4099;

/// [`Sizes::Mixed`]: drawn beforehand, so that drawing is one load.
#[derive(Clone, Debug)]
pub struct Mixed {
    sizes: Box<[u8; DRAWS]>,
    at: usize,
}

impl Default for Mixed {
    fn default() -> Self {
        let mut random = Random::default();
        let draw = |_| MIXED[random.below(MIXED.len())];
        Mixed {
            sizes: Box::new(std::array::from_fn(draw)),
            at: 0,
        }
    }
}

impl Draw for Mixed {
    #[inline]
    fn draw(&mut self) -> PageCount {
        let at = match self.at {
            at if at < self.sizes.len() => at,
            _ => from_the_start(),
        };
        self.at = at + 1;
        PageCount(u64::from(self.sizes[at]))
    }
}

/// Marsaglia's xorshift of 64 bits, from a fixed start. No library's: it runs within what is timed,
/// and within the instructions that `ci/instructions.budget` counts.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    /// A number below `n`, which is small: the bias is n / 2^32.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * n as u64) >> 32) as usize
    }
}

/// A pattern of one thread at work: what is outstanding, and which comes next.
pub trait Sequence<T>: Send {
    /// Brings the subject to where the pattern starts. `go_on` is asked now and then.
    ///
    /// # Errors
    /// The subject's; and where it may not go on.
    fn fill<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure>;
    /// One take and one give.
    fn pair<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
    ) -> Result<(), Failure>;
    /// What is outstanding, taken out.
    fn outstanding(&mut self) -> impl Iterator<Item = T>;
}

/// The sequence of [`Pattern::Immediate`]: nothing is outstanding between pairs.
#[derive(Clone, Copy, Default, Debug)]
pub struct Immediate;

impl<T> Sequence<T> for Immediate {
    fn fill<S: Subject<Token = T>>(
        &mut self,
        _: &S,
        _: &mut S::Hand,
        _: &mut impl Draw,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        Ok(())
    }
    #[inline]
    fn pair<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
    ) -> Result<(), Failure> {
        let token = subject.take(hand, draw.draw())?;
        subject.give(hand, token)
    }
    fn outstanding(&mut self) -> impl Iterator<Item = T> {
        std::iter::empty()
    }
}

/// Where a round begins, apart from the loop: else each pair would choose between this
/// place and the next.
#[cold]
#[inline(never)]
fn from_the_start() -> usize {
    0
}

/// The sequence of [`Pattern::Ring`]: the oldest of so many is given back.
#[derive(Debug)]
pub struct Ring<T> {
    places: Box<[Option<T>]>,
    oldest: usize,
}

impl<T> Ring<T> {
    /// With so many places, all empty.
    pub fn new(places: usize) -> Self {
        Ring {
            places: (0..places).map(|_| None).collect(),
            oldest: 0,
        }
    }
}

impl<T: Send> Sequence<T> for Ring<T> {
    fn fill<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        (0..self.places.len()).try_for_each(|_| self.pair(subject, hand, draw))
    }
    #[inline(always)] // also in bursts
    fn pair<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
    ) -> Result<(), Failure> {
        let at = match self.oldest {
            at if at < self.places.len() => at,
            _ => from_the_start(),
        };
        self.oldest = at + 1;
        let place = &mut self.places[at];
        if let Some(token) = place.take() {
            subject.give(hand, token)?;
        }
        subject.take_into(hand, draw.draw(), place)
    }
    fn outstanding(&mut self) -> impl Iterator<Item = T> {
        let (newer, older) = self.places.split_at_mut(self.oldest);
        older.iter_mut().chain(newer).filter_map(Option::take)
    }
}

/// The sequence of [`Pattern::Bursts`].
#[derive(Debug)]
pub struct Bursts<T> {
    ring: Ring<T>,
}

impl<T> Default for Bursts<T> {
    fn default() -> Self {
        Bursts {
            ring: Ring::new(BURST_RING),
        }
    }
}

impl<T: Send> Sequence<T> for Bursts<T> {
    fn fill<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        self.ring.fill(subject, hand, draw, go_on)
    }
    #[inline]
    fn pair<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
    ) -> Result<(), Failure> {
        if self.ring.oldest.is_multiple_of(BURST) {
            let first = self.ring.oldest % BURST_RING;
            let burst = self.ring.places[first..][..BURST].iter_mut();
            subject.give_all(hand, &mut burst.filter_map(Option::take))?;
        }
        // in a place that is empty now
        self.ring.pair(subject, hand, draw)
    }
    fn outstanding(&mut self) -> impl Iterator<Item = T> {
        self.ring.outstanding()
    }
}

/// Ranges between two questions whether filling may go on.
const ASKED: usize = 64;

/// The sequence of [`Pattern::Replace`]: one of so many, at random, is given back.
#[derive(Debug)]
pub struct Replace<T> {
    places: Vec<Option<T>>,
    outstanding: usize,
    random: Random,
}

impl<T> Replace<T> {
    /// With so many outstanding.
    pub fn new(outstanding: usize) -> Self {
        Replace {
            places: Vec::with_capacity(2 * outstanding),
            outstanding,
            random: Random::default(),
        }
    }
}

impl<T: Send> Sequence<T> for Replace<T> {
    fn fill<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        let mut asked = |places: usize| {
            if places.is_multiple_of(ASKED) && !go_on() {
                let most = 2 * self.outstanding;
                return Err(Failure::new(format!(
                    "out of time with {places} of {most} ranges taken or given back"
                )));
            }
            Ok(())
        };
        for place in 0..2 * self.outstanding {
            asked(place)?;
            self.places.push(Some(subject.take(hand, draw.draw())?));
        }
        while self.places.len() > self.outstanding {
            asked(2 * self.outstanding - self.places.len())?;
            let at = self.random.below(self.places.len());
            if let Some(token) = self.places.swap_remove(at) {
                subject.give(hand, token)?;
            }
        }
        Ok(())
    }
    #[inline]
    fn pair<S: Subject<Token = T>>(
        &mut self,
        subject: &S,
        hand: &mut S::Hand,
        draw: &mut impl Draw,
    ) -> Result<(), Failure> {
        let at = self.random.below(self.places.len());
        let place = &mut self.places[at];
        if let Some(token) = place.take() {
            subject.give(hand, token)?;
        }
        subject.take_into(hand, draw.draw(), place)
    }
    fn outstanding(&mut self) -> impl Iterator<Item = T> {
        self.places.drain(..).flatten()
    }
}
