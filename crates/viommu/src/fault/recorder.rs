// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The fault recording registers (VT-d 4.1 §7.3.1, primary fault logging).
//!
//! A ring: a fault goes into the register after the one last used. A register that software has not
//! cleared yet (F = 1) is never overwritten: the fault is lost, and PFO says so; until PFO is
//! cleared nothing more is recorded.

use super::{FaultRecord, Faults};
use crate::config::Collapse;
use ioatlas_dma::units::AccessKind;

pub(crate) struct FaultRecorder {
    /// F of a register is set where there is something in it.
    slots: Vec<Option<FaultRecord>>,
    next: usize,
    overflowed: bool,
    collapse: Collapse,
}

impl FaultRecorder {
    pub(crate) fn new(capacity: usize, collapse: Collapse) -> Self {
        FaultRecorder {
            slots: vec![None; capacity],
            next: 0,
            overflowed: false,
            collapse,
        }
    }
    pub(crate) fn record(&mut self, record: FaultRecord) {
        let same = |held: &FaultRecord| held.source == record.source;
        let collapses =
            self.collapse == Collapse::SameSource && self.slots.iter().flatten().any(same);
        if self.overflowed || collapses {
            return;
        }
        match &mut self.slots[self.next] {
            Some(_) => self.overflowed = true,
            empty => {
                *empty = Some(record);
                self.next = (self.next + 1) % self.slots.len();
            }
        }
    }
    /// Reads and clears all, the oldest first, and the overflow.
    pub(crate) fn take(&mut self) -> Faults {
        let (newer, older) = self.slots.split_at_mut(self.next);
        let oldest_first = older.iter_mut().chain(newer);
        Faults {
            records: oldest_first.filter_map(Option::take).collect(),
            overflowed: core::mem::take(&mut self.overflowed),
        }
    }
    /// The two halves of a register; 0 where nothing is in it.
    pub(crate) fn words(&self, index: usize) -> [u64; 2] {
        let record = self.slots.get(index).copied().flatten();
        record.map_or([0, 0], encode)
    }
    pub(crate) fn clear(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = None;
        }
    }
    /// Which register has the oldest pending fault.
    pub(crate) fn oldest(&self) -> Option<usize> {
        let n = self.slots.len();
        (self.next..self.next + n)
            .map(|at| at % n)
            .find(|&at| self.slots[at].is_some())
    }
    pub(crate) fn clear_overflow(&mut self) {
        self.overflowed = false;
    }
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }
}

/// §11.4.7.5: FI 63:12; SID 79:64, FR 103:96, T1 126, F 127. No PASID, no privilege, no
/// execute, untranslated (AT 00b).
fn encode(record: FaultRecord) -> [u64; 2] {
    let read = match record.kind {
        AccessKind::Read => 1,
        AccessKind::Write => 0,
    };
    let high =
        1 << 63 | read << 62 | u64::from(record.reason.code()) << 32 | u64::from(record.source.0);
    [record.page.0 << 12, high]
}
