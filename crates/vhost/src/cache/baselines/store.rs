// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a lock-based cache keeps its translations in: a plain structure that knows nothing of
//! threads.

use super::{LookupError, Piece, Run, Span};
use ioatlas_dma::units::*;

/// A structure of runs that do not overlap. Sealed, as [`DeviceIotlb`](super::DeviceIotlb) is.
pub trait Store: super::private::Sealed + Clone + Send + Sync + 'static {
    /// For messages and the command line.
    const NAME: &'static str;
    /// A store that holds no run.
    fn empty() -> Self;
    /// Puts `run` in. Nothing is known of its pages: they were removed before.
    fn insert(&mut self, run: Run);
    /// Takes out all that is known of these pages, splitting runs at both ends;
    /// tells what was there.
    fn remove(&mut self, span: Span, removed: &mut dyn FnMut(Run));
    /// The run that has `page`.
    fn find(&self, page: u64) -> Option<Run>;
    /// The first bytes of a range, or `None` where nothing is known of its first page.
    #[inline]
    fn piece(&self, iova: Iova, len: ByteCount, need: Perm) -> Option<Result<Piece, LookupError>> {
        let run = self.find(iova.0 >> GRANULE_LG2)?;
        Some(run.piece(iova, len, need))
    }
    /// How many runs it holds, not their pages.
    fn count(&self) -> usize;
    /// In how many places runs may be.
    fn places(&self) -> usize {
        self.count()
    }
    /// The run in a place, if there is one.
    fn nth(&self, place: usize) -> Option<Run>;
    /// Bytes of memory taken.
    fn bytes(&self) -> usize;
}
