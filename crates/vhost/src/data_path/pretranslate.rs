// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A batch of descriptors translated ahead (KVM'17, "Future improvements"): move data if nothing is
//! missing; else ask for all that is, at once.

use super::{Asked, PendingMisses};
use crate::cache::*;
use ioatlas_dma::units::*;
use std::ops::Range;

/// One descriptor: bytes that will be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The first byte.
    pub iova: Iova,
    /// How many bytes.
    pub len: ByteCount,
    /// For what.
    pub need: Perm,
}

/// The pieces of a batch's descriptors. Kept between guards, it allocates only to grow.
#[derive(Default, Debug)]
pub struct Pretranslation {
    pieces: Vec<Piece>,
    of: Vec<Result<Range<usize>, LookupError>>,
    misses: Vec<Miss>,
    /// Descriptors that were translated whole, so far.
    pub hits: u64,
    /// Descriptors of which something was missing, so far.
    pub missed: u64,
}

impl Pretranslation {
    /// Looks `wanted` up. What is missing, and was not asked for before, is in
    /// [`misses`](Self::misses) then, to be sent; each range and permission once.
    ///
    /// Returns whether everything is there. The pieces are good for the time of `pin`.
    pub fn run(
        &mut self,
        guard: &impl Guard,
        wanted: &[Wanted],
        pending: &PendingMisses,
        now: TimeNs,
    ) -> bool {
        self.pieces.clear();
        self.of.clear();
        self.misses.clear();
        let mut whole = true;
        for one in wanted {
            let first = self.pieces.len();
            let mut failed = None;
            let (mut iova, mut left) = (one.iova, one.len);
            loop {
                match guard.lookup(iova, left, one.need) {
                    Ok(piece) => {
                        if failed.is_none() {
                            self.pieces.push(piece);
                        }
                        left.0 -= piece.len.0;
                        if left.0 == 0 {
                            break;
                        }
                        iova.0 += piece.len.0;
                    }
                    Err(error) => {
                        failed.get_or_insert(error);
                        let LookupError::Miss(miss) = error else {
                            break;
                        };
                        // the rest of the request, as one question
                        if pending.ask(&miss, now) == Asked::New {
                            self.misses.push(miss);
                        }
                        break;
                    }
                }
            }
            match failed {
                None => {
                    self.hits += 1;
                    self.of.push(Ok(first..self.pieces.len()));
                }
                Some(error) => {
                    self.missed += 1;
                    whole = false;
                    self.pieces.truncate(first);
                    self.of.push(Err(error));
                }
            }
        }
        whole
    }

    /// What is to be asked for.
    pub fn misses(&self) -> &[Miss] {
        &self.misses
    }

    /// The pieces of descriptor `number`, in order.
    ///
    /// # Errors
    /// Why it has none.
    ///
    /// # Panics
    /// If there were not as many descriptors.
    pub fn pieces(&self, number: usize) -> Result<&[Piece], LookupError> {
        self.of[number].clone().map(|range| &self.pieces[range])
    }
}
