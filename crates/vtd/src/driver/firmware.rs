// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which domain ids firmware's contexts use, on a unit that translates by its tables.
//!
//! The tables are read as they are and believed in nothing but the ids: at most one root table and
//! 256 context tables of one frame each, wherever they say that they are, through [`PhysRead`],
//! which may refuse.

use super::{Unit, bring_up::ACTIVE, error::FirmwareIdsError};
use crate::{
    acpi::find::PhysRead,
    layout::{PER_FRAME, RootEntry, Slot, Words},
    plan::Change,
    registers::*,
};
use alloc::{boxed::Box, vec};
use ioatlas_dma::{
    platform::{Atomic64, Lock, Ordering, Platform},
    units::{DomainId, GRANULE, PhysAddr},
};

/// Bytes of an entry of either table.
const ENTRY: usize = 16;

impl<P: Platform, R: Registers> Unit<P, R> {
    /// Lets this unit, which firmware left translating, give domain ids before it is activated:
    /// those that none of firmware's contexts uses. Empties the unit's caches, waits for that, then
    /// reads firmware's root table and context tables. After an activation there is nothing to do.
    ///
    /// Until this was called, or the unit is activated, no domain can be made under such a unit: in
    /// the moment between its root table and its emptied caches a device of ours might be served
    /// from what firmware's devices left there under the same id.
    ///
    /// # Errors
    /// The caches could not be emptied, or a table could not be read. No id is given then, before
    /// the unit is activated.
    pub fn reserve_firmware_ids(&self, memory: &impl PhysRead) -> Result<(), FirmwareIdsError> {
        // from activation on the register names our root table, even if the unit did not take it
        let begun = self.stage.load(Ordering::Relaxed) == ACTIVE;
        if begun || !self.ids.with(|ids| ids.any_is_stale()) {
            return Ok(());
        }
        // what contexts that are gone left behind is in no table
        self.engine.follow(Change::Everything)?;
        let root = PhysAddr(self.engine.registers.read64(RTADDR) & !(GRANULE - 1));
        let ids = ids_of(memory, root)?;
        let in_use = |id: &u16| ids[usize::from(*id) / 64] >> (id % 64) & 1 == 1;
        let all = (0..=u16::MAX).filter(in_use).map(DomainId);
        self.ids.with(|ids| ids.stale_are(all));
        Ok(())
    }
}

/// The ids of all contexts that are present under `root`, one bit each.
fn ids_of(memory: &impl PhysRead, root: PhysAddr) -> Result<Box<[u64]>, FirmwareIdsError> {
    let mut found = vec![0u64; (usize::from(u16::MAX) + 1) / 64].into_boxed_slice();
    let mut buses = frame();
    let mut contexts = frame();
    read(memory, root, &mut buses)?;
    for bus in entries(&buses).filter_map(|words| RootEntry::decode(words.low)) {
        read(memory, bus.contexts.addr(), &mut contexts)?;
        for context in entries(&contexts) {
            if let Slot::Attached(id) = Slot::decode(context) {
                found[usize::from(id.0) / 64] |= 1 << (id.0 % 64);
            }
        }
    }
    Ok(found)
}

fn frame() -> Box<[u8]> {
    vec![0; PER_FRAME * ENTRY].into_boxed_slice()
}

fn read(memory: &impl PhysRead, table: PhysAddr, into: &mut [u8]) -> Result<(), FirmwareIdsError> {
    memory
        .read(table, into)
        .map_err(|_| FirmwareIdsError::Unreadable { table })
}

fn entries(table: &[u8]) -> impl Iterator<Item = Words> {
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | u64::from(*byte))
    };
    table.chunks_exact(ENTRY).map(move |entry| Words {
        low: word(&entry[..ENTRY / 2]),
        high: word(&entry[ENTRY / 2..]),
    })
}
