// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The address API: for interfaces that pass addresses in place of tokens.
//!
//! [`Client::into_raw`] puts a mapping's token into an ordered table by its IOVA, and
//! [`Client::unmap_raw`] takes it out again if address, length and direction are what they were; so
//! a second unmap finds nothing, and a wrong one changes nothing.
//!
//! Locking: the table is in [`SHARDS`] parts by IOVA, each a sorted vector under a lock of its own;
//! it grows outside the lock.

use super::*;
use crate::units::*;
use alloc::boxed::Box;

/// Parts of the table.
const SHARDS: usize = 16;

type Token = Box<DmaMapping<Lent<Arc<[PhysRange]>>>>;

/// Tokens that were given up, by IOVA.
pub(super) struct RawTable<P: Platform>([P::Lock<Vec<(u64, Token)>>; SHARDS]);

/// Why the address API refused.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum RawDmaError {
    /// Nothing that was given up is mapped at that address: it was unmapped already, or never was.
    #[error("no mapping was given up at {0}")]
    NotMapped(Iova),
    /// It has another length. Nothing was changed.
    #[error("the mapping at {iova} is of {mapped} bytes, not of {given}")]
    WrongLength {
        iova: Iova,
        /// How long it is.
        mapped: ByteCount,
        /// The length that the caller gave.
        given: ByteCount,
    },
    /// It has another direction. Nothing was changed.
    #[error("the mapping at {iova} is {mapped:?}, not {given:?}")]
    WrongDirection {
        iova: Iova,
        /// The direction of the mapping.
        mapped: Direction,
        /// The direction that the caller gave.
        given: Direction,
    },
    /// The mapping was found, and ending it failed.
    #[error(transparent)]
    Unmap(#[from] DmaUnmapError<Lent<Arc<[PhysRange]>>>),
    /// The mapping was found, and synchronising it failed.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

impl<P: Platform> RawTable<P> {
    pub fn new() -> Self {
        RawTable(core::array::from_fn(|_| P::Lock::new(Vec::new())))
    }
    fn shard(&self, iova: Iova) -> &P::Lock<Vec<(u64, Token)>> {
        &self.0[shard_of(iova)]
    }
    fn put(&self, token: Token) {
        let at = token.iova().0;
        let shard = self.shard(token.iova());
        let mut token = Some(token);
        let mut room = Vec::new();
        while token.is_some() {
            let len = shard.with(|all| {
                if all.len() == all.capacity() && room.capacity() > all.len() {
                    room.append(all);
                    core::mem::swap(all, &mut room);
                }
                if all.len() < all.capacity()
                    && let Some(token) = token.take()
                {
                    let nth = all.partition_point(|(key, _)| *key < at);
                    all.insert(nth, (at, token));
                }
                all.len()
            });
            if token.is_some() {
                room = Vec::with_capacity(2 * len + 4);
            }
        }
    }
    /// Takes the token of exactly this mapping.
    fn take(&self, iova: Iova, len: ByteCount, direction: Direction) -> Result<Token, RawDmaError> {
        self.shard(iova).with(|all| {
            let first = all.partition_point(|(key, _)| *key < iova.0);
            let same = all[first..].iter().take_while(|(key, _)| *key == iova.0);
            // where buffers' own addresses are their IOVAs there may be several
            let mut why = Err(RawDmaError::NotMapped(iova));
            for (nth, (_, token)) in (first..).zip(same) {
                why = check(token, len, direction).map(|()| nth);
                if why.is_ok() {
                    break;
                }
            }
            Ok(all.remove(why?).1)
        })
    }
    /// Tokens that are still in the table.
    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.with(|all| all.len())).sum()
    }
}

/// Where the token of `iova` is. Allocations are aligned to their size, so the lowest bits of the
/// page are the same for all large ones: the highest bits of its
/// product decide (Fibonacci hashing).
fn shard_of(iova: Iova) -> usize {
    let hash = iova.page().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - SHARDS.ilog2())) as usize
}

fn check(token: &Token, len: ByteCount, direction: Direction) -> Result<(), RawDmaError> {
    let iova = token.iova();
    if token.len() != len {
        return Err(RawDmaError::WrongLength {
            iova,
            mapped: token.len(),
            given: len,
        });
    }
    if token.direction() != direction {
        return Err(RawDmaError::WrongDirection {
            iova,
            mapped: token.direction(),
            given: direction,
        });
    }
    Ok(())
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Gives a mapping's token up: from now on its address, length and direction end it.
    pub fn into_raw(&self, mapping: DmaMapping<Lent<Arc<[PhysRange]>>>) -> (Iova, ByteCount) {
        let (iova, len) = (mapping.iova(), mapping.len());
        self.dma().raw.put(Box::new(mapping));
        (iova, len)
    }

    /// Ends the mapping at `iova`.
    ///
    /// # Errors
    /// [`RawDmaError`]; but for [`RawDmaError::Unmap`], nothing has changed.
    pub fn unmap_raw(
        &self,
        iova: Iova,
        len: ByteCount,
        direction: Direction,
    ) -> Result<(), RawDmaError> {
        let token = self.dma().raw.take(iova, len, direction);
        let token = token.inspect_err(|why| self.tell(iova, len, direction, why))?;
        match self.unmap(*token) {
            Ok(_) => Ok(()),
            Err(DmaUnmapError::Foreign(mapping)) => {
                let iova = mapping.iova();
                self.dma().raw.put(mapping); // its owner may still come
                Err(SyncError::Foreign { iova }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Tells the watch of a mistake.
    #[cold]
    fn tell(&self, iova: Iova, len: ByteCount, direction: Direction, why: &RawDmaError) {
        let what = match why {
            RawDmaError::NotMapped(_) => Mistake::NotMapped,
            RawDmaError::WrongLength { mapped, .. } => Mistake::WrongLength { mapped: *mapped },
            RawDmaError::WrongDirection { mapped, .. } => {
                Mistake::WrongDirection { mapped: *mapped }
            }
            _ => return,
        };
        if self.dma().watch.is_on() {
            let event = self.event(iova, len, direction);
            self.dma().watch.found(&event, what);
        }
    }

    /// Synchronises `span` of the mapping at `iova`, for the side that `to` names.
    ///
    /// # Errors
    /// [`RawDmaError`]; the mapping lives on.
    pub fn sync_raw(
        &self,
        iova: Iova,
        span: Span,
        direction: Direction,
        to: SyncFor,
    ) -> Result<(), RawDmaError> {
        // out of the table meanwhile, as nothing is copied with a lock held: an unmap that comes
        // then finds nothing
        let table = &self.dma().raw;
        let len = table.shard(iova).with(|all| {
            let found = all.binary_search_by_key(&iova.0, |(key, _)| *key);
            found.map(|nth| all[nth].1.len()).unwrap_or_default()
        });
        let token = table.take(iova, len, direction);
        let token = token.inspect_err(|why| self.tell(iova, len, direction, why))?;
        let synced = match to {
            SyncFor::Cpu => self.sync_for_cpu(&token, span),
            SyncFor::Device => self.sync_for_device(&token, span),
        };
        table.put(token);
        Ok(synced?)
    }
}

/// Which side bytes are synchronised for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyncFor {
    /// The CPU is about to look.
    Cpu,
    /// The device is about to look, or to write.
    Device,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever a design puts them, and however large they are: from the top of the aperture down,
    /// or from the bottom up, one beside the other.
    #[test]
    fn mappings_of_one_size_are_spread_over_the_table() {
        const MAPPINGS: u64 = 256;
        for size_lg2 in 0..=18 {
            for top in [0, (1 << 45 >> size_lg2) - MAPPINGS] {
                let mut held = [0; SHARDS];
                for n in 0..MAPPINGS {
                    let page = (top + n) << size_lg2;
                    held[shard_of(IovaPage(page).addr())] += 1;
                }
                let most = held.into_iter().max().unwrap_or(0);
                let even = MAPPINGS / SHARDS as u64;
                assert!(most <= 2 * even, "2^{size_lg2} pages from {top}: {held:?}");
            }
        }
    }
}
