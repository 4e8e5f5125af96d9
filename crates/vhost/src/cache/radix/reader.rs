// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The reading side.

use super::*;
use std::cell::Cell;

/// Looks that a lookup takes while writers are at work, before it says that it missed.
const LOOKS: u32 = 8;

/// A reader of a [`Radix`].
pub struct RadixReader<P: TreeMemory, S: Shape> {
    cache: Arc<Radix<P, S>>,
    number: usize,
}

/// The guard of a [`RadixReader`]. What it found last is looked at first in the next lookup.
pub struct RadixGuard<'r, P: TreeMemory, S: Shape> {
    tree: &'r Tree<P, S>,
    words: &'r [P::A64],
    own: &'r P::A64,
    generation: u64,
    /// The run last found. It stays true for as long as the guard is.
    last: Cell<Fields>,
}

impl<P: TreeMemory, S: Shape> RadixReader<P, S> {
    pub(super) fn new(cache: Arc<Radix<P, S>>, number: usize) -> Self {
        RadixReader { cache, number }
    }
}

impl<P: TreeMemory, S: Shape> Drop for RadixReader<P, S> {
    fn drop(&mut self) {
        let number = self.number;
        self.cache.writer.with(|w| w.remove_reader(number));
    }
}

impl<P: TreeMemory, S: Shape> IotlbReader for RadixReader<P, S> {
    type Guard<'r> = RadixGuard<'r, P, S>;
    #[inline]
    fn pin(&mut self) -> RadixGuard<'_, P, S> {
        let tree = &self.cache.tree;
        let (own, generation) = tree.epochs.begin(&tree.platform, self.number);
        RadixGuard {
            tree,
            words: tree.platform.words(OWNER),
            own,
            generation,
            last: Cell::new(Fields::NONE),
        }
    }
}

impl<P: TreeMemory, S: Shape> Drop for RadixGuard<'_, P, S> {
    #[inline]
    fn drop(&mut self) {
        Epochs::<P>::end(self.own);
    }
}

impl<P: TreeMemory, S: Shape> RadixGuard<'_, P, S> {
    #[inline(always)]
    fn walk(&self, page: u64) -> Option<Fields> {
        let (_, fields) = self.tree.search(self.words, page)?;
        fields.has(page).then_some(fields)
    }

    /// Looks again: what was not found may have been moved meanwhile, or allowed.
    #[cold]
    #[inline(never)]
    fn look_again(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError> {
        Span::touched(iova, len).map_err(|why| LookupError::Range { iova, len, why })?;
        let mut cause = MissCause::Absent;
        for _ in 0..LOOKS {
            let before = self.tree.changes.0.load(Ordering::Acquire);
            match self.walk(iova.0 >> GRANULE_LG2) {
                Some(found) if found.perm & bits(need) == bits(need) => {
                    return Ok(found.piece(iova, len));
                }
                Some(_) => cause = MissCause::Forbidden,
                None => cause = MissCause::Absent,
            }
            let after = self.tree.changes.0.load(Ordering::Relaxed);
            if before == after && before.is_multiple_of(2) {
                break;
            }
            self.tree.platform.relax();
        }
        Err(LookupError::Miss(Miss {
            iova,
            len,
            need,
            cause,
        }))
    }
}

impl Fields {
    /// The first bytes of a request that begins in the run.
    #[inline(always)]
    fn piece(&self, iova: Iova, len: ByteCount) -> Piece {
        // the end of the address space is 0 here, which comes out right
        let left = (self.end << GRANULE_LG2).wrapping_sub(iova.0);
        Piece {
            iova,
            host: HostAddr(iova.0.wrapping_add(self.diff)),
            len: ByteCount(len.0.min(left)),
        }
    }
}

impl<P: TreeMemory, S: Shape> Guard for RadixGuard<'_, P, S> {
    #[inline(always)]
    fn lookup(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError> {
        let page = iova.0 >> GRANULE_LG2;
        let last = self.last.get();
        let mut found = last;
        if !last.has(page) {
            match self.walk(page) {
                Some(fields) => {
                    self.last.set(fields);
                    found = fields;
                }
                None => return self.look_again(iova, len, need),
            }
        }
        let need_bits = bits(need);
        if found.perm & need_bits != need_bits || !Span::is_range(iova, len) {
            return self.look_again(iova, len, need);
        }
        Ok(found.piece(iova, len))
    }
    #[inline]
    fn generation(&self) -> Generation {
        Generation(self.generation)
    }
}
