// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Context tables: which device is attached to which domain (VT-d 4.1 §9.1, §9.3).
//!
//! The entries in memory are the only state: free, attached, *detaching* or *fenced* (see
//! [`crate::layout::context`]). Everything here runs under one lock of the unit, never waits and
//! never allocates; a table that is missing is asked for.

use crate::authority::OURS;
use crate::layout::{
    PER_FRAME, RootEntry, Slot, WORDS, Words,
    context::{FENCED, TABLE},
};
use alloc::boxed::Box;
use ioatlas_dma::{
    platform::{Atomic64, FreshFrame, Ordering, Platform, TableFrame},
    units::{DomainId, SourceId},
};

/// The context tables of one unit, by bus.
pub(super) struct Contexts {
    tables: Box<[Option<TableFrame>]>,
    /// Devices whose entry is not free.
    devices: u32,
}

/// What came of filling an entry.
pub(super) enum Fill {
    /// The entry is present now.
    Done,
    /// The bus has no context table, and none was given.
    NeedsTable,
    /// It belongs to that domain.
    Taken(DomainId),
    /// The device may not be attached.
    Fenced,
    /// Another table has the entry's domain id.
    IdInUse,
}

impl Contexts {
    /// No table at all.
    pub(super) fn new() -> Self {
        Contexts {
            tables: core::iter::repeat_with(|| None).take(PER_FRAME).collect(),
            devices: 0,
        }
    }

    /// Devices whose entry is not free.
    pub(super) fn devices(&self) -> u32 {
        self.devices
    }

    /// All tables, for the end.
    pub(super) fn take_tables(&mut self) -> impl Iterator<Item = TableFrame> + use<> {
        core::mem::take(&mut self.tables).into_iter().flatten()
    }

    /// Makes the entry of `device` present, by way of `spare` where its bus has no table.
    pub(super) fn fill<P: Platform>(
        &mut self,
        p: &P,
        root: &TableFrame,
        device: SourceId,
        entry: Words,
        spare: &mut Option<FreshFrame>,
    ) -> Fill {
        let bus = usize::from(device.0 >> 8);
        if self.tables[bus].is_none() {
            let Some(fresh) = spare.take() else {
                return Fill::NeedsTable;
            };
            self.tables[bus] = Some(install::<P>(p, root, bus, fresh));
        }
        let Some(slot) = self.slot(p, device) else {
            return Fill::NeedsTable;
        };
        match Slot::decode(read::<P>(slot)) {
            Slot::Free if self.is_id_of_another_table(p, entry) => Fill::IdInUse,
            Slot::Free => {
                // the unit may read it at any moment: what the present bit vouches for comes first
                slot[1].store(entry.high, Ordering::Relaxed);
                slot[0].store(entry.low, Ordering::Release);
                write_back(p, slot);
                self.devices += 1;
                Fill::Done
            }
            Slot::Fenced => Fill::Fenced,
            Slot::Attached(domain) | Slot::Detaching(domain) => Fill::Taken(domain),
        }
    }

    /// Whether a device is attached by the domain id of `entry` to another table. Looks at all
    /// devices: attaching is rare.
    fn is_id_of_another_table<P: Platform>(&self, p: &P, entry: Words) -> bool {
        let tables = self.tables.iter().flatten();
        let entries = tables.flat_map(|table| p.entries(OURS, table.by_ref()).chunks_exact(WORDS));
        let mut same = entries.map(read::<P>).filter(|words| {
            let (one, other) = (Slot::decode(*words), Slot::decode(entry));
            matches!(one, Slot::Attached(_)) && one == other
        });
        same.any(|words| (words.low ^ entry.low) & TABLE != 0)
    }

    /// Clears the present bit of `device`, if it is attached to `domain`, and marks the entry;
    /// returns whether it was.
    pub(super) fn begin_detach<P: Platform>(
        &mut self,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> bool {
        let Some(slot) = self.slot(p, device) else {
            return false;
        };
        let words = read::<P>(slot);
        // a detach whose flush failed may be tried again
        if ![Slot::Attached(domain), Slot::Detaching(domain)].contains(&Slot::decode(words)) {
            return false;
        }
        slot[0].store(0, Ordering::Relaxed);
        slot[1].store(Slot::detaching(words.high), Ordering::Release);
        write_back(p, slot);
        true
    }

    /// Blocks `device` for good, as far as the entry goes; the domain that it had.
    pub(super) fn fence<P: Platform>(&mut self, p: &P, device: SourceId) -> Option<DomainId> {
        let slot = self.slot(p, device)?;
        let words = read::<P>(slot);
        let (domain, high) = match Slot::decode(words) {
            Slot::Attached(domain) | Slot::Detaching(domain) => {
                (Some(domain), Slot::detaching(words.high))
            }
            Slot::Free | Slot::Fenced => (None, words.high),
        };
        slot[0].store(0, Ordering::Relaxed);
        slot[1].store(high | FENCED, Ordering::Release);
        write_back(p, slot);
        domain
    }

    /// Takes the fence away from a device that is detached; whether there was one. The domain it
    /// has, if it has one.
    pub(super) fn unfence<P: Platform>(
        &mut self,
        p: &P,
        device: SourceId,
    ) -> Result<bool, DomainId> {
        let Some(slot) = self.slot(p, device) else {
            return Ok(false);
        };
        match Slot::decode(read::<P>(slot)) {
            Slot::Attached(domain) | Slot::Detaching(domain) => Err(domain),
            Slot::Free => Ok(false),
            Slot::Fenced => {
                slot[1].store(0, Ordering::Relaxed);
                write_back(p, slot);
                Ok(true)
            }
        }
    }

    /// Whether `device` is fenced, attached still or not.
    pub(super) fn is_fenced<P: Platform>(&self, p: &P, device: SourceId) -> bool {
        let slot = self.slot(p, device);
        slot.is_some_and(|slot| slot[1].load(Ordering::Relaxed) & FENCED != 0)
    }

    /// Frees the marked entry of `device`, which the unit no longer knows; once, if two CPUs come
    /// to this end. A fence stays. Returns whether it was marked.
    pub(super) fn end_detach<P: Platform>(
        &mut self,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> bool {
        let marked = |slot: &&[P::A64]| Slot::decode(read::<P>(slot)) == Slot::Detaching(domain);
        let Some(slot) = self.slot(p, device).filter(marked) else {
            return false;
        };
        let fence = slot[1].load(Ordering::Relaxed) & FENCED;
        slot[1].store(fence, Ordering::Relaxed);
        write_back(p, slot);
        self.devices -= 1;
        true
    }

    /// The two words of a device's entry, if its bus has a table.
    fn slot<'t, P: Platform>(&'t self, p: &'t P, device: SourceId) -> Option<&'t [P::A64]> {
        let table = self.tables[usize::from(device.0 >> 8)].as_ref()?;
        let at = usize::from(device.0 & 0xff) * WORDS;
        Some(&p.entries(OURS, table.by_ref())[at..at + WORDS])
    }
}

/// Hangs a zeroed table into the root table: the table whole, then its entry.
fn install<P: Platform>(p: &P, root: &TableFrame, bus: usize, fresh: FreshFrame) -> TableFrame {
    let table = fresh.publish();
    p.publish(p.entries(OURS, table.by_ref()));
    let entry = RootEntry {
        contexts: table.page(),
    }
    .encode();
    let slot = &p.entries(OURS, root.by_ref())[bus * WORDS..][..WORDS];
    slot[1].store(entry.high, Ordering::Relaxed);
    slot[0].store(entry.low, Ordering::Release);
    p.publish(slot);
    table
}

/// For a unit whose walks do not snoop.
fn write_back<P: Platform>(p: &P, slot: &[P::A64]) {
    p.publish(slot);
}

fn read<P: Platform>(slot: &[P::A64]) -> Words {
    Words {
        low: slot[0].load(Ordering::Relaxed),
        high: slot[1].load(Ordering::Relaxed),
    }
}
