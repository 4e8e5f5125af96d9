// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The writing side: what is under the lock, and the operations.

use super::{
    edit::{Layout, Owner, Touched},
    *,
};
use std::{collections::VecDeque, time::Duration};

/// Dead things that may gather before it is looked whether guards have been dropped: so a heavy
/// fence, about a microsecond, serves as many.
const GATHER: usize = 128;
/// Invalidations that may be under way and be told apart. Beyond, the two oldest count as one
/// of all pages between.
const UNDER_WAY: usize = 64;

/// Turns of waiting before each has a sleep in it, and how long that is.
const RELAXED: u32 = 256;
const NAP: Duration = Duration::from_micros(50);

/// What is under the lock.
pub(super) struct Writer {
    /// Runs in the tree.
    pub runs: u64,
    free_runs: Vec<Addr>,
    free_tables: Vec<Addr>,
    /// Tables in the tree, in no order.
    tables: Vec<Addr>,
    /// Where each is there, by address over slots.
    places: Vec<u32>,
    /// Out of the tree, each with the epoch in which it was taken out, oldest first.
    dead: VecDeque<(u64, Dead)>,
    /// Invalidations that are not done, with the epoch that they began.
    under_way: VecDeque<(u64, Span)>,
    /// The epoch that a heavy fence came after.
    fenced: u64,
    /// What was removed before it is out of use.
    settled: u64,
    /// Which readers there are, and how many.
    readers: Vec<bool>,
    reading: usize,
    /// Frames of runs, of tables.
    frames: [u64; 2],
    /// Records and tables that there are.
    made: u64,
    limits: Limits,
    pub upkeep: Upkeep,
    touched: Vec<Touched>,
}

/// Out of the tree.
#[derive(Clone, Copy)]
pub(super) enum Dead {
    Run(Addr),
    Table(Addr),
}

/// A writer at work.
pub(super) struct Edit<'w, P: Platform, S: Shape> {
    pub tree: &'w Tree<P, S>,
    pub writer: &'w mut Writer,
    /// Runs that had pages in the hole; some of them twice.
    pub touched: Vec<Touched>,
    /// Whether something went that was translated, and not as it is now.
    pub replaced: bool,
    at_work: bool,
}

impl Writer {
    pub fn new(limits: Limits) -> Self {
        Writer {
            runs: 0,
            free_runs: Vec::new(),
            free_tables: Vec::new(),
            tables: Vec::new(),
            places: Vec::new(),
            dead: VecDeque::new(),
            under_way: VecDeque::new(),
            fenced: 1,
            settled: 1,
            readers: vec![false; limits.readers as usize],
            reading: 0,
            frames: [0; 2],
            made: 0,
            limits,
            upkeep: Upkeep::new(limits),
            touched: Vec::new(),
        }
    }
    /// Whether there may be two more runs.
    pub fn has_room(&self) -> bool {
        self.runs + 2 <= u64::from(self.limits.runs)
    }
    fn has_readers(&self) -> bool {
        self.reading > 0
    }
    fn add_reader(&mut self) -> Option<usize> {
        let number = self.readers.iter().position(|taken| !taken)?;
        self.readers[number] = true;
        self.reading += 1;
        Some(number)
    }
    pub fn remove_reader(&mut self, number: usize) {
        self.readers[number] = false;
        self.reading -= 1;
    }
    fn free(&mut self, dead: Dead) {
        match dead {
            Dead::Run(run) => self.free_runs.push(run),
            Dead::Table(table) => self.free_tables.push(table),
        }
    }
    pub fn tables(&self) -> &[Addr] {
        &self.tables
    }
    pub fn frames(&self) -> u64 {
        self.frames.iter().sum()
    }
    pub fn made(&self) -> u64 {
        self.made
    }
    /// Records and tables that are dead or free.
    pub fn not_live(&self) -> (Vec<Addr>, Vec<Addr>) {
        let (mut runs, mut tables) = (self.free_runs.clone(), self.free_tables.clone());
        for (_, dead) in &self.dead {
            match dead {
                Dead::Run(run) => runs.push(*run),
                Dead::Table(table) => tables.push(*table),
            }
        }
        (runs, tables)
    }
    /// Bytes of the lists above that grow with what is in the cache.
    pub fn own_bytes(&self) -> u64 {
        let lists = [&self.free_runs, &self.free_tables, &self.tables];
        let lists: usize = lists.map(Vec::capacity).iter().sum();
        let dead = self.dead.capacity() * size_of::<(u64, Dead)>();
        (lists * 8 + self.places.capacity() * 4 + dead) as u64
    }
    pub fn removed(&self, span: Span, cause: RemovalCause) {
        self.upkeep.tell(span, cause);
    }
}

impl<'w, P: TreeMemory, S: Shape> Edit<'w, P, S> {
    pub fn new(tree: &'w Tree<P, S>, writer: &'w mut Writer) -> Self {
        let touched = std::mem::take(&mut writer.touched);
        Edit {
            tree,
            writer,
            touched,
            replaced: false,
            at_work: false,
        }
    }

    /// From here on a lookup that finds nothing looks again.
    fn begin(&mut self) {
        if !self.at_work {
            self.at_work = true;
            self.count_change();
        }
    }

    // operations

    pub fn update(&mut self, entry: &Entry, asked: Moment) -> Result<Updated, UpdateError> {
        let run = entry.run()?;
        let span = run.span;
        if self.is_under_way(span) || self.writer.upkeep.beats(span, asked) {
            self.writer.upkeep.stats.beaten += 1;
            return Ok(Updated::Beaten);
        }
        let new = Fields {
            first: span.first,
            end: span.end,
            diff: run.host.0.wrapping_sub(span.iova().0),
            perm: bits(run.perm),
        };
        let alike = |old: &Fields| old.diff == new.diff && old.perm == new.perm;
        if span.is_page()
            && let Some(done) = self.put_page(&new, alike)
        {
            return Ok(done);
        }
        if let Some((_, old)) = self.tree.find(span.first)
            && alike(&old)
            && old.end >= span.end
        {
            return Ok(Updated::Unchanged);
        }
        if !self.reserve(span) {
            self.writer.upkeep.stats.refused += 1;
            return Err(UpdateError::NoRoom { iova: entry.iova });
        }
        self.begin();
        let mut right = self.tree.find(span.end);
        if let Some((_, old)) = right
            && old.first < span.first
        {
            // it cannot be alike: it would have been there already
            self.split(span.end);
            right = self.tree.find(span.end);
        }
        let right = right.filter(|(_, old)| alike(old));
        let left = span.first.checked_sub(1);
        let left = left.and_then(|page| self.tree.find(page));
        let left = left.filter(|(_, old)| alike(old));
        let fields = Fields {
            first: left.map_or(span.first, |(_, left)| left.first),
            end: right.map_or(span.end, |(_, right)| right.end),
            ..new
        };
        let mut hole = Span {
            first: fields.first,
            end: fields.end,
        };
        // a record grows; runs that are slots go into it
        let owner = match (left, right) {
            (Some((Holder::Record(run), _)), _) => {
                hole.first = span.first;
                self.tree.set_end(run, fields.end);
                Owner {
                    fields,
                    record: Some(run),
                }
            }
            (_, Some((Holder::Record(run), old))) => {
                hole.end = old.first;
                self.tree.set_first(run, fields.first, old.perm);
                Owner {
                    fields,
                    record: Some(run),
                }
            }
            _ => self.new_owner(fields),
        };
        let layout = Layout {
            hole,
            owner: Some(owner),
        };
        self.replaced = false;
        self.lay_out(layout, RemovalCause::Replaced);
        if self.replaced {
            self.tree.epochs.advance(); // remembered translations are looked up again
        }
        self.writer.upkeep.stats.updates += 1;
        Ok(Updated::Done)
    }

    /// Takes out what is known of `span`, or somewhat more where there is no room for
    /// a run's two halves.
    pub fn invalidate(&mut self, mut span: Span) -> Invalidation {
        if !span.is_page() || !self.take_page(span) {
            self.take(&mut span);
        }
        self.writer.upkeep.invalidated(span);
        let number = self.tree.epochs.advance();
        if self.writer.has_readers() {
            let under_way = &mut self.writer.under_way;
            if under_way.len() == UNDER_WAY
                && let Some((_, oldest)) = under_way.pop_front()
                && let Some((_, next)) = under_way.front_mut()
            {
                next.first = next.first.min(oldest.first);
                next.end = next.end.max(oldest.end);
            }
            under_way.push_back((number, span));
        }
        Invalidation { number }
    }
    fn take(&mut self, span: &mut Span) {
        self.begin();
        if let Some((_, old)) = self.tree.find(span.end)
            && old.first < span.first
        {
            let room = self.writer.runs < u64::from(self.writer.limits.runs);
            match room && self.has_spare() {
                true => self.split(span.end),
                false => span.end = old.end,
            }
        }
        let layout = Layout {
            hole: *span,
            owner: None,
        };
        self.lay_out(layout, RemovalCause::Invalidated);
    }

    /// Gives the pages from `page` on of the run that has it and the page before to a
    /// run of their own.
    fn split(&mut self, page: u64) {
        let Some((_, old)) = self.tree.find(page) else {
            return;
        };
        let right = Fields { first: page, ..old };
        let hole = Span {
            first: page,
            end: old.end,
        };
        let owner = Some(self.new_owner(right));
        let layout = Layout { hole, owner };
        self.lay_out(layout, RemovalCause::Replaced);
    }

    // epochs

    pub fn is_done(&mut self, invalidation: Invalidation) -> bool {
        if self.writer.settled < invalidation.number {
            self.settle();
        }
        self.writer.settled >= invalidation.number
    }
    fn is_under_way(&mut self, span: Span) -> bool {
        let names = |w: &Writer| w.under_way.iter().any(|(_, gone)| gone.and(span).is_some());
        if !names(self.writer) {
            return false;
        }
        self.settle();
        names(self.writer)
    }

    /// Finds out what is out of use by now, and has it back.
    fn settle(&mut self) {
        let w = &mut *self.writer;
        let epochs = &self.tree.epochs;
        if w.dead
            .back()
            .is_some_and(|(epoch, _)| *epoch >= epochs.epoch())
        {
            epochs.advance();
        }
        if w.fenced < epochs.epoch() && w.has_readers() {
            self.tree.platform.heavy_fence();
            w.fenced = epochs.epoch();
        }
        let readers = (0..w.readers.len()).filter(|number| w.readers[*number]);
        // a guard that begins may say an epoch that was, if its thread was away between reading and
        // writing it; done stays done
        w.settled = w.settled.max(epochs.settled(readers));
        while let Some((epoch, what)) = w.dead.front().copied()
            && epoch < w.settled
        {
            w.dead.pop_front();
            w.free(what);
        }
        w.under_way.retain(|(number, _)| *number > w.settled);
    }

    pub fn retire(&mut self, dead: Dead) {
        if let Dead::Table(table) = dead {
            let w = &mut *self.writer;
            let place = w.places[(table >> S::BITS) as usize];
            w.tables.swap_remove(place as usize);
            if let Some(moved) = w.tables.get(place as usize) {
                w.places[(*moved >> S::BITS) as usize] = place;
            }
        }
        match self.writer.has_readers() {
            true => {
                let epoch = self.tree.epochs.epoch();
                self.writer.dead.push_back((epoch, dead));
            }
            // a reader that comes later does not find it
            false => self.writer.free(dead),
        }
    }
    // room

    /// Makes room for an update of `span`: two runs, and the tables of three paths; evicts others
    /// where it must. What the update itself replaces counts as room. A limit that leaves no room
    /// for the tables of one path is refused.
    fn reserve(&mut self, span: Span) -> bool {
        if self.writer.dead.len() >= GATHER {
            self.settle();
        }
        while !self.has_room_for(span) {
            if !self.evict(span) {
                return false;
            }
        }
        if !self.has_spare() {
            self.settle();
        }
        self.has_spare()
    }

    /// Whether the limits allow an update of `span` now. Where a run goes with it, there is room
    /// for the one that comes, and nothing is to be split: no run has pages on both sides. On the
    /// way there may be one run and a few tables too many, for which there is memory,
    /// or `has_spare` says no.
    fn has_room_for(&self, span: Span) -> bool {
        let w = &*self.writer;
        let tables = w.tables.len() as u64 + Self::PATHS;
        let most = u64::from(w.limits.tables);
        if w.has_room() && tables <= most {
            return true;
        }
        let (a_run_goes, tables_go) = self.replaced_by(span);
        (w.has_room() || a_run_goes) && tables <= most + tables_go
    }

    /// Tables that one operation may take: at two ends of the span and at a split, one a level.
    pub const PATHS: u64 = 3 * S::LEVELS as u64;

    /// Whether there is memory for one operation, without another eviction.
    pub fn has_spare(&mut self) -> bool {
        while self.writer.free_runs.len() < 2 {
            if !self.grow(Dead::Run(0)) {
                return false;
            }
        }
        while (self.writer.free_tables.len() as u64) < Self::PATHS {
            if !self.grow(Dead::Table(0)) {
                return false;
            }
        }
        true
    }

    /// Another frame of the platform, for runs or for tables, as far as there may be.
    fn grow(&mut self, what: Dead) -> bool {
        let w = &mut *self.writer;
        let most = Radix::<P, S>::frames_of(&w.limits);
        let kind = usize::from(matches!(what, Dead::Table(_)));
        if w.frames[kind] >= most[kind] {
            return false;
        }
        let Some(first) = self.tree.platform.take_frame() else {
            return false;
        };
        w.frames[kind] += 1;
        let before = w.free_runs.len() + w.free_tables.len();
        match what {
            // there is no run at address 0
            Dead::Run(_) => {
                let all = (first..first + S::FRAME_WORDS).step_by(RUN_WORDS as usize);
                let runs = all.filter(|run| *run != 0);
                w.free_runs.extend(runs);
            }
            Dead::Table(_) => {
                let tables = tables_of_frame::<S>();
                let last = (first >> S::BITS) + tables - 1;
                w.places.resize(w.places.len().max(last as usize + 1), 0);
                w.free_tables
                    .extend((0..tables).map(|n| first + (n << S::BITS)));
            }
        }
        w.made += (w.free_runs.len() + w.free_tables.len() - before) as u64;
        true
    }

    fn evict(&mut self, keep: Span) -> bool {
        let (tree, Writer { tables, upkeep, .. }) = (self.tree, &mut *self.writer);
        // slots: the root, and those of all tables
        let at = |slot: usize| {
            let (table, index) = ((slot - 1) >> S::BITS, (slot - 1) & ((1 << S::BITS) - 1));
            tables[table] + index as u64
        };
        let nth = |slot: usize| tree.span_in((slot > 0).then(|| at(slot)));
        // most slots of a table may be empty
        let near = |slot: usize| {
            let (first, turns) = match slot {
                0 => return nth(0),
                _ => ((slot - 1) >> S::BITS << S::BITS, 0..1 << S::BITS),
            };
            let mut slots = turns.map(|n| 1 + first + ((slot - 1 + n) & ((1 << S::BITS) - 1)));
            slots.find_map(nth)
        };
        let count = 1 + (tables.len() << S::BITS);
        let Some(victim) = upkeep.victim(keep, count, near, nth) else {
            return false;
        };
        self.begin();
        let layout = Layout {
            hole: victim,
            owner: None,
        };
        self.lay_out(layout, RemovalCause::Evicted);
        // A remembered translation must not be used any more: an update may bring another in its
        // place, which then finds nothing to replace.
        self.tree.epochs.advance();
        self.writer.upkeep.stats.evictions += 1;
        true
    }

    /// Counts one run more, and gives it a record where a slot cannot be the run.
    fn new_owner(&mut self, fields: Fields) -> Owner {
        self.writer.runs += 1;
        let in_slot = fields.as_page().is_some();
        let record = (!in_slot).then(|| self.new_run(fields));
        Owner { fields, record }
    }
    /// A record that is not in the tree yet. There is room: see [`reserve`](Self::reserve).
    pub fn new_run(&mut self, fields: Fields) -> Addr {
        let run = self.writer.free_runs.pop().expect("reserved");
        self.tree.make_run(run, fields);
        run
    }
    /// A table of nothing. There is room, too.
    pub fn alloc_table(&mut self, base: u64) -> Addr {
        let w = &mut *self.writer;
        let table = w.free_tables.pop().expect("reserved");
        for index in 0..1 << S::BITS {
            self.tree.set_slot(Some(table + index), Slot::Empty);
        }
        self.tree.set_base(table, base);
        w.places[(table >> S::BITS) as usize] = w.tables.len() as u32;
        w.tables.push(table);
        table
    }
}

impl<P: Platform, S: Shape> Edit<'_, P, S> {
    fn count_change(&self) {
        let changes = &self.tree.changes.0;
        changes.store(changes.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

impl<P: Platform, S: Shape> Drop for Edit<'_, P, S> {
    fn drop(&mut self) {
        self.touched.clear();
        self.writer.touched = std::mem::take(&mut self.touched);
        if self.at_work {
            self.count_change();
        }
    }
}

impl<P: TreeMemory, S: Shape> Radix<P, S> {
    pub(super) fn edit<R>(&self, f: impl FnOnce(&mut Edit<'_, P, S>) -> R) -> R {
        self.writer
            .with(|writer| f(&mut Edit::new(&self.tree, writer)))
    }
}

impl<P: TreeMemory, S: Shape> DeviceIotlb for Radix<P, S> {
    type Reader = RadixReader<P, S>;
    const NAME: &'static str = "radix";
    const UPDATES: Updates = Updates::Concurrent;

    fn reader(self: &Arc<Self>) -> Result<RadixReader<P, S>, ReaderError> {
        let number = self.writer.with(Writer::add_reader);
        let limit = self.limits.readers;
        let number = number.ok_or(ReaderError { limit })?;
        Ok(RadixReader::new(self.clone(), number))
    }
    fn update_since(&self, entry: Entry, asked: Moment) -> Result<Updated, UpdateError> {
        self.edit(|edit| edit.update(&entry, asked))
    }
    fn update(&self, entry: Entry) -> Result<Updated, UpdateError> {
        self.edit(|edit| {
            let now = edit.writer.upkeep.now();
            edit.update(&entry, now)
        })
    }
    fn now(&self) -> Moment {
        self.writer.with(|writer| writer.upkeep.now())
    }
    fn start_invalidate(&self, iova: Iova, len: ByteCount) -> Invalidation {
        match Span::invalidated(iova, len) {
            Some(span) => self.edit(|edit| edit.invalidate(span)),
            None => Invalidation { number: 0 },
        }
    }
    fn start_clear(&self) -> Invalidation {
        self.edit(|edit| edit.invalidate(Span::ALL))
    }
    fn is_done(&self, invalidation: Invalidation) -> bool {
        self.edit(|edit| edit.is_done(invalidation))
    }
    fn wait(&self, invalidation: Invalidation) {
        let mut turns = 0u32;
        while !self.is_done(invalidation) {
            self.tree.platform.relax();
            turns += 1;
            if turns > RELAXED {
                std::thread::sleep(NAP); // the guard's thread has lost its core, perhaps to this one
            }
        }
    }
    fn pin(&self, iova: Iova, len: ByteCount) -> Result<(), PinError> {
        self.writer.with(|writer| writer.upkeep.pin(iova, len))
    }
    fn unpin(&self, iova: Iova, len: ByteCount) {
        self.writer.with(|writer| writer.upkeep.unpin(iova, len))
    }
    fn on_remove(&self, hook: Box<dyn Fn(Removed) + Send + Sync>) {
        self.writer.with(|writer| writer.upkeep.hook = Some(hook))
    }
    fn stats(&self) -> Stats {
        self.writer.with(|writer| Stats {
            runs: writer.runs,
            ..writer.upkeep.stats
        })
    }
    fn audit(&self) -> Result<Census, String> {
        self.edit(|edit| edit.audit())
    }
}
