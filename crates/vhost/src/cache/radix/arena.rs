// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where words are: places in the platform's words, what slots say, the fields of a run.
//!
//! A frame holds records, or tables: as many as it has room for with a word each behind them, the
//! first page of the table's region.

use super::*;

/// A tree reads and writes words of frames that it took, and keeps for as long as it lives.
#[allow(unsafe_code)] // a promise
// SAFETY: places come from `take_frame` alone, and a reader that finds one out of date makes
// nothing of the word but a hint, which it checks.
pub(super) const OWNER: Authority = unsafe { Authority::assume() };

/// A word's place among the platform's words.
pub(super) type Addr = u64;

/// What a fresh slot says. It reads as a leaf of the run at address 0, and no run is there, so a
/// reader need not tell it apart.
pub(super) const EMPTY: u64 = 0;
/// Set in a slot that names a table.
const TABLE: u64 = 0x80;
/// Set in a slot that is a run itself, of the one page that it stands for: the other bits are the
/// page's host address and permission.
const PAGE: u64 = 0x40;
const HOST: u64 = !(GRANULE - 1);
/// The other bits below the address: log2 of the pages that a slot of that table stands for.
const SHIFT: u64 = 0x3f;
const ADDR_SHIFT: u32 = 8;

/// Words of a run: first page and permission; end page; host address minus IOVA; one of no meaning,
/// so that a record is in one cache line.
pub(super) const RUN_WORDS: u64 = 4;
const FIRST: u64 = 0;
const END: u64 = 1;
const DIFF: u64 = 2;
const PERM_BITS: u32 = 2;
const PERMS: u64 = (1 << PERM_BITS) - 1;

/// Runs and tables beyond the limits, for those that readers may still be looking at.
pub(super) const SPARE: u64 = 256;

/// What a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    Empty,
    Leaf(Addr),
    /// A run of the slot's only page: where it is, a multiple of 4 KiB, and what is permitted.
    Page {
        host: u64,
        perm: u64,
    },
    /// With log2 of the pages of a slot there.
    Table(Addr, u32),
}

impl Slot {
    #[inline]
    pub fn of(word: u64) -> Slot {
        match word & (TABLE | PAGE) {
            _ if word == EMPTY => Slot::Empty,
            0 => Slot::Leaf(word >> ADDR_SHIFT),
            PAGE => Slot::Page {
                host: word & HOST,
                perm: word & PERMS,
            },
            _ => Slot::Table(word >> ADDR_SHIFT, (word & SHIFT) as u32),
        }
    }
    #[inline]
    pub fn word(self) -> u64 {
        match self {
            Slot::Empty => EMPTY,
            Slot::Leaf(run) => run << ADDR_SHIFT,
            Slot::Page { host, perm } => host | PAGE | perm,
            Slot::Table(table, shift) => table << ADDR_SHIFT | TABLE | u64::from(shift),
        }
    }
}

/// A run as it was read. Its pages are `span`, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fields {
    pub first: u64,
    pub end: u64,
    pub diff: u64,
    pub perm: u64,
}

impl Fields {
    pub const NONE: Fields = Fields {
        first: 0,
        end: 0,
        diff: 0,
        perm: 0,
    };
    #[inline]
    pub fn has(&self, page: u64) -> bool {
        self.first <= page && page < self.end
    }
    /// A page that is a run in its slot.
    #[inline(always)]
    pub fn of_page(page: u64, host: u64, perm: u64) -> Fields {
        Fields {
            first: page,
            end: page + 1,
            diff: host.wrapping_sub(page << GRANULE_LG2),
            perm,
        }
    }
    /// What a slot of the only page says, where a slot can say it.
    pub fn as_page(&self) -> Option<Slot> {
        let host = (self.first << GRANULE_LG2).wrapping_add(self.diff);
        let fits = self.first + 1 == self.end && host & !HOST == 0;
        let perm = self.perm;
        fits.then_some(Slot::Page { host, perm })
    }
    /// Whether two runs that adjoin are one.
    pub fn is_like(&self, other: &Fields) -> bool {
        (self.diff, self.perm) == (other.diff, other.perm)
    }
    pub fn span(&self) -> Option<Span> {
        let (first, end) = (self.first, self.end);
        (first < end).then_some(Span { first, end })
    }
}

/// Read is bit 0, write bit 1.
#[inline]
pub(super) fn bits(perm: Perm) -> u64 {
    match perm {
        Perm::Read => 1,
        Perm::Write => 2,
        Perm::ReadWrite => 3,
    }
}
pub(super) fn perm(bits: u64) -> Perm {
    match bits & 3 {
        1 => Perm::Read,
        2 => Perm::Write,
        _ => Perm::ReadWrite,
    }
}

/// Tables of a frame; each has a word behind them for the first page of its region.
pub(super) const fn tables_of_frame<S: Shape>() -> u64 {
    S::FRAME_WORDS / ((1 << S::BITS) + 1)
}
/// Where the first page of the region is that the table of this slot stands for.
#[inline(always)]
fn base_of<S: Shape>(slot: Addr) -> Addr {
    let frame = slot / S::FRAME_WORDS * S::FRAME_WORDS;
    frame + (S::FRAME_WORDS - tables_of_frame::<S>()) + ((slot % S::FRAME_WORDS) >> S::BITS)
}

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Holder {
    Record(Addr),
    Slot(Addr),
}

impl<P: TreeMemory, S: Shape> Tree<P, S> {
    /// Where a walk to `page` ends: what the last slot says, and where it is.
    /// `words` are the platform's.
    #[inline(always)]
    fn walk(&self, words: &[P::A64], page: u64) -> Option<(u64, Addr)> {
        let mut word = self.root.0.load(Ordering::Acquire);
        let mut at = 0;
        // each table has a smaller shift than the one before, so this ends
        while word & TABLE != 0 {
            let index = page >> (word & SHIFT) & ((1 << S::BITS) - 1);
            at = (word >> ADDR_SHIFT) + index;
            word = words.get(at as usize)?.load(Ordering::Acquire);
        }
        Some((word, at))
    }

    /// The run that has `page`, if there is one; else perhaps another.
    ///
    /// Records say which pages they have. A slot that is a run itself has its page, if the walk
    /// skipped no level at which it should have turned: so its table's region is looked at. That
    /// was written before the table was to be found, and stays for as long as a reader may find it.
    #[inline(always)]
    pub fn search(&self, words: &[P::A64], page: u64) -> Option<(Holder, Fields)> {
        let (word, at) = self.walk(words, page)?;
        if word & PAGE == 0 {
            let run = word >> ADDR_SHIFT;
            return Some((Holder::Record(run), Self::fields(words, run)?));
        }
        let base = words.get(base_of::<S>(at) as usize)?;
        let index = at & ((1 << S::BITS) - 1);
        let own = base.load(Ordering::Acquire) + index;
        let fields = Fields::of_page(own, word & HOST, word & PERMS);
        Some((Holder::Slot(at), fields))
    }

    /// The run at `run`.
    #[inline(always)]
    pub fn fields(words: &[P::A64], run: Addr) -> Option<Fields> {
        let run = words
            .get(run as usize..)?
            .first_chunk::<{ RUN_WORDS as usize }>()?;
        let [first, end, diff, _place] = run;
        let first = first.load(Ordering::Acquire);
        Some(Fields {
            first: first >> PERM_BITS,
            end: end.load(Ordering::Acquire),
            diff: diff.load(Ordering::Relaxed),
            perm: first & PERMS,
        })
    }

    // what follows is for the writer

    fn word(&self, at: Addr) -> &P::A64 {
        &self.platform.words(OWNER)[at as usize]
    }
    /// The slot at `at`; the root is not in a table.
    pub fn slot(&self, at: Option<Addr>) -> Slot {
        let word = at.map_or(&self.root.0, |at| self.word(at));
        Slot::of(word.load(Ordering::Relaxed))
    }
    pub fn set_slot(&self, at: Option<Addr>, slot: Slot) {
        let word = at.map_or(&self.root.0, |at| self.word(at));
        word.store(slot.word(), Ordering::Release);
    }
    /// The pages of the run that a slot is, or names.
    pub fn span_in(&self, at: Option<Addr>) -> Option<Span> {
        match (self.slot(at), at) {
            (Slot::Leaf(run), _) => self.run(run).span(),
            (Slot::Page { .. }, Some(at)) => {
                let first = self.page_of(at);
                Some(Span {
                    first,
                    end: first + 1,
                })
            }
            _ => None,
        }
    }
    /// The page of a slot that stands for one.
    pub fn page_of(&self, slot: Addr) -> u64 {
        self.base(slot) + (slot & ((1 << S::BITS) - 1))
    }
    /// A run of which the writer knows that it is there.
    pub fn run(&self, run: Addr) -> Fields {
        Self::fields(self.platform.words(OWNER), run).unwrap_or(Fields::NONE)
    }
    /// Fills in a run that no reader can find.
    pub fn make_run(&self, run: Addr, fields: Fields) {
        self.set_first(run, fields.first, fields.perm);
        self.word(run + DIFF).store(fields.diff, Ordering::Relaxed);
        self.set_end(run, fields.end);
    }
    pub fn set_first(&self, run: Addr, first: u64, perm: u64) {
        let word = first << PERM_BITS | perm;
        self.word(run + FIRST).store(word, Ordering::Release);
    }
    pub fn set_end(&self, run: Addr, end: u64) {
        self.word(run + END).store(end, Ordering::Release);
    }
    /// The first page of a table's region.
    pub fn base(&self, table: Addr) -> u64 {
        self.word(base_of::<S>(table)).load(Ordering::Relaxed)
    }
    /// Sets the first page of the region of a table that no reader can find.
    pub fn set_base(&self, table: Addr, base: u64) {
        self.word(base_of::<S>(table))
            .store(base, Ordering::Release);
    }
    /// The slot of `page`, where one stands for it alone.
    #[inline]
    pub fn slot_of_page(&self, page: u64) -> Option<(Addr, Slot)> {
        let mut word = self.root.0.load(Ordering::Relaxed);
        while word & TABLE != 0 {
            let (table, shift) = (word >> ADDR_SHIFT, word & SHIFT);
            let index = page >> shift & ((1 << S::BITS) - 1);
            word = self.word(table + index).load(Ordering::Relaxed);
            if shift == 0 {
                let own = self.page_of(table + index) == page;
                return own.then(|| (table + index, Slot::of(word)));
            }
        }
        None
    }
    /// The run that has `page`, as the writer knows it.
    #[inline]
    pub fn find(&self, page: u64) -> Option<(Holder, Fields)> {
        let found = self.search(self.platform.words(OWNER), page)?;
        found.1.has(page).then_some(found)
    }
}
