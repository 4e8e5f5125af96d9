// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Chunks: a range of IOVAs that is taken at once, filled in order, and free with its last piece.
//!
//! # Theory
//!
//! A driver that maps for a ring or a burst does so in an order that it knows; so the addresses may
//! be neighbours, whatever other CPUs allocate meanwhile. What is unmapped together is then one
//! range for the unit, and its leaves are in one table, which stays where it is: one invalidation,
//! of leaves alone (F&S, SOSP'24).
//!
//! A *piece* is a [`Mapping`] with an allocation of its own kind, and goes every way that a mapping
//! goes: one by one, in batches, without waiting, under any policy, on any CPU. Nothing here has a
//! part in that. What [`Domain::unmap`] promises is true of it when that returns. Under a deferred
//! policy each piece is a thing of its own in the queue, so the exposure is that of mappings.
//!
//! Mapping a piece asks no allocator: the next pages are its own. Pages are not handed out twice in
//! one chunk, also not after a map that failed. When all pages have come home, by flushed pieces or
//! by the end of the chunk, the whole is free; the books and the proof are in `iova::chunks`.
//!
//! Ordering and locking: a chunk has one owner (`&mut`), who takes no lock and, where the leaf
//! table is known, writes leaves, one count and its own CPU's counters. Pieces end anywhere
//! meanwhile.
//!
//! Not handled: pages that come home are not mapped again before the whole chunk is free, so a
//! single piece that stays keeps all IOVAs of its chunk; and pieces cannot be given up for
//! [`Domain::unmap_raw`].

use super::{
    map::{Place, check},
    *,
};
use crate::{
    iova::{AllocKind, Book, IovaAlloc, MOST_PAGES, NoBook, Request},
    table::{LeafAttrs, LeafTable},
};

/// A range of IOVAs to map into, in order: see [`Domain::chunk`].
///
/// Dropping it ends it, also while pieces live: what it has not handed out comes home, and the
/// range is free with its last piece. One that is forgotten ([`core::mem::forget`]) keeps its range
/// until the domain ends.
pub struct Chunk<'d, P: Platform, T: Translator<P>> {
    domain: &'d Domain<P, T>,
    open: OpenChunk,
}

/// A chunk, apart from its domain.
pub(crate) struct OpenChunk {
    range: IovaRange,
    /// How many pages were handed out.
    given: PageCount,
    book: Book,
    key: DomainKey,
    lifetime: Lifetime,
    /// Where all its leaves are, once that is known.
    table: Option<LeafTable>,
}

impl OpenChunk {
    /// Pages that were not handed out.
    pub fn left(&self) -> PageCount {
        PageCount(self.range.pages.0 - self.given.0)
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Takes a range of IOVAs, with room for `pages` pages at least, and maps nothing there yet.
    /// From 1 to 256; other numbers are brought to the nearer end. Sizes of which magazines are
    /// kept (32 pages, by default) come at the cost of one map.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::sync::Arc;
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// let domain = Domain::new(p.clone(), table, DomainConfig::default())?; // strict
    /// let mut chunk = domain.chunk(PageCount(64))?;
    /// let buffer = |nth: u64| PhysRange::page(PhysPage(0x100 + 3 * nth));
    /// let burst = (0..48).map(|nth| chunk.map(buffer(nth), Direction::FromDevice));
    /// let burst = burst.collect::<Result<Vec<_>, _>>()?;
    /// assert!(burst.windows(2).all(|two| two[0].iova().0 + 4096 == two[1].iova().0));
    ///
    /// let before = domain.stats().invalidations;
    /// domain.unmap_batch(&mut burst.into_iter()).expect("the unit answers");
    /// assert_eq!(domain.stats().invalidations, before + 1); // of one range
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MapError`]: there is no such range, or there are as many chunks as there can be
    /// ([`DomainConfig::chunks_per_cpu`]).
    pub fn chunk(&self, pages: PageCount) -> Result<Chunk<'_, P, T>, MapError> {
        self.chunk_with(pages, MapAttrs::default())
    }

    /// The same, with limits on the addresses of the whole range, or a hint for all its pieces.
    ///
    /// # Errors
    /// [`MapError`], as from [`chunk`](Self::chunk).
    pub fn chunk_with(
        &self,
        pages: PageCount,
        attrs: MapAttrs,
    ) -> Result<Chunk<'_, P, T>, MapError> {
        let open = self.open_chunk(pages, attrs)?;
        Ok(Chunk { domain: self, open })
    }

    pub(crate) fn open_chunk(
        &self,
        pages: PageCount,
        attrs: MapAttrs,
    ) -> Result<OpenChunk, MapError> {
        let alloc = self.alloc(&Request {
            limits: attrs.limits,
            ..Request::pages(PageCount(pages.0.clamp(1, MOST_PAGES.0)))
        })?;
        let range = alloc.range();
        let p = &*self.platform;
        let book = self.allocator.open(p, alloc).map_err(|(alloc, why)| {
            let origin = self.platform.pinned(|cpu| cpu.index());
            // nothing was mapped by right of it
            let unused = Flushed::by_its_parts(alloc);
            self.allocator.free(&self.platform, origin, unused);
            match why {
                NoBook::NoPlace => MapError::NoChunk,
                NoBook::NoFrame => MapError::NoMemory,
            }
        })?;
        Ok(OpenChunk {
            range,
            given: PageCount(0),
            book,
            key: self.key,
            lifetime: attrs.lifetime,
            table: None,
        })
    }

    /// Maps a buffer, or a list, by the next pages of `chunk`.
    #[inline]
    pub(crate) fn map_in(
        &self,
        chunk: &mut OpenChunk,
        list: &[PhysRange],
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        if chunk.key != self.key {
            return Err(MapError::ForeignChunk);
        }
        let (wanted, place) = match list {
            [buffer] => {
                check(0, buffer)?;
                let place = Place::of(buffer, direction, chunk.lifetime);
                (buffer.pages(), place)
            }
            list => {
                let (request, place) = self.measure(list, direction, chunk.lifetime)?;
                (request.pages, place)
            }
        };
        let left = chunk.left();
        if wanted > left {
            return Err(MapError::ChunkFull { wanted, left });
        }
        let range = IovaRange::new(IovaPage(chunk.range.first.0 + chunk.given.0), wanted);
        chunk.given.0 += wanted.0;
        // before the piece can come home
        let p = &*self.platform;
        self.allocator.give(p, chunk.book, chunk.given);
        if let (&[buffer], Some(table)) = (list, chunk.table)
            && self.write_piece(range, &buffer, place, table)
        {
            return Ok(Mapping {
                iova: Iova(range.first.addr().0 | buffer.addr.offset()),
                len: buffer.len,
                key: self.key,
                table: Some(table),
                alloc: IovaAlloc::new(range, AllocKind::Piece),
            });
        }
        let piece = IovaAlloc::new(range, AllocKind::Piece);
        let mapping = self.install(piece, list, place)?;
        chunk.table = self.table_of(chunk.range);
        Ok(mapping)
    }

    /// Without a walk; returns whether. Nothing has changed if not.
    #[inline]
    fn write_piece(
        &self,
        range: IovaRange,
        buffer: &PhysRange,
        place: Place,
        table: LeafTable,
    ) -> bool {
        let (p, translator) = (&*self.platform, &self.translator);
        let leaf = LeafAttrs {
            perm: place.direction.perm(),
            kind: AllocKind::Piece,
            lifetime: place.lifetime,
        };
        let to = buffer.addr.page();
        let written = translator.unit().on_map() == OnMap::Nothing
            && match range.pages {
                PageCount(1) => translator.install_known::<1>(OURS, p, range, to, leaf, table),
                _ => translator.install_known::<0>(OURS, p, range, to, leaf, table),
            };
        if written {
            p.pinned(|cpu| {
                if let Some(words) = self.counters.of(&cpu) {
                    words.mapped(range.pages, range.pages);
                }
            });
        }
        written
    }

    /// The leaf table of a chunk, a piece of which has just been installed. It stays where it is
    /// for as long as pages of the chunk are owed: no other owns all of its span.
    #[cold]
    fn table_of(&self, chunk: IovaRange) -> Option<LeafTable> {
        let p = &*self.platform;
        p.pinned(|cpu| {
            self.translator
                .learn(OURS, p, &cpu, chunk, AllocKind::Piece)
        })
    }

    pub(crate) fn end_chunk(&self, chunk: &OpenChunk) {
        let p = &*self.platform;
        let origin = p.pinned(|cpu| cpu.index());
        let (book, pages) = (chunk.book, chunk.range.pages);
        self.allocator.end(p, origin, book, pages, chunk.left());
    }
}

impl<P: Platform, T: Translator<P>> Chunk<'_, P, T> {
    /// Maps one buffer by the next pages. The mapping is this domain's, and ends as any other.
    ///
    /// # Errors
    /// [`MapError`]: [`ChunkFull`](MapError::ChunkFull) if it has not as many pages left. After any
    /// other error nothing is mapped, and the pages are not handed out again.
    #[inline]
    pub fn map(
        &mut self,
        buffer: impl Lend<P, PhysRange>,
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        let buffer = buffer.lend();
        self.domain.map_in(&mut self.open, &[buffer], direction)
    }

    /// Maps a scatter-gather list by the next pages; see [`Domain::map_list`].
    ///
    /// # Errors
    /// [`MapError`], as from [`map`](Self::map).
    pub fn map_list<'l>(
        &mut self,
        list: impl Lend<P, &'l [PhysRange]>,
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        let list = list.lend();
        self.domain.map_in(&mut self.open, list, direction)
    }

    /// All pages of it. A piece begins where the one before ended, each at the granule.
    pub fn range(&self) -> IovaRange {
        self.open.range
    }
    /// How many pages are left to map by.
    pub fn left(&self) -> PageCount {
        self.open.left()
    }
}

impl<P: Platform, T: Translator<P>> Drop for Chunk<'_, P, T> {
    fn drop(&mut self) {
        self.domain.end_chunk(&self.open);
    }
}
