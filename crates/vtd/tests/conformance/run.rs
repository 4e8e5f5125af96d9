// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A case under way: entries and descriptors made by the crate's own encoders, written where the
//! unit reads them; and what came of it.
//!
//! Nothing here waits without end: a unit answers within a few reads or is seen not to.

mod fault;

pub use fault::Expected;

use crate::BY;
use crate::{
    bench::*,
    bench_soft::Soft,
    case::Seen,
    item::{Class, Item, Spoilt},
    suite,
};
use ioatlas_dma::{
    platform::{FreshFrame, Ordering, PhysMemory, Platform},
    table::{Format, LeafMarks, fmt::VtdSecond48},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_vtd::{layout::*, plan::Invalidation, registers::*};
use std::{collections::BTreeMap, fmt::Display, sync::Arc, time::Duration};

/// How often a status is read before the unit counts as not having done it.
const LOOKS: usize = 16;
const PER_RING: u64 = 256;

pub struct Run<'b> {
    bench: &'b mut dyn Bench,
    registers: Arc<dyn Registers>,
    spoilt: Option<&'static Item>,
    frames: Vec<PhysPage>,
    root: PhysPage,
    contexts: BTreeMap<u16, PhysPage>,
    pub ring: PhysPage,
    pub status: PhysPage,
    pub tail: u64,
    submitted: u32,
    seen: Vec<Seen>,
}

/// A second-stage table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tables {
    pub root: PhysPage,
    pub width: AddressWidth,
}

impl<'b> Run<'b> {
    /// A unit after reset.
    pub fn new(bench: &'b mut dyn Bench, spoilt: Option<&'static Item>) -> Self {
        bench.reset();
        let registers = match spoilt {
            Some(item) => Arc::new(Spoilt {
                registers: bench.registers(),
                item,
            }),
            None => bench.registers(),
        };
        let nothing = PhysPage(0);
        let mut run = Run {
            bench,
            registers,
            spoilt,
            frames: Vec::new(),
            root: nothing,
            contexts: BTreeMap::new(),
            ring: nothing,
            status: nothing,
            tail: 0,
            submitted: 0,
            seen: Vec::new(),
        };
        run.root = run.frame();
        run.ring = run.frame();
        run.status = run.frame();
        run
    }

    /// What was seen. The frames go back once the unit no longer looks at them.
    pub fn end(mut self) -> Vec<Seen> {
        if let Some(trouble) = self.bench.trouble() {
            self.see("the unit's process", trouble, "no trouble");
        }
        self.bench.reset();
        let host = self.bench.host();
        for page in self.frames {
            // SAFETY: a frame that we had of it, and the unit has been reset.
            host.frame_free(BY, unsafe { FreshFrame::new(page) });
        }
        self.seen
    }

    pub fn see(&mut self, what: impl Display, got: impl Display, want: impl Display) {
        self.seen.push(Seen {
            what: what.to_string(),
            got: got.to_string(),
            want: want.to_string(),
        });
    }

    pub fn width(&self) -> AddressWidth {
        self.bench.width()
    }
    pub fn host(&self) -> Arc<Host> {
        self.bench.host().clone()
    }
    pub fn registers(&self) -> Arc<dyn Registers> {
        self.registers.clone()
    }
    pub fn soft(&self) -> Option<Arc<Soft>> {
        self.bench.soft()
    }
    pub fn kill(&mut self) {
        self.bench.kill();
    }
    /// Counts a bring-up of a unit that no case has spoilt.
    pub fn note_bring_up(&self, took: Duration) {
        if self.spoilt.is_none() {
            suite::note_bring_up(self.bench.which(), self.bench.devices(), took);
        }
    }

    /// A zeroed frame, until the end of the case.
    pub fn frame(&mut self) -> PhysPage {
        let frame = self.bench.host().frame_alloc();
        let page = frame.expect("2 GiB are not used up by a case").page();
        self.frames.push(page);
        page
    }
    pub fn load(&self, page: PhysPage, index: usize) -> u64 {
        let word = self.bench.host().word(BY, page, index);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }
    pub fn store(&self, page: PhysPage, index: usize, value: u64) {
        if let Some(word) = self.bench.host().word(BY, page, index) {
            word.store(value, Ordering::Release);
        }
    }
    fn spoil(&self, class: Class, words: Words) -> Words {
        self.spoilt.map_or(words, |item| item.spoil(class, words))
    }

    /// Gives a global command; whether the status shows it.
    pub fn command(&self, bit: u32, on: bool) -> bool {
        let kept = self.registers.read32(GSTS) & GSTS_ENABLES & !bit;
        self.registers
            .write32(GCMD, kept | if on { bit } else { 0 });
        (0..LOOKS).any(|_| (self.registers.read32(GSTS) & bit != 0) == on)
    }

    /// Translation off, as after a reset by power.
    pub fn off(&mut self) {
        if self.registers.read32(GSTS) & GCMD_TE != 0 {
            let off = self.command(GCMD_TE, false);
            assert!(
                off || self.spoilt.is_some(),
                "translation cannot be disabled"
            );
        }
    }
    /// Whether a flush of write buffers ends.
    pub fn flush_write_buffers(&self) -> bool {
        let kept = self.registers.read32(GSTS) & GSTS_ENABLES;
        self.registers.write32(GCMD, kept | GCMD_WBF);
        (0..LOOKS).any(|_| self.registers.read32(GSTS) & GCMD_WBF == 0)
    }
    /// Root table, queue, translation.
    pub fn start(&mut self) {
        self.set_root();
        self.start_queue();
        let on = self.command(GCMD_TE, true);
        self.see("translation is enabled", on, true);
    }
    pub fn set_root(&mut self) {
        self.registers.write64(RTADDR, self.root.addr().0);
        let set = self.command(GCMD_SRTP, true);
        self.see("the root table is set", set, true);
    }
    pub fn start_queue(&mut self) {
        self.registers.write64(IQT, 0);
        self.registers
            .write64(IQA, self.ring.addr().0 | IQA_ONE_FRAME);
        self.tail = 0;
        let on = self.command(GCMD_QIE, true);
        self.see("the queue is enabled", on, true);
    }
    /// Another root table, not yet told to the unit.
    pub fn new_root(&mut self) {
        self.root = self.frame();
        self.contexts.clear();
    }

    /// The root entry of a bus, with a context table where it has none.
    pub fn contexts(&mut self, bus: u16) -> PhysPage {
        if let Some(page) = self.contexts.get(&bus) {
            return *page;
        }
        let contexts = self.frame();
        self.contexts.insert(bus, contexts);
        let entry = RootEntry { contexts }.encode();
        self.set_root_entry(bus, entry);
        contexts
    }
    pub fn set_root_entry(&mut self, bus: u16, words: Words) {
        let words = self.spoil(Class::Root, words);
        self.store(self.root, usize::from(bus) * 2 + 1, words.high);
        self.store(self.root, usize::from(bus) * 2, words.low);
    }
    /// Writes a context entry, high word first.
    pub fn set_context(&mut self, source: SourceId, words: Words) {
        let contexts = self.contexts(source.0 >> 8);
        let words = self.spoil(Class::Context, words);
        let at = usize::from(source.0 & 0xff) * 2;
        self.store(contexts, at + 1, words.high);
        self.store(contexts, at, words.low);
    }
    pub fn attach(&mut self, source: SourceId, tables: Tables, domain: u16) {
        self.set_context(source, entry(tables, domain).encode());
    }

    /// An empty table of the unit's width.
    pub fn tables(&mut self) -> Tables {
        let width = self.width();
        self.tables_of(width)
    }
    pub fn tables_of(&mut self, width: AddressWidth) -> Tables {
        let root = self.frame();
        Tables { root, width }
    }
    /// Where the entry for `page` at `level` is; tables on the way are made.
    pub fn slot(&mut self, tables: Tables, page: IovaPage, level: u32) -> (PhysPage, usize) {
        let mut at = tables.root;
        for above in (level + 1..=tables.width.levels()).rev() {
            let index = VtdSecond48::index(page, above);
            let mut held = self.load(at, index);
            if held & 3 == 0 {
                let low = VtdSecond48::table(self.frame(), above);
                held = self.spoil(Class::Table, Words { low, high: 0 }).low;
                self.store(at, index, held);
            }
            at = PhysAddr(held & 0x000f_ffff_ffff_f000).page();
        }
        (at, VtdSecond48::index(page, level))
    }
    pub fn set_entry(&mut self, tables: Tables, page: IovaPage, level: u32, value: u64) {
        let class = match level {
            1 => Class::Leaf,
            _ => Class::LargeLeaf,
        };
        let low = self
            .spoil(
                class,
                Words {
                    low: value,
                    high: 0,
                },
            )
            .low;
        let (at, index) = self.slot(tables, page, level);
        self.store(at, index, low);
    }
    pub fn map(&mut self, tables: Tables, page: IovaPage, to: PhysPage, perm: Perm) {
        let leaf = VtdSecond48::leaf(to, perm, LeafMarks::NONE, 1);
        self.set_entry(tables, page, 1, leaf);
    }
    pub fn unmap(&mut self, tables: Tables, page: IovaPage) {
        self.set_entry(tables, page, 1, 0);
    }

    /// Puts a descriptor into the ring, as the encoder made it; the unit is not told.
    pub fn push(&mut self, words: Words) {
        let class = match words.low & 0xf {
            1 => Class::ContextInvalidate,
            2 => Class::IotlbInvalidate,
            3 => Class::DeviceTlbInvalidate,
            4 => Class::InterruptInvalidate,
            _ => Class::Wait,
        };
        let words = self.spoil(class, words);
        let at = self.tail as usize * 2;
        self.store(self.ring, at, words.low);
        self.store(self.ring, at + 1, words.high);
        self.tail = (self.tail + 1) % PER_RING;
    }
    pub fn ring_tail(&self) {
        self.registers.write64(IQT, self.tail << IQ_INDEX_SHIFT);
    }
    /// The wait descriptor of the next submission.
    pub fn next_wait(&mut self) -> Words {
        self.submitted += 1;
        StatusWait {
            address: self.status.addr(),
            data: self.submitted,
            order: WaitOrder::Unfenced,
        }
        .encode()
    }
    /// Whether the last wait descriptor has written its status, and only that.
    pub fn arrived(&self) -> bool {
        let arrived = || self.load(self.status, 0) == u64::from(self.submitted);
        (0..LOOKS).any(|_| {
            // a look at a register gives the unit time, too
            arrived() || self.registers.read32(FSTS) == u32::MAX
        })
    }
    /// Submits and waits; whether the status arrived.
    pub fn submit(&mut self, words: &[Words]) -> bool {
        words.iter().for_each(|words| self.push(*words));
        let wait = self.next_wait();
        self.push(wait);
        self.ring_tail();
        self.arrived()
    }
    pub fn invalidate(&mut self, all: &[Invalidation]) {
        let words: Vec<Words> = all.iter().map(|one| one.encode()).collect();
        let done = self.submit(&words);
        self.see("the invalidation is done", done, true);
    }

    /// One access of 8 bytes inside the page, not at its start.
    pub fn access(&mut self, source: SourceId, page: IovaPage, kind: AccessKind) -> Reach {
        self.bench.access(source, Iova(page.addr().0 + 0x128), kind)
    }
    pub fn reach(
        &mut self,
        what: impl Display,
        source: SourceId,
        page: IovaPage,
        kind: AccessKind,
        want: Reach,
    ) {
        let got = self.access(source, page, kind);
        self.see(what, got, want);
    }
    pub fn reads(&mut self, what: impl Display, page: IovaPage, want: PhysPage) {
        self.reach(what, NIC, page, AccessKind::Read, Reach::Page(want));
    }
    pub fn blocked(&mut self, what: impl Display, page: IovaPage) {
        self.reach(what, NIC, page, AccessKind::Read, Reach::Blocked);
    }
}

pub fn entry(tables: Tables, domain: u16) -> ContextEntry {
    ContextEntry {
        table: tables.root,
        width: tables.width,
        domain: DomainId(domain),
        translation: TranslationType::Untranslated,
        faults: FaultRecording::On,
    }
}
