// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Nothing: what the pattern around a subject costs, and the hand-off between two threads.

use crate::{Failure, Subject};
use ioatlas_dma::units::{IovaPage, IovaRange, PageCount};

/// Gives out numbers and forgets them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Nothing;

impl Subject for Nothing {
    type Token = IovaRange;
    /// The number that comes next.
    type Hand = u64;

    fn hand(&self, _: usize) -> u64 {
        0
    }
    #[inline]
    fn take(&self, next: &mut u64, pages: PageCount) -> Result<IovaRange, Failure> {
        *next += pages.0;
        Ok(IovaRange::new(IovaPage(*next), pages))
    }
    #[inline]
    fn give(&self, next: &mut u64, range: IovaRange) -> Result<(), Failure> {
        *next ^= range.first.0;
        Ok(())
    }
}
