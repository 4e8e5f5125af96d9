// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A ring's part, translated once.

use crate::cache::*;
use ioatlas_dma::units::*;

/// The translation of a range that is used under every guard (a descriptor table, a ring):
/// remembered, and looked up again only after something was invalidated, so that a guard pays one
/// comparison, O(1) whatever the cache.
#[derive(Clone, Copy, Debug)]
pub struct MetaTranslation {
    iova: Iova,
    len: ByteCount,
    need: Perm,
    known: Option<(Generation, HostAddr)>,
}

impl MetaTranslation {
    /// Of the `len` bytes at `iova`, which must be contiguous in this process.
    pub fn new(iova: Iova, len: ByteCount, need: Perm) -> Self {
        MetaTranslation {
            iova,
            len,
            need,
            known: None,
        }
    }
    /// The IOVA of its first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }
    /// How many bytes it has.
    pub fn len(&self) -> ByteCount {
        self.len
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len.0 == 0
    }

    /// Where it is, for the time of `pin`.
    ///
    /// Ordering: the guard's generation was read after the guard began. If it is the one
    /// remembered, nothing was invalidated between the lookup and the guard, and what is
    /// invalidated later waits for the guard.
    ///
    /// # Errors
    /// What the lookup says; [`MetaError::Scattered`] where it is there in several pieces.
    #[inline]
    pub fn get(&mut self, guard: &impl Guard) -> Result<HostAddr, MetaError> {
        match self.known {
            Some((generation, host)) if generation == guard.generation() => Ok(host),
            _ => self.again(guard),
        }
    }

    #[cold]
    fn again(&mut self, guard: &impl Guard) -> Result<HostAddr, MetaError> {
        self.known = None;
        let piece = guard.lookup(self.iova, self.len, self.need)?;
        if piece.len != self.len {
            // what lies behind may be missing rather than elsewhere
            for piece in guard.pieces(self.iova, self.len, self.need) {
                piece?;
            }
            let (iova, len) = (self.iova, self.len);
            return Err(MetaError::Scattered { iova, len });
        }
        self.known = Some((guard.generation(), piece.host));
        Ok(piece.host)
    }
}

/// Why a ring's part has no address.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetaError {
    /// It is not translated.
    #[error("{0}")]
    Lookup(#[from] LookupError),
    /// It is translated to places that are not contiguous.
    #[error("IOVA {iova}, {len} bytes of a ring, is not contiguous in this process")]
    Scattered {
        /// The first byte of the part.
        iova: Iova,
        len: ByteCount,
    },
}
