// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The books of chunks: allocations whose pages are handed out as pieces, and are free all at once.
//!
//! # Theory
//!
//! A *chunk* is an allocation of a power of two of pages; a *piece* is some of them, with the right
//! to write their leaves ([`AllocKind::Piece`]). Each page is of one piece at most, as its owner
//! hands pages out in order; it is not handed out again.
//!
//! A book has a count of the pages that are *owed*: at first all. A piece comes home as
//! `Flushed<IovaAlloc>`, as any allocation does, and takes its pages off the count; the owner, when
//! it ends the chunk, takes off those that it never handed out. Whoever brings the count to 0 frees
//! the allocation. **Why that needs no further invalidation:** each page of the chunk was counted
//! off once. Where that was by a piece, an invalidation that began after its entries were cleared
//! had covered the page and was complete; nothing was mapped there afterwards, since only a new
//! piece could have been, and no page is in two. Where it was by the owner, nothing was ever mapped
//! there by right of this allocation. So no cache holds any page of it: all is flushed. A piece
//! whose invalidation fails never comes home; then the count stays above 0, and the allocation is
//! lost for good, whatever else ends.
//!
//! The count does not know how much was handed out. So handing out writes no word that comings home
//! write; `given` is there for the audit, and is written by the owner alone.
//!
//! **Which book** a piece is of follows from its address: a page lies in one chunk, whose book
//! stays where it is while a piece lives. Books are found by probing. The home of a page is the
//! line of its 512 pages, and there the place of its 64, so that chunks beside each other, as runs
//! of magazines are, have the places of one line. A book is at the home of its first page or at the
//! first place before it that was free (round the end); a search goes the same way from the home of
//! the page that it has. As no chunk has more than [`MOST_PAGES`], it passes the first page's home
//! within a line.
//!
//! Memory ordering: a count is brought down by `AcqRel`, so that what any piece's holder did comes
//! before what the next holder of the allocation does. A book is published by `Release`; who looks
//! for it has a piece, and thereby comes after that.
//!
//! **Memory.** How many places there are is fixed when the domain is made; where none is left, no
//! chunk is made. Their words lie in frames of the platform's, a frame for 128 places, from when
//! the first book is opened there until the domain ends. So a domain without chunks has none of
//! them.
//!
//! Locking: none.

use super::*;
use crate::platform::{Atomic64, FrameRef, FreshFrame, OURS, Ordering};
use alloc::{boxed::Box, format, string::String};
use core::ops::Deref;

/// The most pages of a chunk: half of what a leaf table has in the formats of hardware, so that no
/// piece, nor a chunk, ever detaches one.
pub const MOST_PAGES: PageCount = PageCount(256);

/// More places than any machine has chunks.
const PLACES_MAX: usize = 1 << 20;

/// Books of a line, and the pages that share one.
const LINE_LG2: u32 = 3;
const SPAN_LG2: u32 = 9;

/// Places of a frame, as log2.
const GROUP_LG2: u32 = 7;

/// See the module's theory.
struct Books<P: Platform> {
    places: usize,
    /// Of each group of places the page of their frame, plus 1, or 0 where it has none.
    frames: Box<[P::A64]>,
}

/// The words of a place. Each kind is read and written by others at other times, so those of eight
/// places that follow each other share a line, and no two kinds do.
#[derive(Clone, Copy)]
enum Word {
    /// First page and size class of a chunk, or 0 where there is none: see [`key`].
    Key,
    /// Pages that were handed out.
    Given,
    /// Pages that have not come home.
    Owed,
}

/// The place of a chunk's book.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Book(usize);

/// Pieces of one chunk that have come home, and are not counted off yet: so its book stays.
struct Run {
    /// Of the first of them.
    origin: CpuIndex,
    place: usize,
    chunk: IovaRange,
    pages: PageCount,
}

/// An allocator with the books of its chunks: what a domain allocates from.
pub(crate) struct Chunked<P: Platform> {
    design: AnyAllocator<P>,
    books: Books<P>,
}

/// The first page and log2 of the pages, plus 1. Nothing is allocated beyond page 2^58.
fn key(range: IovaRange) -> u64 {
    range.first.0 << 6 | u64::from(range.pages.0.trailing_zeros() + 1)
}

#[inline]
fn range_of(key: u64) -> IovaRange {
    let lg2 = (key & 63).saturating_sub(1);
    IovaRange::new(IovaPage(key >> 6), PageCount(1 << lg2))
}

impl<P: Platform> Books<P> {
    /// Places for so many books for each CPU, or none at all.
    fn new(p: &P, per_cpu: usize) -> Self {
        let places = match per_cpu.saturating_mul(p.cpus()) {
            0 => 0,
            books => books.min(PLACES_MAX).next_power_of_two(),
        };
        let groups = places.div_ceil(1 << GROUP_LG2);
        Books {
            places,
            frames: (0..groups).map(|_| P::A64::new(0)).collect(),
        }
    }

    /// A word of a place, if the frame is there that has it.
    #[inline]
    fn word<'p>(&self, p: &'p P, word: Word, place: usize) -> Option<&'p P::A64> {
        let frame = self.frames[place >> GROUP_LG2].load(Ordering::Acquire);
        let frame = FrameRef::of_entry(PhysPage(frame.checked_sub(1)?));
        let within = place & ((1 << GROUP_LG2) - 1);
        p.entries(OURS, frame)
            .get((word as usize) << GROUP_LG2 | within)
    }

    /// Before a word of the place is needed; whether it is there then.
    fn make_words(&self, p: &P, place: usize) -> bool {
        let word = &self.frames[place >> GROUP_LG2];
        if word.load(Ordering::Acquire) != 0 {
            return true;
        }
        let Some(frame) = p.frame_alloc() else {
            return false;
        };
        let page = frame.page().0 + 1;
        if word
            .compare_exchange(0, page, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            p.frame_free(OURS, frame); // another CPU was faster
        }
        true
    }

    /// The frames of all words, when no book is used any more.
    fn take_frames(&self) -> impl Iterator<Item = FreshFrame> {
        let words = self.frames.iter();
        words.filter_map(|word| {
            let page = word.swap(0, Ordering::AcqRel).checked_sub(1)?;
            Some(FreshFrame::kept(PhysPage(page)))
        })
    }

    /// Places from the home of `page` on.
    #[inline]
    fn places_from(&self, page: IovaPage) -> impl Iterator<Item = usize> {
        let places = self.places;
        let line = (page.0 >> SPAN_LG2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS / 2);
        let in_line = page.0 >> (SPAN_LG2 - LINE_LG2) & ((1 << LINE_LG2) - 1);
        let home = (line << LINE_LG2 | in_line) as usize;
        (0..places).map(move |nth| home.wrapping_sub(nth) & (places - 1))
    }

    /// The book of the chunk that has `page`.
    #[inline]
    fn find(&self, p: &P, page: IovaPage) -> Option<(usize, IovaRange)> {
        let chunk = |place: usize| {
            let key = self.word(p, Word::Key, place)?;
            Some((place, range_of(key.load(Ordering::Acquire))))
        };
        let has = |chunk: &IovaRange| chunk.first <= page && page < chunk.end();
        self.places_from(page)
            .filter_map(chunk)
            .find(|(_, chunk)| has(chunk) && chunk.first.0 > 0)
    }

    fn open(&self, p: &P, range: IovaRange) -> Result<Book, NoBook> {
        for place in self.places_from(range.first) {
            if !self.make_words(p, place) {
                return Err(NoBook::NoFrame);
            }
            let [word, given, owed] =
                [Word::Key, Word::Given, Word::Owed].map(|word| self.word(p, word, place));
            let (Some(word), Some(given), Some(owed)) = (word, given, owed) else {
                debug_assert!(false, "a frame has fewer words than a table has entries");
                return Err(NoBook::NoFrame);
            };
            let is_free = word.load(Ordering::Relaxed) == 0;
            if is_free
                && word
                    .compare_exchange(0, key(range), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                // before any piece of it exists
                given.store(0, Ordering::Relaxed);
                owed.store(range.pages.0, Ordering::Release);
                return Ok(Book(place));
            }
        }
        Err(NoBook::NoPlace)
    }

    /// Takes `pages` off what is owed; the chunk comes back if that was the last of it.
    #[inline]
    fn count_off(&self, p: &P, place: usize, pages: PageCount) -> Option<IovaRange> {
        let before = self
            .word(p, Word::Owed, place)?
            .fetch_add(pages.0.wrapping_neg(), Ordering::AcqRel);
        debug_assert!(before >= pages.0, "{pages} pages of {before}");
        if before != pages.0 {
            return None;
        }
        let key = self.word(p, Word::Key, place)?;
        let chunk = range_of(key.load(Ordering::Relaxed));
        key.store(0, Ordering::Release);
        Some(chunk)
    }

    /// Each chunk, with what was handed out and what is owed of it.
    fn each(&self, p: &P) -> impl Iterator<Item = (IovaRange, u64, u64)> {
        let load = move |word, place| Some(self.word(p, word, place)?.load(Ordering::Relaxed));
        (0..self.places)
            .filter_map(move |place| {
                let key = load(Word::Key, place).filter(|key| *key != 0)?;
                Some((key, load(Word::Given, place)?, load(Word::Owed, place)?))
            })
            .map(|(key, given, owed)| (range_of(key), given, owed))
    }
}

/// Why no book was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoBook {
    /// There are as many as there can be.
    NoPlace,
    /// The platform has no frame for the words of more.
    NoFrame,
}

impl<P: Platform> Chunked<P> {
    pub fn new(p: &P, design: AnyAllocator<P>, books_per_cpu: usize) -> Self {
        Chunked {
            design,
            books: Books::new(p, books_per_cpu),
        }
    }

    /// Opens the book of a chunk.
    ///
    /// # Errors
    /// Why there is none, with the chunk.
    pub fn open(&self, p: &P, chunk: IovaAlloc) -> Result<Book, (IovaAlloc, NoBook)> {
        let opened = self.books.open(p, chunk.range());
        opened.map_err(|why| (chunk, why))
    }

    /// Notes that so many pages were handed out in all.
    #[inline]
    pub fn give(&self, p: &P, book: Book, pages: PageCount) {
        if let Some(given) = self.books.word(p, Word::Given, book.0) {
            given.store(pages.0, Ordering::Relaxed);
        }
    }

    /// Counts off the last `never` pages of a chunk of `pages`, which were not handed out and never
    /// will be.
    pub fn end(&self, p: &P, origin: CpuIndex, book: Book, pages: PageCount, never: PageCount) {
        if never.0 == 0 {
            return; // the book may be another's already
        }
        self.give(p, book, pages);
        let over = self.books.count_off(p, book.0, never);
        self.free_chunk(p, origin, over);
    }

    /// Takes a flushed range back; see [`IovaAllocator::free`].
    #[inline]
    pub fn free(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        match &self.design {
            AnyAllocator::Magazine(magazines) => {
                if let Err(alloc) = magazines.free_fast(origin, alloc) {
                    self.free_slow(p, origin, alloc);
                }
            }
            _ => self.free_slow(p, origin, alloc),
        }
    }

    /// The same for many; see [`IovaAllocator::free_many`]. Pieces that follow each other and are
    /// of one chunk are counted off at one go.
    #[inline]
    pub fn free_many(
        &self,
        p: &P,
        mut next: impl FnMut() -> Option<(CpuIndex, Flushed<IovaAlloc>)>,
    ) {
        let mut run = None;
        match &self.design {
            AnyAllocator::Magazine(magazines) => magazines.free_many_with(next, |origin, alloc| {
                self.free_in_run(p, origin, alloc, &mut run);
            }),
            design => design.free_many(p, || {
                loop {
                    let (origin, alloc) = next()?;
                    if alloc.get().kind() != AllocKind::Piece {
                        return Some((origin, alloc));
                    }
                    self.free_in_run(p, origin, alloc, &mut run);
                }
            }),
        }
        if let Some(run) = run {
            self.count_run(p, run);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_slow(&self, p: &P, origin: CpuIndex, alloc: Flushed<IovaAlloc>) {
        match (alloc.get().kind(), &self.design) {
            (AllocKind::Piece, _) => {
                let mut run = None;
                self.free_in_run(p, origin, alloc, &mut run);
                run.into_iter().for_each(|run| self.count_run(p, run));
            }
            (_, AnyAllocator::Magazine(magazines)) => magazines.free_slow(p, origin, alloc),
            (_, design) => design.free(p, origin, alloc),
        }
    }

    /// Frees what no magazine takes; a piece joins `run`, if that is of the same chunk, and else
    /// begins another.
    #[cold]
    #[inline(never)]
    fn free_in_run(
        &self,
        p: &P,
        origin: CpuIndex,
        alloc: Flushed<IovaAlloc>,
        run: &mut Option<Run>,
    ) {
        if alloc.get().kind() != AllocKind::Piece {
            return self.free_slow(p, origin, alloc);
        }
        let range = alloc.into_inner().range();
        if let Some(run) = run
            && run.chunk.contains(&range)
        {
            run.pages.0 += range.pages.0;
            return;
        }
        let Some((place, chunk)) = self.books.find(p, range.first) else {
            debug_assert!(false, "{range} is of no chunk");
            return; // lost, which is safe
        };
        let begun = Run {
            origin,
            place,
            chunk,
            pages: range.pages,
        };
        if let Some(before) = run.replace(begun) {
            self.count_run(p, before);
        }
    }

    #[cold]
    fn count_run(&self, p: &P, run: Run) {
        let over = self.books.count_off(p, run.place, run.pages);
        self.free_chunk(p, run.origin, over);
    }

    /// Frees a chunk of which every page is counted off.
    fn free_chunk(&self, p: &P, origin: CpuIndex, over: Option<IovaRange>) {
        if let Some(chunk) = over {
            let chunk = IovaAlloc::new(chunk, AllocKind::Dynamic);
            self.free(p, origin, Flushed::by_its_parts(chunk));
        }
    }

    /// Whether `page` is of a chunk.
    pub fn has_chunk_at(&self, p: &P, page: IovaPage) -> bool {
        self.books.find(p, page).is_some()
    }
    /// The allocations of all chunks that there are.
    pub fn chunks(&self, p: &P) -> impl Iterator<Item = IovaRange> {
        self.books.each(p).map(|(chunk, ..)| chunk)
    }
    /// Pages of chunks that no piece has: not handed out, or come home. Exact only while nothing
    /// else is active.
    pub fn idle(&self, p: &P) -> PageCount {
        let idle = |(chunk, given, owed): (IovaRange, u64, u64)| {
            (2 * chunk.pages.0).saturating_sub(given + owed)
        };
        PageCount(self.books.each(p).map(idle).sum())
    }

    /// Frames that the books have.
    pub fn chunk_frames(&self) -> u64 {
        let words = self.books.frames.iter();
        words
            .filter(|word| word.load(Ordering::Relaxed) != 0)
            .count() as u64
    }
    /// Gives back the frames of the books, when all that was mapped by them has ended.
    pub fn forget_chunks(&self, p: &P) {
        self.books
            .take_frames()
            .for_each(|frame| p.frame_free(OURS, frame));
    }

    /// As [`IovaAllocator::audit`], of the books too.
    pub fn audit(&self, p: &P) -> Result<(), String> {
        self.design.audit(p)?;
        for (chunk, given, owed) in self.books.each(p) {
            let pages = chunk.pages.0;
            if given > pages || owed > pages || pages - owed > given {
                return Err(format!(
                    "chunk {chunk}: {given} pages handed out, {owed} owed"
                ));
            }
        }
        Ok(())
    }
}

/// Everything that pieces have no part in is the design's.
impl<P: Platform> Deref for Chunked<P> {
    type Target = AnyAllocator<P>;
    #[inline]
    fn deref(&self) -> &AnyAllocator<P> {
        &self.design
    }
}
