// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a cache makes of an entry.

use super::{Entry, HostAddr, LookupError, Miss, MissCause, Piece, Span, UpdateError, covers};
use ioatlas_dma::units::*;

/// Pages whose host addresses are contiguous and whose permission is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Run {
    pub span: Span,
    /// Where the first byte is in this process.
    pub host: HostAddr,
    pub perm: Perm,
}

impl Run {
    /// Where the byte at `iova`, which is in the run, is.
    #[inline]
    pub fn host_of(&self, iova: Iova) -> HostAddr {
        HostAddr(self.host.0 + (iova.0 - self.span.iova().0))
    }
    /// The first bytes of a request that begins in the run.
    #[inline]
    pub fn piece(&self, iova: Iova, len: ByteCount, need: Perm) -> Result<Piece, LookupError> {
        if !covers(self.perm, need) {
            return Err(LookupError::Miss(Miss {
                iova,
                len,
                need,
                cause: MissCause::Forbidden,
            }));
        }
        // in bytes, without a product that might not fit: pages after the first, and the rest of
        // the first
        let pages = self.span.end - (iova.0 >> GRANULE_LG2) - 1;
        let here = GRANULE - iova.offset();
        let run = pages.saturating_mul(GRANULE).saturating_add(here);
        Ok(Piece {
            iova,
            host: self.host_of(iova),
            len: ByteCount(len.0.min(run)),
        })
    }
    /// The part of it in `span`.
    pub fn part(&self, span: Span) -> Option<Run> {
        let span = self.span.and(span)?;
        let host = self.host_of(span.iova());
        Some(Run {
            span,
            host,
            ..*self
        })
    }
    /// Whether `next` begins where this one ends, in both address spaces, and permits the same.
    pub fn joins(&self, next: &Run) -> bool {
        let end = self.host.0.checked_add(self.span.len().0);
        let there = end == Some(next.host.0);
        self.span.end == next.span.first && there && self.perm == next.perm
    }
}

impl Entry {
    /// The run that it is.
    ///
    /// # Errors
    /// The range is none, not of whole pages, or the host addresses wrap around.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn run(&self) -> Result<Run, UpdateError> {
        let Entry {
            iova,
            len,
            host,
            perm,
        } = *self;
        let span = Span::exact(iova, len).map_err(|why| UpdateError::Range { iova, len, why })?;
        match host.0.checked_add(len.0) {
            Some(_) => Ok(Run { span, host, perm }),
            None => Err(UpdateError::HostWraps { iova, len, host }),
        }
    }
}
