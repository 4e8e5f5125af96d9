// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is measured.

use ioatlas_dma::units::PageCount;

/// Gives out ranges and takes them back. Shared by threads; what a thread needs of its own is its
/// *hand*. In a measurement every take and give is to succeed, so a [`Failure`] ends it.
pub trait Subject: Sync {
    /// One range that was taken. Another thread may give it back.
    type Token: Send;
    /// What each thread has of its own.
    type Hand: Send;

    /// The hand of thread number `thread`, made on that thread: subjects with per-CPU caches give
    /// it a CPU of its own.
    fn hand(&self, thread: usize) -> Self::Hand;
    /// Takes a range of `pages` pages for the calling thread.
    fn take(&self, hand: &mut Self::Hand, pages: PageCount) -> Result<Self::Token, Failure>;
    /// As [`take`](Self::take), into `place`.
    ///
    /// # Errors
    /// As there; what was in `place` stays.
    #[inline]
    fn take_into(
        &self,
        hand: &mut Self::Hand,
        pages: PageCount,
        place: &mut Option<Self::Token>,
    ) -> Result<(), Failure> {
        *place = Some(self.take(hand, pages)?);
        Ok(())
    }
    /// Gives a range back.
    fn give(&self, hand: &mut Self::Hand, token: Self::Token) -> Result<(), Failure>;
    /// Gives back what `tokens` yields, by one call where the subject has such a call.
    ///
    /// # Errors
    /// As [`give`](Self::give).
    #[inline]
    fn give_all(
        &self,
        hand: &mut Self::Hand,
        tokens: &mut impl Iterator<Item = Self::Token>,
    ) -> Result<(), Failure> {
        tokens.try_for_each(|token| self.give(hand, token))
    }
}

/// A subject failed where it must not. Boxed, since it is returned in every pair and never happens.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(Box<str>);

impl Failure {
    /// With the reason in words.
    #[cold]
    pub fn new(why: impl std::fmt::Display) -> Self {
        Failure(why.to_string().into())
    }
}
